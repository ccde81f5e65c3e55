"""Summary sentences of a result table, computed from its rows alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from statistics import geometric_mean
from typing import Any, NamedTuple

from t3sim.analysis.bar_figures import gathers_first
from t3sim.analysis.closed_form import size_of
from t3sim.analysis.folder import Results
from t3sim.analysis.strategies import NEEDS_HARDWARE, availability, is_baseline, is_limit
from t3sim.analysis.style import strategy_order
from t3sim.analysis.sweep import TIE, crossovers_of, panels_of, swept_axes
from t3sim.analysis.table import Row, grouped, machine_base, varying, workload_key, workload_name
from t3sim.results.bottleneck import bottleneck, idle_time, in_words, largest_term, mean_times

MAX_LISTED = 6  # crossovers, workloads: more are counted
_SETTINGS = ("machine", "mode")
LEAST_SENT = 0.75  # of what equal work sends at least: chunks that are unlike make GPUs send less than the mean
OF_A_STRATEGY = ("arbitration.", "strategy.")  # axes on which the baseline does not depend


class StrategySummary(NamedTuple):
    """One strategy over all points in which it was compared."""

    strategy: str
    n: int
    geomean: float
    lowest: float
    highest: float
    highest_in: str
    n_best: int  # cases in which it alone is the fastest design
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


def leaders_of(results: Results, *, of_today: bool = False) -> dict[Any, list[str]]:
    """Return by case the strategies that are fastest; several if they are within a tie.

    Limits are left out, and what does less work than the baseline.

    *of_today* leaves out those that need hardware which no GPU has, too.
    """
    fastest: dict[Any, dict[str, float]] = {}
    baselines = _baselines_of(results)
    for row, point in zip(results.rows, results.points, strict=True):
        is_out = is_limit(row["strategy"]) or (of_today and availability(row["strategy"]) == NEEDS_HARDWARE)
        if row["speedup"] and not is_out and not missing_work(row, point, baselines.get(_setting(row, results))):
            case = fastest.setdefault(_setting(row, results), {})
            case[row["strategy"]] = max(row["speedup"], case.get(row["strategy"], 0.0))
    return {
        key: [name for name, speedup in case.items() if speedup * (1 + TIE) >= max(case.values())]
        for key, case in fastest.items()
        if len(case) > 1
    }


def missing_work(row: Row, point: Mapping[str, Any] | None, baseline: Row | None) -> list[str]:
    """Return which collectives of *baseline* a *point* of the same workload does not do; none if it does equal work.

    One that has no phase of its own is missing if the GPU sends less than the closed form of all of them, too: another
    phase of the point does it otherwise.
    """
    size = None if point is None else size_of(point)
    if baseline is None or size is None or row["link_bytes"] is None:
        return []
    has = {
        "reduce-scatter": bool(row["rs_us"] or row["fused_us"]),
        "all-gather": bool(row["ag_us"] or (row["fused_us"] and gathers_first(row))),
    }
    needed = [name for name, column in (("reduce-scatter", "rs_us"), ("all-gather", "ag_us")) if baseline[column]]
    least = len(needed) * size * (row["tp"] - 1) / row["tp"]
    return [name for name in needed if not has[name]] if row["link_bytes"] < LEAST_SENT * least else []


def _baselines_of(results: Results) -> dict[Any, Row]:
    """Return by case the row that speedups are over."""
    return {_setting(row, results): row for row in results.rows if is_baseline(row["strategy"])}


def _unequal_work(results: Results) -> list[str]:
    """Say of each strategy that does less work than the baseline what is missing."""
    baselines, missing = _baselines_of(results), dict[str, list[str]]()
    for row, point in zip(results.rows, results.points, strict=True):
        if names := missing_work(row, point, baselines.get(_setting(row, results))):
            missing.setdefault(row["strategy"], names)
    return [
        f"{strategy} is not compared: it does less work, without the {' and the '.join(names)}."
        for strategy, names in missing.items()
    ]


def sentences(results: Results) -> list[str]:
    """Return the sentences next to the summaries of the strategies: gains, the fastest, crossovers."""
    rows = results.rows
    finished = [row for row in rows if row["time_us"] is not None]
    n_cases = len({_setting(row, results) for row in rows})
    found = [f"{count(len(finished), 'point')} simulated, in {count(n_cases, 'case')}."]
    strategies = dict.fromkeys(row["strategy"] for row in rows)
    for name in strategies:
        found += _gain(results, name.refines, name) if name.refines in strategies else []
    leaders = leaders_of(results)
    if len(leaders) > 1:
        found.append(f"Fastest design, in {len(leaders)} cases: {_shares(leaders)}.{_not_on_sale(leaders, results)}")
    return found + _unequal_work(results) + crossover_sentences(results)


def takeaway(results: Results) -> list[str]:
    """Return in two or three sentences which design is fastest, what it hides, and what keeps it from hiding more."""
    return [*_takeaway(results), *_unequal_work(results)]


def _takeaway(results: Results) -> list[str]:
    leaders = leaders_of(results)
    if not leaders:
        return _nothing_overlapped(results.rows)
    n_led = Counter(name for names in leaders.values() for name in names)
    fastest = max(n_led, key=lambda name: (n_led[name], not is_baseline(name)))
    if is_baseline(fastest):
        return [f"No design gains on {fastest}{_in_cases(n_led[fastest], len(leaders))}."]
    rows = list(_best_rows(results, fastest, leaders).values())
    speedups = sorted(row["speedup"] for row in rows)
    gain = " to ".join(dict.fromkeys(f"{speedup:.3f}×" for speedup in (speedups[0], speedups[-1])))
    found = [
        f"{fastest} is the fastest design{_in_cases(n_led[fastest], len(leaders))}: {gain}."
        + _not_on_sale(leaders, results)
    ]
    measured = [row for row in rows if row["overlap_efficiency"] is not None]
    if measured:
        worst, *_, best = sorted(measured, key=itemgetter("overlap_efficiency")) * 2
        what = "all-gather" if gathers_first(worst) else "reduce-scatter"
        hidden = _range(row["overlap_efficiency"] for row in (worst, best))
        where = f"In {point_name(worst, results)}, where it hides least, the" if len(measured) > 1 else "The"
        found += [f"It hides {hidden} of the {what}.", *_what_limits(results, worst, where)]
    return found


def _nothing_overlapped(rows: Sequence[Row]) -> list[str]:
    """How much there is to hide, if nothing was compared."""
    whole = [row for row in rows if is_baseline(row["strategy"]) and row["gemm_us"] and row["time_us"]]
    shares = sorted((row["time_us"] - row["gemm_us"] - (row["others_us"] or 0.0)) / row["time_us"] for row in whole)
    if not shares:
        return []
    return [f"Exposed communication: {_range((shares[0], shares[-1]))} of the time."]


def _range(shares: Iterable[float]) -> str:
    """Return the least and the greatest of some shares in per cent, once if they are equal."""
    return " to ".join(dict.fromkeys(f"{100 * share:.0f}%" for share in shares))


def _what_limits(results: Results, row: Row, where: str) -> list[str]:
    """Why the fused run of a point takes longer than its GEMM alone: what bounds it, and the largest term of it."""
    if row["fused_us"] is None or row["gemm_us"] is None or row["layer"] is not None:
        return []
    longer = row["fused_us"] - row["gemm_us"]
    if longer <= 0.01 * row["gemm_us"]:
        return [f"{where} fused run takes no longer than the GEMM alone."]
    fused, alone = _mean_times(results, row, is_fused=True), _mean_times(results, row, is_fused=False)
    bound, most = bottleneck(fused, _idle_us(results, row)), largest_term(fused, alone)
    found = [
        f"{where} fused run takes {longer:.1f} us longer than the GEMM alone{f'; it is {bound}' if bound else ''}."
    ]
    if most is not None:
        found.append(f"The largest part, {most[1]:.1f} us: {in_words(most[0])} (waits.csv).")
    return found


def _mean_times(results: Results, row: Row, *, is_fused: bool) -> dict[tuple[str, str], float]:
    """Return the mean times of the units of a point, in its fused phase or in the GEMM alone; may be empty."""
    frame = results.waits()
    if frame is None:
        return {}
    of_point = frame[frame["point"] == results.numbers[results.rows.index(row)]]
    phase = of_point[of_point["phase"].str.startswith("fused") if is_fused else of_point["phase"] == "gemm"]
    columns = phase[["unit", "reason", "time_us", "n_units"]]
    return mean_times(columns.itertuples(index=False, name=None), max(phase["gpu"].nunique(), 1))


def _idle_us(results: Results, row: Row) -> float:
    """Return for how long no operation runs on the first GPU of a point in its fused phase; 0 if unknown."""
    frame = results.spans()
    if frame is None:
        return 0.0
    of_point = frame[(frame["point"] == results.numbers[results.rows.index(row)]) & (frame["role"] == "fused")]
    spans = of_point[of_point["gpu"] == of_point["gpu"].min()][["start_us", "end_us"]]
    if spans.empty:
        return 0.0
    begin = max(float(spans["end_us"].max()) - row["fused_us"], 0.0)
    times = spans.itertuples(index=False, name=None)
    return idle_time([(start - begin, end - begin) for start, end in times], row["fused_us"])


def _best_rows(results: Results, name: str, leaders: Mapping[Any, Sequence[str]]) -> dict[Any, Row]:
    """Return by case the fastest row of a strategy, of the cases that it leads."""
    best: dict[Any, Row] = {}
    for row in results.rows:
        case = _setting(row, results)
        if row["strategy"] == name and row["speedup"] and name in leaders.get(case, ()):
            best[case] = max(best.get(case, row), row, key=itemgetter("speedup"))
    return best


def _in_cases(n: int, n_all: int) -> str:
    return "" if n_all == 1 else f" in {n} of {n_all} cases"


def _shares(leaders: Mapping[Any, Sequence[str]]) -> str:
    """How many cases each strategy leads alone, and in how many several are equal."""
    shares = Counter(names[0] for names in leaders.values() if len(names) == 1).most_common()
    n_tied = sum(len(names) > 1 for names in leaders.values())
    return ", ".join([f"{name} in {n}" for name, n in shares] + ([f"several within 0.1% in {n_tied}"] * bool(n_tied)))


def _not_on_sale(leaders: Mapping[Any, Sequence[str]], results: Results) -> str:
    """That a leader needs hardware which no GPU has, and what is fastest without; empty if none does."""
    needing = dict.fromkeys(n for names in leaders.values() for n in names if availability(n) == NEEDS_HARDWARE)
    if not needing:
        return ""
    machines = dict.fromkeys(machine_base(row["machine"]) for row in results.rows)
    text = f" {' and '.join(needing)} need{'s' * (len(needing) == 1)} hardware not available today"
    text += f" (simulated as part of {', '.join(machines)})."
    today = leaders_of(results, of_today=True)
    if len(today) == len(leaders) == 1:
        (names,) = today.values()
        return f"{text} Of what runs today: {' or '.join(names)}."
    return f"{text} Of what runs today, in {count(len(today), 'case')}: {_shares(today)}." if today else text


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
