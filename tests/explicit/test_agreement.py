"""Explicit mode on a ring of alike GPUs is mirrored mode, N times: times, all counters, all DRAM commands."""

from __future__ import annotations

import pytest

from t3sim.config.experiment import RunSpec
from t3sim.errors import ConfigError, UsageError
from t3sim.system.ring import RingMachine
from t3sim.system.simulate import simulate
from tests.conftest import DEEP, cases, sample
from tests.harness.rings import differences, explicit, point
from tests.harness.sublayers import collective_point

RINGS = (2, 3, 4, 5, 7, 8, 16) if DEEP else (2, 5)
STRATEGIES = ("sequential", "t3", "t3-mca", "ideal-overlap", "ideal-rs-nmc", "cu-split", "isolated-cu-split")
SWITCH = ("machine.link.topology=switch", "machine.link.ingress_buffer=16 KiB")
ENGINE = "{number: 1, startup: 1 us, bandwidth: 50 GB/s, max_outstanding_lines: 64}"
ENGINES = (f"machine.gpu.copy_engines={ENGINE}",)
PUSHING = {
    "flux-push": (), "copy-engine-scatter": ENGINES, "async-tp": ENGINES, "te-p2p-rs": ENGINES,
    "sm-specialised": ("strategy.communication_units=1",),
}  # fmt: skip
SHAPES = {"even": (256, 256, 64), "ragged": (200, 250, 72)}


def of(strategy: str, tp: int, shape: str = "even", *overrides: str) -> RunSpec:
    own = ("strategy.communication_units=1",) if "cu-split" in strategy else ()
    return point(strategy, *own, *overrides, shape=SHAPES[shape], tp=tp)


@pytest.mark.parametrize("shape", cases(SHAPES, "ragged"))
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("tp", RINGS)
def test_a_ring_of_alike_gpus_agrees_with_the_mirrored_one(strategy: str, tp: int, shape: str) -> None:
    run = of(strategy, tp, shape)
    ring = explicit(run)
    assert [len(phase.gpus) for phase in ring.phases] == [tp] * len(ring.phases)
    assert differences(run, ring) == []


@pytest.mark.parametrize("tp", cases(RINGS, RINGS[1]))
@pytest.mark.parametrize("columns", cases([128, 100], 100))
@pytest.mark.parametrize("strategy", PUSHING)
def test_pushing_to_every_gpu_behind_a_switch_agrees(strategy: str, tp: int, columns: int) -> None:
    """A tile row for each GPU, or two; in both what a GPU stores or copies reaches all others at their distances."""
    for rows in (2, 1)[: sample(2, 1)]:
        run = point(strategy, *SWITCH, *PUSHING[strategy], shape=(64 * rows * tp, columns, 64), tp=tp)
        ring = explicit(run)
        assert [len(phase.gpus) for phase in ring.phases] == [tp] * len(ring.phases)
        assert differences(run, ring) == []


def test_one_gpu_does_not_stand_for_ranks_of_unlike_programs() -> None:
    """All ranks push to one at a time: which one is at another distance from each."""

    def naive(mode: str) -> RunSpec:
        changes = (*SWITCH, "strategy.order=naive", f"mode={mode}")
        return point("flux-push", *changes, shape=(512, 128, 64), tp=4)

    reason = r"in part `fused` GPUs differ: operation `gemm`, order\[0\] is 12 on rank 1 and 0 on rank 0; use"
    with pytest.raises(ConfigError, match=reason):
        naive("mirrored")
    run = naive("explicit")
    assert {len(phase.gpus) for phase in explicit(run).phases} == {4}
    with pytest.raises(UsageError, match=reason):
        simulate(run.model_copy(update={"mode": "mirrored"}))


@pytest.mark.parametrize("op", ["reduce-scatter", "all-gather"])
def test_a_collective_on_its_own_agrees(op: str) -> None:
    run = collective_point(op, "96 KiB", 5)
    result = simulate(run.model_copy(update={"mode": "explicit"}))
    one = simulate(run)
    assert result.total == one.total
    assert [phase.counters for phase in result.phases] == [phase.counters for phase in one.phases]


def test_a_launch_latency_is_counted_for_each_phase() -> None:
    run = of("sequential", 3, "even", "machine.gpu.kernel_launch=2 us")
    ring = explicit(run)
    assert differences(run, ring) == []
    starts = [phase.gpus[1].start for phase in ring.phases]
    assert starts == [0, ring.phases[0].gpus[1].end, ring.phases[1].gpus[1].end]


# --- canaries ----------------------------------------------------------------------------------------


def late(ring: RingMachine) -> None:
    """With a defect: one link takes a nanosecond longer."""
    if ring.links:
        ring.links[1].wire["latency_ticks"] += ring.ticks.from_ps(1000)
