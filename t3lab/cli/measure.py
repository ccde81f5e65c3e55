"""``t3sim measure``: measure the GPUs of this machine into a folder of CSV files."""

from __future__ import annotations

from pathlib import Path

import click

from t3sim.cli import PATH
from t3sim.errors import UsageError
from t3sim.registry import unknown_name


@click.command()
@click.argument("kinds", nargs=-1, metavar="[KIND]...")
@click.option("--gpus", type=click.IntRange(1), metavar="N", help="GPUs 0 to N - 1 [default: all].")
@click.option(
    "-o", "--output", type=PATH, default=Path("measurements"), show_default=True,
    help="Folder for one CSV file for each kind, and the provenance.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Few small points, to see whether everything works.")
@click.option(
    "--channels", default="", metavar="C,C", help="Numbers of channels to force NCCL to; `auto`: its own choice."
)
@click.option(
    "--sessions", type=click.IntRange(1), default=1, show_default=True, metavar="N",
    help="Measure what needs NCCL N times, in new processes, and keep all samples: sessions differ.",
)  # fmt: skip
@click.option("--list", "show_list", is_flag=True, help="List what can be measured.")
def measure(
    kinds: tuple[str, ...],
    gpus: int | None,
    output: Path,
    quick: bool,
    channels: str,
    sessions: int,
    show_list: bool,
) -> None:
    """Measure the GPUs of this machine: all KINDs if none is named.

    Needs CuPy (t3sim[cuda13] or t3sim[cuda12]) and, for collectives, NCCL. No setting of a device is changed. On a node
    without t3sim's other libraries, `python -m t3lab.measure` does the same.
    """
    from t3lab.measure import program as measuring

    if show_list:
        click.echo(measuring.list_kinds())
        return
    for kind in kinds:
        if kind not in measuring.MEASURABLE:
            raise UsageError(unknown_name("kind of measurement", kind, measuring.MEASURABLE))
    numbers = measuring.split_channels(channels)
    done = measuring.measure(
        kinds, output, n_gpus=gpus, quick=quick, channels=numbers, sessions=sessions, say=click.echo
    )
    for path in done:
        click.echo(str(path))
