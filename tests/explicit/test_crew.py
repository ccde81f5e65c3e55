"""Turns that threads choose for themselves: whose they are, what comes of those that fail, and that no thread stays."""

from __future__ import annotations

import threading

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
