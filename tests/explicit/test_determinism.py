"""A ring comes out the same whatever the host does: threads, order of set-up, length of windows, compiled or not."""

from __future__ import annotations

import os
import signal
import threading
from itertools import count
from typing import Any

import pytest

from t3sim.config.experiment import RunSpec
from t3sim.errors import ModelError
from t3sim.system.ring import RingMachine
from tests.conftest import cases
from tests.harness.rings import Observed, explicit, point, reference

UNLIKE = ("mode=explicit", "machine.gpu[2].compute_clock=1386 MHz", "machine.link[1].bandwidth=6 GB/s")


def unlike(strategy: str = "t3") -> RunSpec:
    return point(strategy, *UNLIKE, shape=(200, 250, 72), tp=5)


def content(seen: Observed) -> Any:
    """Return all that was simulated; but how full the inbox was depends on how much arrives at once."""
    gpus = [[(gpu.start, gpu.end, {**gpu.counters, "peak_inbox": 0}) for gpu in phase.gpus] for phase in seen.phases]
    return seen.total, gpus, seen.digests


@pytest.mark.parametrize("strategy", cases(["sequential", "t3-mca"], "t3-mca"))
def test_threads_do_not_matter(strategy: str) -> None:
    one, two, four, own = (explicit(unlike(strategy), n_threads=n) for n in (1, 2, 4, 5))
    assert one == two == four == own


@pytest.mark.parametrize("order", [(4, 3, 2, 1, 0), (2, 0, 4, 1, 3)])
def test_the_order_of_setting_up_does_not_matter(order: tuple[int, ...]) -> None:
    assert explicit(unlike(), order=order) == reference(unlike())


@pytest.mark.parametrize("quantum_ps", [pytest.param(6_000, marks=pytest.mark.deep), 77_777, 300_000])
def test_the_length_of_the_windows_does_not_matter(quantum_ps: int) -> None:
    assert content(explicit(unlike(), quantum_ps=quantum_ps)) == content(reference(unlike()))


# --- what goes wrong in a thread ---------------------------------------------------------------------


@pytest.mark.parametrize("n_threads", [1, 2, 4, 5])
def test_what_a_gpu_raises_comes_through(n_threads: int) -> None:
    def fail(horizon: int) -> bool:
        raise ModelError("gpu[1] is broken")

    def broken(ring: RingMachine) -> None:
        if len(ring.devices) > 1:
            ring.devices[1].advance = fail

    n_before = threading.active_count()
    with pytest.raises(ModelError, match=r"gpu\[1\] is broken"):
        explicit(unlike(), broken, n_threads=n_threads)
    assert threading.active_count() == n_before


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_ctrl_c_comes_through_and_leaves_no_thread(interruptible: None, n_threads: int) -> None:
    def interrupting(ring: RingMachine) -> None:
        if len(ring.devices) > 1:
            advance = ring.devices[0].advance
            windows = count()

            def interrupt(horizon: int) -> bool:
                if next(windows) == 3:  # all threads have been started
                    os.kill(os.getpid(), signal.SIGINT)
                return advance(horizon)

            ring.devices[0].advance = interrupt

    n_before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        explicit(unlike(), interrupting, n_threads=n_threads)
    assert threading.active_count() == n_before
