"""Ideal means ideal: no design is faster than the ideals, on random small machines with random work.

The machines are those of ``t3sim selfcheck`` (every third is ``t3-tiny`` as it is), the GEMMs larger than there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

import numpy as np
import pytest

from t3sim.analytic.bounds import LeastTimes, least_times
from t3sim.config.experiment import GemmShape, RunSpec, TilingSpec, WorkloadSpec
from t3sim.errors import UsageError
from t3sim.gpu.ticks import TickBase
from t3sim.selfcheck.machines import TILES, machine_of, random_run, strategies
from t3sim.strategies import in_order
from t3sim.system.parts import PhaseStore
from t3sim.system.simulate import simulate
from t3sim.workload.tiling import make_tile_trace
from tests.conftest import sample
from tests.harness.sublayers import point

CASES = range(sample(300, 4))
MOST_ACROSS, MOST_TILES, MOST_K = 6, 24, 512
# Chunks of unlike shapes, a ring of more than two, an order that needs every GPU; no copy engine.
MAY_REFUSE = {
    "flux-push", "copy-engine-scatter", "async-tp", "te-p2p-rs", "te-pipelined-rs", "wave-groups", "sm-specialised",
    "flux-pull",
}  # fmt: skip
BOUNDS = [one.name for one in in_order() if one.kind == "bound" and one in strategies()]


def case(seed: int) -> RunSpec:
    """Return machine and GEMM of *seed*."""
    rng = np.random.default_rng([seed, 23])
    machine = random_run(seed).machine if seed % 3 else machine_of({})
    ring = machine.link.model_copy(update={"topology": "ring", "ingress_buffer": None})  # the bounds are those of rings
    machine = machine.model_copy(update={"link": ring})
    tp, (rows, columns) = int(rng.integers(2, 9)), TILES[int(rng.integers(len(TILES)))]
    across = int(rng.integers(1, MOST_ACROSS + 1))
    least = -(-tp // across)  # a tile for each GPU
    down = int(rng.integers(least, max(MOST_TILES // across, least) + 1))
    m, n = (
        count * size - int(rng.integers(size)) * int(rng.random() < 0.5)
        for count, size in ((down, rows), (across, columns))
    )
    tiling = TilingSpec(
        workgroup_tile=(rows, columns),
        wavefront_tile=(16 if rows == 16 else 32, 64),
        k_slice=64,
        prefetch_depth=int(rng.integers(1, 4)),
        persistent=bool(rng.random() < 0.2),
    )
    gemm = GemmShape(m=max(m, tp), n=n, k=int(rng.integers(1, MOST_K)))
    workload = WorkloadSpec(gemm=gemm, tp=tp, tiling=tiling)
    return RunSpec(experiment=f"case-{seed}", machine=machine, workload=workload, strategy="sequential")


def points(run: RunSpec) -> Iterator[RunSpec]:
    """Yield *run* under every strategy, with some of the values of its parameters."""
    n = run.machine.gpu.n_compute_units
    for one in strategies():
        values = {
            name: [*about.words] or [k for k in sorted({1, n // 2, n - 1}) if 0 < k < n]
            for name, about in one.parameters.items()
        }
        for chosen in product(*values.values()):
            params = dict(zip(values, chosen, strict=True))
            yield run.model_copy(update={"strategy": one.name, "strategy_params": params})


def least_of(run: RunSpec) -> LeastTimes:
    """Return what is least for a run."""
    workload = run.workload
    assert workload.gemm is not None
    return least_times(run.machine, make_tile_trace(workload.gemm, workload.tiling, workload.tp))


Times = tuple[dict[str, int], dict[str, int], LeastTimes]


@cache
def times_of_case(seed: int) -> Times | None:
    """Return the times of a case, None if the work is refused."""
    try:
        return times_of(case(seed))
    except UsageError:
        return None


def times_of(run: RunSpec, store: PhaseStore | None = None) -> Times:
    """Return the ticks of the bounds, of the designs that gather last, and what is least."""
    store, least = store or PhaseStore(), least_of(run)
    bounds, designs = {}, {}
    for one in points(run):
        try:
            result = simulate(one, store=store)
        except UsageError:
            if one.strategy not in MAY_REFUSE:
                raise
            continue
        name = f"{one.strategy} {sorted(map(str, one.strategy_params.values()))}"
        if one.strategy in BOUNDS:
            bounds[one.strategy] = result.total
        elif result.operator is not None:
            designs[name] = result.total
        else:  # its all-gather waits for nothing: GEMM beside two collectives, each with its bytes
            assert result.total >= max(least.compute, 2 * least.link), name
    return bounds, designs, least


def breaches(times: Times, slack: float) -> list[str]:
    """Return which designs are faster than which bound by more than *slack*."""
    bounds, designs, _ = times
    return [
        f"{design} before {bound}: {due / ticks - 1:.2%}"
        for bound, due in bounds.items()
        for design, ticks in designs.items()
        if due > ticks * (1 + slack)
    ]


@pytest.mark.parametrize("seed", CASES)
def test_no_design_is_faster_than_an_ideal(seed: int) -> None:
    times = times_of_case(seed)
    assert times is None or breaches(times, slack=0) == []


# --- the parts in closed form: t3-tiny ----------------------------------------------------------------------


def us(run: RunSpec, ticks: int) -> float:
    """Return microseconds."""
    return TickBase.of(run.machine).to_us(ticks)


def test_link_carries_what_leaves() -> None:
    """Three quarters of 128 KiB at 8 GB/s, and 500 ns."""
    run = point("t3", "machine.link.bandwidth=8 GB/s", "machine.link.latency=500 ns", shape=(256, 256, 128), tp=4)
    assert us(run, least_of(run).link) == pytest.approx(0.75 * 131072 / 8e3 + 0.5, abs=1e-3)


COMPUTING = "machine.gpu.compute_unit.matrix_efficiency=0.5"


def test_compute_units_multiply_all_the_time() -> None:
    """Sixteen tiles on four units: four each, at half of 2048 FLOP in each cycle; and the kernel is launched."""
    run = point("t3", COMPUTING, shape=(256, 256, 6400), tp=4)
    multiply = 4 * 2 * 64 * 64 * 6400 / 1024 / 1.4e3
    assert us(run, least_of(run).compute) == pytest.approx(multiply, abs=1e-3)
    launched = point("t3", COMPUTING, "machine.gpu.kernel_launch=3 us", shape=(256, 256, 6400), tp=4)
    assert us(launched, least_of(launched).compute) == pytest.approx(multiply + 3, abs=1e-3)


@pytest.mark.parametrize(("columns", "n_tiles_of_a_slot"), [(256, 1), (257, 2)])
def test_a_slot_launches_and_stores_one_tile_after_the_other(columns: int, n_tiles_of_a_slot: int) -> None:
    """Four units of four slots; the smallest tile has 64 lines, of 2 cycles each."""
    run = point("t3", "machine.gpu.compute_unit.workgroup_launch=1 ms", shape=(256, columns, 64), tp=4)
    cycles = 2 * 64 * 64 * 64 / (2048 * 0.84) + 64 * 2
    assert us(run, least_of(run).compute) == pytest.approx(n_tiles_of_a_slot * (1000 + cycles / 1.4e3), abs=1e-2)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_memory_moves_operands_once_and_the_chunks_of_t3(tp: int) -> None:
    """Of n chunks 3 n - 4 pass the memory, at the peak of all channels."""
    run = point("t3", shape=(256, 256, 128), tp=tp)
    memory = run.machine.memory
    n_bytes = 2 * 256 * 128 * 2 + (3 * tp - 4) * 256 * 256 * 2 // tp
    peak = memory.n_channels * memory.access * memory.clock / memory.timing.nBL
    assert us(run, least_of(run).memory) == pytest.approx(n_bytes / peak * 1e6, abs=1e-3)


def on_two_nodes(strategy: str, nic: str, *overrides: str) -> RunSpec:
    """Return a point of four GPUs on two nodes, links of 8 GB/s and 500 ns in each."""
    link = ("topology=two-level", "gpus_per_node=2", "ingress_buffer=64 KiB", "bandwidth=8 GB/s", "latency=500 ns")
    nic = f"machine.link.nic={{bandwidth: {nic}, latency: 2 us, message_rate: 100000000}}"
    return point(strategy, *(f"machine.link.{one}" for one in link), nic, *overrides, shape=(256, 256, 128), tp=4)


@pytest.mark.parametrize(("nic", "due"), [("1 GB/s", 32768 / 1e3 + 2), ("24 GB/s", 3 * 32768 / 32e3 + 0.5)])
def test_on_nodes_links_and_network_interfaces_carry_what_leaves(nic: str, due: float) -> None:
    """The sum of a node of one chunk by the latter, or three chunks of 32 KiB by both together."""
    run = on_two_nodes("t3", nic)
    assert us(run, least_of(run).link) == pytest.approx(due, abs=1e-3)


def test_on_nodes_the_memory_takes_each_part_and_each_sum() -> None:
    """A chunk is stored by four GPUs; the sum of the other node is read there and arrives here."""
    run = on_two_nodes("t3", "1 GB/s")
    memory = run.machine.memory
    peak = memory.n_channels * memory.access * memory.clock / memory.timing.nBL
    assert us(run, least_of(run).memory) == pytest.approx((2 * 256 * 128 * 2 + 6 * 32768) / peak * 1e6, abs=1e-3)


@pytest.mark.parametrize("nic", ["1 GB/s", "24 GB/s"])
def test_no_design_is_faster_than_an_ideal_on_nodes(nic: str) -> None:
    bounds = [simulate(on_two_nodes(one, nic)).total for one in ("ideal-overlap", "ideal-rs-nmc")]
    assert max(bounds) < min(simulate(on_two_nodes(one, nic)).total for one in ("t3", "t3-direct", "flux-push"))


def test_where_chunks_differ_the_largest_stays() -> None:
    """Three tiles on two GPUs: one of them sends one tile only, and mirrored mode may simulate that one."""
    run = point("t3", shape=(192, 64, 64), tp=2)
    link = run.machine.link
    assert us(run, least_of(run).link) == pytest.approx(8192 / link.bandwidth * 1e6 + link.latency / 1e6, abs=1e-3)


def test_one_gpu_sends_nothing() -> None:
    least = least_of(point("sequential", tp=1))
    assert least.link == 0 < least.memory


def test_unlike_links_wait_for_the_slowest() -> None:
    plain = least_of(point("t3"))
    slow = least_of(point("t3", "mode=explicit", "machine.link[2].bandwidth=1 GB/s"))
    assert slow.link > 2 * plain.link
    assert slow.compute == plain.compute
