"""One HTML page about result folders: findings, figures, tables, provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from t3sim import __version__
from t3sim.analysis import page
from t3sim.analysis.figures import check_figure_names, draw_figures
from t3sim.analysis.findings import StrategySummary, count, sentences, strategy_summaries
from t3sim.analysis.folder import EXPERIMENT_NAME, Results
from t3sim.analysis.page import Cell, Column, ExtraTable, Table, number_text
from t3sim.analysis.pictures import OF_PAGE, picture_of, save
from t3sim.analysis.strategies import availability
from t3sim.analysis.style import strategy_colour
from t3sim.analysis.table import grouped, machine_base, workload_name
from t3sim.analysis.waits import PhaseAccounts, accounts_of
from t3sim.errors import InputDataError
from t3sim.results.record import COLUMNS, MEANINGS
from t3sim.results.waits import REASONS

MAX_ROWS = 2000  # of a table in the page; results.csv has all

# What the short table shows after workload and axes: column -> title, decimals, factor.
_BRIEF: dict[str, tuple[str, int, float]] = {
    "speedup": ("speedup (×)", 3, 1.0), "time_us": ("time (µs)", 1, 1.0), "gemm_us": ("GEMM alone (µs)", 1, 1.0),
    "rs_us": ("RS alone (µs)", 1, 1.0), "fused_us": ("fused (µs)", 1, 1.0), "ag_us": ("AG (µs)", 1, 1.0),
    "others_us": ("other operators (µs)", 1, 1.0), "overlap_efficiency": ("overlap efficiency", 2, 1.0),
    "l2_hit_rate": ("L2 hits (%)", 1, 100.0), "dram_total": ("DRAM traffic (MB)", 1, 1e-6),
    "link_bytes": ("sent (MB)", 1, 1e-6),
}  # fmt: skip
_OWN_MEANINGS = {
    "workload": "model and sublayer, or GEMM, and the number of GPUs",
    "dram_total": "DRAM bytes read and written by GEMM, reduce-scatter and all-gather of one GPU, in 10^6 bytes",
}
_PROVENANCE = {
    "t3sim": "t3sim", "source digest": "source_sha256", "records digest": "records_sha256", "Python": "python",
    "packages": "packages", "command": "command", "inputs": "inputs", "seed": "seed", "points": "points",
    "host": "host", "platform": "platform", "finished": "finished_at", "duration (s)": "wall_s",
}  # fmt: skip
_DRAM = [name for name in COLUMNS if name.startswith("dram_")]


def report_html(folders: Sequence[Results], extra: ExtraTable | None = None, title: str = "") -> str:
    """Return the page about *folders*, with the table *extra* above them if there is one.

    Raises ``UsageError`` if an experiment lists a figure that does not exist.
    """
    for results in folders:
        check_figure_names(results.figures)
    sections = [section_of(results, number) for number, results in enumerate(folders, start=1)]
    n = len(sections)
    for same in grouped(sections, itemgetter("name")).values():  # what the index tells them apart by
        is_told = len({section["overrides"] for section in same}) == len(same) > 1
        for section in same:
            section["told_by"] = section["overrides" if is_told else "folder"] if len(same) > 1 else ""
    return page.rendered(
        "report.html",
        title=title or (folders[0].name if n == 1 else f"{n} experiments"),
        subtitle=f"t3sim {__version__}, report on {count(n, 'result folder')}",
        sections=sections,
        extra=extra,
    )


def section_of(results: Results, number: int) -> dict[str, Any]:
    """Return what the page says about *results*, the *number*-th of its folders."""
    failed = results.failed()
    n_failed = 0 if failed is None else len(failed)
    are = "is" if n_failed == 1 else "are"
    notes = [f"{count(n_failed, 'point')} failed and {are} in no table or figure."] if n_failed else []
    drawn = draw_figures(
        results, results.figures, on_missing=lambda name, error: notes.append(f"No figure {name}: {error}")
    )
    prefix = f"figure-{number}-"
    figures = [
        page.embedded(picture_of(drawing, OF_PAGE), f"{prefix}{name}{drawing.suffix}")
        for name, drawings in drawn for drawing in drawings
    ]  # fmt: skip
    accounts: list[PhaseAccounts] = []
    try:
        accounts = accounts_of(results)
    except InputDataError as error:
        notes.append(f"No table of waits: {error}")
    notes += [f"{key} was swept but changed nothing." for key in results.axes_without_effect]
    n_unfinished = sum(row["time_us"] is None for row in results.rows)
    notes += [f"{count(n_unfinished, 'point')} without a time."] if n_unfinished else []
    overrides = results.resolved.get("overrides")
    return {
        "id": f"section-{number}",
        "name": results.name,
        "description": results.description,
        "folder": str(results.path),
        "findings": sentences(results),
        "cards": [_card(summary, results) for summary in strategy_summaries(results)],
        "table": results_table(results, f"results-{number}"),
        "n_left_out": max(0, len(results.rows) - MAX_ROWS),
        "figures": figures,
        "notes": notes,
        "waits": waits_table(accounts, f"waits-{number}") if accounts else None,
        "failed": failed.head(MAX_ROWS).to_csv(index=False) if failed is not None and n_failed else "",
        "experiment": results.text_of(EXPERIMENT_NAME) or "",
        "overrides": " ".join(f"-s {one}" for one in overrides) if isinstance(overrides, list) else "",
        "provenance": provenance_of(results),
    }


def _card(summary: StrategySummary, results: Results) -> dict[str, str]:
    """A strategy in one glance."""
    names = list(dict.fromkeys(row["strategy"] for row in results.rows))
    below = ["a limit, not a design"] if summary.is_limit else [availability(summary.strategy)]
    if summary.n > 1:
        below = [f"{summary.lowest:.2f} to {summary.highest:.2f} ({summary.highest_in})", *below]
        below += [] if summary.is_limit or not summary.n_best else [f"alone the fastest in {summary.n_best}"]
    return {
        "title": f"{summary.strategy}, {f'geomean of {summary.n}' if summary.n > 1 else 'speedup'}",
        "value": f"{summary.geomean:.3f}×",
        "below": "\n".join(filter(None, below)),
        "colour": strategy_colour(summary.strategy, names),
    }


def results_table(results: Results, table_id: str) -> Table:
    """Return the points as a table: a readable choice of columns, and all others on demand."""
    rows = []
    for row in results.rows[:MAX_ROWS]:
        dram = [row[name] for name in _DRAM if row[name] is not None]
        rows.append({**row, "workload": workload_name(row), "dram_total": sum(dram) if dram else None})
    leading = ["workload", *results.axes, "strategy", *_told_by(results)]
    brief = [name for name in _BRIEF if any(row[name] is not None for row in rows)]
    more = [name for name in COLUMNS if name not in (*leading, *brief)]
    only_one = len({row["workload"] for row in rows}) == 1  # named above the table by its title and figures
    columns = [
        Column(name, name, _meaning(name), "more short" if name == "workload" and only_one else "short")
        for name in leading
    ]
    columns += [Column(name, _BRIEF[name][0], _meaning(name), "number") for name in brief]
    for name in more:
        is_number = any(isinstance(row[name], (int, float)) for row in rows)
        columns.append(Column(name, name, _meaning(name), "more number" if is_number else "more"))
    return Table(table_id, columns, [[_cell(row, column) for column in columns] for row in rows])


def waits_table(accounts: Sequence[PhaseAccounts], table_id: str) -> Table:
    """Return what the units waited for: a row for each kind of unit, a column for each reason that occurs.

    Workload and GPU are shown on demand if there is only one.
    """
    present = {reason for phase in accounts for unit in phase.units for reason in unit.time_us}
    reasons = [reason for reason in REASONS if reason in present]
    n_workloads = len({phase.workload for phase in accounts})
    n_gpus = len({unit.gpu for phase in accounts for unit in phase.units})
    leading = (
        ("workload", "what was computed", n_workloads > 1),
        ("points", "numbers of the points that have this phase", False),
        ("phase", "the simulated phase", True),
        ("gpu", "the GPU; mirrored: one represents all", n_gpus > 1),
        ("unit", "kind of unit, and how many there are", True),
    )
    columns = [Column(name, name, what, "short" if is_shown else "more short") for name, what, is_shown in leading]
    columns += [Column("time", "time (µs)", "of the phase, from the launch on this GPU to its end", "number")]
    columns += [Column(reason, reason, REASONS[reason], "number") for reason in reasons]
    rows = []
    for phase in accounts:
        for unit in phase.units:
            name = unit.name if unit.n_units == 1 else f"{unit.name} (× {unit.n_units})"
            texts = [phase.workload, phase.points, phase.phase, unit.gpu, name]
            cells = [Cell(text, column.css) for text, column in zip(texts, columns, strict=False)]
            cells.append(Cell(number_text(unit.total_us), "number", repr(unit.total_us)))
            for reason in reasons:
                us = unit.time_us.get(reason)
                text = "" if us is None else f"{number_text(us)} ({100 * us / unit.total_us:.1f})"
                cells.append(Cell(text, "number", "" if us is None else repr(us)))
            rows.append(cells)
    return Table(table_id, columns, rows[:MAX_ROWS])


def _told_by(results: Results) -> list[str]:
    """Columns that distinguish points of one strategy, besides workload and axes."""
    names = ["machine", "mode", "arbitration", "mca_threshold", "gemm_compute_units", "communication_units"]
    has_one_base = len({machine_base(row["machine"]) for row in results.rows}) == 1
    if has_one_base and any(axis.startswith("machine.") for axis in results.axes):
        names.remove("machine")  # its name repeats the swept values
    strategies = {row["strategy"] for row in results.rows}
    values = {name: {(row["strategy"], row[name]) for row in results.rows} for name in names}
    return [name for name in names if len(values[name]) > len(strategies)]


def _meaning(name: str) -> str:
    return MEANINGS.get(name) or _OWN_MEANINGS.get(name) or f"swept: {name}"


def _cell(row: Mapping[str, Any], column: Column) -> Cell:
    value = row[column.name]
    if value is None:
        return Cell("", column.css, "")
    if column.name in _BRIEF:
        _, digits, factor = _BRIEF[column.name]
        return Cell(number_text(value * factor, digits), column.css, repr(value))
    return Cell(f"{value:.6g}" if isinstance(value, float) else str(value), column.css, str(value))


def provenance_of(results: Results) -> list[tuple[str, str]]:
    """Return what ``manifest.json`` says, as names and texts."""
    manifest = results.manifest
    if not manifest:
        return [("manifest.json", "is missing: nothing is known about how these results were made")]
    flat = page.flat_manifest(manifest)
    if isinstance(manifest.get("points"), list):
        flat["points"] = len(manifest["points"])
    return [(title, page.manifest_text(flat[key])) for title, key in _PROVENANCE.items() if flat.get(key) is not None]


def figure_files(folders: Sequence[Results], output: Path) -> list[Path]:
    """Write the figures of each experiment for a journal, one and two columns wide; return the files.

    They lie in ``output/EXPERIMENT/single`` and ``.../double``; experiments of the same name are numbered.
    """
    written: list[Path] = []
    names: list[str] = []
    for results in folders:
        names.append(results.name)
        n = names.count(results.name)
        folder = output / (results.name if n == 1 else f"{results.name}-{n}")
        for columns, kind in ((1, "single"), (2, "double")):
            for name, drawings in draw_figures(results, results.figures, columns):  # the page notes what is missing
                written += save(drawings, folder / kind / name)
    return written
