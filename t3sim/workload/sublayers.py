"""The four sublayers "GEMM, then all-reduce" of a tensor-parallel transformer layer (T3 sections 2.3 and 5.2).

All four produce tokens x hidden; they differ in the length of the dot product left to each GPU:

- OP, output projection (forward): the query heads of the GPU;
- FC-2, down projection (forward): its share of the feed-forward width;
- FC-1, input gradient of the up projection (backward): the same, twice if the
  feed-forward part is gated (gate and up projection);
- IP, input gradient of the QKV projection (backward): its query, key and value heads.

With sequence parallelism, what these reduce is scattered by rows, and the other GEMMs of a layer gather the rows first
(operator ``ag-gemm``): QKV and FC-1 (forward, projections to the heads and to the feed-forward width), FC-2 and OP
(backward, gradients of their inputs).  Each of these is one of the four above the other way round: the hidden size is
its dot product, and what is left to a GPU are columns of its output.

Transposed operands are not modelled: they would only change kernel efficiency.
"""

from dataclasses import dataclass

from t3sim.config.experiment import GemmShape, ModelSpec, OperatorKind
from t3sim.units import LIMIT

# Sublayer -> phase of training in which it happens; in the order of a layer's forward and backward pass.
SUBLAYER_PHASES: dict[str, str] = {"OP": "forward", "FC-2": "forward", "FC-1": "backward", "IP": "backward"}

SUBLAYERS: tuple[str, ...] = tuple(SUBLAYER_PHASES)

# The same of sublayers "all-gather, then GEMM"; and the sublayer that each of them is the other way round.
GATHERING_PHASES: dict[str, str] = {"QKV": "forward", "FC-1": "forward", "FC-2": "backward", "OP": "backward"}
TURNED_AROUND: dict[str, str] = {"QKV": "IP", "FC-1": "FC-1", "FC-2": "FC-2", "OP": "OP"}

PHASES_OF: dict[OperatorKind, dict[str, str]] = {
    "gemm-rs": SUBLAYER_PHASES, "gemm-ar": SUBLAYER_PHASES, "ag-gemm": GATHERING_PHASES,
}  # fmt: skip


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
    if operator == "ag-gemm":
        turned = gemm_of(model, TURNED_AROUND[sublayer], tp)
        return GemmShape(m=turned.m, n=turned.k, k=turned.n)
    k = _local_k(model, sublayer, tp)
    if k >= LIMIT:
        raise ValueError(f"{model.name} {sublayer}: a dot product of {k} elements, must be below 2^62")
    return GemmShape(m=model.tokens, n=model.hidden, k=k)


def slice_of(model: ModelSpec, tp: int) -> Slice:
    """Return what one of *tp* GPUs holds of a layer; raises ``ValueError`` if the layer cannot be sliced so."""
    query, feed_forward = _local_k(model, "OP", tp), _local_k(model, "FC-2", tp)
    if model.whole_heads:
        return Slice(query, _kv_heads_of_a_gpu(model, "IP", tp) * _head_width(model), feed_forward)
    return Slice(query, _share(model, "IP", "kv_heads x head_dim", model.key_value_width, tp), feed_forward)


def _local_k(model: ModelSpec, sublayer: str, tp: int) -> int:
    """Return the dot product left to one of *tp* GPUs."""
    if sublayer in ("FC-2", "FC-1"):
        n_projections = 2 if model.gated and sublayer == "FC-1" else 1
        name = "4 x hidden" if model.intermediate is None else "intermediate"
        return n_projections * _share(model, sublayer, name, model.feed_forward_width, tp)
    if model.whole_heads:
        n_heads = _share(model, sublayer, "heads", _stated(model.heads), tp)
        if sublayer == "IP":
            n_heads += 2 * _kv_heads_of_a_gpu(model, sublayer, tp)
        return n_heads * _head_width(model)
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
