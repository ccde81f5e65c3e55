"""Turns that threads choose for themselves: whose they are, what comes of those that fail, and that no thread stays."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

import pytest

from t3sim.system.threads import Crew

pytestmark = pytest.mark.timeout(60)  # a turn that is lost is waited for without an end
ERRORS = [SystemExit(7), KeyboardInterrupt(), GeneratorExit(), MemoryError(), OSError()]


def nothing(*_: object) -> None:
    """Do nothing."""


def work(crew: Crew[int, int]) -> int:
    """Let all threads of *crew* work to the end; return how many turns the caller has done."""
    n = 0
    with crew.threads():
        while crew.do_one():
            n += 1
    return n


class Shop:
    """Turns 0 to *n* - 1, each open when the one *behind* places before it has been taken in."""

    def __init__(self, n: int, behind: int = 1_000, n_own: int = 1) -> None:
        """Thread k of *n_own* may only do turns k, k + *n_own*, and so on; default: any."""
        self.behind, self.left, self.n_own = behind, list(range(n)), n_own
        self.chosen_by: dict[int, int] = {}  # threads, by turn
        self.done_by: dict[int, str] = {}
        self.taken_in: list[int] = []
        self.inside = 0  # threads that choose or take in

    def choose(self, thread: int) -> int | None:
        self.enter()
        mine = (i for i in self.left if i % self.n_own == thread % self.n_own)
        turn = next((i for i in mine if i < self.behind or i - self.behind in self.taken_in), None)
        if turn is not None:
            self.left.remove(turn)
            self.chosen_by[turn] = thread
        self.inside -= 1
        return turn

    def do(self, turn: int) -> int:
        self.done_by[turn] = threading.current_thread().name
        return 10 * turn

    def take_in(self, turn: int, outcome: int) -> None:
        self.enter()
        assert outcome == 10 * turn
        self.taken_in.append(turn)
        self.inside -= 1

    def enter(self) -> None:
        self.inside += 1
        assert self.inside == 1


@pytest.mark.parametrize("behind", [1, 2, 5, 1_000])
@pytest.mark.parametrize(("n_threads", "n_own"), [(1, 1), (2, 1), (3, 1), (8, 1), (2, 2), (8, 8)])
def test_every_turn_is_done_once_and_taken_in(n_threads: int, behind: int, n_own: int) -> None:
    """A thread that can do nothing, or has done all of its own, does not end the work of others."""
    shop = Shop(300, behind, n_own)
    n_before = threading.active_count()
    n_of_caller = work(Crew(n_threads, shop.choose, shop.do, shop.take_in))
    assert sorted(shop.taken_in) == list(range(300))
    if behind == 1:
        assert shop.taken_in == list(range(300))
    assert n_of_caller == list(shop.chosen_by.values()).count(0)
    assert threading.active_count() == n_before
    mine = threading.current_thread().name
    names = {0: mine, **{k: f"t3sim GPUs_{k}" for k in range(1, n_threads)}}
    assert shop.done_by == {turn: names[thread] for turn, thread in shop.chosen_by.items()}


@pytest.mark.parametrize("n_threads", [2, 3, 8])
def test_as_many_turns_go_on_at_once_as_there_are_threads(n_threads: int) -> None:
    shop, meet = Shop(5 * n_threads), threading.Barrier(n_threads, timeout=30)

    def do(turn: int) -> int:
        meet.wait()
        return shop.do(turn)

    work(Crew(n_threads, shop.choose, do, shop.take_in))
    assert len(set(shop.done_by.values())) == n_threads


def test_a_thread_that_found_nothing_gets_what_another_one_has_opened() -> None:
    """Turn 1 opens turns 2 and 3, which wait for each other: both threads are needed, and one has found nothing."""
    opened: list[int] = []
    meet = threading.Barrier(2, timeout=30)

    def choose(_thread: int) -> int | None:
        return opened.pop() if opened else None

    def take_in(turn: int, _outcome: None) -> None:
        opened.extend([2, 3] if turn == 1 else [])

    def do(turn: int) -> None:
        if turn > 1:
            meet.wait()

    opened.append(1)
    crew: Crew[int, None] = Crew(2, choose, do, take_in)
    with crew.threads():
        while crew.do_one():
            pass
    assert not opened
    assert meet.n_waiting == 0


@pytest.mark.parametrize("n_threads", [1, 2, 8])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("where", ["choose", "do", "take_in"])
def test_the_caller_hears_what_is_raised_in_any_thread(where: str, error: BaseException, n_threads: int) -> None:
    shop, n_before = Shop(100), threading.active_count()
    last = threading.Barrier(n_threads, timeout=30)  # each thread has a turn: it is the last one of them that raises

    def fails(turn: int) -> bool:
        return n_threads == 1 or shop.chosen_by[turn] == n_threads - 1

    def choose(thread: int) -> int | None:
        if where == "choose" and len(shop.left) < 50:
            raise error
        return shop.choose(thread)

    def do(turn: int) -> int:
        if turn < n_threads:
            last.wait()
        if where == "do" and fails(turn):
            raise error
        return shop.do(turn)

    def take_in(turn: int, outcome: int) -> None:
        if where == "take_in" and fails(turn):
            raise error
        shop.take_in(turn, outcome)

    with pytest.raises(type(error)) as raised:
        work(Crew(n_threads, choose, do, take_in))
    assert raised.value is error
    assert threading.active_count() == n_before


@pytest.mark.parametrize("n_threads", [1, 2, 3, 8])
def test_nobody_does_or_begins_a_turn_while_somebody_settles(n_threads: int) -> None:
    shop, busy, settling, seen = Shop(200, behind=20), set[int](), list[int](), list[int]()

    def choose(thread: int) -> int | None:
        assert not settling
        return shop.choose(thread)

    def do(turn: int) -> int:
        busy.add(turn)
        time.sleep(0.0005)  # without the lock of Python
        outcome = shop.do(turn)
        busy.remove(turn)
        return outcome

    def take_in(turn: int, outcome: int) -> None:
        shop.take_in(turn, outcome)
        if turn % 7 == 0:
            settling.append(turn)
            crew.settle()
            seen.append(len(busy))
            settling.remove(turn)

    crew: Crew[int, int] = Crew(n_threads, choose, do, take_in)
    work(crew)
    assert sorted(shop.taken_in) == list(range(200))
    assert seen == [0] * len(range(0, 200, 7))


@pytest.mark.parametrize("n_threads", [2, 8])
def test_what_others_do_has_been_taken_in_when_it_has_settled(n_threads: int) -> None:
    shop, first, meet = Shop(n_threads), list[int](), threading.Barrier(n_threads, timeout=30)

    def do(turn: int) -> int:
        meet.wait()
        return shop.do(turn)

    def take_in(turn: int, outcome: int) -> None:
        shop.take_in(turn, outcome)
        if len(shop.taken_in) == 1:
            crew.settle()
            first.append(len(shop.taken_in))

    crew: Crew[int, int] = Crew(n_threads, shop.choose, do, take_in)
    work(crew)
    assert first == [n_threads]


@pytest.mark.parametrize("n_threads", [1, 2, 4])
def test_no_thread_stays_whatever_happens_to_the_caller(n_threads: int) -> None:
    """The caller leaves between two of its turns, while the others go on for ever."""
    seen, n_before = [], threading.active_count()

    def leave(crew: Crew[int, None]) -> None:
        crew.do_one()
        seen.append(threading.active_count())
        raise KeyboardInterrupt

    crew: Crew[int, None] = Crew(n_threads, lambda _thread: 1, nothing, nothing)
    with pytest.raises(KeyboardInterrupt), crew.threads():
        leave(crew)
    assert [*seen, threading.active_count()] == [n_before + n_threads - 1, n_before]


def test_nothing_is_taken_in_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that another thread is still doing when the caller leaves."""
    begun, over, taken_in, join = threading.Event(), threading.Event(), list[int](), threading.Thread.join

    def do(turn: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            over.wait(30)

    def join_when_over(self: threading.Thread, timeout: float | None = None) -> None:
        over.set()
        join(self, timeout)

    def leave(crew: Crew[int, None]) -> None:
        begun.wait(30)
        crew.do_one()
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "join", join_when_over)
    crew: Crew[int, None] = Crew(2, lambda thread: thread, do, lambda turn, _: taken_in.append(turn))
    with pytest.raises(KeyboardInterrupt), crew.threads():
        leave(crew)
    assert taken_in == [0]


@pytest.mark.parametrize("last", [1, 2])
def test_an_interrupt_while_threads_are_started_leaves_none(monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    start, n_before = threading.Thread.start, threading.active_count()

    def start_or_raise(self: threading.Thread) -> None:
        if self.name == f"t3sim GPUs_{last}":
            raise KeyboardInterrupt
        start(self)

    choose: Callable[[int], int | None] = nothing
    monkeypatch.setattr(threading.Thread, "start", start_or_raise)
    with pytest.raises(KeyboardInterrupt), Crew[int, None](3, choose, nothing, nothing).threads():
        sys.exit("not reached")
    assert threading.active_count() == n_before
