"""Results as terminal tables: a row for each point, a column for each value that distinguishes points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from t3sim.cli._tables import amount, table_lines, wrap_text

if TYPE_CHECKING:
    from t3sim.results.record import RunRecord

MAX_AXIS_COLUMNS = 3  # of more, all values of a point stand in one column
NOTHING = "-"


def results_lines(records: Sequence[RunRecord]) -> Iterator[str]:
    """Yield a table of times and speedups, then which strategies are not available today."""
    from t3sim.strategies import availability_of

    columns = {
        "total": ("time_us", 1), "speedup": ("speedup", 3), "hidden": ("overlap_efficiency", 2),
        "GEMM alone": ("gemm_us", 1), "RS alone": ("rs_us", 1), "fused": ("fused_us", 1), "AG": ("ag_us", 1),
        "others": ("others_us", 1), "tokens/s": ("tokens_per_s", 0),
    }  # fmt: skip
    records = sorted_records(records)
    shared, words = points_in_words(records)
    numbers = {
        heading: [number(getattr(r, name), digits) for r in records] for heading, (name, digits) in columns.items()
    }
    yield from table_lines(f"Times (us) and speedup over sequential{shared}", words, _with_values(numbers))
    yield from wrap_text(availability_of(r.strategy for r in records))


def traffic_lines(records: Sequence[RunRecord]) -> Iterator[str]:
    """Yield a table of the DRAM traffic of one GPU by category."""
    columns = {
        f"{of} {way}": f"dram_{of.lower()}_{way}_bytes" for of in ("GEMM", "RS", "AG") for way in ("read", "write")
    }
    columns["link"] = "link_bytes"
    if any(record.nic_bytes is not None for record in records):
        columns["network"] = "nic_bytes"
    records = sorted_records(records)
    shared, words = points_in_words(records)
    numbers = {heading: [_megabytes(getattr(r, name)) for r in records] for heading, name in columns.items()}
    numbers["L2 hits (%)"] = [number(r.l2_hit_rate, 1, 0.01) for r in records]
    limits = [r.mca_threshold or NOTHING for r in records]
    if limits not in words.values():
        numbers["MCA limit"] = limits
    yield from table_lines(f"DRAM traffic of one GPU (MB = 10^6 bytes){shared}", words, _with_values(numbers))


def sorted_records(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return *records* in the order of their cases: first what is compared, then strategies, then their parameters.

    Values of a column keep the order in which they first appear, that of the sweep.
    """
    _, words = points_in_words(records)
    ranks = [{cell: rank for rank, cell in enumerate(dict.fromkeys(cells))} for cells in words.values()]
    keys = [
        tuple(rank[cell] for rank, cell in zip(ranks, row, strict=True)) for row in zip(*words.values(), strict=True)
    ]
    return [records[i] for i in sorted(range(len(records)), key=lambda i: keys[i] if keys else ())]


def points_in_words(records: Sequence[RunRecord]) -> tuple[str, dict[str, list[str]]]:
    """Return what all points share, after a colon, and the columns that distinguish them: every swept axis.

    What a case is comes first, then the strategy, then what only its overlapping depends on.
    """
    title, workload = _workload_columns(records)
    told = {
        "machine": [r.machine for r in records],
        "mode": [r.mode for r in records],
        "strategy": [r.strategy for r in records],
        "arbitration": [r.arbitration or NOTHING for r in records],
        "communication units": [number(r.communication_units, 0) for r in records],
    }
    axes = {key: [r.axes[key] or NOTHING for r in records] for key in (records[0].axes if records else ())}
    axes = {key: cells for key, cells in axes.items() if len(set(cells)) > 1}
    short = {_short(key, axes): key for key in axes}
    axes = {name: axes[key] for name, key in short.items()}
    of_cases = [name for name, key in short.items() if not key.startswith(("strategy.", "arbitration."))]
    if len(axes) > MAX_AXIS_COLUMNS:
        rows = zip(*axes.values(), strict=True)
        axes = {"swept": [", ".join(f"{key} {text}" for key, text in zip(axes, row, strict=True)) for row in rows]}
        of_cases = []
    shown = {"strategy", *(name for name, cells in told.items() if _varies(cells, told["strategy"]))} - {"machine"}
    without = [
        *workload.values(),
        *(cells for name, cells in {**told, **axes}.items() if name in shown or name in axes),
    ]
    if len(set(zip(*without, strict=True))) < len(set(zip(*without, told["machine"], strict=True))):
        shown.add("machine")
    machines = {r.machine if "machine" in shown else r.machine.partition("+")[0] for r in records}
    same = [title, *(machines if len(machines) == 1 else ())]
    columns = {
        **workload,
        **{name: axes.pop(name) for name in of_cases},
        **{name: told[name] for name in ("machine", "mode", "strategy", "arbitration", "communication units")},
        **axes,
    }
    kept = {name: cells for name, cells in columns.items() if name in shown or name not in told}
    return ": ".join(["", " on ".join(filter(None, same))]) if any(same) else "", kept


def _workload_columns(records: Sequence[RunRecord]) -> tuple[str, dict[str, list[str]]]:
    """Return the workload that all points share, and columns of what differs: names, sizes of a GEMM, TP."""
    names = [_workload_name(r) for r in records]
    shapes = [(r.m, r.n, r.k) if r.model is None and r.m is not None else (None,) * 3 for r in records]
    columns: dict[str, list[str]] = {} if len(set(names)) == 1 else {"workload": names}
    sizes = []
    for letter, values in zip("mnk", zip(*shapes, strict=True), strict=False):
        if len(set(values)) > 1:
            columns[letter] = [number(value, 0) for value in values]
        sizes.append(str(values[0]) if len(set(values)) == 1 else letter)
    if len(set(records_tp := [str(r.tp) for r in records])) > 1:
        columns["TP"] = records_tp
    title = names[0] if len(set(names)) == 1 else ""
    if title and any(shape[0] is not None for shape in shapes):
        title += f" {' x '.join(sizes)}"
    if records and "TP" not in columns:
        title = f"{title}, TP {records_tp[0]}" if title else f"TP {records_tp[0]}"
    return title, columns


def _workload_name(record: RunRecord) -> str:
    """Return how a table names the workload of a point, without the sizes of a bare GEMM and the number of GPUs."""
    if record.model is not None:
        part = record.sublayer if record.layer is None else f"layer, {record.layer}"
        return f"{record.model} {part}"
    if record.m is not None:
        return "GEMM" if record.sublayer is None else f"{record.sublayer} GEMM"
    return "collective"


def number(value: float | None, digits: int, unit: float = 1) -> str:
    """Return *value* over *unit* as a cell."""
    return NOTHING if value is None else f"{value / unit:.{digits}f}"


def _megabytes(n_bytes: int | None) -> str:
    return NOTHING if n_bytes is None else amount(n_bytes / 1e6)


def _varies(cells: Sequence[str], strategies: Sequence[str]) -> bool:
    """Return whether points of one strategy differ in *cells*."""
    return len(set(zip(strategies, cells, strict=True))) > len(set(strategies))


def _short(key: str, keys: Iterable[str]) -> str:
    """Return the end of a dotted key, as much of it as no other one of *keys* has."""
    parts = key.split(".")
    ends = [".".join(parts[i:]) for i in range(len(parts) - 1, -1, -1)]
    return next((end for end in ends if sum(f".{other}".endswith(f".{end}") for other in keys) == 1), key)


def _with_values(columns: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return the columns in which some point has a value."""
    return {heading: cells for heading, cells in columns.items() if set(cells) != {NOTHING}}
