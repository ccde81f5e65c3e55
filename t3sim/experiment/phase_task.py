"""One phase as a unit of work: how a worker is told of it, and what the worker does.

A task names the point that asks for the phase and the digest of the phase.  The worker plans the point again and takes
the phase of that digest: nothing but specs travels, whatever a strategy makes its phases of.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from t3sim.checks.audit import Audit
from t3sim.errors import EnvironmentFailure
from t3sim.experiment.phase_digest import phase_digest, program_digest
from t3sim.experiment.phase_files import StoredPhase, encode
from t3sim.experiment.plugins import load_plugins
from t3sim.system.compilation import compile_for
from t3sim.system.phases import PhasePlan
from t3sim.system.simulate import evaluate
from t3sim.system.threads import at_most_threads
from t3sim.workload.trace_file import read_trace

if TYPE_CHECKING:
    from t3sim.config.experiment import RunSpec
    from t3sim.system.phases import PhaseJob
    from t3sim.workload.tiling import TileTrace

Report = Callable[[float], None]


@dataclass(frozen=True)
class PhaseTask:
    """A phase to simulate: the first point that asks for it, its digest, and which full checks are to follow it."""

    run: RunSpec
    digest: str
    name: str
    seconds: float  # estimate, on one core
    program: str  # digest of the t3sim that asks
    has_checks: bool
    has_data: bool
    seed: int

    @classmethod
    def of(cls, job: PhaseJob, run: RunSpec, digest: str, seconds: float, audit: Audit) -> PhaseTask:
        """Return the task of *job*, a phase of *run*."""
        return cls(run, digest, job.name, seconds, program_digest(), audit.has_checks, audit.has_data, audit.seed)


def perform(task: PhaseTask, report: Report, n_threads: int | None = 1) -> bytes:
    """Simulate the phase of *task* and return the content of its file; *report* is told the share that is done.

    An explicit ring takes *n_threads* threads (None: one for each core).
    Raises ``ModelError`` if a check fails, and ``EnvironmentFailure`` if this process runs another t3sim, or finds
    other plugins, than the one that asks.
    """
    if program_digest() != task.program:
        raise EnvironmentFailure("a worker runs another version of t3sim; start the workers from the same sources")
    load_plugins(task.run.plugins)
    audit = Audit(task.has_checks, task.has_data, task.seed)
    plan = PhasePlan()
    evaluate(task.run, trace_of(task.run), plan, audit)
    for job in plan.jobs.values():
        if phase_digest(job, task.run.plugins) == task.digest:
            compile_for([task.run])
            with at_most_threads(n_threads):
                return encode(simulated(job, task.digest, audit, report))
    raise EnvironmentFailure(
        f"a worker does not find the phase `{task.name}`: its plugins or traces are not the same files"
    )


def simulated(job: PhaseJob, digest: str, audit: Audit, report: Report) -> StoredPhase:
    """Simulate *job*, which *audit* follows, and return it with the host time it took."""
    started = time.perf_counter()
    phase = job.simulate(report)
    return StoredPhase(digest, phase, time.perf_counter() - started, asdict(audit))


def trace_of(run: RunSpec) -> TileTrace | None:
    """Return the tile trace that a point replays, None if it makes its tiles from the shape."""
    return None if run.workload.trace is None else _verified_trace(run.workload.trace)


@lru_cache(maxsize=8)
def _verified_trace(path: str) -> TileTrace:
    return read_trace(path)


__all__ = ["PhaseTask", "perform", "simulated", "trace_of"]
