"""Collectives in channels, and a GEMM beside one, on the machine h200: times and traffic by closed form."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import pytest

from t3sim.config.experiment import CollectiveSpec, GemmShape, WorkloadSpec
from t3sim.config.presets import load_tiling
from t3sim.program.parts import collective_plan, gemm_part, reduce_scatter_part
from t3sim.program.side_by_side import kernels_for, side_by_side_part, times_side_by_side
from t3sim.strategies.interface import Phase
from t3sim.system.simulate import operator_of
from tests.harness.sublayers import ObservedParts

from .conftest import base_run

MIB = 1 << 20
TILING = load_tiling("gemm-128x256")
OPS = ("reduce-scatter", "all-gather", "all-reduce")
SIMPLE = {"low_latency": None, "low_latency_128": None}  # held to the protocol without flags inside the data
# Of each chunk: reads, results sent or kept (a result that is both costs twice), operations.
WORK = {"reduce-scatter": (3, 2, 2), "all-gather": (2, 3, 2), "all-reduce": (4, 4, 3)}


@cache
def machine(**kernel: Any) -> Any:
    """The machine h200 with values of its collective kernel replaced."""
    spec = base_run("h200").machine
    changed = spec.gpu.collective_kernel.model_copy(update=kernel)
    return spec.model_copy(update={"gpu": spec.gpu.model_copy(update={"collective_kernel": changed})})


@cache
def ring(op: str, size: int, gpus: int, channels: int, **kernel: Any) -> Phase:
    """A collective of *size* bytes on *channels* compute units."""
    workload = WorkloadSpec(tp=gpus, collective=CollectiveSpec(op=op, size=f"{size} B", gpus=gpus), tiling=TILING)
    run = base_run("h200").model_copy(update={"machine": machine(**kernel), "workload": workload})
    (part,) = collective_plan(operator_of(run), n_compute_units=channels).parts()
    return ObservedParts(run).of(part)


def us(ticks: float) -> float:
    from t3sim.gpu.ticks import TickBase

    return ticks * 1e6 / TickBase.of(machine()).hz


@pytest.mark.parametrize("op", OPS)
def test_one_channel_takes_the_time_of_its_lines(op: str) -> None:
    """One channel of two GPUs: lines over the widths of its path, the overhead of each slice, the launch.

    15 %: each slice starts with an empty path, loads wait for the memory at its start (0.35 us), and stores of the
    last slice are still on their way.  Sums wait in each turn, which other wavefronts hide for the most part: 20 %.
    """
    size, spec = 4 * MIB, machine(**SIMPLE)
    gpu, kernel = spec.gpu, spec.gpu.collective_kernel
    reads, writes, operations = WORK[op]
    chunk = size / 2
    path = reads / gpu.compute_unit.l2_bytes_per_cycle + writes / gpu.compute_unit.l2_store_bytes_per_cycle
    loops = -(-chunk // kernel.channel_chunk)
    least = chunk * path / gpu.compute_clock * 1e6
    fixed = (kernel.slice_overhead * kernel.slices * operations * loops + gpu.kernel_launch + kernel.launch) / 1e6
    found = us(ring(op, size, 2, 1, **SIMPLE).ticks)
    assert least + fixed * 0.8 <= found <= (1.15 if op == "all-gather" else 1.2) * (least + fixed)


def test_many_channels_are_bound_by_the_link() -> None:
    """More channels: faster, but never faster than the link; twice the channels of a few are twice as fast."""
    size = 4 * MIB
    bare = {**SIMPLE, "slice_overhead": 0, "launch": 0}
    times = {n: us(ring("all-gather", size, 4, n, **bare).ticks) for n in (2, 4, 32)}
    link = 3 * size / 4 / machine().link.bandwidth * 1e6
    assert times[2] > times[4] > times[32] > link
    assert times[2] / times[4] == pytest.approx(2, rel=0.15)


@pytest.mark.parametrize(("op", "reads", "kept", "sent"), [("reduce-scatter", 4, 1, 3), ("all-gather", 1, 4, 3)])
def test_bytes_are_those_of_the_operations(op: str, reads: int, kept: int, sent: int) -> None:
    """On four GPUs: own chunks read, and kept and sent, exactly; what was received is written, and found in the L2."""
    chunk, counters = MIB, ring(op, 4 * MIB, 4, 24).counters
    assert counters["comm_read_bytes"] == reads * chunk
    assert counters["comm_write_bytes"] == (kept + sent) * chunk
    assert counters["link_bytes"] == sent * chunk


@pytest.mark.parametrize("gpus", [2, 4, 8])
@pytest.mark.parametrize("op", ["reduce-scatter", "all-gather"])
def test_a_tiny_ring_takes_its_launch_and_its_steps(op: str, gpus: int) -> None:
    """One line for each channel: the launches, an operand from memory at each position, the link between two.

    10 %: a wait ends at the next issue slot, lines of a slice follow each other, the last store has to be written.
    """
    assert tiny_ring_us(op, gpus) == pytest.approx(tiny_ring_form(gpus), rel=0.1)


def tiny_ring_us(op: str, gpus: int, **kernel: Any) -> float:
    channels = 8
    return us(ring(op, gpus * channels * 128, gpus, channels, **kernel).ticks)


def tiny_ring_form(gpus: int) -> float:
    spec = machine()
    gpu, memory = spec.gpu, spec.memory
    assert gpu.collective_kernel.low_latency is not None
    timing = memory.timing
    dram = (timing.nRCDRD + timing.nCL + timing.nBL) / memory.clock
    load = (gpu.l2.hit_latency + gpu.l2.miss_latency) / gpu.compute_clock + dram
    launches = (gpu.kernel_launch + gpu.collective_kernel.low_latency.launch) / 1e6
    launches += memory.queue.write_age / 1e6  # the last store is written when it is so old
    return launches + gpus * load * 1e6 + (gpus - 1) * spec.link.latency / 1e6


@pytest.mark.parametrize(
    ("op", "own", "received", "kept"), [("reduce-scatter", 4, 3, 1), ("all-gather", 1, 3, 4), ("all-reduce", 4, 6, 4)]
)
def test_flags_travel_but_are_not_kept(op: str, own: int, received: int, kept: int) -> None:
    """LL on four GPUs, exactly: what is sent is twice as long as the data; it is found in the L2."""
    chunk, counters = MIB // 4, ring(op, MIB, 4, 24).counters
    assert counters["link_bytes"] == 2 * received * chunk
    assert counters["comm_read_bytes"] == own * chunk
    assert counters["comm_write_bytes"] == (kept + 2 * received) * chunk


def test_few_channels_of_the_low_latency_protocol_are_bound_by_their_path() -> None:
    """Do half as many channels take twice as long, also with flags?  15 %: launch and the filling of the ring."""
    one, two = (us(ring("all-reduce", MIB, 2, n).ticks) for n in (1, 2))
    assert one / two == pytest.approx(2, rel=0.15)


class Beside(NamedTuple):
    """A small GEMM alone, the reduce-scatter of its output alone, and both beside each other."""

    gemm: Phase
    scatter: Phase
    both: Phase
    times: tuple[float, float]  # of a GEMM and of a reduce-scatter beside the other
    n: tuple[int, int]  # how often each ran, or was there to run


@cache
def beside(channels: int = 24) -> Beside:
    shape = GemmShape(m=2048, n=2048, k=256)
    workload = WorkloadSpec(tp=2, gemm=shape, tiling=TILING)
    run = base_run("h200").model_copy(update={"machine": machine(), "workload": workload})
    parts = ObservedParts(run)
    gemm = parts.of(gemm_part(parts.op))
    scatter = parts.of(reduce_scatter_part(parts.op, n_compute_units=channels))
    n = kernels_for(gemm.ticks, scatter.ticks)
    part = side_by_side_part(parts.op, "reduce-scatter", *n, n_compute_units=channels)
    both = parts.of(part)
    return Beside(gemm, scatter, both, times_side_by_side(both.spans, *n), n)


@pytest.mark.deep
def test_both_take_longer_beside_each_other() -> None:
    """A GEMM loses compute units, a collective waits for them; neither takes longer than both in turn."""
    found = beside()
    assert found.gemm.ticks < found.times[0]
    assert found.scatter.ticks < found.times[1]
    assert max(found.times) < found.gemm.ticks + found.scatter.ticks


@pytest.mark.deep  # 8 s; fewer and more channels are compared below
def test_one_channel_takes_one_compute_unit_from_the_gemm() -> None:
    """Does a collective of one channel leave the others to the GEMM?  It took all of them once."""
    one = beside(1)
    assert one.times[0] < 1.1 * one.gemm.ticks


def test_an_all_reduce_is_one_kernel_in_channels_and_two_in_whole_chunks() -> None:
    """Does an all-reduce send twice what a reduce-scatter sends, and save its launch where it is one kernel?"""
    from t3sim.system.simulate import simulate

    collective = CollectiveSpec(op="all-reduce", size="1 MiB", gpus=4)
    for name in ("h200", "t3-150"):
        run = base_run(name).model_copy(
            update={"workload": WorkloadSpec(tp=4, collective=collective, tiling=TILING), "strategy": "sequential"}
        )
        result = simulate(run)
        roles = result.sublayers[0].by_role
        sent = sum(phase.counters["link_bytes"] for phase in roles.values())
        assert sent == 2 * 3 * MIB // 4 * (2 if name == "h200" else 1)  # as many flags as data, at this size
        assert ("all_reduce" in roles) == (name == "h200")
        assert ("reduce_scatter" in roles) == (name == "t3-150")
        assert result.total == sum(phase.ticks for phase in result.phases)
