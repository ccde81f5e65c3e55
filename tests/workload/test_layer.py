"""The operators of a layer: closed forms of their FLOPs and bytes, and what must not shrink when a layer grows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t3sim.config.experiment import AttentionKind, LayerKind, LayerSpec, ModelSpec, OperatorsSpec
from t3sim.workload.layer import Operator, other_operators, sublayers_of
from t3sim.workload.models import named_model
from t3sim.workload.sublayers import gemm_of, slice_of

BATCH, SEQUENCE, HIDDEN, HEADS = 4, 256, 1024, 16
TOKENS = BATCH * SEQUENCE
# A layer without query groups or a gate: 24 B s h^2 for its GEMMs, 4 B s^2 h for attention (Narayanan et al.,
# arXiv:2104.04473, appendix), and twice as much again in the backward pass.
FORWARD_FLOPS = 24 * TOKENS * HIDDEN**2 + 4 * TOKENS * SEQUENCE * HIDDEN


def model(**changes: Any) -> ModelSpec:
    sizes = {"hidden": HIDDEN, "tokens": TOKENS, "sequence": SEQUENCE, "heads": HEADS}
    return ModelSpec(**{"name": "m", "layers": 1, "tensor_parallel": (1,), **sizes, **changes})


LLAMA = model(kv_heads=4, intermediate=3584, gated=True, whole_heads=True, dropout=False)


def operators(
    spec: ModelSpec, tp: int, kind: LayerKind = "training", attention: AttentionKind = "unfused"
) -> list[Operator]:
    shares = OperatorsSpec(elementwise=1.0, norm=1.0, softmax=1.0, fused_attention=1.0, kv_cache=1.0)
    return other_operators(LayerSpec(kind=kind, attention=attention, operators=shares, model=spec), tp)


def flops(spec: ModelSpec, tp: int, kind: LayerKind, attention: AttentionKind = "unfused") -> float:
    """FLOPs of a whole layer on all GPUs: the GEMMs of its sublayers, and everything else."""
    gemms = [gemm_of(spec, name, tp) for name in sublayers_of(kind)]
    others = sum(operator.flops for operator in operators(spec, tp, kind, attention))
    return tp * (sum(2 * gemm.m * gemm.n * gemm.k for gemm in gemms) + others)


def check_flops(tp: int) -> None:
    """Fail unless a layer computes what the closed forms say, on any number of GPUs."""
    assert flops(model(), tp, "prompt") == FORWARD_FLOPS
    assert flops(model(), tp, "prompt", "fused") == FORWARD_FLOPS
    assert flops(model(), tp, "training") == 3 * FORWARD_FLOPS
    scores = 2 * TOKENS * SEQUENCE * HIDDEN  # fused attention computes them once more on the way back
    assert flops(model(), tp, "training", "fused") == 3 * FORWARD_FLOPS + scores


@pytest.mark.parametrize("tp", [1, 2, 8, 16])
def test_flops_are_those_of_the_closed_form(tp: int) -> None:
    check_flops(tp)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_flops_of_grouped_queries_and_a_gate(tp: int) -> None:
    """A gated layer has three feed-forward GEMMs; keys and values are as wide as their heads."""
    kv = HIDDEN // HEADS * 4
    gemms = 2 * TOKENS * HIDDEN * (2 * HIDDEN + 2 * kv + 3 * 3584)
    assert flops(LLAMA, tp, "prompt") == gemms + 4 * TOKENS * SEQUENCE * HIDDEN
    assert flops(LLAMA, tp, "training") == 3 * flops(LLAMA, tp, "prompt")


def test_replicated_heads_are_computed_on_every_gpu() -> None:
    """Four key and value heads on 16 GPUs: every GPU has one, so the QKV GEMM is not cut in 16."""
    (qkv,) = [operator for operator in operators(LLAMA, 16) if operator.name == "QKV"]
    assert qkv.flops == 2 * TOKENS * HIDDEN * (HIDDEN // HEADS) * (1 + 2)


def check_score_traffic(tp: int) -> None:
    """Fail unless unfused attention moves the matrices of scores as often as the module says, and fused never."""
    n_scores = BATCH * HEADS * SEQUENCE**2 / tp
    grown = model(heads=2 * HEADS)  # twice the scores, everything else equal
    for kind, n_fp16, n_masks in (("prompt", 4, 0), ("training", 4 + 2 + 9, 2)):
        moved = [sum(o.n_bytes for o in operators(spec, tp, kind)) for spec in (model(), grown)]  # type: ignore[arg-type]
        assert moved[1] - moved[0] == (2 * n_fp16 + n_masks) * n_scores
        fused = [sum(o.n_bytes for o in operators(spec, tp, kind, "fused")) for spec in (model(), grown)]  # type: ignore[arg-type]
        assert fused[0] == fused[1]


@pytest.mark.parametrize("tp", [1, 4])
def test_only_unfused_attention_moves_scores(tp: int) -> None:
    """Forward: written, read, written, read; with dropout read and written once more. Backward: nine times."""
    check_score_traffic(tp)


def test_bytes_of_the_operators_that_are_easy_to_count() -> None:
    t, h = TOKENS, HIDDEN
    found = {(o.name, o.phase): o for o in operators(model(), 8)}
    assert found["norm 1", "forward"].n_bytes == 2 * (2 * t * h)
    assert found["dropout, residual 2", "forward"].n_bytes == 2 * (3 * t * h) + t * h
    assert found["norm 2", "backward"].n_bytes == 2 * (4 * t * h)
    assert found["activation", "forward"].n_bytes == 2 * (2 * t * 4 * h // 8)
    assert found["FC-1", "forward"].n_bytes == 2 * (t * h + h * 4 * h // 8 + t * 4 * h // 8)
    assert found["optimizer", "update"].n_bytes == 28 * 12 * h * h // 8
    assert found["optimizer", "update"].flops == 0


def test_a_prompt_has_neither_dropout_nor_gradients() -> None:
    prompt = operators(model(), 8, "prompt")
    assert {operator.phase for operator in prompt} == {"forward"}
    assert [operator for operator in prompt if operator.name.startswith("attention dropout")] == []
    (residual,) = [operator for operator in prompt if operator.name.endswith("residual 1")]
    assert residual.n_bytes == 2 * (3 * TOKENS * HIDDEN)
    assert sublayers_of("prompt") == ("OP", "FC-2")


def check_monotone(smaller: list[Operator], larger: list[Operator]) -> None:
    """Fail unless no operator of *larger* computes or moves less than the same one of *smaller*."""
    assert [operator.name for operator in smaller] == [operator.name for operator in larger]
    for low, high in zip(smaller, larger, strict=True):
        assert low.flops <= high.flops, low.name
        assert low.n_bytes <= high.n_bytes, low.name


@settings(max_examples=60)
@given(
    field=st.sampled_from(["hidden", "heads", "tokens", "sequence", "intermediate"]),
    factor=st.sampled_from([2, 4]),
    attention=st.sampled_from(["unfused", "fused"]),
    tp=st.sampled_from([1, 2, 4]),
)
def test_a_larger_layer_is_never_less_work(field: str, factor: int, attention: AttentionKind, tp: int) -> None:
    base = model(intermediate=4 * HIDDEN)
    grown = model(**{**base.model_dump(), field: factor * getattr(base, field)})
    check_monotone(operators(base, tp, attention=attention), operators(grown, tp, attention=attention))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": None}, "m: attention needs the number of heads and the length of a sequence"),
        ({"sequence": None}, "m: attention needs the number of heads and the length of a sequence"),
        ({"sequence": 300}, r"m: tokens \(1024\) are not a whole number of sequences of 300"),
        ({"hidden": 1008}, r"m OP: hidden \(1008\) is not divisible by tp \(32\)"),
    ],
)
def test_a_layer_that_cannot_be_counted(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        operators(model(**changes), 32)


def test_slice_is_what_the_gemms_multiply() -> None:
    for spec, tp in ((named_model("T-NLG").spec, 16), (LLAMA, 2), (LLAMA, 8)):
        local = slice_of(spec, tp)
        assert local.query == gemm_of(spec, "OP", tp).k
        assert local.query + 2 * local.key_value == gemm_of(spec, "IP", tp).k
        assert local.feed_forward == gemm_of(spec, "FC-2", tp).k
