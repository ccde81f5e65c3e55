"""``config.json`` of Hugging Face models: what is read, what is refused, and in which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from t3sim.config.experiment import GemmShape, ModelSpec
from t3sim.errors import ConfigError
from t3sim.workload.hf_config import MAX_CONFIG_BYTES, read_hf_config
from t3sim.workload.models import named_model
from t3sim.workload.sublayers import SUBLAYERS, gemm_of

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "rms_norm_eps": 1e-05, "rope_scaling": None, "torch_dtype": "bfloat16",
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 1600, "n_inner": None, "n_layer": 48, "n_head": 25, "resid_pdrop": 0.1}
TOKENS = 4096


def read(content: str | bytes | dict[str, Any], folder: Path) -> dict[str, Any]:
    text = json.dumps(content) if isinstance(content, dict) else content
    path = folder / "config.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_hf_config(path, "c.json").groups[0]


def spec(content: dict[str, Any], folder: Path) -> ModelSpec:
    path = folder / "x" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return named_model(str(path)).spec.model_copy(update={"tokens": TOKENS})


def changed(base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**base, **changes}


def without(base: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in base.items() if key not in keys}


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_grouped_queries_and_a_gate(family: str, tmp_path: Path) -> None:
    """Local K on 8 GPUs: 4 query heads and one of keys and of values, each 128 wide; 14336 / 8 behind a gate."""
    found = spec(changed(LLAMA, model_type=family), tmp_path)
    assert (found.name, found.layers, found.gated, found.dropout) == ("x", 32, True, False)
    k = {name: gemm_of(found, name, 8).k for name in SUBLAYERS}
    assert k == {"OP": 4 * 128, "FC-2": 1792, "FC-1": 2 * 1792, "IP": (4 + 2) * 128}
    assert gemm_of(found, "OP", 8) == GemmShape(m=TOKENS, n=4096, k=512, element="bf16")


def test_a_head_may_be_wider_than_its_share_of_hidden(tmp_path: Path) -> None:
    found = spec(changed(LLAMA, head_dim=256), tmp_path)
    assert gemm_of(found, "OP", 8).k == 4 * 256
    assert gemm_of(found, "IP", 8).k == (4 + 2) * 256


def test_key_heads_are_replicated_on_more_gpus_than_there_are(tmp_path: Path) -> None:
    """On 32 GPUs each has one query head, one of keys and one of values."""
    assert gemm_of(spec(LLAMA, tmp_path), "IP", 32).k == 3 * 128
    assert gemm_of(spec(LLAMA, tmp_path), "IP", 16).k == (2 + 2) * 128


@pytest.mark.parametrize(
    ("content", "sublayer", "tp", "message"),
    [
        (LLAMA, "OP", 3, r"x OP: heads \(32\) is not divisible by tp \(3\), remainder 2"),
        (LLAMA, "FC-2", 5, r"x FC-2: intermediate \(14336\) is not divisible by tp \(5\), remainder 1"),
        (changed(LLAMA, num_key_value_heads=16), "IP", 32, None),
        (changed(LLAMA, num_attention_heads=48, num_key_value_heads=12, head_dim=64), "IP", 8, r"kv_heads \(12\)"),
        (changed(LLAMA, num_attention_heads=48, num_key_value_heads=6, head_dim=64), "IP", 16, "not a multiple of kv"),
        (GPT2, "IP", 2, r"x IP: heads \(25\) is not divisible by tp \(2\), remainder 1"),
    ],
)
def test_heads_are_whole(content: dict[str, Any], sublayer: str, tp: int, message: str | None, tmp_path: Path) -> None:
    found = spec(content, tmp_path)
    if message is None:
        assert gemm_of(found, sublayer, tp).k > 0
        return
    with pytest.raises(ValueError, match=message):
        gemm_of(found, sublayer, tp)


WAYS = "docs/users/workloads.md lists the families; a YAML file with hidden, layers and so on describes any other"
REFUSED: dict[str, tuple[str | bytes | dict[str, Any], list[str]]] = {
    "another family": (
        changed(LLAMA, model_type="bert", architectures=None),
        [f"c.json: model_type: `bert` is not supported; {WAYS}"],
    ),
    "no family": (
        without(LLAMA, "model_type", "architectures"),
        [f"c.json: model_type: is missing; {WAYS}"],
    ),
    "a family that is no text": (
        changed(LLAMA, model_type=["llama"], architectures=None),
        [f"c.json: model_type: a list is not supported; {WAYS}"],
    ),
    "nothing that is simulated": (
        changed(LLAMA, model_type="mamba"),
        ["c.json: model_type: state-space layers: not simulated; nothing is left"],
    ),
    "missing keys": (
        without(LLAMA, "hidden_size", "num_attention_heads"),
        ["c.json: hidden_size: is missing", "c.json: num_attention_heads: is missing"],
    ),
    "null": (
        changed(LLAMA, intermediate_size=None),
        ["c.json: intermediate_size: found nothing, a whole number is needed"],
    ),
    "a text": (
        changed(LLAMA, hidden_size="4096"),
        ["c.json: hidden_size: found the text `4096`, a whole number is needed"],
    ),
    "a fraction": (
        changed(LLAMA, hidden_size=4096.0),
        ["c.json: hidden_size: found `4096.0`, a whole number is needed"],
    ),
    "true": (
        changed(LLAMA, num_hidden_layers=True),
        ["c.json: num_hidden_layers: found `true`, a whole number is needed"],
    ),
    "an object": (changed(LLAMA, head_dim={}), ["c.json: head_dim: found a mapping, a whole number is needed"]),
    "zero": (changed(LLAMA, hidden_size=0), ["c.json: hidden_size: found `0`, must be above 0"]),
    "negative": (changed(GPT2, n_inner=-1), ["c.json: n_inner: found `-1`, must be above 0"]),
    "2^62": (
        changed(GPT2, n_embd=2**62),
        ["c.json: n_embd: found `4611686018427387904`, must be below 2^62"],
    ),
    "heads that do not divide": (
        changed(LLAMA, num_attention_heads=24, num_key_value_heads=7),
        [
            "c.json: num_attention_heads: is 24, must divide `hidden_size`, 4096; give `head_dim`",
            "c.json: num_key_value_heads: is 7, must divide `num_attention_heads`, 24",
        ],
    ),
    "heads of gpt2 that do not divide": (
        changed(GPT2, n_head=24),
        ["c.json: n_head: is 24, must divide `n_embd`, 1600"],
    ),
    "duplicate": (
        '{"model_type": "llama", "hidden_size": 1, "hidden_size": 2}',
        ["c.json: not valid JSON: key `hidden_size` appears twice"],
    ),
    "NaN": (
        '{"model_type": "llama", "hidden_size": NaN, "num_hidden_layers": 1, "num_attention_heads": 1}',
        ["c.json: hidden_size: found `nan`, a whole number is needed"],
    ),
    "infinity": (
        '{"model_type": "gpt2", "n_embd": -Infinity, "n_layer": 1, "n_head": 1}',
        ["c.json: n_embd: found `-inf`, a whole number is needed"],
    ),
    "too large for a float": (
        '{"model_type": "gpt2", "n_embd": 1e999, "n_layer": 1, "n_head": 1}',
        ["c.json: n_embd: found `inf`, a whole number is needed"],
    ),
    "5000 digits": (
        f'{{"model_type": "gpt2", "n_embd": {"9" * 5000}}}',
        ["c.json: not valid JSON: a number of 5000 characters is too long"],
    ),
    "not JSON": (
        '{"n_layer": 1,\nn_head: 2}',
        ["c.json: not valid JSON: Expecting property name enclosed in double quotes: line 2 column 1 (char 15)"],
    ),
    "cut off": (
        '{"model_type": "lla',
        ["c.json: not valid JSON: Unterminated string starting at: line 1 column 16 (char 15)"],
    ),
    "empty": ("", ["c.json: not valid JSON: Expecting value: line 1 column 1 (char 0)"]),
    "a list": ("[]", ["c.json: must hold an object"]),
    "not UTF-8": (b'{"model_type": "\xff"}', ["c.json: byte 0xff is not UTF-8"]),
    "nested": ("[" * 60 + "]" * 60, ["c.json: nested deeper than 50 levels"]),
    "nested until the parser gives up": ("[" * 100_000, ["c.json: nested deeper than 50 levels"]),
    "larger than the limit": (b" " * (MAX_CONFIG_BYTES + 1), ["c.json: 16777217 bytes; at most 16777216 are read"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_this_message(name: str, tmp_path: Path) -> None:
    content, lines = REFUSED[name]
    with pytest.raises(ConfigError) as error:
        read(content, tmp_path)
    assert str(error.value).splitlines() == lines


@pytest.mark.parametrize(
    "content",
    [
        changed(LLAMA, num_experts=None, kv_lora_rank=None),
        json.dumps(changed(LLAMA, time_step_limit=[0.0, float("inf")], other=float("nan"))),
        json.dumps(changed(LLAMA, quantization_config={"ignore": [f"model.layers.{i}.x" for i in range(100_000)]})),
        changed(LLAMA, **{f"more_{i}": [i] * 3 for i in range(100)}),
        b"\xef\xbb\xbf" + json.dumps(LLAMA).encode(),
        json.dumps(LLAMA, indent="\t"),
    ],
    ids=["experts that are null", "infinity in another key", "3 MB", "other keys", "byte order mark", "tabs"],
)
def test_accepted(content: Any, tmp_path: Path) -> None:
    assert read(content, tmp_path)["hidden"] == 4096


def test_leaves_name_the_key_and_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    leaf = named_model(str(path)).leaves["heads"]
    assert (leaf.value, leaf.source, leaf.position.file) == (32, "`num_attention_heads`", str(path))
