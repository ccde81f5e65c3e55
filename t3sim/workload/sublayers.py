"""The four sublayers "GEMM, then all-reduce" of a tensor-parallel transformer layer (T3 sections 2.3 and 5.2).

All four produce tokens x hidden; they differ in the length of the dot product left to each GPU:

- OP, output projection (forward): the query heads of the GPU;
- FC-2, down projection (forward): its share of the feed-forward width;
- FC-1, input gradient of the up projection (backward): the same, twice if the
  feed-forward part is gated (gate and up projection);
- IP, input gradient of the QKV projection (backward): its query, key and value heads.

With sequence parallelism, what these reduce is scattered by rows, and the other GEMMs of a layer gather the rows first
(operator ``ag-gemm``): QKV and FC-1 (forward, projections to the heads and to the feed-forward width), FC-2 and OP
(backward, gradients of their inputs).  Each of these mirrors one of the four above: its dot product is the hidden
size, and a GPU computes a share of the columns of its output.

A model whose layers differ has these of each group of layers.  Latent attention (MLA) has no QKV GEMM: its projections
are those of ``projections_of``.  Transposed operands are not modelled: they would only change kernel efficiency.
"""

from dataclasses import dataclass
from typing import Any, Literal

from t3sim.config.experiment import GemmShape, ModelSpec, OperatorKind
from t3sim.spelling import spelled_as
from t3sim.units import LIMIT
from t3sim.workload.operands import bytes_of_b
from t3sim.workload.simulated_types import simulated_types

# Sublayer -> phase of training in which it happens; in the order of a layer's forward and backward pass.
SUBLAYER_PHASES: dict[str, str] = {"OP": "forward", "FC-2": "forward", "FC-1": "backward", "IP": "backward"}

SUBLAYERS: tuple[str, ...] = tuple(SUBLAYER_PHASES)

# The same of sublayers "all-gather, then GEMM"; and the sublayer that each of them is the other way round.
GATHERING_PHASES: dict[str, str] = {"QKV": "forward", "FC-1": "forward", "FC-2": "backward", "OP": "backward"}
TURNED_AROUND: dict[str, str] = {"QKV": "IP", "FC-1": "FC-1", "FC-2": "FC-2", "OP": "OP"}

EXPERTS = "MoE"  # the sublayer of routed experts, which is no GEMM: see ``t3sim.workload.moe``

PHASES_OF: dict[OperatorKind, dict[str, str]] = {
    **dict.fromkeys(("gemm-rs", "gemm-ar", "gemm-a2a"), SUBLAYER_PHASES), "ag-gemm": GATHERING_PHASES,
    "moe": {EXPERTS: "forward"},
}  # fmt: skip


# What others call the sublayers, and the modules of checkpoints whose GEMMs they are -> sublayer.
ALSO_CALLED: dict[str, str] = {
    **dict.fromkeys(("mlp", "ffn", "feed-forward", "feed_forward", "down_proj", "down", "w2", "c_proj", "wo_mlp",
                     "dense_4h_to_h", "mlp.down_proj"), "FC-2"),
    **dict.fromkeys(("up_proj", "gate_proj", "gate_up_proj", "up", "w1", "w3", "w13", "c_fc", "dense_h_to_4h",
                     "mlp.up_proj"), "FC-1"),
    **dict.fromkeys(("attention", "attn", "self_attn", "o_proj", "out_proj", "wo", "o", "dense", "self_attn.o_proj",
                     "attn_out"), "OP"),
    **dict.fromkeys(("qkv_proj", "q_proj", "k_proj", "v_proj", "wqkv", "c_attn", "query_key_value"), "QKV"),
}  # fmt: skip
# GEMMs of latent attention and of shared experts: no collective of their own, but for the last.
PROJECTIONS = ("q", "q_a", "q_b", "kv_a", "kv_b", "o_a", "shared FC-1", "shared FC-2")
Split = Literal["rows", "columns", "none"]


@dataclass(frozen=True)
class Projection:
    """A GEMM of a layer that is no sublayer, as one GPU computes it, and what of it tensor parallelism slices.

    ``split``: columns of the output (each GPU has its own), rows of the weights (outputs are summed), or none: every
    GPU computes the same.  ``times``: how often a GPU computes such a one, each with other weights.
    """

    name: str  # of PROJECTIONS
    gemm: GemmShape
    split: Split
    times: int = 1


@dataclass(frozen=True)
class Slice:
    """What one of *tp* GPUs holds of a layer, in elements of a token."""

    query: int  # query heads x head size
    key_value: int  # key heads x head size, and as many of values
    feed_forward: int  # between the feed-forward GEMMs; of each up projection


def gemm_of(model: ModelSpec, sublayer: str, tp: int, operator: OperatorKind = "gemm-rs") -> GemmShape:
    """Return the GEMM that one of *tp* GPUs computes for *sublayer* of an *operator*.

    Raises ``ValueError`` if the dot product cannot be sliced evenly: T3 slices in K exactly, and so do we.  A model
    with ``whole_heads`` is sliced by heads; its key and value heads are replicated where there are fewer of them than
    GPUs.
    """
    if sublayer not in PHASES_OF[operator]:
        raise ValueError(f"unknown sublayer {sublayer!r}; known: {', '.join(PHASES_OF[operator])}")
    if tp < 1:
        raise ValueError(f"tp is {tp}; at least 1 GPU is needed")
    why_not = lacks(model, TURNED_AROUND.get(sublayer, sublayer))
    if why_not is not None:
        raise ValueError(f"{model.name} {sublayer}: {why_not}")
    if operator == "ag-gemm":
        turned = gemm_of(model, TURNED_AROUND[sublayer], tp)
        return turned.model_copy(update={"n": turned.k, "k": turned.n})
    k = _local_k(model, sublayer, tp)
    if k >= LIMIT:
        raise ValueError(f"{model.name} {sublayer}: a dot product of {k} elements, must be below 2^62")
    return GemmShape(m=model.tokens, n=model.hidden, k=k, **types_of(model, sublayer))


def types_of(model: ModelSpec, sublayer: str) -> dict[str, Any]:
    """Return the element types of the tensors of *sublayer*, as fields of ``GemmShape``."""
    if model.elements is None:
        return {}
    of = model.elements.feed_forward if sublayer in ("FC-1", "FC-2") else model.elements.attention
    outputs = {} if model.elements.outputs is None else {"output": model.elements.outputs}
    return {**simulated_types(of), **outputs}


def lacks(model: ModelSpec, sublayer: str) -> str | None:
    """Return why *model* has no such sublayer, one of ``SUBLAYERS``; None if it has."""
    if sublayer in PROJECTIONS:
        own = [one.name for one in projections_of(model, 1)]
        return None if sublayer in own else f"these layers have {', '.join(own) or 'no such projection'}"
    if sublayer == EXPERTS:
        return None if model.moe is not None else "these layers have no routed experts"
    if sublayer in ("FC-1", "FC-2"):
        if "feed-forward" in model.parts:
            return None
        return "these layers have none" if model.moe is None else f"these layers have routed experts instead: {EXPERTS}"
    if "attention" not in model.parts:
        return f"these layers have none: {' and '.join(model.left_out) or 'no attention'}"
    if sublayer == "IP" and not model.joint_qkv:
        return "queries, keys and values have projections of low rank, not one GEMM; `t3sim workload show` lists them"
    return None


def sublayer_spelled(name: str) -> str:
    """Return the sublayer that *name* is but for case and ``-``, like ``fc2``; *name* itself if there is none."""
    return spelled_as(name, dict.fromkeys([*(one for phases in PHASES_OF.values() for one in phases), *PROJECTIONS]))


def sublayer_called(name: str) -> str | None:
    """Return the sublayer that *name* represents elsewhere, such as ``down_proj``; None if there is none."""
    return ALSO_CALLED.get(name.lower())


def projections_of(model: ModelSpec, tp: int) -> list[Projection]:
    """Return the GEMMs of latent attention and of shared experts on one of *tp* GPUs, in the order of a forward pass.

    Raises ``ValueError`` if they cannot be sliced.
    """
    found: list[Projection] = []

    def add(name: str, n: int, k: int, split: Split, times: int = 1) -> None:
        types = types_of(model, "FC-2" if name.startswith("shared") else "OP")
        found.append(Projection(name, GemmShape(m=model.tokens, n=n, k=k, **types), split, times))

    mla = model.mla
    if mla is not None and "attention" in model.parts:
        heads = _share(model, "OP", "heads", _stated(model.heads), tp)
        query = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
        if mla.q_lora_rank is None:
            add("q", query, model.hidden, "columns")
        else:
            add("q_a", mla.q_lora_rank, model.hidden, "none")
            add("q_b", query, mla.q_lora_rank, "columns")
        add("kv_a", mla.kv_lora_rank + mla.qk_rope_head_dim, model.hidden, "none")
        if mla.o_lora_rank is None or mla.o_groups is None:
            add("kv_b", heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank, "columns")
        else:
            groups = _share(model, "OP", "o_groups", mla.o_groups, tp)
            width = _stated(model.heads) * mla.v_head_dim // mla.o_groups
            add("o_a", mla.o_lora_rank, width, "columns", groups)
    shared = None if model.moe is None else model.moe.shared_intermediate
    if shared is not None:
        width = _share(model, "FC-2", "width of shared experts", shared, tp)
        add("shared FC-1", width * (2 if model.gated else 1), model.hidden, "columns")
        add("shared FC-2", model.hidden, width, "rows")
    return found


def slice_of(model: ModelSpec, tp: int) -> Slice:
    """Return what one of *tp* GPUs holds of a layer; raises ``ValueError`` if the layer cannot be sliced so."""
    query, feed_forward = _local_k(model, "OP", tp), _local_k(model, "FC-2", tp)
    if model.whole_heads:
        return Slice(query, _kv_heads_of_a_gpu(model, "IP", tp) * _head_width(model), feed_forward)
    return Slice(query, _share(model, "IP", "kv_heads x head_dim", model.key_value_width, tp), feed_forward)


def cache_width(model: ModelSpec, tp: int) -> int:
    """Return the elements that one of *tp* GPUs keeps of each token of a context: keys and values of a layer.

    Latent attention keeps one vector for all heads, on every GPU.  Raises ``ValueError`` as ``gemm_of`` does.
    """
    if "attention" not in model.parts:
        return 0
    if model.mla is not None:
        return model.mla.kv_lora_rank + model.mla.qk_rope_head_dim
    if not model.whole_heads:
        return 2 * _share(model, "IP", "kv_heads x head_dim", model.key_value_width, tp)
    width = _head_width(model)
    return _kv_heads_of_a_gpu(model, "IP", tp) * (width + (model.value_dim or width))


def weight_bytes_of(model: ModelSpec, tp: int) -> int:
    """Return the bytes of a layer's weights on one of *tp* GPUs, in their types; routed experts included."""
    gemms = [one.gemm for one in projections_of(model, tp) for _ in range(one.times)]
    gemms += [gemm_of(model, name, tp) for name in SUBLAYERS if lacks(model, name) is None]
    found = sum(bytes_of_b(gemm, gemm.n * gemm.k) for gemm in gemms)
    if model.moe is not None:
        types = {} if model.elements is None else simulated_types(model.elements.experts)
        n = model.moe.experts * (3 if model.gated else 2) * model.hidden * model.moe.intermediate // tp
        found += bytes_of_b(GemmShape(m=1, n=1, k=1, **types), n)
    return found


def _local_k(model: ModelSpec, sublayer: str, tp: int) -> int:
    """Return the dot product left to one of *tp* GPUs."""
    if sublayer in ("FC-2", "FC-1"):
        n_projections = 2 if model.gated and sublayer == "FC-1" else 1
        name = "4 x hidden" if model.intermediate is None else "intermediate"
        return n_projections * _share(model, sublayer, name, model.feed_forward_width, tp)
    if model.mla is not None:
        if model.mla.o_lora_rank is not None and model.mla.o_groups is not None:
            return _share(model, sublayer, "o_groups", model.mla.o_groups, tp) * model.mla.o_lora_rank
        return _share(model, sublayer, "heads", _stated(model.heads), tp) * model.mla.v_head_dim
    if model.whole_heads:
        n_heads = _share(model, sublayer, "heads", _stated(model.heads), tp)
        values = model.value_dim or _head_width(model)
        if sublayer == "OP":
            return n_heads * values
        n_queries = n_heads * (2 if model.query_gate else 1)
        kv_heads = _kv_heads_of_a_gpu(model, sublayer, tp)
        return (n_queries + kv_heads) * _head_width(model) + kv_heads * values
    if sublayer == "OP":
        name = "hidden" if model.head_dim is None else "heads x head_dim"
        return _share(model, sublayer, name, model.attention_width, tp)
    name = "3 x hidden" if model.head_dim is None and model.kv_heads is None else "(heads + 2 kv_heads) x head_dim"
    return _share(model, sublayer, name, model.attention_width + 2 * model.key_value_width, tp)


def _kv_heads_of_a_gpu(model: ModelSpec, sublayer: str, tp: int) -> int:
    kv_heads = model.kv_heads or _stated(model.heads)
    if tp <= kv_heads:
        return _share(model, sublayer, "kv_heads", kv_heads, tp)
    if tp % kv_heads:
        raise ValueError(f"{model.name} {sublayer}: tp ({tp}) is not a multiple of kv_heads ({kv_heads})")
    return 1  # a copy: each key and value head is on tp / kv_heads GPUs, as real systems do


def _head_width(model: ModelSpec) -> int:
    return model.attention_width // _stated(model.heads)


def _share(model: ModelSpec, sublayer: str, name: str, whole: int, tp: int) -> int:
    share, rest = divmod(whole, tp)
    if rest:
        raise ValueError(f"{model.name} {sublayer}: {name} ({whole}) is not divisible by tp ({tp}), remainder {rest}")
    return share


def _stated(heads: int | None) -> int:
    assert heads is not None  # ModelSpec: `whole_heads` needs `heads`
    return heads
