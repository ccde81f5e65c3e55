"""The experts of public models as layers of their own, and the GEMMs beside them, through experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from t3sim.config.experts import ExpertsSpec
from t3sim.errors import ConfigError
from t3sim.experiment.planning.plan import load_experiment
from t3sim.workload.models import named_model
from t3sim.workload.moe import exchanged_bytes, experts_on, gemms_of, shared_gemms_of, weight_bytes
from t3sim.workload.routings import routing_of

CONFIGS = Path(__file__).parent / "data" / "configs"
DEEPSEEK = str(CONFIGS / "deepseek-v3.2.json")
# Experts, experts of a token, hidden size, intermediate size, groups, types of rows and weights, as the files say.
LAYERS: dict[str, tuple[Any, ...]] = {
    "deepseek-v3.2": (256, 8, 7168, 2048, (8, 4), "fp8", None),
    "gpt-oss-120b": (128, 4, 2880, 2880, (None, None), "bf16", "mxfp4"),
    "kimi-k2.5-nvfp4": (384, 8, 7168, 2048, (8, 4), "fp16", None),
    "llama-4-maverick-17b-128e-instruct": (128, 1, 5120, 8192, (None, None), "bf16", None),
    "minimax-m2.5": (256, 8, 3072, 1536, (None, None), "fp8", None),
    "mixtral-8x22b-v0.1": (8, 2, 6144, 16384, (None, None), "bf16", None),
    "qwen3-235b-a22b": (128, 8, 4096, 1536, (None, None), "bf16", None),
}


def experts(name: str, gpus: int = 8, **given: Any) -> ExpertsSpec:
    model = named_model(str(CONFIGS / f"{name}.json")).with_sublayer("MoE")
    return experts_on(model.model_copy(update={"tokens": 1024}), gpus, **given)


@pytest.mark.parametrize("name", LAYERS)
def test_experts_are_those_of_the_file(name: str) -> None:
    one = experts(name)
    sizes = (one.n_experts, one.top_k, one.hidden, one.intermediate, (one.groups, one.top_groups))
    assert (*sizes, one.element, one.weights) == LAYERS[name]
    assert (one.tokens_per_gpu, one.ep) == (128, 8)


def test_every_family_of_the_configurations_has_its_experts() -> None:
    """Files with experts are placed on as many GPUs as their experts allow, up to eight."""
    found = []
    for path in sorted(CONFIGS.glob("*.json")):
        model = named_model(str(path)).with_sublayer("MoE")
        if model.moe is not None:
            gpus = next(n for n in (8, 4, 2, 1) if model.moe.experts % n == 0)
            found.append(experts_on(model.model_copy(update={"tokens": 64}), gpus).n_experts)
    assert len(found) >= 15
    assert min(found) >= 8


def test_what_a_gpu_of_deepseek_computes_holds_and_sends() -> None:
    one = experts("deepseek-v3.2")
    first, second = gemms_of(one, 32)
    assert ((first.m, first.n, first.k), (second.m, second.n, second.k)) == ((32, 4096, 7168), (32, 7168, 2048))
    assert [(gemm.m, gemm.n, gemm.k) for gemm in shared_gemms_of(one)] == [(128, 4096, 7168), (128, 7168, 2048)]
    assert weight_bytes(one) == 33 * 3 * 7168 * 2048
    remote = 128 * 4 - 64  # each token at 4 of 8 GPUs, in half of all cases its own
    assert exchanged_bytes(one, routing_of(one)) == (remote * 7168, remote * 7168 * 2)


def test_experts_that_cannot_be_placed() -> None:
    with pytest.raises(ValueError, match="ep is 7"):
        experts("gpt-oss-120b", 7)


def planned(**workload: Any) -> Any:
    given = {"name": "e", "machine": "h200", "workload": workload, "strategy": "sequential"}
    return load_experiment(given).points[0].workload


@pytest.mark.parametrize(("sublayer", "shape", "tp"), [
    ("q_a", (4096, 1536, 7168), 1), ("q_b", (4096, 3072, 1536), 1), ("kv_a", (4096, 576, 7168), 1),
    ("kv_b", (4096, 4096, 512), 1), ("shared FC-1", (4096, 512, 7168), 1), ("shared_fc_2", (4096, 7168, 256), 8),
])  # fmt: skip
def test_gemms_of_latent_attention_and_shared_experts(sublayer: str, shape: tuple[int, ...], tp: int) -> None:
    """Only the second GEMM of shared experts has outputs to sum."""
    found = planned(model=DEEPSEEK, sublayer=sublayer, tp=8, tokens=4096, group=2)
    assert (found.gemm.m, found.gemm.n, found.gemm.k) == shape
    assert (found.tp, found.operator, found.gemm.element) == (tp, "gemm-rs", "fp8")


@pytest.mark.parametrize(("workload", "key"), [
    ({"sublayer": "q_a", "operator": "gemm-rs"}, "workload.operator"),
    ({"sublayer": "shared FC-1", "group": 1}, "workload.sublayer"),
    ({"sublayer": "q_b", "tp": 7}, "workload.tp"),
])  # fmt: skip
def test_projections_that_are_not_there(workload: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as error:
        planned(**{"model": DEEPSEEK, "tp": 8, "tokens": 4096, **workload})
    assert error.value.problems[0].key == key
