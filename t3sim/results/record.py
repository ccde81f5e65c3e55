"""The record of one simulated point: one row of ``results.csv`` and ``results.parquet``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


def _column(meaning: str) -> Any:
    """Return an optional column; None means that the point has no such quantity."""
    return field(default=None, metadata={"meaning": meaning})


def _required(meaning: str) -> Any:
    return field(metadata={"meaning": meaning})


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What one point was and what it cost; the column order is the field order.

    Bytes and counts are of one GPU. Times are simulated, but for ``wall_s``, which alone may differ between two runs of
    the same point.  Raises ``TypeError`` or ``ValueError`` for a value that could not be written and read back as
    itself: another type, NaN, infinity, empty text.
    """

    model: str | None = _column("transformer model the shape comes from; absent for a bare GEMM or collective")
    sublayer: str | None = _column(
        "OP, FC-2, FC-1, IP or QKV, after AG if A is gathered, after AR if the output is all-reduced; or absent"
    )
    layer: str | None = _column("training, prompt or generation: a whole transformer layer; absent for one sublayer")
    tp: int = _required("GPUs in the ring: the tensor-parallel degree")
    m: int | None = _column("output rows of the GEMM, in elements")
    n: int | None = _column("output columns of the GEMM, in elements")
    k: int | None = _column("reduction dimension (K) of the GEMM on one GPU, in elements")
    machine: str = _required("name of the machine")
    strategy: str = _required("overlap strategy")
    arbitration: str | None = _column("arbitration policy of the memory controllers")
    mca_threshold: str | None = _column("DRAM-queue occupancy limit in force: a number, or none for no limit")
    mode: str = _required("mirrored (one GPU represents all) or explicit (every GPU is simulated)")
    gemm_compute_units: int | None = _column("compute units reserved for the GEMMs; absent: all of them")
    communication_units: int | None = _column("compute units reserved for communication; absent: none")
    time_us: float | None = _column("simulated time of the whole point, in microseconds")
    operator_us: float | None = _column(
        "GEMM and reduce-scatter without the all-gather (absent if they are concurrent); all phases of other operators"
    )
    gemm_us: float | None = _column("isolated GEMM on the compute units that it has, in microseconds")
    rs_us: float | None = _column("isolated reduce-scatter, in microseconds")
    ag_us: float | None = _column("all-gather, in microseconds")
    fused_us: float | None = _column("fused GEMM and reduce-scatter, or all-gather and GEMM, in microseconds")
    others_us: float | None = _column("other operators of a layer, estimated, in microseconds")
    tokens_per_s: float | None = _column("layer of generation: tokens a second through one layer, of all sequences")
    speedup: float | None = _column("time of sequential over this time, same workload and machine")
    ect_us: float | None = _column("exposed communication of the operator: operator_us minus unsplit GEMM")
    overlap_efficiency: float | None = _column(
        "1 - ect_us / that of sequential: 1 if all of the collective is hidden, above 1 if the operator is faster than"
        " the isolated GEMM, below 0 if it is slower than sequential; absent for bounds"
    )
    sublayer_ect_us: float | None = _column("exposed communication with the all-gather: time minus GEMM and others_us")
    sublayer_overlap_efficiency: float | None = _column("1 - sublayer_ect_us / that of sequential; absent for bounds")
    dram_gemm_read_bytes: int | None = _column("DRAM bytes read for GEMM operands")
    dram_gemm_write_bytes: int | None = _column("DRAM bytes written or updated by the GEMM's stores")
    dram_rs_read_bytes: int | None = _column("DRAM bytes read by the reduce-scatter")
    dram_rs_write_bytes: int | None = _column("DRAM bytes written or updated by the reduce-scatter")
    dram_ag_read_bytes: int | None = _column("DRAM bytes read by the all-gather")
    dram_ag_write_bytes: int | None = _column("DRAM bytes written by the all-gather")
    link_bytes: int | None = _column(
        "payload sent over the outgoing link, with the flags of protocols that send them inside the data (LL, LL128),"
        " without packet headers, in every strategy, to other nodes too; in bytes"
    )
    nic_bytes: int | None = _column(
        "of link_bytes, those that leave the node by the network interface; absent if all GPUs are on one node"
    )
    l2_hit_rate: float | None = _column("L2 hits over L2 accesses, 0 to 1")
    tracker_peak_entries: int | None = _column("most tracker entries in use at a time")
    tracker_stalls: int | None = _column("accesses stalled because their tracker set was full")
    dma_commands: int | None = _column("DMA commands triggered")
    mem_requests: int | None = _column("DRAM requests served")
    workgroup_spread: float | None = _column(
        "isolated GEMM: standard deviation over slots of the eighth tile's start, over the mean tile time"
    )
    workgroup_spread_fused: float | None = _column("the same in the fused run")
    wall_s: float | None = _column("host time to simulate its phases, shared ones included, in seconds")
    axes: Mapping[str, str] = field(default_factory=dict, hash=False)  # swept key without a column of its own -> text

    def __post_init__(self) -> None:
        for name in COLUMNS:
            check_value(name, getattr(self, name))
        for key, text in self.axes.items():
            if key in COLUMNS or not AXIS_KEY.fullmatch(key):
                raise ValueError(f"{key!r} cannot be the column of a swept key")
            if not text.isprintable():
                raise ValueError(f"{key} is {text!r}: the value of a swept key must be printable text")


_FIELDS = [f for f in fields(RunRecord) if f.name != "axes"]  # which becomes a column for each of its keys
COLUMNS: tuple[str, ...] = tuple(f.name for f in _FIELDS)
MEANINGS: dict[str, str] = {f.name: f.metadata["meaning"] for f in _FIELDS}

# Column types by annotation: every annotation is one of these, with or without "| None".
COLUMN_TYPES: dict[str, type] = {
    f.name: {"str": str, "int": int, "float": float}[str(f.type).removesuffix(" | None")] for f in _FIELDS
}
REQUIRED: frozenset[str] = frozenset(f.name for f in _FIELDS if "None" not in str(f.type))

# Columns that may differ between two runs of the same point.
VOLATILE: frozenset[str] = frozenset({"wall_s"})

# Columns that say what came out, not what was asked for.
SIMULATED: tuple[str, ...] = tuple(name for name in COLUMNS[COLUMNS.index("time_us") :] if name not in VOLATILE)

AXIS_KEY = re.compile(r"[^\W\d][\w-]*(\.[\w-]+(\[\d+\])?)*")


def check_value(name: str, value: Any) -> None:
    """Raise unless *value* is what column *name* holds."""
    if value is None:
        if name in REQUIRED:
            raise ValueError(f"{name} is missing")
        return
    if type(value) is not COLUMN_TYPES[name]:
        raise TypeError(f"{name} must be {COLUMN_TYPES[name].__name__}, found {type(value).__name__} {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} is {value}: results must be finite")
    if isinstance(value, str) and not (value and value.isprintable()):
        raise ValueError(f"{name} is {value!r}: text must be printable and not empty")
