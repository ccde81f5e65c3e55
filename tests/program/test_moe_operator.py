"""Rows of tokens: where each goes, and that both ends agree on it."""

from dataclasses import replace

import numpy as np
import pytest

from t3sim.errors import ModelError
from t3sim.program.moe_rows import places_of
from tests.program.test_moe_layer import operator


def test_rows_are_the_same_at_both_ends() -> None:
    op = operator("uniform", top_k=4, tokens_per_gpu=13)
    held = [op.held(rank) for rank in range(op.n)]
    for rank in range(op.n):
        sent = op.sent(rank)
        for token, choice, distance, expert, row in zip(
            sent.token, sent.choice, sent.distance, sent.expert, sent.row, strict=True
        ):
            there = held[(rank + distance) % op.n]
            found = there.token[row], there.choice[row], there.expert[row], there.distance[row]
            assert found == (token, choice, expert, -distance % op.n)


def test_copies_are_the_same_at_both_ends() -> None:
    op = operator("uniform", top_k=4)
    held = [op.copies_held(rank) for rank in range(op.n)]
    for rank in range(op.n):
        sent = op.copies_sent(rank)
        for token, distance, copy, choices in zip(sent.token, sent.distance, sent.copy, sent.choices, strict=True):
            there = held[(rank + distance) % op.n]
            assert (there.token[copy], there.choices[copy]) == (token, choices)


def test_rows_of_an_expert_are_those_of_the_routing() -> None:
    op = operator("uniform", top_k=3)
    assert [op.rows(rank) for rank in range(op.n)] == op.routing.loads().tolist()


def test_turned_all_gpus_have_the_loads_of_one() -> None:
    """Canary: of a uniform routing they have not."""
    turned = operator("uniform").turned()
    assert len({tuple(turned.rows(rank)) for rank in range(turned.n)}) == 1
    alike = operator("uniform")
    assert len({tuple(alike.rows(rank)) for rank in range(alike.n)}) > 1


def test_classes_have_the_mean_loads_of_their_gpus() -> None:
    """Class 0 the largest; as many classes as GPUs change nothing but their numbers."""
    op = operator("uniform", n_experts=16, ep=8, top_k=3)
    loads = sorted((sum(op.rows(rank)) for rank in range(op.n)), reverse=True)
    found = op.in_classes(2)
    rows = [sum(found.rows(rank)) for rank in range(op.n)]
    assert rows == rows[:2] * 4
    assert sum(rows) == sum(loads)
    every = op.in_classes(8)
    assert [sum(every.rows(rank)) for rank in range(op.n)] == loads


def test_classes_are_as_few_as_the_most_loaded_gpu_allows() -> None:
    op = operator("uniform", n_experts=16, ep=8, top_k=3)
    loose, strict = op.classes_of_load(0.9), op.classes_of_load(0.0)
    assert loose is not None
    assert loose.period == 1
    assert strict is None or strict.period > 1


def test_rows_that_come_back_have_a_place_each() -> None:
    count = np.array([3, 3, 2, 2, 2, 0, 1])
    places = places_of(count)
    every = [places.first[t] + i * places.stride[t] for t, n in enumerate(count) for i in range(n)]
    assert sorted(every) == list(range(places.n))


def test_a_gpu_has_a_slice_of_each_expert_of_its_group_and_shared_ones() -> None:
    """By hand: all GPUs of a group compute the rows of its experts, and shared ones those of their own tokens."""
    spec = {"n_experts": 8, "ep": 2, "tp": 2, "top_k": 2, "shared_intermediate": 64, "intermediate": 64}
    op = operator("uniform", **spec)
    assert (op.n, op.routing.top_k, op.routing.experts_per_gpu) == (4, 2 * 2 + 2, 4 + 2)
    given = operator("uniform", **{**spec, "shared_intermediate": None, "tp": 1, "ep": 4})
    experts = given.routing.experts
    for gpu in range(4):
        rows = [int((experts == gpu // 2 * 4 + e).sum()) for e in range(4)]
        assert op.rows(gpu) == [*rows, op.n_tokens, op.n_tokens]
    assert op.shapes()[0].n == 2 * 32


def test_slices_are_placed_before_programs_are_made() -> None:
    op = operator("uniform", ep=4)
    with pytest.raises(ModelError, match="placed"):
        replace(op, routing=replace(op.routing, ep=2))


@pytest.mark.parametrize("groups", [{}, {"groups": 8, "top_groups": 4}])
@pytest.mark.parametrize("tokens", [2, 8])
def test_turned_experts_have_the_loads_of_before(tokens: int, groups: dict[str, int]) -> None:
    """Tokens of several GPUs do not meet at the same few experts: their weights are what few tokens cost."""
    op = operator(n_experts=64, ep=8, top_k=8, tokens_per_gpu=tokens, **groups)
    assert op.routing.loads().tolist() == np.full((8, 8), tokens).tolist()
