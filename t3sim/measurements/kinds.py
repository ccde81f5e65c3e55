"""What each kind of measurement holds: its columns, their units, and the limits that no device can beat.

A file holds one kind; its header says which. Every time is a median over groups of back-to-back repetitions between
device events, the maximum over the GPUs that took part; ``min_us`` and ``max_us`` are over the groups. Any time column
``x_us`` may be accompanied by ``x_samples_us``, all its samples joined by ``;``.

Needs the standard library only: ``measure`` uses it on nodes where nothing else is installed. Pinned by
``tests/measurements/test_samples.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

Value = str | int | float

ROUNDING = 0.01  # files round times to 10 ns and rates to two digits; a wrong rate is off by far more than 1 %
ROUNDING_ABSOLUTE = 0.0101  # of a rate or time that was rounded to two digits


@dataclass(frozen=True)
class Peaks:
    """What a device cannot exceed: for refusing a measurement, not for predicting one.

    ``matrix_tflops``: dense FP16 at the highest clock; ``memory_gbps``: reads plus writes of device memory;
    ``l2_bytes``: what may hit in, or stay behind in, the L2; ``l2_gbps``: reads plus writes of the L2; ``link_gbps``:
    one direction of all links of a GPU; ``sms``: streaming multiprocessors; ``clock_mhz``: highest clock.
    """

    matrix_tflops: float
    memory_gbps: float
    l2_bytes: float
    l2_gbps: float
    link_gbps: float
    sms: float
    clock_mhz: float


# NVIDIA H200 data sheet: 4.8 TB/s, NVLink 900 GB/s both ways; 132 SMs of 4096 FLOP a cycle (4 tensor cores of 512
# FMA, Hopper architecture white paper) at most at 1980 MHz, 1071 TFLOP/s (the data sheet's 989 are at 1830 MHz);
# 64 B a cycle and SM from the L2.
# 18 links of 26.562 GB/s (as nvidia-smi says) are 478 GB/s a direction before protocol.
H200 = Peaks(1071.0, 4800.0, 60 * 2**20, 16800.0, 478.2, 132, 1980)
# For files that do not say which device they are from: above every accelerator on sale.
ANY_DEVICE = Peaks(10_000.0, 40_000.0, 1e9, 160_000.0, 4000.0, 2048, 5000)


@dataclass(frozen=True)
class Column:
    """One column: ``content`` is text, whole (a number from 0), count (from 1), channels (``auto`` or a count), real.

    ``real`` is a finite number above 0. ``key``: with the other keys it names the measurement, once in a file.
    """

    name: str
    content: str
    unit: str
    meaning: str
    key: bool = False


Row = Mapping[str, Value]
Check = Callable[[Row, Peaks], Iterator[str]]


@dataclass(frozen=True)
class Kind:
    """One kind of measurement.

    ``checks`` yield what is impossible about a row, one sentence each. ``optional`` columns may be there or not.
    """

    name: str
    meaning: str
    columns: tuple[Column, ...]
    checks: tuple[Check, ...]
    optional: tuple[Column, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that every file of this kind has, in order."""
        return tuple(column.name for column in self.columns)

    def sample_columns(self) -> dict[str, str]:
        """Return the names that columns of samples may have, each with the time column they belong to."""
        times = [column.name for column in self.columns if column.content == "real" and column.unit in {"us", "ns"}]
        return {samples_of(name): name for name in times if name not in {"min_us", "max_us", "min_ns", "max_ns"}}

    def column(self, name: str) -> Column | None:
        """Return the column of that name, None if there is none."""
        return next((column for column in (*self.columns, *self.optional) if column.name == name), None)


def samples_of(time_column: str) -> str:
    """Return the name of the column with all samples of a time column: ``time_us`` -> ``time_samples_us``."""
    stem, _, unit = time_column.rpartition("_")
    return f"{stem}_samples_{unit}"


def gemm_flops(row: Row) -> float:
    """Return floating-point operations of the row's GEMM."""
    return 2.0 * float(row["m"]) * float(row["n"]) * float(row["k"])


def ring_bytes(collective: str, gpus: int, n_bytes: float) -> float:
    """Return bytes that one GPU sends in a ring collective over an array of *n_bytes* (all GPUs' shards together)."""
    share = (gpus - 1) / gpus * n_bytes
    return 2 * share if collective == "all_reduce" else share


def _close(found: float, expected: float) -> bool:
    return math.isclose(found, expected, rel_tol=ROUNDING, abs_tol=ROUNDING_ABSOLUTE)


def _gemm_limit(*times: str, sms_column: str | None = None) -> Check:
    """A GEMM is not faster than its operations at the peak rate (of the SMs that it had)."""

    def check(row: Row, peaks: Peaks) -> Iterator[str]:
        rate = peaks.matrix_tflops
        if sms_column is not None:
            rate *= min(1.0, float(row[sms_column]) / peaks.sms)
        least = gemm_flops(row) / rate / 1e6
        for name in times:
            if float(row[name]) < least:
                yield f"{name} is {row[name]}, faster than peak: at {rate:.0f} TFLOP/s the GEMM takes {least:.2f} us"

    return check


def _rate_of_gemm(row: Row, _: Peaks) -> Iterator[str]:
    expected = gemm_flops(row) / float(row["time_us"]) / 1e6
    if not _close(float(row["tflops"]), expected):
        yield f"tflops is {row['tflops']}; m, n, k and time_us make {expected:.2f}"


def _spread(row: Row, _: Peaks) -> Iterator[str]:
    for unit in ("us", "ns"):
        if f"min_{unit}" in row:
            low, middle, high = (float(row[f"{name}_{unit}"]) for name in ("min", "time", "max"))
            if not low <= middle <= high:
                yield f"time_{unit} {middle} is not between min_{unit} {low} and max_{unit} {high}"


COLLECTIVES = ("reduce_scatter", "all_gather", "all_reduce")


def _known_collective(row: Row, _: Peaks) -> Iterator[str]:
    if row["collective"] not in COLLECTIVES:
        yield f"collective is {row['collective']!r}; known are {', '.join(COLLECTIVES)}"
    if int(row["gpus"]) < 2:
        yield f"gpus is {row['gpus']}; a collective has at least 2"


def _collective_limit(row: Row, peaks: Peaks) -> Iterator[str]:
    """A GPU sends at least its part once; an all-reduce in the switch sends the array once instead of twice a ring."""
    gpus, n_bytes = int(row["gpus"]), float(row["bytes"])
    sent = ring_bytes(str(row["collective"]), gpus, n_bytes)
    least = min(sent, n_bytes) / peaks.link_gbps / 1e3
    if float(row["time_us"]) < least:
        yield f"time_us is {row['time_us']}, faster than peak: at {peaks.link_gbps:.0f} GB/s it takes {least:.2f} us"
    expected = sent / float(row["time_us"]) / 1e3
    if not _close(float(row["busbw_gbps"]), expected):
        yield f"busbw_gbps is {row['busbw_gbps']}; collective, gpus, bytes and time_us make {expected:.2f}"


def _output_over_links(*times: str) -> Check:
    """The reduce-scatter of a GEMM's FP16 output is not faster than the links."""

    def check(row: Row, peaks: Peaks) -> Iterator[str]:
        sent = ring_bytes("reduce_scatter", int(row["gpus"]), 2.0 * float(row["m"]) * float(row["n"]))
        least = sent / peaks.link_gbps / 1e3
        for name in times:
            if float(row[name]) < least:
                yield f"{name} is {row[name]}, faster than peak: at {peaks.link_gbps:.0f} GB/s it takes {least:.2f} us"

    return check


MOVED = {"read": 1, "write": 1, "copy": 2, "add": 3}  # arrays of `bytes` that a pattern reads plus writes


def _memory_limit(row: Row, peaks: Peaks) -> Iterator[str]:
    """What is in the L2 at the start need not be read, and what is in it at the end is not written yet."""
    rate, time_us = float(row["read_plus_write_gbps"]), float(row["time_us"])
    factor = MOVED.get(str(row["pattern"]).split()[0])
    if factor is None:
        yield f"pattern is {row['pattern']!r}; its first word must be one of {', '.join(MOVED)}"
        return
    moved = factor * float(row["bytes"])
    if not _close(rate, moved / time_us / 1e3):
        yield f"read_plus_write_gbps is {rate}; pattern, bytes and time_us make {moved / time_us / 1e3:.2f}"
    least = max((moved - 2 * peaks.l2_bytes) / peaks.memory_gbps, moved / peaks.l2_gbps) / 1e3
    if time_us < least:
        yield f"time_us is {time_us}, faster than peak: with what the L2 can hold it takes {least:.2f} us"


def _peer_limit(row: Row, peaks: Peaks) -> Iterator[str]:
    rate, expected = float(row["gbps_per_direction"]), float(row["bytes"]) / float(row["time_us"]) / 1e3
    if not _close(rate, expected):
        yield f"gbps_per_direction is {rate}; bytes and time_us make {expected:.2f}"
    if expected > peaks.link_gbps:
        yield f"time_us is {row['time_us']}, faster than peak: {expected:.0f} of {peaks.link_gbps:.0f} GB/s"


LATENCIES = ("l2_hit", "device_memory", "peer_memory", "peer_flag")


def _latency_limit(row: Row, peaks: Peaks) -> Iterator[str]:
    """No load through an L2 comes back within 50 cycles of the fastest clock."""
    least = 50e3 / peaks.clock_mhz
    if row["pattern"] not in LATENCIES:
        yield f"pattern is {row['pattern']!r}; known are {', '.join(LATENCIES)}"
    if float(row["time_ns"]) < least:
        yield f"time_ns is {row['time_ns']}, faster than peak: 50 cycles are {least:.1f} ns"


def _tile_order(row: Row, peaks: Peaks) -> Iterator[str]:
    start, computed, end = (int(row[name]) for name in ("start_ns", "mainloop_end_ns", "end_ns"))
    if not start < computed <= end:
        yield f"start_ns {start}, mainloop_end_ns {computed} and end_ns {end} are not in this order"
    if int(row["sm"]) >= peaks.sms:
        yield f"sm is {row['sm']}; the device has {peaks.sms:.0f}"


def _clock_limit(row: Row, peaks: Peaks) -> Iterator[str]:
    # Cycles over nanoseconds of two counters: they agree to a few parts in a million.
    if "sm_mhz" in row and float(row["sm_mhz"]) > 1.001 * peaks.clock_mhz:
        yield f"sm_mhz is {row['sm_mhz']}; the highest clock is {peaks.clock_mhz:.0f}"


def _fewer_sms(row: Row, peaks: Peaks) -> Iterator[str]:
    if int(row["sms"]) > peaks.sms:
        yield f"sms is {row['sms']}; the device has {peaks.sms:.0f}"


def _text(name: str, meaning: str, *, key: bool = True) -> Column:
    return Column(name, "text", "", meaning, key)


def _count(name: str, unit: str, meaning: str) -> Column:
    return Column(name, "count", unit, meaning, key=True)


def _us(name: str, meaning: str) -> Column:
    return Column(name, "real", "us", meaning)


SUBLAYER = (
    _text("model", "model, - for a bare GEMM"),
    _text("sublayer", "OP, FC-2, FC-1, IP, - for a bare GEMM"),
    _count("tp", "", "tensor-parallel degree that K was cut by; the ring may have fewer GPUs"),
)
GEMM = (
    _count("m", "elements", "rows of the output: tokens"),
    _count("n", "elements", "columns of the output"),
    _count("k", "elements", "inner dimension on one GPU"),
)
GPUS = _count("gpus", "", "GPUs of the ring")
CHANNELS = Column("nccl_channels", "channels", "", "thread blocks NCCL was held to, auto: its own choice", key=True)
SPREAD = (_us("time_us", "median"), _us("min_us", "fastest group"), _us("max_us", "slowest group"))
SM_CLOCK = Column("sm_mhz", "real", "MHz", "SM clock the driver reported under this load")
POWER = Column("power_w", "real", "W", "power the driver reported under this load")
TFLOPS = Column("tflops", "real", "TFLOP/s", "2 m n k over time_us")
BUSBW = Column("busbw_gbps", "real", "GB/s", "bytes that a GPU sends in a ring, over time_us")
KERNEL = _text("kernel", "cublas, or tiled: the project's own kernel", key=True)

# How CSV files without a ``provenance.json`` are taken to be measured: as ``validation/h200`` was, whose provenance
# gives both numbers and says what they are.
UNDESCRIBED: dict[str, Any] = {"host_us": {"collectives": 18.4}, "gemm_loop_share": 0.63}

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "memory",
            "streaming kernels on one GPU; bytes of one array",
            (
                _text("pattern", "read, write, copy, add (2 reads, 1 write); what else was done"),
                _count("bytes", "B", "one array"),
                _us("time_us", "median"),
                Column("read_plus_write_gbps", "real", "GB/s", "bytes read plus bytes written, over time_us"),
            ),
            (_memory_limit,),
            (_us("min_us", "fastest group"), _us("max_us", "slowest group"), SM_CLOCK),
        ),
        Kind(
            "latency",
            "one dependent load at a time (l2_hit, device_memory, peer_memory), or one way of a flag to a peer",
            (
                _text("pattern", ", ".join(LATENCIES)),
                _count("working_set_bytes", "B", "what the chain runs over"),
                Column("time_ns", "real", "ns", "median"),
                Column("min_ns", "real", "ns", "fastest"),
                Column("max_ns", "real", "ns", "slowest"),
            ),
            (_latency_limit,),
            (SM_CLOCK,),
        ),
        Kind(
            "launch",
            "kernels that do nothing",
            (
                _text("pattern", "back_to_back: device time of each in a row; graph; host: host time of a launch"),
                *SPREAD,
            ),
            (),
        ),
        Kind(
            "gemm",
            "one FP16 GEMM on one GPU, repeated without pause",
            (*SUBLAYER, *GEMM, *SPREAD, TFLOPS),
            (_gemm_limit("min_us"), _rate_of_gemm),
            (KERNEL, SM_CLOCK, POWER),
        ),
        Kind(
            "gemm_gaps",
            "one FP16 GEMM at a time, the GPU idle for gap_us before each",
            (*SUBLAYER, *GEMM, _count("gap_us", "us", "pause before each"), *SPREAD, TFLOPS),
            (_gemm_limit("min_us"), _rate_of_gemm),
            (KERNEL, SM_CLOCK, POWER),
        ),
        Kind(
            "gemm_sm_split",
            "the same GEMM on fewer SMs",
            (*SUBLAYER, *GEMM, _count("sms", "", "SMs that it had"), _us("time_us", "median")),
            (_gemm_limit("time_us", sms_column="sms"), _fewer_sms),
            (KERNEL, _us("min_us", "fastest group"), _us("max_us", "slowest group")),
        ),
        Kind(
            "peer_copy",
            "copy engine between GPUs: uni, bidi (both ways), ring (each to its neighbour)",
            (
                _text("pattern", "uni, bidi, ring"),
                _count("bytes", "B", "of each transfer"),
                _us("time_us", "median"),
                Column("gbps_per_direction", "real", "GB/s", "bytes over time_us"),
            ),
            (_peer_limit,),
            (_us("min_us", "fastest group"), _us("max_us", "slowest group")),
        ),
        Kind(
            "collectives",
            "an NCCL collective on all GPUs; bytes of the full array (reduce-scatter input, all-gather output)",
            (
                _text("collective", ", ".join(COLLECTIVES)),
                GPUS,
                _count("bytes", "B", "full array"),
                CHANNELS,
                _text("nccl_proto", "protocol NCCL was held to, auto: its own choice"),
                *SPREAD,
                BUSBW,
            ),
            (_known_collective, _collective_limit),
        ),
        Kind(
            "copy_engine_collectives",
            "a ring collective of copy-engine transfers and addition kernels",
            (
                _text("collective", ", ".join(COLLECTIVES)),
                GPUS,
                _count("bytes", "B", "full array"),
                *SPREAD,
                BUSBW,
                _text("mechanism", "copy-engine"),
            ),
            (_known_collective, _collective_limit),
        ),
        Kind(
            "sequential",
            "GEMM, then reduce-scatter, then all-gather of its output",
            (
                *SUBLAYER,
                GPUS,
                *GEMM,
                _us("gemm_us", "GEMM alone"),
                _us("rs_us", "reduce-scatter alone"),
                _us("gemm_rs_us", "one after the other"),
                _us("gemm_rs_ag_us", "all three"),
            ),
            (_gemm_limit("gemm_us", "gemm_rs_us", "gemm_rs_ag_us"), _output_over_links("rs_us", "gemm_rs_us")),
        ),
        Kind(
            "async_tp",
            "PyTorch's decomposed overlap: fused matmul + reduce-scatter, all-gather + matmul, the same unfused",
            (
                *SUBLAYER,
                GPUS,
                *GEMM,
                _us("mm_rs_us", "matmul and reduce-scatter in pieces"),
                _us("ag_mm_us", "all-gather and matmul in pieces"),
                _us("ag_then_mm_us", "all-gather, then matmul"),
            ),
            (_gemm_limit("mm_rs_us", "ag_mm_us", "ag_then_mm_us"), _output_over_links("mm_rs_us")),
        ),
        Kind(
            "contention",
            "GEMM and NCCL reduce-scatter of its output looped on two streams: each alone, and both together",
            (
                *SUBLAYER,
                GPUS,
                *GEMM,
                CHANNELS,
                _us("gemm_alone_us", "GEMM alone"),
                _us("rs_alone_us", "reduce-scatter alone"),
                _us("gemm_with_rs_us", "GEMM while the other runs"),
                _us("rs_with_gemm_us", "reduce-scatter while the other runs"),
            ),
            (
                _gemm_limit("gemm_alone_us", "gemm_with_rs_us"),
                _output_over_links("rs_alone_us", "rs_with_gemm_us"),
            ),
        ),
        Kind(
            "engine_contention",
            "GEMM and a copy-engine ring collective of its output looped on two streams: alone, and both together",
            (
                *SUBLAYER,
                GPUS,
                *GEMM,
                _text("collective", "reduce_scatter, with additions on the SMs, or all_gather, without"),
                _us("gemm_alone_us", "GEMM alone"),
                _us("collective_alone_us", "collective alone"),
                _us("gemm_with_collective_us", "GEMM while the other runs"),
                _us("collective_with_gemm_us", "collective while the other runs"),
            ),
            (
                _known_collective,
                _gemm_limit("gemm_alone_us", "gemm_with_collective_us"),
                _output_over_links("collective_alone_us", "collective_with_gemm_us"),
            ),
        ),
        Kind(
            "fused_scatter",
            "one kernel that stores each tile to the GPU that owns its rows, then a local sum",
            (
                *SUBLAYER,
                GPUS,
                *GEMM,
                _us("gemm_cublas_us", "the GEMM by cuBLAS"),
                _us("gemm_triton_us", "the same kernel storing locally"),
                _us("seq_us", "cuBLAS, then NCCL"),
                _us("flux_us", "fused, each GPU starting at its neighbour's rows"),
                _us("flux_noswz_us", "fused, all GPUs starting at row 0"),
                _us("scatter_only_us", "flux without the sum"),
                _us("scatter_only_noswz_us", "flux_noswz without the sum"),
                _us("reduce_us", "the sum"),
            ),
            (
                _gemm_limit("gemm_cublas_us", "gemm_triton_us", "seq_us", "flux_us", "flux_noswz_us"),
                _output_over_links("seq_us", "flux_us", "flux_noswz_us", "scatter_only_us", "scatter_only_noswz_us"),
            ),
        ),
        Kind(
            "tile_timelines",
            "one output tile of one GEMM kernel: where and when it was computed",
            (
                *SUBLAYER,
                *GEMM,
                _text("kernel", "gemm stores locally, scatter to the owners of the rows"),
                Column("wg", "whole", "", "workgroup in dispatch order", key=True),
                Column("tile_row", "whole", "", "row of tiles"),
                Column("tile_col", "whole", "", "column of tiles"),
                Column("sm", "whole", "", "streaming multiprocessor"),
                Column("start_ns", "whole", "ns", "start, after the first tile of the kernel"),
                Column("mainloop_end_ns", "whole", "ns", "end of the K loop"),
                Column("end_ns", "whole", "ns", "end of the stores"),
            ),
            (_tile_order,),
            (
                _count("tile_height", "elements", "rows of a tile"),
                _count("tile_width", "elements", "columns of a tile"),
            ),
        ),
    )
}


def impossible(kind: Kind, row: Row, peaks: Peaks) -> Iterator[str]:
    """Yield what no device can have measured in a row whose values have the right types, one sentence each."""
    for check in (_spread, _clock_limit, *kind.checks):
        yield from check(row, peaks)


def kind_of_header(header: tuple[str, ...]) -> Kind | str:
    """Return the kind whose files have this header (columns in any order), or why there is none."""
    names = set(header)
    if len(names) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        return f"column {twice!r} appears twice"
    for kind in KINDS.values():
        known = set(kind.names) | {column.name for column in kind.optional} | set(kind.sample_columns())
        if set(kind.names) <= names <= known:
            return kind
    nearest = max(KINDS.values(), key=lambda kind: len(names & set(kind.names)) - len(set(kind.names) - names))
    missing = [name for name in nearest.names if name not in names]
    unknown = [name for name in header if nearest.column(name) is None and name not in nearest.sample_columns()]
    parts = [f"missing {', '.join(missing)}"] if missing else []
    parts += [f"unknown {', '.join(unknown)[:120]}"] if unknown else []
    return f"no kind of measurement has these columns; the nearest is {nearest.name}: {'; '.join(parts)}"


def peaks_from(values: Mapping[str, object]) -> Peaks:
    """Return peaks from a mapping of all their names to finite numbers above 0; raises ``ValueError``."""
    names = [field.name for field in fields(Peaks)]
    if set(values) != set(names):
        raise ValueError(f"peaks must have {', '.join(names)}")
    numbers: dict[str, float] = {}
    for name in names:
        value = values[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e18:
            raise ValueError(f"peaks: {name} must be a number above 0, found {value!r}")
        numbers[name] = float(value)
    return Peaks(**numbers)


__all__ = [
    "ANY_DEVICE",
    "COLLECTIVES",
    "H200",
    "KINDS",
    "Column",
    "Kind",
    "Peaks",
    "impossible",
    "kind_of_header",
    "peaks_from",
]
