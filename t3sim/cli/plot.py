"""``t3sim plot``: draw the figures of a result folder again."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--columns", type=click.Choice(["1", "2"]), help="Journal columns; default: by the number of bars.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Folder for the figures; default: DIRECTORY itself."
)
def plot(directory: Path, columns: str | None, output: Path | None) -> None:
    """Draw the figures of DIRECTORY/results.csv as PDF and PNG."""
    from t3sim.analysis.figures import dram_traffic_figure, speedup_figure
    from t3sim.errors import InputDataError
    from t3sim.results.writer import CSV_NAME

    results = directory / CSV_NAME
    if directory.exists() and not directory.is_dir():
        raise InputDataError(f"{directory}: not a folder; give the folder that holds {CSV_NAME}")
    width = int(columns) if columns else None
    folder = output or directory
    written = speedup_figure(results, folder / "speedup", columns=width)
    try:
        written += dram_traffic_figure(results, folder / "dram_traffic", columns=width)
    except InputDataError as error:
        click.echo(f"note: {error}", err=True)
    for path in written:
        click.echo(str(path))
