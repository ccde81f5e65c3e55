"""The phases of one sublayer with every GPU of the ring simulated.

Each phase runs on fresh GPUs, as in mirrored mode, but a GPU starts it when it has ended the one before; so different
GPUs drift apart, and the ring brings them together again.  What decides a phase is which GPUs and links there are and
how much later than the first each GPU starts it.  GPUs that can drift apart start a phase by the results of the phases
before it; such a phase is told from others by what decides those.  Decision 18 says more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from t3sim.checks.audit import Audit
from t3sim.collective.schedule import CollectiveSchedule
from t3sim.config.experiment import RunSpec
from t3sim.config.machine import MachineSpec
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.core import GpuCore
from t3sim.gpu.routes import StoreRoutes
from t3sim.gpu.ticks import TickBase
from t3sim.observe.timeline import Timeline
from t3sim.observe.waits import Wait, of_gpu
from t3sim.overlap.interface import After, GpuPhase, Phase
from t3sim.registry import check_declaration
from t3sim.system.machine import sent_at
from t3sim.system.measure import counters_of, timeline_of, waits_of
from t3sim.system.phases import (
    ISOLATED_POLICY,
    MAPPING,
    PhaseJob,
    PhaseSource,
    Report,
    SublayerPhases,
    threshold_in_force,
    with_compute_units,
)
from t3sim.system.ring import RingMachine
from t3sim.system.threads import threads_for
from t3sim.workload.tiling import TileTrace

Keys = tuple[tuple[Any, ...], ...]  # of jobs


@dataclass(frozen=True)
class RingStart:
    """How a ring starts a phase: when each GPU does, and the position at which it begins to dispatch.

    *offsets* are ticks by which each GPU starts later than the first.  If the start depends on the results of phases
    before it, *after* holds what decides these, and *offsets* are the delays that are added to their ends.
    """

    offsets: tuple[int, ...]
    first_positions: tuple[int, ...]
    after: tuple[Any, ...] = ()

    @property
    def n_devices(self) -> int:
        """GPUs of the ring."""
        return len(self.offsets)


class ExplicitPhases(SublayerPhases):
    """Phases in explicit mode, on a ring of at least two GPUs."""

    def __init__(
        self,
        run: RunSpec,
        trace: TileTrace | None,
        store: PhaseSource,
        audit: Audit | None = None,
        sublayer: int = 0,
    ) -> None:
        """*sublayer* is the number of the sublayer in its layer: each has a jitter of its own."""
        super().__init__(run, trace, store, audit)
        self.sublayer = sublayer
        self.ticks = TickBase.of(run.machine)
        # What is left decides a phase; when its GPUs start is said by a RingStart.
        self.machine_spec = run.machine.model_copy(update={"start_skew": (), "start_jitter": None})

    # --- when and where GPUs start ---------------------------------------------------------------

    def first_positions(self) -> tuple[int, ...]:
        """Return the position at which each GPU begins to dispatch: its own chunk, or chunk 0 if not staggered."""
        n = self.n_devices
        return tuple(0 if self.run.staggered else (n - d) % n for d in range(n))

    def jitter(self, number: int) -> list[int]:
        """Return by how many ticks the kernel *number* of the sublayer starts late on each GPU."""
        spec = self.run.machine.start_jitter
        if spec is None:
            return [0] * self.n_devices
        return [
            self.ticks.from_ps(int(np.random.default_rng(key).integers(0, spec.limit, endpoint=True)))
            for key in ([spec.seed, d, self.sublayer, number] for d in range(self.n_devices))
        ]

    def ready_at(self, before: Sequence[Phase]) -> list[int] | None:
        """Return when each GPU has done *before*, or starts the sublayer; None if that is not known yet.

        Each phase has links of its own, so a GPU launches the next one when its link has carried what it sent before.
        """
        if not all(phase.gpus for phase in before):
            return None
        late = {skew.number: self.ticks.from_ps(skew.delay) for skew in self.run.machine.start_skew}
        return [
            max((max(phase.gpus[d].end, phase.gpus[d].sent) for phase in before), default=late.get(d, 0))
            for d in range(self.n_devices)
        ]

    def placed(
        self,
        name: str,
        after: After,
        first_positions: tuple[int, ...],
        asked: Callable[[RingStart, Sequence[int], Keys], Phase],
    ) -> Phase:
        """Return the phase *name* that *asked* gets from the store, on the clock of the sublayer.

        *asked* is given how the phase starts, by how many ticks each GPU is later than the first, and the keys of the
        jobs that these depend on.  In a plan, the offsets of a phase with such jobs have no meaning before they are
        finished, and neither has the phase that is returned.
        """
        before = [phase for phase in after if phase is not None]
        number = max((phase.number + 1 for phase in before), default=0)
        jitter, ready = self.jitter(number), self.ready_at(before)
        starts = [at + more for at, more in zip(ready or [0] * self.n_devices, jitter, strict=True)]
        first = min(starts)
        offsets = tuple(start - first for start in starts)
        # Identical GPUs that start together end together, so a uniform ring is in step all the time.
        is_known = not before or (self.run.machine.is_uniform and self.run.staggered)
        if is_known:
            start = RingStart(offsets, first_positions)
            phase = asked(start, offsets, ())
        else:
            start = RingStart(tuple(jitter), first_positions, tuple((one.start, one.jobs) for one in before))
            phase = asked(start, offsets, tuple(job for one in before for job in one.jobs))
        if ready is None or not phase.gpus:
            return Phase(name, 1, {}, Timeline(), number=number, jobs=phase.jobs, start=start)
        gpus = tuple(later(gpu, first) for gpu in phase.gpus)
        earlier = max((gpu.end for one in before for gpu in one.gpus), default=0)
        ticks = max(gpu.end for gpu in gpus) - earlier
        return replace(phase, ticks=ticks, gpus=gpus, number=number, start=start)

    # --- the phases ------------------------------------------------------------------------------

    def gemm(self, *, n_compute_units: int | None = None, after: After = ()) -> Phase:
        """See ``overlap.interface.Phases``.  Nothing connects the GPUs, so identical ones are simulated once."""
        name = self.named("gemm", n_compute_units)
        n_taken = 0 if n_compute_units is None else self.n_compute_units - n_compute_units

        def asked(_start: RingStart, offsets: Sequence[int], _needed: Keys) -> Phase:
            alone = [self._gemm_of(name, d, n_taken) for d in range(self.n_devices)]
            return merged(name, offsets, alone, [round(self.ticks.to_us(offset) * 1e6) for offset in offsets])

        return self.placed(name, after, self.first_positions(), asked)

    def _gemm_of(self, name: str, d: int, n_taken: int) -> Phase:
        """Return the GEMM of device *d*, alone, on all but *n_taken* of its compute units."""
        trace, position = self.required_trace(), self.first_positions()[d]
        spec = self.machine_spec.of_gpu(d).model_copy(update={"link": self.machine_spec.link})  # which it does not use
        if n_taken:
            spec = with_compute_units(spec, spec.gpu.n_compute_units - n_taken)

        def simulate(report: Report) -> Phase:
            ring = self.ring(spec.at_matrix_clock(), 1, ISOLATED_POLICY, {})
            routes = StoreRoutes(trace.n_workgroups)
            ring.cores[0].load_gemm(trace, routes, start_at=ring.start_at(0), device_id=position)
            return self._finished(name, ring, (0,), report)

        key = ("explicit gemm", *self.tiles_key(), spec, self.run.quantum, self.ticks.hz, position)
        return self.store.get(PhaseJob(key, name, simulate))

    def collective(
        self, name: str, schedule: CollectiveSchedule, n_compute_units: int | None = None, *, after: After = ()
    ) -> Phase | None:
        """See the base class."""
        if not schedule.steps:
            return None

        def asked(start: RingStart, offsets: Sequence[int], needed: Keys) -> Phase:
            def simulate(report: Report) -> Phase:
                ring = self.ring(self.machine_spec, self.n_devices, ISOLATED_POLICY, {})
                ring.load_collective(schedule, offsets, n_compute_units)
                return self._finished(name, ring, offsets, report)

            key = (f"explicit {name}", schedule, n_compute_units, self.machine_spec, self.run.quantum, start)
            return self.store.get(PhaseJob(key, name, simulate, needed))

        return self.placed(name, after, (0,) * self.n_devices, asked)

    def fused(self, mapping: Callable[..., None], *, after: After = ()) -> Phase:
        """See ``overlap.interface.Phases``."""
        check_declaration(mapping, MAPPING, {})
        trace = self.required_trace()
        policy, params = self.fused_policy()
        name = f"fused, {policy}"

        def asked(start: RingStart, offsets: Sequence[int], needed: Keys) -> Phase:
            def simulate(report: Report) -> Phase:
                ring = self.ring(self.machine_spec.at_matrix_clock(), self.n_devices, policy, params)
                ring.load_fused(trace, mapping, offsets, start.first_positions)
                threshold = partial(threshold_in_force, arbitration_policies.get(policy))
                return self._finished(name, ring, offsets, report, mca_threshold=threshold)

            of_policy = (policy, tuple(sorted(params.items())), mapping)
            key = ("explicit fused", *of_policy, *self.tiles_key(), self.machine_spec, self.run.quantum, start)
            return self.store.get(PhaseJob(key, name, simulate, needed))

        return self.placed(name, after, self.first_positions(), asked)

    def ring(self, spec: MachineSpec, n_devices: int, policy: str, params: dict[str, Any]) -> RingMachine:
        """Return a fresh ring, or a GPU of it alone (*n_devices* is 1), in the time of the whole ring."""
        arbitration, n_threads = arbitration_policies.get(policy), threads_for(n_devices)
        return RingMachine(
            spec, arbitration, params, n_devices, self.run.quantum, n_threads=n_threads, ticks=self.ticks
        )

    def _finished(
        self,
        name: str,
        ring: RingMachine,
        offsets: Sequence[int],
        report: Report,
        **more_counters: Callable[[GpuCore], Any],
    ) -> Phase:
        """Run what is loaded, every GPU under audit, and return the phase."""
        shares = [0.0] * len(ring.devices)

        def note(d: int, share: float) -> None:
            shares[d] = share
            report(sum(shares) / len(shares))

        n, devices = self.n_devices, enumerate(ring.devices)
        followed = [self.audit.follow(device, n, partial(note, d)) for d, device in devices]
        ends = ring.run([one.report for one in followed])
        for one in followed:
            one.finish()
        gpus = []
        for core, offset, end in zip(ring.cores, offsets, ends, strict=True):
            counters = counters_of(core) | {key: read(core) for key, read in more_counters.items()}
            gpus.append(GpuPhase(offset, end, counters, sent_at(core)))
        timeline, last = Timeline(), max(ends)
        waits: list[Wait] = []
        for d, (core, offset) in enumerate(zip(ring.cores, offsets, strict=True)):
            timeline.extend(timeline_of(core, f"gpu[{d}]", d))
            waits += waits_of(core, last, f"gpu[{d}]", offset)
        return phase_of(name, gpus, timeline, waits)


def later(gpu: GpuPhase, ticks: int) -> GpuPhase:
    """Return what a GPU did, *ticks* later on the clock."""
    return replace(gpu, start=gpu.start + ticks, end=gpu.end + ticks, sent=gpu.sent + ticks)


def phase_of(name: str, gpus: Sequence[GpuPhase], timeline: Timeline, waits: Sequence[Wait]) -> Phase:
    """Return the phase of *gpus*: it ends when the last of them does, and has the counters of that one."""
    last = last_of(gpus)
    return Phase(name, last.end, last.counters, timeline, tuple(gpus), waits=tuple(waits))


def last_of(gpus: Sequence[GpuPhase]) -> GpuPhase:
    """Return the GPU that ends last, the first of several."""
    return max(gpus, key=lambda gpu: gpu.end)


def merged(name: str, offsets: Sequence[int], alone: Sequence[Phase], offsets_ps: Sequence[int]) -> Phase:
    """Return the phase in which each GPU does, from its offset on (also in ps), what it does *alone*."""
    jobs = tuple(job for phase in alone for job in phase.jobs)
    if not all(phase.gpus for phase in alone):  # in a plan
        return Phase(name, 1, {}, Timeline(), jobs=jobs)
    gpus = [later(gpu, offset) for offset, gpu in zip(offsets, (phase.gpus[0] for phase in alone), strict=True)]
    last = last_of(gpus)
    waits = [
        wait
        for d, (gpu, phase) in enumerate(zip(gpus, alone, strict=True))
        for wait in of_gpu(phase.waits, f"gpu[{d}]", last.end - gpu.end)
    ]
    timeline = Timeline()
    for d, (phase, later_ps) in enumerate(zip(alone, offsets_ps, strict=True)):
        timeline.extend(phase.timeline.as_gpu(d, len(alone), later_ps))
    return replace(phase_of(name, gpus, timeline, waits), jobs=jobs)
