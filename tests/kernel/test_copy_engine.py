"""Copy engines: what a command takes, who waits for whom, and that nobody else pays for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from t3sim.config.machine import MachineSpec
from t3sim.errors import ModelError
from t3sim.program.kernels import copies
from t3sim.program.operations import Moves, Operation, Program, Signals, Wait
from tests.kernel.small import at_once, gemm_of, machine, mirrored, trace_of

STARTUP = 1_000_000  # ps
RATE = 4_000_000_000  # bytes per second, of an engine
N = 4096  # granules of 64 bytes
LATENCY = 1_000_000  # ps; more than a granule needs from one memory to another on an idle machine


def with_engines(number: int = 2, rate: str = "4 GB/s", lines: int = 64, more: str = "") -> MachineSpec:
    """t3-tiny with copy engines."""
    engines = f"{{number: {number}, startup: 1 us, bandwidth: {rate}, max_outstanding_lines: {lines}}}"
    return machine(f"gpu: {{copy_engines: {engines}}}{more}")


def copy(to: int = 0, **more: Any) -> Moves:
    """A copy of *N* granules to the GPU at distance *to*, or to own memory."""
    where = {"distance": to, "destination": 2 * N} if to else {"kept_at": 2 * N}
    more = {"name": "copy", "launch": 0} | more
    return copies(rows=[{"n_granules": N, "operand": 0, **where}], **more)


def ends(spec: MachineSpec, *operations: Operation, n: int = 2, n_signals: int = 1) -> list[int]:
    """Run *operations* on a GPU that represents *n*; return when each ended, in picoseconds."""
    one = Program(0, n, operations, granule=64, line=2, signals=(Signals("done", 0, n_signals),))
    wired = mirrored(spec, one)
    wired.run()
    return [wired.core.ticks.to_ps(int(operation.end_at)) for operation in wired.core.operations]


def wire(n_granules: int, rate: int) -> int:
    """Picoseconds for so many granules at a rate."""
    return n_granules * 64 * 10**12 // rate


def test_a_copy_takes_its_startup_and_its_bytes_at_the_rate_of_the_engine() -> None:
    (end,) = ends(with_engines(), copy())
    assert 0 <= end - STARTUP - wire(N, RATE) < LATENCY


def test_a_copy_to_another_gpu_takes_the_rate_of_the_slower_of_engine_and_link() -> None:
    (slow_engine,) = ends(with_engines(), copy(1))
    (slow_link,) = ends(with_engines(rate="64 GB/s"), copy(1))
    assert 0 <= slow_engine - STARTUP - wire(N, RATE) < LATENCY
    link = machine().link
    buffered = wire(link.egress_buffer // 64, link.bandwidth)  # the last granules leave after the operation's end
    assert -buffered <= slow_link - STARTUP - wire(N, link.bandwidth) < LATENCY
    assert slow_link < slow_engine


def test_an_engine_fills_packets_of_its_own() -> None:
    """With headers of 16 B, packets of 256 B carry data at 256 / 272 of the raw rate, those of 64 B at 64 / 80."""
    link = "link: {packet_payload: 64 B, packet_header: 16 B}"
    wide = with_engines(rate="400 GB/s", lines=4096, more=f", {link}")
    engines = wide.gpu.copy_engines.model_copy(update={"packet_payload": 256})
    wider = wide.model_copy(update={"gpu": wide.gpu.model_copy(update={"copy_engines": engines})})
    times = [ends(spec, copy(1))[0] - STARTUP for spec in (wide, wider)]
    buffered = wire(wide.link.egress_buffer // 64, wide.link.bandwidth)
    assert times[0] / times[1] == pytest.approx((80 / 64) / (272 / 256), abs=2 * buffered / times[1])
    assert times[0] > 1.1 * times[1]


def test_each_command_starts_up() -> None:
    rows = [{"n_granules": N // 8, "operand": i * N // 8, "kept_at": 2 * N + i * N // 8} for i in range(8)]
    (end,) = ends(with_engines(), copies("copy", rows, launch=0))
    assert 0 <= end - 8 * STARTUP - wire(N, RATE) < 8 * LATENCY


@pytest.mark.parametrize(
    "signal", [{"post_signal": 0}, {"wait_signal": 0, "wait_at_least": 0}, {}], ids=["posted", "waited for", "none"]
)
def test_between_commands_with_signals_the_stream_is_handed_over(signal: dict[str, int]) -> None:
    """Twice between three commands; none of it where no signal stands between them."""
    rows = [{"n_granules": N // 8, "operand": i * N // 8, "kept_at": 2 * N + i * N // 8, **signal} for i in range(3)]
    spec = with_engines()
    engines = spec.gpu.copy_engines.model_copy(update={"handover": 7_000_000})
    slow = spec.model_copy(update={"gpu": spec.gpu.model_copy(update={"copy_engines": engines})})
    (usual,), (later,) = (ends(one, copies("copy", rows, launch=0)) for one in (spec, slow))
    assert abs(later - usual - 2 * 7_000_000 * bool(signal)) < LATENCY // 4


def test_lines_in_flight_limit_the_rate() -> None:
    """Half as many lines in flight, half the rate, once they are fewer than latency times rate."""
    times = [ends(with_engines(rate="64 GB/s", lines=lines), copy())[0] - STARTUP for lines in (1, 2, 4)]
    assert times[0] / times[1] == pytest.approx(2, rel=0.1)  # nearly: a round trip ends inside a slot
    assert times[1] / times[2] == pytest.approx(2, rel=0.1)


def test_a_command_starts_up_when_what_it_waits_for_is_there() -> None:
    """Not before: an engine takes a command when it may run."""
    first = copies("first", [{"n_granules": N, "operand": 0, "kept_at": 2 * N, "post_signal": 0}], launch=0)
    row = {"n_granules": N, "operand": 2 * N, "kept_at": 4 * N, "wait_signal": 0, "wait_at_least": N}
    made, used = ends(with_engines(), first, copies("then", [row], launch=0, stream=1, engine=1))
    assert 0 <= used - made - STARTUP - wire(N, RATE) < LATENCY


def test_a_gemm_keeps_its_compute_units() -> None:
    """A copy that starts up for longer than the GEMM runs costs it nothing."""
    spec = with_engines()
    alone = at_once(gemm_of(spec, trace_of(512, 256)))
    late = spec.model_copy(
        update={"gpu": spec.gpu.model_copy(
            update={"copy_engines": spec.gpu.copy_engines.model_copy(update={"startup": 10**9})}
        )}
    )  # fmt: skip
    times = {}
    for beside in (False, True):
        more = (copy(stream=1),) if beside else ()
        both = replace(alone, operations=(*alone.operations, *more))
        wired = mirrored(late, both)
        wired.run()
        times[beside] = int(wired.core.operations[0].end_at)
    assert times[True] == times[False]


def test_waiting_for_a_signal_that_never_comes_names_the_engine() -> None:
    row = {"n_granules": N, "operand": 0, "kept_at": 2 * N, "wait_signal": 0, "wait_at_least": N}
    with pytest.raises(ModelError, match=r"copy_engine\[0\]"):
        ends(with_engines(), copies("copy", [row], launch=0))


def test_a_wait_of_an_operation_holds_an_engine_back() -> None:
    told = copies("first", [{"n_granules": N, "operand": 0, "kept_at": 2 * N, "post_signal": 0}], launch=0)
    made, used = ends(with_engines(), told, copy(stream=1, name="use", after=(Wait(0, N),)))
    assert 0 <= used - made - STARTUP - wire(N, RATE) < 2 * LATENCY
