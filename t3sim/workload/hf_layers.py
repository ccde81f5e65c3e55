"""Attention and feed-forward part of each layer of a ``config.json``, from any of the keys in use."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from t3sim.workload.hf_families import Family

# Words of `layer_types` and its like, and letters of `hybrid_override_pattern` -> what they are here.
STATE_SPACE, LINEAR, CONVOLUTION, CROSS = "state-space", "linear", "convolution", "cross"
WORDS = {
    **dict.fromkeys(("m", "mamba", "mamba2", "recurrent", "ssm", "state-space"), STATE_SPACE),
    **dict.fromkeys(("conv", "short_conv"), CONVOLUTION),
    **dict.fromkeys(("kda", "gdn", "lightning", "linear"), LINEAR),
    **dict.fromkeys(("-", "mlp"), "mlp"),
    **dict.fromkeys(("e", "moe"), "moe"),
    **dict.fromkeys(("local", "sliding", "swa"), "sliding"),
    **dict.fromkeys(("*", "full", "global", "minimax_m3_sparse", "dense"), "full"),
    "hybrid": "hybrid",
}
NOT_SIMULATED = {
    STATE_SPACE: "state-space layers", LINEAR: "linear attention", CONVOLUTION: "convolutions",
    CROSS: "attention to images",
}  # fmt: skip
LISTS_OF_MIXERS = ("layer_types", "layers_block_type", "hybrid_override_pattern", "block_types")

# Key -> what its value says of the attention of layer i of n.
Rule = Callable[[Any, int, int], str]
MIXER_RULES: dict[str, Rule] = {
    "hybrid_layer_pattern": lambda v, i, _: "sliding" if v[i] else "full",
    "attn_type_list": lambda v, i, _: "full" if v[i] else LINEAR,
    "linear_attn_config.full_attn_layers": lambda v, i, _: "full" if i + 1 in v else LINEAR,
    "full_attention_interval": lambda v, i, _: LINEAR if (i + 1) % v else "full",
    "layer_group_size": lambda v, i, n: LINEAR if (i + 1) % v and i < n // v * v else "full",
    "attn_layer_indices": lambda v, i, _: "full" if i in v else STATE_SPACE,
    "hybrid_layer_ids": lambda v, i, _: "hybrid" if i in v else STATE_SPACE,
    "full_attn_idxs": lambda v, i, _: "full" if i in v else CONVOLUTION,
    "cross_attention_layers": lambda v, i, _: CROSS if i in v else "full",
    "sliding_window_pattern": lambda v, i, _: _of_pattern(v, i),
}

# Lists that say of each layer whether it has experts.
MOE_LISTS: dict[str, Rule] = {
    "mlp_layer_types": lambda v, i, _: "dense" if v[i] == "dense" else "moe",
    "moe_layers_enum": lambda v, i, _: "moe" if i in _numbers(v) else "dense",
    "moe_layers": lambda v, i, _: "moe" if i in v else "dense",
    "moe_layer_freq": lambda v, i, _: "moe" if v[i] else "dense",
}

# Key -> whether its value lets layer i have experts; all keys that are there have to.
MOE_RULES: dict[str, Callable[[Any, int, int], bool]] = {
    "first_k_dense_replace": lambda v, i, _: i >= v,
    "num_dense_layers": lambda v, i, _: i >= v,
    "moe_layer_num_skipped": lambda v, i, _: i >= v,
    "moe_layer_freq": lambda v, i, _: i % v == 0,
    "moe_layer_frequency": lambda v, i, _: (i + 1) % v == 0,
    "decoder_sparse_step": lambda v, i, _: v > 0 and (i + 1) % v == 0,
    "interleave_moe_layer_step": lambda v, i, _: v > 0 and (i + 1) % v == 0,
    "moe_layer_interval": lambda v, i, _: (i + 1) % v == 0,
    "moe_layer_start_index": lambda v, i, _: i >= _smallest(v),
    "moe_layer_end_index": lambda v, i, n: i <= (n - 1 if _largest(v) == -1 else _largest(v)),
    "mlp_only_layers": lambda v, i, _: i not in v,
}


class Kind(NamedTuple):
    """What a layer is made of: ``full``, ``sliding``, ``hybrid`` or another mixer; ``dense``, ``moe`` or nothing."""

    mixer: str
    feed_forward: str


def lookup(found: Mapping[str, Any], key: str) -> Any:
    """Return the value at *key*, whose dots go into nested objects; None if there is none."""
    value: Any = found
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def n_listed(found: Mapping[str, Any]) -> int | None:
    """Return how many layers a list of them has, for a file that does not say their number; None without a list."""
    return next((len(value) for key in LISTS_OF_MIXERS if isinstance(value := found.get(key), str | list)), None)


def kinds_of(found: Mapping[str, Any], family: Family, n: int, *, has_experts: bool) -> tuple[list[Kind], str]:
    """Return the kind of each of *n* layers of the file *found*, completed by defaults, and the key of attention.

    Raises ``ValueError`` with the key and what is wrong with it.
    """
    key, mixers = _mixers(found, family, n)
    kinds = []
    for i, mixer in enumerate(mixers):
        forward = _feed_forward(found, i, n) if has_experts else "dense"
        if mixer in ("mlp", "moe"):
            kinds.append(Kind("", "dense" if mixer == "mlp" else "moe"))
        else:
            is_bare = family.one_part or (family.bare_mixers and mixer in NOT_SIMULATED)
            kinds.append(Kind(mixer, "" if is_bare else forward))
    return kinds, key


def _mixers(found: Mapping[str, Any], family: Family, n: int) -> tuple[str, list[str]]:
    for key in LISTS_OF_MIXERS:
        value = found.get(key)
        if isinstance(value, str | list) and value:
            if key == "block_types":  # a pattern that repeats
                value = [value[i % len(value)] for i in range(n)]
            if len(value) < n:  # more of them are layers of multi-token prediction
                raise ValueError(f"{key}: has {len(value)} layers, `num_hidden_layers` is {n}")
            return key, [_word(str(one)) for one in value[:n]]
    for key, rule in MIXER_RULES.items():
        value = lookup(found, key)
        if value not in (None, [], 0):
            return key, [_ruled(key, rule, value, i, n) for i in range(n)]
    if found.get("attn_layer_period") is not None:
        period, offset = found["attn_layer_period"], found.get("attn_layer_offset", 0)
        at = _ruled("attn_layer_period", lambda v, *_: offset % v, period, 0, n)
        return "attn_layer_period", ["full" if i % period == int(at) else STATE_SPACE for i in range(n)]
    if family.one_part and family.mixer == "full":
        raise ValueError("hybrid_override_pattern: is missing: which layers have attention")
    return "", [family.mixer] * n


def _feed_forward(found: Mapping[str, Any], i: int, n: int) -> str:
    for key, rule in MOE_LISTS.items():
        value = found.get(key)
        if isinstance(value, list) or (isinstance(value, str) and value):
            return str(_ruled(key, rule, value, i, n))
    if found.get("expert_layer_period") is not None:
        offset = found.get("expert_layer_offset", 0)
        if not _ruled("expert_layer_period", lambda v, i, _: i % v == offset, found["expert_layer_period"], i, n):
            return "dense"
    for key, allows in MOE_RULES.items():
        value = found.get(key)
        if value is not None and not _ruled(key, allows, value, i, n):
            return "dense"
    return "moe"


def _word(text: str) -> str:
    word = text.lower()
    if word in WORDS:
        return WORDS[word]
    if "attention" not in word:
        return word
    return LINEAR if "linear" in word else "sliding" if "sliding" in word else "full"


def _ruled(key: str, rule: Callable[[Any, int, int], Any], value: Any, i: int, n: int) -> Any:
    try:
        return rule(value, i, n)
    except (TypeError, ValueError, LookupError, AttributeError, ZeroDivisionError):
        raise ValueError(f"{key}: does not say which of {n} layers it is about") from None


def _of_pattern(value: Any, i: int) -> str:
    """Return the kind of attention of a pattern: every n-th layer full, or letters such as ``LLLG`` that repeat."""
    is_full = value[i % len(value)].upper() == "G" if isinstance(value, str) else (i + 1) % value == 0
    return "full" if is_full else "sliding"


def _numbers(value: str | list[Any]) -> list[int]:
    return [int(one) for one in (value.split(",") if isinstance(value, str) else value)]


def _smallest(value: Any) -> Any:
    return min(value) if isinstance(value, list) else value


def _largest(value: Any) -> Any:
    return max(value) if isinstance(value, list) else value
