"""Where the time of an operator goes that is not multiplication at full rate: parts that add up to it exactly.

Of the operations of one GPU, as they were simulated:

- while a GEMM runs: what all compute units would take if they multiplied all the time (``multiplying``); what they
  take longer because only some of them have the GEMM (``lost units``), or because its tiles do not fill the last wave
  (``lost waves``); what they waited for peers (``waits for peers``) or for room in the link's buffer (``link
  stalls``); and the rest, operands, stores and starts of workgroups (``memory``);
- while none runs: kernels that reduce what several GPUs made (``sum``), or what workgroups of one GEMM made that
  splits k (``split-k reduction``), barriers (``barriers``), copies and rings before the first GEMM
  (``head``), ``between GEMMs`` and after the last one (``tail``); and nothing but launches (``launches``).

Of several at a time the first in this order counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from t3sim.config.machine import MachineSpec
from t3sim.observe.waits import COMPUTE_UNIT
from t3sim.program.operations import Gemm, Moves, Operation
from t3sim.program.operator import Operator
from t3sim.program.plan import Plan, parts_of
from t3sim.strategies import Phase
from t3sim.system.simulate import SimulationResult
from t3sim.workload.operands import matrix_rate
from t3sim.workload.tiling_rules import resident_workgroups

PARTS = (
    "multiplying", "lost units", "lost waves", "waits for peers", "link stalls", "memory",
    "sum", "split-k reduction", "barriers", "head", "between GEMMs", "tail", "launches",
)  # fmt: skip


@dataclass(frozen=True)
class _Run:
    """An operation as it ran, from when to when, in ticks of the operator."""

    operation: Operation
    machine: MachineSpec  # at the clock of its part
    start: int
    end: int


def exposed_us(result: SimulationResult, op: Operator, plan: Plan) -> dict[str, float]:
    """Return the microseconds of each of ``PARTS``; their sum is the time of the operator."""
    sublayer = result.sublayers[0]
    assert sublayer.operator is not None
    runs, phases = _runs(plan, op.machine, sublayer.by_role, sublayer.operator)
    found = dict.fromkeys(PARTS, 0.0)
    gemms = [one for one in runs if isinstance(one.operation, Gemm)]
    groups = _groups(gemms)
    busy = sum(max(one.end for one in group) - group[0].start for group in groups)
    per_second = result.ticks.hz
    found["multiplying"] = sum(_multiplying(one, all_units=True) for one in gemms) * per_second
    on_own = sum(_multiplying(one, all_units=False) for one in gemms) * per_second
    found["lost units"] = on_own - found["multiplying"]
    left = busy - on_own
    lost = sum(_lost_waves(group) for group in groups) * per_second
    found["lost waves"] = min(lost, left)
    left -= found["lost waves"]
    for name, reason in (("waits for peers", "dependency"), ("link stalls", "link")):
        found[name] = min(_waited(phases, reason), max(left, 0.0))
        left -= found[name]
    found["memory"] = left
    first = min((one.start for one in gemms), default=0)
    last = max((one.end for one in gemms), default=0)
    for start, end, running in _pieces(runs, sublayer.operator):
        if not any(isinstance(one, Gemm) for one in running):
            found[_label(running, start, end, first, last)] += end - start
    return {name: result.ticks.to_us(1) * ticks for name, ticks in found.items()}


def _runs(plan: Plan, machine: MachineSpec, by_role: object, until: int) -> tuple[list[_Run], list[Phase]]:
    """Return the operations of the parts that make up the operator, in order, and the phases of those with a GEMM."""
    assert isinstance(by_role, dict)
    runs: list[_Run] = []
    phases = []
    at = 0
    for part in parts_of(plan.tree):
        if at >= until:
            break
        phase: Phase = by_role[part.role]
        if any(isinstance(one, Gemm) for one in part.programs[0].operations):
            phases.append(phase)
        spans = [span for span in phase.spans if span.gpu == 0]
        for operation, span in zip(part.programs[0].operations, spans, strict=True):
            runs.append(_Run(operation, part.clocked(machine), at + span.start, at + min(span.end, phase.ticks)))
        at += phase.ticks
    return runs, phases


def _multiplying(run: _Run, *, all_units: bool) -> float:
    """Return the seconds in which the units of a GEMM, or all units, multiply its tiles, if none ever waits."""
    assert isinstance(run.operation, Gemm)
    gpu, trace = run.machine.gpu, run.operation.trace
    rows, columns = trace.tiling.workgroup_tile
    unit = gpu.compute_unit
    rate = unit.matrix_flops_per_cycle * unit.matrix_efficiency * gpu.compute_clock * matrix_rate(unit, trace.gemm)
    n_units = gpu.n_compute_units if all_units else _n_units(run)
    return float(2 * rows * columns * trace.gemm.k * len(trace.whole_tiles) / rate / n_units)


def _n_units(run: _Run) -> int:
    assert isinstance(run.operation, Gemm)
    first, stop = run.operation.units or (0, run.machine.gpu.n_compute_units)
    return stop - first


def _lost_waves(group: Sequence[_Run]) -> float:
    """Return the seconds that GEMMs which overlap each other lose because their last wave is not full."""
    tilings = [(one, one.operation.trace) for one in group if isinstance(one.operation, Gemm)]
    slots = max(_n_units(one) * resident_workgroups(one.machine, trace.tiling) for one, trace in tilings)
    tiles = sum(trace.n_workgroups for _, trace in tilings)
    perfect = sum(_multiplying(one, all_units=False) for one, _ in tilings)
    return perfect * (-(-tiles // slots) * slots / tiles - 1)


def _groups(runs: Sequence[_Run]) -> list[list[_Run]]:
    """Return *runs* in groups that overlap in time."""
    groups: list[list[_Run]] = []
    end = -1
    for one in sorted(runs, key=lambda one: one.start):
        if one.start >= end:
            groups.append([])
        groups[-1].append(one)
        end = max(end, one.end)
    return groups


def _waited(phases: Sequence[Phase], reason: str) -> float:
    """Return the ticks that the mean compute unit waited for *reason*."""
    waits = [one for phase in phases for one in phase.waits if one.unit == COMPUTE_UNIT and one.reason == reason]
    return sum(one.ticks / one.n_units for one in waits)


def _pieces(runs: Sequence[_Run], until: int) -> list[tuple[int, int, list[Operation]]]:
    """Return the operator's time cut where an operation starts or ends, and what runs in each piece."""
    edges = sorted({0, until, *(edge for one in runs for edge in (one.start, one.end) if edge < until)})
    return [
        (start, end, [one.operation for one in runs if one.start <= start and end <= one.end])
        for start, end in pairwise(edges)
    ]


def _label(running: Sequence[Operation], start: int, end: int, first: int, last: int) -> str:
    """Return which of ``PARTS`` a piece without a GEMM belongs to; *first*, *last*: when GEMMs begin and end."""
    moves = [one for one in running if isinstance(one, Moves)]
    sums = [one for one in moves if one.engine is None and (one.steps["send"] < 0).all()]
    if sums:
        return "split-k reduction" if all(one.is_of_gemm for one in sums) else "sum"
    if moves:
        return "head" if end <= first else "tail" if start >= last else "between GEMMs"
    return "barriers" if running else "launches"
