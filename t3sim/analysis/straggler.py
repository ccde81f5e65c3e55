"""The figure ``straggler``: what one GPU at a lower clock costs the sublayer.

Left against how much longer its cycles are, right against how much longer its own GEMM takes, alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from t3sim.analysis.folder import Results
from t3sim.analysis.style import Drawing
from t3sim.analysis.table import Row
from t3sim.analysis.unlike import Cause, Effects, Wording, draw_effects, effects_of, swept_key
from t3sim.units import parse_frequency


def draw(results: Results, columns: int | None = None) -> list[Drawing]:
    """Draw a sweep over the compute clock of one GPU; raises ``InputDataError`` if there is none."""
    effects = straggler_effects(results)
    gpu = _key(results).split(".")[1]
    wording = Wording(
        cause=f"cycle of {gpu} longer than that of the others by (%)",
        response="sublayer slower than on\nthe ring of alike GPUs by (%)",
        value=f"compute clock of {gpu}",
        share="time added to the sublayer over\ntime added to its GEMM alone (×)",
        caption="One slow GPU: slowdown of the sublayer against that of the GPU (left), and the time it adds to the"
        " sublayer over the time it adds to its own GEMM, alone (right).",
    )
    return draw_effects(results, columns, effects, lambda effect: effect.slowdown_percent, wording)


def straggler_effects(results: Results) -> Effects:
    """Return what each clock does: the cause in per cent of a cycle, by itself what the isolated GEMM loses."""
    key = _key(results)

    def cause_of(row: Row, even: Row, machine: Mapping[str, Any]) -> Cause:
        longer = 100 * (machine["gpu"]["compute_clock"] / parse_frequency(row[key]) - 1)
        return Cause(longer, (row["gemm_us"] or 0.0) - (even["gemm_us"] or 0.0))

    return effects_of(results, key, cause_of)


def _key(results: Results) -> str:
    return swept_key(results, r"machine\.gpu\[\d+\]\.compute_clock", "the compute clock of one GPU")
