"""Routings: counts by hand, what each law keeps, and which GPUs are alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from t3sim.config.experts import ExpertsSpec, RoutingSpec, routing_called
from t3sim.workload.routing import DROPPED, Routing, choices_from_rows, with_capacity
from t3sim.workload.routings import routing_of

LAWS: list[dict[str, Any]] = [
    {"kind": "balanced"}, {"kind": "uniform", "seed": 5}, {"kind": "power-law", "exponent": 1.01},
    {"kind": "power-law", "exponent": 1.2, "seed": 1}, {"kind": "power-law-sampled", "exponent": 1.9},
    {"kind": "zipf", "exponent": 1.0},
]  # fmt: skip


def layer(tokens: int = 64, n_experts: int = 32, top_k: int = 4, ep: int = 8, **more: Any) -> ExpertsSpec:
    law = more.pop("routing", {"kind": "balanced"})
    sizes: dict[str, Any] = {"hidden": 64, "intermediate": 32, "tokens_per_gpu": tokens}
    return ExpertsSpec(n_experts=n_experts, top_k=top_k, ep=ep, routing=RoutingSpec(**law), **sizes, **more)


# Two GPUs, three tokens of each, two of four experts for a token: experts 0 and 1 live on GPU 0.
BY_HAND = Routing(np.array([[[0, 1], [0, 2], [3, DROPPED]], [[2, 3], [1, 0], [2, 1]]], np.int32), 4)


def test_counts_by_hand() -> None:
    assert BY_HAND.rows().tolist() == [[2, 1, 1, 1], [1, 2, 2, 1]]
    assert BY_HAND.tokens_between().tolist() == [[2, 2], [2, 2]]
    assert BY_HAND.loads().tolist() == [[3, 3], [3, 2]]
    assert BY_HAND.n_dropped == 1
    assert BY_HAND.imbalance() == pytest.approx(6 / 5.5)


def test_gpus_that_share_an_expert_all_receive_its_tokens() -> None:
    shared = Routing(np.repeat(BY_HAND.experts, 2, axis=0), 4, ep=2)
    assert shared.gpus_of_a_group == 2
    assert shared.tokens_between().tolist() == [[2, 2, 2, 2]] * 4
    assert shared.loads().tolist() == [[6, 6], [6, 6], [6, 4], [6, 4]]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law['kind']}-{law.get('exponent', '')}")
@pytest.mark.parametrize("tokens", [1, 3, 64])
def test_every_token_has_its_experts_once(law: dict[str, Any], tokens: int) -> None:
    """``Routing`` refuses a token that has an expert twice, or one that is none."""
    routing = routing_of(layer(tokens, routing=law))
    assert (routing.n_gpus, routing.tokens_per_gpu, routing.top_k, routing.n_dropped) == (8, tokens, 4, 0)
    assert routing.rows().sum(axis=1).tolist() == [4 * tokens] * 8


@pytest.mark.parametrize("groups", [{}, {"groups": 8, "top_groups": 2}, {"groups": 4, "top_groups": 3}])
@pytest.mark.parametrize("tokens", [1, 5, 64])
def test_balanced_is_as_even_as_it_can_be(tokens: int, groups: dict[str, int]) -> None:
    routing = routing_of(layer(tokens, **groups))
    of_experts = routing.rows().sum(axis=0)
    assert of_experts.max() - of_experts.min() <= 1
    if not groups:
        of_pairs = routing.rows().reshape(8, 8, -1).sum(axis=2)  # from each GPU to each
        assert of_pairs.max() - of_pairs.min() <= 1
    if tokens == 64:  # each GPU has whole rounds of all experts
        assert len(np.unique(routing.loads(), axis=0)) == 1


@pytest.mark.parametrize("law", [LAWS[0], LAWS[1], LAWS[4]], ids=lambda law: str(law["kind"]))
def test_group_limited_tokens_stay_in_their_groups(law: dict[str, Any]) -> None:
    routing = routing_of(layer(groups=8, top_groups=2, routing=law))
    groups_of_tokens = np.sort(routing.experts.reshape(-1, 4) // 4, axis=1)
    assert max(len(set(row)) for row in groups_of_tokens.tolist()) == 2


def test_another_seed_is_another_draw_and_the_same_seed_the_same() -> None:
    first, again, other = (routing_of(layer(routing={"kind": "uniform", "seed": seed})) for seed in (1, 1, 2))
    assert (first.experts == again.experts).all()
    assert (first.experts != other.experts).any()


def test_laws_order_themselves_by_skew_and_the_first_gpu_is_the_most_loaded() -> None:
    spread = [routing_of(layer(512, n_experts=256, routing=law)) for law in (LAWS[0], LAWS[1], LAWS[3], LAWS[5])]
    loads = [one.loads().sum(axis=1) for one in spread]
    assert spread[0].imbalance() == 1.0
    assert [one.imbalance() for one in spread] == sorted(one.imbalance() for one in spread)
    assert loads[2].argmax() == 0


@pytest.mark.parametrize(
    ("tokens", "n_experts", "largest"), [(64, 8, 29), (1024, 8, 380), (64, 64, 40), (8192, 32, 2032)]
)
def test_zipf_is_that_of_the_measured_grouped_gemms(tokens: int, n_experts: int, largest: int) -> None:
    """``largest`` as ``validation/experts/grouped-h200`` has it."""
    routing = routing_of(layer(tokens, n_experts, top_k=1, ep=1, routing=LAWS[5]))
    assert routing.rows().max() == largest


def test_capacity_drops_later_tokens_first() -> None:
    kept = with_capacity(np.zeros((1, 4, 1), np.int32), n_experts=2, factor=1.0)
    assert kept.ravel().tolist() == [0, 0, DROPPED, DROPPED]
    routing = routing_of(layer(routing={"kind": "zipf", "exponent": 1.0, "capacity_factor": 1.25}))
    assert routing.rows().max() == int(np.ceil(1.25 * 64 * 4 / 32))
    assert routing.n_dropped == 64 * 4 * 8 - routing.rows().sum() > 0


def test_rows_of_experts_become_tokens() -> None:
    rows = np.array([3, 0, 2, 1])
    choices = choices_from_rows(rows, tokens=3, top_k=2)
    assert np.bincount(choices.ravel(), minlength=4).tolist() == rows.tolist()
    with pytest.raises(ValueError, match="3 tokens"):
        choices_from_rows(np.array([4, 0, 1, 1]), tokens=3, top_k=2)


@pytest.mark.parametrize(("experts", "n_experts", "word"), [
    ([[[0, 4]]], 4, "no GPU"), ([[[0, -2]]], 4, "no GPU"), ([[[1, 1]]], 4, "twice"),
    ([[[0]], [[1]], [[2]]], 4, "divisible"),
])  # fmt: skip
def test_impossible_choices_are_refused(experts: list[Any], n_experts: int, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Routing(np.array(experts, np.int32), n_experts)


@pytest.mark.parametrize("text", ["balanced", "uniform", "zipf_1", "power_law_1.01", "power_law_sampled_1.9"])
def test_routings_in_tables_read_back(text: str) -> None:
    assert routing_called(text).text == text


@pytest.mark.parametrize("text", ["even", "zipf", "power_law_x", "balanced_2", "recorded", "power_law_-1"])
def test_other_words_for_routings_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="routing"):
        routing_called(text)
