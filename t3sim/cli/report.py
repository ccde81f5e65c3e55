"""``t3sim report``: one HTML page about result folders, optionally with published targets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from t3sim.cli import PATH
from t3sim.cli.run import note
from t3sim.companions import module_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REPORT_NAME = "report.html"
TARGETS_NAME = "targets.csv"
FIGURES_NAME = "figures"
WIDTH = 150  # of a table that does not go to a terminal
PUBLISHED = "published"
_COLOURS = {"met": "green", "missed": "red", "not run": "yellow"}


@click.command()
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=PATH)
@click.option("-o", "--output", type=PATH, help="The page [default: report.html in FOLDER if there is one, else here].")
@click.option(
    "--targets", "targets_file", type=click.Path(), metavar=f"FILE|{PUBLISHED}",
    help=f"Compare with the results in FILE, or with those that the T3 study published (`{PUBLISHED}`); also writes "
    "targets.csv next to the page.",
)  # fmt: skip
@click.option("--figures", "has_figures", is_flag=True, help="Also write each figure as PDF and PNG for a journal.")
def report(folders: tuple[Path, ...], output: Path | None, targets_file: str | None, has_figures: bool) -> None:
    """Write one HTML page about the results in each FOLDER, or in all result folders below it.

    The page needs no network and no other file. The exit code does not depend on the targets.
    """
    from t3sim.analysis.folder import read_folder, result_folders
    from t3sim.analysis.report import figure_files, report_html
    from t3sim.config.presets import shipped
    from t3sim.config.yaml_loader import load_yaml
    from t3sim.files import prepare_folder, publish

    if targets_file == PUBLISHED:
        targets_file = str(shipped("validation") / "targets.yaml")
    study = module_of("t3study.targets", "--targets") if targets_file else None
    targets = study.read_targets(load_yaml(targets_file).plain(), targets_file) if study and targets_file else []
    found = [read_folder(folder) for folder in result_folders(folders, note)]
    page = output or (folders[0] / REPORT_NAME if len(folders) == 1 else Path(REPORT_NAME))
    prepare_folder(page.parent)
    comparisons = study.compare(found, targets) if study else []
    table = study.report_table(comparisons) if study and comparisons else None
    contents = {page: report_html(found, table).encode()}
    if study and comparisons:
        contents[page.with_name(TARGETS_NAME)] = study.targets_csv(comparisons)
        print_targets(comparisons, study.counts_of(comparisons))
    publish(contents)
    written = [*contents, *(figure_files(found, page.parent / FIGURES_NAME) if has_figures else [])]
    for path in written:
        click.echo(str(path))


def print_targets(comparisons: Sequence[Any], counts: Mapping[str, int]) -> None:
    """Print published results and ours, one row for each comparison (``t3study.targets``), and *counts* of verdicts."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Published results of the T3 study (Pati et al., ASPLOS 2024)", title_justify="left")
    for name in ("target", "what is compared", "published", "ours", "band", "verdict"):
        table.add_column(name, no_wrap=name in ("target", "verdict"))
    for row in comparisons:
        cells = [Text(text) for text in (row.id, row.statement, row.published, row.ours, row.band)]
        table.add_row(*cells, Text(row.verdict, style=_COLOURS[row.verdict]))
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(table)
    console.print(", ".join(f"{n} {verdict}" for verdict, n in counts.items()), highlight=False)
