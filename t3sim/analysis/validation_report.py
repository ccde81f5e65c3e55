"""The report of a validation: one HTML page and the same tables as Markdown, made from its files alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from t3sim import __version__
from t3sim.analysis.page import Cell, Column, Table, embedded, flat_manifest, manifest_text, rendered
from t3sim.analysis.style import Drawing, save, style
from t3sim.analysis.validation import (
    SUMMARY_TITLES,
    Validation,
    coverage_of,
    key_text,
    summary_of,
    summary_texts,
    unused,
    verdict_of,
)
from t3sim.analysis.validation_figures import scatter_drawings, tile_drawings
from t3sim.files import publish

REPORT_NAME, MARKDOWN_NAME, FIGURES_NAME = "report.html", "report.md", "figures"
N_WORST = 10

PUBLISHED = (
    "Best published figures, for other hardware and other points: simulators of collectives are within 9.7 to 20.6 % "
    "of the all-reduce of H100 nodes, simulators of the operators of language models within 10.9 %, and the T3 study "
    "within 6 % of its reduce-scatter. None is published for a GEMM and a reduce-scatter that overlap."
)
READING = (
    "Errors are (simulated - measured) / measured; of a slowdown, simulated - measured in points (0.10 is 10 points). "
    "geomean: geometric mean of their sizes, none counted below 0.01 %; MAPE: mean of their sizes; bias: mean with "
    "signs, positive if the simulation is slower; rank corr.: Spearman's. Tried: points that were to be simulated."
)
_KEYS = (
    "collective", "gpus", "bytes", "nccl_channels", "nccl_proto", "model", "sublayer", "tp", "m", "n", "k", "kernel",
    "gap_us", "sms", "pattern", "working_set_bytes", "mechanism",
)  # fmt: skip


def write_report(folder: Path, validation: Validation) -> list[Path]:
    """Write page, Markdown and figures into *folder*; return the files."""
    with style():
        drawings = [*scatter_drawings(validation), *tile_drawings(validation)]
    contents = {
        folder / REPORT_NAME: report_html(validation, drawings).encode(),
        folder / MARKDOWN_NAME: report_markdown(validation).encode(),
    }
    publish(contents)
    written = list(contents)
    for name, drawing in drawings:
        written += save([drawing], folder / FIGURES_NAME / name)
    return written


def sentences(validation: Validation) -> list[str]:
    """Return what a reader should know first: how much was compared, how many aims are met."""
    points = validation.points
    coverage = coverage_of(points)
    counts = f"{coverage.simulated} simulated, {coverage.failed} failed, {coverage.not_simulated} without a simulation"
    found = [f"{coverage.rows} measured rows make {coverage.points} points: {counts} (below, with the reasons)."]
    if validation.manifest.get("kinds"):
        found.append(f"Only these kinds of measurement were compared: {validation.manifest['kinds']}.")
    n_used = int(points["used_for_calibration"].sum())
    if n_used:
        found.append(f"The machine was fitted to {n_used} of these points ({n_used / len(points):.0%}).")
    else:
        found.append("No list of points says that the machine was fitted to any of them.")
    verdicts = [(group, verdict_of(summary_of(unused(members)), group.aim)) for group, members in validation.groups]
    judged = [(group, verdict) for group, verdict in verdicts if verdict]
    n_met = sum(verdict == "met" for _, verdict in judged)
    if judged:
        found.append(f"{n_met} of {len(judged)} aims are met on points that it was not fitted to.")
    found += [f"{group.title}: {verdict}." for group, verdict in judged if verdict != "met"]
    return found


def report_html(validation: Validation, drawings: Sequence[tuple[str, Drawing]]) -> str:
    """Return the page; it needs no network and no other file."""
    manifest = validation.manifest
    everything = summary_texts(validation, with_used=True) if validation.has_used else []
    return rendered(
        "validation.html",
        title=f"Validation of {manifest.get('machine', 'a machine')}",
        subtitle=f"t3sim {__version__}; measurements: {manifest.get('measurements', 'unknown')}",
        sentences=sentences(validation),
        reading=READING,
        unused=_table("errors-unused", SUMMARY_TITLES, summary_texts(validation)),
        everything=_table("errors-all", SUMMARY_TITLES, everything) if everything else None,
        published=PUBLISHED,
        coverage=_table("coverage-table", COVERAGE_TITLES, coverage_texts(validation)),
        reasons=_table("reasons", REASON_TITLES, reason_texts(validation)),
        figures=[embedded(drawing, f"figure-{name}") for name, drawing in drawings],
        worst=_table("worst", POINT_TITLES, point_texts(validation.worst(N_WORST))),
        points=_table("all-points", POINT_TITLES, point_texts(validation.points), is_whole=False),
        provenance=provenance(validation),
    )


def report_markdown(validation: Validation) -> str:
    """Return the tables of the page as Markdown."""
    lines = [f"# Validation of {validation.manifest.get('machine', 'a machine')}", ""]
    lines += [f"* {sentence}" for sentence in sentences(validation)]
    lines += ["", READING, "", "## Points that the machine was not fitted to", ""]
    lines += markdown_table(SUMMARY_TITLES, summary_texts(validation))
    if validation.has_used:
        lines += ["", "## All points", "", *markdown_table(SUMMARY_TITLES, summary_texts(validation, with_used=True))]
    lines += ["", PUBLISHED, "", "## Coverage", "", *markdown_table(COVERAGE_TITLES, coverage_texts(validation))]
    reasons = reason_texts(validation)
    if reasons:
        lines += ["", "## Not simulated, and why", "", *markdown_table(REASON_TITLES, reasons)]
    worst = point_texts(validation.worst(N_WORST))
    lines += ["", "## The largest errors", "", *markdown_table(POINT_TITLES, worst), ""]
    lines += [f"{name}: `{value}`  " for name, value in provenance(validation)]
    return "\n".join(lines) + "\n"


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(titles), line(["---"] * len(titles)), *map(line, rows)]


COVERAGE_TITLES = ("kind", "rows", "points", "tried", "simulated", "failed", "not simulated", "fitted to")
REASON_TITLES = ("kind", "status", "reason", "points")
POINT_TITLES = ("kind", "quantity", "point", "measured", "simulated", "error", "file and line", "status")


def coverage_texts(validation: Validation) -> list[tuple[str, ...]]:
    """Return rows and points of each kind, and in all."""
    points = validation.points
    parts = [(str(kind), members) for kind, members in points.groupby("kind", sort=False)]
    rows = []
    for name, members in [*parts, ("all", points)]:
        found = coverage_of(members)
        counts = (found.rows, found.points, found.tried, found.simulated, found.failed, found.not_simulated)
        rows.append((name, *map(str, counts), str(int(members["used_for_calibration"].sum()))))
    return rows


def reason_texts(validation: Validation) -> list[tuple[str, ...]]:
    """Return why points were not simulated, with their numbers."""
    found = validation.reasons
    return [(str(r["kind"]), str(r["status"]), str(r["reason"]), str(r["points"])) for r in _records(found)]


def provenance(validation: Validation) -> list[tuple[str, str]]:
    """Return what the manifest says, as names and texts."""
    flat = flat_manifest(validation.manifest)
    return [(name, manifest_text(value)) for name, value in flat.items() if value not in (None, [])]


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def point_texts(points: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return what stands in the tables of points."""
    return [_point_texts(point) for point in _records(points)]


def _point_texts(point: dict[str, Any]) -> tuple[str, ...]:
    is_ratio = point["unit"] == "ratio"
    unit = "×" if is_ratio else f" {point['unit']}"
    measured, simulated = (
        "" if pd.isna(point[name]) else f"{point[name]:.4g}{unit}" for name in ("measured", "simulated")
    )
    error = "" if pd.isna(point["error"]) else f"{100 * point['error']:+.1f}{' pt' if is_ratio else ' %'}"
    where = f"{point['file']}:{point['line']}"
    return (
        str(point["kind"]), str(point["quantity"]), key_text(point, _KEYS), measured, simulated, error, where,
        str(point["status"]),
    )  # fmt: skip


_NUMBERS = frozenset({*SUMMARY_TITLES[2:10], *COVERAGE_TITLES[1:], "measured", "simulated", "error"})


def _table(table_id: str, titles: Sequence[str], rows: Sequence[Sequence[str]], *, is_whole: bool = True) -> Table:
    columns = [Column(title, title, "", _css(title)) for title in titles]
    cells = [
        [Cell(text, _css(title, text), _sort_value(title, text)) for title, text in zip(titles, row, strict=True)]
        for row in rows
    ]
    return Table(table_id, columns, cells, is_whole)


def _css(title: str, text: str = "") -> str:
    if title == "verdict":
        return f"verdict {text.partition(':')[0]}".strip()
    return "number" if title in _NUMBERS else ""


def _sort_value(title: str, text: str) -> str | None:
    return text.partition(" ")[0] if title in _NUMBERS else None
