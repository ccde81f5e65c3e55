"""Which programs are the same, and where two of them differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from t3sim.program.compare import difference, digest
from t3sim.program.operations import Post, Program
from t3sim.program.plan import Part
from tests.program.spoil import changed, with_entry, with_stores
from tests.program.strategies import operator, programs

N = 3


def differing(programs_of: list[Program], operation: str, change: object) -> str | None:
    """What is said if rank 2 runs another *operation*."""
    spoilt = changed(programs_of, operation, change)
    return difference([*programs_of[:2], spoilt[2]])


def test_every_field_of_an_operation_counts() -> None:
    good = programs("S9 engine scatter", operator(N))
    for operation, change, message in (
        ("gemm", lambda one: replace(one, order=one.order[::-1]), "`gemm`, order[0] is 11 on rank 2 and 0 on rank 0"),
        ("gemm", lambda one: with_stores(one, pitch=one.stores.pitch + 1), "`gemm`, stores.pitch[0] is 5 on rank 2"),
        ("gemm", lambda one: replace(one, units=(0, 2)), "`gemm`, units is 2 on rank 2 and None on rank 0"),
        ("gemm", lambda one: replace(one, posts=(Post(0),)), "`gemm`, posts is 1 on rank 2 and 0 on rank 0"),
        ("scatter", lambda one: with_entry(one, "steps", 1, "source", 2), "`scatter`, steps[1, 0] is "),
        ("sum", lambda one: replace(one, flags=(2, 1)), "`sum`, flags[0] is 2 on rank 2 and 1 on rank 0"),
        ("sum", lambda one: replace(one, name="total"), "rank 2 runs `total`, and rank 0 runs `sum`"),
    ):
        assert message in (differing(good, operation, change) or "")
        assert digest(changed(good, operation, change)[0]) != digest(good[0])
    assert difference(good) is None


def test_a_program_left_short_differs() -> None:
    good = programs("S1 Flux push", operator(N))
    short = replace(good[2], operations=good[2].operations[:-1])
    assert difference([*good[:2], short]) == "rank 2 has 3 operations, and rank 0 has 4"
    other_kind = replace(good[2], operations=(*good[2].operations[:-1], good[2].operations[2]))
    said = difference([*good[:2], other_kind])
    assert said == "operation `sum`, kind is 'Barrier' on rank 2 and 'Moves' on rank 0"


def test_what_data_mean_does_not_count_unless_asked_for() -> None:
    good = programs("S1 Flux push", operator(N))
    other = changed(good, "gemm", lambda one: replace(one, first_chunk=2))[1]
    assert difference([good[0], other, good[2]]) is None
    assert "first_chunk is 2 on rank 1 and 0 on rank 0" in str(difference([good[0], other, good[2]], meaning=True))
    assert digest(good[0]) == digest(other) == digest(replace(good[0], outputs=()))


def test_equal_parts_have_one_key() -> None:
    def part(name: str, **more: object) -> Part:
        return Part("fused", name, tuple(programs("T3", operator(N))), **more)

    assert part("one").key == part("other").key
    assert part("one").key != part("one", is_arbitrated=True).key
    assert part("one").key != Part("fused", "one", tuple(programs("T3", operator(N, staggered=False)))).key
    assert part("one").difference is None


def test_arrays_of_another_kind_differ() -> None:
    good = programs("T3", operator(N))
    narrow = differing(good, "gemm", lambda one: replace(one, order=one.order.astype(np.int32)))
    assert narrow == "operation `gemm`, order is [('', '<i4')] (12,) on rank 2 and [('', '<i8')] (12,) on rank 0"
