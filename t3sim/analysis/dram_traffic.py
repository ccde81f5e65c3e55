"""The figure ``dram_traffic``: DRAM bytes of one GPU by category, per case and strategy."""

from __future__ import annotations

from functools import partial

from t3sim.analysis.bars import BarPage
from t3sim.analysis.folder import Results
from t3sim.analysis.style import DRAM_COLOURS, Drawing
from t3sim.analysis.table import Row

SMALLEST_GB = 10.0  # below, megabytes are shown: parts are a hundredth of the whole
# category -> column; they are named alike: "GEMM reads" are the column dram_gemm_read_bytes
_COLUMNS = {name: f"dram_{name.lower().replace(' ', '_').removesuffix('s')}_bytes" for name in DRAM_COLOURS}


def draw(results: Results, columns: int | None = None) -> list[Drawing]:
    """Draw stacked traffic in GB or, if there is little, in MB; raises ``InputDataError`` if no point has any."""
    rows = results.required([row for row in results.rows if traffic_of(row)], "no point with DRAM traffic to draw")
    page = BarPage(rows, results.axes, columns, height_ratios=(1.0,), inches_per_row=2.7)
    most = max(sum(traffic_of(row).values()) for row in rows)
    unit, factor = ("GB", 1.0) if most >= SMALLEST_GB else ("MB", 1e3)
    digits = 2 if factor * most < 10 else 1 if factor * most < 100 else 0  # three of the largest value

    def parts_of(row: Row) -> dict[str, float]:
        return {name: factor * value for name, value in traffic_of(row).items()}

    stacks = partial(page.draw_stacks, parts_of=parts_of, colours=DRAM_COLOURS, value_format=f"{{:.{digits}f}}")
    return page.drawn(
        {f"DRAM traffic of one GPU ({unit})": stacks},
        "DRAM traffic of one GPU by category; an update in memory counts as one write.",
    )


def traffic_of(row: Row) -> dict[str, float]:
    """Return the DRAM gigabytes (10^9) of a point by category; absent categories are left out."""
    return {name: row[column] / 1e9 for name, column in _COLUMNS.items() if row[column]}
