"""The figure ``slow_link``: what one link of less bandwidth costs the sublayer.

Left against how much longer a byte takes on it, right against how much longer all bytes of the sublayer take that it
carries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from t3sim.analysis.folder import Results
from t3sim.analysis.style import Drawing
from t3sim.analysis.table import Row
from t3sim.analysis.unlike import Cause, Effects, Wording, draw_effects, effects_of, swept_key
from t3sim.units import parse_bandwidth

US_PER_S = 1e6


def draw(results: Results, columns: int | None = None) -> list[Drawing]:
    """Draw a sweep over the bandwidth of one link; raises ``InputDataError`` if there is none."""
    effects = link_effects(results)
    link = _key(results).split(".")[1]
    wording = Wording(
        cause=f"byte on {link} longer than on the others by (%)",
        response="sublayer slower than on\nthe ring of alike links by (%)",
        value=f"bandwidth of {link}",
        share="time added to the sublayer over\ntime added to the link's bytes (×)",
        caption="One slow link: slowdown of the sublayer against that of the link (left), and the time it adds to the"
        " sublayer over the time it adds to the bytes that it carries (right).",
    )
    return draw_effects(results, columns, effects, lambda effect: effect.slowdown_percent, wording)


def link_effects(results: Results) -> Effects:
    """Return what each bandwidth does: the cause in per cent of a byte, by itself what the link's bytes lose."""
    key = _key(results)

    def cause_of(row: Row, even: Row, machine: Mapping[str, Any]) -> Cause:
        common, own = machine["link"]["bandwidth"], parse_bandwidth(row[key])
        us_for_bytes = US_PER_S * (even["link_bytes"] or 0)
        return Cause(100 * (common / own - 1), us_for_bytes / own - us_for_bytes / common)

    return effects_of(results, key, cause_of)


def _key(results: Results) -> str:
    return swept_key(results, r"machine\.link\[\d+\]\.bandwidth", "the bandwidth of one link")
