"""Wavefronts that load, wait and store together: what a copy, a sum and a fill of one compute unit take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from t3lab.validation.simulation import with_value
from t3sim.collective.choice import ring_schedule
from t3sim.config.machine import MachineSpec
from t3sim.gpu.units import codes
from t3sim.program.operations import STEP, STORE, Buffer, Gemm, Moves, Program, table
from t3sim.program.verify import problems_of
from t3sim.system.machine import MirroredMachine
from tests.kernel.small import TILING, at_once, gemm_of, machine, mirrored, ring_of, trace_of

LINES, LINE = 64, 128  # loads in flight of a compute unit of t3-tiny; bytes
N_TURNS = 32
SIZE = N_TURNS * LINES * LINE  # bytes that are moved
# Memory and link that are no limit: what is left is the path of the compute unit and the latency.
WIDE = "memory: {preset: hbm2-2ch, n_channels: 4, clock: 2 GHz}, link: {bandwidth: 100 GB/s}"
PATH, WIDE_PATH = 16, 40  # bytes a cycle: a turn takes longer than a load, and less long


def tiny(
    wavefront_lines: int | None, path: int = PATH, l1_lines: int | None = None, sum_rounds: int = 1, header: int = 0
) -> MachineSpec:
    together = f"wavefront_lines: {wavefront_lines}, sum_rounds: {sum_rounds}"
    by_wavefronts = "" if wavefront_lines is None else f", collective_kernel: {{{together}}}"
    l1 = "" if l1_lines is None else f", l1: {{with_lds: {(1 << 17) + l1_lines * LINE} B, lds_sizes: [128 KiB]}}"
    widths = f"l2_bytes_per_cycle: {path}, l2_store_bytes_per_cycle: {path}, store_header: {header} B"
    unit = f"compute_unit: {{{widths}{l1}}}"
    return machine(f"gpu: {{{unit}{by_wavefronts}}}, {WIDE}")


def kernel(n_operands: int, **more: int) -> Moves:
    step = {"n_granules": SIZE // 64, "n_operands": n_operands, "stride": SIZE // 64, "kept_at": 9 * SIZE // 64} | more
    return Moves(name="moves", launch=0, n_workgroups=1, steps=table(STEP, [step]).reshape(1, 1))


def program_of(moves: Moves, rank: int = 0) -> Program:
    return Program(rank, 2, (moves,), granule=64, line=2, buffers=(Buffer("all", 0, 1 << 20),))


def run(spec: MachineSpec, moves: Moves) -> MirroredMachine:
    wired = mirrored(spec, program_of(moves))
    wired.run()
    return wired


def cycles(spec: MachineSpec, moves: Moves) -> float:
    """Return compute cycles from the start of *moves* to its end."""
    wired = run(spec, moves)
    return float(wired.core.operations[0].end_at / wired.core.gpu.compute_ticks)


def latency_of(spec: MachineSpec) -> float:
    """Return compute cycles of a load that waits for nobody."""
    moves = kernel(1, n_granules=2)
    unit = spec.gpu.compute_unit
    return cycles(spec, moves) - LINE / unit.l2_bytes_per_cycle - LINE / unit.l2_store_bytes_per_cycle


@pytest.mark.parametrize("n_operands", [1, 2])
def test_wavefronts_hide_the_latency_behind_each_other(n_operands: int) -> None:
    """One loads while others store: a kernel takes what its path takes, if a turn of all is longer than a load."""
    found = cycles(tiny(8), kernel(n_operands))
    assert found == pytest.approx((n_operands + 1) * SIZE / PATH, rel=0.03)


@pytest.mark.parametrize("n_operands", [1, 2])
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_a_wavefront_waits_once_for_a_copy_and_in_each_round_for_a_sum(n_operands: int, rounds: int) -> None:
    """One wavefront alone: loads, latency and stores one after the other, but for what is stored in the last wait."""
    spec = tiny(LINES, WIDE_PATH, sum_rounds=rounds)
    n_waits = rounds if n_operands > 1 else 1
    stored = LINES * LINE / WIDE_PATH
    hidden = min(latency_of(spec), stored * (n_waits - 1) / n_waits)
    turn = (n_operands + 1) * stored + n_waits * latency_of(spec) - hidden
    assert cycles(spec, kernel(n_operands)) == pytest.approx(N_TURNS * turn, rel=0.05)


def test_what_is_stored_nowhere_takes_nothing_of_the_path() -> None:
    """Does a wavefront that only reads load anew as soon as all has come?"""
    spec = tiny(LINES, WIDE_PATH)
    turn = LINES * LINE / WIDE_PATH + latency_of(spec)
    assert cycles(spec, kernel(1, kept_at=-1)) == pytest.approx(N_TURNS * turn, rel=0.05)


@pytest.mark.parametrize("header", [0, 32, 128])
def test_a_store_to_another_gpu_takes_its_header_of_the_path(header: int) -> None:
    spec, here = tiny(8, header=header), SIZE / PATH
    sent = kernel(1, kept_at=-1, send=STORE, distance=1, destination=9 * SIZE // 64)
    found = cycles(spec, sent)
    assert found == pytest.approx(2 * here + header / LINE * here, rel=0.03)
    assert cycles(spec, kernel(1)) == cycles(tiny(8), kernel(1))  # and one to its own memory none


@pytest.mark.parametrize("l1_lines", [4, 8, 16])
def test_loads_in_flight_need_room_in_the_l1(l1_lines: int) -> None:
    """No more lines than the L1 has are under way: what a unit loads is that over the latency."""
    spec = tiny(8, WIDE_PATH, l1_lines)
    step = {"n_granules": SIZE // 64, "n_operands": 1}
    latency = latency_of(spec) + LINE / WIDE_PATH
    found = cycles(spec, kernel(**step, kept_at=-1))
    assert found == pytest.approx(N_TURNS * LINES / l1_lines * latency, rel=0.07)
    assert cycles(tiny(8, WIDE_PATH, LINES), kernel(**step, kept_at=-1)) < found / 2


def beside_a_gemm(left: int, stream: int) -> tuple[float, bool]:
    """Return cycles of a copy on units that a GEMM has been on, with so many lines of L1 left by it, and if it runs on.

    In stream 0 the copy comes when the GEMM is over.
    """
    sizes = f"{{with_lds: {(1 << 17) + left * LINE} B, lds_sizes: [64 KiB, 128 KiB]}}"
    spec = machine(f"gpu: {{compute_unit: {{l1: {sizes}}}}}, {WIDE}")
    one = at_once(gemm_of(spec, trace_of(1024, 512, 512, tiling=TILING.model_copy(update={"lds": 1 << 17}))))
    (gemm,) = one.operations
    n = LINES * LINE // 64
    buffer = Buffer("more", one.buffers[-1].stop, 2 * n)
    copy = kernel(1, n_granules=n, operand=buffer.first, kept_at=buffer.first + n)
    moves = replace(copy, stream=stream, units=(0, 1), launch=1_000_000)  # a unit that a GEMM has been on
    wired = mirrored(spec, replace(one, operations=(gemm, moves), buffers=(*one.buffers, buffer)))
    wired.run()
    of_gemm, of_moves = wired.core.operations[:2]
    first = wired.core.tables.steps[0].start_at
    return float((of_moves.end_at - first) / wired.core.gpu.compute_ticks), bool(of_moves.end_at < of_gemm.end_at)


def test_beside_a_gemm_a_kernel_has_the_l1_that_the_gemm_leaves() -> None:
    """Does a copy take longer with one line of L1 left while the GEMM runs, and not when that is over?"""
    (few, few_beside), (many, many_beside) = beside_a_gemm(1, stream=1), beside_a_gemm(LINES, stream=1)
    assert few_beside
    assert many_beside
    assert few > 4 * many
    assert beside_a_gemm(1, stream=0) == beside_a_gemm(LINES, stream=0)


def test_the_kernel_of_a_ring_has_the_lds_that_the_machine_says() -> None:
    """Is its own L1 what that LDS leaves?"""
    l1 = "l1: {with_lds: 130 KiB, lds_sizes: [64 KiB, 128 KiB]}"
    for lds, n_lines in (("", 66 * 8), (", collective_kernel: {lds: 96 KiB}", 2 * 8)):
        spec = machine(f"gpu: {{compute_unit: {{{l1}}}{lds}}}")
        schedule = ring_schedule(spec, "all-gather", 2, 64)
        wired = mirrored(spec, ring_of(spec, 2, schedule))
        assert wired.core.operations[0].l1_granules == n_lines * LINE // 64


def test_a_kernel_whose_code_is_the_limit_takes_no_turns() -> None:
    """Is a sum of a given rate done line by line: its stores at that rate, its loads behind them, no latency?"""
    spec = tiny(8, WIDE_PATH)
    rate = 4  # bytes of results a cycle, on one compute unit
    given = replace(kernel(1), units=(0, 1), bandwidth=rate * spec.gpu.compute_clock)
    assert cycles(spec, given) == pytest.approx(SIZE / rate + SIZE / WIDE_PATH, rel=0.05)
    assert run(spec, given).core.operations[0].n_wavefronts == 0


def test_a_wavefront_stores_when_the_last_of_its_lines_has_come() -> None:
    """More lines a wavefront: later stores; one with all lines of a turn: loads and stores one after the other."""
    times = [cycles(tiny(n), kernel(1)) for n in (1, 8, 64)]
    assert times == sorted(times)
    turn = 2 * LINES * LINE / PATH + latency_of(tiny(64))
    assert times[-1] == pytest.approx(N_TURNS * turn, rel=0.05)


def test_a_step_without_operands_fills_memory_at_the_rate_of_stores() -> None:
    spec = tiny(None)
    wired = run(spec, kernel(0))
    taken = wired.core.operations[0].end_at / wired.core.gpu.compute_ticks
    assert taken == pytest.approx(SIZE / PATH, rel=0.01)
    served = wired.core.gpu.channels["n_served"].sum(axis=(0, 1))
    assert (served[codes.COLLECTIVE_READ], served[codes.COLLECTIVE_WRITE]) == (0, SIZE // 64)
    assert not problems_of([program_of(kernel(0), rank) for rank in range(2)])


@pytest.mark.parametrize("age", ["20 us", "0 ns"])
def test_a_tile_stored_past_the_l2_does_not_wait_for_a_memory_that_holds_writes_back(age: str) -> None:
    """The L2 acknowledges its stores; the memory writes them when their age is over, after the end of the kernel."""
    queue = f"queue: {{kind: split, write_entries: 512, write_high_watermark: 500, write_age: {age}}}"
    spec = machine(f"memory: {{preset: hbm2-2ch, {queue}}}")
    one = at_once(gemm_of(spec, trace_of(64, 64)))
    (gemm,) = one.operations
    assert isinstance(gemm, Gemm)
    stores = gemm.stores.copy()
    stores.kind[:] = STORE
    wired = mirrored(spec, replace(one, operations=(replace(gemm, stores=stores),)))
    wired.run()
    core = wired.core
    written_at = int(core.gpu.channels["last_done_at"].max()) * int(core.gpu.memory_ticks)
    ends = int(core.operations[0].end_at), written_at
    assert (ends[1] - ends[0] > core.ticks.from_ps(10_000_000)) == (age == "20 us")


def test_a_simd_unit_loads_for_its_wavefronts_at_its_part_of_the_rate() -> None:
    """One wavefront of one unit in four takes four times as long to load as the path; as many as units, no longer."""
    unit = "n_simds: {}, l2_bytes_per_cycle: 8, l2_store_bytes_per_cycle: 1024"
    times = {}
    for n_simds, lines in ((1, 64), (4, 64), (4, 16)):
        gpu = f"compute_unit: {{{unit.format(n_simds)}}}, collective_kernel: {{wavefront_lines: {lines}}}"
        times[n_simds, lines] = cycles(machine(f"gpu: {{{gpu}}}, {WIDE}"), kernel(1, kept_at=-1))
    assert times[4, 64] == pytest.approx(4 * SIZE / 8, rel=0.1)
    assert times[1, 64] < times[4, 64] / 3
    assert times[4, 16] < times[4, 64] / 3


@pytest.mark.parametrize("wavefront_lines", [None, 64])
def test_a_wide_load_takes_longer_once_for_each_turn_of_a_wavefront(wavefront_lines: int | None) -> None:
    """Loads of GEMMs and of kernels that go on line by line take as long as before."""
    wide = 200
    before, after = (
        cycles(with_value(tiny(wavefront_lines), "gpu.compute_unit.wide_load_latency", latency), kernel(1))
        for latency in (0, wide)
    )
    assert after - before == pytest.approx(N_TURNS * wide if wavefront_lines else 0, rel=0.02)
