"""Element types of checkpoints: every way to state them, and that none is taken for 16 bit in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from t3sim.config.experiment import OperandTypes
from t3sim.workload.checkpoint_types import checkpoint_types, types_note
from t3sim.workload.models import named_model

BF16 = {"torch_dtype": "bfloat16"}
LLAMA = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4,
}  # fmt: skip


def group(weights: Any, activations: Any = None) -> dict[str, Any]:
    one = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": one}}


# What a file says under quantization_config -> element types of weights and activations.
STATED: list[tuple[dict[str, Any], str, str]] = [
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", "fp8"),
    ({"quant_method": "fbgemm_fp8"}, "fp8", "fp8"),
    ({"quant_method": "awq", "bits": 4}, "int4", "bf16"),
    ({"quant_method": "gptq", "bits": 8}, "int8", "bf16"),
    ({"quant_method": "auto-round", "bits": 3}, "int3", "bf16"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "nf4", "bf16"),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", "int8"),
    ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", "fp8"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", "nvfp4"),
    ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "int4", "fp8"),
    ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "mixed", "mixed"),
    ({"quant_method": "modelopt"}, "unknown", "unknown"),
    ({"quant_method": "a method of tomorrow"}, "unknown", "unknown"),
    (group({"num_bits": 4, "type": "int"}), "int4", "bf16"),
    (group({"num_bits": 8, "type": "float"}, {"num_bits": 8, "type": "float"}), "fp8", "fp8"),
    (group({"num_bits": 4, "type": "float", "group_size": 16}, {"num_bits": 4, "type": "float"}), "nvfp4", "nvfp4"),
    ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32},
                                                        "input_tensors": {"dtype": "fp8_e4m3"}}}, "mxfp4", "fp8"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "weights", "activations"), STATED)
def test_a_quantised_checkpoint(said: dict[str, Any], weights: str, activations: str) -> None:
    types = checkpoint_types([{**BF16, "quantization_config": said}], None)
    assert types is not None
    assert types.feed_forward == OperandTypes(weights=weights, activations=activations)
    note = types_note(types, has_experts=False)
    assert note is not None
    assert note.startswith("quantization_config says ")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "torch.bfloat16"])
def test_16_bit_is_not_worth_a_word(dtype: str) -> None:
    assert types_note(checkpoint_types([{"dtype": dtype}], None), has_experts=True) is None
    assert checkpoint_types([{}], None) is None


def test_float32_is_said() -> None:
    note = types_note(checkpoint_types([{"torch_dtype": "float32"}], None), has_experts=False)
    assert note == "torch_dtype says float32: GEMMs are simulated with 16-bit operands"


def test_the_file_beside_counts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **BF16}), encoding="utf-8")
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside), encoding="utf-8")
    model = named_model(str(tmp_path))
    assert [note.partition(":")[0] for note in model.notes] == ["hf_quant_config.json says FP8"]
    assert model.spec.elements is not None


def test_the_file_beside_says_what_the_other_does_not() -> None:
    beside = {"quantization": {"quant_algo": "NVFP4"}}
    types = checkpoint_types([{**BF16, "quantization_config": {"quant_method": "modelopt"}}], beside)
    assert types is not None
    assert types.attention.weights == "nvfp4"


def test_only_the_cache_is_quantised() -> None:
    types = checkpoint_types([BF16], {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}})
    assert types is not None
    assert types.attention.weights == "bf16"


def test_parts_that_are_excluded_stay_in_16_bit() -> None:
    """GPT-OSS: experts in MXFP4 alone; a pattern that names attention of every layer; the first layers by name."""
    experts = checkpoint_types([{**BF16, "quantization_config": {"quant_method": "mxfp4"}}], None)
    named = {"quant_method": "fp8", "ignored_layers": ["lm_head", "model.layers.*.self_attn.o_proj"]}
    attention = checkpoint_types([{**BF16, "quantization_config": named}], None)
    first = {"quant_method": "fp8", "ignored_layers": ["model.layers.0.mlp", "model.layers.0.self_attn"]}
    one_layer = checkpoint_types([{**BF16, "quantization_config": first}], None)
    assert experts is not None
    assert attention is not None
    assert one_layer is not None
    assert [experts.attention.weights, experts.experts.weights] == ["bf16", "mxfp4"]
    assert [attention.attention.weights, attention.feed_forward.weights] == ["bf16", "fp8"]
    assert [one_layer.attention.weights, one_layer.feed_forward.weights] == ["fp8", "fp8"]
    assert "for experts" in str(types_note(experts, has_experts=True))
    assert types_note(experts, has_experts=False) is None
