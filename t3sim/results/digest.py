"""Digests of a point, of the program and of the records, to compare results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import t3sim
from t3sim.results.record import COLUMNS, VOLATILE, RunRecord

if TYPE_CHECKING:
    from t3sim.config.experiment import RunSpec
    from t3sim.config.machine import MachineSpec


def sha256_of(value: Any) -> str:
    """Return the sha256 of *value* as JSON with sorted keys, no spaces and no NaN: equal values give equal text."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def run_digest(run: RunSpec, *, inputs: Mapping[str, str] | None = None) -> str:
    """Return the digest of one point: everything that decides its result but the program itself.

    *inputs* maps the names of files that the point reads (a trace, plugins) to
    the digests of their contents.  The name of the experiment is left out.
    """
    spec = run.model_dump(mode="json", exclude={"experiment"})
    return sha256_of({"run": spec, "inputs": dict(inputs or {})})


def machine_digest(machine: MachineSpec) -> str:
    """Return the digest of a machine's values; two machines of one name may differ by overrides."""
    return sha256_of(machine.model_dump(mode="json", exclude={"name"}))


def case_digest(run: RunSpec) -> str:
    """Return the digest of what the sequential baseline of a point depends on: workload, machine, order of dispatch."""
    workload = run.workload.model_dump(mode="json")
    return sha256_of({"machine": machine_digest(run.machine), "workload": workload, "staggered": run.staggered})


def file_digest(path: str | Path) -> str:
    """Return the sha256 of a file's content."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def source_digest(without: Collection[str] = (), package: Path | None = None) -> str:
    """Return the digest of names and contents of the Python and CUDA files of a package, but for folders *without*."""
    root, digest = package or Path(t3sim.__file__).parent, hashlib.sha256()
    sources = (path for path in root.rglob("*.*") if path.suffix in {".py", ".cu"})
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in sources):
        if name.partition("/")[0] not in without:
            content = path.read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def records_digest(records: Iterable[RunRecord]) -> str:
    """Return the digest of simulated results: all columns but those that depend on the host."""
    names = [name for name in COLUMNS if name not in VOLATILE]
    return sha256_of([{name: getattr(record, name) for name in names} | dict(record.axes) for record in records])
