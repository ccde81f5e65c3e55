"""The part of ``t3sim advise`` that is about layers of routed experts: tables on the screen, and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from t3sim.cli._errors import echo
from t3sim.cli._tables import wrap_text

if TYPE_CHECKING:
    from t3sim.advice.experts import ExpertsCase
    from t3sim.advice.search import Simulate
    from t3sim.config.experiment import RunSpec

SMALL_US = 10.0  # shorter times have a decimal
MOST_STRATEGIES, COLUMN = 5, 13


def advise_experts(
    runs: Sequence[RunSpec], given: dict[str, str], simulate: Simulate, folder: Path, *, only_today: bool
) -> list[Path]:
    """Search for the fastest form of each layer of *runs*, print the answers, write and return the files.

    Without *only_today*, simulate what other hardware would add.
    """
    from t3sim.advice.experts import CANDIDATES, COLUMNS, PARTS, THRESHOLDS, by_layer, case_of, settle, thresholds
    from t3sim.files import publish
    from t3sim.results.csv_table import table_bytes

    cases = [case_of(run, dict(given), only_today=only_today) for run in runs]
    n = sum(len(case.choices) for case in cases)
    echo(f"search      {len(cases)} layers of experts on {runs[0].machine.name}, up to {n} simulations")
    settle(cases, simulate, lambda text: echo(f"search      {text}"))
    for members in by_layer(cases):
        echo("", *table(members))
    tables = {
        "experts": (COLUMNS, [case.row() for case in cases]),
        "experts_candidates": (CANDIDATES, [row for case in cases for row in case.candidate_rows()]),
        "experts_parts": (PARTS, [row for case in cases for row in case.part_rows()]),
        "experts_thresholds": (THRESHOLDS, list(thresholds(cases))),
    }
    files = {folder / f"{name}.csv": table_bytes(*one) for name, one in tables.items() if one[1]}
    publish(files)
    return list(files)


def table(members: Sequence[ExpertsCase]) -> list[str]:
    """Return the times of the strategies by tokens of a GPU, who wins with which parameters, and what cannot run."""
    from t3sim.advice.experts import values_of

    model, machine, gpus, _, _, routing, _ = members[0].name()
    nearest: dict[str, float] = {}
    for case in members:
        for one in case.best:
            share = (one.us or 0.0) / (case.best[0].us or 1.0)
            nearest[one.candidate.strategy] = min(nearest.get(one.candidate.strategy, share), share)
    names = sorted(nearest, key=lambda name: nearest[name])[:MOST_STRATEGIES]
    headings = [wrap(name, COLUMN - 1, break_on_hyphens=True) for name in names]
    height = max(map(len, headings))
    padded = [[*[""] * (height - len(lines)), *lines] for lines in headings]
    title = (
        f"{model or 'experts'}, {gpus} GPUs of {machine}, routing {routing}: us by tokens of a GPU; `*` wins, `~` ties"
    )
    lines = wrap_text(title)
    for number, cells in enumerate(zip(*padded, strict=True)):
        start = "tokens  load" if number == height - 1 else ""
        lines.append(f"{start:>12}" + "".join(f"{cell:>{COLUMN}}" for cell in cells))
    for case in members:
        times = {one.candidate.strategy: one for one in case.best}
        ties = {one.candidate.strategy for one in case.ties}
        shown = []
        for name in names:
            us = times[name].us if name in times else None
            mark = "*" if name == case.best[0].candidate.strategy else "~" if name in ties else ""
            shown.append("-" if us is None else f"{us:.{0 if us >= SMALL_US else 1}f}{mark}")
        start = f"{case.experts.tokens_per_gpu:>6}{case.name()[-1]:>6.2f}"
        lines.append(start + "".join(f"{cell:>{COLUMN}}" for cell in shown))
    starts, last = [], ""
    for case in members:
        winner = case.best[0].candidate
        words = f"{winner.strategy}{f' ({values_of(winner)})' if winner.params else ''}"
        if words != last:
            starts.append(f"{words} from {case.experts.tokens_per_gpu}")
        last = words
    lines += wrap_text(f"Winner: {', '.join(starts)} tokens of a GPU; load: rows of the most loaded GPU over the mean.")
    left_out = dict.fromkeys(one.candidate.strategy for case in members for one in case.too_slow)
    if missing := [name for name in left_out if any(name not in known_in(case) for case in members)]:
        lines += wrap_text(f"-: not simulated, since reading the weights alone takes longer ({', '.join(missing)}).")
    lines += hardware_lines(members)
    able = {one.candidate.strategy for case in members for one in case.simulated}
    reasons = {
        one.candidate.strategy: one.refused for case in members for one in case.choices
        if one.refused and one.candidate.strategy not in able
    }  # fmt: skip
    for name, reason in reasons.items():
        lines += wrap_text(f"Cannot run here: {name} ({reason}).")
    return lines


def known_in(case: ExpertsCase) -> set[str]:
    """Return the strategies that were simulated in a case."""
    return {one.candidate.strategy for one in case.best}


def hardware_lines(members: Sequence[ExpertsCase]) -> list[str]:
    """Say what hardware that does not exist would take, and how much less, or more, than the winner."""
    told: dict[str, list[str]] = {}
    for case in members:
        one = case.hardware
        if one is None:
            continue
        if one.us is None:
            told.setdefault(f"{one.candidate.strategy} was not simulated: {one.refused}", [])
            continue
        gain = (case.best[0].us or 0.0) / one.us - 1
        what = f"{gain:.0%} faster" if gain >= 0 else f"{-gain:.0%} slower"
        us = f"{one.us:.{0 if one.us >= SMALL_US else 1}f} us at {case.experts.tokens_per_gpu} ({what})"
        told.setdefault(f"{one.candidate.strategy} would take", []).append(us)
    return [
        line for what, times in told.items()
        for line in wrap_text(f"With hardware that does not exist, {' '.join([what, ', '.join(times)]).strip()}.")
    ]  # fmt: skip
