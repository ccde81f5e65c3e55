"""Properties of the strategies of a result folder; figures and reports know no strategy by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from t3sim.analysis.table import Row, grouped

AVAILABILITIES = EXISTS_TODAY, NEEDS_HARDWARE, BOUND = ("exists today", "needs hardware", "bound")


class Strategy(str):  # noqa: SLOT000 - it has attributes besides the name
    """The name of a strategy, with what it declares about itself (``overlap.interface.OverlapStrategy``)."""

    kind: str = "design"
    order: int | None = None
    has_near_memory: bool = False
    refines: str | None = None
    availability: str = ""  # empty: the file does not say


def is_baseline(name: str) -> bool:
    """Whether speedups are over this strategy."""
    return isinstance(name, Strategy) and name.kind == "baseline"


def is_limit(name: str) -> bool:
    """Whether this strategy cannot be built: a bound, or an estimate from parts alone."""
    return isinstance(name, Strategy) and name.kind in ("bound", "estimate")


def availability(name: str) -> str:
    """Whether the strategy can run today: one of ``AVAILABILITIES``, empty if unknown."""
    return name.availability if isinstance(name, Strategy) else ""


def has_near_memory(name: str) -> bool:
    """Whether the reduce-scatter of this strategy reduces incoming data near memory."""
    return isinstance(name, Strategy) and name.has_near_memory


def strategies_of(rows: Sequence[Row], declared: object) -> dict[str, Strategy]:
    """Return the strategies of *rows* by name; *declared* is what ``resolved.json`` says of them.

    Folders of earlier versions say nothing: then the baseline is the strategy whose speedup is 1 wherever it has one.
    """
    by_name = grouped(rows, lambda row: str(row["strategy"]))
    if isinstance(declared, Mapping):
        return {name: _declared(name, declared.get(name)) for name in by_name}
    speedups = {name: {row["speedup"] for row in members} - {None} for name, members in by_name.items()}
    return {name: _declared(name, {"kind": "baseline"} if found == {1.0} else {}) for name, found in speedups.items()}


def _declared(name: str, about: Any) -> Strategy:
    """The strategy *name* from a file that a user may have edited: what is no declaration is left out."""
    strategy, about = Strategy(name), about if isinstance(about, Mapping) else {}
    if about.get("kind") in ("baseline", "bound", "estimate"):
        strategy.kind = str(about["kind"])
    if type(about.get("order")) is int and about["order"] >= 0:
        strategy.order = about["order"]
    if isinstance(about.get("refines"), str):
        strategy.refines = about["refines"]
    strategy.has_near_memory = about.get("has_near_memory") is True
    if about.get("availability") in AVAILABILITIES:
        strategy.availability = str(about["availability"])
    return strategy
