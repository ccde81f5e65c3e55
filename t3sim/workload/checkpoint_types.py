"""The element types that a checkpoint states: ``quantization_config``, ``hf_quant_config.json``, ``torch_dtype``.

Methods and their element types are those of vLLM and of the producers' documentation (ModelOpt, llm-compressed
``compressed-tensors``, AWQ, GPTQ, Quark); a method or algorithm that is not known is ``unknown``, never 16 bit.
"""

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from t3sim.config.experiment import CheckpointTypes, OperandTypes
from t3sim.workload.simulated_types import is_simulated

SHORT = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
SIXTEEN_BIT = ("bf16", "fp16")
QUANTIZED_AS = ("quantization_config", "compression_config")
DTYPES = ("dtype", "torch_dtype")
UNKNOWN = "unknown"
SAME = ""  # activations of the type that the file states for what is not quantised

# quant_method -> element types of weights and of activations; those of weight-only methods with a `bits` say it.
METHODS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("fp8", "fbgemm_fp8", "ptpc_fp8", "modelopt_fp8", "finegrained_fp8", "fp8_e4m3"), ("fp8", "fp8")),
    "mxfp8": ("mxfp8", "mxfp8"), "modelopt_fp4": ("nvfp4", "nvfp4"), "nvfp4": ("nvfp4", "nvfp4"),
    "petit_nvfp4": ("nvfp4", SAME), "mxfp4": ("mxfp4", SAME), "gpt_oss_mxfp4": ("mxfp4", SAME),
    "experts_int8": ("int8", SAME), "tpu_int8": ("int8", SAME), "eetq": ("int8", SAME), "deepspeedfp": ("fp8", SAME),
    "bitnet": ("int2", "int8"), "w8a8": ("int8", "int8"), "smoothquant": ("int8", "int8"),
    **dict.fromkeys(("awq", "auto_awq", "awq_marlin", "gptq", "gptq_marlin", "auto_gptq", "auto-round", "moe_wna16",
                     "hqq", "aqlm", "quip", "vptq", "squeezellm", "marlin", "spqr"), ("int4", SAME)),
}  # fmt: skip
ONLY_EXPERTS = ("mxfp4", "gpt_oss_mxfp4", "experts_int8", "moe_wna16")  # methods that leave other layers as they are

# quant_algo of ModelOpt -> the same.
ALGORITHMS: dict[str, tuple[str, str]] = {
    "FP8": ("fp8", "fp8"), "FP8_PER_CHANNEL_PER_TOKEN": ("fp8", "fp8"), "FP8_PB_WO": ("fp8", SAME),
    "FP8_BLOCK_SCALES": ("fp8", "fp8"), "NVFP4": ("nvfp4", "nvfp4"), "NVFP4_AWQ": ("nvfp4", "nvfp4"),
    "W4A16_NVFP4": ("nvfp4", SAME), "W4A8_NVFP4_FP8": ("nvfp4", "fp8"), "MXFP4": ("mxfp4", "mxfp4"),
    "MXFP8": ("mxfp8", "mxfp8"), "W4A8_MXFP4_FP8": ("mxfp4", "fp8"), "W4A8_AWQ": ("int4", "fp8"),
    "W4A16_AWQ": ("int4", SAME), "INT4_AWQ": ("int4", SAME), "W4A16": ("int4", SAME), "W4A16_GPTQ": ("int4", SAME),
    "W8A16": ("int8", SAME), "W8A8_SQ_PER_CHANNEL": ("int8", "int8"), "INT8_SQ": ("int8", "int8"),
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": ("int8", "int8"),
}  # fmt: skip

# Names of modules as exclusions write them, by part of a layer, below the name of the decoder.
MODULES = {
    "attention": ("self_attn.o_proj", "self_attn"),
    "feed_forward": ("mlp.down_proj", "mlp"),
    "experts": ("mlp.experts.0.down_proj", "mlp.experts", "mlp"),
}
DECODERS = ("model.layers", "language_model.model.layers", "model.language_model.layers")
ASKED = range(4, 8)  # layers of which all have to be excepted: not the first ones, which often are by themselves
MOST_PATTERNS = 1000
EXCLUDED_AS = (
    "modules_to_not_convert",
    "ignored_layers",
    "ignore",
    "exclude_modules",
    "exclude",
    "llm_int8_skip_modules",
)


def checkpoint_types(levels: Iterable[Mapping[str, Any]], beside: Mapping[str, Any] | None) -> CheckpointTypes | None:
    """Return what the file states; None if it states nothing.

    *levels*: the objects of the file, the innermost first.  *beside*: a ``hf_quant_config.json``, if there is one.
    """
    levels = list(levels)
    dtype, dtype_key = next(
        ((level[key], key) for level in levels for key in DTYPES if _is_text(level.get(key))), ("", "")
    )
    plain = SHORT.get(str(dtype).removeprefix("torch."), str(dtype).removeprefix("torch.") or "16-bit")
    stated = [(key, level[key]) for level in levels for key in QUANTIZED_AS if isinstance(level.get(key), dict)]
    if beside is not None and isinstance(beside.get("quantization"), dict):
        stated.append(("hf_quant_config.json", beside["quantization"]))
    stated = [(key, said) for key, said in stated if said.get("quant_algo", "") is not None]  # null: the cache alone
    if not stated:
        if not dtype:
            return None
        one = OperandTypes(weights=plain, activations=plain)
        return CheckpointTypes(attention=one, feed_forward=one, experts=one, stated_by=dtype_key, says=dtype)
    found = [(key, said, _of(said)) for key, said in stated]
    known = next((one for one in found if one[2] is not None), found[0])  # one of two may not say which type
    key, said, types = known
    weights, activations = types or (UNKNOWN, UNKNOWN)
    quantized = OperandTypes(weights=weights, activations=activations or plain)
    unquantized = OperandTypes(weights=plain, activations=plain)
    method, algorithm = said.get("quant_method"), said.get("quant_algo")
    says = next((str(one) for one in (algorithm, method) if isinstance(one, str)), "that it is quantised")
    excluded = tuple(dict.fromkeys(name for _, said, _ in found for name in _excluded(said)))
    parts = {part: unquantized if _is_excluded(part, excluded) else quantized for part in MODULES}
    if said.get("quant_method") in ONLY_EXPERTS:
        parts = {part: quantized if part == "experts" else unquantized for part in MODULES}
    return CheckpointTypes(**parts, stated_by=key, says=says)


def types_note(types: CheckpointTypes | None, *, has_experts: bool) -> str | None:
    """Return the sentence to say of a checkpoint that is not in 16 bit; None of one that is."""
    if types is None:
        return None
    found = dict.fromkeys((types.attention, types.feed_forward, *((types.experts,) if has_experts else ())))
    other = [one for one in found if one.weights not in SIXTEEN_BIT or one.activations not in SIXTEEN_BIT]
    other = [one for one in other if one.weights != "16-bit"]
    if not other:
        return None
    modelled = all(is_simulated(one) for one in other)
    where = " for experts" if has_experts and other == [types.experts] and types.experts != types.attention else ""
    said = " and ".join(_words(one, types.says) for one in other)
    so = "GEMMs are simulated so, with 16-bit activations on machines without that matrix rate; outputs are BF16"
    return f"{types.stated_by} says {said}{where}: {so if modelled else 'GEMMs are simulated with 16-bit operands'}"


def _words(one: OperandTypes, says: str) -> str:
    """Return the element types of a GEMM in words, after what the file calls them."""
    if one.weights == UNKNOWN:
        return f"{says}, not which element type"
    if one.weights == one.activations:
        return says if SHORT.get(says, says.lower()) == one.weights else f"{says} ({one.weights})"
    activations = "16-bit" if one.activations in (*SIXTEEN_BIT, "16-bit") else one.activations
    return f"{says} ({one.weights} weights, {activations} activations)"


def _of(said: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the element types of a quantisation; None if it does not say, or in words that are not known."""
    algorithm = said.get("quant_algo")
    if isinstance(algorithm, str):
        if algorithm.upper() == "MIXED_PRECISION":
            return ("mixed", "mixed")
        return ALGORITHMS.get(algorithm.upper())
    groups = said.get("config_groups")
    if isinstance(groups, dict):
        found = list(dict.fromkeys(_of_group(said, one) for one in groups.values() if isinstance(one, dict)))
        return found[0] if len(found) == 1 else ("mixed", "mixed") if found else None
    whole = said.get("global_quant_config")
    if isinstance(whole, dict):  # Quark
        weight, inputs = whole.get("weight"), whole.get("input_tensors")
        first = _quark(weight[0] if isinstance(weight, list) and weight else weight)
        second = _quark(inputs[0] if isinstance(inputs, list) and inputs else inputs)
        return None if first is None else (first, second or SAME)
    method = said.get("quant_method")
    if not isinstance(method, str):
        return None
    if method == "bitsandbytes":
        if said.get("load_in_8bit"):
            return ("int8", "int8")
        return (str(said.get("bnb_4bit_quant_type", "nf4")), SAME)
    types, bits = METHODS.get(method), said.get("bits", said.get("w_bit"))
    if types is not None and types[0] == "int4" and isinstance(bits, int):
        return (f"int{bits}", types[1])
    return types


def _of_group(said: Mapping[str, Any], group: Mapping[str, Any]) -> tuple[str, str]:
    """Return the element types of a group of ``compressed-tensors`` or ModelOpt."""
    form = str(group.get("format") or said.get("format") or "")
    weights, activations = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, dict):
        return (UNKNOWN, UNKNOWN)
    name = _number(weights, form)
    return (name, _number(activations, form) if isinstance(activations, dict) else SAME)


def _number(said: Mapping[str, Any], form: str) -> str:
    bits, kind = said.get("num_bits"), said.get("type")
    if not isinstance(bits, int):
        return UNKNOWN
    if kind == "float" and bits == 4:
        return "mxfp4" if form.startswith("mxfp4") or said.get("group_size") == 32 else "nvfp4"
    return f"{'fp' if kind == 'float' else 'int'}{bits}"


def _quark(said: object) -> str | None:
    dtype = said.get("dtype") if isinstance(said, dict) else None
    if not isinstance(dtype, str):
        return None
    is_mx = dtype == "fp4" and isinstance(said, dict) and said.get("group_size") == 32
    return "mxfp4" if is_mx else dtype.partition("_")[0]


def _excluded(said: Mapping[str, Any]) -> Iterator[str]:
    for key in EXCLUDED_AS:
        names = said.get(key)
        yield from (name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def _is_excluded(part: str, excluded: tuple[str, ...]) -> bool:
    """Return whether *part* of every layer is excepted, by patterns or by name."""
    names = set(excluded)
    patterns = [name.removeprefix("re:").replace(".*", "*") for name in excluded if "*" in name][:MOST_PATTERNS]

    def is_named(i: int) -> bool:
        modules = [f"{decoder}.{i}.{module}" for decoder in DECODERS for module in MODULES[part]]
        if any(name in names or name.rpartition(".")[2] in names for name in modules):
            return True
        return any(fnmatchcase(name, pattern) for pattern in patterns for name in modules)

    return all(is_named(i) for i in ASKED)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)
