"""The layers of a model from the ``config.json`` that Hugging Face checkpoints carry.

``hf_families`` has what is known of each family; ``hf_layers`` which layers have attention, experts or neither, and
``checkpoint_types`` the element types.  Layers of like sizes make a group, which is a ``ModelSpec`` each.  What a layer
has that is not simulated (state-space layers, linear attention) is left out and named; a file is
refused if nothing is left, or if its family is not known.  Keys that do not change the shape of a layer are not looked
at.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from t3sim.config.experiment import CheckpointTypes, MlaSpec, MoeSpec
from t3sim.config.trees import Problems, found_words
from t3sim.config.yaml_loader import Position
from t3sim.errors import ConfigError, InputDataError
from t3sim.files import parse_json, read_limited
from t3sim.units import LIMIT
from t3sim.workload.checkpoint_types import checkpoint_types, types_note
from t3sim.workload.hf_families import (
    DEFAULTS,
    FAMILIES,
    KEYS,
    KEYS_BY_KIND,
    OWN_DEFAULTS,
    PLAIN,
    WRAPPED,
    family_of,
    family_of_architecture,
)
from t3sim.workload.hf_layers import NOT_SIMULATED, Kind, kinds_of, lookup, n_listed

MAX_CONFIG_BYTES = 16 << 20  # lists of quantised modules make files of some MB
QUANTIZATION_FILE = "hf_quant_config.json"
MLA = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "value_dim")


@dataclass(frozen=True)
class HfModel:
    """What a file says: fields of ``ModelSpec`` for each group of layers, the keys that say them, sentences to say."""

    groups: list[dict[str, Any]]
    sources: dict[str, str]  # field of the first group -> key
    notes: list[str] = field(default_factory=list)


def read_hf_config(path: Path, shown: str) -> HfModel:
    """Return what the file at *path* says of its layers; *shown* represents it in messages.

    Raises ``ConfigError`` with every problem of the file, each with its key.
    """
    at = Position(shown)
    found = _parsed(path, shown)
    beside = path.with_name(QUANTIZATION_FILE)
    quantization = _parsed(beside, str(beside)) if beside.is_file() else None
    level, where = _innermost(found)
    problems = Problems()
    family = _family(found, level, where, at)
    reader = _Reader(level, where, family, at, problems)
    types = checkpoint_types([level] if level is found else [level, found], quantization)
    groups = reader.groups(types)
    problems.raise_any()
    has_experts = any(group["moe"] is not None for group in groups)
    said = types_note(types, has_experts=has_experts)
    notes = [*([said] if said else []), *reader.notes(groups)]
    return HfModel(groups, reader.sources, notes)


def _parsed(path: Path, shown: str) -> dict[str, Any]:
    try:
        return parse_json(read_limited(path, MAX_CONFIG_BYTES, shown_as=shown), finite=False)
    except (InputDataError, ValueError) as error:
        raise ConfigError(Position(shown).problem("", str(error).removeprefix(f"{shown}: "))) from None


def _innermost(found: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the object that describes the decoder, and the dotted key of it: that of a model inside another."""
    level, where = found, ""
    for _ in range(3):
        inner = next((key for key in WRAPPED if isinstance(value := lookup(level, key), dict) and value), None)
        is_flat = all(any(isinstance(level.get(key), int) for key in KEYS[name]) for name in ("hidden", "heads"))
        if inner is None or is_flat:
            break
        level, where = lookup(level, inner), f"{where}{inner}."
    return level, where


def _family(found: dict[str, Any], level: dict[str, Any], where: str, at: Position) -> str:
    """Return the family of the decoder: by its own type, its architecture, or those of what it is in."""
    for one in (level, found):
        architectures = one.get("architectures")
        first = architectures[0] if isinstance(architectures, list) and architectures else None
        for value, known in ((one.get("model_type"), family_of), (first, family_of_architecture)):
            if isinstance(value, str) and (family := known(value)) is not None:
                return family
    key = f"{where}model_type"
    name = level.get("model_type", found.get("model_type"))
    what = "is missing" if name is None else f"{found_words(name)} is not supported"
    ways = "docs/users/workloads.md lists the families; a YAML file with hidden, layers and so on describes any other"
    raise ConfigError(at.problem(key, f"{what}; {ways}"))


class _Reader:
    """Reads the keys of one decoder."""

    def __init__(self, found: dict[str, Any], where: str, family: str, at: Position, problems: Problems) -> None:
        self.found, self.where, self.name, self.at, self.problems = found, where, family, at, problems
        self.family = FAMILIES.get(family, PLAIN)
        self.defaults: dict[str, int | None] = DEFAULTS.get(family, {})
        own = OWN_DEFAULTS.get(family, {})
        self.completed = {**self.defaults, **own, **found}  # for rules about which layers are which
        self.own: Mapping[str, int] = own
        self.n = 1  # layers
        self.sources: dict[str, str] = {}
        self.assumed: dict[str, int] = {}  # key -> value that the class supplies

    def groups(self, types: CheckpointTypes | None) -> list[dict[str, Any]]:
        """Return the fields of each group of like layers, in the order of their first layers."""
        hidden, heads = self.needed("hidden"), self.needed("heads", is_optional=self.family.mixer == "state-space")
        n = n_listed(self.found) if self.stated("layers") is None or self.family.one_part else None
        n = n or self.needed("layers")
        experts = self.value("experts", least=0)
        has_experts = (experts or 0) > 1 and self.found.get("enable_moe_block") is not False
        if self.problems or hidden is None or n is None:
            return []
        self.n = n
        try:
            kinds, key = kinds_of(self.completed, self.family, min(n, 10_000), has_experts=has_experts)
        except ValueError as error:
            key, _, message = str(error).partition(": ")
            self.problems.add(self.at, f"{self.where}{key}", message)
            return []
        members: dict[tuple[Any, ...], list[int]] = {}
        made: dict[tuple[Any, ...], dict[str, Any]] = {}
        cached: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.varies = any(isinstance(value, list) for value in self.found.values())
        for i, kind in enumerate(kinds):
            of = (kind, i if self.varies else 0)
            if of not in cached:
                cached[of] = self.layer(kind, i, hidden, heads)
            sizes = cached[of]
            if self.problems:
                return []
            sizes_key = tuple(sizes.items())
            made.setdefault(sizes_key, {**sizes, "kinds": set()})["kinds"].add(kind.mixer)
            members.setdefault(sizes_key, []).append(i)
        every = list(made.values())
        found = []
        for sizes, layers in zip(every, members.values(), strict=True):
            mixers = sizes.pop("kinds")
            group = {"hidden": hidden, "layers": len(layers), "elements": types, "whole_heads": True, **sizes}
            if len(every) > 1:
                group["group"] = f"{_numbered(layers)} of {n} layers: {self.described(sizes, mixers, every)}"
            found.append(group)
        if all(not group["parts"] and not group["moe"] for group in found):
            for what in dict.fromkeys(what for group in found for what in group["left_out"]):
                self.problems.add(
                    self.at, self.where + (key or "model_type"), f"{what}: not simulated; nothing is left"
                )
        return found

    def layer(self, kind: Kind, i: int, hidden: int, heads: int | None) -> dict[str, Any]:
        """Return the fields of layer *i*."""
        block = self.block(i)
        left_out, parts = [], []
        sizes: dict[str, Any] = {
            "heads": None, "kv_heads": None, "head_dim": None, "value_dim": None, "intermediate": None, "mla": None,
            "moe": None, "gated": self.family.gated, "dropout": self.family.dropout, "query_gate": False,
            "joint_qkv": True,
        }  # fmt: skip
        if kind.mixer in ("full", "sliding", "hybrid") and not _is_absent(block.get("attention")):
            parts.append("attention")
            sizes.update(self.attention(kind.mixer, i, hidden, heads, block.get("attention")))
            left_out += [self.family.besides] if self.family.besides else []
            if kind.mixer == "hybrid":
                left_out.append(NOT_SIMULATED["state-space"])
        elif any(isinstance(one, dict) and one.get("replace_with_linear") is True for one in block.values()):
            left_out.append("linear layers in place of a part")
        elif kind.mixer and not block:
            left_out.append(NOT_SIMULATED.get(kind.mixer, f"layers of type `{kind.mixer}`"))
        width = None
        if kind.feed_forward == "moe":
            sizes["moe"] = self.experts(i)
            if self.family.beside_experts or self.found.get("residual_moe") is True:
                width = self.value_of((self.family.beside_experts or "intermediate_size",), "intermediate", i)
        elif kind.feed_forward == "dense" and not _is_absent(block.get("ffn")):
            width = self.dense_width(i, hidden, block.get("ffn"))
        if width is not None:
            parts.append("feed-forward")
            sizes["intermediate"] = width
        if self.family.multi_query and self.found.get("multi_query") is not False:
            is_new = self.found.get("new_decoder_architecture") is True or "n_head_kv" in self.found  # RefinedWeb's key
            if not is_new and sizes["heads"]:
                sizes["kv_heads"] = 1
        if parts == ["feed-forward"] and heads is not None:  # a width of attention that no GEMM has
            sizes["heads"], sizes["head_dim"] = heads, self.value("head_dim", i) or max(hidden // heads, 1)
        if not parts:
            sizes["whole_heads"] = False
        return {**sizes, "parts": tuple(parts), "left_out": tuple(left_out)}

    def block(self, i: int) -> Mapping[str, Any]:
        """Return what `block_configs` (Nemotron-NAS) says of layer *i*."""
        blocks = self.found.get("block_configs")
        one = blocks[i] if isinstance(blocks, list) and i < len(blocks) else None
        return one if isinstance(one, dict) else {}

    def attention(self, mixer: str, i: int, hidden: int, heads: int | None, block: Any) -> dict[str, Any]:
        """Return the fields of the attention of layer *i*."""
        heads = self.value("heads", i, mixer) or heads
        if heads is None:
            self.needed("heads")
            return {}
        rank = self.value("kv_lora_rank", i)
        if self.family.latent or (rank is not None and self.found.get("use_mla") is not False):
            return {"heads": heads, "mla": self.latent(i, hidden, heads), "joint_qkv": False}
        kv_heads = self.value("kv_heads", i, mixer)
        in_group = block.get("n_heads_in_group") if isinstance(block, dict) else None
        if isinstance(in_group, int) and in_group > 0:
            kv_heads = max(heads // in_group, 1)
        head_dim = self.value("head_dim", i, mixer)
        if head_dim is None and self.family.head_factor > 1:
            head_dim = self.family.head_factor * hidden // heads
        if head_dim is None and hidden % heads:
            advice = "; give `head_dim`" if "n_head" not in self.defaults else ""
            message = f"is {heads}, must divide `{self.spelled('hidden')}`, {hidden}{advice}"
            self.problems.add(self.at, self.where + self.spelled("heads"), message)
        if kv_heads is not None and heads % kv_heads:
            message = f"is {kv_heads}, must divide `{self.spelled('heads')}`, {heads}"
            self.problems.add(self.at, self.where + self.spelled("kv_heads"), message)
        has_values = "v_head_dim" in self.defaults and "kv_lora_rank" not in self.defaults
        value_dim = self.value("value_dim", i, mixer) if has_values else None
        gate = self.family.query_gate and self.found.get("attn_output_gate") is not False
        return {
            "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "query_gate": gate,
            "value_dim": None if value_dim == head_dim else value_dim, "joint_qkv": not self.family.odd_query,
        }  # fmt: skip

    def latent(self, i: int, hidden: int, heads: int) -> MlaSpec | None:
        """Return the sizes of latent attention."""
        sizes = {name: self.value(name, i) for name in (*MLA, "q_lora_rank", "o_groups", "o_lora_rank")}
        if self.family.latent:  # the one latent vector is a head's key and value
            head_dim, rope = self.value("head_dim", i) or 0, sizes["qk_rope_head_dim"] or 0
            if head_dim <= rope:
                message = f"is {head_dim}, must be above `qk_rope_head_dim`, {rope}"
                self.problems.add(self.at, f"{self.where}head_dim", message)
                return None
            sizes.update(value_dim=head_dim, kv_lora_rank=head_dim - rope, qk_nope_head_dim=head_dim - rope)
        else:
            sizes.update(o_groups=None, o_lora_rank=None)
            sizes["value_dim"] = sizes["value_dim"] or hidden // heads
        for name in MLA:
            if not sizes[name]:
                self.problems.add(self.at, self.where + KEYS[name][0], "is missing")
        if self.problems:
            return None
        return MlaSpec(v_head_dim=sizes.pop("value_dim"), **sizes)

    def experts(self, i: int) -> MoeSpec | None:
        """Return the experts of layer *i*."""
        experts, width = self.value("experts", i), self.value("expert_width", i) or self.value("intermediate", i)
        if experts is None or width is None:
            self.problems.add(self.at, self.where + KEYS["expert_width"][0], "is missing")
            return None
        n_shared, shared = self.value("shared_experts", i, least=0), self.value("shared_width", i, least=0)
        if shared is None:
            shared = self.count(n_shared * width, self.spelled("shared_experts")) if n_shared else None
        elif n_shared == 0:
            shared = None
        groups = self.value("expert_groups", i, least=0) or None
        return MoeSpec(
            experts=experts, top_k=self.value("top_k", i), intermediate=width, shared_intermediate=shared or None,
            groups=groups, top_groups=(self.value("top_groups", i, least=0) or None) if groups else None,
        )  # fmt: skip

    def dense_width(self, i: int, hidden: int, block: Any) -> int | None:
        """Return the width of a feed-forward part without experts."""
        factor = block.get("ffn_mult") if isinstance(block, dict) else None
        if isinstance(factor, int | float) and 0 < factor < LIMIT:
            return _two_thirds(factor * hidden)
        if isinstance(block, dict) and isinstance(block.get("intermediate_size"), int):
            return self.count(block["intermediate_size"], "block_configs")
        if self.family.shared_is_dense and (shared := self.value("shared_width", i, least=0)):
            return shared
        width = self.value_of((self.family.dense_key,), "intermediate", i) if self.family.dense_key else None
        width = width or self.value("intermediate", i)
        if width is None and self.family.four_times:
            return 4 * hidden
        if width is None:
            key = self.stated_key("intermediate") or "intermediate_size"
            message = "is missing" if key not in self.found else "found nothing, a whole number is needed"
            self.problems.add(self.at, self.where + key, message)
            return None
        if self.family.two_thirds and self.found.get("block_auto_adjust_ff_dim") is not False:
            return _two_thirds(width)
        return width // 2 if self.family.halved else width

    # --- values ------------------------------------------------------------------------------------

    def needed(self, name: str, *, is_optional: bool = False) -> int | None:
        """Return a value that a file states; one inside another may leave it to its class."""
        key = self.stated_key(name)
        if key is None and not self.where and not is_optional:
            default = next((key for key in KEYS[name] if key in self.defaults), KEYS[name][0])
            self.problems.add(self.at, default, "is missing")
            return None
        if key is not None and lookup(self.found, key) is None and not is_optional:
            self.problems.add(self.at, self.where + key, "found nothing, a whole number is needed")
            return None
        found, n_problems = self.value(name), len(self.problems)
        if found is None and not is_optional and not n_problems:
            what = found_words(self.stated(name))
            self.problems.add(self.at, self.where + self.spelled(name), f"found {what}, a whole number is needed")
        return found

    def value(self, name: str, i: int = 0, mixer: str = "", least: int = 1) -> int | None:
        """Return a field of layer *i*, whose attention is *mixer*; None if neither file nor class says it."""
        of_kind = KEYS_BY_KIND.get(mixer, {}).get(name, ())
        if name == "kv_heads" and mixer == "full" and self.found.get("attention_k_eq_v") is False:
            of_kind = ()  # Gemma 4: only layers whose keys are their values have heads of another number
        return self.value_of(of_kind, name, i, least, only=True) or self.value_of(KEYS[name], name, i, least)

    def value_of(self, keys: Iterable[str], name: str, i: int = 0, least: int = 1, *, only: bool = False) -> int | None:
        """Return the first of *keys* that the file states, or else that its class supplies."""
        keys = tuple(keys)
        stated = {key: lookup(self.found, key) for key in keys if self.is_stated(key)}
        for key, value in stated.items():
            if isinstance(value, list):
                value = value[i if len(value) >= self.n else 0] if value else None
            if value is not None:
                self.sources.setdefault(name, self.where + key)
                return self.count(value, key, least)
        if stated and not only:
            return None
        for key in keys:
            default = self.own.get(key, self.defaults.get(key))
            if default is not None and type(default) is int:
                if key not in self.own and name not in ("expert_groups", "top_groups"):  # which change no GEMM
                    self.assumed[key] = default
                return default
        return None

    def count(self, value: Any, key: str, least: int = 1) -> int | None:
        """Return *value* if it is a whole number that can be used; else it is a problem of *key*."""
        words = found_words(value)
        if isinstance(value, bool) or not isinstance(value, int):
            message = f"found {'the text ' if isinstance(value, str) else ''}{words}, a whole number is needed"
        elif value < least:
            message = f"found {words}, must be {'above 0' if least == 1 else 'at least 0'}"
        elif value >= LIMIT:
            message = f"found {words}, must be below 2^62"
        else:
            return value
        self.problems.add(self.at, self.where + key, message)
        return None

    def is_stated(self, key: str) -> bool:
        """Return whether the file has *key*, be it null."""
        above, _, last = key.rpartition(".")
        holder = lookup(self.found, above) if above else self.found
        return isinstance(holder, dict) and last in holder

    def stated_key(self, name: str) -> str | None:
        """Return the key of the file for a field."""
        keys = [key for key in KEYS[name] if self.is_stated(key)]
        return next((key for key in keys if lookup(self.found, key) is not None), keys[0] if keys else None)

    def stated(self, name: str) -> Any:
        """Return what the file says of a field, as it stands there."""
        key = self.stated_key(name)
        return None if key is None else lookup(self.found, key)

    def spelled(self, name: str) -> str:
        """Return the key that the file has for a field, or that its family has."""
        return self.stated_key(name) or next((key for key in KEYS[name] if key in self.defaults), KEYS[name][0])

    # --- words -------------------------------------------------------------------------------------

    def described(self, sizes: Mapping[str, Any], mixers: set[str], every: Iterable[Mapping[str, Any]]) -> str:
        """Return in words which layers a group has."""
        words = []
        if "attention" in sizes["parts"]:
            keys = ("heads", "kv_heads", "head_dim", "value_dim", "mla")
            shapes = {tuple(one[key] for key in keys) for one in every if "attention" in one["parts"]}
            kind = {"full": "full ", "sliding": "sliding-window "}.get(next(iter(mixers)), "")
            words.append("MLA" if sizes["mla"] else f"{kind if len(shapes) > 1 and len(mixers) == 1 else ''}attention")
        words += [what for what in sizes["left_out"] if what != self.family.besides]
        if sizes["moe"]:
            words.append("experts")
        if "feed-forward" in sizes["parts"]:
            words.append(f"feed-forward {sizes['intermediate']}")
        return ", ".join(words) or "neither attention nor feed-forward part"

    def notes(self, groups: list[dict[str, Any]]) -> Iterator[str]:
        """Yield what has to be said of the file: what it is in, what is left out, what the class supplied."""
        if self.where:
            decoder = f"{self.where.rstrip('.')} is read (a decoder of type {self.name})"
            yield f"{decoder}; encoders of images or sound are left out"
        elif not isinstance(self.found.get("model_type"), str) or family_of(self.found["model_type"]) is None:
            yield f"its architecture says that it is a {self.name}; model_type is not known"
        out: dict[str, int] = {}
        n = sum(group["layers"] for group in groups)
        for group in groups:
            for what in group["left_out"]:
                out[what] = out.get(what, 0) + group["layers"]
        if out:
            yield "left out, as not simulated: " + ", ".join(
                f"{what} (of {m} of {n} layers)" for what, m in out.items()
            )
        if self.family.attentions > 1:
            n = self.family.attentions
            yield f"each layer has its attention and its dense feed-forward part {n} times"
        if self.family.parallel and self.completed.get(self.family.parallel):
            yield "attention and feed-forward part run in parallel and share one all-reduce, of their sum"
        if not any(group["moe"] for group in groups):
            self.assumed = {key: value for key, value in self.assumed.items() if key not in KEYS["experts"]}
        if self.assumed:
            listed = ", ".join(f"{key} {value}" for key, value in self.assumed.items())
            yield f"not in the file, taken from the class in transformers: {listed}"


def _two_thirds(width: float) -> int:
    """Return two thirds of *width* in multiples of 256, as Nemotron-NAS and LFM2 round them."""
    return -(-int(2 * width / 3) // 256) * 256


def _is_absent(block: Any) -> bool:
    """Return whether a part of a Nemotron-NAS block is not there, or is one linear layer instead."""
    return isinstance(block, dict) and (block.get("no_op") is True or block.get("replace_with_linear") is True)


def _numbered(layers: list[int]) -> str:
    """Return how many layers there are, with their numbers if these follow each other."""
    if layers[-1] - layers[0] == len(layers) - 1 and len(layers) > 1:
        return f"{len(layers)} ({layers[0]}-{layers[-1]})"
    return f"1 ({layers[0]})" if len(layers) == 1 else str(len(layers))
