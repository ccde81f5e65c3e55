"""A validation folder: ``validation.csv``, and errors by kind of measurement.

Everything here follows from the files; nothing is simulated.  Pinned by ``tests/analysis/test_validation.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from t3sim.analysis.folder import VALIDATION_NAME, read_mapping, read_table
from t3sim.errors import InputDataError
from t3sim.results.manifest import MANIFEST_NAME

TILES_NAME = "tiles.csv.gz"

SIMULATED, FAILED, NOT_SIMULATED = "simulated", "failed", "not simulated"
NEEDED = (
    "kind", "quantity", "unit", "file", "line", "rows", "measured", "simulated", "error", "used_for_calibration",
    "status", "reason",
)  # fmt: skip
TEXTS_OF_OPERATORS = ("source", "strategy", "parameters", "tiling")  # columns that a table may do without
ERROR_NAMES = {"geomean": "geomean", "mape": "MAPE", "wmape": "wMAPE", "largest": "max"}
SMALLEST_ERROR = 1e-4  # in a geometric mean: times are rounded to about that, and one exact hit must not make it zero


@dataclass(frozen=True)
class Aim:
    """What the errors of a group are to be: shares (0.05 is 5 %), None where nothing is asked."""

    geomean: float | None = None
    mape: float | None = None
    largest: float | None = None
    has_direction: bool = False  # slowdowns must be slowdowns in both

    @property
    def limits(self) -> dict[str, float]:
        """What is asked of each of the errors of a summary, by its name there."""
        return {name: limit for name in ERROR_NAMES if (limit := getattr(self, name, None)) is not None}

    def __str__(self) -> str:
        if self.has_direction:
            return f"direction right everywhere, size within {100 * (self.largest or 0):.0f} points"
        return ", ".join(f"{ERROR_NAMES[name]} at most {limit:.0%}" for name, limit in self.limits.items())


class Group(NamedTuple):
    """Points that are judged together: a kind, or a part of it."""

    title: str
    kind: str
    part: str = "kind == kind"  # query: all of it
    aim: Aim | None = None


_LARGE, _SMALL = "bytes >= 16e6", "bytes < 16e6"  # the aims of large collectives begin at 16 MB
_OWN = "source.isnull()"  # operators of a source are a table of their own
OVERLAP = Aim(largest=0.10, has_direction=True)
GROUPS = (
    Group("collectives from 16 MB", "collectives", _LARGE, Aim(geomean=0.05, largest=0.15)),
    Group("collectives below 16 MB", "collectives", _SMALL, Aim(geomean=0.10)),
    Group("channel-limited collectives from 16 MB", "channel_limited_collectives", _LARGE, Aim(0.05, largest=0.15)),
    Group("channel-limited collectives below 16 MB", "channel_limited_collectives", _SMALL, Aim(0.10)),
    Group("GEMM", "gemm", aim=Aim(mape=0.08)),
    Group("GEMM after an idle interval", "gemm_gaps", aim=Aim(mape=0.08)),
    Group("GEMM on fewer SMs", "gemm_sm_split", aim=Aim(mape=0.08)),
    Group("GEMM, then RS, then AG", "sequential", "quantity == 'gemm_rs_ag_us'", Aim(mape=0.08)),
    Group("GEMM, then RS", "sequential", "quantity == 'gemm_rs_us'", Aim(mape=0.08)),
    Group("GEMM of a sublayer alone", "sequential", "quantity == 'gemm_us'"),
    Group("RS of a sublayer alone", "sequential", "quantity == 'rs_us'"),
    Group("GEMM and RS, one operator", "operators", f"op == 'gemm-rs' and {_OWN}"),
    Group("GEMM and AR, one operator", "operators", f"op == 'gemm-ar' and {_OWN}"),
    Group("AG and GEMM, one operator", "operators", f"op == 'ag-gemm' and {_OWN}"),
    Group("slowdown of a GEMM by an RS", "contention", "quantity == 'gemm_slowdown'", OVERLAP),
    Group("slowdown of an RS by a GEMM", "contention", "quantity == 'rs_slowdown'", OVERLAP),
    Group("GEMM concurrent with an RS", "contention", "quantity == 'gemm_with_rs_us'"),
    Group("RS concurrent with a GEMM", "contention", "quantity == 'rs_with_gemm_us'"),
    Group("the same GEMM alone", "contention", "quantity == 'gemm_alone_us'"),
    Group("the same RS alone", "contention", "quantity == 'rs_alone_us'"),
    Group("few SMs next to streaming SMs", "memory_contention", "quantity == 'time_us' and beside_sms > 0"),
    Group("slowdown of these SMs", "memory_contention", "quantity == 'slowdown'"),
    Group("the same SMs alone", "memory_contention", "beside_sms == 0"),
    Group("GEMM in a green context", "contention_sm_split", "quantity == 'gemm_alone_us'"),
    Group("copies of several GPUs at once", "transfers", "means == 'copy'"),
    Group("loads, stores of several from 1 MB", "transfers", "means != 'copy' and bytes >= 1e6"),
    Group("loads, stores of several below 1 MB", "transfers", "means != 'copy' and bytes < 1e6"),
    Group("async TP: GEMM and RS", "async_tp", aim=Aim(mape=0.05)),
    Group("fused GEMM and scatter, then sum", "fused_scatter", "quantity == 'flux_us'", Aim(mape=0.08)),
    Group("the same, all GPUs start at row 0", "fused_scatter", "quantity == 'flux_noswz_us'", Aim(mape=0.08)),
    Group("ratio of these two", "fused_scatter", "quantity == 'naive_over_next'", Aim(largest=0.15)),
    Group("async TP: AG and GEMM", "async_tp", "quantity == 'ag_mm_us'", Aim(mape=0.05)),
    Group("AG, then GEMM", "async_tp", "quantity == 'ag_then_mm_us'"),
    Group("tile timeline, first start to last end", "tile_timelines", "quantity == 'makespan_us'"),
    Group("mean time of a tile", "tile_timelines", "quantity == 'tile_us'"),
    Group("mean main loop of a tile (fitted)", "tile_timelines", "quantity == 'main_loop_us'"),
    Group("mean stores of a tile", "tile_timelines", "quantity == 'stores_us'"),
    Group("drift of the SMs", "tile_timelines", "quantity == 'drift_us'"),
)


class Summary(NamedTuple):
    """How far simulation and measurement are apart over some points; None where there are too few.

    Shares, signed in ``bias`` only; of ratios differences.  ``wmape``: the sum of all differences over that of all
    measurements, so long times weigh more.  ``rank_correlation`` is Spearman's.
    """

    n: int
    geomean: float | None = None
    mape: float | None = None
    wmape: float | None = None
    largest: float | None = None
    bias: float | None = None
    rank_correlation: float | None = None
    n_wrong_direction: int = 0  # of slowdowns: faster in one, slower in the other


class Coverage(NamedTuple):
    """Points of a group: *rows* are lines of files, *tried* were to be simulated."""

    rows: int
    points: int
    tried: int
    simulated: int
    failed: int
    not_simulated: int


@dataclass(frozen=True)
class Validation:
    """The files of a validation."""

    points: pd.DataFrame
    tiles: pd.DataFrame
    manifest: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def groups(self) -> list[tuple[Group, pd.DataFrame]]:
        """The groups that have points, with them; a kind without a group is one for each kernel that it has."""
        by_kind = dict(iter(self.points.groupby("kind", sort=False)))
        found = [(group, by_kind[group.kind].query(group.part)) for group in GROUPS if group.kind in by_kind]
        named = {group.kind for group in GROUPS}
        others = [one for kind in by_kind if kind not in named for one in _by(by_kind[kind], str(kind), ["kernel"])]
        return [*((group, members) for group, members in found if len(members)), *others, *self._operators]

    @cached_property
    def _operators(self) -> list[tuple[Group, pd.DataFrame]]:
        """Operators by who measured them, what was measured and how they overlap."""
        named = self.points[(self.points["kind"] == "operators") & self.points["source"].notna()]
        return _by(named, "operators", ["op", "strategy"]) if len(named) else []  # else without a column of operators

    def worst(self, n: int) -> pd.DataFrame:
        """Return the *n* points with the largest errors of times, worst first."""
        times = self.points[(self.points["unit"] != "ratio") & self.points["error"].notna()]
        return times.sort_values("error", key=abs, ascending=False, kind="stable").head(n)


def _by(points: pd.DataFrame, kind: str, columns: Sequence[str]) -> list[tuple[Group, pd.DataFrame]]:
    """Return a group of *points* for each source and each text of *columns*, titled by them."""
    texts = [points[name].astype("string").fillna("") for name in ("source", *columns) if name in points]
    found = []
    for key, members in points.groupby(texts, sort=False):
        source, *words = map(str, key)
        title = " ".join(words if kind == "operators" else [kind, *words]).strip()
        found.append((Group(f"{source}: {title}" if source else title, kind), members))
    return found


def read_validation(folder: str | Path) -> Validation:
    """Return the validation in *folder*; raises ``InputDataError`` naming the file and what is wrong with it."""
    path, tiles_path = Path(folder) / VALIDATION_NAME, Path(folder) / TILES_NAME
    points = _read_csv(path, NEEDED)
    for name in ("measured", "simulated", "error", "rows"):
        points[name] = pd.to_numeric(points[name], errors="coerce")
    for name in TEXTS_OF_OPERATORS:
        points[name] = points.get(name, pd.NA)
    points["used_for_calibration"] = points["used_for_calibration"].astype(str).str.lower() == "true"
    points["held_out"] = points.get("held_out", pd.Series("", points.index)).astype(str).str.lower() == "true"
    unknown = set(points["status"]) - {SIMULATED, FAILED, NOT_SIMULATED}
    if unknown:
        raise InputDataError(f"{path}: unknown status {', '.join(sorted(map(repr, unknown)))}")
    tiles = _read_csv(tiles_path) if tiles_path.exists() else pd.DataFrame()
    return Validation(points, tiles, read_mapping(path.with_name(MANIFEST_NAME)))


def _read_csv(path: Path, columns: Sequence[str] = ()) -> pd.DataFrame:
    return read_table(
        path, columns, "the table of a validation", keep_default_na=False, na_values=[""], low_memory=False,
        compression="gzip" if path.suffix == ".gz" else None,
        dtype={"nccl_channels": "string", "nccl_proto": "string", "reason": "string", "model": "string",
               **dict.fromkeys(TEXTS_OF_OPERATORS, "string")},
    )  # fmt: skip


def coverage_of(points: pd.DataFrame) -> Coverage:
    """Return how many of *points* were simulated; a line that gives several points counts once."""
    counts = points["status"].value_counts()
    rows = int(points.drop_duplicates(["file", "line"])["rows"].sum())
    simulated, failed, left = (int(counts.get(name, 0)) for name in (SIMULATED, FAILED, NOT_SIMULATED))
    return Coverage(rows, len(points), simulated + failed, simulated, failed, left)


def summary_of(points: pd.DataFrame) -> Summary:
    """Return the errors over the simulated ones of *points*."""
    found = points[(points["status"] == SIMULATED) & points["error"].notna()]
    if found.empty:
        return Summary(0)
    errors = found["error"].to_numpy(dtype=float)
    sizes = np.abs(errors)
    ratios = found[found["unit"] == "ratio"]
    differences = (found["simulated"] - found["measured"]).abs()
    wrong = (ratios["measured"] - 1) * (ratios["simulated"] - 1) < 0
    return Summary(
        n=len(found),
        geomean=float(np.exp(np.mean(np.log(np.maximum(sizes, SMALLEST_ERROR))))),
        mape=float(sizes.mean()),
        wmape=None if len(ratios) else float(differences.sum() / found["measured"].sum()),
        largest=float(sizes.max()),
        bias=float(errors.mean()),
        rank_correlation=_rank_correlation(found["measured"], found["simulated"]),
        n_wrong_direction=int(wrong.sum()),
    )


def _rank_correlation(first: pd.Series, second: pd.Series) -> float | None:
    """Return Spearman's coefficient, None for fewer than three points or if all are equal."""
    ranks = first.rank(), second.rank()
    if len(first) < 3 or any(rank.nunique() < 2 for rank in ranks):
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def misses(summary: Summary, aim: Aim) -> list[str]:
    """Return what of *aim* the errors do not meet; empty: it is met."""
    found = []
    for name, limit in aim.limits.items():
        value = getattr(summary, name)
        if value is not None and value > limit:
            found.append(f"{ERROR_NAMES[name]} {f'{100 * value:.1f} points' if aim.has_direction else f'{value:.1%}'}")
    if aim.has_direction and summary.n_wrong_direction:
        found.append(f"direction wrong in {summary.n_wrong_direction}")
    return found


SUMMARY_TITLES = (
    "kind", "aim", "points", "tried", "failed", "geomean", "MAPE", "wMAPE", "max", "bias", "rank corr.",
    "verdict",
)  # fmt: skip


def unused(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points that the machine was not fitted to."""
    return points[~points["used_for_calibration"]]


def held_out(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points of rows that no decision about the model looks at (``t3lab.validation.holdout``)."""
    return points[points["held_out"]]


def summary_texts(validation: Validation, of: Callable[[pd.DataFrame], pd.DataFrame] = unused) -> list[tuple[str, ...]]:
    """Return the table of errors as text, a row for each group: over the points that *of* leaves of it."""
    rows = []
    for group, members in validation.groups:
        points = of(members)
        if points.empty:
            continue
        summary, coverage = summary_of(points), coverage_of(points)
        is_ratio = bool((points["unit"] == "ratio").all())
        counts = map(str, (coverage.points, coverage.tried, coverage.failed))
        shown = [error_text(getattr(summary, name), is_ratio) for name in ERROR_NAMES]
        rank = "" if summary.rank_correlation is None else f"{summary.rank_correlation:.3f}"
        errors = (*shown, error_text(summary.bias, is_ratio, sign="+"), rank)
        rows.append((group.title, str(group.aim or ""), *counts, *errors, verdict_of(summary, group.aim)))
    return rows


def verdict_of(summary: Summary, aim: Aim | None) -> str:
    """Return ``met``, what is missed, or nothing if there is no aim or no point."""
    if aim is None or summary.n == 0:
        return ""
    found = misses(summary, aim)
    return f"missed: {', '.join(found)}" if found else "met"


def error_text(value: float | None, is_ratio: bool, sign: str = "") -> str:
    """Return an error in per cent, of ratios in points; nothing if there is none."""
    return "" if pd.isna(value) else f"{100 * value:{sign}.1f}{' pt' if is_ratio else ' %'}"


def key_text(point: Any, columns: Sequence[str]) -> str:
    """Return what names a point, in words: the values of *columns* that it has."""
    found = [(name, point[name]) for name in columns if name in point and not pd.isna(point[name])]
    return ", ".join(f"{name} {plain(value)}" for name, value in found)


def plain(value: Any) -> str:
    """Return a value of a table as text, whole numbers as such."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
