"""``t3sim validate``: comparison of measurements with simulations, point by point, with a report."""

from __future__ import annotations

import json
import platform
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from t3sim.cli import PATH
from t3sim.cli._errors import echo
from t3sim.cli._tables import table_lines, wrap_text
from t3sim.cli.run import note, progress_bar, worker_options, workers_with_cost
from t3sim.errors import PointsFailed, UsageError
from t3sim.registry import unknown_name
from t3sim.spelling import spelled_as

if TYPE_CHECKING:
    from t3lab.measurements.samples import Measurements
    from t3lab.validation.point import Point
    from t3lab.validation.points import Compared
    from t3sim.config.machine import MachineSpec
    from t3sim.config.operating_points import OperatingPoint
    from t3sim.config.resolve import ResolvedMachine

DEFAULT_FOLDER = "h200"
MAX_FAILURES_SHOWN = 5
MAX_SENTENCES = 10  # at the head, of each sort
MAX_REFUSED_KEPT = 100


tiling_option = click.option(
    "--tiling", metavar="NAME",
    help="How GEMMs are tiled: a kernel, or a library that has one for each shape [default: what the machine names].",
)  # fmt: skip


@click.command()
@click.argument("measurements", nargs=-1, type=PATH)
@click.option(
    "--machine", default="h200", show_default=True, metavar="NAME", help="Machine to simulate: a preset, or a file."
)
@click.option(
    "-s", "overrides", metavar="KEY=VALUE", multiple=True,
    help="Replace a value, like -s machine.link.bandwidth='400 GB/s'; may be repeated.",
)  # fmt: skip
@tiling_option
@click.option(
    "--operating-point", type=click.Choice(["sustained", "boost", "onset"]),
    help="Clock regime of all GEMMs [default: what provenance.json states, or by how long the loops of each row were].",
)  # fmt: skip
@click.option("--kinds", metavar="KIND,...", help="Only these kinds, like collectives,gemm [default: all].")
@click.option(
    "--calibration", type=PATH, metavar="FILE",
    help="CSV of file,line: the rows that the machine was fitted to [default: FOLDER-calibration.csv next to FOLDER].",
)  # fmt: skip
@click.option("-o", "--output", type=PATH, help="Folder for the results [default: results/validation].")
@click.option(
    "--predict", type=PATH, metavar="FILE",
    help="FOLDER lists points to be measured, times empty or left out: freeze what is simulated of them in FILE.",
)  # fmt: skip
@click.option(
    "--predictions", type=PATH, metavar="FILE",
    help="Frozen predictions, whose errors come first [default: FOLDER-predictions.json next to FOLDER].",
)  # fmt: skip
@worker_options
def validate(
    measurements: tuple[Path, ...],
    machine: str,
    overrides: tuple[str, ...],
    tiling: str | None,
    operating_point: OperatingPoint | None,
    kinds: str | None,
    calibration: Path | None,
    output: Path | None,
    predict: Path | None,
    predictions: Path | None,
    jobs: int | None,
    scheduler: str | None,
    phases: Path | None,
) -> None:
    """Compare MEASUREMENTS with simulations of a machine [default: the shipped ones of H200s].

    MEASUREMENTS are files, or folders of them: CSV as in validation/h200, or with few columns (collective,gpus,bytes,
    time_us or op,m,n,k,tp,time_us, with a strategy if you like); what nccl-tests prints, or writes with -J; traces of
    PyTorch's profiler.  Writes validation.csv (one line a point), tiles.csv.gz, winners.csv (of operators measured in
    several ways, whether the simulation names the fastest) and a report, which begins with frozen predictions
    (--predictions) and lists what was assumed of the files.  The same command resumes an interrupted one.
    Exit code 6: finished, but some rows were refused or some points could not be simulated.
    """
    from t3lab.measurements.reading import read_measurements
    from t3lab.report.validation import SUMMARY_TITLES, TILES_NAME, held_out, read_validation, summary_texts
    from t3lab.report.validation_report import write_report
    from t3lab.report.winners import cases_of, winner_sentences
    from t3lab.validation import predictions as freezing
    from t3lab.validation.points import (
        Points,
        compared,
        read_calibration,
        simulations_of,
        tiles_of,
        without_faster_than_rings,
    )
    from t3lab.validation.simulation import outcomes_of
    from t3lab.validation.tables import tiles_csv, validation_csv
    from t3sim.analysis.folder import VALIDATION_NAME
    from t3sim.config.resolve import resolve_kernels
    from t3sim.experiment.running.phase_files import PHASES_NAME
    from t3sim.experiment.running.phase_runner import PhaseRunner
    from t3sim.experiment.running.result_folder import owned
    from t3sim.files import publish
    from t3sim.results.manifest import MANIFEST_NAME
    from t3sim.system.threads import n_cores

    started = time.monotonic()
    sources = list(measurements) or [shipped_measurements()]
    source = " ".join(map(str, sources))
    if predict is not None and predict.exists():
        raise UsageError(f"--predict {predict}: is frozen; give a new file")
    found = read_measurements(sources, are_points=predict is not None)
    folder = found.folder if len(sources) == 1 else None
    used = beside(folder, "calibration.csv", calibration) if predict is None else None
    frozen = beside(folder, "predictions.json", predictions) if predict is None else None
    frozen_ones = None if frozen is None else freezing.read_predictions(frozen)
    is_used = read_calibration(used, found) if used is not None else frozenset()
    resolved = resolved_machine_of(machine, overrides)
    spec, (kernels, tiling) = resolved.spec, resolve_kernels(tiling, resolved)
    points = of_kinds(Points(spec, kernels, operating_point).of(found), kinds)
    if predict is None:
        points = without_faster_than_rings(points, spec)
    assumed = [*other_devices(found, spec), *found.assumed]
    simulations = simulations_of(points)
    directory = output or Path("results") / "validation"
    with owned(directory):
        echo(f"measurements  {source}: {len(found.rows)} rows, {len(points)} points")
        if predict is None:
            say_what_is_assumed(assumed, found.refused, points)
        echo(*wrap_text(f"machine       {spec.name}, GEMMs by {tiling}", subsequent_indent=" " * 14))
        for title, n in operating_points_of(points).items():
            echo(*wrap_text(f"at {title}: {n} points", " " * 14, " " * 14))
        echo(f"simulations   {len(simulations)} distinct ones")
        runner = PhaseRunner(simulations, phases or directory / PHASES_NAME, is_lenient=True, noun="simulations")
        workers = workers_with_cost(runner, jobs, scheduler)
        if runner.missing:
            with progress_bar() as progress, workers.hired(note) as workforce:
                runner.simulate(workforce, progress, longest_first=True)
        outcomes = outcomes_of(runner)
        pairs = compared(points, outcomes, is_used)
        if predict is not None:
            publish({predict: freezing.predictions_json(found, pairs, spec, tiling)})
            echo(str(predict))
            raise_if_failed(pairs, predict)
            return
        before = [] if frozen_ones is None else freezing.met(frozen_ones, points)
        tiles = tiles_of(found, points, outcomes) if any(p.kind == "tile_timelines" for p in points) else []
        asked: dict[str, object] = {
            "tiling": tiling, "operating_points": dict(operating_points_of(points)),
            "overrides": list(overrides), "kinds": kinds, "measurements": source,
            "calibration": None if used is None else str(used), "assumed": assumed,
            "refused": found.refused[:MAX_REFUSED_KEPT],
        }  # fmt: skip
        if frozen_ones is not None:
            errors = list(freezing.error_rows(before))
            asked["frozen"] = {"title": freezing.title_of(frozen_ones, before, spec), "errors": errors}
        contents = {
            directory / VALIDATION_NAME: validation_csv(found.folder, pairs),
            directory / TILES_NAME: tiles_csv(found.folder, tiles),
            directory / MANIFEST_NAME: manifest(spec, asked, time.monotonic() - started),
        }
        if before:
            contents[directory / freezing.CSV_NAME] = freezing.predictions_csv(found.folder, before)
        publish(contents)
        validation = read_validation(directory)
        written = write_report(directory, validation, jobs or n_cores())
    if frozen_ones is not None:
        show_errors(freezing.title_of(frozen_ones, before, spec), freezing.TITLES, freezing.error_rows(before))
    title = "Simulated against measured, points that the machine was not fitted to"
    show_errors(title, SUMMARY_TITLES, summary_texts(validation))
    if len(apart := summary_texts(validation, held_out)):
        show_errors("Of these, held-out points (validation/holdout.csv)", SUMMARY_TITLES, apart)
    for sentence in winner_sentences(cases_of(validation)):
        echo(*wrap_text(sentence))
    echo(*map(str, [*contents, *written]))
    raise_if_failed(pairs, directory / VALIDATION_NAME)
    if found.refused:
        where = directory / VALIDATION_NAME
        raise PointsFailed(f"refused, see above: {len(found.refused)} of the rows and files; {where} has the others")


def operating_points_of(points: Iterable[Point]) -> Mapping[str, int]:
    """Return at which operating points GEMMs are simulated, each with what decided it, and for how many points."""
    return Counter(point.operating_point for point in points if point.terms and point.operating_point)


def show_errors(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table of errors, whose first two columns are words, without columns in which nothing stands."""
    columns = list(zip(*rows, strict=True)) or [()] * len(headings)
    cells = dict(zip(headings, columns, strict=True))
    words = {name: cells.pop(name) for name in headings[:2]}
    echo(*table_lines(title, words, {name: cells[name] for name in cells if any(cells[name])}))


def raise_if_failed(pairs: Sequence[Compared], table: Path) -> None:
    """Name the first points that could not be simulated and raise ``PointsFailed``, if there are any."""
    from t3lab.validation.points import FAILED

    failed = [one for one in pairs if one.status == FAILED]
    shown = failed[:MAX_FAILURES_SHOWN]
    echo(*(f"failed: {one.point.row.place}: {one.point.quantity}: {one.reason}" for one in shown), err=True)
    if failed:
        raise PointsFailed(f"{len(failed)} of {len(pairs)} points failed: {table} says why and has the others")


def other_devices(found: Measurements, machine: MachineSpec) -> list[str]:
    """Say which GPUs the files are of, if they are not what the machine is called after."""
    name = machine.name.partition("+")[0]
    return [
        f"{where}: is of {device}, the machine is {name}" for device, where in found.devices.items()
        if not is_named_after(name, device)
    ]  # fmt: skip


def is_named_after(machine: str, device: str) -> bool:
    """Whether a machine has the name of a device, like h100 of NVIDIA H100 80GB HBM3; cards for PCIe are others."""
    own, words = (set(re.findall(r"[a-z0-9]+", text.lower())) for text in (machine, device))
    return bool(own & words) and not (words - own) & {"pcie", "nvl"}


def say_what_is_assumed(assumed: Sequence[str], refused: Sequence[str], points: Sequence[Point]) -> None:
    """Print what the files do not state, with what is assumed, and what was refused or not simulated."""
    from t3lab.measurements.foreign import LEFT_OUT

    by_reason = Counter(point.reason for point in points if not point.terms)
    not_simulated = [f"{n} point{'' if n == 1 else 's'}: {reason}" for reason, n in by_reason.most_common()]
    first = sorted(assumed, key=lambda sentence: LEFT_OUT not in sentence)
    for title, sentences, is_error in (
        ("assumed", first, False), ("not simulated", not_simulated, False), ("refused", refused, True)
    ):  # fmt: skip
        n_more = len(sentences) - MAX_SENTENCES
        shown = [*sentences[:MAX_SENTENCES], *([f"... and {n_more} more"] if n_more > 0 else [])]
        for sentence in shown:
            echo(*wrap_text(sentence, f"{title:13} ", " " * 14), err=is_error)


def shipped_measurements() -> Path:
    """Return the folder of measurements that comes with t3sim, as short as it can be written from here."""
    from t3sim.config.presets import shipped

    folder = shipped("validation") / DEFAULT_FOLDER
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def beside(folder: Path | None, name: str, given: Path | None) -> Path | None:
    """Return *given*, or FOLDER-*name* next to *folder*; None if there is neither."""
    if folder is None:
        return given
    found = folder.resolve().with_name(f"{folder.resolve().name}-{name}")
    return given or (found if found.is_file() else None)


def machine_of(name: str, overrides: Sequence[str]) -> MachineSpec:
    """Return the machine called *name*, or in that file, with *overrides*; GPUs that differ are refused."""
    return resolved_machine_of(name, overrides).spec


def resolved_machine_of(name: str, overrides: Sequence[str], option: str = "--machine") -> ResolvedMachine:
    """Return the same with the library that it names; errors begin with the *option* that gave the name."""
    from t3sim.config.resolve import resolve_machine
    from t3sim.config.trees import Problems
    from t3sim.config.yaml_loader import Node, Position
    from t3sim.experiment.planning.sweep import overridden

    problems, at = Problems(option), Position(option)
    root, _, _ = overridden(Node({"machine": Node(name, at)}, at), [], overrides, problems)
    for key, node in root.value.items():
        if key != "machine":
            problems.add(node.position, key, "only values of the machine can be replaced, like machine.link.bandwidth")
    if len(problems):
        raise problems.in_reading_order()
    found = resolve_machine(root.value["machine"])
    if not found.spec.is_uniform:
        raise UsageError(f"{option} {name}: its GPUs are not identical; a validation simulates one for all")
    return found


def of_kinds(points: Sequence[Point], kinds: str | None) -> list[Point]:
    """Return the points of the *kinds* named, with commas between them; all of them if None."""
    from t3lab.validation.kinds import SIMULATED_KINDS, WITHOUT_SIMULATION

    if kinds is None:
        return list(points)
    known = [*SIMULATED_KINDS, *WITHOUT_SIMULATION]
    wanted = [spelled_as(name.strip(), known) for name in kinds.split(",")]
    for name in wanted:
        if name not in known:
            raise UsageError(unknown_name("kind", name, known))
    found = [point for point in points if point.kind in wanted]
    if not found:
        raise UsageError(f"--kinds {kinds}: the folder has no such measurements")
    return found


def manifest(machine: MachineSpec, asked: Mapping[str, object], wall_s: float) -> bytes:
    """Return what made a validation: program, machine, measurements; what differs from run to run under volatile."""
    from t3lab.source import laboratory_digest
    from t3sim import __version__
    from t3sim.results.digest import machine_digest

    content = {
        "t3sim": __version__,
        "source_sha256": laboratory_digest(),
        "machine": machine.name,
        "machine_sha256": machine_digest(machine),
        **asked,
        "volatile": {"command": sys.argv[1:], "host": platform.node(), "wall_s": round(wall_s, 1)},
    }
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()
