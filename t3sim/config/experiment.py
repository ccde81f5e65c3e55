"""What one point of an experiment asks for: frozen specs of the workload side.

``RunSpec`` is the whole input of one simulation: two equal ``RunSpec`` give
bit-equal results.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from t3sim.config.machine import Bytes, Count, Cycles, MachineSpec, Picoseconds, Spec

STRATEGIES = ("sequential", "t3", "t3-mca", "ideal-overlap", "ideal-rs-nmc")


class ModelSpec(Spec):
    """Hyperparameters of a transformer that fix its sublayer GEMMs (T3 table 2)."""

    name: str
    hidden: Count
    layers: Count
    tokens: Count
    tensor_parallel: tuple[Count, ...]  # the degrees studied


class GemmShape(Spec):
    """C[m, n] = A[m, k] x B[k, n] in FP16 on one GPU; k is local to the GPU."""

    m: Count
    n: Count
    k: Count


class TilingSpec(Spec):
    """How a GEMM kernel cuts its work; sizes in elements."""

    workgroup_tile: tuple[Count, Count]  # rows, columns
    wavefront_tile: tuple[Count, Count]
    k_slice: Count  # elements of k staged at a time
    prefetch_depth: Count  # slices loaded ahead of the one being multiplied


class CollectiveSpec(Spec):
    """A collective on its own: full array size over all chunks, number of GPUs."""

    op: Literal["reduce-scatter", "all-gather"]
    size: Bytes
    gpus: Annotated[int, Field(ge=2, strict=True)]


class WorkloadSpec(Spec):
    """Resolved workload of one point: exactly one of ``gemm`` or ``collective``.

    ``model``/``sublayer`` name where the shape came from, ``trace`` the file
    it is replayed from; both are None for a bare GEMM.
    """

    model: str | None = None
    sublayer: str | None = None
    tp: Annotated[int, Field(ge=1, strict=True)] = 1
    gemm: GemmShape | None = None
    collective: CollectiveSpec | None = None
    trace: str | None = None
    tiling: TilingSpec


class ArbitrationSpec(Spec):
    """The memory controllers' arbitration policy and its parameters (see gpu/arbitration)."""

    policy: str
    params: dict[str, Any] = Field(default_factory=dict)


class RunSpec(Spec):
    """One point: everything one simulation needs."""

    experiment: str
    machine: MachineSpec
    workload: WorkloadSpec
    strategy: str
    arbitration: ArbitrationSpec | None = None  # None: the strategy's own choice
    mode: Literal["mirrored", "explicit"] = "mirrored"
    quantum: Annotated[Picoseconds | None, Field(default=None)] = None  # None: the link latency
    plugins: tuple[str, ...] = ()


__all__ = [
    "STRATEGIES",
    "ArbitrationSpec",
    "CollectiveSpec",
    "Cycles",
    "GemmShape",
    "ModelSpec",
    "RunSpec",
    "TilingSpec",
    "WorkloadSpec",
]
