"""``config.json`` of the families that vLLM serves: groups of layers, their GEMMs on 4 GPUs, what is left out.

Every number of a table is worked out by hand from the keys of the file; the arithmetic stands beside it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from t3sim.cli import main
from t3sim.config.experiment import MlaSpec, ModelSpec, MoeSpec
from t3sim.workload.models import NamedModel, named_model
from t3sim.workload.sublayers import SUBLAYERS, gemm_of, lacks, projections_of

CONFIGS = Path(__file__).parent / "data" / "configs"
TP = 4
Group = tuple[int, dict[str, int]]  # layers, and local K of each sublayer that they have


def local_k(model: ModelSpec, tp: int = TP) -> dict[str, int]:
    return {name: gemm_of(model, name, tp).k for name in SUBLAYERS if lacks(model, name) is None}


def groups_of(model: NamedModel, tp: int = TP) -> list[Group]:
    return [(one.layers, local_k(one, tp)) for one in model.groups or (model.spec,)]


def of_keys(folder: Path, **keys: Any) -> NamedModel:
    path = folder / "config.json"
    path.write_text(json.dumps(keys), encoding="utf-8")
    return named_model(str(path))


def ffn(width: int, gated: bool = True) -> dict[str, int]:
    """Return local K of a feed-forward part: its share, and of FC-1 twice that behind a gate."""
    return {"FC-2": width // TP, "FC-1": (2 if gated else 1) * width // TP}


def heads(query: int, key: int, size: int, gates: int = 1) -> dict[str, int]:
    """Return local K of attention: query heads of a GPU, with a gate twice, and at least one key and value head."""
    mine = query // TP
    return {"OP": mine * size, "IP": (mine * gates + 2 * max(key // TP, 1)) * size}


# A file of a group of layers for each tuple; MLA: heads / 4 x value size, and no joint QKV.
PUBLIC: dict[str, list[Group]] = {
    "deepseek-v3.1-nvfp4": [(3, {"OP": 32 * 128, **ffn(18432)}), (58, {"OP": 32 * 128})],
    "deepseek-v3.2-nvfp4": [(3, {"OP": 32 * 128, **ffn(18432)}), (58, {"OP": 32 * 128})],
    "deepseek-v3.2": [(3, {"OP": 4096, "FC-2": 4608, "FC-1": 9216}), (58, {"OP": 4096})],
    "deepseek-v4-flash-fp8": [(43, {"OP": 8 // 4 * 1024})],  # the ranks of two groups of output projections
    "gemma-4-26b-a4b-nvfp4": [(25, {**heads(16, 8, 256), **ffn(2112)}), (5, {**heads(16, 2, 512), **ffn(2112)})],
    "gemma-4-26b-a4b": [
        (25, {"OP": 1024, "FC-2": 528, "FC-1": 1056, "IP": (4 + 2 * 2) * 256}),
        (5, {"OP": 2048, "FC-2": 528, "FC-1": 1056, "IP": (4 + 2 * 1) * 512}),
    ],
    "glm-5.1-nvfp4": [(3, {"OP": 16 * 256, **ffn(12288)}), (75, {"OP": 16 * 256})],
    "gpt-oss-120b": [(36, {"OP": 16 * 64, "IP": (16 + 2 * 2) * 64})],
    "kimi-k2.5-nvfp4": [(1, {"OP": 16 * 128, **ffn(18432)}), (60, {"OP": 16 * 128})],
    "kimi-k2.5": [(1, {"OP": 16 * 128, **ffn(18432)}), (60, {"OP": 16 * 128})],
    "llama-4-maverick-17b-128e-instruct": [(24, {**heads(40, 8, 128), **ffn(16384)}), (24, heads(40, 8, 128))],
    "meta-llama-3.1-405b": [(126, {"OP": 4096, "FC-2": 13312, "FC-1": 26624, "IP": (32 + 2 * 2) * 128})],
    "mimo-v2-flash": [  # values of 128, queries and keys of 192
        (1, {"OP": 16 * 128, "IP": (16 + 1) * 192 + 128, **ffn(16384)}),
        (47, {"OP": 16 * 128, "IP": (16 + 1) * 192 + 128}),
    ],
    "minimax-m2.5": [(62, heads(48, 8, 128))],
    "minimax-m3-nvfp4": [(3, {**heads(64, 4, 128), **ffn(12288)}), (57, heads(64, 4, 128))],
    "mixtral-8x22b-v0.1": [(56, {"OP": 1536, "IP": (12 + 2 * 2) * 128})],
    "nvidia-nemotron-3-nano-30b-a3b-bf16": [(23, {}), (23, {}), (6, {"OP": 8 * 128, "IP": (8 + 2) * 128})],
    "qwen3-0.6b": [(28, {"OP": 512, "FC-2": 768, "FC-1": 1536, "IP": (4 + 2 * 2) * 128})],
    "qwen3-235b-a22b": [(94, heads(64, 4, 128))],
    "qwen3-vl-235b-a22b-instruct": [(94, heads(64, 4, 128))],
    "qwen3-vl-2b-instruct": [(28, {**heads(16, 8, 128), **ffn(6144)})],
    "qwen3.5-122b-a10b-nvfp4": [(36, {}), (12, heads(32, 2, 256, gates=2))],
    "qwen3.5-27b": [(48, ffn(17408)), (16, {**heads(24, 4, 256, gates=2), **ffn(17408)})],
    "qwen3.6-27b-nvfp4": [(48, ffn(17408)), (16, {**heads(24, 4, 256, gates=2), **ffn(17408)})],
    "step-3.7-flash-fp8": [(3, {**heads(64, 8, 128), **ffn(11264)}), (42, heads(64, 8, 128))],
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_file(name: str) -> None:
    assert groups_of(named_model(str(CONFIGS / f"{name}.json"))) == PUBLIC[name]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_command_shows_it_in_80_columns(name: str) -> None:
    """Every group, every GEMM with its local K, and the same rows on a fresh command line."""
    words = ["workload", "show", str(CONFIGS / f"{name}.json"), "--tp", str(TP), "--tokens", "1024"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80
    found = [(row[0], int(row[4])) for line in result.output.splitlines() if (row := line.split())[:1]
             and row[0] in SUBLAYERS and row[2] == "1024"]  # fmt: skip
    shown = [(part, sizes[part]) for _, sizes in PUBLIC[name] for part in SUBLAYERS if part in sizes]
    assert found == shown


# Keys of a family on its own, as its checkpoints have them -> the groups.  Hidden size 1024, 8 query heads, 4 GPUs.
GQA = {"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
       "intermediate_size": 4096}  # fmt: skip
MOE = {**GQA, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
LATENT = {**MOE, "n_routed_experts": 16, "kv_lora_rank": 256, "q_lora_rank": None, "qk_nope_head_dim": 64,
          "qk_rope_head_dim": 32, "v_head_dim": 64}  # fmt: skip
PLAIN = {**heads(8, 4, 128), **ffn(4096)}
NO_GATE = {**heads(8, 4, 128), **ffn(4096, gated=False)}
MQA = {"OP": 256, "IP": (2 + 2) * 128, **ffn(4096, gated=False)}
ALL_HEADS = {"OP": 256, "IP": 3 * 256, **ffn(4096, gated=False)}
N_EMBD = {"n_embd": 1024, "n_layer": 4, "n_head": 8}
FAMILIES: dict[str, tuple[dict[str, Any], list[Group]]] = {
    **{name: (GQA, [(4, PLAIN)]) for name in (
        "llama", "mistral", "qwen2", "phi3", "granite", "cohere", "olmo", "olmo2", "olmo3", "stablelm", "smollm3",
        "exaone4", "mimo", "internlm2", "internlm3", "hunyuan_v1_dense", "cohere2", "glm4v_text",
    )},
    **{name: (GQA, [(4, NO_GATE)]) for name in ("starcoder2", "nemotron", "phi", "arcee", "apertus")},
    **{name: ({**GQA, "head_dim": 256}, [(4, {**heads(8, 4, 256), **ffn(4096)})]) for name in (
        "gemma", "gemma2", "gemma3_text", "qwen3", "glm", "glm4", "seed_oss", "ministral", "ernie4_5", "helium",
    )},
    "falcon": ({**GQA, "num_key_value_heads": 8, "multi_query": True}, [(4, MQA)]),
    "falcon that groups queries": (
        {"model_type": "falcon", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
         "num_kv_heads": 4, "new_decoder_architecture": True, "parallel_attn": True}, [(4, NO_GATE)],
    ),
    "RefinedWeb": (
        {"hidden_size": 1024, "n_layer": 4, "n_head": 8, "n_head_kv": 4, "parallel_attn": True}, [(4, NO_GATE)],
    ),
    "gpt_bigcode": ({**N_EMBD, "n_inner": 4096, "multi_query": True}, [(4, MQA)]),
    "gpt_bigcode with all heads": (
        {"model_type": "gpt_bigcode", **N_EMBD, "n_inner": None, "multi_query": False}, [(4, ALL_HEADS)],
    ),
    "gpt2": ({**N_EMBD, "n_inner": None}, [(4, ALL_HEADS)]),
    "gptj": (N_EMBD, [(4, ALL_HEADS)]),
    "bloom": ({"hidden_size": 1024, "n_layer": 4, "n_head": 8}, [(4, ALL_HEADS)]),
    "bloom of its first release": (
        {"model_type": "bloom", "n_embed": 1024, "n_layer": 4, "num_attention_heads": 8}, [(4, ALL_HEADS)],
    ),
    "mllama_text_model": (
        {**GQA, "num_hidden_layers": 4, "cross_attention_layers": [1, 3]}, [(2, PLAIN), (2, ffn(4096))],
    ),
    "mpt": ({"d_model": 1024, "n_layers": 4, "n_heads": 8}, [(4, ALL_HEADS)]),
    "opt": ({"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "ffn_dim": 4096},
            [(4, ALL_HEADS)]),
    "gpt_neox": ({**GQA, "num_key_value_heads": None}, [(4, ALL_HEADS)]),
    "chatglm": (
        {"hidden_size": 1024, "num_layers": 4, "num_attention_heads": 8, "multi_query_group_num": 4,
         "multi_query_attention": True, "kv_channels": 128, "ffn_hidden_size": 4096}, [(4, PLAIN)],
    ),
    "qwen": ({**GQA, "num_key_value_heads": None, "intermediate_size": 8192}, [(4, {**heads(8, 8, 128), **ffn(4096)})]),
    "nemotron-nas": (  # 2 x 6 x 1024 / 3 = 4096; a block without attention, one without a feed-forward part
        {"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": None,
         "intermediate_size": None, "block_configs": [
            {"attention": {"n_heads_in_group": 2, "no_op": False}, "ffn": {"ffn_mult": 6.0, "no_op": False}},
            {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 3.0, "no_op": False}},
            {"attention": {"n_heads_in_group": 2, "no_op": False}, "ffn": {"ffn_mult": None, "no_op": True}},
            {"attention": {"n_heads_in_group": 2, "no_op": False}, "ffn": {"ffn_mult": 6.0, "no_op": False}},
         ]},
        [(2, PLAIN), (1, ffn(2048)), (1, heads(8, 4, 128))],
    ),
    "gemma3n_text": ({**GQA, "head_dim": 128, "intermediate_size": [4096, 4096, 2048, 2048]},
                     [(2, PLAIN), (2, {**heads(8, 4, 128), **ffn(2048)})]),
    "qwen2_moe": ({**MOE, "num_experts": 16, "decoder_sparse_step": 2, "shared_expert_intermediate_size": 1024},
                  [(2, PLAIN), (2, heads(8, 4, 128))]),
    "qwen3_moe": ({**MOE, "num_experts": 16, "mlp_only_layers": [0], "head_dim": 128},
                  [(1, PLAIN), (3, heads(8, 4, 128))]),
    "glm4_moe": ({**MOE, "n_routed_experts": 16, "first_k_dense_replace": 1}, [(1, PLAIN), (3, heads(8, 4, 128))]),
    "ernie4_5_moe": ({**MOE, "moe_num_experts": 16, "moe_layer_start_index": 1, "moe_layer_end_index": 2},
                     [(2, PLAIN), (2, heads(8, 4, 128))]),
    "jamba": ({**MOE, "num_experts": 16, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 4,
               "expert_layer_offset": 1}, [(2, ffn(4096)), (1, heads(8, 4, 128)), (1, PLAIN)]),
    "bamba": ({**GQA, "attn_layer_indices": [2]}, [(3, ffn(4096)), (1, PLAIN)]),
    "qwen3_next": ({**MOE, "num_experts": 16, "head_dim": 128},
                   [(3, {}), (1, heads(8, 4, 128, gates=2))]),
    "falcon_h1": ({**GQA, "head_dim": 128}, [(4, PLAIN)]),
    "granitemoehybrid": (
        {**GQA, "num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 2048,
         "layer_types": ["mamba", "mamba", "mamba", "attention"]},
        [(3, ffn(2048)), (1, {**heads(8, 4, 128), **ffn(2048)})],
    ),
    "dbrx": (
        {"d_model": 1024, "n_layers": 4, "n_heads": 8, "attn_config": {"kv_n_heads": 4},
         "ffn_config": {"moe_num_experts": 16, "moe_top_k": 4, "ffn_hidden_size": 512}}, [(4, heads(8, 4, 128))],
    ),
    "arctic": ({**GQA, "num_local_experts": 16, "num_experts_per_tok": 2, "moe_layer_frequency": 2},
               [(2, PLAIN), (2, {**heads(8, 4, 128), **ffn(1024)})]),
    "longcat_flash": (
        {**{key: value for key, value in LATENT.items() if "intermediate" not in key}, "ffn_hidden_size": 4096,
         "expert_ffn_hidden_size": 512, "moe_topk": 4}, [(4, {"OP": 2 * 64, **ffn(4096)})],
    ),
    "kimi_linear": (
        {**LATENT, "num_experts": 16, "first_k_dense_replace": 1,
         "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2, 3]}},
        [(1, ffn(4096)), (2, {}), (1, {"OP": 2 * 64})],
    ),
    "minicpm3": ({**GQA, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64},
                 [(4, {"OP": 2 * 64, **ffn(4096)})]),
    "step3_text": (
        {**MOE, "num_key_value_heads": None, "num_attention_groups": 1, "head_dim": 256, "moe_num_experts": 16,
         "moe_layers_enum": "2,3"}, [(2, {"OP": 512, **ffn(4096)}), (2, {"OP": 512})],
    ),
    "minimax": ({**GQA, "num_local_experts": 16, "num_experts_per_tok": 2, "head_dim": 128,
                 "attn_type_list": [0, 0, 0, 1]}, [(3, {}), (1, heads(8, 4, 128))]),
    "mimo_v2_flash with other sliding heads": (
        {"model_type": "mimo_v2_flash", **MOE, "n_routed_experts": 16, "head_dim": 192, "v_head_dim": 128,
         "swa_num_key_value_heads": 8, "hybrid_layer_pattern": [0, 1, 1, 1], "moe_layer_freq": [0, 1, 1, 1]},
        [(1, {"OP": 256, "IP": (2 + 1) * 192 + 128, **ffn(4096)}), (3, {"OP": 256, "IP": (2 + 2) * 192 + 2 * 128})],
    ),
    "lfm2": (  # two thirds of 5900, in multiples of 256
        {**GQA, "block_ff_dim": 5900, "layer_types": ["conv", "conv", "conv", "full_attention"]},
        [(3, ffn(4096)), (1, PLAIN)],
    ),
    "bailing_moe_linear": ({**MOE, "num_experts": 16, "layer_group_size": 2, "first_k_dense_replace": 1},
                           [(1, ffn(4096)), (2, heads(8, 4, 128)), (1, {})]),
    "zamba2": (  # heads of 2 x hidden / heads; queries of twice the hidden size
        {**GQA, "num_key_value_heads": 8, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]},
        [(2, {}), (2, {"OP": 2 * 256, **ffn(4096)})],
    ),
    "laguna": (
        {**MOE, "num_experts": 16, "num_attention_heads_per_layer": [8, 8, 16, 16], "head_dim": 128,
         "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]},
        [(1, PLAIN), (1, heads(8, 4, 128)), (2, heads(16, 4, 128))],
    ),
    "ernie4_5_vl_moe": (  # experts for text and for images: those for text
        {**MOE, "moe_num_experts": [16, 16], "moe_intermediate_size": [512, 256], "moe_k": 2,
         "moe_layer_start_index": [1, 1], "moe_layer_end_index": [3, 3]}, [(1, PLAIN), (3, heads(8, 4, 128))],
    ),
    "exaone4 with a pattern in letters": (
        {"model_type": "exaone4", **GQA, "sliding_window_pattern": "LLLG"}, [(4, PLAIN)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family(name: str, tmp_path: Path) -> None:
    keys, groups = FAMILIES[name]
    assert groups_of(of_keys(tmp_path, **{"model_type": name, **keys})) == groups


def test_latent_attention_and_experts_are_data() -> None:
    dense, sparse = named_model(str(CONFIGS / "deepseek-v3.2.json")).groups
    mla = MlaSpec(q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    assert dense.mla == sparse.mla == mla
    assert (dense.moe, dense.intermediate) == (None, 18432)
    moe = MoeSpec(experts=256, top_k=8, intermediate=2048, shared_intermediate=2048, groups=8, top_groups=4)
    assert (sparse.moe, sparse.left_out) == (moe, ("indexer of sparse attention",))


def test_projections_of_latent_attention() -> None:
    """What tensor parallelism slices of MLA, on 8 GPUs: 16 heads each; ranks are on every GPU."""
    sparse = named_model(str(CONFIGS / "deepseek-v3.2.json")).groups[1].model_copy(update={"tokens": 4096})
    found = {one.name: (one.gemm.n, one.gemm.k, one.split) for one in projections_of(sparse, 8)}
    assert found == {
        "q_a": (1536, 7168, "none"), "q_b": (16 * (128 + 64), 1536, "columns"), "kv_a": (512 + 64, 7168, "none"),
        "kv_b": (16 * (128 + 128), 512, "columns"), "shared FC-1": (2 * 2048 // 8, 7168, "columns"),
        "shared FC-2": (7168, 2048 // 8, "rows"),
    }  # fmt: skip


def test_queries_without_a_rank_are_one_projection(tmp_path: Path) -> None:
    model = of_keys(tmp_path, model_type="deepseek_v2", **LATENT).spec
    assert [(one.name, one.gemm.n) for one in projections_of(model, 4)][:2] == [("q", 2 * 96), ("kv_a", 288)]


def test_notes_name_what_is_left_out_and_what_is_read() -> None:
    notes = " ".join(named_model(str(CONFIGS / "qwen3.5-122b-a10b-nvfp4.json")).notes)
    for words in ("text_config", "linear attention (of 36 of 48", "modelopt"):
        assert words in notes
    assert "num_key_value_heads" not in notes


def test_a_wrapper_leaves_its_keys_to_the_class(tmp_path: Path) -> None:
    """Gemma 3's ``text_config`` of hub files has no heads: 8 and 4 of 256 are those of the class, and said so."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    model = of_keys(tmp_path, model_type="gemma3", text_config=text)
    assert groups_of(model) == [(34, {**heads(8, 4, 256), **ffn(10240)})]
    assert any("num_attention_heads 8" in note and "head_dim 256" in note for note in model.notes)


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config"])
def test_wrappers(key: str, tmp_path: Path) -> None:
    model = of_keys(tmp_path, model_type="some_vl_chat", **{key: {"model_type": "qwen2", **GQA}})
    assert groups_of(model) == [(4, PLAIN)]
    assert model.notes[0].startswith(f"{key} is read")


def test_the_architecture_tells_a_type_of_its_own(tmp_path: Path) -> None:
    model = of_keys(tmp_path, model_type="mine", architectures=["LlamaForCausalLM"], **GQA)
    assert groups_of(model) == [(4, PLAIN)]


def test_a_default_is_that_of_the_class_and_null_is_not(tmp_path: Path) -> None:
    """Mistral: 8 key heads if the file does not say, as many as query heads if it says null; Qwen2: 32; Llama: all."""
    keys = {"hidden_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 32, "intermediate_size": 14336}
    absent = {
        name: local_k(of_keys(tmp_path, model_type=name, **keys).spec)["IP"] for name in ("mistral", "qwen2", "llama")
    }
    assert absent == {"mistral": 1536, "qwen2": 3072, "llama": 3072}
    null = of_keys(tmp_path, model_type="mistral", **{**keys, "num_key_value_heads": None})
    assert local_k(null.spec)["IP"] == 3072
    assert not null.notes


def test_a_sublayer_is_of_the_largest_group_that_has_it() -> None:
    model = named_model(str(CONFIGS / "deepseek-v3.2.json"))
    assert (model.with_sublayer("OP").layers, model.with_sublayer("FC-2").layers) == (58, 3)
    assert model.with_sublayer("OP", group=1).name == "deepseek-v3.2#1"
    with pytest.raises(ValueError, match="has 2"):
        model.with_sublayer("OP", group=3)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model_type": "mamba", "hidden_size": 1024, "num_hidden_layers": 4}, "state-space layers"),
        ({"model_type": "bert", **GQA}, "`bert` is not supported"),
        ({"model_type": "nemotron_h", **GQA}, "hybrid_override_pattern: is missing"),
        ({"model_type": "qwen3_5_text", **GQA, "layer_types": ["linear_attention"]}, "layer_types: has 1 layers"),
        ({"model_type": "deepseek_v3", **LATENT, "v_head_dim": 0}, "v_head_dim: found `0`"),
        ({"model_type": "jamba", **MOE, "expert_layer_period": 0}, "expert_layer_period: does not say"),
        ({"model_type": "qwen3", **GQA, "hybrid_layer_pattern": {"a": 1}}, "hybrid_layer_pattern: does not say"),
        ({"model_type": "qwen3", **GQA, "num_attention_heads": []}, "num_attention_heads: found a list"),
        ({"model_type": "glm4_moe", **MOE, "n_shared_experts": 2**61}, "n_shared_experts: found"),
        ({"model_type": "deepseek_v4", **GQA, "head_dim": 64}, "head_dim: is 64, must be above `qk_rope_head_dim`, 64"),
    ],
)  # fmt: skip
def test_refused(keys: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(keys), encoding="utf-8")
    result = CliRunner().invoke(main, ["workload", "show", str(path), "--tp", "4", "--tokens", "64"])
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert words in result.stderr
