"""Properties of each decoder family that a ``config.json`` can name: data for ``hf_config``.

``DEFAULTS`` (``hf_defaults.json``) gives, by ``model_type``, the value that the configuration class of ``transformers``
supplies for a key that the file lacks; None: the class derives it (key heads: the number of query heads; ``head_dim``:
hidden size / heads).  Source: configuration classes of transformers 5.24.0 (Apache-2.0), compared with the installed
classes by ``tests/workload/test_hf_defaults.py``.  Families whose code comes with the checkpoint have no class there:
their files must have all keys.  ``OWN_DEFAULTS`` has values that a class derives in other ways, or that its modelling
code assumes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Field -> the keys that say it, in the order in which they are looked up; a dot goes into a nested object.
KEYS: dict[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads"),
    "kv_heads": (
        "num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "num_attention_groups",
        "attn_config.kv_n_heads", "num_key_value_heads_per_layer",
    ),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "value_dim": ("v_head_dim",),
    "intermediate": (
        "block_ff_dim", "intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim", "ff_intermediate_size",
    ),
    "experts": (
        "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts",
        "ffn_config.moe_num_experts",
    ),
    "top_k": (
        "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "moe_k",
        "num_selected_experts", "ffn_config.moe_top_k",
    ),
    "expert_width": (
        "moe_intermediate_size", "expert_ffn_hidden_size", "ffn_config.ffn_hidden_size",
    ),
    "shared_experts": ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "shared_width": (
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size",
        "share_expert_dim", "moe_shared_intermediate_size",
    ),
    "expert_groups": ("n_group", "num_expert_group"),
    "top_groups": ("topk_group",),
    "q_lora_rank": ("q_lora_rank",),
    "kv_lora_rank": ("kv_lora_rank",),
    "qk_nope_head_dim": ("qk_nope_head_dim",),
    "qk_rope_head_dim": ("qk_rope_head_dim",),
    "o_groups": ("o_groups",),
    "o_lora_rank": ("o_lora_rank",),
}  # fmt: skip

# Field -> the keys that say it for layers of one kind of attention, where that has sizes of its own.
KEYS_BY_KIND: dict[str, dict[str, tuple[str, ...]]] = {
    "sliding": {
        "heads": ("swa_num_attention_heads", "num_sliding_attention_heads",
                  "num_attention_heads_per_layer", "attention_other_setting.num_attention_heads"),
        "kv_heads": ("swa_num_key_value_heads", "attention_other_setting.num_attention_groups"),
        "head_dim": ("swa_head_dim", "attention_other_setting.head_dim"),
        "value_dim": ("swa_v_head_dim",),
    },
    "full": {
        "heads": ("num_attention_heads_per_layer",), "kv_heads": ("num_global_key_value_heads",),
        "head_dim": ("global_head_dim",),
    },
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """How a family differs from a decoder with gated feed-forward parts and attention before each."""

    gated: bool = True  # gate and up projection; False: one up projection
    four_times: bool = False  # a feed-forward width that is not stated is 4 x hidden
    dropout: bool = False  # training drops attention probabilities and outputs
    dense_key: str = ""  # of the width of layers without experts, where it is another than `intermediate`
    beside_experts: str = ""  # the key of the width of a dense feed-forward part beside the routed experts of a layer
    shared_is_dense: bool = False  # with no routed experts, the shared one is the feed-forward part
    query_gate: bool = False  # the query projection has as many columns again, which gate the output of attention
    multi_query: bool = False  # one key head, unless `multi_query` is false or `new_decoder_architecture` true
    parallel: str = ""  # the key that says that attention and feed-forward part run in parallel
    mixer: str = "full"  # of layers of which no key says which attention they have
    bare_mixers: bool = False  # a state-space layer has no feed-forward part
    one_part: bool = False  # a layer is attention, feed-forward part, experts or a state-space mixer alone
    attentions: int = 1  # a layer has so many, and so many dense feed-forward parts
    besides: str = ""  # what else a layer with attention has that is not simulated
    halved: bool = False  # the key has gate and up projection together
    two_thirds: bool = False  # the width is 2/3 of the key, unless `block_auto_adjust_ff_dim` is false
    odd_query: bool = False  # queries come from a low-rank projection of the family's own: no QKV GEMM
    head_factor: int = 1  # a `head_dim` that is not stated is so many times hidden / heads
    latent: bool = False  # keys and values are one latent vector, which heads share


PLAIN = Family()
INDEXER = "indexer of sparse attention"
UNGATED = Family(gated=False, four_times=True)
FAMILIES: dict[str, Family] = {
    "gpt2": Family(gated=False, four_times=True, dropout=True),
    "gpt_bigcode": Family(gated=False, four_times=True, multi_query=True),
    "falcon": Family(gated=False, four_times=True, multi_query=True, parallel="parallel_attn"),
    **dict.fromkeys(("gpt_neo", "gptj", "codegen", "bloom", "mpt", "opt", "gpt_neox", "persimmon"), UNGATED),
    **dict.fromkeys(("starcoder2", "phi", "nemotron", "apertus", "apertus1p5_text", "arcee", "nanochat", "jais2"),
                    Family(gated=False)),
    "nemotron_h": Family(gated=False, one_part=True),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), Family(query_gate=True)),
    "llama4_text": Family(dense_key="intermediate_size_mlp"),
    "minimax_m3_vl_text": Family(dense_key="dense_intermediate_size", besides=INDEXER),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa", "hy_v4"), Family(besides=INDEXER)),
    "gemma3n_text": Family(besides="per-layer embeddings"),
    "gemma4_text": Family(beside_experts="intermediate_size"),
    "arctic": Family(beside_experts="hidden_size"),
    "granitemoehybrid": Family(shared_is_dense=True),
    "longcat_flash": Family(beside_experts="ffn_hidden_size", attentions=2),
    "deepseek_v4": Family(latent=True, besides=INDEXER),
    "step3_text": Family(odd_query=True),
    "zamba2": Family(four_times=True, odd_query=True, head_factor=2, bare_mixers=True, mixer="state-space"),
    "falcon_h1": Family(mixer="hybrid"),
    "lfm2": Family(two_thirds=True),
    "bamba": Family(mixer="state-space"),
    "qwen": Family(halved=True),
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "rwkv"), Family(mixer="state-space", one_part=True)),
    **dict.fromkeys(("nemotron_nas", "internlm2", "baichuan", "chatglm", "mimo", "minicpm", "orion", "telechat2",
                     "teleflm", "grok", "deepseek", "bailing_moe", "midashenglm", "dream", "ouro"), PLAIN),
}  # fmt: skip

# `model_type` (or, of a checkpoint with a type of its own, its architecture without "ForCausalLM") -> family.
SAME_AS: dict[str, str] = {
    "gpt-sw3": "gpt2", "hunyuan_vl": "hunyuan_vl_text", "voxtral_realtime": "voxtral_realtime_text",
    **dict.fromkeys(("mistral3", "pixtral", "voxtral", "mixtral_text", "cwm_text"), "mistral"),
    "deci": "nemotron_nas", "deci_lm": "nemotron_nas", "nemotron-nas": "nemotron_nas", "decilm": "nemotron_nas",
    **dict.fromkeys(("kimi_k2", "pangu_ultra_moe", "openpangu"), "deepseek_v3"),
    "kimi_vl_text": "deepseek_v3", "deepseek_vl_v2": "deepseek_v2", "deepseek_v3_2": "deepseek_v32",
    "glm_5": "glm_moe_dsa", "glm5": "glm_moe_dsa", "glm4_9b": "glm4",
    "qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text", "qwen2_5_omni_text": "qwen2_vl_text",
    "qwen3_vl": "qwen3_vl_text", "qwen3_vl_moe": "qwen3_vl_moe_text", "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text", "qwen3_omni_moe": "qwen3_omni_moe_text", "qwen2_audio": "qwen2",
    "gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "gemma4": "gemma4_text", "gemma4_unified": "gemma4_text",
    "gemma4_unified_text": "gemma4_text", "paligemma": "gemma",
    "llama4": "llama4_text", "mllama": "mllama_text_model", "llava": "llama", "llava_next": "llama",
    "llava_onevision": "qwen2", "internvl_chat": "qwen2", "internvl": "qwen2", "idefics3": "llama", "smolvlm": "llama",
    "phi3_v": "phi3", "phi4mm": "phi4_multimodal", "phi4": "phi3", "minicpmv": "qwen2", "minicpmo": "qwen2",
    "minimax_m1": "minimax", "minimax_text_01": "minimax", "minimax_m3_vl": "minimax_m3_vl_text",
    "minimax_m3": "minimax_m3_vl_text", "minimax_m3_sparse": "minimax_m3_vl_text", "mimo_v2": "mimo_v2_flash",
    "mimo_v2_pro": "mimo_v2_flash",
    "step3p7": "step3p5", "step3p7_flash": "step3p5", "step3p7_text": "step3p5", "step3p5_text": "step3p5",
    "step3": "step3_text", "step3_vl": "step3_text",
    "glm4v": "glm4v_text", "glm4v_moe": "glm4v_moe_text", "ernie4_5_vl": "ernie4_5_vl_moe_text",
    "ernie4_5_moe_vl": "ernie4_5_vl_moe_text", "ernie4_5_vl_moe": "ernie4_5_vl_moe_text", "aria": "aria_text",
    "hunyuan": "hunyuan_v1_moe", "hunyuan_moe": "hunyuan_v1_moe", "hunyuan_dense": "hunyuan_v1_dense",
    "bailing_moe_v2": "bailing_moe", "bailing_moe_v2_5": "bailing_hybrid", "bailing_moe_linear": "bailing_moe",
    "refinedweb": "falcon", "refinedwebmodel": "falcon", "exaone3": "exaone", "exaone4_5": "exaone4",
    "codellama": "llama", "aquila": "llama", "yi": "llama", "solar": "llama", "internlm": "llama", "xverse": "llama",
    "grok_1": "grok", "grok1": "grok", "grok2": "grok", "olmo3_5": "olmo3", "skywork": "llama",
    "nemotron_h_v2": "nemotron_h", "nemotron_h_moe": "nemotron_h", "nemotronh": "nemotron_h", "nemotron_vl": "llama",
    "nemotron_h_nano_vl_v2": "nemotron_h", "llama_nemotron_vl": "llama", "xgen": "llama", "deepseek_ocr": "deepseek_v2",
}  # fmt: skip

WRAPPED = ("text_config", "llm_config", "language_config", "thinker_config.text_config", "text_model", "lm_config")

# Keys with defaults that classes derive when they are made, or of families that have no class.
OWN_DEFAULTS: dict[str, dict[str, int]] = {
    "qwen3_next": {"full_attention_interval": 4},
    "qwen3_5_text": {"full_attention_interval": 4},
    "qwen3_5_moe_text": {"full_attention_interval": 4},
    "glm4_moe_lite": {"first_k_dense_replace": 1},
    "mimo_v2_flash": {"first_k_dense_replace": 1},
    "hy_v3": {"first_k_dense_replace": 1},
    "laguna": {"first_k_dense_replace": 1},
    "kimi_linear": {"first_k_dense_replace": 1},
    "axk1": {"first_k_dense_replace": 1},
    "step3p5": {"first_k_dense_replace": 3},
    "gemma4_text": {"global_head_dim": 512, "sliding_window_pattern": 6},
    "llama4_text": {"n_shared_experts": 1},
    "falcon": {"parallel_attn": 1},
    "olmo_hybrid": {"full_attention_interval": 4},
}

DEFAULTS: dict[str, dict[str, int | None]] = json.loads(
    Path(__file__).with_name("hf_defaults.json").read_text(encoding="utf-8")
)


def family_of(name: str) -> str | None:
    """Return the family that a ``model_type`` or an architecture names, whatever its case and underscores."""
    return _FAMILY_OF.get(_plain(name))


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


_ENDINGS = ("forcausallm", "forconditionalgeneration", "lmheadmodel", "model", "vlforconditionalgeneration")
_KNOWN: Mapping[str, str] = {**{name: name for name in (*DEFAULTS, *FAMILIES)}, **SAME_AS}
_FAMILY_OF = {_plain(name): family for name, family in _KNOWN.items()}


def family_of_architecture(name: str) -> str | None:
    """Return the family of a class name such as ``LlamaForCausalLM``."""
    plain = _plain(name)
    bare = next((plain.removesuffix(ending) for ending in _ENDINGS if plain.endswith(ending)), plain)
    return _FAMILY_OF.get(bare)
