"""``t3sim validate``: measurements of GPUs beside simulations of the same, point by point, with a report."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from t3sim.cli import PATH
from t3sim.cli.run import note, progress_bar, table_of, terminal, worker_options, workers_with_cost
from t3sim.errors import PointsFailed, UsageError
from t3sim.registry import unknown_name

if TYPE_CHECKING:
    from t3sim.config.machine import MachineSpec
    from t3sim.measurements.samples import Measurements
    from t3sim.validation.points import Compared, Point

DEFAULT_FOLDER = "h200"
MANIFEST_NAME = "manifest.json"
MAX_FAILURES_SHOWN = 5


tiling_option = click.option(
    "--tiling", default="cublas-hopper", show_default=True, metavar="NAME",
    help="How the GEMMs are tiled: a kernel, or a library that has one for each shape.",
)  # fmt: skip


@click.command()
@click.argument("folder", required=False, type=PATH)
@click.option(
    "--machine", default="h200", show_default=True, metavar="NAME", help="Machine to simulate: a preset, or a file."
)
@click.option(
    "-s", "overrides", metavar="KEY=VALUE", multiple=True,
    help="Replace a value, like -s machine.link.bandwidth='400 GB/s'; may be repeated.",
)  # fmt: skip
@tiling_option
@click.option("--kinds", metavar="KIND,...", help="Only these kinds, like collectives,gemm [default: all].")
@click.option(
    "--calibration", type=PATH, metavar="FILE",
    help="CSV of file,line: the rows that the machine was fitted to [default: FOLDER-calibration.csv beside FOLDER].",
)  # fmt: skip
@click.option("-o", "--output", type=PATH, help="Folder for the results [default: results/validation].")
@click.option(
    "--predict", type=PATH, metavar="FILE",
    help="FOLDER lists points to be measured, times empty or left out: freeze what is simulated of them in FILE.",
)  # fmt: skip
@click.option(
    "--predictions", type=PATH, metavar="FILE",
    help="Frozen predictions, whose errors come first [default: FOLDER-predictions.json beside FOLDER].",
)  # fmt: skip
@worker_options
def validate(
    folder: Path | None,
    machine: str,
    overrides: tuple[str, ...],
    tiling: str,
    kinds: str | None,
    calibration: Path | None,
    output: Path | None,
    predict: Path | None,
    predictions: Path | None,
    jobs: int | None,
    scheduler: str | None,
    phases: Path | None,
) -> None:
    """Compare the measurements in FOLDER with simulations of a machine [default: the shipped H200 measurements].

    FOLDER holds CSV files as in validation/h200, each of one kind, known by its columns.  Writes validation.csv (one
    line a point), tiles.csv.gz and a report, which begins with what was frozen before (--predictions).  The same
    command goes on where an earlier one ended.  Exit code 6: finished, but some points could not be simulated.
    """
    from t3sim.analysis.validation import SUMMARY_TITLES, TILES_NAME, VALIDATION_NAME, read_validation, summary_texts
    from t3sim.analysis.validation_report import write_report
    from t3sim.config.presets import load_kernels
    from t3sim.experiment.phase_files import PHASES_NAME
    from t3sim.experiment.phase_runner import PhaseRunner
    from t3sim.experiment.result_folder import owned
    from t3sim.files import publish
    from t3sim.measurements.samples import read_measurements
    from t3sim.validation import predictions as freezing
    from t3sim.validation.points import Points, compared, read_calibration, simulations_of
    from t3sim.validation.simulation import outcomes_of
    from t3sim.validation.tables import tiles_csv, validation_csv

    started = time.monotonic()
    folder = folder or shipped_measurements()
    if predict is not None and predict.exists():
        raise UsageError(f"--predict {predict}: is frozen; give a new file")
    measurements = read_measurements(folder, are_points=predict is not None)
    used = beside(folder, "calibration.csv", calibration) if predict is None else None
    frozen = beside(folder, "predictions.json", predictions) if predict is None else None
    frozen_ones = None if frozen is None else freezing.read_predictions(frozen)
    is_used = read_calibration(used, measurements) if used is not None else frozenset()
    spec = machine_of(machine, overrides)
    maker = Points(spec, load_kernels(tiling))
    points = of_kinds(maker.of(measurements), kinds)
    simulations = simulations_of(points)
    directory = output or Path("results") / "validation"
    with owned(directory):
        click.echo(f"measurements  {folder}: {len(measurements.rows)} rows, {len(points)} points")
        if predict is None:
            say_what_is_assumed(measurements)
        click.echo(f"machine       {spec.name}")
        click.echo(f"simulations   {len(simulations)} distinct ones")
        runner = PhaseRunner(simulations, phases or directory / PHASES_NAME, is_lenient=True, noun="simulations")
        workers = workers_with_cost(runner, jobs, scheduler)
        if runner.missing:
            with progress_bar() as progress, workers.hired(note) as workforce:
                runner.simulate(workforce, progress, longest_first=True)
        outcomes = outcomes_of(runner)
        found = compared(points, outcomes, is_used)
        if predict is not None:
            publish({predict: freezing.predictions_json(measurements, found, spec, tiling)})
            click.echo(str(predict))
            raise_if_failed(found, predict)
            return
        before = [] if frozen_ones is None else freezing.met(frozen_ones, points)
        tiles = maker.tiles(measurements, outcomes) if any(p.kind == "tile_timelines" for p in points) else []
        asked = {
            "tiling": tiling, "overrides": list(overrides), "kinds": kinds, "measurements": str(folder),
            "calibration": None if used is None else str(used),
        }  # fmt: skip
        if frozen_ones is not None:
            errors = list(freezing.error_rows(before))
            asked["frozen"] = {"title": freezing.title_of(frozen_ones, before, spec), "errors": errors}
        contents = {
            directory / VALIDATION_NAME: validation_csv(folder, found),
            directory / TILES_NAME: tiles_csv(folder, tiles),
            directory / MANIFEST_NAME: manifest(spec, asked, time.monotonic() - started),
        }
        if before:
            contents[directory / freezing.CSV_NAME] = freezing.predictions_csv(folder, before)
        publish(contents)
        validation = read_validation(directory)
        written = write_report(directory, validation)
    if frozen_ones is not None:
        title = freezing.title_of(frozen_ones, before, spec)
        terminal().print(table_of(title, freezing.TITLES, freezing.error_rows(before), no_wrap=True))
    title = "Simulated against measured, points that the machine was not fitted to"
    terminal().print(table_of(title, SUMMARY_TITLES, summary_texts(validation), no_wrap=True))
    for path in [*contents, *written]:
        click.echo(str(path))
    raise_if_failed(found, directory / VALIDATION_NAME)


def raise_if_failed(found: Sequence[Compared], table: Path) -> None:
    """Name the first points that could not be simulated and raise ``PointsFailed``, if there are any."""
    from t3sim.validation.points import FAILED

    failed = [one for one in found if one.status == FAILED]
    for one in failed[:MAX_FAILURES_SHOWN]:
        click.echo(f"failed: {one.point.row.place}: {one.point.quantity}: {one.reason}", err=True)
    if failed:
        raise PointsFailed(f"{len(failed)} of {len(found)} points failed: {table} says why and has the others")


def say_what_is_assumed(measurements: Measurements) -> None:
    """Tell the user how files without a provenance are taken to be measured, if there are any."""
    from t3sim.measurements.kinds import UNDESCRIBED

    files = measurements.undescribed
    if files:
        host = ", ".join(f"{us:g} us for a launch of {kind} by the host" for kind, us in UNDESCRIBED["host_us"].items())
        more = f" (and {len(files) - 1} more)" if len(files) > 1 else ""
        loops = f"GEMM loops of contention rows {UNDESCRIBED['gemm_loop_share']:g} times as long as the others"
        click.echo(
            f"assumed       {files[0]}{more} has no provenance.json beside it: {host}; {loops} (docs/hardware.md)"
        )


def shipped_measurements() -> Path:
    """Return the folder of measurements that comes with t3sim, as short as it can be written from here."""
    from t3sim.config.presets import configs_root

    folder = configs_root().parent / "validation" / DEFAULT_FOLDER
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def beside(folder: Path, name: str, given: Path | None) -> Path | None:
    """Return *given*, or FOLDER-*name* beside *folder*; None if there is neither."""
    found = folder.resolve().with_name(f"{folder.resolve().name}-{name}")
    return given or (found if found.is_file() else None)


def machine_of(name: str, overrides: Sequence[str]) -> MachineSpec:
    """Return the machine called *name*, or in that file, with *overrides*; GPUs that differ are refused."""
    from t3sim.config.resolve import resolve_machine
    from t3sim.config.yaml_loader import Node, Position
    from t3sim.experiment.problems import Problems
    from t3sim.experiment.sweep import overridden

    problems, at = Problems("--machine"), Position("--machine")
    root, _, _ = overridden(Node({"machine": Node(name, at)}, at), [], overrides, problems)
    for key, node in root.value.items():
        if key != "machine":
            problems.add(node.position, key, "only values of the machine can be replaced, like machine.link.bandwidth")
    if len(problems):
        raise problems.in_reading_order()
    spec = resolve_machine(root.value["machine"]).spec
    if not spec.is_uniform:
        raise UsageError(f"--machine {name}: its GPUs are not identical; a validation simulates one for all")
    return spec


def of_kinds(points: Sequence[Point], kinds: str | None) -> list[Point]:
    """Return the points of the *kinds* named, with commas between them; all of them if None."""
    from t3sim.validation.points import SIMULATED_KINDS, WITHOUT_SIMULATION

    if kinds is None:
        return list(points)
    known = [*SIMULATED_KINDS, *WITHOUT_SIMULATION]
    wanted = [name.strip() for name in kinds.split(",")]
    for name in wanted:
        if name not in known:
            raise UsageError(unknown_name("kind", name, known))
    found = [point for point in points if point.kind in wanted]
    if not found:
        raise UsageError(f"--kinds {kinds}: the folder has no such measurements")
    return found


def manifest(machine: MachineSpec, asked: Mapping[str, object], wall_s: float) -> bytes:
    """Return what made a validation: program, machine, measurements; what differs from run to run under volatile."""
    from t3sim import __version__
    from t3sim.results.digest import machine_digest, source_digest

    content = {
        "t3sim": __version__,
        "source_sha256": source_digest(),
        "machine": machine.name,
        "machine_sha256": machine_digest(machine),
        **asked,
        "volatile": {"command": sys.argv[1:], "host": platform.node(), "wall_s": round(wall_s, 1)},
    }
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()
