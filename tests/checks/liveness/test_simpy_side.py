"""What only the stepping of SimPy can see: loops at one moment, and a simulation that has nothing left to do."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import pytest
import simpy

from t3sim.errors import ModelError
from t3sim.gpu.device import LOOK_EVERY
from t3sim.system.liveness import WatchedEnvironment, run_to_end
from t3sim.system.machine import MirroredMachine, quanta_at_once
from tests.checks.hang.scenario import fused
from tests.kernel.small import fused_of, machine, mirrored, trace_of

Steps = Generator[simpy.Event, Any, Any]


def impatient_host(env: simpy.Environment) -> Steps:
    yield env.timeout(7)
    while True:
        yield env.timeout(0)


def bystander(env: simpy.Environment) -> Steps:
    yield env.timeout(1000)
    return "done"


def test_a_process_that_loops_at_one_moment_is_named() -> None:
    env = WatchedEnvironment()
    env.process(impatient_host(env))
    with pytest.raises(ModelError) as loop:
        run_to_end(env, env.process(bystander(env)))
    first, second = str(loop.value).splitlines()
    assert first.startswith("zero-time loop: ")
    assert first.endswith(" events at tick 7 and time does not move")
    assert "`impatient_host`" in second
    assert "bystander" not in second


def test_two_processes_that_wake_each_other_for_ever_are_both_named() -> None:
    env = WatchedEnvironment()
    wires = simpy.Store(env), simpy.Store(env)

    def ping() -> Steps:
        while True:
            yield wires[0].put(0)
            yield wires[1].get()

    def pong() -> Steps:
        while True:
            yield wires[0].get()
            yield wires[1].put(0)

    env.process(pong())
    with pytest.raises(ModelError, match="zero-time loop") as loop:
        run_to_end(env, env.process(ping()))
    assert "`ping`" in str(loop.value)
    assert "`pong`" in str(loop.value)


def waits_for_nobody(event: simpy.Event) -> Steps:
    yield event


def test_a_process_that_waits_for_what_nobody_triggers_is_named() -> None:
    env = WatchedEnvironment()
    with pytest.raises(ModelError) as end:
        run_to_end(env, env.process(waits_for_nobody(env.event())))
    text = str(end.value)
    assert text.startswith("deadlock: nothing is scheduled any more, but process `waits_for_nobody` has not ended")
    assert "it waits for <Event" in text


def test_what_the_process_raises_comes_out_as_it_is() -> None:
    """The very exception, with its details, not the copy that SimPy would make."""
    env, raised = WatchedEnvironment(), ModelError("message", "details")

    def fail() -> Steps:
        yield env.timeout(1)
        raise raised

    with pytest.raises(ModelError) as error:
        run_to_end(env, env.process(fail()))
    assert error.value is raised


def test_a_loop_beside_a_gpu_is_found() -> None:
    wired = fused()
    wired.env.process(impatient_host(wired.env))
    with pytest.raises(ModelError, match="impatient_host"):
        wired.run()


def test_a_gpu_that_is_left_waiting_is_described() -> None:
    """A device that waits for an event instead of time: the report has the state of the GPU."""
    wired = fused()

    def wait_instead(report: Any = None, n_at_once: int = 1) -> Steps:
        wired.core.advance(100 * wired.core.slot_ticks)
        yield wired.env.event()

    wired.device.run_kernel = wait_instead
    with pytest.raises(ModelError, match="process `wait_instead` has not ended") as end:
        wired.run()
    assert "state of gpu[0]" in end.value.details
    assert "compute_unit[0].slot[0] waits for" in end.value.details


def swallower(env: simpy.Environment) -> Steps:
    """Clear a KeyboardInterrupt, as Numba does while it looks up a function-typed argument."""
    with suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    yield env.timeout(1)
    return "not interrupted"


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_that_was_swallowed_still_ends_the_run() -> None:
    env = WatchedEnvironment()
    with pytest.raises(KeyboardInterrupt):
        run_to_end(env, env.process(swallower(env)))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def times_asked_for(wired: MirroredMachine) -> list[int]:
    """Run *wired*; return by how many quanta SimPy's clock has moved each time."""
    moved, timeout = list[int](), wired.env.timeout

    def noted(delay: int) -> simpy.Event:
        if wired.env.active_process is not None and wired.env.active_process.name == "run_kernel":
            moved.append(int(delay) // wired.device.quantum_ticks)
        return timeout(delay)

    wired.env.timeout = noted
    wired.run()
    return moved[:-1]


def test_the_clock_moves_by_several_quanta_if_nothing_else_is_due() -> None:
    at_once = quanta_at_once(fused().device)
    assert at_once > 1
    assert set(times_asked_for(fused())) == {at_once}
    wired = fused()

    def clock() -> Steps:
        while True:
            yield wired.env.timeout(3 * wired.device.quantum_ticks)

    wired.env.process(clock())
    assert set(times_asked_for(wired)) <= {1, 2, 3}


@pytest.mark.parametrize("quantum_ps", [20_000, 600_000, 900_000, 3_000_000])
def test_a_gpu_is_looked_at_every_few_quanta_however_long_they_are(quantum_ps: int) -> None:
    """Of which one call of the loop covers eight, four or one."""
    spec = machine("link: {latency: 3 us}")
    wired = mirrored(spec, fused_of(spec, trace_of(256, 256, 2048, n_chunks=2)), quantum_ps=quantum_ps)
    quanta = list[int]()
    wired.run(lambda _share: quanta.append(wired.core.now // wired.device.quantum_ticks))
    assert len(quanta) > 2
    n_begun = -(-wired.core.now // wired.device.quantum_ticks)
    assert quanta == list(range(LOOK_EVERY, n_begun, LOOK_EVERY))
