"""``t3sim run``: simulate an experiment, show a table, write results, figures and a timeline."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from t3sim.cli._errors import INTERRUPTED
from t3sim.cli.config import override_option, summary, trace_root_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.table import Table

    from t3sim.config.experiment import RunSpec
    from t3sim.results.record import RunRecord

REPORT_WIDTH = 150  # of a table that does not go to a terminal
STEPS = 1000
HANG_NAME = "hang.txt"


@click.command()
@click.argument("file", type=click.Path())
@override_option
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder for the results [default: results/NAME].")
@trace_root_option
@click.option("--no-figures", is_flag=True, help="Do not draw figures.")
@click.option("--check", is_flag=True, help="Check every DRAM command and every invariant on the way.")
@click.option("--data", is_flag=True, help="Carry real values and compare the results with NumPy's.")
def run(
    file: str,
    overrides: tuple[str, ...],
    output: Path | None,
    trace_root: str | None,
    no_figures: bool,
    check: bool,
    data: bool,
) -> None:
    """Simulate the experiment FILE; a sweep is just an experiment with a `sweep:` block."""
    from rich.console import Console

    from t3sim.analysis.figures import check_figure_names
    from t3sim.checks.audit import Audit
    from t3sim.experiment.plan import load_experiment
    from t3sim.experiment.runner import plan_phases, read_traces
    from t3sim.experiment.runner import run as run_experiment
    from t3sim.results.writer import prepare_output

    experiment = load_experiment(file, overrides, trace_root)
    check_figure_names(experiment.figures)
    directory = output or Path("results") / experiment.name
    console = Console(width=None if sys.stdout.isatty() else REPORT_WIDTH)
    for line in summary(experiment):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    n_phases = len(plan_phases(experiment.points, read_traces(experiment.points)))
    console.print(f"phases      {n_phases} distinct ones to simulate", highlight=False)
    prepare_output(directory)
    compile_kernel(experiment.points, console)
    audit = Audit(has_checks=check, has_data=data)
    with hang_report_in(directory), progress_bar() as progress:
        outcome = run_experiment(experiment, directory, sys.argv, progress, audit)
    console.print(results_table(outcome.records))
    console.print(traffic_table(outcome.records))
    for line in audit.summary():
        console.print(line, highlight=False, markup=False)
    files = dict(outcome.files)
    if not no_figures:
        files.update(draw_figures(directory))
    for name, path in files.items():
        console.print(f"{name:16} {path}", highlight=False, markup=False, soft_wrap=True)
    console.print("open the timeline at https://ui.perfetto.dev; it stays on your machine", highlight=False)


def compile_kernel(points: list[RunSpec], console: Console) -> None:
    """Compile what *points* need and the cache does not have: the loop, which is said, and the policies."""
    from t3sim.system.compilation import compile_for, is_compiled_for

    if not is_compiled_for(points):
        console.print("compiling the simulation kernel (about 20 s, once for each version)", highlight=False)
    with interrupt_at_once():
        compile_for(points)


@contextmanager
def interrupt_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process here and now.

    The compiler's callbacks swallow a KeyboardInterrupt.  Nothing is lost: no result has been begun,
    and Numba publishes cache files whole.
    """

    def leave(_signal: int, _frame: object) -> None:
        os.write(2, b"t3sim: interrupted\n")
        os._exit(INTERRUPTED)

    previous = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def hang_report_in(directory: Path) -> Iterator[None]:
    """Write the state of a machine that hangs into *directory* and say so; remove the one of an earlier run."""
    from t3sim.errors import ModelError
    from t3sim.files import publish

    path = directory / HANG_NAME
    path.unlink(missing_ok=True)
    try:
        yield
    except ModelError as error:
        if not error.details:
            raise
        publish({path: f"{error.details}\n".encode()})
        raise ModelError(f"{error.message}\nthe state of the machine is in {path}", error.details) from error


class progress_bar:  # noqa: N801 - used like a function
    """A progress bar with ETA on stderr; silent when stderr is not a terminal."""

    def __enter__(self) -> Callable[[str, float], None]:
        """Start the bar and return what to call with the current work and the share of all that is done."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description:28}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
            TextColumn("left"), TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("starting", total=STEPS)
        self._bar.start()

        def show(what: str, share: float) -> None:
            self._bar.update(self._task, description=what, completed=share * STEPS)

        return show

    def __exit__(self, *exc_info: object) -> None:
        """Remove the bar."""
        self._bar.stop()


def results_table(records: list[RunRecord]) -> Table:
    """Return times and speedups, one row per point."""
    from rich.table import Table

    table = Table(title="Times (us) and speedup over sequential", title_justify="left")
    table.add_column("workload")
    table.add_column("strategy")
    for name in ("GEMM alone", "RS alone", "fused", "AG", "total", "speedup", "overlap efficiency"):
        table.add_column(name, justify="right")
    for r in records:
        times = [_number(value, 1) for value in (r.gemm_us, r.rs_us, r.fused_us, r.ag_us, r.time_us)]
        table.add_row(
            workload_name(r), r.strategy, *times, _number(r.speedup, 3), _number(r.overlap_efficiency, 2)
        )
    return table


def traffic_table(records: list[RunRecord]) -> Table:
    """Return DRAM traffic of one GPU by category, one row per point."""
    from rich.table import Table

    table = Table(title="DRAM traffic of one GPU (MB = 10^6 bytes)", title_justify="left")
    table.add_column("workload")
    table.add_column("strategy")
    for category in ("GEMM", "RS", "AG"):
        table.add_column(f"{category} read", justify="right")
        table.add_column(f"{category} write", justify="right")
    for name in ("link", "L2 hits", "MCA limit"):
        table.add_column(name, justify="right")
    for r in records:
        traffic = [
            r.dram_gemm_read_bytes, r.dram_gemm_write_bytes, r.dram_rs_read_bytes, r.dram_rs_write_bytes,
            r.dram_ag_read_bytes, r.dram_ag_write_bytes, r.link_bytes,
        ]  # fmt: skip
        hits = "-" if r.l2_hit_rate is None else f"{100 * r.l2_hit_rate:.1f} %"
        cells = ["-" if value is None else f"{value / 1e6:.1f}" for value in traffic]
        table.add_row(workload_name(r), r.strategy, *cells, hits, r.mca_threshold or "-")
    return table


def workload_name(record: RunRecord) -> str:
    """Return how a table names the workload of a point."""
    if record.model is not None:
        part = record.sublayer if record.layer is None else f"layer, {record.layer},"
        return f"{record.model} {part} TP {record.tp}"
    if record.m is not None:
        return f"GEMM {record.m} x {record.n} x {record.k} TP {record.tp}"
    return f"collective on {record.tp} GPUs"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def draw_figures(directory: Path) -> dict[str, Path]:
    """Draw the figures of a result folder; return the files by name."""
    from t3sim.analysis.figures import figures_of
    from t3sim.cli.plot import note
    from t3sim.errors import InputDataError

    try:
        files = figures_of(directory, on_missing=note)
    except InputDataError:  # told already: nothing at all could be drawn
        return {}
    return {path.name: path for paths in files.values() for path in paths}
