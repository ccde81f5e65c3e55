"""The figure ``start_skew``: how much of one GPU's late start is left at the end of the sublayer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from t3sim.analysis.folder import Results
from t3sim.analysis.style import Drawing
from t3sim.analysis.table import Row
from t3sim.analysis.unlike import Cause, Effects, Wording, draw_effects, effects_of, swept_key
from t3sim.units import parse_time

PS_PER_US = 1e6


def draw(results: Results, columns: int | None = None) -> list[Drawing]:
    """Draw a sweep over the start of one GPU; raises ``InputDataError`` if there is none."""
    gpu = _key(results).split(".")[-1]
    wording = Wording(
        cause=f"start of {gpu} after that of the others (µs)",
        response="time added to the sublayer,\nfrom the first start (µs)",
        value=f"start of {gpu} after that of the others",
        share="time added to the sublayer\nover the skew (×)",
        caption="One GPU starts late: the time that this adds to the sublayer, from the start of the earliest GPU"
        " (left), and the same over the skew (right).",
    )
    return draw_effects(results, columns, skew_effects(results), lambda effect: effect.added_us, wording)


def skew_effects(results: Results) -> Effects:
    """Return what each skew does: the cause is the skew itself."""
    key = _key(results)

    def cause_of(row: Row, _even: Row, _machine: Mapping[str, Any]) -> Cause:
        skew_us = parse_time(row[key]) / PS_PER_US
        return Cause(skew_us, skew_us)

    return effects_of(results, key, cause_of)


def _key(results: Results) -> str:
    return swept_key(results, r"machine\.start_skew\.gpu\[\d+\]", "the start of one GPU")
