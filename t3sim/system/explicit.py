"""The phases of one sublayer with every GPU of the ring simulated.

Each phase runs on fresh GPUs, as in mirrored mode, but a GPU starts it when it has ended the one before; so different
GPUs drift apart, and the ring brings them together again.  What decides a phase is which GPUs and links there are and
how much later than the first each GPU starts it.  GPUs that can drift apart start a phase by the results of the phases
before it; such a phase is distinguished by what determines those.  Decision 18 says more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from t3sim.checks.audit import Audit, Report
from t3sim.config.experiment import RunSpec
from t3sim.config.machine import MachineSpec
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.ticks import TickBase
from t3sim.gpu.traffic import TrafficClasses
from t3sim.observe.timeline import Timeline
from t3sim.observe.waits import Wait, of_gpu
from t3sim.program.operations import reaches_others
from t3sim.program.plan import Part
from t3sim.strategies.interface import After, GpuPhase, Phase, Span
from t3sim.system.machine import sent_at
from t3sim.system.measure import timelines_of, waits_of
from t3sim.system.parts import Parts, PhaseJob, PhaseSource, counters_in, key_of, named, shifted
from t3sim.system.ring import RingMachine
from t3sim.system.spans import spans_of
from t3sim.system.threads import threads_for


@dataclass(frozen=True)
class RingStart:
    """How a ring starts a phase: when each GPU does.

    *offsets* are ticks by which each GPU starts later than the first.  If the start depends on the results of phases
    before it, *after* holds what decides these, and *offsets* are the delays that are added to their ends.
    """

    offsets: tuple[int, ...]
    after: tuple[Any, ...] = ()


class ExplicitParts(Parts):
    """Parts in explicit mode, on at least two GPUs."""

    def __init__(self, run: RunSpec, store: PhaseSource, audit: Audit | None = None) -> None:
        super().__init__(run, store, audit)
        self.ticks = TickBase.of(run.machine)
        # What is left decides a phase; when its GPUs start is said by a RingStart.
        self.machine_spec = run.machine.model_copy(update={"start_skew": ()})

    # --- when and where GPUs start ---------------------------------------------------------------

    def ready_at(self, before: Sequence[Phase], n: int) -> list[int] | None:
        """Return when each GPU has done *before*, or starts the sublayer; None if that is not known yet.

        Each phase has links of its own, so a GPU launches the next one when its link has carried what it sent before.
        """
        if not all(phase.gpus for phase in before):
            return None
        late = {skew.number: self.ticks.from_ps(skew.delay) for skew in self.run.machine.start_skew}
        return [
            max((max(phase.gpus[d].end, phase.gpus[d].sent) for phase in before), default=late.get(d, 0))
            for d in range(n)
        ]

    def phase(self, part: Part, after: After = ()) -> Phase:
        """See the base class.

        A part in which no GPU hears of another is simulated GPU by GPU, identical ones once.
        """
        policy, params = self.policy_of(part)
        name, before, n = named(part, policy), list(after), part.n
        ready = self.ready_at(before, n)
        starts = ready or [0] * n
        first = min(starts)
        offsets = tuple(start - first for start in starts)
        # Identical GPUs that start together end together, so a uniform ring is in step all the time.
        if not before or (self.run.machine.is_uniform and part.difference is None):
            start, needed = RingStart(offsets), []
        else:  # in a plan, the offsets have no meaning before those needed are finished, and neither has the phase
            start = RingStart((0,) * n, tuple((one.start, one.jobs) for one in before))
            needed = [job for one in before for job in one.jobs]
        if not any(reaches_others(operation) for program in part.programs for operation in program.operations):
            alone = [self._alone(part, name, policy, params, d) for d in range(n)]
            phase = merged(name, offsets, alone, [round(self.ticks.to_us(offset) * 1e6) for offset in offsets])
        else:
            key = ("explicit", *key_of(part, policy, params), self.machine_spec, self.run.quantum, start)
            simulate = self._simulation(part, self.machine_spec, name, policy, params, offsets)
            phase = self.store.get(PhaseJob(key, name, simulate, part, self.machine_spec, n, tuple(needed)))
        if ready is None or not phase.gpus:
            return Phase(name, 1, {}, Timeline(), jobs=phase.jobs, start=start)
        gpus = tuple(shifted(gpu, first) for gpu in phase.gpus)
        earlier = max((gpu.end for one in before for gpu in one.gpus), default=0)
        ticks = max(gpu.end for gpu in gpus) - earlier
        return replace(phase, ticks=ticks, at=first, gpus=gpus, start=start)

    def _alone(self, part: Part, name: str, policy: str, params: dict[str, Any], d: int) -> Phase:
        """Return what GPU *d* does in *part*, alone."""
        spec = self.machine_spec.of_gpu(d).model_copy(update={"link": self.machine_spec.link})  # which it does not use
        own = replace(part, programs=(part.programs[d],))
        key = ("alone", *key_of(own, policy, params), spec, self.run.quantum, self.ticks.hz)
        simulate = self._simulation(own, spec, name, policy, params, (0,))
        return self.store.get(PhaseJob(key, name, simulate, own, spec))

    def cluster(self, part: Part, spec: MachineSpec, policy: str, params: dict[str, Any]) -> RingMachine:
        """Return fresh GPUs for *part*, or one of them alone, in the time of all."""
        return RingMachine(
            part.clocked(spec, self.ticks.hz), arbitration_policies.get(policy), params, part.n, self.run.quantum,
            n_threads=threads_for(part.n), ticks=self.ticks, traffic=TrafficClasses(part.programs[0].classes),
        )  # fmt: skip

    def _simulation(
        self, part: Part, spec: MachineSpec, name: str, policy: str, params: dict[str, Any], offsets: Sequence[int]
    ) -> Callable[[Report], Phase]:
        """Return what runs *part* on GPUs that start by *offsets*, every one under audit, and returns the phase."""

        def simulate(report: Report) -> Phase:
            ring = self.cluster(part, spec, policy, params)
            for d, (program, offset) in enumerate(zip(part.programs, offsets, strict=True)):
                ring.load(d, program, offset)
            ring.note_loaded()
            shares = [0.0] * len(ring.devices)

            def note(d: int, share: float) -> None:
                shares[d] = share
                report(sum(shares) / len(shares))

            followed = self.audit.follow(ring.devices)
            ends = ring.run(followed.reports([partial(note, d) for d in range(part.n)]))
            followed.finish()
            gpus: list[GpuPhase] = []
            waits: list[Wait] = []
            spans: list[Span] = []
            for d, (core, offset, end) in enumerate(zip(ring.cores, offsets, ends, strict=True)):
                gpus.append(GpuPhase(offset, end, counters_in(part, policy, core), sent_at(core)))
                waits += waits_of(core, max(ends), f"gpu[{d}]", offset)
                spans += spans_of(core, d)
            timeline = timelines_of(ring.cores, ring.receiver) if self.audit.has_timeline else Timeline()
            return phase_of(name, gpus, timeline, waits, spans)

        return simulate


def phase_of(
    name: str, gpus: Sequence[GpuPhase], timeline: Timeline, waits: Sequence[Wait], spans: Sequence[Span]
) -> Phase:
    """Return the phase of *gpus*: it ends when the last of them does, and has the counters of that one."""
    last = max(gpus, key=lambda gpu: gpu.end)
    return Phase(name, last.end, last.counters, timeline, tuple(gpus), waits=tuple(waits), spans=tuple(spans))


def merged(name: str, offsets: Sequence[int], alone: Sequence[Phase], offsets_ps: Sequence[int]) -> Phase:
    """Return the phase in which each GPU does, from its offset on (also in ps), what it does *alone*."""
    jobs = tuple(job for phase in alone for job in phase.jobs)
    if not all(phase.gpus for phase in alone):  # in a plan
        return Phase(name, 1, {}, Timeline(), jobs=jobs)
    gpus = [shifted(gpu, offset) for offset, gpu in zip(offsets, (phase.gpus[0] for phase in alone), strict=True)]
    end = max(gpu.end for gpu in gpus)
    waits = [
        wait
        for d, (gpu, phase) in enumerate(zip(gpus, alone, strict=True))
        for wait in of_gpu(phase.waits, f"gpu[{d}]", end - gpu.end)
    ]
    timeline = Timeline()
    for d, (phase, later_ps) in enumerate(zip(alone, offsets_ps, strict=True)):
        timeline.extend(phase.timeline.as_gpu(d, len(alone), later_ps))
    spans = [
        replace(span, gpu=d, start=span.start + offset, end=span.end + offset)
        for d, (offset, phase) in enumerate(zip(offsets, alone, strict=True))
        for span in phase.spans
    ]
    return replace(phase_of(name, gpus, timeline, waits, spans), jobs=jobs)
