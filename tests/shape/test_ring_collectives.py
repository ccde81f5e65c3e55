"""Do the isolated ring collectives take the closed form's time, for the right reasons?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from t3sim.program.parts import all_gather_part, reduce_scatter_part
from tests.conftest import cases

from .conftest import CASES, StoredParts, base_run, parts_of

SHAPES = sorted({(model, tp) for model, _, tp in CASES})


def link_time_us(model: str, tp: int) -> float:
    """(N - 1)(c / L + latency)."""
    gemm = parts_of(model, "OP", tp).op.shape
    link = base_run().machine.link
    chunk = 2 * gemm.m * gemm.n / tp
    return (tp - 1) * (chunk / link.bandwidth * 1e6 + link.latency / 1e6)


def us(phase) -> float:
    """t3-150 runs at 7 GHz ticks."""
    return phase.ticks / 7e3


@pytest.mark.parametrize(("model", "tp"), cases(SHAPES, ("T-NLG", 16), n_names=2))
def test_all_gather_is_within_one_percent_of_the_closed_form(model, tp):
    """1 %: each step adds the way of its first line through the memory, 0.25 us."""
    parts = parts_of(model, "OP", tp)
    assert us(parts.of(all_gather_part(parts.op))) == pytest.approx(link_time_us(model, tp), rel=0.01)
    assert us(parts.of(all_gather_part(parts.op))) >= link_time_us(model, tp)


@pytest.mark.parametrize(("model", "tp"), cases(SHAPES, ("T-NLG", 16), n_names=2))
def test_reduce_scatter_is_the_closed_form_and_a_final_step(model, tp):
    """The final step moves 3 c through a DRAM of 1.024 TB/s at 80 to 100 % of its peak."""
    parts = parts_of(model, "OP", tp)
    chunk = 2 * parts.op.shape.m * parts.op.shape.n / tp
    final = us(parts.of(reduce_scatter_part(parts.op))) - us(parts.of(all_gather_part(parts.op)))
    peak = 3 * chunk / 1.024e12 * 1e6
    assert peak <= final <= peak / 0.8


@pytest.mark.parametrize(("model", "tp"), cases(SHAPES, ("T-NLG", 16), n_names=2))
def test_near_memory_updates_shorten_only_the_final_step(model, tp):
    """With updates on arrival, the reduce-scatter is an all-gather in time (0.5 %: an update takes longer)."""
    parts = parts_of(model, "OP", tp)
    near_memory = us(parts.of(reduce_scatter_part(parts.op, has_near_memory=True)))
    assert near_memory == pytest.approx(us(parts.of(all_gather_part(parts.op))), rel=0.005)
    assert near_memory < us(parts.of(reduce_scatter_part(parts.op)))


@pytest.mark.deep
def test_few_compute_units_are_slower_because_of_loads_in_flight():
    """On 8 CUs the rate is loads in flight over latency; twice the loads in flight help, on 80 CUs they do not."""
    parts = parts_of("T-NLG", "OP", 16)
    of_four = replace(parts.op, n=4, trace=None, collective="all-gather", size=4 * parts.op.chunk_granules * 64)

    def ticks(parts: StoredParts, n_units: int) -> int:
        return parts.of(all_gather_part(of_four, n_compute_units=n_units)).ticks

    few, many = ticks(parts, 2), ticks(parts, 80)
    unit = parts.run.machine.gpu.collective_kernel
    more = unit.model_copy(update={"max_outstanding_lines": 2 * unit.max_outstanding_lines})
    gpu = parts.run.machine.gpu.model_copy(update={"collective_kernel": more})
    machine = parts.run.machine.model_copy(update={"gpu": gpu})
    deeper = StoredParts(parts.run.model_copy(update={"machine": machine}))
    assert few > 1.2 * many
    assert ticks(deeper, 2) < 0.75 * few
    assert ticks(deeper, 80) == pytest.approx(many, rel=0.01)
