"""Provenance of a result folder: ``manifest.json`` names the experiment, the program and the inputs.

Facts that change from run to run (host, clock, duration) are kept apart under ``volatile``; everything else is the
same for the same run.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import t3sim
from t3sim.files import publish
from t3sim.results.digest import file_digest, records_digest, source_digest
from t3sim.results.record import RunRecord
from t3sim.results.writer import CSV_NAME, PARQUET_NAME

MANIFEST_NAME = "manifest.json"
SCHEMA_VERSION = 1

# What can change a number: the packages that compute, order or write it.
_PACKAGES = ("numpy", "numba", "llvmlite", "simpy", "pydantic", "pyarrow", "pyyaml")


def write_manifest(
    folder: Path,
    *,
    experiment: str,
    command: Sequence[str],
    points: Sequence[str],
    records: Sequence[RunRecord],
    inputs: Mapping[str, str],
    failed: Sequence[str],
    idle_axes: Sequence[str],
    wall_s: float,
) -> Path:
    """Publish in *folder* the manifest of the finished run whose result files lie there.

    *command* is the command line as given; *points* are digests in the order of *records*; *inputs* maps the names of
    files read to their digests; *failed* are the digests of points without a record; *idle_axes* the swept keys that
    changed nothing.
    """
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "t3sim": t3sim.__version__,
        "source_sha256": source_digest(),
        "python": platform.python_version(),
        "packages": {name: _installed(name) for name in _PACKAGES},
        "experiment": experiment,
        "command": list(command),
        "seed": None,
        "inputs": dict(sorted(inputs.items())),
        "points": list(points),
        "failed": list(failed),
        "axes_without_effect": list(idle_axes),
        "records_sha256": records_digest(records),
        "volatile": {
            "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "host": platform.node(),
            "platform": f"{sys.platform} {platform.machine()}",
            "wall_s": wall_s,
            # Result files hold the wall time of each point, so their digests are volatile too.
            "files_sha256": {name: file_digest(folder / name) for name in (CSV_NAME, PARQUET_NAME)},
        },
    }
    path = folder / MANIFEST_NAME
    publish({path: (json.dumps(manifest, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode()})
    return path


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
