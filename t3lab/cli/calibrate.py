"""``t3sim calibrate``: a machine file from measurements."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import click

from t3lab.cli.validate import beside, resolved_machine_of, say_what_is_assumed, shipped_measurements, tiling_option
from t3sim.cli import PATH
from t3sim.cli._errors import echo
from t3sim.cli.run import note, progress_bar, worker_options, workers_with_cost
from t3sim.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from t3lab.validation.simulation import Outcome, Simulation

TABLE_NAME, JUDGED_NAME = "calibration.csv", "judged.csv"
LONGEST_JUDGED = 5.0  # CPU seconds of a row, for each of two machines


@click.command()
@click.argument("folder", required=False, type=PATH)
@click.option(
    "--points", type=PATH, metavar="FILE",
    help="CSV of file,line: the rows that may be used [default: FOLDER-calibration.csv next to FOLDER].",
)  # fmt: skip
@click.option(
    "--from", "tables", type=PATH, multiple=True, metavar="FILE",
    help="Instead of FOLDER: a file or folder of published measurements, all rows of which are used; may be repeated.",
)  # fmt: skip
@click.option(
    "--judge", "kept_aside", type=PATH, multiple=True, metavar="FILE",
    help="With --from: a file or folder of rows that nothing is set from, which judge the machine; may be repeated.",
)  # fmt: skip
@click.option(
    "--longest", type=click.FloatRange(min=0, min_open=True), default=LONGEST_JUDGED, show_default=True,
    metavar="SECONDS", help="With --from: rows whose simulation is estimated to take more CPU time are not judged.",
)  # fmt: skip
@click.option(
    "--no-search",
    is_flag=True,
    help="Take what rows state directly, such as the rate of the links; search for nothing.",
)
@click.option(
    "--start", default="h200", show_default=True, metavar="NAME", help="Machine to start from: a preset, or a file."
)
@tiling_option
@click.option("--name", default="calibrated", show_default=True, help="Name of the new machine.")
@click.option("-o", "--output", type=PATH, help="Folder for the results [default: results/calibration].")
@worker_options
def calibrate(
    folder: Path | None,
    points: Path | None,
    tables: tuple[Path, ...],
    kept_aside: tuple[Path, ...],
    longest: float,
    no_search: bool,
    start: str,
    tiling: str | None,
    name: str,
    output: Path | None,
    jobs: int | None,
    scheduler: str | None,
    phases: Path | None,
) -> None:
    """Fit a machine to some of the measurements in FOLDER [default: the shipped H200 measurements].

    With `--from FILE...` a machine is set from published tables alone (GEMMs, NCCL's collectives, other all-reduces):
    all their rows may be used.  calibration.csv lists those that each value was fitted to, judged.csv has the times of
    all rows and of those of `--judge`, with the machine of `--start` and with the new one.

    FOLDER holds measurements as `t3sim validate` reads them.  Writes NAME.yaml, a machine file in which each fitted
    value states what it was fitted to and which values are as good, and calibration.csv with all of its points.  Use it
    with `machine: path/NAME.yaml`, and see how well it does on all other points with `t3sim validate --machine
    path/NAME.yaml --calibration FILE`.
    """
    from t3lab.measurements.reading import read_measurements
    from t3lab.validation import published
    from t3lab.validation.calibrate import GROUPS, points_of_fit
    from t3lab.validation.calibrate import calibrate as fitted_to
    from t3lab.validation.cost import estimated_seconds
    from t3lab.validation.points import read_calibration, simulations_of
    from t3lab.validation.simulation import outcomes_of
    from t3lab.validation.tables import calibration_table, machine_file
    from t3sim.config.resolve import resolve_kernels
    from t3sim.experiment.running.phase_files import PHASES_NAME
    from t3sim.experiment.running.phase_runner import PhaseRunner
    from t3sim.experiment.running.result_folder import owned
    from t3sim.files import publish
    from t3sim.system.threads import n_cores

    if tables and (folder is not None or points is not None):
        raise UsageError("--from: takes all rows of its files, and excludes FOLDER and --points")
    if kept_aside and not tables:
        raise UsageError("--judge: goes with --from; `t3sim validate --machine FILE` judges a machine otherwise")
    if kept_aside and no_search:
        raise UsageError("--judge: judges what is searched for, which --no-search forbids; remove one of them")
    folder = folder or shipped_measurements()
    shown = " ".join(map(str, tables)) or str(folder)
    chosen = measurements = read_measurements(tables or folder)
    judging = read_measurements(kept_aside) if kept_aside else None
    if not tables:
        listed = beside(folder, "calibration.csv", points)
        if listed is None:
            advice = "give --points FILE, a CSV of file,line (the others stay unused and can judge the fit)"
            raise UsageError(f"{folder}: no list of the rows to fit to; {advice}")
        keys = read_calibration(listed, measurements)
        chosen = replace(measurements, rows=tuple(row for row in measurements.rows if (row.file, row.line) in keys))
    groups = () if no_search else tuple(GROUPS)
    resolved = resolved_machine_of(start, (), "--start")
    machine = resolved.spec
    directory = output or Path("results") / "calibration"
    kernels, _ = resolve_kernels(tiling, resolved)
    with owned(directory):
        kept = phases or directory / PHASES_NAME

        def planned(simulations: Sequence[Simulation]) -> PhaseRunner:
            return PhaseRunner(simulations, kept, is_lenient=True, noun="simulations")

        echo(f"measurements  {shown}: {len(chosen.rows)} of {len(measurements.rows)} rows may be used")
        say_what_is_assumed(chosen.assumed, chosen.refused, ())
        echo("for each machine that is tried (of a group of points only its own are simulated):")
        if tables:
            seconds = cache(estimated_seconds)
            planning = published.Tables(machine, chosen, kernels, lambda _simulations: {}, seconds)
            sample = {} if no_search else planning.sample(machine)
            first = simulations_of(point for points in sample.values() for point in points)
        else:
            first = simulations_of(points_of_fit(machine, kernels, chosen, groups))
        one_machine = planned(first)
        workers = workers_with_cost(one_machine, jobs or (None if scheduler else n_cores()), scheduler)
        with progress_bar() as progress, workers.hired(note) as workforce:

            def simulate(simulations: Sequence[Simulation]) -> Mapping[Simulation, Outcome]:
                runner = planned(simulations)
                runner.simulate(workforce, progress, longest_first=True)
                return outcomes_of(runner)

            contents: dict[Path, bytes] = {}
            if tables and not no_search:
                given = published.Tables(machine, chosen, kernels, simulate, seconds)
                setting = published.set_from(machine, given, echo)
                fitted = setting.fitted
                judges = [("given", given)]
                if judging is not None:
                    judges.append(("kept aside", published.Tables(machine, judging, kernels, simulate, seconds)))
                found = []
                for title, judge in judges:
                    compared, long = published.judged(machine, setting.machine, judge, longest)
                    found += [(title, *one) for one in compared]
                    if long:
                        echo(f"not judged    {len(long)} rows {title}, each above {longest:g} CPU s: see --longest")
                contents[directory / JUDGED_NAME] = published.judged_csv(found, setting.used)
                echo(*published.judged_lines(found, setting.used))
            else:
                _, fitted = fitted_to(machine, chosen, kernels, simulate, echo, groups)
        names = {str(one.get("device", "")) for one in measurements.provenance.values()} - {""}
        device = " and ".join(sorted(name.removeprefix("NVIDIA ") for name in names)) or "GPUs (name not stated)"
        n = len(chosen.rows)
        description = f"It represents the measured {device}: {start} with numbers fitted to {n} rows of {shown}."
        preset = str(Path(start).resolve()) if Path(start).is_file() else start
        contents |= {
            directory / f"{name}.yaml": machine_file(description, preset, fitted, device),
            directory / TABLE_NAME: calibration_table(fitted),
        }
        publish(contents)
    echo(*map(str, contents))
