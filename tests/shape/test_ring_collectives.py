"""Do the isolated ring collectives take the closed form's time, for the right reasons?"""

from __future__ import annotations

import pytest

from t3sim.collective.schedule import ring_all_gather

from .conftest import CASES, base_run, phases_of

SHAPES = sorted({(model, tp) for model, _, tp in CASES})


def link_time_us(model: str, tp: int) -> float:
    """(N - 1)(c / L + latency)."""
    _, trace = phases_of(model, "OP", tp)
    link = base_run().machine.link
    chunk = 2 * trace.gemm.m * trace.gemm.n / tp
    return (tp - 1) * (chunk / link.bandwidth * 1e6 + link.latency / 1e6)


def us(phase) -> float:
    """t3-150 runs at 7 GHz ticks."""
    return phase.ticks / 7e3


@pytest.mark.parametrize(("model", "tp"), SHAPES)
def test_all_gather_is_within_one_percent_of_the_closed_form(model, tp):
    """1 %: each step adds the way of its first line through the memory, 0.25 us."""
    phases, _ = phases_of(model, "OP", tp)
    assert us(phases.all_gather()) == pytest.approx(link_time_us(model, tp), rel=0.01)
    assert us(phases.all_gather()) >= link_time_us(model, tp)


@pytest.mark.parametrize(("model", "tp"), SHAPES)
def test_reduce_scatter_is_the_closed_form_and_a_final_step(model, tp):
    """The final step moves 3 c through a DRAM of 1.024 TB/s at 80 to 100 % of its peak."""
    phases, trace = phases_of(model, "OP", tp)
    chunk = 2 * trace.gemm.m * trace.gemm.n / tp
    final = us(phases.reduce_scatter()) - us(phases.all_gather())
    peak = 3 * chunk / 1.024e12 * 1e6
    assert peak <= final <= peak / 0.8


@pytest.mark.parametrize(("model", "tp"), SHAPES)
def test_near_memory_updates_shorten_only_the_final_step(model, tp):
    """With updates on arrival, the reduce-scatter is an all-gather in time (0.5 %: an update takes longer)."""
    phases, _ = phases_of(model, "OP", tp)
    near_memory = us(phases.reduce_scatter(has_near_memory=True))
    assert near_memory == pytest.approx(us(phases.all_gather()), rel=0.005)
    assert near_memory < us(phases.reduce_scatter())


def test_few_compute_units_are_slower_because_of_loads_in_flight():
    """On 8 CUs the rate is loads in flight over latency; twice the loads in flight help, on 80 CUs they do not."""
    phases, trace = phases_of("T-NLG", "OP", 16)
    chunk = phases.chunk_granules()
    run = phases.run
    program = ring_all_gather(4, chunk)
    few = phases.collective("all-gather", program, 2).ticks
    many = phases.collective("all-gather", program, 80).ticks
    unit = run.machine.gpu.collective_kernel
    more = unit.model_copy(update={"max_outstanding_lines": 2 * unit.max_outstanding_lines})
    gpu = run.machine.gpu.model_copy(update={"collective_kernel": more})
    deeper = type(phases)(
        run.model_copy(update={"machine": run.machine.model_copy(update={"gpu": gpu})}), trace, phases.store
    )
    assert few > 1.2 * many
    assert deeper.collective("all-gather", program, 2).ticks < 0.75 * few
    assert deeper.collective("all-gather", program, 80).ticks == pytest.approx(many, rel=0.01)
