"""Each static check notices its defect, says where it is, and no other check speaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from t3sim.collective.schedule import ring_all_gather
from t3sim.errors import ProgramError, UsageError
from t3sim.program.contents import Content
from t3sim.program.kernels import copies, program, ring
from t3sim.program.operations import (
    NONE,
    STORE,
    Barrier,
    Buffer,
    Memory,
    Moves,
    Operation,
    Post,
    Program,
    TileWaits,
    Wait,
)
from t3sim.program.parts import ring_contents
from t3sim.program.verify import check_programs, problems_of
from tests.program.spoil import changed, with_entry, with_stores
from tests.program.strategies import operator, programs

N = 3
Defect = Callable[[Operation], Operation]


def stores(name: str, index: int, value: int) -> Defect:
    """One value of an array of the stores."""

    def change(operation: Operation) -> Operation:
        values = np.array(getattr(operation.stores, name))
        values[index] = value
        return with_stores(operation, **{name: values})

    return change


def entry(index: int, name: str, value: int, of: str = "steps") -> Defect:
    """One value of a step or command."""
    return lambda operation: with_entry(operation, of, index, name, value)


def without_last_forward(operation: Operation) -> Operation:
    return replace(operation, forwards=operation.forwards[:-1])


def two_tiles_at_one_place(operation: Operation) -> Operation:
    first = np.array(operation.stores.first)
    first[0] = first[1]
    return with_stores(operation, first=first)


DEFECTS: list[tuple[str, str, str, Defect, str]] = [
    ("form", "T3", "gemm", stores("first", 4, 1 << 40), "tile 4, from granule 1099511627776 on, is not inside"),
    ("form", "T3", "gemm", stores("kind", 0, 0), "tile 0 goes through the L2 to another GPU"),
    ("form", "S4 async TP", "gemm 1", stores("first", 1, 2177), "tile 1 goes through the L2, but its rows"),
    ("form", "T3", "gemm", stores("updates", 0, 2), "tile 0 is counted here, but stored on another GPU"),
    ("form", "T3", "gemm", stores("to", 0, 5), "tile 0 goes to tile 5, but not to the place of that tile"),
    ("form", "T3", "gemm", stores("distance", 3, 7), "`distance` of tile 3 is 7, not 0 to 2"),
    ("form", "T3", "gemm", lambda one: replace(one, order=one.order[:-1]), "`order` does not have each workgroup once"),
    ("form", "T3", "gemm", lambda one: replace(one, a=-1), "operand A is not inside one buffer"),
    ("form", "T3", "gemm", lambda one: replace(one, units=(3, 3)), "compute units (3, 3) are none"),
    ("form", "T3", "gemm", lambda one: replace(one, traffic_class=2), "traffic class 2, of 2"),
    ("form", "T3", "gemm", lambda one: replace(one, forwards=one.forwards * 2), "tile 4 is forwarded 2 times"),
    ("form", "S1 Flux push", "sum", entry(0, "kept_at", -7), "kept_at of step 0, from granule -7 on, is not inside"),
    ("form", "S9 engine scatter", "scatter", entry(0, "distance", 3), "step 0 sends to distance 3, of 3 ranks"),
    ("form", "S9 engine scatter", "scatter", entry(0, "post_signal", 99), "step 0 posts to signal 99, of 3"),
    ("form", "S9 engine scatter", "scatter", entry(1, "wait_signal", 99), "waits for signal 99, of 3"),
    ("form", "S9 engine scatter", "scatter", entry(0, "source", 9), "operand 0 of step 0 lies at distance 9"),
    ("form", "S9 engine scatter", "scatter", lambda one: replace(one, posts=(Post(0, 5),)), "posts 1 at distance 5"),
    ("waits", "T3", "gemm", stores("updates", 4, 3), "`gemm` of every rank waits for updates of its tile 4"),
    ("waits", "T3", "gemm", stores("updates", 8, 1), "tile 8 of operation `gemm` of every rank is complete after 1"),
    ("waits", "T3", "gemm", without_last_forward, "`gemm` of every rank waits for updates of its tile 8"),
    ("waits", "S9 engine scatter", "scatter", entry(1, "wait_at_least", 513), "but only 512 are posted"),
    ("races", "S9 engine scatter", "scatter", entry(1, "wait_at_least", 511),
     "`scatter` of the rank itself reads granule 512 of buffer `made here` (tile 4 of `gemm`) of every rank, and"),
    ("sums", "S1 Flux push", "gemm", stores("distance", 0, 2),
     "adds different elements, from granule 1024 of buffer `partials` (tile 0 of `gemm`)"),
    ("sums", "S1 Flux push", "gemm", two_tiles_at_one_place, "granule 1024 of buffer `partials`, which was never"),
    ("sums", "S1 Flux push", "sum", entry(0, "n_operands", 2), "lacks the contribution of the rank at distance 2"),
    ("sums", "S1 Flux push", "sum", entry(0, "stride", 0), "adds the contribution of the rank at distance 0 a second"),
    ("races", "S1 Flux push, updates", "gemm", stores("kind", 5, STORE), "`output` (tile 1 of `gemm`) of every rank"),
    ("sums", "S3 Flux all-gather", "pull", entry(0, "source", 2), "is another element than it has to be"),
    ("sums", "S4 async TP", "gemm 1", lambda one: replace(one, first_chunk=2), "adds different elements"),
    ("sums", "S9 engine scatter", "scatter", entry(0, "n_granules", 511), "which was never stored"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "strategy", "of_operation", "defect", "message"), DEFECTS)
def test_a_defect_turns_its_check_red(
    check: str, strategy: str, of_operation: str, defect: Defect, message: str
) -> None:
    """And no other."""
    found = problems_of(changed(programs(strategy, operator(N)), of_operation, defect))
    assert [problem.check for problem in found] == [check] * len(found)
    assert found
    assert message in found[0].message
    assert f"`{of_operation}`" in found[0].message or check in ("sums", "form")


# --- waits ------------------------------------------------------------------------------------------------


def moving(name: str, stream: int, **more: object) -> Moves:
    """An operation that moves nothing but time."""
    return copies(name, [], stream=stream, **more)


def of_all(*operations: Operation, n: int = 2, memory: Memory | None = None) -> list[Program]:
    """The same operations on each rank."""
    places = Memory() if memory is None else memory
    return [program(operator(n), rank, places, *operations) for rank in range(n)]


def test_a_circle_of_two_streams_is_named() -> None:
    memory = Memory()
    a, b = memory.signal("a"), memory.signal("b")
    first = moving("first", 0, after=(Wait(b[0], 1),), posts=(Post(a[0]),))
    other = moving("other", 1, after=(Wait(a[0], 1),), posts=(Post(b[0]),))
    found = problems_of(of_all(first, other, memory=memory))
    assert [problem.check for problem in found] == ["waits"]
    assert found[0].message == (
        "operation `first` of every rank waits until signal `b` is at least 1, which needs operation `other` of every"
        " rank, which needs operation `first` of every rank again"
    )
    assert problems_of(of_all(replace(first, after=()), other, memory=memory)) == []


def test_a_circle_of_ranks_is_named() -> None:
    """Rank 0 waits for rank 1 before it posts, and rank 1 for rank 0; the other way around on one of them it ends."""
    memory = Memory()
    told = memory.signal("told")
    wait_first = (moving("wait", 0, after=(Wait(told[0], 1),)), moving("tell", 0, posts=(Post(told[0], 1),)))
    stuck = of_all(*wait_first, memory=memory)
    assert [problem.check for problem in problems_of(stuck)] == ["waits"]
    assert "needs operation `tell` of every rank, which needs operation `wait`" in problems_of(stuck)[0].message
    assert problems_of([stuck[0], replace(stuck[1], operations=wait_first[::-1])]) == []


def test_barriers_in_another_order_are_a_circle() -> None:
    one, other = Barrier(name="one"), Barrier(name="other")
    crossed = of_all(one, other)
    crossed[1] = replace(crossed[1], operations=(other, one))
    found = problems_of(crossed)
    assert [problem.check for problem in found] == ["waits"]
    assert "operation `one` of rank 0 waits for the other ranks, which needs" in found[0].message
    assert problems_of(of_all(one, other)) == []


def test_a_tile_that_waits_for_a_later_one_is_a_circle() -> None:
    """Workgroups are dispatched in order; the first one waits for the last one's store."""
    good = programs("S9 engine scatter", operator(N))

    def first_waits(operation: Operation) -> Operation:
        n = operation.stores.n
        signal, at_least = np.full(n, NONE), np.zeros(n, np.int64)
        signal[operation.order[0]], at_least[operation.order[0]] = operation.stores.signal[operation.order[-1]], 1
        return replace(operation, waits=TileWaits(signal=signal, at_least=at_least))

    found = problems_of(changed(good, "gemm", first_waits))
    assert [problem.check for problem in found] == ["waits"]


# --- races ------------------------------------------------------------------------------------------------


def test_a_buffer_used_twice_too_soon_is_a_race() -> None:
    """Async TP with one box where it has two: the next chunk is made while a peer still pulls the one before."""
    n = 4
    good = programs("S4 async TP", operator(n))
    second = next(buffer for buffer in good[0].buffers if buffer.name == "box 1")
    first = next(buffer for buffer in good[0].buffers if buffer.name == "box 0")
    by = second.first - first.first

    def to_first(operation: Operation) -> Operation:
        return with_stores(operation, first=operation.stores.first - by)

    spoilt = changed(good, "gemm 1", to_first)
    spoilt = changed(spoilt, "pull 1", entry(0, "operand", first.first))
    assert problems_of(good) == []
    found = problems_of(spoilt)
    assert {problem.check for problem in found} == {"races"}
    assert any("of buffer `box 0` (tile 0 of `gemm 1`)" in problem.message for problem in found)


def test_a_post_of_one_chain_among_two_orders_nothing() -> None:
    """Two pulls post to one signal; a wait for as much as one posts knows neither, for as much as both knows both."""
    memory = Memory()
    have, here = memory.buffer("have", 8), memory.buffer("here", 16)
    arrived = memory.signal("arrived")

    def pull(name: str, stream: int, to: int) -> Moves:
        command = {"source": 1, "kept_at": here.first + to, "n_granules": 8, "post_signal": arrived[0]}
        return copies(name, [command], stream=stream)

    def reading(at_least: int) -> list[Program]:
        copy = {"operand": here.first, "kept_at": here.first + 8, "n_granules": 8}
        reads = copies("use", [copy], stream=2, after=(Wait(arrived[0], at_least),))
        made = of_all(pull("one", 0, 0), pull("other", 1, 8), reads, memory=memory)
        held = Content(have.first, 8, 0, of=0)
        return [replace(one, inputs=(held,)) for one in made]

    assert problems_of(reading(16)) == []
    found = problems_of(reading(8))
    assert {problem.check for problem in found} == {"races"}
    assert "`use` of the rank itself reads granule 0 of buffer `here`" in found[0].message


# --- rings ------------------------------------------------------------------------------------------------


def ring_programs(until: bool) -> list[Program]:
    op = operator(N)
    made = []
    for rank in range(N):
        memory = op.memory()
        kernel = ring(op, memory, ring_all_gather(N, 16), "gather")
        kernel = kernel if until else replace(kernel, until=())
        inputs, outputs = ring_contents("all-gather", N, 16, has_channels=False)
        made.append(program(op, rank, memory, kernel, inputs=inputs, outputs=outputs))
    return made


def test_a_ring_has_not_ended_before_the_last_chunk_is_there() -> None:
    assert problems_of(ring_programs(until=True)) == []
    found = problems_of(ring_programs(until=False))
    assert {problem.check for problem in found} == {"races"}
    assert "the end of the rank itself reads granule 32 of buffer `data`" in found[0].message


# --- form of all ------------------------------------------------------------------------------------------


def test_ranks_must_fit_together() -> None:
    good = programs("S1 Flux push", operator(N))
    for change, message in (
        ({"rank": 2}, "program 1 of 3 says that it is of rank 2 of 3"),
        ({"buffers": good[1].buffers[:-1]}, "rank 1 has other buffers than rank 0"),
        ({"operations": good[1].operations[1:2]}, "rank 1 meets other barriers than rank 0: {}, not {'all"),
        ({"operations": good[1].operations + good[1].operations[1:2]}, "2 operations are called `gemm`"),
        ({"buffers": (*good[1].buffers, Buffer("over", 0, 1))}, "buffers"),
        ({"outputs": (Content(1 << 40, 8, 0, of=None),)}, "is not inside one buffer"),
    ):
        found = problems_of([good[0], replace(good[1], **change), good[2]])
        assert {problem.check for problem in found} == {"form"}
        assert any(message in problem.message for problem in found), message


def test_a_user_gets_all_of_it_in_one_error() -> None:
    check_programs(programs("S1 Flux push", operator(N)))
    spoilt = changed(programs("S1 Flux push", operator(N)), "sum", entry(0, "n_operands", 2))
    with pytest.raises(ProgramError, match="lacks the contribution of the rank at distance 2"):
        check_programs(spoilt)
    with pytest.raises(UsageError, match="of 65 ranks cannot be checked"):
        problems_of(spoilt * 21 + spoilt[:2])
