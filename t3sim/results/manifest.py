"""Provenance of a result folder: ``manifest.json`` says what was run, with which program, on what inputs.

Facts that change from run to run (host, clock, duration) are kept apart under
``volatile``; everything else is the same for the same run.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import t3sim
from t3sim.files import publish
from t3sim.results.digest import file_digest, records_digest, source_digest
from t3sim.results.record import RunRecord
from t3sim.results.writer import CSV_NAME, PARQUET_NAME

MANIFEST_NAME = "manifest.json"
SCHEMA_VERSION = 1

# What can change a number: the packages that compute, order or write it.
_PACKAGES = ("numpy", "numba", "llvmlite", "simpy", "pydantic", "pyarrow", "pyyaml")


def make_manifest(
    *,
    experiment: str,
    command: Sequence[str],
    point_digests: Sequence[str],
    records: Sequence[RunRecord],
    inputs: Mapping[str, str] | None = None,
    failed: Sequence[str] = (),
    idle_axes: Sequence[str] = (),
    seed: int | None = None,
    wall_s: float | None = None,
) -> dict[str, Any]:
    """Return the manifest of one finished run.

    *command* is the command line as given; *point_digests* are in the order of
    *records*; *inputs* maps the names of files read to their digests; *failed*
    are the digests of points without a record; *idle_axes* the swept keys that
    changed nothing.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "t3sim": t3sim.__version__,
        "source_sha256": source_digest(),
        "python": platform.python_version(),
        "packages": {name: _installed(name) for name in _PACKAGES},
        "experiment": experiment,
        "command": list(command),
        "seed": seed,
        "inputs": dict(sorted((inputs or {}).items())),
        "points": list(point_digests),
        "failed": list(failed),
        "axes_without_effect": list(idle_axes),
        "records_sha256": records_digest(records),
        "volatile": {
            "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "host": platform.node(),
            "platform": f"{sys.platform} {platform.machine()}",
            "wall_s": wall_s,
        },
    }


def write_manifest(directory: str | Path, manifest: Mapping[str, Any]) -> Path:
    """Publish *manifest* in *directory*, with the digests of the result files that lie there."""
    folder = Path(directory)
    files = {name: file_digest(folder / name) for name in (CSV_NAME, PARQUET_NAME) if (folder / name).is_file()}
    # Result files hold the wall time of each point, so their digests are volatile too.
    volatile = {**manifest["volatile"], "files_sha256": files}
    text = json.dumps({**manifest, "volatile": volatile}, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    path = folder / MANIFEST_NAME
    publish({path: text.encode()})
    return path


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
