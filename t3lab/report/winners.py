"""Whether a simulation names the fastest of several ways in which one operator was measured.

A *case* is an operator of one shape on that many GPUs that was measured in two ways or more; of measurements that name
their source, all of one source.  Where a way was measured more than once, its times are the means.  Everything here
follows from the table of a validation; pinned by ``tests/analysis/test_winners.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from t3lab.measurements.writing import csv_text
from t3lab.report.validation import SIMULATED, Validation

WINNERS_NAME = "winners.csv"
TIE = 0.03  # two ways whose measured times differ by less are as good: repetitions differ by as much
RIGHT, WRONG, TIED = "right", "wrong", "tie"

# Times of whole operators: kind of measurement and quantity, operator and way.  Rows of `operators` say it themselves.
OF_KINDS = (
    ("sequential", "gemm_rs_us", "gemm-rs", "sequential"),
    ("fused_scatter", "seq_us", "gemm-rs", "sequential"),
    ("fused_scatter", "flux_us", "gemm-rs", "flux-push"),
    ("fused_scatter", "flux_noswz_us", "gemm-rs", "flux-push order=naive"),
    ("async_tp", "mm_rs_us", "gemm-rs", "async-tp"),
    ("async_tp", "ag_mm_us", "ag-gemm", "async-tp-ag"),
    ("async_tp", "ag_then_mm_us", "ag-gemm", "sequential"),
)
WAYS = {(kind, quantity): (op, way) for kind, quantity, op, way in OF_KINDS}
COLUMNS = (
    "op", "gpus", "m", "n", "k", "source", "ways", "measured_us", "simulated_us", "fastest", "named", "gap", "loss",
    "verdict",
)  # fmt: skip
_Key = tuple[str, int, int, int, int, str]  # of a case: operator, GPUs, shape, source


class Case(NamedTuple):
    """An operator that was measured in several ways: the times of each, measured and simulated, in us."""

    op: str
    gpus: int
    m: int
    n: int
    k: int
    source: str  # empty: not said
    measured: Mapping[str, float]
    simulated: Mapping[str, float]
    fastest: str  # the way with the shortest measured time
    named: str  # the way with the shortest simulated time
    gap: float  # what the second fastest way takes longer, as measured
    loss: float  # what the way that the simulation names takes longer than the fastest one, as measured
    verdict: str  # whether that is the fastest one; a tie if another one is as good, for all that is measured


def cases_of(validation: Validation) -> list[Case]:
    """Return what was measured, and simulated, in two ways or more."""
    found: dict[_Key, dict[str, list[tuple[float, float]]]] = {}
    for point in validation.points[validation.points["status"] == SIMULATED].to_dict("records"):
        named = _way_of(point)
        if named is not None:
            op, way, gpus = named
            m, n, k = (int(point[name]) for name in ("m", "n", "k"))
            key = op, gpus, m, n, k, _text(point, "source")
            times = float(point["measured"]), float(point["simulated"])
            found.setdefault(key, {}).setdefault(way, []).append(times)
    return [_judged(key, ways) for key, ways in found.items() if len(ways) > 1]


def _judged(key: _Key, ways: Mapping[str, Sequence[tuple[float, float]]]) -> Case:
    """Return the case of *key*, of which each way has measured and simulated times: their means count."""
    measured, simulated = (
        {way: sum(pair[i] for pair in times) / len(times) for way, times in ways.items()} for i in (0, 1)
    )
    fastest, named = (min(times, key=times.__getitem__) for times in (measured, simulated))
    first, second = sorted(measured.values())[:2]
    gap, loss = second / first - 1, measured[named] / measured[fastest] - 1
    verdict = TIED if gap <= TIE else RIGHT if named == fastest else WRONG
    return Case(*key, measured, simulated, fastest, named, gap, loss, verdict)


def _way_of(point: Mapping[object, object]) -> tuple[str, str, int] | None:
    """Return operator, way and GPUs of a time of a whole operator; None for any other point."""
    kind = str(point["kind"])
    if kind == "operators":
        way = f"{_text(point, 'strategy') or 'sequential'} {_text(point, 'parameters')}".strip()
        return str(point["op"]), way, int(str(point["tp"]).partition(".")[0])
    if (kind, str(point["quantity"])) not in WAYS:
        return None
    return *WAYS[kind, str(point["quantity"])], int(str(point["gpus"]).partition(".")[0])


def _text(point: Mapping[object, object], name: str) -> str:
    value = point.get(name)
    return "" if value is None or pd.isna(value) else str(value)  # type: ignore[call-overload]


def winners_csv(cases: Sequence[Case]) -> bytes:
    """Return the table of *cases*: ways and their times joined by ``;``, the gap and the loss as shares."""
    return csv_text(COLUMNS, (winner_texts(case) for case in cases)).encode()


def winner_texts(case: Case) -> tuple[str, ...]:
    """Return a line of the table."""
    measured, simulated = (
        ";".join(f"{times[way]:.2f}" for way in case.measured) for times in (case.measured, case.simulated)
    )
    shape = map(str, (case.op, case.gpus, case.m, case.n, case.k, case.source))
    shares = f"{case.gap:.4f}", f"{case.loss:.4f}"
    return *shape, ";".join(case.measured), measured, simulated, case.fastest, case.named, *shares, case.verdict


def winner_sentences(cases: Sequence[Case]) -> Iterator[str]:
    """Say of how many cases the simulation names the fastest way, and what its choice costs; nothing without cases."""
    if not cases:
        return
    counts = {verdict: sum(case.verdict == verdict for case in cases) for verdict in (RIGHT, WRONG, TIED)}
    n = counts[RIGHT] + counts[WRONG]
    ties = f"{counts[TIED]} more are ties within {TIE:.0%}"
    if n:
        share = f"{counts[RIGHT]} of {n} operators measured in several ways ({counts[RIGHT] / n:.0%})"
        yield f"The simulation names the fastest way of {share}; {ties}."
    else:
        yield f"No operator was measured in several ways that differ; {ties}."
    losses = [case.loss for case in cases]
    yield (
        f"Its picks are {sum(losses) / len(losses):.1%} slower than the fastest on average over {len(cases)} operators,"
        f" {max(losses):.1%} at most."
    )
