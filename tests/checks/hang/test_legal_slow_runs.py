"""Is what is slow but legal left alone?  Each run waits for longer than any patience without its own parameters."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import simpy

from t3sim.errors import ModelError
from t3sim.gpu.units import codes
from t3sim.program.operations import STORE, Gemm, Signals
from t3sim.system import liveness
from t3sim.system.machine import MirroredMachine, check_drained
from tests.conftest import cases
from tests.kernel.small import gemm_of, machine, mirrored, trace_of

from .scenario import collective, fused

ONE_TILE_EACH = (64, 128, 64)


@dataclass(frozen=True)
class Slow:
    """A legal run, and for how many compute cycles at least nothing moves in it."""

    name: str
    load: Callable[[], MirroredMachine]
    stillness: int


def small(changes: str) -> Callable[[], MirroredMachine]:
    return lambda: fused(changes, ONE_TILE_EACH, tp=2)


SLOW = [
    Slow("link of 1 MB/s", lambda: fused("link: {bandwidth: 1 MB/s}", (8, 128, 64), tp=2), 88_000),
    Slow(
        "link latency of 5 ms",
        lambda: fused("link: {latency: 5 ms}", ONE_TILE_EACH, tp=2, quantum_ps=10_000_000),
        6_900_000,
    ),
    Slow("workgroup launch of 1 ms", small("gpu: {compute_unit: {workgroup_launch: 1 ms}}"), 1_390_000),
    Slow(
        "refresh of 300 us", lambda: fused("memory: {timing: {nREFI: 310000, nRFC: 300000}}", (256, 256, 2048)), 420_000
    ),
    Slow("collective over a link of 1 MB/s", lambda: collective("link: {bandwidth: 1 MB/s}", 2, 16), 88_000),
    # Work in the matrix pipe moves, and before its launch a kernel is not late.
    Slow("matrix pipe of one operation a cycle", small("gpu: {compute_unit: {matrix_flops_per_cycle: 1}}"), 0),
    Slow("kernel launch of 1 ms", small("gpu: {kernel_launch: 1 ms}"), 0),
]


def long_starvation() -> MirroredMachine:
    """Communication goes only when it has starved, and only that lets the last workgroups begin."""
    wired = fused("", (2, 192, 64), 3, "mca", tracker_sets=1, threshold=1, starvation_limit=300_000)
    wired.core.gpu.channels["policy_params"][:, 0] = 0  # no occupancy is below this threshold
    return wired


SLOW.append(Slow("starvation limit of 300,000 cycles", long_starvation, 420_000))


def series_of_kernels() -> MirroredMachine:
    """Three GEMMs one after another, each of them launched 1 ms after the one before has ended."""
    program = gemm_of(machine(), trace_of(64, 64))
    (gemm,) = program.operations
    return mirrored(machine(), replace(program, operations=(replace(gemm, launch=10**9),) * 3))


def counted_tile() -> MirroredMachine:
    """A tile whose count takes 1 ms, with nothing beside it."""
    spec = machine("gpu: {compute_unit: {count_latency: 1 ms}}")
    program = gemm_of(spec, trace_of(64, 64))
    (gemm,) = program.operations
    assert isinstance(gemm, Gemm)
    stores = gemm.stores.copy()
    stores.kind[:], stores.signal[:] = STORE, 0
    return mirrored(spec, replace(program, operations=(replace(gemm, stores=stores),), signals=(Signals("made", 0),)))


SLOW.append(Slow("count of a tile of 1 ms", counted_tile, 1_390_000))


SLOW.append(Slow("launches of 1 ms between kernels of a series", series_of_kernels, 0))


def longest_stillness(wired: MirroredMachine) -> int:
    """Run *wired* to its end; return the most compute cycles in which nothing moved."""
    longest, moved_at, last = 0, 0, b""

    def look() -> None:
        nonlocal longest, moved_at, last
        now = liveness.progress_of(wired.core)
        if now != last:
            longest, moved_at, last = max(longest, wired.core.now - moved_at), wired.core.now, now
        inner()

    process = wired.env.process(wired.device.run_kernel())
    watch = liveness.Liveness(wired.env, [wired.device])
    inner = wired.device.watch
    wired.device.watch = look
    liveness.run_to_end(wired.env, process, watch)
    check_drained(wired.core, "gpu[0]")
    longest = max(longest, wired.core.now - wired.device.quantum_ticks - moved_at)  # up to the quantum of its end
    return longest // int(wired.core.gpu.compute_ticks)


BY_NAME = {slow.name: slow for slow in SLOW}
LONGEST = ("workgroup launch of 1 ms", "refresh of 300 us", "starvation limit of 300,000 cycles")


@pytest.mark.parametrize("name", cases(BY_NAME, *(name for name in BY_NAME if name not in LONGEST)))
def test_a_slow_legal_run_ends(name: str) -> None:
    """Nothing moves for longer than a rotation, in most for longer than the bare patience, and yet no alarm."""
    slow = BY_NAME[name]
    wired = slow.load()
    assert longest_stillness(wired) >= slow.stillness


SMALL = {
    "one compute unit": "gpu: {n_compute_units: 1}",
    "one miss at a time": "gpu: {l2: {mshrs_per_bank: 1}}",
    "one load at a time": "gpu: {compute_unit: {max_outstanding_lines: 1}}",
    "one entry in the DRAM queue": "memory: {queue: {entries: 1}}",
    "stream queues of one line and its write-back": "memory: {stream_queue_entries: 4}",
}


@pytest.mark.parametrize("changes", SMALL.values(), ids=SMALL)
def test_the_smallest_machine_ends(changes: str) -> None:
    wired = fused(changes, tp=2)
    wired.run()
    assert wired.core.gemms["n_finished"].tolist() == [16]


def test_a_gpu_that_something_else_will_wake_is_not_deadlocked() -> None:
    """An event of somebody else in SimPy's queue may change everything, so a deadlock is not certain."""
    wired = collective()
    wired.core.gpu.expected_inbound += 1

    def late_neighbour() -> Generator[simpy.Event, Any, None]:
        yield wired.env.timeout(100 * wired.device.quantum_ticks)
        message = wired.core.outbox[:1].copy()
        message["at"], message["tile"], message["granule"], message["signal"] = wired.core.now, -1, 0, -1
        message["kind"] = codes.INCOMING_WRITE
        wired.device.receive(message)

    wired.env.process(late_neighbour())
    with pytest.raises(ModelError, match="granules delivered, against arrived: 192 is not 193"):
        wired.run()
    assert wired.core.now > 50 * wired.device.quantum_ticks
