"""``t3sim plot``: draw the figures of a result folder again."""

from __future__ import annotations

from pathlib import Path

import click

from t3sim.analysis.figures import FIGURES, figures_of
from t3sim.cli import PATH
from t3sim.cli.run import note


@click.command(epilog=f"Figures: {', '.join(FIGURES)}.")
@click.argument("directory", type=PATH)
@click.argument("names", metavar="[FIGURE]...", nargs=-1)
@click.option("--columns", type=click.Choice(["1", "2"]), help="Journal columns; default: by what the figure shows.")
@click.option("-o", "--output", type=PATH, help="Folder for the figures; default: DIRECTORY itself.")
def plot(directory: Path, names: tuple[str, ...], columns: str | None, output: Path | None) -> None:
    """Draw figures of the results in DIRECTORY as PDF and PNG.

    Without a FIGURE those that the experiment lists under `figures:`, or speedup and dram_traffic.
    """
    for paths in figures_of(directory, names, output, int(columns) if columns else None, note).values():
        click.echo("\n".join(map(str, paths)))
