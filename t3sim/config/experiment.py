"""What one point of an experiment asks for: frozen specs of the workload side.

``RunSpec`` is the whole input of one simulation: two equal ``RunSpec`` give bit-equal results.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from t3sim.config.machine import Bytes, Count, Latency, MachineSpec, Picoseconds, Share, ShortCycles, Spec, Unit

LayerKind = Literal["training", "prompt"]
AttentionKind = Literal["unfused", "fused"]
# A GEMM and the collective on its output; an all-gather of the rows of A and the GEMM.
OperatorKind = Literal["gemm-rs", "gemm-ar", "ag-gemm"]
FEED_FORWARD_FACTOR = 4  # intermediate / hidden of a model that states no other (T3 section 2.3)
Elements = Annotated[Count, Unit("elements")]


class ModelSpec(Spec):
    """Hyperparameters of one layer of a transformer, and the tokens it works on (T3 table 2).

    A model that states only its hidden size has the shapes of the T3 study: attention as wide as ``hidden``, a
    feed-forward part of 4 x ``hidden``. Raises ``ValueError`` if the heads do not make up a width.
    """

    name: str = Field(description="of the model in the results; of a preset, its file")
    hidden: Elements = Field(description="of a token between the sublayers")
    layers: Count = Field(description="layers, all alike")
    tokens: Annotated[Count, Unit("tokens")] = Field(description="of all sequences together: rows of every GEMM")
    tensor_parallel: tuple[Count, ...] = Field(description="the degrees studied")
    sequence: Annotated[Count, Unit("tokens")] | None = Field(
        None, description="of one sequence; only attention depends on it"
    )
    heads: Count | None = Field(None, description="query heads; none: attention is as wide as `hidden`")
    kv_heads: Count | None = Field(None, description="key heads, and as many value heads; none: as many as query heads")
    head_dim: Elements | None = Field(None, description="of a head; none: `hidden` / `heads`")
    intermediate: Elements | None = Field(None, description="width of the feed-forward part; none: 4 x `hidden`")
    gated: bool = Field(False, description="two up projections, gate and up, instead of one")
    whole_heads: bool = Field(
        False, description="whether a GPU must hold whole heads; the T3 study slices `hidden` wherever it falls"
    )
    dropout: bool = Field(
        True, description="whether training drops attention probabilities and the outputs of both halves"
    )

    @model_validator(mode="after")
    def _heads_make_up_a_width(self) -> ModelSpec:
        if self.heads is None:
            for name in ("kv_heads", "head_dim", "whole_heads"):
                if getattr(self, name):
                    raise ValueError(f"`{name}` needs `heads`")
            return self
        if self.head_dim is None and self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) is not a multiple of heads ({self.heads}); give `head_dim`")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) is not a multiple of kv_heads ({self.kv_heads})")
        return self

    @property
    def attention_width(self) -> int:
        """Elements of all query heads of a token: what the output projection multiplies."""
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
    """C[m, n] = A[m, k] x B[k, n] in FP16 on one GPU; k is local to the GPU, n if the rows of A are gathered."""

    m: Elements = Field(description="rows of the output")
    n: Elements = Field(description="columns of the output; of `ag-gemm` those of one GPU")
    k: Elements = Field(description="what is summed over, on one GPU")


class TilingSpec(Spec):
    """How a GEMM kernel cuts its work; sizes in elements."""

    workgroup_tile: tuple[Elements, Elements] = Field(description="rows and columns of the output that a workgroup has")
    wavefront_tile: tuple[Elements, Elements] = Field(description="rows and columns of it that a wavefront has")
    k_slice: Elements = Field(description="of k, staged at a time")
    prefetch_depth: Count = Field(description="slices loaded ahead of the one being multiplied")
    persistent: bool = Field(
        False, description="workgroups take tile after tile, and keep their compute units until none is left"
    )
    own_tiles: Count | Literal["all"] = Field(
        1, description="of a persistent kernel: first tiles of each workgroup, which no other takes; `all`: all it has"
    )
    prologue: Latency = Field(
        0, description="of a workgroup besides `workgroup_launch`, before its first load: barriers, descriptors"
    )
    epilogue: ShortCycles = Field(
        0, description="of each tile besides that of its compute unit, before its first store: an exchange in the LDS"
    )
    whole_slices: bool = Field(
        False, description="a last slice of k that is not full takes the matrix pipe as long as one that is"
    )
    loads_ahead: bool = Field(
        False, description="of a persistent kernel: operands of the next tile are loaded before this one is stored"
    )
    cluster: Literal[1, 2] = Field(
        1,
        description="workgroups that follow each other in the order and load what both need once, a half each: a"
        " cluster's, or those on two neighbouring compute units whose loads of a line are merged",
    )
    column_major: bool = Field(
        False, description="arrays are stored by columns, as in BLAS; tiles are numbered along rows all the same"
    )
    split_k: Count = Field(
        1,
        description="panels that k is cut into: each has workgroups of its own for every tile, which store partial"
        " sums in FP32, and a second kernel adds these up; 1: k is not split",
    )
    sum_launch: Latency | None = Field(
        None,
        description="of the kernel that adds up partial sums, from the end of the GEMM on; none: `gpu.kernel_launch`",
    )
    lds: Bytes | None = Field(
        None, description="LDS of a workgroup, or all that there is; none: what its slices of operands take"
    )
    group_rows: Count = Field(
        1, description="rows of tiles that are taken together, column by column (Triton: GROUP_SIZE_M); 1: row by row"
    )


class PartialSumsSpec(Spec):
    """What it takes a compute unit to add up the partial sums of a GEMM whose k is split, as the library sees it."""

    launch: Annotated[Count, Unit("multiply-adds")] = Field(description="as long as the kernel takes that adds nothing")
    element: Annotated[Count, Unit("multiply-adds")] = Field(
        description="as long as one of all compute units takes for each partial sum that it adds"
    )


class KernelLibrarySpec(Spec):
    """The GEMM kernels of a library, by name, and by what it chooses among them for a shape."""

    operand_cost: Annotated[Count, Unit("multiply-adds")] = Field(
        description="of a compute unit, as long as it takes to load an operand element"
    )
    partial_sums: PartialSumsSpec | None = Field(
        None, description="what adding them up takes; none: the library does not split k"
    )
    kernels: Annotated[dict[str, TilingSpec], Field(min_length=1)] = Field(
        description="each kernel by its name, with the keys of one kernel; `every` has those that all share"
    )

    def __hash__(self) -> int:
        return hash((self.operand_cost, self.partial_sums, tuple(self.kernels.items())))


Kernels = TilingSpec | KernelLibrarySpec  # what `tiling:` names: one kernel for every GEMM, or a choice for each


class CollectiveSpec(Spec):
    """A collective on its own: full array size over all chunks, number of GPUs."""

    op: Literal["reduce-scatter", "all-gather", "all-reduce"] = Field(description="which collective")
    size: Bytes = Field(description="of the whole array, all chunks")
    gpus: Annotated[int, Field(ge=2, strict=True)] = Field(description="GPUs of the ring")


class OperatorsSpec(Spec):
    """How fast kernels other than GEMMs are, as shares of a peak of the machine."""

    elementwise: Share = Field(description="of the DRAM bandwidth: activation, dropout, residual, optimizer")
    norm: Share = Field(description="of the DRAM bandwidth: layer norm, both passes")
    softmax: Share = Field(description="of the DRAM bandwidth: scale, mask and softmax of scores, both passes")
    fused_attention: Share = Field(description="of the matrix rate: attention that writes no scores, both passes")


class LayerSpec(Spec):
    """A whole layer of *model*: its sublayers and all its other operators."""

    kind: LayerKind  # training: forward, backward, update; prompt: forward only
    attention: AttentionKind
    operators: OperatorsSpec
    model: ModelSpec  # its tokens and sequence are those of this workload


class WorkloadSpec(Spec):
    """Resolved workload of one point: exactly one of ``gemm``, ``collective`` or ``layer``.

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
