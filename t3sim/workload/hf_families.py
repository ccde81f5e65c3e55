"""What is known of each family of decoder that a ``config.json`` can name: data for ``hf_config``.

``DEFAULTS`` has, by ``model_type``, the value that the configuration class of ``transformers`` supplies for a key which
the file does not have; None means that the class derives it (key heads: as many as query heads; ``head_dim``: hidden
size / heads).  Source: configuration classes of transformers 5.24.0 (Apache-2.0), compared with the installed classes
by ``tests/workload/test_hf_defaults.py``.  Families whose code comes with the checkpoint have no class there: their
keys have to be in the file.  ``OWN_DEFAULTS`` has what a class derives in other ways, or its modelling code assumes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

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

DEFAULTS: dict[str, dict[str, int | None]] = {
    "llama": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "head_dim": None, "intermediate_size": 11008,
    },
    "mistral": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": None, "intermediate_size": 14336,
    },
    "ministral": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": None, "intermediate_size": 14336,
    },
    "ministral3": {
        "hidden_size": 4096, "num_hidden_layers": 34, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 14336,
    },
    "mixtral": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": None, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2,
    },
    "qwen2": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "intermediate_size": 22016,
    },
    "qwen3": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "head_dim": 128, "intermediate_size": 22016,
    },
    "qwen2_moe": {
        "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16,
        "intermediate_size": 5632, "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size":
        1408, "shared_expert_intermediate_size": 5632, "decoder_sparse_step": 1,
    },
    "qwen3_moe": {
        "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 4,
        "intermediate_size": 6144, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "decoder_sparse_step": 1, "num_experts": 128,
    },
    "qwen3_next": {
        "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 256, "intermediate_size": 5632, "num_experts": 512, "num_experts_per_tok": 10,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "decoder_sparse_step": 1,
    },
    "qwen3_5_text": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4,
        "head_dim": 256, "intermediate_size": 12288,
    },
    "qwen3_5_moe_text": {
        "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 256, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    "qwen3_vl_text": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "head_dim": 128, "intermediate_size": 22016,
    },
    "qwen3_vl_moe_text": {
        "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16,
        "head_dim": None, "intermediate_size": 5632, "num_experts_per_tok": 4, "moe_intermediate_size":
        1408, "decoder_sparse_step": 1, "num_experts": 60,
    },
    "qwen2_vl_text": {
        "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
        "intermediate_size": 29568,
    },
    "qwen2_5_vl_text": {
        "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
        "intermediate_size": 29568,
    },
    "qwen3_omni_moe_text": {
        "hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
        "intermediate_size": 18944, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size":
        768, "decoder_sparse_step": 1,
    },
    "gemma": {
        "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16,
        "head_dim": 256, "intermediate_size": 24576,
    },
    "gemma2": {
        "hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "intermediate_size": 9216,
    },
    "gemma3_text": {
        "hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "intermediate_size": 9216,
    },
    "gemma3n_text": {
        "hidden_size": 2048, "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 256, "intermediate_size": 16384,
    },
    "gemma4_text": {
        "hidden_size": 2304, "num_hidden_layers": 30, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "intermediate_size": 9216, "num_experts": None, "top_k_experts": None,
        "moe_intermediate_size": None,
    },
    "vaultgemma": {
        "hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "intermediate_size": 9216,
    },
    "phi": {
        "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads":
        None, "intermediate_size": 8192,
    },
    "phi3": {
        "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "intermediate_size": 8192,
    },
    "phimoe": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 6400, "num_local_experts": 16, "num_experts_per_tok": 2,
    },
    "phi4_multimodal": {
        "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 8192,
    },
    "granite": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "intermediate_size": 11008,
    },
    "granitemoe": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "intermediate_size": 11008, "num_local_experts": 8, "num_experts_per_tok": 2,
    },
    "granitemoeshared": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "intermediate_size": 11008, "num_local_experts": 8, "num_experts_per_tok": 2,
        "shared_intermediate_size": 0,
    },
    "granitemoehybrid": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "intermediate_size": 11008, "num_local_experts": 8, "num_experts_per_tok": 2,
        "shared_intermediate_size": 1024,
    },
    "glm": {
        "hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 2,
        "head_dim": 128, "intermediate_size": 13696,
    },
    "glm4": {
        "hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 2,
        "head_dim": 128, "intermediate_size": 13696,
    },
    "glm4_moe": {
        "hidden_size": 4096, "num_hidden_layers": 46, "num_attention_heads": 96, "num_key_value_heads": 8,
        "intermediate_size": 10944, "n_routed_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 1408, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "glm4_moe_lite": {
        "hidden_size": 2048, "num_hidden_layers": 47, "num_attention_heads": 20, "num_key_value_heads": 20,
        "v_head_dim": 256, "intermediate_size": 10240, "n_routed_experts": 64, "num_experts_per_tok": 4,
        "moe_intermediate_size": 1536, "n_shared_experts": 1, "q_lora_rank": 768, "kv_lora_rank": 512,
        "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "n_group": 1, "topk_group": 1,
    },
    "glm4v_text": {
        "hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 2,
        "intermediate_size": 13696,
    },
    "glm4v_moe_text": {
        "hidden_size": 4096, "num_hidden_layers": 46, "num_attention_heads": 96, "num_key_value_heads": 8,
        "intermediate_size": 10944, "n_routed_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 1408, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "glm_moe_dsa": {
        "hidden_size": 6144, "num_hidden_layers": 78, "num_attention_heads": 64, "num_key_value_heads": 64,
        "head_dim": 64, "v_head_dim": 256, "intermediate_size": 12288, "n_routed_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1, "q_lora_rank": 2048,
        "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 3,
    },
    "cohere": {
        "hidden_size": 8192, "num_hidden_layers": 40, "num_attention_heads": 64, "num_key_value_heads":
        None, "intermediate_size": 22528,
    },
    "cohere2": {
        "hidden_size": 8192, "num_hidden_layers": 40, "num_attention_heads": 64, "num_key_value_heads":
        None, "intermediate_size": 22528,
    },
    "olmo": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "intermediate_size": 11008,
    },
    "olmo2": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "intermediate_size": 11008,
    },
    "olmo3": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "intermediate_size": 11008,
    },
    "olmoe": {
        "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads":
        None, "intermediate_size": 2048, "num_experts": 64, "num_experts_per_tok": 8,
    },
    "flex_olmo": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "intermediate_size": 11008, "num_experts": 7, "num_experts_per_tok": 5,
    },
    "falcon": {
        "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71, "num_kv_heads": None,
        "ffn_hidden_size": None, "multi_query": True,
    },
    "falcon_h1": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336,
    },
    "gpt_bigcode": {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None, "multi_query": True},
    "gpt2": {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None},
    "gpt_neo": {"hidden_size": 2048, "num_layers": 24, "num_heads": 16, "intermediate_size": None},
    "gptj": {"n_embd": 4096, "n_layer": 28, "n_head": 16, "n_inner": None},
    "gpt_neox": {
        "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64, "intermediate_size": 24576,
    },
    "gpt_oss": {
        "hidden_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "intermediate_size": 2880, "num_local_experts": 128, "num_experts_per_tok": 4,
    },
    "codegen": {"n_embd": 4096, "n_layer": 28, "n_head": 16, "n_inner": None},
    "opt": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "ffn_dim": 3072},
    "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 8},
    "mpt": {"d_model": 2048, "n_layers": 24, "n_heads": 16},
    "persimmon": {
        "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 64, "intermediate_size": 16384,
    },
    "starcoder2": {
        "hidden_size": 3072, "num_hidden_layers": 30, "num_attention_heads": 24, "num_key_value_heads": 2,
        "intermediate_size": 12288,
    },
    "stablelm": {
        "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "intermediate_size": 6912,
    },
    "smollm3": {
        "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4,
        "intermediate_size": 11008,
    },
    "nemotron": {
        "hidden_size": 6144, "num_hidden_layers": 32, "num_attention_heads": 48, "num_key_value_heads":
        None, "head_dim": None, "intermediate_size": 24576,
    },
    "nemotron_h": {
        "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 21504, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 7688, "n_shared_experts": 1, "moe_shared_expert_intermediate_size": 7688,
        "n_group": 1, "topk_group": 1,
    },
    "internlm3": {
        "hidden_size": 4096, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 2,
        "head_dim": 128, "intermediate_size": 10240,
    },
    "exaone": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": None, "intermediate_size": 14336,
    },
    "exaone4": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "intermediate_size": 16384,
    },
    "exaone_moe": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "intermediate_size": 16384, "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size":
        1024, "num_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    },
    "seed_oss": {
        "hidden_size": 4096, "num_hidden_layers": 64, "num_attention_heads": 80, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 27648,
    },
    "apertus": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "intermediate_size": 14336,
    },
    "arcee": {
        "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "head_dim": None, "intermediate_size": 18432,
    },
    "helium": {
        "hidden_size": 2560, "num_hidden_layers": 24, "num_attention_heads": 20, "num_key_value_heads": 20,
        "head_dim": 128, "intermediate_size": 7040,
    },
    "bitnet": {
        "hidden_size": 2560, "num_hidden_layers": 30, "num_attention_heads": 20, "num_key_value_heads": 5,
        "intermediate_size": 6912,
    },
    "nanochat": {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 6, "num_key_value_heads": None,
        "intermediate_size": 8192,
    },
    "jais2": {
        "hidden_size": 3328, "num_hidden_layers": 32, "num_attention_heads": 26, "num_key_value_heads":
        None, "head_dim": None, "intermediate_size": 26624,
    },
    "hunyuan_v1_dense": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "head_dim": None, "intermediate_size": 11008,
    },
    "hunyuan_v1_moe": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "head_dim": None, "intermediate_size": 11008, "num_experts": 1, "moe_topk": 1,
    },
    "hy_v3": {
        "hidden_size": 4096, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 13312, "num_experts": 192, "num_experts_per_tok": 8,
        "moe_intermediate_size": 1536, "num_shared_experts": 1,
    },
    "ernie4_5": {
        "hidden_size": 1024, "num_hidden_layers": 18, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 128, "intermediate_size": 3072,
    },
    "ernie4_5_moe": {
        "hidden_size": 2560, "num_hidden_layers": 28, "num_attention_heads": 20, "num_key_value_heads": 4,
        "intermediate_size": 12288, "moe_num_experts": 64, "moe_k": 6, "moe_intermediate_size": 1536,
        "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
    },
    "ernie4_5_vl_moe_text": {
        "hidden_size": 2560, "num_hidden_layers": 28, "num_attention_heads": 20, "num_key_value_heads": 4,
        "intermediate_size": 12288, "moe_num_experts": 64, "moe_k": 6, "moe_intermediate_size": None,
        "moe_num_shared_experts": 2,
    },
    "deepseek_v2": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "head_dim": None, "v_head_dim": 128, "intermediate_size": 11008, "n_routed_experts": 64,
        "num_experts_per_tok": None, "moe_intermediate_size": 1407, "n_shared_experts": 2, "q_lora_rank":
        1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "n_group": None,
        "topk_group": None, "first_k_dense_replace": 0,
    },
    "deepseek_v3": {
        "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads":
        128, "v_head_dim": 128, "intermediate_size": 18432, "n_routed_experts": 256, "num_experts_per_tok":
        8, "moe_intermediate_size": 2048, "n_shared_experts": 1, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "n_group": 8, "topk_group": 4,
        "first_k_dense_replace": 3,
    },
    "deepseek_v32": {
        "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads":
        128, "head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432, "n_routed_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "n_group": 8, "topk_group": 4,
        "first_k_dense_replace": 3,
    },
    "deepseek_v4": {
        "hidden_size": 4096, "num_hidden_layers": 43, "num_attention_heads": 64, "num_key_value_heads": 1,
        "head_dim": 512, "n_routed_experts": 256, "num_experts_per_tok": 6, "moe_intermediate_size": 2048,
        "n_shared_experts": 1, "q_lora_rank": 1024, "o_groups": 8, "o_lora_rank": 1024, "qk_rope_head_dim":
        64,
    },
    "longcat_flash": {
        "hidden_size": 6144, "num_layers": 28, "num_attention_heads": 64, "num_key_value_heads": None,
        "head_dim": 64, "v_head_dim": 128, "ffn_hidden_size": 12288, "n_routed_experts": 512, "moe_topk":
        12, "expert_ffn_hidden_size": 2048, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim":
        128, "qk_rope_head_dim": 64,
    },
    "dots1": {
        "hidden_size": 4608, "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 32,
        "intermediate_size": 10944, "n_routed_experts": None, "num_experts_per_tok": None,
        "moe_intermediate_size": 1408, "n_shared_experts": None, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 0,
    },
    "minicpm3": {
        "hidden_size": 2560, "num_hidden_layers": 62, "num_attention_heads": 40, "num_key_value_heads": 40,
        "head_dim": None, "v_head_dim": None, "intermediate_size": 6400, "q_lora_rank": 768, "kv_lora_rank":
        256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
    },
    "minimax": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": None, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2,
    },
    "minimax_m2": {
        "hidden_size": 3072, "num_hidden_layers": 62, "num_attention_heads": 48, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 1536, "num_local_experts": 256, "num_experts_per_tok": 8,
    },
    "minimax_m3_vl_text": {
        "hidden_size": 6144, "num_hidden_layers": 60, "num_attention_heads": 64, "num_key_value_heads": 4,
        "head_dim": 128, "intermediate_size": 3072, "dense_intermediate_size": 12288, "num_local_experts":
        128, "num_experts_per_tok": 4, "shared_intermediate_size": 3072,
    },
    "mimo_v2_flash": {
        "hidden_size": 4096, "num_hidden_layers": 48, "num_attention_heads": 64, "num_key_value_heads": 4,
        "head_dim": 192, "v_head_dim": 128, "intermediate_size": 16384, "n_routed_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_group": 1, "topk_group": 1,
    },
    "step3p5": {
        "hidden_size": 4096, "num_hidden_layers": 45, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 11264, "n_routed_experts": 288, "num_experts_per_tok": 8,
        "moe_intermediate_size": 1280, "share_expert_dim": 1280,
    },
    "llama4_text": {
        "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_local_experts": 16,
        "num_experts_per_tok": 1, "interleave_moe_layer_step": 1,
    },
    "mllama_text_model": {
        "hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336,
    },
    "jamba": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336, "num_experts": 16, "num_experts_per_tok": 2, "expert_layer_period": 2,
        "expert_layer_offset": 1, "attn_layer_period": 8, "attn_layer_offset": 4,
    },
    "bamba": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336,
    },
    "zamba2": {
        "hidden_size": 2560, "num_hidden_layers": 54, "num_attention_heads": 32, "num_key_value_heads":
        None, "intermediate_size": None,
    },
    "lfm2": {
        "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 12288,
    },
    "lfm2_moe": {
        "hidden_size": 2048, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 7168, "num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size":
        1792, "num_dense_layers": 2,
    },
    "kimi_linear": {
        "hidden_size": 2304, "num_hidden_layers": 27, "num_attention_heads": 32, "num_key_value_heads": 32,
        "v_head_dim": 128, "intermediate_size": 9216, "moe_intermediate_size": 1024, "q_lora_rank": None,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "topk_group": 1,
        "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1,
    },
    "bailing_hybrid": {
        "hidden_size": 2560, "num_hidden_layers": 42, "num_attention_heads": 32, "num_key_value_heads": 32,
        "head_dim": 128, "v_head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "topk_group": 4, "first_k_dense_replace": 2, "layer_group_size": 6, "num_experts": 512,
        "num_experts_per_token": 8, "num_shared_experts": 1,
    },
    "dbrx": {
        "d_model": 2048, "n_layers": 24, "n_heads": 16, "attn_config.kv_n_heads": 1,
        "ffn_config.ffn_hidden_size": 3584, "ffn_config.moe_num_experts": 4, "ffn_config.moe_top_k": 1,
    },
    "afmoe": {
        "hidden_size": 2048, "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads":
        None, "head_dim": 128, "intermediate_size": 6144, "num_experts": 64, "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408, "num_shared_experts": 2, "num_dense_layers": 1,
    },
    "aria_text": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "head_dim": None, "intermediate_size": 4096, "moe_num_experts": 8, "moe_topk": 2,
        "moe_num_shared_experts": 2,
    },
    "solar_open": {
        "hidden_size": 4096, "num_hidden_layers": 48, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 128, "n_routed_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1280,
        "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    },
    "youtu": {
        "hidden_size": 2048, "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 16,
        "v_head_dim": 128, "intermediate_size": 6144, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    },
    "cwm": {
        "hidden_size": 6144, "num_hidden_layers": 64, "num_attention_heads": 48, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 21504,
    },
    "diffllama": {
        "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads":
        None, "head_dim": None, "intermediate_size": 8192,
    },
    "mistral4": {
        "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 32,
        "v_head_dim": 128, "intermediate_size": 12288, "n_routed_experts": 128, "num_experts_per_tok": 4,
        "moe_intermediate_size": 2048, "n_shared_experts": 1, "q_lora_rank": 1024, "kv_lora_rank": 256,
        "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 0,
    },
    "laguna": {
        "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 48, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 8192, "num_experts": 256, "num_experts_per_tok": 8,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    },
    "hyperclovax": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "head_dim": None, "intermediate_size": 11008,
    },
    "axk1": {
        "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 64, "num_key_value_heads": 64,
        "v_head_dim": 128, "intermediate_size": 18432, "n_routed_experts": 192, "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048, "n_shared_experts": 1, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "n_group": 8, "topk_group": 4,
    },
    "iquestcoder": {
        "hidden_size": 5120, "num_hidden_layers": 80, "num_attention_heads": 40, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 27648,
    },
    "granite_swa": {
        "hidden_size": 2560, "num_hidden_layers": 24, "num_attention_heads": 20, "num_key_value_heads": 4,
        "intermediate_size": 8192,
    },
    "granitemoe_swa": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "intermediate_size": 11008, "num_local_experts": 8, "num_experts_per_tok": 2,
        "shared_intermediate_size": 0,
    },
    "olmo_hybrid": {
        "hidden_size": 3840, "num_hidden_layers": 32, "num_attention_heads": 30, "num_key_value_heads":
        None, "intermediate_size": 11008,
    },
    "cohere2_moe": {
        "hidden_size": 8192, "num_hidden_layers": 40, "num_attention_heads": 64, "num_key_value_heads":
        None, "head_dim": 128, "intermediate_size": 22528, "num_experts": 8, "num_experts_per_tok": 2,
        "num_shared_experts": 0,
    },
    "hunyuan_vl_text": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "head_dim": None, "intermediate_size": 11008,
    },
    "granite4_vision_text": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "intermediate_size": 11008,
    },
    "paddleocr_vl_text": {
        "hidden_size": 1024, "num_hidden_layers": 18, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 128, "intermediate_size": 3072,
    },
    "emu3_text_model": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336,
    },
    "sarvam_moe": {
        "hidden_size": 4096, "num_hidden_layers": 19, "num_attention_heads": 64, "num_key_value_heads": 4,
        "head_dim": 64, "intermediate_size": 8192, "n_routed_experts": 128, "num_experts_per_tok": 6,
        "moe_intermediate_size": 1024, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "sarvam_mla": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 64, "num_key_value_heads":
        None, "v_head_dim": 128, "intermediate_size": 16384, "n_routed_experts": 128, "num_experts_per_tok":
        8, "moe_intermediate_size": 2048, "n_shared_experts": 1, "q_lora_rank": None, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "mellum": {
        "hidden_size": 2304, "num_hidden_layers": 28, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "intermediate_size": 7168, "num_experts_per_tok": 8, "moe_intermediate_size": 896,
        "num_local_experts": 64,
    },
    "hy_v4": {
        "hidden_size": 2816, "num_hidden_layers": 34, "num_attention_heads": 32, "num_key_value_heads": 32,
        "head_dim": 256, "v_head_dim": 256, "intermediate_size": 6912, "n_routed_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 768, "n_shared_experts": 1, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "n_group": 1, "topk_group": 1,
    },
    "apertus1p5_text": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "intermediate_size": 14336,
    },
    "mistral_large4_text": {
        "hidden_size": 6144, "num_hidden_layers": 72, "num_attention_heads": 64, "num_key_value_heads": 64,
        "head_dim": 64, "v_head_dim": 128, "intermediate_size": 24576, "n_routed_experts": 128,
        "num_experts_per_tok": 4, "moe_intermediate_size": 6144, "n_shared_experts": 1, "kv_lora_rank": 512,
        "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "granite_docling_text": {
        "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 4,
        "intermediate_size": 2048,
    },
    "unlimited_ocr_text": {
        "hidden_size": 1280, "num_hidden_layers": 12, "num_attention_heads": 10, "num_key_value_heads": 10,
        "head_dim": None, "intermediate_size": 6848, "n_routed_experts": 64, "num_experts_per_tok": 6,
        "moe_intermediate_size": 896, "n_shared_experts": 2, "n_group": 1, "topk_group": 1,
    },
    "deepseek_ocr2_text": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads":
        None, "head_dim": None, "intermediate_size": 11008, "n_routed_experts": 64, "num_experts_per_tok":
        None, "moe_intermediate_size": 1407, "n_shared_experts": 2, "n_group": None, "topk_group": None,
    },
    "glm_ocr_text": {
        "hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 8,
        "intermediate_size": 4096,
    },
    "voxtral_realtime_text": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": None, "intermediate_size": 14336,
    },
}  # fmt: skip


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
