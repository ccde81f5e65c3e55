"""What a table of results says in a few sentences: computed from the rows, nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from statistics import geometric_mean
from typing import Any, NamedTuple

from t3sim.analysis.bar_figures import gathers_first
from t3sim.analysis.folder import Results
from t3sim.analysis.strategies import NEEDS_HARDWARE, availability, is_baseline, is_limit
from t3sim.analysis.style import strategy_order
from t3sim.analysis.sweep import TIE, crossovers_of, panels_of, swept_axes
from t3sim.analysis.table import Row, grouped, machine_base, varying, workload_key, workload_name
from t3sim.results.waits import COMPUTE_UNIT, NOTHING_LEFT, WORKING

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
    """Return by case the strategies that are fastest, limits left out; several if they are within a tie.

    *of_today* leaves out those that need hardware which no GPU has, too.
    """
    fastest: dict[Any, dict[str, float]] = {}
    for row in results.rows:
        is_out = is_limit(row["strategy"]) or (of_today and availability(row["strategy"]) == NEEDS_HARDWARE)
        if row["speedup"] and not is_out:
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
        found.append(f"Fastest design, in {len(leaders)} cases: {_shares(leaders)}.{_not_on_sale(leaders, results)}")
    return found + crossover_sentences(results)


def takeaway(results: Results) -> list[str]:
    """Return in two or three sentences which design is fastest, what it hides, and what keeps it from hiding more."""
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
    return [f"Communication that nothing hides is {_range((shares[0], shares[-1]))} of the time."]


def _range(shares: Iterable[float]) -> str:
    """Return the least and the greatest of some shares in per cent, once if they are equal."""
    return " to ".join(dict.fromkeys(f"{100 * share:.0f} %" for share in shares))


def _what_limits(results: Results, row: Row, where: str) -> list[str]:
    """Why the fused run of a point takes longer than its GEMM alone: what compute units wait longer for."""
    if row["fused_us"] is None or row["gemm_us"] is None or row["layer"] is not None:
        return []
    longer = row["fused_us"] - row["gemm_us"]
    if longer <= 0.01 * row["gemm_us"]:
        return [f"{where} fused run takes no longer than the GEMM alone."]
    waits = _compute_unit_waits(results, row)
    most = max(waits, key=lambda reason: waits[reason], default="")
    why = f" compute units wait {waits[most]:.1f} us more for `{most}` (waits.csv)." if waits.get(most, 0.0) > 0 else ""
    return [f"{where} fused run takes {longer:.1f} us longer than the GEMM alone{':' if why else '.'}{why}"]


def _compute_unit_waits(results: Results, row: Row) -> dict[str, float]:
    """Return by reason how much longer the average compute unit waits fused than in the GEMM alone; may be empty."""
    frame = results.waits()
    if frame is None:
        return {}
    number = results.numbers[results.rows.index(row)]
    of_point = frame[(frame["point"] == number) & (frame["unit"] == COMPUTE_UNIT)]
    of_point = of_point[~of_point["reason"].isin((WORKING, NOTHING_LEFT))]
    times: dict[str, float] = {}
    for is_fused, sign in ((True, 1), (False, -1)):
        phase = of_point["phase"].str.startswith("fused") if is_fused else of_point["phase"] == "gemm"
        part = of_point[phase]
        n_gpus = part["gpu"].nunique()
        for reason, time, n_units in part[["reason", "time_us", "n_units"]].itertuples(index=False, name=None):
            times[reason] = times.get(reason, 0.0) + sign * time / n_units / n_gpus
    return times


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
    return ", ".join([f"{name} in {n}" for name, n in shares] + ([f"several within 0.1 % in {n_tied}"] * bool(n_tied)))


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
