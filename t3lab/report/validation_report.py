"""The report of a validation: one HTML page and the same tables as Markdown, made from its files alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from t3lab.report.validation import (
    SIMULATED,
    SUMMARY_TITLES,
    Validation,
    coverage_of,
    error_text,
    held_out,
    key_text,
    summary_of,
    summary_texts,
    unused,
    verdict_of,
)
from t3lab.report.validation_figures import plots_of
from t3lab.report.winners import COLUMNS, WINNERS_NAME, cases_of, winner_sentences, winner_texts, winners_csv
from t3sim import __version__
from t3sim.analysis.page import Cell, Column, Table, embedded, flat_manifest, manifest_text, rendered
from t3sim.analysis.pictures import OF_FOLDER, Picture, pictures_of
from t3sim.files import prepare_folder, publish

REPORT_NAME, MARKDOWN_NAME, FIGURES_NAME = "report.html", "report.md", "figures"
N_WORST = 10

PUBLISHED = (
    "Best published figures, for other hardware and other points: simulators of collectives are within 9.7 to 20.6 % "
    "of the all-reduce of H100 nodes, simulators of the operators of language models within 10.9 %, and the T3 study "
    "within 6 % of its reduce-scatter. None is published for a GEMM and a reduce-scatter that overlap."
)
READING = (
    "Errors are (simulated - measured) / measured; of a slowdown, simulated - measured in points (0.10 is 10 points). "
    "geomean: geometric mean of their sizes, none counted below 0.01 %; MAPE: mean of their sizes; wMAPE: sum of the "
    "differences over sum of the measurements; bias: mean with signs, positive if the simulation is slower; rank "
    "corr.: Spearman's. Tried: points that were to be simulated."
)
_KEYS = (
    "op", "strategy", "parameters", "tiling", "source", "collective", "gpus", "bytes", "nccl_channels", "nccl_proto",
    "model", "sublayer", "tp", "m", "n", "k", "kernel", "gap_us", "sms", "pattern", "working_set_bytes", "mechanism",
)  # fmt: skip
_COVERAGE_TITLES = ("kind", "rows", "points", "tried", "simulated", "failed", "not simulated", "fitted to")
_POINT_TITLES = ("kind", "quantity", "point", "measured", "simulated", "error", "file and line", "status")
_NUMBERS = frozenset({*SUMMARY_TITLES[2:11], *_COVERAGE_TITLES[1:], "measured", "simulated", "error"})
_LEFT_OUT_IF_EMPTY = ("errors-held-out", "errors-all", "winners", "reasons")


def write_report(folder: Path, validation: Validation, n_processes: int = 1) -> list[Path]:
    """Write page, Markdown, ``winners.csv`` if there are any, and figures into *folder*; return the files.

    Number of processes that draw the figures.
    """
    plots = plots_of(validation)
    with pictures_of(plots, n_processes) as drawn:
        parts = parts_of(validation)
        markdown = report_markdown(validation, parts)
        cases = cases_of(validation)
        pictures = {plot.name: picture for plot, picture in zip(plots, drawn(), strict=True)}
    contents = {REPORT_NAME: report_html(validation, pictures, parts).encode(), MARKDOWN_NAME: markdown.encode()}
    contents |= {WINNERS_NAME: winners_csv(cases)} if cases else {}
    for name, picture in pictures.items():
        contents |= {f"{FIGURES_NAME}/{name}.{kind}": picture.files[kind] for kind in OF_FOLDER}
    if pictures:
        prepare_folder(folder / FIGURES_NAME)
    publish({folder / name: content for name, content in contents.items()})
    return [folder / name for name in contents]


def sentences(validation: Validation) -> list[str]:
    """Return what a reader should know first: how much was compared, how many aims are met, what was assumed."""
    points = validation.points
    coverage = coverage_of(points)
    counts = f"{coverage.simulated} simulated, {coverage.failed} failed, {coverage.not_simulated} without a simulation"
    found = [f"{coverage.rows} measured rows make {coverage.points} points: {counts} (below, with the reasons)."]
    if validation.manifest.get("kinds"):
        found.append(f"Only these kinds of measurement were compared: {validation.manifest['kinds']}.")
    frozen = validation.manifest.get("frozen")
    if frozen:
        errors = [
            f"{kind} {name}: MAPE {mape}, largest {high} ({n})" for kind, name, n, mape, _, high in frozen["errors"]
        ]
        found.insert(0, f"{frozen['title']}{': ' if errors else ''}{'; '.join(errors)}.")
    n_used = int(points["used_for_calibration"].sum())
    fitted = f"The machine was fitted to {n_used} of these points ({n_used / len(points):.0%})." if n_used else ""
    found.append(fitted or "No list of points says that the machine was fitted to any of them.")
    verdicts = [(group, verdict_of(summary_of(unused(members)), group.aim)) for group, members in validation.groups]
    judged = [(group, verdict) for group, verdict in verdicts if verdict]
    n_met = sum(verdict == "met" for _, verdict in judged)
    if judged:
        found.append(f"{n_met} of {len(judged)} aims are met on points that it was not fitted to.")
    found += [f"{group.title}: {verdict}." for group, verdict in judged if verdict != "met"]
    hosts = points.loc[(points["status"] == SIMULATED) & points["reason"].fillna("").str.startswith("host: "), "reason"]
    found += [f"{n} point{'s' * (n > 1)} with {reason}." for reason, n in hosts.value_counts().items()]
    for title in ("assumed", "refused"):
        found += [f"{title.capitalize()}: {sentence}." for sentence in validation.manifest.get(title, ())]
    return [*found, *winner_sentences(cases_of(validation))]


class Part(NamedTuple):
    """A table of the report; *heading* is that of the Markdown."""

    heading: str
    titles: Sequence[str]
    rows: list[tuple[str, ...]]


def parts_of(validation: Validation) -> dict[str, Part]:
    """Return the tables of page and Markdown, by their names in the page."""
    has_used = validation.points["used_for_calibration"].any()
    everything = summary_texts(validation, lambda points: points) if has_used else []
    left = validation.points[validation.points["status"] != SIMULATED]
    counts = left.groupby(["kind", "status", "reason"], sort=False).size().reset_index()
    reasons = [tuple(map(str, row)) for row in counts.itertuples(index=False)]
    worst, points = (list(point_texts(found)) for found in (validation.worst(N_WORST), validation.points))
    return {
        "errors-unused": Part("Points that the machine was not fitted to", SUMMARY_TITLES, summary_texts(validation)),
        "errors-held-out": Part("Held-out points", SUMMARY_TITLES, summary_texts(validation, held_out)),
        "errors-all": Part("All points", SUMMARY_TITLES, everything),
        "winners": Part("The fastest of several ways", COLUMNS, list(map(winner_texts, cases_of(validation)))),
        "coverage-table": Part("Coverage", _COVERAGE_TITLES, coverage_texts(validation)),
        "reasons": Part("Not simulated, and why", ("kind", "status", "reason", "points"), reasons),
        "worst": Part("The largest errors", _POINT_TITLES, worst),
        "all-points": Part("Every point", _POINT_TITLES, points),
    }


def report_html(
    validation: Validation, pictures: Mapping[str, Picture], parts: Mapping[str, Part] | None = None
) -> str:
    """Return the page; it needs no network and no other file.  *parts* are its tables, if they are there already."""
    parts = parts_of(validation) if parts is None else parts
    manifest = validation.manifest
    return rendered(
        "validation.html",
        "t3lab.report",
        title=f"Validation of {manifest.get('machine', 'a machine')}",
        subtitle=f"t3sim {__version__}; measurements: {manifest.get('measurements', 'unknown')}",
        sentences=sentences(validation),
        reading=READING,
        tables={name: _table(name, part) for name, part in parts.items()},
        published=PUBLISHED,
        figures=[embedded(picture, f"figure-{name}") for name, picture in pictures.items()],
        provenance=provenance(validation),
    )


def report_markdown(validation: Validation, parts: Mapping[str, Part] | None = None) -> str:
    """Return the tables of the page, but for that of every point, as Markdown."""
    parts = parts_of(validation) if parts is None else parts
    lines = [f"# Validation of {validation.manifest.get('machine', 'a machine')}", ""]
    lines += [*(f"* {sentence}" for sentence in sentences(validation)), "", READING, ""]
    for name, part in parts.items():
        lines += [PUBLISHED, ""] if name == "coverage-table" else []
        if name != "all-points" and (part.rows or name not in _LEFT_OUT_IF_EMPTY):
            lines += [f"## {part.heading}", "", *markdown_table(part.titles, part.rows), ""]
    lines += [f"{name}: `{value}`  " for name, value in provenance(validation)]
    return "\n".join(lines) + "\n"


def _table(name: str, part: Part) -> Table:
    def cell(title: str, text: str) -> Cell:
        return Cell(text, _css(title, text), text.partition(" ")[0] if title in _NUMBERS else None)

    columns = [Column(title, title, "", _css(title)) for title in part.titles]
    return Table(name, columns, [list(map(cell, part.titles, row)) for row in part.rows], name != "all-points")


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(titles), line(["---"] * len(titles)), *map(line, rows)]


def coverage_texts(validation: Validation) -> list[tuple[str, ...]]:
    """Return rows and points of each kind, and in all."""
    points = validation.points
    parts = [*points.groupby("kind", sort=False), ("all", points)]
    return [
        (str(name), *map(str, coverage_of(members)), str(int(members["used_for_calibration"].sum())))
        for name, members in parts
    ]


def provenance(validation: Validation) -> list[tuple[str, str]]:
    """Return what the manifest says, as names and texts."""
    flat = flat_manifest(validation.manifest)
    own = {name: value for name, value in flat.items() if name not in ("assumed", "refused")}
    return [(name, manifest_text(value)) for name, value in own.items() if value not in (None, [])]


def point_texts(points: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    """Yield what stands in the tables of points."""
    for point in points.to_dict("records"):
        is_ratio = point["unit"] == "ratio"
        unit = "×" if is_ratio else f" {point['unit']}"
        measured, simulated = (
            "" if pd.isna(point[name]) else f"{point[name]:.4g}{unit}" for name in ("measured", "simulated")
        )
        yield (
            str(point["kind"]), str(point["quantity"]), key_text(point, _KEYS), measured, simulated,
            error_text(point["error"], is_ratio, sign="+"), f"{point['file']}:{point['line']}", str(point["status"]),
        )  # fmt: skip


def _css(title: str, text: str = "") -> str:
    if title == "verdict":
        return f"verdict {text.partition(':')[0]}".strip()
    return "number" if title in _NUMBERS else ""
