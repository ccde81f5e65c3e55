"""FLOPs and bytes of the operators of a transformer layer on one GPU, apart from its four sublayers.

A layer sliced over TP GPUs as in Megatron-LM (without sequence parallelism): QKV and up projection by columns, output
and down projection by rows, attention by heads; layer norms, residuals and dropout of the outputs are done by every GPU
on all tokens.  Each operator is one kernel that reads its inputs from DRAM once and writes its outputs once.

What each costs is in ``t3sim/system/layer.py``.  FLOPs are those of matrix units: 2 M N K for a GEMM, nothing for
elementwise operators, norms and softmax, which DRAM bandwidth bounds.
Masks save nothing: neither a causal nor a window mask lets a kernel skip scores.  Elements: activations, weights and
gradients FP16 (2 bytes), dropout masks 1 byte, master weights and both moments of Adam FP32 (4 bytes).  A norm (layer
or RMS) reads and writes the tokens once.  Left out, as small: biases, statistics and weights of norms, rotary
embeddings (taken as part of the QKV kernel).

A layer of *generation* makes one token of each sequence: the rows of its GEMMs are sequences.  All its GEMMs are
simulated; attention is one kernel that reads the keys and values of the context of each sequence once (of latent
attention, one vector for all heads, with the projections of keys and values absorbed into those around it).

Unfused attention writes matrices of batch x heads x sequence x sequence to DRAM: forward the scores, the probabilities
and, if training has dropout, the dropped probabilities and their mask; backward the gradient of each of the three.
Fused attention writes none of them and computes the scores once more in the backward pass.  Pinned by
``tests/workload/test_layer.py``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from t3sim.config.experiment import AttentionKind, GemmShape, LayerKind, LayerSpec, ModelSpec, RunSpec, WorkloadSpec
from t3sim.workload.kernel_choice import tiling_of
from t3sim.workload.operands import operand_bytes
from t3sim.workload.outputs import output_bytes
from t3sim.workload.sublayers import (
    SUBLAYER_PHASES,
    cache_width,
    gemm_of,
    projections_of,
    slice_of,
    types_of,
    weight_bytes_of,
)  # fmt: skip

ACTIVATION_BYTES = 2  # FP16
MASK_BYTES = 1
# Adam, for each parameter: FP16 gradient read; FP32 master weight, two moments read and written; FP16 weight written.
UPDATE_BYTES = 2 + 3 * (4 + 4) + 2
FUSED_BACKWARD_PRODUCTS = 5  # scores once more, then the gradients of values, probabilities, queries and keys


KernelKind = Literal[
    "elementwise", "norm", "softmax", "fused_attention", "kv_cache"
]  # a field of ``OperatorsSpec`` each


@dataclass(frozen=True)
class Operator:
    """One kernel on one GPU; ``n_bytes`` are read from DRAM and written to it.

    ``kernel`` is a GEMM of that shape, ``n_gemms`` of them in a batched one, or another kind of kernel.
    """

    name: str
    phase: str  # forward, backward or update
    flops: float  # on matrix units
    n_bytes: float
    kernel: GemmShape | KernelKind
    n_gemms: float = 1.0


def sublayers_of(kind: LayerKind) -> tuple[str, ...]:
    """Return the sublayers of a layer in the order in which they happen: those of the forward pass, or all four."""
    return tuple(name for name, phase in SUBLAYER_PHASES.items() if kind == "training" or phase == "forward")


def sublayer_workloads(workload: WorkloadSpec) -> list[WorkloadSpec]:
    """Return the workloads of the sublayers that *workload* is made of: itself, unless it is a whole layer."""
    layer = workload.layer
    if layer is None:
        return [workload]
    if layer.kind == "generation":
        return list(_generation_workloads(workload, layer.model))
    return [
        workload.model_copy(update={"layer": None, "sublayer": name, "gemm": gemm_of(layer.model, name, workload.tp)})
        for name in sublayers_of(layer.kind)
    ]


def _generation_workloads(workload: WorkloadSpec, model: ModelSpec) -> Iterator[WorkloadSpec]:
    """Yield all GEMMs of a layer of generation; those whose output stays on its GPU have no collective and tp 1."""

    def part(name: str, gemm: GemmShape, *, is_alone: bool) -> WorkloadSpec:
        alone = {"tp": 1, "operator": "gemm-rs"} if is_alone else {}
        return workload.model_copy(update={"layer": None, "sublayer": name, "gemm": gemm, **alone})

    tp = workload.tp
    if model.mla is None:
        yield part("QKV", gemm_of(model, "QKV", tp, "ag-gemm"), is_alone=True)
    for one in projections_of(model, tp) if model.mla is not None else ():  # of one o_a at most: ``why_no_layer``
        yield part(one.name, one.gemm, is_alone=True)
    yield part("OP", gemm_of(model, "OP", tp), is_alone=False)
    yield part("FC-1", gemm_of(model, "FC-1", tp, "ag-gemm"), is_alone=True)
    yield part("FC-2", gemm_of(model, "FC-2", tp), is_alone=False)


def sublayer_runs(run: RunSpec) -> list[RunSpec]:
    """Return the points of the sublayers that *run* is made of: itself, unless it is a whole layer."""
    if run.workload.layer is None:
        return [run]
    workloads = sublayer_workloads(run.workload)
    kernels, n_units = run.workload.kernels, run.machine.gpu.n_compute_units
    if kernels is not None:  # one that splits k is chosen by the k of each
        every = [(one, tiling_of(kernels, one.gemm, n_units)) for one in workloads if one.gemm is not None]
        workloads = [one.model_copy(update={"tiling": tiling}) for one, tiling in every]
    # A GEMM without a collective has nothing to overlap with, and is the same on all GPUs.
    plain: dict[str, Any] = {
        "strategy": "sequential",
        "strategy_params": {},
        "arbitration": None,
        "mode": "mirrored",
        "staggered": True,
    }
    is_generation = run.workload.layer.kind == "generation"
    return [
        run.model_copy(update={"workload": one, **(plain if is_generation and one.tp == 1 else {})})
        for one in workloads
    ]


def why_no_layer(model: ModelSpec, kind: LayerKind) -> str | None:
    """Return why a whole layer of *model* cannot be computed; None if it can."""
    if model.heads is None:
        return f"`{model.name}` has no `heads`, which a layer needs"
    if kind == "generation":
        is_grouped = model.mla is not None and model.mla.o_lora_rank is not None
        if model.moe or model.left_out or len(model.parts) < 2 or is_grouped:
            needed = "attention and one dense feed-forward part"
            return f"a layer of generation has {needed}; of `{model.name}` take a `sublayer`"
        return None
    if model.moe or model.left_out or model.mla or model.query_gate or model.value_dim or len(model.parts) < 2:
        return f"a whole layer has plain attention and one dense feed-forward part; of `{model.name}` take a `sublayer`"
    return None


def other_operators(layer: LayerSpec, tp: int) -> list[Operator]:
    """Return everything a layer does on one of *tp* GPUs besides its sublayers, in order.

    Raises ``ValueError`` if the layer cannot be sliced, or its model says nothing about heads or sequences.
    """
    if layer.kind == "generation":
        return list(_of_generation(layer, tp))
    operators = _Operators(layer.model, layer.attention, tp, is_training=layer.kind == "training")
    found = list(operators.forward())
    if layer.kind == "training":
        found += [*operators.backward(), operators.update()]
    return found


@dataclass(frozen=True)
class Held:
    """Bytes that all layers of a model take on one GPU: weights, and keys and values of a token of one sequence."""

    weights: int
    per_token: int


def held_of(layer: LayerSpec, tp: int) -> Held:
    """Return what the memory of one of *tp* GPUs holds; embeddings and activations, which are small, are left out."""
    groups = layer.groups or (layer.model,)
    weights = sum(one.layers * weight_bytes_of(one, tp) for one in groups)
    return Held(weights, ACTIVATION_BYTES * sum(one.layers * cache_width(one, tp) for one in groups))


def _of_generation(layer: LayerSpec, tp: int) -> Iterator[Operator]:
    """Yield what a layer does besides its GEMMs to one token of each sequence."""
    model, phase, tokens = layer.model, "forward", layer.model.tokens
    assert layer.context is not None
    output, n_scores = tokens * model.hidden, tokens * layer.context

    def moved(name: str, n: int, kernel: KernelKind = "elementwise") -> Operator:
        return Operator(name, phase, 0.0, ACTIVATION_BYTES * n, kernel)

    queries = gemm_of(model, "OP", tp).k
    flops = 4.0 * n_scores * queries  # scores and context of each head: as wide as its part of the output projection
    if model.mla is not None:
        heads = queries // model.mla.v_head_dim
        flops = 2.0 * n_scores * heads * (2 * model.mla.kv_lora_rank + model.mla.qk_rope_head_dim)
    n_bytes = ACTIVATION_BYTES * (n_scores * cache_width(model, tp) + 2 * tokens * queries)  # and output
    up = gemm_of(model, "FC-1", tp, "ag-gemm").n
    yield moved("norm 1", 2 * output, "norm")
    yield Operator("attention, KV cache", phase, flops, n_bytes, "kv_cache")
    yield moved("residual 1", 3 * output)
    yield moved("norm 2", 2 * output, "norm")
    yield moved("activation", tokens * (up + gemm_of(model, "FC-2", tp).k))
    yield moved("residual 2", 3 * output)


class _Operators:
    """The operators of one layer; sizes in elements of one GPU."""

    def __init__(self, model: ModelSpec, attention: AttentionKind, tp: int, *, is_training: bool) -> None:
        if model.heads is None or model.sequence is None:
            raise ValueError(f"{model.name}: attention needs the number of heads and the length of a sequence")
        if model.tokens % model.sequence:
            raise ValueError(
                f"{model.name}: tokens ({model.tokens}) are not a whole number of sequences of {model.sequence}"
            )
        local, self.model = slice_of(model, tp), model
        self.is_fused = attention == "fused"
        self.has_dropout = is_training and model.dropout
        self.added = "dropout, residual" if self.has_dropout else "residual"
        self.tokens, self.hidden, self.output = model.tokens, model.hidden, model.tokens * model.hidden
        self.query, self.key_value, self.feed_forward = local.query, local.key_value, local.feed_forward
        self.qkv = local.query + 2 * local.key_value
        self.up = local.feed_forward * (2 if model.gated else 1)
        # The T3 study slices hidden wherever it falls: a GPU may hold a part of a head, and that part of its scores.
        self.scores = model.tokens * model.sequence * model.heads / tp
        self.product_flops = 2.0 * model.tokens * model.sequence * local.query  # one product of all heads
        self.sequence, self.head = model.sequence, model.attention_width // model.heads

    def forward(self) -> Iterator[Operator]:
        yield self._moved("norm 1", "forward", self.output, 2, "norm")  # input read, result written
        yield self._gemm("QKV", "forward", self.tokens, self.qkv, self.hidden)
        yield from self._attention()
        # Reduced output and residual read; their sum written, and the mask if there is dropout.
        yield self._moved(f"{self.added} 1", "forward", self.output, 3, mask=self.has_dropout)
        yield self._moved("norm 2", "forward", self.output, 2, "norm")
        yield self._gemm("FC-1", "forward", self.tokens, self.up, self.hidden)
        yield self._moved("activation", "forward", self.tokens * (self.up + self.feed_forward), 1)
        yield self._moved(f"{self.added} 2", "forward", self.output, 3, mask=self.has_dropout)

    def backward(self) -> Iterator[Operator]:
        if self.has_dropout:
            yield self._moved("dropout 2", "backward", self.output, 2, mask=True)
        yield self._gemm("FC-2 input gradient", "backward", self.tokens, self.feed_forward, self.hidden)
        yield self._gemm("FC-2 weight gradient", "backward", self.feed_forward, self.hidden, self.tokens)
        n_activations = self.tokens * (self.feed_forward + 2 * self.up)  # gradient and inputs read, gradients written
        yield self._moved("activation", "backward", n_activations, 1)
        yield self._gemm("FC-1 weight gradient", "backward", self.hidden, self.up, self.tokens)
        # Gradient, input and gradient of the residual path read; their gradient written.
        yield self._moved("norm 2", "backward", self.output, 4, "norm")
        if self.has_dropout:
            yield self._moved("dropout 1", "backward", self.output, 2, mask=True)
        yield self._gemm("OP input gradient", "backward", self.tokens, self.query, self.hidden)
        yield self._gemm("OP weight gradient", "backward", self.query, self.hidden, self.tokens)
        yield from self._attention_gradient()
        yield self._gemm("QKV weight gradient", "backward", self.hidden, self.qkv, self.tokens)
        yield self._moved("norm 1", "backward", self.output, 4, "norm")

    def update(self) -> Operator:
        n_parameters = self.hidden * (self.qkv + self.query + self.up + self.feed_forward)
        return Operator("optimizer", "update", 0.0, UPDATE_BYTES * n_parameters, "elementwise")

    def _gemm(self, name: str, phase: str, m: int, n: int, k: int) -> Operator:
        part = "FC-1" if name.startswith("FC") else "OP"
        gemm = GemmShape(m=m, n=n, k=k, **types_of(self.model, part))
        return Operator(name, phase, 2.0 * m * n * k, operand_bytes(gemm) + output_bytes(gemm), gemm)

    def _moved(
        self, name: str, phase: str, n: float, n_arrays: int, kernel: KernelKind = "elementwise", *, mask: bool = False
    ) -> Operator:
        """A kernel over arrays of *n* elements, read and written, and perhaps over a dropout *mask*."""
        return Operator(name, phase, 0.0, (n_arrays * ACTIVATION_BYTES + MASK_BYTES * mask) * n, kernel)

    def _attention(self) -> Iterator[Operator]:
        queries, keys = self.tokens * self.query, self.tokens * self.key_value  # values are as many as keys
        if self.is_fused:
            n_bytes = ACTIVATION_BYTES * (2 * queries + 2 * keys)  # and the context, as large as the queries
            yield Operator("fused attention", "forward", 2 * self.product_flops, n_bytes, "fused_attention")
            return
        yield self._product("scores", "forward", queries + keys + self.scores, makes_scores=True)
        yield self._moved("scale, mask, softmax", "forward", self.scores, 2, "softmax")
        if self.has_dropout:
            yield self._moved("attention dropout", "forward", self.scores, 2, mask=True)
        yield self._product("context", "forward", self.scores + keys + queries)

    def _attention_gradient(self) -> Iterator[Operator]:
        queries, keys = self.tokens * self.query, self.tokens * self.key_value
        if self.is_fused:  # reads queries, keys, values, context and its gradient; writes three gradients
            flops = FUSED_BACKWARD_PRODUCTS * self.product_flops
            n_bytes = ACTIVATION_BYTES * (4 * queries + 4 * keys)
            yield Operator("fused attention", "backward", flops, n_bytes, "fused_attention")
            return
        yield self._product("value gradient", "backward", self.scores + queries + keys)
        yield self._product("probability gradient", "backward", queries + keys + self.scores, makes_scores=True)
        if self.has_dropout:
            yield self._moved("attention dropout", "backward", self.scores, 2, mask=True)
        # Two gradients and the probabilities.
        yield self._moved("scale, mask, softmax", "backward", self.scores, 3, "softmax")
        yield self._product("query gradient", "backward", self.scores + keys + queries)
        yield self._product("key gradient", "backward", self.scores + queries + keys)

    def _product(self, name: str, phase: str, n_elements: float, *, makes_scores: bool = False) -> Operator:
        """A batched GEMM with one matrix of scores for each sequence and head, made or multiplied."""
        s, head = self.sequence, self.head
        gemm = GemmShape(m=s, n=s, k=head) if makes_scores else GemmShape(m=s, n=head, k=s)
        return Operator(name, phase, self.product_flops, ACTIVATION_BYTES * n_elements, gemm, self.scores / s**2)
