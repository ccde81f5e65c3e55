"""``t3sim config``: checks and shows an experiment file without running it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from t3sim.cli._tables import wrap_text
from t3sim.errors import PointsFailed

if TYPE_CHECKING:
    from t3sim.config.experiment import RunSpec
    from t3sim.config.yaml_loader import Node
    from t3sim.experiment.planning.plan import Experiment

MOST_VALUES = 16  # of an axis that are all shown
MOST_LINES = 6  # of one kind, and of the values of a longer axis

override_option = click.option(
    "-s", "overrides", metavar="KEY=VALUE", multiple=True,
    help="Replace a value, like -s machine.link.bandwidth='100 GB/s'; may be repeated, the last one wins. "
    "Fixes a swept key to one value.",
)  # fmt: skip
trace_root_option = click.option(
    "--trace-root", type=click.Path(file_okay=False),
    help="Folder that tile traces may come from [default: the experiment's folder and the shipped traces].",
)  # fmt: skip


@click.group()
def config() -> None:
    """Check or show what an experiment resolves to."""


@config.command(short_help="Check FILE without running it.")
@click.argument("file", type=click.Path())
@override_option
@trace_root_option
def check(file: str, overrides: tuple[str, ...], trace_root: str | None) -> None:
    """Check everything in FILE that can be checked without running it, and list what it would run."""
    from t3sim.analysis.figures import check_figure_names
    from t3sim.experiment.planning.plan import load_experiment

    experiment = load_experiment(file, overrides, trace_root)
    check_figure_names(experiment.figures)
    click.echo(f"{file}: no problems")
    for line in summary(experiment):
        click.echo(line)
    for note in experiment.notes:
        for line in wrap_text(f"note        {note}", subsequent_indent=" " * 12):
            click.echo(line)
    if experiment.refusals:
        n_all = len(experiment.points) + len(experiment.unmade)
        raise PointsFailed(f"{len(experiment.refusals)} of {n_all} points are refused")


def summary(experiment: Experiment) -> Iterator[str]:
    """What the experiment would run, in a few lines."""
    return folded(_summary(experiment))


def folded(lines: Iterable[str]) -> Iterator[str]:
    """Yield *lines* that begin with a word of 12 columns, wrapped to the width of a terminal."""
    for line in lines:
        yield from wrap_text(line, subsequent_indent=" " * 12)


def _summary(experiment: Experiment) -> Iterator[str]:
    from t3sim.config.operating_points import OPERATING_POINTS

    n = len(experiment.points) + len(experiment.unmade)
    yield f"experiment  {experiment.name}: {n} point{'' if n == 1 else 's'}"
    if experiment.n_duplicates:
        yield f"            {experiment.n_duplicates} duplicate combinations skipped"
    for key, values in experiment.axes.items():
        yield f"axis        {key}: {_values(values)}"
    yield from _first(
        f"machine     {name}: {description.split('. ')[0].rstrip('.').strip()}"
        for name, description in experiment.machine_descriptions.items()
    )
    for reason in experiment.refusals:
        yield f"refused     {reason}"
    given = {text.partition("=")[0].strip(): text for text in experiment.overrides}
    for key in experiment.axes:
        for prefix, text in given.items():
            if key.startswith(f"{prefix}.") and f"sweep.grid.{key}" not in given:
                yield f"note        {key} is still swept: `-s {text}` does not set it"
    clocks = {
        one.machine.name: one.machine.gpu.operating_point
        for one in experiment.points
        if one.machine.has_operating_points
    }
    others = {at: " or ".join(one for one in OPERATING_POINTS if one != at) for at in clocks.values()}
    yield from _first(
        f"clock       {name}: {at} (`operating_point` may be {others[at]})" for name, at in clocks.items()
    )
    if any(point.workload.tp == 1 for point in experiment.points):
        yield "note        one GPU (tp 1): there is no collective and no link traffic"
    bare = {point.workload.operator for point in experiment.points if point.workload.gemm and not point.workload.model}
    for operator, local in (("gemm-rs", "k"), ("ag-gemm", "n")):
        if operator in bare and "workload.tp" in experiment.axes and f"workload.gemm.{local}" not in experiment.axes:
            yield f"note        {local} of a bare GEMM is per GPU: it does not change with workload.tp"


def _values(values: Sequence[Any]) -> str:
    """Return the values of an axis; of many, the first ones, the last one and their number."""
    if len(values) <= MOST_VALUES:
        return ", ".join(map(_as_written, values))
    first = ", ".join(map(_as_written, values[:MOST_LINES]))
    return f"{first}, ..., {_as_written(values[-1])} ({len(values)} values)"


def _first(lines: Iterable[str]) -> Iterator[str]:
    """Yield the first of *lines*, and how many more there are."""
    lines = iter(lines)
    yield from islice(lines, MOST_LINES)
    if n_more := sum(1 for _ in lines):
        yield f"            and {n_more} more"


def _as_written(value: Any) -> str:
    """Return a value of an axis as YAML has it in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_as_written(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_as_written, value))}]"
    return value if isinstance(value, str) else json.dumps(value, allow_nan=False)


@config.command(short_help="Print every resolved value, its origin and source.")
@click.argument("file", type=click.Path())
@override_option
@trace_root_option
@click.option(
    "--point", "point_number", type=click.IntRange(1), default=1, show_default=True,
    help="Which point of a sweep, counted from 1.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the resolved point as JSON in base units.")
def show(file: str, overrides: tuple[str, ...], trace_root: str | None, point_number: int, as_json: bool) -> None:
    """Print every resolved value of a point of FILE with its unit, origin and source."""
    from t3sim.experiment.planning.plan import load_experiment

    experiment = load_experiment(file, overrides, trace_root)
    n = len(experiment.points)
    if point_number > n:
        raise click.BadParameter(f"the experiment has {n} points", param_hint="--point")
    run, provenance = experiment.points[point_number - 1], experiment.provenance[point_number - 1]
    if as_json:
        click.echo(json.dumps(run.model_dump(mode="json"), indent=2, allow_nan=False))
        return
    if n > 1:
        click.echo(f"# point {point_number} of {n}; --point shows another; swept: {', '.join(experiment.axes)}")
    for line in aligned(list(value_rows(run, provenance))):
        click.echo(line)


def aligned(rows: Sequence[Sequence[str]], n_words: int | None = None) -> Iterator[str]:
    """Yield the lines of a table: *n_words* columns (all, if None) flush left, numbers after them flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    n_left = len(widths) if n_words is None else n_words
    for row in rows:
        cells = zip(row, widths, strict=True)
        yield "  ".join(f"{cell:{'<>'[i >= n_left]}{width}}" for i, (cell, width) in enumerate(cells)).rstrip()


def value_rows(run: RunSpec, provenance: Mapping[str, Node]) -> Iterator[tuple[str, str, str, str]]:
    """(key, value with unit, origin, source and place) of every value, sections in the order of the file format."""
    from t3sim.config.gpu_overrides import located
    from t3sim.config.trees import shown_text, shown_value

    order = (
        "name", "machine", "workload", "tiling", "strategy", "arbitration", "operating_point", "mode",
        "staggered", "quantum", "plugins",
    )  # fmt: skip
    for key, node in sorted(provenance.items(), key=lambda item: order.index(item[0].split(".")[0])):
        section, *rest = key.split(".")
        found = located(run.machine, rest) if section == "machine" else None
        text = shown_text(node.plain()) if found is None else shown_value(*found)
        where = "" if str(node.position) == "default" else str(node.position)
        source = f"{node.source} ({where})" if node.source and where else node.source or where
        yield key, text, node.origin or "user", source


@config.command()
def schema() -> None:
    """Print the JSON schema of an experiment file."""
    from t3sim.experiment.planning.schema import experiment_schema

    click.echo(json.dumps(experiment_schema(), indent=2, allow_nan=False))


@config.command(short_help="Print a page about every key.")
def reference() -> None:
    """Print a page about every key: meaning, unit and allowed values, default, an example and its source."""
    from t3sim.experiment.planning.reference import reference as page

    click.echo(page(), nl=False)
