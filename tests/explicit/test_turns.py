"""Turns that threads do: whose thread, what comes of those that fail, and that no thread stays."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from t3sim.system.threads import Turns

pytestmark = pytest.mark.timeout(60)  # a turn that is lost is waited for without an end
N_GPUS, ROUNDS = 4, 5


def fail(error: BaseException) -> Callable[[], Any]:
    """Return a turn that raises *error*."""

    def turn() -> Any:
        raise error

    return turn


def who_did_it(n_threads: int) -> list[set[str]]:
    """Let each GPU have some turns, all of them under way at once; return the names of the threads that did them."""
    turns: Turns[str] = Turns(n_threads, N_GPUS)
    threads: list[set[str]] = [set() for _ in range(N_GPUS)]
    meet = threading.Barrier(n_threads, timeout=30)

    def turn() -> str:
        meet.wait()
        return threading.current_thread().name

    with turns.threads():
        for _ in range(ROUNDS):
            for d in range(N_GPUS):
                turns.give(d, turn)
            for _ in range(N_GPUS):
                d, name = turns.take()
                threads[d].add(name)
    assert turns.n_open == 0
    return threads


def test_with_as_many_threads_as_gpus_each_has_its_own() -> None:
    assert who_did_it(N_GPUS) == [{f"t3sim GPUs_{d}"} for d in range(N_GPUS)]


def test_fewer_threads_share_what_there_is_to_do() -> None:
    assert set.union(*who_did_it(2)) == {"t3sim GPUs_0", "t3sim GPUs_1"}


def test_a_single_thread_is_that_of_the_caller() -> None:
    assert set.union(*who_did_it(1)) == {threading.current_thread().name}


@pytest.mark.parametrize("n_threads", [2, N_GPUS])
@pytest.mark.parametrize("error", [SystemExit(7), KeyboardInterrupt(), GeneratorExit(), MemoryError(), OSError()])
@pytest.mark.parametrize("wait", [Turns.take, Turns.settle])
def test_whoever_waits_for_a_turn_hears_what_it_raised(
    wait: Callable[[Turns[Any]], Any], error: BaseException, n_threads: int
) -> None:
    turns: Turns[Any] = Turns(n_threads, N_GPUS)
    n_before = threading.active_count()
    turns.give(1, fail(error))
    with pytest.raises(type(error)) as raised, turns.threads():
        wait(turns)
    assert raised.value is error
    assert threading.active_count() == n_before


@pytest.mark.parametrize("n_threads", [1, 2, N_GPUS])
def test_what_has_settled_is_still_to_be_taken_in(n_threads: int) -> None:
    turns: Turns[int] = Turns(n_threads, N_GPUS)
    with turns.threads():
        assert turns.settle() == []
        n_given = 1 if n_threads == 1 else N_GPUS
        for d in range(n_given):
            turns.give(d, lambda d=d: 10 * d)
        assert sorted(turns.settle()) == [10 * d for d in range(n_given)]
        assert turns.n_open == n_given
        assert sorted(turns.take() for _ in range(n_given)) == [(d, 10 * d) for d in range(n_given)]
        assert (turns.n_open, turns.settle()) == (0, [])


def test_two_turns_for_each_thread_are_given_out() -> None:
    for n_threads, most in ((1, 1), (2, 4), (3, 6)):
        turns: Turns[None] = Turns(n_threads, 9)
        with turns.threads():
            n_given = 0
            while turns.has_room:
                turns.give(n_given, lambda: None)
                n_given += 1
            assert n_given == most


@pytest.mark.parametrize("n_threads", [2, N_GPUS])
def test_no_thread_stays_whatever_happens_to_the_caller(n_threads: int) -> None:
    seen, n_before = [], threading.active_count()

    def interrupted() -> None:
        seen.append(threading.active_count())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Turns[None](n_threads, N_GPUS).threads():
        interrupted()
    assert [*seen, threading.active_count()] == [n_before + n_threads, n_before]


@pytest.mark.parametrize("last", [0, 1, 2])
def test_an_interrupt_while_threads_are_started_leaves_none(monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    start, n_before = threading.Thread.start, threading.active_count()

    def start_or_raise(self: threading.Thread) -> None:
        if self.name == f"t3sim GPUs_{last}":
            raise KeyboardInterrupt
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_or_raise)
    with pytest.raises(KeyboardInterrupt), Turns[None](3, N_GPUS).threads():
        sys.exit("not reached")
    assert threading.active_count() == n_before
