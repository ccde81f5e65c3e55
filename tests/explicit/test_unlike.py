"""Rings of unlike GPUs: how a straggler, a skew and the order of dispatch show, and how far at most."""

from __future__ import annotations

from fractions import Fraction

import pytest

from t3sim.collective.schedule import chunk_bytes_of
from t3sim.config.experiment import RunSpec
from t3sim.system.simulate import simulate
from tests.conftest import cases
from tests.harness.rings import Observed, explicit, point, reference
from tests.harness.sublayers import collective_point

SHAPE = (256, 256, 64)
TP = 4
LINK = 8 * 10**9  # bytes per second, of t3-tiny
STRATEGIES = ("sequential", "t3", "t3-mca")


def of(strategy: str, *overrides: str) -> RunSpec:
    return point(strategy, "mode=explicit", *overrides, shape=SHAPE, tp=TP)


def skewed(gpu: int, microseconds: int) -> str:
    return f'machine.start_skew={{"gpu[{gpu}]": {microseconds} us}}'


def chunk_seconds() -> Fraction:
    """Return how long a chunk of the output takes on a link."""
    m, n, _ = SHAPE
    return Fraction(chunk_bytes_of(2 * m * n, TP, 128), LINK)


# --- stragglers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("gpu", cases([0, 2], 2))
def test_a_slow_gpu_slows_the_ring_and_not_below_its_own_matrix_work(strategy: str, gpu: int) -> None:
    run = of(strategy, f"machine.gpu[{gpu}].compute_clock=700 MHz")
    seen, even = explicit(run), reference(of(strategy))
    assert seen.seconds > even.seconds
    m, n, k = SHAPE
    spec = run.machine.of_gpu(gpu).gpu
    rate = spec.n_compute_units * spec.compute_unit.matrix_flops_per_cycle * spec.compute_clock
    matrix = Fraction(2 * m * n * k, rate) / Fraction(str(spec.compute_unit.matrix_efficiency))
    gather = 3 * chunk_seconds()
    assert seen.seconds >= matrix + gather


@pytest.mark.parametrize("op", ["reduce-scatter", "all-gather"])
def test_a_slow_link_passes_every_chunk_but_one(op: str) -> None:
    """N - 1 chunks go over each link, so a link of half the bandwidth sets the pace."""
    slow = collective_point(op, "128 KiB", TP, "mode=explicit", "machine.link[1].bandwidth=4 GB/s")
    all_slow = collective_point(op, "128 KiB", TP, "mode=explicit", "machine.link.bandwidth=4 GB/s")
    even = collective_point(op, "128 KiB", TP, "mode=explicit")
    seconds = [Fraction(r.total, r.ticks.hz) for r in (simulate(run) for run in (even, slow, all_slow))]
    assert seconds[0] < 3 * 2 * chunk_seconds() <= seconds[1] <= seconds[2]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_slow_link_carries_every_byte_of_the_sublayer_one_after_the_other(strategy: str) -> None:
    """A kernel may end while the link's buffer holds a part of what it sent; the next one finds that on the wire."""
    bandwidth = LINK // 8
    run = of(strategy, f"machine.link[1].bandwidth={bandwidth // 10**9} GB/s", "machine.link.egress_buffer=16 MiB")
    seen = explicit(run)
    n_bytes = sum(phase.gpus[1].counters["link_bytes"] for phase in seen.phases)
    assert seen.seconds >= Fraction(n_bytes, bandwidth)


def test_a_slow_gpu_is_late_itself_and_others_wait_for_it() -> None:
    found = explicit(of("t3", "machine.gpu[2].compute_clock=700 MHz")).by_role
    gemm, fused, gather = (found[role] for role in ("gemm", "fused", "all_gather"))
    assert [gpu.end for gpu in gemm.gpus].index(max(gpu.end for gpu in gemm.gpus)) == 2
    assert gemm.ticks == gemm.gpus[2].end
    assert [gpu.start for gpu in gather.gpus] == [max(gpu.end, gpu.sent) for gpu in fused.gpus]
    assert len({gpu.end for gpu in fused.gpus}) > 1


# --- skew ---------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", cases(STRATEGIES, "t3-mca"))
@pytest.mark.parametrize("microseconds", cases([1, 10], 10))
def test_a_late_gpu_delays_the_end_by_little_more_than_its_skew(strategy: str, microseconds: int) -> None:
    """At most by the skew, and a chunk for each collective: a GPU that is behind sends two of its steps mixed."""
    skew = Fraction(microseconds, 10**6)
    delays = {explicit(of(strategy, skewed(gpu, microseconds))).seconds for gpu in range(TP)}
    assert len(delays) == 1  # it does not matter which of alike GPUs is late
    delay = delays.pop() - reference(of(strategy)).seconds
    n_collectives = 2
    assert 0 < delay <= skew + n_collectives * chunk_seconds()


# --- order of dispatch -------------------------------------------------------------------------------


def bytes_of(seen: Observed, name: str) -> list[int]:
    """Return bytes of the GPUs in the fused run."""
    return [gpu.counters[name] for gpu in seen.by_role["fused"].gpus]


@pytest.mark.parametrize("strategy", ["t3", "t3-mca"])
@pytest.mark.parametrize("tp", cases([2, 4, 5], 4))
def test_without_staggering_the_same_bytes_take_another_time(strategy: str, tp: int) -> None:
    runs = [
        point(strategy, "mode=explicit", f"staggered={on}", shape=(320, 256, 192), tp=tp) for on in ("true", "false")
    ]
    staggered, together = (explicit(run) for run in runs)
    for name in ("output_write_bytes", "comm_read_bytes", "comm_write_bytes", "incoming_bytes", "link_bytes"):
        assert bytes_of(together, name) == bytes_of(staggered, name)
    assert together.digests != staggered.digests
    assert together.seconds > staggered.seconds
