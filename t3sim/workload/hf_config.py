"""The hyperparameters of a model from the ``config.json`` that Hugging Face checkpoints carry.

Families: ``llama``, ``mistral``, ``qwen2`` (grouped-query attention, gated feed-forward part) and ``gpt2``.  Only a
dense layer is modelled: a file that speaks of experts or of latent attention is refused, and so is another family,
rather than read as something that it is not.  Keys that do not change the shape of a layer are not looked at.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from t3sim.config.machine import Count, Spec
from t3sim.config.trees import Problems, found_words, validated
from t3sim.config.yaml_loader import MAX_FILE_BYTES, Position, tree_of
from t3sim.errors import ConfigError, InputDataError
from t3sim.files import parse_json, read_limited


class _File(Spec):
    """What a file of a family says of a layer; what may be null or absent follows from the others."""

    model_config = ConfigDict(extra="ignore")


class _Llama(_File):
    hidden: Count = Field(alias="hidden_size")
    layers: Count = Field(alias="num_hidden_layers")
    heads: Count = Field(alias="num_attention_heads")
    kv_heads: Count | None = Field(None, alias="num_key_value_heads")
    head_dim: Count | None = Field(None, alias="head_dim")
    intermediate: Count = Field(alias="intermediate_size")


class _Gpt2(_File):
    hidden: Count = Field(alias="n_embd")
    layers: Count = Field(alias="n_layer")
    heads: Count = Field(alias="n_head")
    intermediate: Count | None = Field(None, alias="n_inner")


FAMILIES: dict[str, type[_File]] = {"llama": _Llama, "gpt2": _Gpt2, "mistral": _Llama, "qwen2": _Llama}

# Keys of a layer that is not modelled; null means that the model has no such thing.
NOT_MODELLED = {
    "a mixture of experts": (
        "num_local_experts", "num_experts", "n_routed_experts", "n_shared_experts", "num_experts_per_tok",
        "moe_intermediate_size", "moe_num_experts", "moe_layer_freq",
    ),
    "latent attention (MLA)": ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
}  # fmt: skip


def read_hf_config(path: Path, shown: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the hyperparameters in *path* as fields of ``ModelSpec``, and the key of the file that says each.

    *shown* stands for the file in messages.  Raises ``ConfigError`` with every problem of the file, each with its key.
    """
    at = Position(shown)
    try:
        found = parse_json(read_limited(path, MAX_FILE_BYTES, shown_as=shown))
    except (InputDataError, ValueError) as error:
        raise ConfigError(at.problem("", str(error).removeprefix(f"{shown}: "))) from None
    problems = Problems()
    for what, absent in NOT_MODELLED.items():
        for key in absent:
            if found.get(key) is not None:
                problems.add(at, key, f"{what} is not modelled")
    family = found.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        what = "is missing" if family is None else f"{found_words(family)} is not supported"
        problems.add(at, "model_type", f"{what}; supported: {', '.join(FAMILIES)}")
        raise ConfigError(problems)
    model = FAMILIES[family]
    keys = {name: str(field.alias) for name, field in model.model_fields.items()}
    layer = problems.caught(validated, model, tree_of(found, at), "")
    fields = {} if layer is None else layer.model_dump()
    for key, message in _contradictions(fields, keys) if fields else ():
        problems.add(at, key, message)
    problems.raise_any()
    is_gpt2 = family == "gpt2"
    sources = {name: keys[name] for name, value in fields.items() if value is not None}
    return {**fields, "gated": not is_gpt2, "dropout": is_gpt2, "whole_heads": True}, sources


def _contradictions(fields: dict[str, Any], keys: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the rules of ``ModelSpec`` that the file breaks, in the words of the file: key and message."""
    hidden, heads, kv_heads = fields["hidden"], fields["heads"], fields.get("kv_heads")
    if fields.get("head_dim") is None and hidden % heads:
        advice = "; give `head_dim`" if "head_dim" in keys else ""
        yield keys["heads"], f"is {heads}, must divide `{keys['hidden']}`, {hidden}{advice}"
    if kv_heads is not None and heads % kv_heads:
        yield keys["kv_heads"], f"is {kv_heads}, must divide `{keys['heads']}`, {heads}"
