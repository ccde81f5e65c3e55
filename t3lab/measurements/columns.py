"""What a column, a kind of measurement and the peaks of a device are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

Value = str | int | float
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
