"""The hyperparameters of a model from the ``config.json`` that Hugging Face checkpoints carry.

Families: ``llama``, ``mistral``, ``qwen2`` (grouped-query attention, gated
feed-forward part) and ``gpt2``.  Only a dense layer is modelled: a file that
speaks of experts or of latent attention is refused, and so is another family,
rather than read as something that it is not.  Keys that do not change the
shape of a layer are not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from t3sim.config.yaml_loader import MAX_DEPTH, MAX_FILE_BYTES, MAX_NUMBER_CHARACTERS
from t3sim.errors import ConfigError, InputDataError, Problem
from t3sim.files import read_limited
from t3sim.units import LIMIT

MAX_SHOWN = 60  # characters of a value in a message

_LLAMA_KEYS = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate": "intermediate_size",
}
_GPT2_KEYS = {"hidden": "n_embd", "layers": "n_layer", "heads": "n_head", "intermediate": "n_inner"}
# Family -> name of a hyperparameter of ours -> key of the file.
KEYS: dict[str, dict[str, str]] = {
    "llama": _LLAMA_KEYS,
    "gpt2": _GPT2_KEYS,
    "mistral": _LLAMA_KEYS,
    "qwen2": _LLAMA_KEYS,
}
MAY_BE_ABSENT = ("num_key_value_heads", "head_dim", "n_inner")  # or null; then they follow from the others

EXPERT_KEYS = (
    "num_local_experts", "num_experts", "n_routed_experts", "n_shared_experts", "num_experts_per_tok",
    "moe_intermediate_size", "moe_num_experts", "moe_layer_freq",
)  # fmt: skip
LATENT_KEYS = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")


def read_hf_config(path: Path, shown: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the hyperparameters in *path* as fields of ``ModelSpec``, and the key of the file that says each.

    *shown* stands for the file in messages.  Raises ``ConfigError`` with every
    problem of the file, each with its key.
    """
    try:
        content = read_limited(path, MAX_FILE_BYTES, shown_as=shown)
    except InputDataError as error:
        raise _problem(shown, "", error.message.removeprefix(f"{shown}: ")) from None
    found = _parsed(content, shown)
    problems = list(_refused(found, shown))
    family = found.get("model_type")
    if not isinstance(family, str) or family not in KEYS:
        what = "is missing" if family is None else f"{_shown(family)} is not supported"
        problems.append(Problem(shown, 0, 0, "model_type", f"{what}; supported: {', '.join(KEYS)}"))
        raise ConfigError(problems)
    fields: dict[str, Any] = {}
    for name, key in KEYS[family].items():
        try:
            fields[name] = _count(found, key)
        except ValueError as error:
            problems.append(Problem(shown, 0, 0, key, str(error)))
    if not problems:
        problems += _contradictions(fields, KEYS[family], shown)
    if problems:
        raise ConfigError(problems)
    sources = {name: KEYS[family][name] for name, value in fields.items() if value is not None}
    is_gpt2 = family == "gpt2"
    return {**fields, "gated": not is_gpt2, "dropout": is_gpt2, "whole_heads": True}, sources


def _parsed(content: bytes, shown: str) -> dict[str, Any]:
    """Return the object in the file, in which no key stands twice and no number is NaN or infinite."""
    try:
        text = content.decode("utf-8-sig")
        found = json.loads(
            text, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant, parse_int=_short_integer
        )
    except json.JSONDecodeError as error:
        raise ConfigError(Problem(shown, error.lineno, error.colno, "", f"not valid JSON: {error.msg}")) from None
    except UnicodeDecodeError as error:
        raise _problem(shown, "", f"byte 0x{content[error.start]:02x} is not UTF-8") from None
    except RecursionError:
        raise _problem(shown, "", f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise _problem(shown, "", f"not valid JSON: {' '.join(str(error).split())[:200]}") from None
    if _is_deeper(found, MAX_DEPTH):
        raise _problem(shown, "", f"nested deeper than {MAX_DEPTH} levels")
    if not isinstance(found, dict):
        raise _problem(shown, "", f"holds {_kind(found)}, an object is needed")
    return found


def _refused(found: dict[str, Any], shown: str) -> Iterable[Problem]:
    """What makes the layer another one than is modelled; null means that the model has no such thing."""
    for keys, what in ((EXPERT_KEYS, "a mixture of experts"), (LATENT_KEYS, "latent attention (MLA)")):
        for key in keys:
            if found.get(key) is not None:
                yield Problem(shown, 0, 0, key, f"{what} is not modelled")


def _count(found: dict[str, Any], key: str) -> int | None:
    """Return the whole number above 0 under *key*, None if it may be and is absent."""
    value = found.get(key)
    if value is None:
        if key in MAY_BE_ABSENT:
            return None
        raise ValueError("is null, a whole number is needed" if key in found else "is missing")
    if type(value) is not int:
        raise ValueError(f"found {_shown(value)}, a whole number is needed")
    if not 0 < value < LIMIT:
        raise ValueError(f"found {_shown(value)}, must be above 0 and below 2^62")
    return value


def _contradictions(fields: dict[str, Any], keys: dict[str, str], shown: str) -> Iterable[Problem]:
    hidden, heads, kv_heads = fields["hidden"], fields["heads"], fields.get("kv_heads")
    if fields.get("head_dim") is None and hidden % heads:
        advice = "; give `head_dim`" if "head_dim" in keys else ""
        yield Problem(shown, 0, 0, keys["heads"], f"is {heads}, must divide `{keys['hidden']}`, {hidden}{advice}")
    if kv_heads is not None and heads % kv_heads:
        yield Problem(shown, 0, 0, keys["kv_heads"], f"is {kv_heads}, must divide `{keys['heads']}`, {heads}")


def _is_deeper(value: Any, limit: int) -> bool:
    level: list[Any] = [value]
    for _ in range(limit):
        level = [child for node in level for child in _children(node)]
        if not level:
            return False
    return any(isinstance(node, (dict, list)) for node in level)


def _children(node: Any) -> Iterable[Any]:
    return node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"key `{name[:MAX_SHOWN]}` appears twice")
            seen.add(name)
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _short_integer(text: str) -> int:
    if len(text) > MAX_NUMBER_CHARACTERS:
        raise ValueError(f"a number of {len(text)} characters is too long")
    return int(text)


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    quoted = f"`{text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + '...'}`"
    return f"the text {quoted}" if isinstance(value, str) else quoted


def _problem(shown: str, key: str, message: str) -> ConfigError:
    return ConfigError(Problem(shown, 0, 0, key, message))


__all__ = ["KEYS", "read_hf_config"]
