"""``t3sim run``: simulate an experiment, show a table, write results, figures and a timeline."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from t3sim.cli import PATH
from t3sim.cli._errors import GOES_ON, INTERRUPTED, echo
from t3sim.cli._results import results_lines, traffic_lines
from t3sim.cli._tables import wrap_text
from t3sim.cli.config import folded, override_option, summary, trace_root_option
from t3sim.errors import InputDataError, ModelError, NotInstalledError, PointsFailed, lacking
from t3sim.files import publish

if TYPE_CHECKING:
    from collections.abc import Callable

    from t3sim.experiment.running.phase_runner import PhaseRunner
    from t3sim.experiment.running.workers import Workers

STEPS = 1000
SPEED_OVER_S = 300.0  # of the last minutes: phases come in lumps
SAY_EVERY_S = 60.0
HANG_NAME = "hang.txt"

F = TypeVar("F", bound="Callable[..., Any]")


def worker_options(command: F) -> F:
    """Add the options of every command that simulates phases: by which workers, and where finished ones are kept."""
    jobs = "Worker processes [default: up to one for each core, by the estimated cost]."
    scheduler = "Use the workers of this dask scheduler, like tcp://host:8786."
    phases = "Folder of finished phases, which several runs can share [default: OUTPUT/phases]."
    folder = click.Path(path_type=Path, file_okay=False)
    command = click.option("--phases", type=folder, help=phases)(command)
    command = click.option("--scheduler", metavar="ADDRESS", help=scheduler)(command)
    return click.option("-j", "--jobs", type=click.IntRange(1), help=jobs)(command)


@click.command()
@click.argument("file", type=click.Path())
@override_option
@click.option("-o", "--output", type=PATH, help="Folder for the results [default: results/NAME].")
@worker_options
@click.option(
    "--timeline/--no-timeline", default=None,
    help="Write timelines: trace.json.gz and timeseries.parquet [default: for at most 10 points].",
)  # fmt: skip
@trace_root_option
@click.option("--no-figures", is_flag=True, help="Do not draw figures.")
@click.option("--check", is_flag=True, help="Check every DRAM command, and every invariant during the run.")
@click.option("--data", is_flag=True, help="Carry real values and compare the results with NumPy's.")
def run(
    file: str,
    overrides: tuple[str, ...],
    output: Path | None,
    jobs: int | None,
    scheduler: str | None,
    phases: Path | None,
    timeline: bool | None,
    trace_root: str | None,
    no_figures: bool,
    check: bool,
    data: bool,
) -> None:
    """Simulate the experiment FILE: a YAML file, or a name that `t3sim list experiments` shows.

    The same command resumes an interrupted run.
    """
    from t3sim.advice.validated import extrapolations
    from t3sim.analysis.figures import check_figure_names, figures_of
    from t3sim.experiment.planning.plan import load_experiment
    from t3sim.experiment.running.result_folder import default_folder, owned

    experiment = load_experiment(file, overrides, trace_root)
    absent = lacking("figures and a summary")
    check_figure_names(experiment.figures)
    directory = output or default_folder(experiment.name)
    with owned(directory):
        echo(*summary(experiment))
        from t3sim.checks.audit import Audit
        from t3sim.experiment.running.runner import Sweep

        audit = Audit(has_checks=check, has_data=data)
        sweep = Sweep(experiment, directory, audit, phases, timeline)
        workers = workers_with_cost(sweep, jobs, scheduler)
        with hang_report_in(directory), progress_bar() as progress:
            outcome = sweep.run(workers, sys.argv, progress, note)
        files = dict(outcome.files)
        with suppress(InputDataError, NotInstalledError):  # the message is out already: nothing could be drawn
            drawn = {} if no_figures or absent else figures_of(directory, on_missing=note)
            files.update({path.name: path for paths in drawn.values() for path in paths})
        found = [] if absent else findings_of(directory)
    echo(*results_lines(outcome.records), "", *traffic_lines(outcome.records), *audit.summary())
    echo(*(f"{name:16} {path}" for name, path in files.items()))
    if "timeline" in files:
        echo("open the timeline at https://ui.perfetto.dev; it stays on your machine")
    echo(*wrap_text(" ".join(found)))
    if absent:
        note(absent)
    for text in (*experiment.notes, *extrapolations(experiment.runnable)):
        note(text)
    for key in outcome.idle_axes:
        note(f"sweep axis {key} changed nothing: points that differ only in it have the same results")
    if outcome.failed:
        n_unmade = len(experiment.unmade)
        n, n_all = len(outcome.failed) + n_unmade, len(experiment.points) + n_unmade
        raise PointsFailed(f"{n} of {n_all} points failed: {files['failed.csv']} says why; the others are in the table")
    if experiment.unmade:
        n_all = len(experiment.points) + len(experiment.unmade)
        raise PointsFailed(f"{len(experiment.unmade)} of {n_all} points are refused; the others are in the table")


def findings_of(directory: Path) -> list[str]:
    """Return what the results in *directory* say, in sentences."""
    from t3sim.analysis.findings import takeaway
    from t3sim.analysis.folder import read_folder

    return takeaway(read_folder(directory))


def workers_with_cost(
    phases: PhaseRunner, jobs: int | None, scheduler: str | None, hired: Workers | None = None,
    least_said: float = 0.0,
) -> Workers:  # fmt: skip
    """Choose the workers, say what is to be simulated and what it costs, and compile for it what is not compiled.

    Workers that are *hired* already are taken.  What costs less than *least_said* seconds is not said.
    """
    from t3sim.experiment.running.cost import cost_lines, layouts_to_compile, prepare_kernel
    from t3sim.experiment.running.workers import workers_for
    from t3sim.system.compilation import compile_for

    missing = phases.missing
    workers = workers_for([task.seconds for task in missing], jobs, scheduler) if hired is None else hired
    if sum(task.seconds for task in missing) >= least_said:
        echo(*folded(cost_lines(phases.n_phases, phases.n_damaged, missing, workers)))
    if missing and scheduler is None:
        with interrupt_at_once():
            prepare_kernel(layouts_to_compile(task.run for task in missing), lambda line: echo(*folded([line])))
            if not workers.n:
                compile_for(task.run for task in missing)
    return workers


def note(text: str) -> None:
    """Show a note on stderr, apart from the results."""
    echo(*wrap_text(f"note: {text}"), err=True)


@contextmanager
def interrupt_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process here and now.

    The compiler's callbacks swallow a KeyboardInterrupt.  Nothing is lost: no result has been begun,
    and Numba publishes cache files whole.
    """

    def leave(_signal: int, _frame: object) -> None:
        os.write(2, f"t3sim: {GOES_ON}\n".encode())
        os._exit(INTERRUPTED)

    previous = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def hang_report_in(directory: Path) -> Iterator[None]:
    """Write the state of a machine that hangs into *directory* and say so; remove the one of an earlier run."""
    path = directory / HANG_NAME
    path.unlink(missing_ok=True)
    try:
        yield
    except ModelError as error:
        if not error.details:
            raise
        publish({path: f"{error.details}\n".encode()})
        raise ModelError(f"{error.message}\nthe state of the machine is in {path}", error.details) from error


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """Show progress with ETA on stderr, a line a minute when it is no terminal.

    Yields what to call with the current work and the share of all that is done.
    """
    from rich import progress as of
    from rich.console import Console

    console = Console(stderr=True)
    bar = of.Progress(
        of.TextColumn("{task.description:28}"), of.BarColumn(), of.TaskProgressColumn(), of.TimeElapsedColumn(),
        of.TextColumn("left"), of.TimeRemainingColumn(elapsed_when_finished=False), console=console, transient=True,
        speed_estimate_period=SPEED_OVER_S, disable=not console.is_terminal,
    )  # fmt: skip
    task, said_at = bar.add_task("starting", total=STEPS), time.monotonic()

    def show(what: str, share: float) -> None:
        nonlocal said_at
        bar.update(task, description=what, completed=share * STEPS)
        if not console.is_terminal and time.monotonic() - said_at >= SAY_EVERY_S:
            said_at = time.monotonic()
            echo(f"{what}, {share:.0%} of the work", err=True)

    with bar:
        yield show
