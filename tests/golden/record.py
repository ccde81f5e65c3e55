"""What is stored of a run: times, every counter, spans, and a digest of the DRAM commands, phase by phase."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.checks.audit import Audit, FollowedRun, Report
from t3sim.experiment.planning.plan import load_experiment
from t3sim.gpu.device import Device
from t3sim.strategies import Phase
from t3sim.system import simulate
from t3sim.system.parts import PhaseJob, PhaseStore

COLUMNS = ("at", "command", "bank", "row", "column", "kind")  # of a command; its tag depends on the compiled layout
FLOATS = ("workgroup_spread",)  # counters whose last digit may differ between processors
Record = dict[str, Any]  # phases, of each groups of values by name


class CommandAudit(Audit):
    """Keeps the DRAM commands of the phase that was simulated last, GPU by GPU."""

    def follow(self, devices: Sequence[Device]) -> CommandRun:
        """See the base class."""
        self.run = CommandRun(self, devices)
        return self.run


class CommandRun(FollowedRun):
    """One phase and the DRAM commands of each of its GPUs."""

    def __init__(self, audit: Audit, devices: Sequence[Device]) -> None:
        super().__init__(audit, devices)
        self._commands: list[list[NDArray[Any]]] = [[] for _ in devices]
        for device, batches in zip(devices, self._commands, strict=True):
            device.core.stream_commands(lambda commands, batches=batches: batches.append(commands.copy()))

    def reports(self, reports: Sequence[Report]) -> list[Report]:
        """See the base class."""
        return list(reports)

    def digests(self) -> list[str]:
        """Return the digest of all commands of each GPU, channel by channel."""
        return [digest_of(batches) for batches in self._commands]


def digest_of(batches: Sequence[NDArray[Any]]) -> str:
    """Return the number of commands in *batches* and their digest; in which order channels take turns is no part."""
    if not batches:
        return "0 commands"
    every = np.concatenate(batches)
    every = every[np.argsort(every["channel"], kind="stable")]
    columns = np.array([every[name] for name in ("channel", *COLUMNS)], np.int64)
    return f"{len(every)} commands, {hashlib.sha256(columns.tobytes()).hexdigest()[:16]}"


class RecordingStore(PhaseStore):
    """Keeps a record of each phase as it is simulated, in order."""

    def __init__(self, audit: CommandAudit) -> None:
        super().__init__()
        self.audit = audit
        self.records: dict[str, Record] = {}

    def get(self, job: PhaseJob) -> Phase:
        """See the base class."""
        is_new = job.key not in self._phases
        phase = super().get(job)
        if is_new:
            number = len(self.records)
            self.records[f"{number}: {job.name}"] = record_of(phase, self.audit.run.digests())
        return phase


def record_of(phase: Phase, commands: Sequence[str]) -> Record:
    """Return what is stored of a simulated phase."""
    gpus = {"gpu[]": phase.counters}
    if phase.gpus:
        gpus = {f"gpu[{d}]": {"start": gpu.start, "end": gpu.end, **gpu.counters} for d, gpu in enumerate(phase.gpus)}
    counters = {name: plain(values) for name, values in gpus.items()}
    for values, digest in zip(counters.values(), commands, strict=True):
        values["dram_commands"] = digest
    waits: dict[str, int] = {}
    for wait in phase.waits:
        key = f"{wait.unit.partition('[')[0]}: {wait.reason}"
        waits[key] = waits.get(key, 0) + wait.ticks
    spans = {
        f"{number}: gpu[{span.gpu}] {span.name}": [
            span.start, span.end, span.waited, span.read_bytes, span.written_bytes, span.sent_bytes,
        ]
        for number, span in enumerate(phase.spans)
    }  # fmt: skip
    return {"phase": {"ticks": phase.ticks}, **merged(counters), "waits": waits, "spans": spans}


def merged(groups: Mapping[str, Record]) -> dict[str, Record]:
    """Return *groups* with equal ones of them, which are GPUs in step, under the names of all of these."""
    names: dict[str, list[str]] = {}
    for name, values in groups.items():
        names.setdefault(json.dumps(values), []).append(name)
    return {" ".join(same): groups[same[0]] for same in names.values()}


def plain(counters: Mapping[str, Any]) -> Record:
    """Return *counters* in one level, without floats and zeros."""
    flat: Record = {}
    for name, value in counters.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": one for key, one in value.items()}
        elif name not in FLOATS:
            flat[name] = value
    return {name: value for name, value in flat.items() if value != 0}


def result_of(case: Mapping[str, Any]) -> Record:
    """Run *case*; return its record: the result as a whole, then each phase that was simulated for it."""
    experiment = {key: value for key, value in case.items() if key != "overrides"}
    (run,) = load_experiment({"name": "golden", **experiment}, case.get("overrides", ())).points
    audit = CommandAudit(has_timeline=False)
    store = RecordingStore(audit)
    result = simulate(run, None, store, audit)
    roles = {
        role: [phase.at, phase.end, phase.ticks] for part in result.sublayers for role, phase in part.by_role.items()
    }
    times = {"ticks": result.total, "operator": result.operator}
    return {"result": {"times": times, "roles": roles}, **store.records}
