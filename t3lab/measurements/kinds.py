"""What each kind of measurement holds: its columns, their units, and the limits that no device can beat.

A file holds one kind; its header says which. Every time is a median over groups of back-to-back repetitions between
device events, the maximum over the GPUs that took part; ``min_us`` and ``max_us`` are over the groups. Any time column
``x_us`` may be accompanied by ``x_samples_us``, all its samples joined by ``;``.

Needs the standard library only: ``measure`` uses it on nodes where nothing else is installed. Pinned by
``tests/measurements/test_samples.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from t3sim.config.element_types import DEFAULT_TYPE, ELEMENT_TYPES

Value = str | int | float

ROUNDING = 0.01  # files round times to 10 ns and rates to two digits; a wrong rate is off by far more than 1 %
ROUNDING_ABSOLUTE = 0.0101  # of a rate or time that was rounded to two digits
MOST_MATRIX_RATE = {16: 1.0, 32: 0.5, 8: 2.0, 4: 6.0}  # of any device, relative to 16 bits, by the bits of an element
LARGEST = 1e18  # also keeps out integers that no float holds


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
# NVIDIA H100 SXM5 data sheet: 3.35 TB/s, the SMs and links of the H200; 50 MiB as the driver says.
H100 = Peaks(1071.0, 3352.0, 50 * 2**20, 16800.0, 478.2, 132, 1980)
# For files that do not say which device they are from: above every accelerator on sale.
ANY_DEVICE = Peaks(10_000.0, 40_000.0, 1e9, 160_000.0, 4000.0, 2048, 5000)


Row = Mapping[str, Value]
Floor = Callable[[Row, Peaks], tuple[float, str]]  # the least time that is possible, in the column's unit, and why


@dataclass(frozen=True)
class Column:
    """One column: ``content`` is text, whole (a number from 0), count (from 1), channels (``auto`` or a count), real.

    ``real`` is a finite number above 0. ``key``: with the other keys it names the measurement, once in a file.
    ``known``: the texts that there are; with ``is_detailed`` more words may follow. ``floors``: of a time.
    ``amount``: of a rate, what is moved or computed in ``time_us``, in units of the rate times a microsecond; it
    follows from the columns ``factors``. ``default``: what it is where a file does not have the column.
    """

    name: str
    content: str
    unit: str
    meaning: str
    key: bool = False
    known: Collection[str] = ()
    is_detailed: bool = False
    floors: tuple[Floor, ...] = ()
    amount: Callable[[Row], float] | None = None
    factors: str = ""
    default: Value | None = None

    @property
    def may_lack(self) -> bool:
        """Whether a file can do without it: what it is then is known, or follows from the others."""
        return self.default is not None or self.amount is not None or self.name in {"min_us", "max_us"}


@dataclass(frozen=True)
class Kind:
    """One kind of measurement; ``optional`` columns may be there or not."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    optional: tuple[Column, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that every file of this kind has, in order."""
        return tuple(column.name for column in self.columns)

    def lacking(self, names: Collection[str]) -> list[Column]:
        """Return the columns that are not among *names*."""
        return [column for column in self.columns if column.name not in names]

    def rates(self, row: Row) -> dict[str, Value]:
        """Return what the other columns make of the rates."""
        amounts = {column.name: column.amount for column in self.columns if column.amount is not None}
        return {name: amount(row) / float(row["time_us"]) for name, amount in amounts.items()}

    def completed(self, row: Row) -> dict[str, Value]:
        """Return *row* with what it may lack: edges are the one time that there is, rates follow."""
        given = {column.name: column.default for column in self.lacking(row) if column.default is not None}
        if "time_us" in row:
            given |= {edge: row["time_us"] for edge in ("min_us", "max_us") if edge in self.names} | self.rates(row)
        return {**given, **row}

    @cached_property
    def by_name(self) -> dict[str, Column]:
        """All columns that a file may have besides those of samples."""
        return {column.name: column for column in (*self.columns, *self.optional)}

    def sample_columns(self) -> dict[str, str]:
        """Return names of columns of samples, each with its time column: ``time_samples_us`` of ``time_us``."""
        times = [column.name for column in self.columns if column.content == "real" and column.unit in {"us", "ns"}]
        sampled = [name for name in times if name not in {"min_us", "max_us", "min_ns", "max_ns"}]
        return {f"{name[:-3]}_samples{name[-3:]}": name for name in sampled}


# --- what rows move and compute, and the least time that takes -----------------------------------

COLLECTIVES = ("reduce_scatter", "all_gather", "all_reduce")
SENT_COLLECTIVES = ("all_to_all", "send_recv", "broadcast")  # data that are sent only; simulated too
OTHER_COLLECTIVES = ("gather", "hypercube", "reduce", "scatter")  # read, but not simulated
OPERATORS = ("gemm", "gemm-rs", "gemm-ar", "ag-gemm", *COLLECTIVES)
MOVED = {"read": 1, "write": 1, "copy": 2, "add": 3}  # arrays of `bytes` that a pattern reads plus writes
SIGNALS = ("peer_flag", "peer_signal", "peer_barrier", "peer_grid_barrier")
PROBES = ("load", "read", "copy")
STREAMS = ("nothing", "read", "write", "copy")  # as bits: 1 reads, 2 writes
LATENCIES = ("l2_hit", "device_memory", "peer_memory", *SIGNALS)
MEMORIES = ("peer", "local")
ACCESSES = ("store", "load", "bulk_store")
CALLS = ("mm_rs", "ag_mm")
OPERATIONS = ("launch", "barrier", "order", "copy", "zero", "sum", "gemm")
MESHES = ("incast", "pull", "pulls_one_peer", "pulls_two_peers", "all_to_all_ring", "all_to_all_xor")
MEANS = ("copy", "load", "store", "bulk_store")
ALL_LANES = "all"
ORDERS = ("next", "own_first", "xor", "naive")  # of owners, by number in the kernel
LOCAL = "local"
EPILOGUES = ("fragments", "rows", "bulk")  # by number in the kernel
ACCESS_PATTERNS = ("contiguous", "tile_rows", "tile_scattered", "tile_fragments")


def gemm_flops(row: Row) -> float:
    """Return floating-point operations of the row's GEMM."""
    return 2.0 * float(row["m"]) * float(row["n"]) * float(row.get("k", 0))  # of an operator, k may be missing


def ring_bytes(collective: str, gpus: int, n_bytes: float) -> float:
    """Return bytes that one GPU sends in a collective over an array of *n_bytes* (all GPUs' shards together).

    Of a ring collective; of others what nccl-tests takes for the bus bandwidth.
    """
    if collective in {"broadcast", "hypercube", "reduce", "send_recv"}:
        return n_bytes
    share = (gpus - 1) / gpus * n_bytes
    return 2 * share if collective == "all_reduce" else share


def _collective_bytes(row: Row) -> float:
    return ring_bytes(str(row["collective"]), int(row["gpus"]), float(row["bytes"]))


def _memory_bytes(row: Row) -> float:
    return MOVED.get(str(row["pattern"]).split()[0], 0) * float(row["bytes"])


def _gemm_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """A GEMM is not faster than its operations at the peak rate (of the SMs that it had)."""
    is_known = peaks is not ANY_DEVICE  # else the most SMs are of one device, the highest rate of another
    rate = peaks.matrix_tflops * (min(1.0, float(row.get("sms", peaks.sms)) / peaks.sms) if is_known else 1.0)
    element = ELEMENT_TYPES.get(str(row.get("element") or DEFAULT_TYPE))
    rate *= MOST_MATRIX_RATE.get(16 if element is None else element.bits, 1.0)
    least = gemm_flops(row) / rate / 1e6
    return least, f"at {rate:.0f} TFLOP/s the GEMM takes {least:.2f} us"


def _over_links(n_bytes: float, peaks: Peaks) -> tuple[float, str]:
    least = n_bytes / peaks.link_gbps / 1e3
    return least, f"at {peaks.link_gbps:.0f} GB/s it takes {least:.2f} us"


def _output_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """The reduce-scatter of a GEMM's FP16 output is not faster than the links."""
    return _over_links(ring_bytes("reduce_scatter", int(row["gpus"]), 2.0 * float(row["m"]) * float(row["n"])), peaks)


def _scattered_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    return (0.0, "") if row["order"] == LOCAL else _output_floor(row, peaks)


def _collective_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """A GPU sends at least its part once; an all-reduce in the switch sends the array once instead of twice a ring."""
    return _over_links(min(_collective_bytes(row), float(row["bytes"])), peaks)


def _operator_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """What is overlapped takes no less than the longer of both; the all-gather is of A, which may be small."""
    if row["op"] in COLLECTIVES:
        return _collective_floor(collective_of(row), peaks)
    return _gemm_floor(row, peaks)


def collective_of(row: Row) -> dict[str, Value]:
    """Return the collective, its GPUs and bytes, of a row of the kind ``operators`` that has nothing else."""
    return {"collective": row["op"], "gpus": row["tp"], "bytes": 2 * int(row["m"]) * int(row["n"])}


def _lanes_bytes(row: Row) -> float:
    return float(row["transfers"]) * float(row["bytes"])


def _lanes_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """What goes through one port one way: all of it, half if half goes the other way, or what each GPU sends."""
    ports = 1 if row["lane"] != ALL_LANES else int(row["gpus"]) if "all_to_all" in str(row["pattern"]) else 0
    return _over_links(_lanes_bytes(row) / (ports or (2 if row["ways"] == "both" else 1)), peaks)


def _memory_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """What is in the L2 at the start need not be read, and what is in it at the end is not written yet."""
    moved = _memory_bytes(row)
    least = max((moved - 2 * peaks.l2_bytes) / peaks.memory_gbps, moved / peaks.l2_gbps) / 1e3
    return least, f"with what the L2 can hold it takes {least:.2f} us"


def _probe_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    return _through_sms(float(row["bytes"]), 1, peaks)


def _access_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """A peer's memory is behind the links; local memory, and all that an SM moves, goes through its path to the L2."""
    if row["memory"] == "peer":
        return _over_links(float(row["bytes"]), peaks)
    return _through_sms(float(row["bytes"]), min(float(row["workgroups"]), peaks.sms), peaks)


def _issue_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    least, why = _through_sms(float(row["burst_bytes"]), 1, peaks)
    return 1e3 * least, why


def _burst_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """All bursts are there at the end; and a fence is not faster than a load."""
    least, why = _access_floor({**row, "bytes": float(row["burst_bytes"]) * float(row["workgroups"])}, peaks)
    return max((1e3 * least, why), _load_floor(row, peaks))


def _through_sms(n_bytes: float, sms: float, peaks: Peaks) -> tuple[float, str]:
    """No more than a line of 128 B a cycle and SM."""
    least = n_bytes / sms / 128 / peaks.clock_mhz
    return least, f"at 128 B a cycle of each of {sms:.0f} SMs it takes {least:.2f} us"


def _load_floor(_: Row, peaks: Peaks) -> tuple[float, str]:
    """No load through an L2 comes back within 50 cycles of the fastest clock."""
    least = 50e3 / peaks.clock_mhz
    return least, f"50 cycles are {least:.1f} ns"


def impossible(kind: Kind, row: Row, peaks: Peaks) -> Iterator[str]:
    """Yield what no device can have measured in a row whose values have the right types, one sentence each."""
    columns = [column for name, column in kind.by_name.items() if name in row]
    unknown = list(_unknown_texts(columns, row))
    yield from unknown
    yield from _contradictions(row)
    yield from _beyond_device(row, peaks)
    if unknown:
        return  # what such a row moves is unknown
    for column in columns:
        value = row[column.name]
        for floor in column.floors:
            least, why = floor(row, peaks)
            if float(value) < least:
                name = column.name.replace("min_", "time_") if row.get("time_us") == value else column.name
                than = "any device" if peaks is ANY_DEVICE else "peak"
                is_in_ms = column.unit == "us" and 20 * float(value) < least <= 1000 * float(value)
                yield f"{name} is {value}, faster than {than}: {why}{'; are these milliseconds?' if is_in_ms else ''}"
        if column.amount is not None and not math.isnan(float(value)):  # NaN: not measured yet
            expected = column.amount(row) / float(row["time_us"])
            if not math.isclose(float(value), expected, rel_tol=ROUNDING, abs_tol=ROUNDING_ABSOLUTE):
                yield f"{column.name} is {value}; {column.factors} and time_us make {expected:.2f}"


def _unknown_texts(columns: list[Column], row: Row) -> Iterator[str]:
    for column in columns:
        value = str(row[column.name])
        named = value.split(maxsplit=1)[0] if column.is_detailed else value
        if column.known and named not in column.known:
            what = "its first word must be one of" if column.is_detailed else "known are"
            yield f"{column.name} is {value!r}; {what} {', '.join(column.known)}"


def _contradictions(row: Row) -> Iterator[str]:
    """Yield columns of a row that are not in the right order, and rings of one GPU."""
    for unit in ("us", "ns"):
        if f"min_{unit}" in row:
            low, middle, high = (float(row[f"{name}_{unit}"]) for name in ("min", "time", "max"))
            if middle < low or high < middle:
                yield f"time_{unit} {middle} is not between min_{unit} {low} and max_{unit} {high}"
    if "mainloop_end_ns" in row:
        start, computed, end = (int(row[name]) for name in ("start_ns", "mainloop_end_ns", "end_ns"))
        if not start < computed <= end:
            yield f"start_ns {start}, mainloop_end_ns {computed} and end_ns {end} are not in this order"
    if "gpus" in row and ("collective" in row or "transfers" in row) and int(row["gpus"]) < 2:
        yield f"gpus is {row['gpus']}; a {'transfer' if 'transfers' in row else 'collective'} has at least 2"
    if "op" in row and row["op"] != "gemm" and int(row["tp"]) < 2:
        yield f"tp is {row['tp']}; {row['op']} has at least 2"
    if "top_k" in row:
        gpus, top_k, experts = int(row["gpus"]), int(row["top_k"]), int(row["experts"])
        if top_k > experts:
            yield f"top_k is {top_k}; there are {experts} experts"
        if experts % gpus:
            yield f"gpus is {gpus}, which does not divide experts, {experts}"
    if "largest" in row and not int(row["tokens"]) <= int(row["largest"]) * int(row["experts"]) <= _all_of(row):
        yield f"largest is {row['largest']}; {row['experts']} experts have {row['tokens']} rows"
    if "op" in row and row["op"] not in COLLECTIVES and not int(row.get("k", 0)):
        yield f"k is missing or 0; {row['op']} has at least 1"


def _all_of(row: Row) -> int:
    """Return what the largest expert times their number can be at most: all rows at one."""
    return int(row["tokens"]) * int(row["experts"])


def _beyond_device(row: Row, peaks: Peaks) -> Iterator[str]:
    """Yield SMs and clocks that the device does not have."""
    # Cycles over nanoseconds of two counters: they agree to a few parts in a million.
    if float(row.get("sm_mhz", 0)) > 1.001 * peaks.clock_mhz:
        yield f"sm_mhz is {row['sm_mhz']}; the highest clock is {peaks.clock_mhz:.0f}"
    for name, highest in (("sm", peaks.sms - 1), ("sms", peaks.sms)):
        if int(row.get(name, 0)) > highest:
            yield f"{name} is {row[name]}; the device has {peaks.sms:.0f}"


# --- the columns of each kind --------------------------------------------------------------------


def _text(
    name: str, meaning: str, known: Collection[str] = (), *, is_detailed: bool = False, default: str | None = None
) -> Column:  # fmt: skip
    return Column(name, "text", "", meaning, True, known, is_detailed, default=default)


def _count(name: str, unit: str, meaning: str) -> Column:
    return Column(name, "count", unit, meaning, key=True)


def _whole(name: str, meaning: str, *, key: bool = False) -> Column:
    return Column(name, "whole", "ns" if name.endswith("_ns") else "", meaning, key)


def _time(name: str, meaning: str, *floors: Floor) -> Column:
    return Column(name, "real", name.rpartition("_")[2], meaning, floors=floors)


def _rate(name: str, unit: str, meaning: str, amount: Callable[[Row], float], factors: str) -> Column:
    return Column(name, "real", unit, f"{meaning} over time_us", amount=amount, factors=factors)


def _spread(*floors: Floor) -> tuple[Column, ...]:
    """The median with its edges; *floors* are of the fastest."""
    return _time("time_us", "median"), _time("min_us", "fastest group", *floors), EDGES[1]


EDGES = _time("min_us", "fastest group"), _time("max_us", "slowest group")
SUBLAYER = (
    _text("model", "model, - for a bare GEMM", default="-"),
    _text("sublayer", "OP, FC-2, FC-1, IP, - for a bare GEMM", default="-"),
    replace(_count("tp", "", "tensor-parallel degree that K was cut by; the ring may have fewer GPUs"), default=1),
)
GEMM = (
    _count("m", "elements", "rows of the output: tokens"),
    _count("n", "elements", "columns of the output"),
    _count("k", "elements", "inner dimension on one GPU"),
)
GPUS = _count("gpus", "", "GPUs of the ring")
LAYER = (*SUBLAYER, GPUS, *GEMM)
CHANNELS = Column("nccl_channels", "channels", "", "thread blocks NCCL was held to, auto: its own choice", key=True,
                  default="auto")  # fmt: skip
ARRAY = _count("bytes", "B", "full array")
RING_COLLECTIVE = _text("collective", ", ".join(COLLECTIVES), COLLECTIVES)
ANY_COLLECTIVE = _text(
    "collective",
    f"{', '.join((*COLLECTIVES, *SENT_COLLECTIVES))}; read, but not simulated: {', '.join(OTHER_COLLECTIVES)}",
    (*COLLECTIVES, *SENT_COLLECTIVES, *OTHER_COLLECTIVES),
)  # fmt: skip
SCATTERED = (
    _text("order", "whose rows come first: next (own last), own_first, xor (own last), naive (row 0), or local: no"
          " stores to others", (*ORDERS, LOCAL)),
    _text("epilogue", "fragments (4 B a thread, as computed), rows (16 B a thread), bulk (512 B a row)", EPILOGUES),
)  # fmt: skip
TILE_COLUMNS = (
    _whole("wg", "workgroup in dispatch order", key=True),
    _whole("tile_row", "row of tiles"),
    _whole("tile_col", "column of tiles"),
    _whole("sm", "streaming multiprocessor"),
    _whole("start_ns", "start, after the first tile of the kernel"),
    _whole("mainloop_end_ns", "end of the K loop"),
    _whole("end_ns", "end of the stores"),
)
SM_CLOCK = Column("sm_mhz", "real", "MHz", "SM clock the driver reported under this load")
POWER = Column("power_w", "real", "W", "power the driver reported under this load")
TFLOPS = _rate("tflops", "TFLOP/s", "2 m n k", lambda row: gemm_flops(row) / 1e6, "m, n, k")
RING_TIMES = (
    _time("time_us", "median", _collective_floor), *EDGES,
    _rate("busbw_gbps", "GB/s", "bytes that a GPU sends in a ring,", lambda row: _collective_bytes(row) / 1e3,
          "collective, gpus, bytes"),
)  # fmt: skip
READ_PLUS_WRITE = _rate(
    "read_plus_write_gbps", "GB/s", "bytes read plus bytes written,", lambda row: _memory_bytes(row) / 1e3,
    "pattern, bytes",
)  # fmt: skip
PER_DIRECTION = _rate("gbps_per_direction", "GB/s", "bytes", lambda row: float(row["bytes"]) / 1e3, "bytes")
ACCESSED = (
    _text("memory", "peer, local", MEMORIES),
    _count("access_bytes", "B", "of one instruction of a thread"),
    _count("threads", "", "of a workgroup"),
    _count("workgroups", "", "on one SM each as long as there are SMs"),
)
KERNEL = _text("kernel", "cublas, or tiled: the project's own kernel")
ROTATED = "rotated"
ELEMENT = _text(
    "element", f"type of the operands of the GEMM: {', '.join(ELEMENT_TYPES)}; empty: {DEFAULT_TYPE} or bf16",
    tuple(ELEMENT_TYPES), default="",
)  # fmt: skip
OPERANDS = _text(
    "operands", f"{ROTATED}: each call has others, which are not in the L2; empty: they are there if they fit",
    (ROTATED,), default="",
)  # fmt: skip


def _beside(other: str, meaning: str) -> tuple[Column, ...]:
    """A GEMM and a collective of its output: each alone, and each while the other one runs."""
    return (
        _time("gemm_alone_us", "GEMM alone", _gemm_floor),
        _time(f"{other}_alone_us", f"{meaning} alone", _output_floor),
        _time(f"gemm_with_{other}_us", "GEMM while the other runs", _gemm_floor),
        _time(f"{other}_with_gemm_us", f"{meaning} while the other runs", _output_floor),
    )


def _rows_floor(n_flops: float, row: Row, peaks: Peaks) -> tuple[float, str]:
    """GEMMs of rows of experts are not faster than their operations at the peak rate."""
    element = ELEMENT_TYPES.get(str(row.get("element") or DEFAULT_TYPE))
    rate = peaks.matrix_tflops * MOST_MATRIX_RATE.get(16 if element is None else element.bits, 1.0)
    return n_flops / rate / 1e6, f"at {rate:.0f} TFLOP/s the GEMMs take {n_flops / rate / 1e6:.2f} us"


def _grouped_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    return _rows_floor(2.0 * float(row["tokens"]) * float(row["n"]) * float(row["k"]), row, peaks)


def _experts_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """An even share of the rows of all GPUs; gated experts have three matrices."""
    rows = float(row["tokens_per_gpu"]) * float(row["top_k"])
    return _rows_floor(6.0 * rows * float(row["hidden"]) * float(row["intermediate"]), row, peaks)


def _exchange_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """Of an even routing, each token leaves its GPU at least once, unless its expert is there."""
    if str(row["routing"]) not in ("balanced", "uniform"):
        return 0.0, ""
    element = ELEMENT_TYPES.get(str(row.get("element") or "nvfp4"))
    n_bytes = float(row["tokens_per_gpu"]) * float(row["hidden"]) * (4 if element is None else element.bits) / 8
    return _over_links((int(row["gpus"]) - 1) / int(row["gpus"]) * n_bytes, peaks)


EXCHANGES = ("dispatch", "combine")
ROUTING = _text(
    "routing", "law of the routing: balanced, uniform, zipf_1, power_law_1.2, power_law_sampled_1.9, ...",
)  # fmt: skip
ROUTED = (
    _count("gpus", "", "GPUs that share the experts"),
    _count("tokens_per_gpu", "", "tokens of each GPU"),
    _count("hidden", "elements", "size of a token"),
    _count("top_k", "", "experts of a token"),
    _count("experts", "", "routed experts of all GPUs"),
    ROUTING,
)
WEIGHTS = _text("weights", "type of the weights, if it is another than `element`", tuple(ELEMENT_TYPES), default="")
SOURCE = _text("source", "who measured it: rows of one source are a table")


def _kind(name: str, meaning: str, *columns: Column, optional: tuple[Column, ...] = ()) -> Kind:
    return Kind(name, meaning, columns, optional)


_ALL = (
    _kind(
        "memory", "streaming kernels on one GPU; bytes of one array",
        _text("pattern", "read, write, copy, add (2 reads, 1 write); what else was done", MOVED, is_detailed=True),
        _count("bytes", "B", "one array"),
        _time("time_us", "median", _memory_floor),
        READ_PLUS_WRITE,
        optional=(*EDGES, SM_CLOCK),
    ),
    _kind(
        "latency",
        "one dependent load at a time (l2_hit, device_memory, peer_memory), one way of a flag to a peer (peer_flag,"
        " peer_signal: after data), or a barrier of two GPUs (one workgroup of each, or one on each SM)",
        _text("pattern", ", ".join(LATENCIES), LATENCIES),
        _count("working_set_bytes", "B", "what the chain runs over; data before a flag"),
        _time("time_ns", "median", _load_floor),
        _time("min_ns", "fastest"),
        _time("max_ns", "slowest"),
        optional=(SM_CLOCK,),
    ),
    _kind(
        "memory_contention", "a few SMs that load, read or copy device memory, while others stream it",
        _text("probe", "load (128 B each, one after the other), read, copy", PROBES),
        _count("probe_sms", "", "SMs that do so"),
        _count("bytes", "B", "of each of them"),
        _text("beside", ", ".join(STREAMS), STREAMS),
        _whole("beside_sms", "SMs that stream", key=True),
        *_spread(_probe_floor),
        Column("beside_gbps", "whole", "GB/s", "what these read and write meanwhile"),
    ),
    _kind(
        "launch", "kernels that do nothing",
        _text("pattern", "back_to_back: device time of each; graph; host: host time of a launch"),
        *_spread(),
    ),
    _kind(
        "gemm", "one GEMM on one GPU, repeated back-to-back",
        *SUBLAYER, *GEMM, *_spread(_gemm_floor), TFLOPS,
        optional=(KERNEL, SM_CLOCK, POWER, OPERANDS, ELEMENT),
    ),
    _kind(
        "gemm_gaps", "one GEMM at a time, the GPU idle for gap_us before each",
        *SUBLAYER, *GEMM, _count("gap_us", "us", "pause before each"), *_spread(_gemm_floor), TFLOPS,
        optional=(KERNEL, SM_CLOCK, POWER, ELEMENT),
    ),
    _kind(
        "gemm_sm_split", "the same GEMM on fewer SMs",
        *SUBLAYER, *GEMM, _count("sms", "", "SMs that it had"), _time("time_us", "median", _gemm_floor),
        optional=(KERNEL, *EDGES),
    ),
    _kind(
        "peer_copy", "copy engine between GPUs: uni, bidi (both ways), ring (each to its neighbour)",
        _text("pattern", "uni, bidi, ring"),
        _count("bytes", "B", "of each transfer"),
        _time("time_us", "median", lambda row, peaks: _over_links(float(row["bytes"]), peaks)),
        PER_DIRECTION,
        optional=EDGES,
    ),
    _kind(
        "peer_access", "some workgroups of one GPU store to, or load from, a peer's memory or their own GPU's",
        *ACCESSED,
        _text("access", "store, load, bulk_store (by the bulk copy engine of an SM)", ACCESSES),
        _text("pattern", "contiguous, or an FP16 tile of 128 x 256 in rows of 6 KiB (tile_rows: adjacent threads store"
              " adjacent pieces, tile_scattered: 16 B each, contiguous, half after half, tile_fragments: a warp 8 rows,"
              " 16 B of each, or 32)", ACCESS_PATTERNS),
        _count("bytes", "B", "of the array"),
        _time("time_us", "median", _access_floor),
        PER_DIRECTION,
        optional=EDGES,
    ),
    _kind(
        "store_bursts", "workgroups store a few KiB each, all at the same time, and wait until they have arrived",
        *ACCESSED,
        _count("burst_bytes", "B", "of each workgroup"),
        _time("issued_ns", "until a workgroup had issued its last store: median", _issue_floor),
        _time("all_issued_ns", "until the last workgroup had", _issue_floor),
        _time("time_ns", "until a fence told the last workgroup that all had arrived", _burst_floor),
        _time("min_ns", "fastest launch"),
        _time("max_ns", "slowest launch"),
    ),
    _kind(
        "collectives",
        "a collective on all GPUs, by NCCL or another library; bytes of the full array (reduce-scatter input,"
        " all-gather output; what each GPU has for all in an all-to-all, a message)",
        ANY_COLLECTIVE, GPUS, ARRAY,
        CHANNELS,
        _text("nccl_proto", "protocol NCCL was held to, auto: its own choice", default="auto"),
        *RING_TIMES,
        optional=(
            _text("nccl_algo", "algorithm NCCL was held to, like Ring, Tree or NVLS; empty: its own choice"),
            _count("hosts", "", "hosts that the GPUs are in; empty: one"),
            _text("algorithm", "library or kernel of an all-reduce, as `collective.algorithm`; others are read, but not"
                  " simulated; empty: nccl"),
        ),
    ),
    _kind(
        "copy_engine_collectives", "a ring collective of copy-engine transfers and addition kernels",
        RING_COLLECTIVE, GPUS, ARRAY,
        *RING_TIMES,
        _text("mechanism", "copy-engine"),
    ),
    _kind(
        "sequential", "GEMM, then reduce-scatter, then all-gather of its output",
        *LAYER,
        _time("gemm_us", "GEMM alone", _gemm_floor),
        _time("rs_us", "reduce-scatter alone", _output_floor),
        _time("gemm_rs_us", "one after the other", _gemm_floor, _output_floor),
        _time("gemm_rs_ag_us", "all three", _gemm_floor),
    ),
    _kind(
        "operators", "one operator of a layer; read, GEMMs and collectives alone become rows of their own kinds",
        _text("op", f"{', '.join(OPERATORS)} (of an FP16 array of m x n)", OPERATORS),
        *GEMM[:2],
        _count("tp", "", "GPUs of the collective"),
        *_spread(_operator_floor),
        optional=(
            _whole("k", "inner dimension on one GPU; empty or 0 for a collective alone", key=True),
            _text("strategy", "how its GEMM and collective overlap, if they do: a strategy of t3sim"),
            _text("parameters", "of the strategy, like chunks=8;host=eager"),
            _text("tiling", "the kernel of its GEMM, if that is no library's: one of t3sim's"),
            OPERANDS,
            ELEMENT,
            _text("source", "who measured it: rows of one source are a table"),
            _whole("runs", "in the loop that it was timed in, to warm up too; empty: more than the power limit allows"),
            _time("host_us", "that the host takes for a call, in a loop of them; empty: as in the provenance"),
        ),
    ),
    _kind(
        "async_tp",
        "PyTorch's decomposed overlap: fused matmul + reduce-scatter, all-gather + matmul, the same unfused",
        *LAYER,
        _time("mm_rs_us", "matmul and reduce-scatter in pieces", _gemm_floor, _output_floor),
        _time("ag_mm_us", "all-gather and matmul in pieces", _gemm_floor),
        _time("ag_then_mm_us", "all-gather, then matmul", _gemm_floor),
    ),
    _kind(
        "async_tp_trace", "one kernel, copy or launch of a call of PyTorch's decomposed overlap",
        *LAYER,
        _text("call", "mm_rs: matmul and reduce-scatter in pieces; ag_mm: all-gather and matmul", CALLS),
        _whole("gpu", "GPU that it ran on", key=True),
        _whole("repeat", "which of the calls", key=True),
        _whole("number", "in the order of their starts", key=True),
        Column("operation", "text", "", "what it does; order: a wait that puts both streams in order; launch: the"
               " host's call",
               known=OPERATIONS),
        _whole("stream", "or thread of the host, in the order in which they are seen first"),
        _whole("start_ns", "start, after the first one of the call on this GPU"),
        _whole("end_ns", "end"),
        Column("kernel", "text", "", "name of the kernel or copy"),
    ),
    _kind(
        "contention",
        "GEMM and NCCL reduce-scatter of its output looped on two streams: each alone, and both together",
        *LAYER, CHANNELS, *_beside("rs", "reduce-scatter"),
    ),
    _kind(
        "contention_sm_split", "the same, the GEMM in a green context of fewer SMs, NCCL on any",
        *LAYER, CHANNELS, _count("sms", "", "SMs that the GEMM had"), *_beside("rs", "reduce-scatter"),
    ),
    _kind(
        "transfers",
        "several lanes of transfers at once: incast to GPU 0, pulls by it, exchanges of all with all",
        _text("pattern", ", ".join(MESHES), MESHES),
        _text("means", "copy by engines; by SMs: load, store (16 B a thread), bulk_store (16 KiB a time)", MEANS),
        _text("ways", "one, or both: the same in the other direction too", ("one", "both")),
        _count("gpus", "", "GPUs that take part"),
        _text("lane", "all together, or the number of one; those of the other direction come last"),
        _count("bytes", "B", "of each transfer"),
        Column("transfers", "count", "", "of the lane, or of all, in a repetition"),
        _time("time_us", "median", _lanes_floor),
        _rate("gbps", "GB/s", "bytes of all its transfers", lambda row: _lanes_bytes(row) / 1e3,
              "bytes, transfers"),
        optional=EDGES,
    ),
    _kind(
        "scatter_orders", "one kernel that stores each tile to the GPU that owns its rows, all GPUs starting together",
        *LAYER,
        *SCATTERED,
        *_spread(_gemm_floor, _scattered_floor),
    ),
    _kind(
        "scatter_timelines", "one tile of such a kernel: where and when it was computed",
        *LAYER,
        *SCATTERED,
        _whole("gpu", "GPU that computed it", key=True),
        *TILE_COLUMNS,
    ),
    _kind(
        "engine_contention",
        "GEMM and a copy-engine ring collective of its output looped on two streams: alone, and both together",
        *LAYER,
        _text("collective", "reduce_scatter, with additions on the SMs, or all_gather, without", COLLECTIVES),
        *_beside("collective", "collective"),
    ),
    _kind(
        "fused_scatter", "one kernel that stores each tile to the GPU that owns its rows, then a local sum",
        *LAYER,
        _time("gemm_cublas_us", "the GEMM by cuBLAS", _gemm_floor),
        _time("gemm_triton_us", "the same kernel storing locally", _gemm_floor),
        _time("seq_us", "cuBLAS, then NCCL", _gemm_floor, _output_floor),
        _time("flux_us", "fused, each GPU starting at its neighbour's rows", _gemm_floor, _output_floor),
        _time("flux_noswz_us", "fused, all GPUs starting at row 0", _gemm_floor, _output_floor),
        _time("scatter_only_us", "flux without the sum", _output_floor),
        _time("scatter_only_noswz_us", "flux_noswz without the sum", _output_floor),
        _time("reduce_us", "the sum"),
    ),
    _kind(
        "grouped_gemm", "GEMMs of the experts of one GPU in one launch, repeated back-to-back",
        _count("tokens", "", "rows of all experts"), _count("experts", "", "GEMMs, each with its weights"),
        *GEMM[1:], ROUTING,
        _time("time_us", "median", _grouped_floor),
        optional=(*EDGES, _count("largest", "", "rows of the expert with most"), ELEMENT, WEIGHTS, OPERANDS, SOURCE),
    ),
    _kind(
        "dispatch_combine", "dispatch of tokens to the GPUs of their experts, or combine of what these computed",
        _text("exchange", ", ".join(EXCHANGES), EXCHANGES), *ROUTED,
        _text("kernel", "what did it, like deepep_normal or deepep_low_latency"),
        _time("time_us", "median", _exchange_floor),
        optional=(*EDGES, _whole("sms", "SMs that the kernel has", key=True),
                  _count("hosts", "", "hosts that the GPUs are in; empty: one"), ELEMENT, SOURCE),
    ),
    _kind(
        "moe", "a layer of routed experts on all GPUs: dispatch, two grouped GEMMs, combine",
        *ROUTED, _count("intermediate", "elements", "intermediate size of an expert, which is gated"),
        _text("kernel", "what did it, like mega_moe; or a strategy of t3sim"),
        _time("time_us", "median", _experts_floor),
        optional=(*EDGES, _count("hosts", "", "hosts that the GPUs are in; empty: one"), ELEMENT, WEIGHTS, SOURCE,
                  _text("parameters", "of a strategy of t3sim, like compute_units=24")),
    ),
    _kind(
        "tile_timelines", "one output tile of one GEMM kernel: where and when it was computed",
        *SUBLAYER, *GEMM,
        _text("kernel", "gemm stores locally, scatter to the owners of the rows"),
        *TILE_COLUMNS,
        optional=(_count("tile_height", "elements", "rows of a tile"),
                  _count("tile_width", "elements", "columns of a tile")),
    ),
)  # fmt: skip
KINDS: dict[str, Kind] = {kind.name: kind for kind in _ALL}


def kind_of_header(header: tuple[str, ...]) -> Kind | str:
    """Return the kind whose files have this header (columns in any order), or why there is none."""
    names = set(header)
    if len(names) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        return f"column {twice!r} appears twice"
    needed = {kind.name: [column.name for column in kind.lacking(names) if not column.may_lack] for kind in _ALL}
    known = {kind.name: {*kind.by_name, *kind.sample_columns()} for kind in _ALL}
    fitting = [kind for kind in _ALL if not needed[kind.name] and names <= known[kind.name]]
    fitting.sort(key=lambda kind: len(kind.lacking(names)))
    if len(fitting) > 1 and len(fitting[0].lacking(names)) == len(fitting[1].lacking(names)):
        told_by = (f"{kind.name} has {', '.join(one.name for one in kind.lacking(names))}" for kind in fitting)
        return f"more than one kind of measurement has these columns: {'; '.join(told_by)}"
    if fitting:
        return fitting[0]
    nearest = max(_ALL, key=lambda kind: len(names & set(kind.names)) - len(needed[kind.name]))
    missing = needed[nearest.name]
    unknown = [name for name in header if name not in known[nearest.name]]
    parts = [f"missing {', '.join(missing)}"] if missing else []
    parts += [f"unknown {', '.join(unknown)[:120]}"] if unknown else []
    return f"no kind of measurement has these columns; the nearest is {nearest.name}: {'; '.join(parts)}"


def peaks_from(values: Mapping[str, Any]) -> Peaks:
    """Return peaks from a mapping of all their names to finite numbers above 0; raises ``ValueError``."""
    names = [field.name for field in fields(Peaks)]
    if set(values) != set(names):
        raise ValueError(f"peaks must have {', '.join(names)}")
    for name in names:
        if not is_above_zero(values[name]):
            raise ValueError(f"peaks: {name} must be a number above 0, found {values[name]!r}")
    return Peaks(**{name: float(values[name]) for name in names})


def is_above_zero(value: object) -> bool:
    """Whether a value read from JSON is a number above 0, and below every size, time and rate that is too large."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < LARGEST
