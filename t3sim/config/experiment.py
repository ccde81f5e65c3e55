"""Frozen specs of one point of an experiment: workload, strategy, arbitration.

``RunSpec`` is the whole input of one simulation: two equal ``RunSpec`` give bit-equal results.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from t3sim.config.element_types import DEFAULT_TYPE, ELEMENT_TYPES, ElementName
from t3sim.config.experts import ExpertsSpec
from t3sim.config.machine import MachineSpec
from t3sim.config.spec import AtMost, Bytes, Count, Latency, Picoseconds, Share, ShortCycles, Spec, Unit

LayerKind = Literal["training", "prompt", "generation"]
AttentionKind = Literal["unfused", "fused"]
# A GEMM and the collective on its output; an all-gather of the rows of A and the GEMM; a layer of routed experts.
OperatorKind = Literal["gemm-rs", "gemm-ar", "ag-gemm", "gemm-a2a", "moe"]
FEED_FORWARD_FACTOR = 4  # intermediate / hidden of a model that states no other (T3 section 2.3)
Elements = Annotated[Count, Unit("elements")]


class MoeSpec(Spec):
    """Routed experts of a layer, each a feed-forward part, and the shared expert, which every token passes."""

    experts: Count = Field(description="Number of routed experts of a layer.")
    top_k: Count | None = Field(None, description="Routed experts of a token. If omitted, not stated.")
    intermediate: Elements = Field(description="Intermediate size of a routed expert.")
    shared_intermediate: Elements | None = Field(
        None, description="Intermediate size of all shared experts together. If omitted, there is no shared expert."
    )
    groups: Count | None = Field(
        None, description="Groups of experts for group-limited routing. If omitted, no groups."
    )
    top_groups: Count | None = Field(None, description="Groups that the experts of a token may come from.")


class MlaSpec(Spec):
    """Multi-head latent attention: queries, keys and values go through projections of low rank.

    ``q_a`` and ``kv_a`` project the hidden size to the ranks, and every GPU computes them whole; ``q_b`` and ``kv_b``
    project these to the heads, which tensor parallelism slices.  With ``o_lora_rank`` (DeepSeek-V4) the heads share one
    latent vector as key and value, there is no ``kv_b``, and each of ``o_groups`` groups of heads has an output
    projection of that rank before the last one.
    """

    q_lora_rank: Elements | None = Field(
        None, description="Rank of the queries. If omitted, they are projected in one step."
    )
    kv_lora_rank: Elements = Field(description="Rank of keys and values.")
    qk_nope_head_dim: Elements = Field(description="Part of a query and key head without rotary embedding.")
    qk_rope_head_dim: Elements = Field(description="Part of a query and key head with rotary embedding.")
    v_head_dim: Elements = Field(description="Size of a value head.")
    o_groups: Count | None = Field(None, description="Groups of heads with an output projection of their own.")
    o_lora_rank: Elements | None = Field(None, description="Rank of the output projection of a group.")


class OperandTypes(Spec):
    """Element types of the operands of a GEMM, such as ``bf16``, ``fp8``, ``int4``, ``nvfp4``; or ``unknown``."""

    weights: str = Field(description="Element type of the weights, such as `fp8`.")
    activations: str = Field(description="Element type of the activations, such as `bf16`.")


class CheckpointTypes(Spec):
    """Element types that a checkpoint states for each part of a layer; all is simulated as FP16."""

    attention: OperandTypes = Field(description="Element types of the projections of attention.")
    feed_forward: OperandTypes = Field(description="Element types of the dense feed-forward part.")
    experts: OperandTypes = Field(description="Element types of the routed experts.")
    outputs: ElementName | None = Field(
        None, description="Element type of the outputs of all GEMMs. If omitted, BF16, or FP16 with `fp16` activations."
    )
    stated_by: str = Field("", description="The key or file that says so.")
    says: str = Field("", description="Format of the checkpoint, as that key or file calls it.")


class ModelSpec(Spec):
    """Hyperparameters of one layer of a transformer, and the tokens it works on (T3 table 2).

    A model whose layers differ has a spec for each group of like layers.  A model that states only its hidden size has
    the shapes of the T3 study: attention as wide as ``hidden``, a feed-forward part of 4 x ``hidden``.  Raises
    ``ValueError`` if the heads do not make up a width.
    """

    name: str = Field(description="Name of the model in the results; for a preset, the name of its file.")
    hidden: Elements = Field(description="Hidden size: elements of a token between sublayers.")
    layers: Count = Field(description="Number of identical layers.")
    tokens: Annotated[Count, Unit("tokens")] = Field(
        description="Tokens over all sequences: the rows (M) of every GEMM."
    )
    tensor_parallel: tuple[Count, ...] = Field(
        (), description="Tensor-parallel degrees to study. If omitted, `tp` or `--tp` states them."
    )
    sequence: Annotated[Count, Unit("tokens")] | None = Field(
        None, description="Length of one sequence; only attention depends on it."
    )
    heads: Count | None = Field(None, description="Number of query heads. If omitted, attention is `hidden` wide.")
    kv_heads: Count | None = Field(
        None, description="Number of key heads, which is also that of value heads. If omitted, as many as query heads."
    )
    head_dim: Elements | None = Field(None, description="Size of a head. If omitted, `hidden` / `heads`.")
    intermediate: Elements | None = Field(
        None, description="Intermediate size of the feed-forward part. If omitted, 4 x `hidden`."
    )
    gated: bool = Field(False, description="Gated feed-forward part: two up projections (gate and up) instead of one.")
    whole_heads: bool = Field(
        False,
        description="Restriction to whole heads on each GPU; without it, `hidden` is split anywhere, as in the T3 "
        "study.",
    )
    dropout: bool = Field(
        True, description="Dropout on attention probabilities and on both outputs of a layer, in training."
    )
    value_dim: Elements | None = Field(None, description="Size of a value head. If omitted, `head_dim`.")
    query_gate: bool = Field(
        False, description="Gated attention: the query projection has as many columns again, the gate of the output."
    )
    joint_qkv: bool = Field(True, description="One GEMM of the hidden size gives queries, keys and values.")
    parts: tuple[Literal["attention", "feed-forward"], ...] = Field(
        ("attention", "feed-forward"), description="Dense parts that a layer has."
    )
    moe: MoeSpec | None = Field(None, description="Routed experts.")
    mla: MlaSpec | None = Field(None, description="Latent attention instead of key and value heads.")
    elements: CheckpointTypes | None = Field(None, description="Element types that the checkpoint states.")
    group: str = Field("", description="Which layers these are, in a model whose layers differ.")
    left_out: tuple[str, ...] = Field((), description="Further parts of a layer that are not simulated.")

    @model_validator(mode="after")
    def _heads_make_up_a_width(self) -> ModelSpec:
        if self.heads is None:
            for name in ("kv_heads", "head_dim", "whole_heads", "value_dim", "query_gate", "mla"):
                if getattr(self, name):
                    raise ValueError(f"`{name}` needs `heads`")
            return self
        if self.mla is not None:
            return self
        if self.head_dim is None and self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) is not a multiple of heads ({self.heads}); give `head_dim`")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) is not a multiple of kv_heads ({self.kv_heads})")
        return self

    @property
    def attention_width(self) -> int:
        """Elements of all query heads of a token."""
        if self.heads is None or self.head_dim is None:
            return self.hidden
        return self.heads * self.head_dim

    @property
    def key_value_width(self) -> int:
        """Elements of all key heads of a token, and of all value heads."""
        if self.heads is None or self.kv_heads is None:
            return self.attention_width
        return self.attention_width // self.heads * self.kv_heads

    @property
    def feed_forward_width(self) -> int:
        """Elements of a token between the two feed-forward GEMMs; of each up projection if there are two."""
        return FEED_FORWARD_FACTOR * self.hidden if self.intermediate is None else self.intermediate


class GemmShape(Spec):
    """C[m, n] = A[m, k] x B[k, n] on one GPU; k is local to the GPU, n if the rows of A are gathered.

    ``element`` is the type of A (activations), ``weights`` that of B, ``output`` that of C and of what collectives
    carry of it; sums are FP32.  Files and digests name the types only where these are not FP16.
    """

    m: Elements = Field(description="Rows of the output (M).")
    n: Elements = Field(description="Columns of the output (N); for `ag-gemm`, those of one GPU.")
    k: Elements = Field(description="Reduction dimension (K) of one GPU: K / tp if K is split.")
    element: ElementName = Field(
        "fp16",
        description="Element type of the operands: `fp16`, `bf16`, `fp32` (multiplied as TF32), `fp8`, `fp8_rowwise`, "
        "`fp8_block`, `mxfp8`, `mxfp4`, `nvfp4` or `int8`.",
    )
    weights: ElementName | None = Field(
        None, description="Element type of B, if narrower than `element`, such as `int4`. If omitted, that of A."
    )
    output: ElementName | None = Field(
        None,
        description="Element type of the output, and of what its collective carries: `fp16`, `bf16`, `fp32` or `fp8`; "
        "where nothing is added up also `fp8_block`, `mxfp8`, `mxfp4`, `nvfp4` or `int8`. If omitted, BF16, or FP16 "
        "with `fp16` operands.",
    )

    @model_validator(mode="after")
    def _types_fit(self) -> GemmShape:
        if ELEMENT_TYPES[self.element].is_for_weights:
            raise ValueError(f"`element` is {self.element}, a type of weights; give `element: bf16, weights: int4`")
        if self.weights is not None and ELEMENT_TYPES[self.weights].bits > ELEMENT_TYPES[self.element].bits:
            raise ValueError(f"`weights` ({self.weights}) cannot be wider than `element` ({self.element})")
        return self

    @model_serializer(mode="wrap")
    def _without_default_types(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        defaults = {"element": DEFAULT_TYPE, "weights": None, "output": None}
        return {name: value for name, value in serialize(self).items() if defaults.get(name, name) != value}


class TilingSpec(Spec):
    """How a GEMM kernel cuts its work; sizes in elements."""

    workgroup_tile: tuple[Elements, Elements] = Field(description="Output tile of a workgroup: rows and columns.")
    wavefront_tile: tuple[Elements, Elements] = Field(description="Output tile of a wavefront: rows and columns.")
    k_slice: Elements = Field(
        description="Depth in k of the operand slice that is staged at a time, in elements of 16 bits; a slice of "
        "narrower elements has as many bytes."
    )
    prefetch_depth: Count = Field(description="Number of operand slices loaded ahead of the one being multiplied.")
    persistent: bool = Field(
        False,
        description="Persistent kernel: a workgroup keeps its compute unit and processes tiles until none is left.",
    )
    own_tiles: Count | Literal["all"] = Field(
        1,
        description="Tiles assigned statically to each workgroup of a persistent kernel before dynamic assignment "
        "starts; `all` assigns every tile statically.",
    )
    prologue: Latency = Field(
        0,
        description="Set-up time of a workgroup before its first load (barriers, descriptors), on top of "
        "`workgroup_launch`.",
    )
    epilogue: ShortCycles = Field(
        0,
        description="Extra epilogue of each tile before its first store (an exchange through the LDS), on top of that "
        "of the compute unit.",
    )
    whole_slices: bool = Field(
        False, description="Padding of k: a partial last slice occupies the matrix pipe as long as a full one."
    )
    loads_ahead: bool = Field(
        False,
        description="Prefetch across tiles of a persistent kernel: operands of the next tile are loaded before this "
        "tile is stored.",
    )
    cluster: Literal[1, 2] = Field(
        1,
        description="Workgroups that share operand loads: consecutive workgroups of a cluster, or workgroups on two "
        "neighbouring compute units with merged loads. Each loads half of the shared operand.",
    )
    whole_clusters: bool = Field(
        False,
        description="Grouped GEMM: the tile rows of each group are rounded up to whole clusters. An empty tile takes a "
        "compute unit as long as its neighbour's, loads its share of what both need, and stores nothing.",
    )
    group_alignment: Annotated[Count, AtMost(1024), Unit("rows")] = Field(
        1,
        description="Grouped GEMM: the rows of each group are rounded up to a multiple of this; rows of padding are "
        "loaded, multiplied, activated and stored like others.",
    )
    fills_tiles: bool = Field(
        False,
        description="Operand lines of a tile beyond the array, or beyond the group of a grouped GEMM, are filled with "
        "zeros, at `machine.gpu.compute_unit.zero_fill_bytes_per_cycle`; otherwise they take no time.",
    )
    preparation: Latency = Field(
        0,
        description="Grouped GEMM: duration of a kernel that writes the sizes and addresses of its groups, launched "
        "before it. 0: there is no such kernel.",
    )
    column_major: bool = Field(
        False,
        description="Column-major storage of the arrays, as in BLAS; tiles are numbered along rows in both cases.",
    )
    split_k: Count = Field(
        1,
        description="Number of panels that k is split into. Each panel has its own workgroups, which store partial "
        "sums in FP32; a second kernel reduces them. 1 means no split.",
    )
    sum_launch: Latency | None = Field(
        None,
        description="Launch latency of the kernel that reduces partial sums. If omitted, `gpu.kernel_launch` applies.",
    )
    lds: Bytes | None = Field(
        None, description="LDS allocation of a workgroup, or the whole LDS. If omitted, the size of its operand slices."
    )
    group_rows: Count = Field(
        1,
        description="Tile rows of a group that is traversed column by column (Triton: GROUP_SIZE_M); 1 traverses row "
        "by row.",
    )


class PartialSumsSpec(Spec):
    """What it takes a compute unit to add up the partial sums of a GEMM whose k is split, as the library sees it."""

    launch: Annotated[Count, Unit("multiply-adds")] = Field(
        description="Fixed cost of the reduction kernel in the library's cost model."
    )
    element: Annotated[Count, Unit("multiply-adds")] = Field(
        description="Cost of reducing one partial sum on one compute unit in the library's cost model."
    )
    least_slices: Count = Field(1, description="Slices of k that a panel has at least, for the library to split k.")


class KernelRuleSpec(Spec):
    """A kernel, and the GEMMs that a library runs it for."""

    kernel: str = Field(description="Name of one of `kernels`.")
    rows: Count | None = Field(
        None,
        description="For GEMMs of at most so many rows; of a grouped GEMM: so many in the mean of all its groups. If "
        "`columns` is given too, one of both is enough; without either, for all GEMMs.",
    )
    columns: Count | None = Field(None, description="For GEMMs of at most so many columns.")


class KernelLibrarySpec(Spec):
    """The GEMM kernels of a library, by name, and by what it chooses among them for a shape."""

    rules: tuple[KernelRuleSpec, ...] = Field(
        (),
        description="Choice of the kernel: the first rule that holds. If omitted, the kernel with the shortest "
        "schedule in the library's cost model.",
    )
    operand_cost: Annotated[Count, Unit("multiply-adds")] | None = Field(
        None,
        validate_default=True,
        description="Cost of loading one operand element on a compute unit, in the library's cost model. Needed unless "
        "there are `rules`.",
    )
    load_cost: Annotated[Count | Literal[0], Unit("multiply-adds")] = Field(
        0, description="Least time for loading one operand element, which bounds kernels of small tiles."
    )
    partial_sums: PartialSumsSpec | None = Field(
        None, description="Cost model of the reduction of partial sums. If omitted, the library does not split k."
    )
    kernels: Annotated[dict[str, TilingSpec], Field(min_length=1)] = Field(
        description="Kernels by name, each with the keys of one kernel; `every` holds common keys."
    )
    only_kernel: dict[ElementName, str] = Field(
        {}, description="Kernel of all GEMMs of an element type, which does not split k. Other types: any kernel."
    )

    @field_validator("operand_cost")
    @classmethod
    def _needed_without_rules(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is None and not info.data.get("rules"):
            raise PydanticCustomError("missing", "Field required")
        return value

    def __hash__(self) -> int:
        kernels, only = (tuple(one.items()) for one in (self.kernels, self.only_kernel))
        return hash((self.rules, self.operand_cost, self.load_cost, self.partial_sums, kernels, only))


Kernels = TilingSpec | KernelLibrarySpec  # what `tiling:` names: one kernel for every GEMM, or a choice for each


class CollectiveSpec(Spec):
    """A collective on its own: full array size over all chunks, number of GPUs."""

    op: Literal["reduce-scatter", "all-gather", "all-reduce", "all-to-all", "send-receive", "broadcast"] = Field(
        description="Collective operation; `send-receive`: each GPU sends to the next, `broadcast`: GPU 0 to all."
    )
    size: Bytes = Field(description="Size of the full array, over all chunks.")
    gpus: Annotated[int, Field(ge=2, strict=True)] = Field(description="Number of GPUs of the ring.")
    element: Literal["fp16", "bf16", "fp32", "fp8"] = Field(
        "fp16",
        description="Element type of the array: how `--data` rounds its sums; the size of the array is in bytes.",
    )
    algorithm: Literal[
        "nccl", "nccl-ring", "nccl-nvls", "nccl-tree", "vllm", "pytorch-one-shot", "pytorch-two-shot",
        "pytorch-multimem", "vllm-one-stage", "vllm-two-stage", "vllm-multimem", "trtllm", "trtllm-one-shot", "direct",
        "hierarchical",
    ] = Field(
        "nccl",
        description="Library or kernel of a collective: `nccl` chooses by the fabric among rings, their protocols, the "
        "switch, trees, direct and hierarchical ones; `nccl-ring`, `nccl-nvls`, `direct` and `hierarchical` force one; "
        "of an all-reduce, `nccl-tree` forces trees, `vllm` and `trtllm` choose among kernels and NCCL; the others are "
        "one kernel.",
    )  # fmt: skip

    @model_serializer(mode="wrap")
    def _without_default_type(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if (name, value) != ("element", DEFAULT_TYPE)}


class OperatorsSpec(Spec):
    """How fast kernels other than GEMMs are, as shares of a peak of the machine."""

    elementwise: Share = Field(
        description="Share of the DRAM bandwidth that activation, dropout, residual and optimizer kernels reach."
    )
    norm: Share = Field(description="Share of the DRAM bandwidth that layer norm reaches, forward and backward.")
    softmax: Share = Field(
        description="Share of the DRAM bandwidth that scale, mask and softmax of scores reach, forward and backward."
    )
    fused_attention: Share = Field(
        description="Share of the peak matrix rate that fused attention reaches, forward and backward."
    )
    kv_cache: Share = Field(
        description="Share of the DRAM bandwidth at which attention of generated tokens reads the KV cache."
    )


class LayerSpec(Spec):
    """A whole layer of *model*: its sublayers and all its other operators."""

    kind: LayerKind  # training: forward, backward, update; prompt: forward only; generation: a token of each sequence
    attention: AttentionKind
    operators: OperatorsSpec
    model: ModelSpec  # its tokens and sequence are those of this workload
    context: Count | None = None  # of generation: tokens of each sequence whose keys and values are in the cache
    groups: tuple[ModelSpec, ...] = ()  # of generation: all layers that the memory holds, a spec for each group


class WorkloadSpec(Spec):
    """Resolved workload of one point: exactly one of ``gemm``, ``collective``, ``layer`` or ``experts``.

    ``model``/``sublayer`` name where the shape came from, ``trace`` the file it is replayed from; both are None for a
    bare GEMM.  ``operator`` says what is done with a GEMM.
    """

    model: str | None = None
    sublayer: str | None = None
    layer: LayerSpec | None = None
    tp: Annotated[int, Field(ge=1, strict=True)] = 1
    gemm: GemmShape | None = None
    operator: OperatorKind = "gemm-rs"
    collective: CollectiveSpec | None = None
    experts: ExpertsSpec | None = None  # of operator ``moe``, on tp = ep x tp GPUs
    trace: str | None = None
    tiling: TilingSpec
    kernels: KernelLibrarySpec | None = None  # from which parts of the GEMM get kernels of their own; None: of *tiling*


class ArbitrationSpec(Spec):
    """The arbitration policy of the memory controllers, and those of its parameters that are given."""

    policy: str
    params: dict[str, Any] = Field(default_factory=dict)


class RunSpec(Spec):
    """One point: everything one simulation needs."""

    experiment: str
    machine: MachineSpec
    workload: WorkloadSpec
    strategy: str
    strategy_params: dict[str, Any] = Field(default_factory=dict)  # those that are given
    arbitration: ArbitrationSpec | None = None  # None: as the strategy declares
    mode: Literal["mirrored", "explicit"] = "mirrored"
    staggered: bool = True  # each GPU begins with its own chunk; False (explicit only): all begin with chunk 0
    quantum: Annotated[Picoseconds | None, Field(default=None)] = None  # None: the link latency, at most 5 us
    plugins: tuple[str, ...] = ()
