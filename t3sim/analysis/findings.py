"""What a table of results says in a few sentences: computed from the rows, nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from statistics import geometric_mean
from typing import Any, NamedTuple

from t3sim.analysis.folder import Results
from t3sim.analysis.strategies import is_baseline, is_limit
from t3sim.analysis.style import strategy_order
from t3sim.analysis.sweep import TIE, crossovers_of, panels_of, swept_axes
from t3sim.analysis.table import Row, grouped, varying, workload_key, workload_name

MAX_LISTED = 6  # crossovers, workloads: more are counted
_SETTINGS = ("machine", "mode")
OF_A_STRATEGY = ("arbitration.", "strategy.")  # axes on which the baseline does not depend


class StrategySummary(NamedTuple):
    """One strategy over all points in which it was compared."""

    strategy: str
    n: int
    geomean: float
    lowest: float
    highest: float
    highest_in: str
    n_best: int  # cases in which it alone is the fastest of those that could be built
    is_limit: bool


def strategy_summaries(results: Results) -> list[StrategySummary]:
    """Return the speedups by strategy, without the baseline."""
    rows = [row for row in results.rows if row["speedup"]]
    best = Counter(names[0] for names in leaders_of(results).values() if len(names) == 1)
    found = []
    by_strategy = grouped((row for row in rows if not is_baseline(row["strategy"])), itemgetter("strategy"))
    for name in strategy_order(by_strategy):
        members = by_strategy[name]
        speedups = [row["speedup"] for row in members]
        where = point_name(max(members, key=itemgetter("speedup")), results)
        spread = (geometric_mean(speedups), min(speedups), max(speedups))
        found.append(StrategySummary(name, len(members), *spread, where, best[name], is_limit(name)))
    return found


def leaders_of(results: Results) -> dict[Any, list[str]]:
    """Return by case the strategies that are fastest, limits left out; several if they are within a tie."""
    fastest: dict[Any, dict[str, float]] = {}
    for row in results.rows:
        if row["speedup"] and not is_limit(row["strategy"]):
            case = fastest.setdefault(_setting(row, results), {})
            case[row["strategy"]] = max(row["speedup"], case.get(row["strategy"], 0.0))
    return {
        key: [name for name, speedup in case.items() if speedup * (1 + TIE) >= max(case.values())]
        for key, case in fastest.items()
        if len(case) > 1
    }


def sentences(results: Results) -> list[str]:
    """Return in words what stands beside the summaries of the strategies: gains, the fastest, crossovers."""
    rows = results.rows
    finished = [row for row in rows if row["time_us"] is not None]
    n_cases = len({_setting(row, results) for row in rows})
    found = [f"{count(len(finished), 'point')} simulated, in {count(n_cases, 'case')}."]
    strategies = dict.fromkeys(row["strategy"] for row in rows)
    for name in strategies:
        found += _gain(results, name.refines, name) if name.refines in strategies else []
    leaders = leaders_of(results)
    if len(leaders) > 1:
        shares = Counter(names[0] for names in leaders.values() if len(names) == 1).most_common()
        n_tied = sum(len(names) > 1 for names in leaders.values())
        listed = [f"{name} in {n}" for name, n in shares] + ([f"several within 0.1 % in {n_tied}"] if n_tied else [])
        found.append(f"Fastest of what could be built, in {len(leaders)} cases: {', '.join(listed)}.")
    return found + crossover_sentences(results)


def crossover_sentences(results: Results) -> list[str]:
    """Return in words where along a swept axis the best strategy changes."""
    listed: list[str] = []
    for key in swept_axes(results):
        values, panels = panels_of(results, key)
        for panel in panels:
            for cross in crossovers_of(values, panel.lines):
                where = f"at {cross.at:.3g} {values.unit}".rstrip() + ", " if cross.at is not None else ""
                between = f"between {cross.before} and {cross.after} of {key}"
                listed.append(f"{panel.title}: {cross.winner} passes {cross.loser} {where}{between}.")
    if len(listed) > MAX_LISTED:
        n_more = count(len(listed) - MAX_LISTED, "more crossover")
        listed[MAX_LISTED:] = [f"{n_more}: the file crossovers.csv of the figure sweep has all."]
    return listed


def point_name(row: Row, results: Results) -> str:
    """How a sentence names a point: workload, and what was swept."""
    alike = [other for other in results.rows if other["strategy"] == row["strategy"]]
    swept = [f"{name} {row[name]}" for name in varying(alike, results.axes) if row[name] is not None]
    machine = [row["machine"]] if varying(results.rows, ["machine"]) else []
    return ", ".join([workload_name(row), *(swept or machine)])


def _gain(results: Results, slower: str, faster: str) -> list[str]:
    """How much one strategy gains over another where both were run once."""
    gains: list[tuple[float, Row]] = []
    for rows in grouped((row for row in results.rows if row["speedup"]), lambda row: _setting(row, results)).values():
        by_strategy = grouped(rows, itemgetter("strategy"))
        before, after = by_strategy.get(slower, []), by_strategy.get(faster, [])
        if len(before) == len(after) == 1:
            gains.append((after[0]["speedup"] / before[0]["speedup"], after[0]))
    if not gains:
        return []
    top, row = max(gains, key=itemgetter(0))
    if len(gains) == 1:
        return [f"{faster} over {slower}: {top:.3f}×."]
    mean, where = geometric_mean(gain for gain, _ in gains), point_name(row, results)
    return [f"{faster} over {slower}: {mean:.3f}× (geomean of {len(gains)}), at most {top:.3f}× ({where})."]


def _setting(row: Row, results: Results) -> tuple[Any, ...]:
    """What is the same for the strategies that are compared with each other."""
    machine_axes: Sequence[str] = [name for name in results.axes if not name.startswith(OF_A_STRATEGY)]
    return (workload_key(row), *(row[name] for name in (*_SETTINGS, *machine_axes)))


def count(n: int, what: str) -> str:
    """Return how many of what, one or several."""
    return f"{n} {what}{'' if n == 1 else 's'}"
