"""From an experiment file and overrides to one frozen ``RunSpec`` for each point.

**Overrides** (``-s key=value``) apply after the file, in the order given; the
last one of a key wins.  An override of a swept key pins that axis: the axis
is dropped and every point has the given value.  An override of a mapping that
contains swept keys pins those that it names.  ``sweep.grid.KEY=[...]``
replaces or adds an axis.  Paths in a file and in an override are relative to
the folder of the experiment file.

**Points** are the cartesian product of the axes in file order, the last axis
fastest.  Points that come out equal (an axis that a strategy does not use)
are kept once.
"""

import json
import math
import os
import re
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from t3sim.config.experiment import ArbitrationSpec, KernelLibrarySpec, Kernels, RunSpec
from t3sim.config.machine import MachineSpec, UniformMachineSpec
from t3sim.config.operating_points import OperatingPoint
from t3sim.config.presets import annotated
from t3sim.config.resolve import ResolvedMachine, resolve_machine, resolve_tiling
from t3sim.config.trees import MAX_GUESSES, Problems, paths_to, problem_at, spec_problems, unknown_key
from t3sim.config.yaml_loader import Node, Position, load_yaml, load_yaml_text, type_name
from t3sim.errors import ConfigError, Problem, UsageError
from t3sim.experiment.planning.checks import check_point, shortest_latency
from t3sim.experiment.planning.decisions import DEFAULT, Decisions
from t3sim.experiment.planning.estimate import least_hours, planned_hours
from t3sim.experiment.planning.plugins import load_plugins
from t3sim.experiment.planning.schema import (
    DEFAULT_MAX_HOURS,
    OF_A_POINT,
    SCHEMA_VERSION,
    ExperimentFile,
    PointFile,
    WorkloadFile,
)
from t3sim.experiment.planning.shipped import experiment_file
from t3sim.experiment.planning.sweep import Axis, axes_of, moved_to, overridden, with_set
from t3sim.experiment.planning.workload import CannotSliceError, WorkloadReader
from t3sim.strategies import in_order
from t3sim.units import base_units, format_time
from t3sim.workload.kernel_choice import fitting_kernels, split

MAPPING = "experiment"  # how messages name one that is no file
MAX_POINTS = 100_000
MAX_POINTS_WITH_PROBLEMS = 1000  # number of faulty points after which the others are not checked
BYTES_PER_POINT = 24_000  # of memory, measured: the spec of a point and where each of its values came from
NOT_OF_A_RUN = ("description", "figures", "max_hours")
MOST_PLACES = 3  # that the message on a misplaced key lists
TRACED = "the trace's manifest"  # where values come from
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Experiment:
    """A planned experiment: its points, and for each point where every value came from."""

    name: str
    description: str
    figures: tuple[str, ...]  # names of what to draw of the results; empty: the usual ones
    path: Path
    points: list[RunSpec]
    provenance: list[Mapping[str, Node]] = field(repr=False)  # one per point: dotted key -> node
    axes: dict[str, list[Any]] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    n_duplicates: int = 0  # combinations left out because they equal an earlier point
    combinations: list[list[tuple[int, ...]]] = field(default_factory=list, repr=False)  # see _Planner.plan
    refused: dict[int, str] = field(default_factory=dict)  # index of each point that cannot be simulated -> reason
    machine_descriptions: dict[str, str] = field(default_factory=dict, repr=False)
    unmade: dict[str, ConfigError] = field(default_factory=dict)  # combination without a workload, in words -> why
    notes: tuple[str, ...] = ()  # what has to be said of its models and machines
    mapping: bytes | None = field(default=None, repr=False)  # as JSON, of an experiment that is no file

    @property
    def refusals(self) -> list[str]:
        """Each combination that cannot be simulated, with the reason."""
        unmade = [f"{words}: {_reason(error.problems)}" for words, error in self.unmade.items()]
        return [*unmade, *(f"{self.point_in_words(i)}: {reason}" for i, reason in self.refused.items())]

    @property
    def runnable(self) -> list[RunSpec]:
        """The points that can be simulated."""
        return [run for i, run in enumerate(self.points) if i not in self.refused]

    def point_in_words(self, i: int) -> str:
        """Return what distinguishes point *i*: its strategy, and the values of the swept keys."""
        places = zip(self.axes.items(), self.combinations[i][0], strict=True)
        return _in_words(self.points[i], {key: values[place] for (key, values), place in places})

    def content(self) -> bytes:
        """Return the experiment as it was given."""
        return self.path.read_bytes() if self.mapping is None else self.mapping


Source = str | os.PathLike[str] | Mapping[str, Any]  # of an experiment
Overrides = Sequence[str] | Mapping[str, Any]


def load_experiment(
    source: Source, overrides: Overrides = (), trace_root: str | os.PathLike[str] | None = None
) -> Experiment:
    """Read, check and resolve an experiment; nothing is simulated or written.

    *source* is a file, the name of a shipped experiment, or a mapping with what would stand in a file; paths in a
    mapping are relative to the current folder.
    *overrides* are texts ``key=value`` as after ``-s``, or a mapping: ``{"workload.tp": 16}``.

    Values that are legal but do not fit together refuse the points that have them; the others are planned.
    Raises ConfigError with all problems at once, also if every point is refused, or InputDataError if the only
    problems are with a tile trace.
    """
    if isinstance(overrides, str):
        raise UsageError(f"overrides are a list or a mapping, not one text: [{overrides!r}]")
    if isinstance(overrides, Mapping):
        overrides = [f"{key}={_json(value, key)}" for key, value in overrides.items()]
    mapping = _json(source, MAPPING, indent=1).encode() if isinstance(source, Mapping) else None
    path = Path(MAPPING) if isinstance(source, Mapping) else experiment_file(source)
    return _Planner(path, tuple(overrides), Path(trace_root) if trace_root else None, mapping).plan()


def _json(value: Any, name: str, indent: int | None = None) -> str:
    """Return *value*, called *name*, as JSON, which is YAML as well."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name}: cannot be written down: {error}") from None


def _plain(value: Any) -> Any:
    """Return a number of NumPy as Python's, and a path as text."""
    return value.item() if hasattr(value, "item") else os.fspath(value)


def _texts(swept: Mapping[str, Any]) -> list[str]:
    return [
        f"{key} {value if isinstance(value, str) else json.dumps(value, allow_nan=False)}"
        for key, value in swept.items()
    ]


def _in_words(run: RunSpec, swept: Mapping[str, Any]) -> str:
    of_axes = _texts(swept)
    names = [] if "strategy" in swept or "strategy.name" in swept else [f"strategy {run.strategy}"]
    return ", ".join([*names, *of_axes])


def too_many_points(n_points: int) -> str:
    """The message for a sweep that is not even planned, with what it would take."""
    if n_points >= 10**18:
        return f"makes more than 10^18 points, at most {MAX_POINTS} are planned at once"
    gib = math.ceil(n_points * BYTES_PER_POINT / 2**30)
    hours = math.ceil(n_points / 3600)
    return (
        f"makes {n_points} points, at most {MAX_POINTS} are planned at once; these would take about {gib} GiB of "
        f"memory to plan and, at a second each, {hours} hours to simulate"
    )


class _Planner:
    """Makes the points of one experiment, and collects its problems."""

    def __init__(
        self, path: Path, overrides: tuple[str, ...], trace_root: Path | None, mapping: bytes | None = None
    ) -> None:
        self.path = path
        self.mapping = mapping
        self.folder = Path(os.path.realpath(path.parent))
        self.overrides = overrides
        self.problems = Problems(str(path))
        self.decisions = Decisions(self.problems)
        self.workloads = WorkloadReader(self.folder, trace_root)
        self.machines: dict[str, ResolvedMachine | None] = {}
        self.plugins: tuple[str, ...] = ()
        self.unmade: dict[str, ConfigError] = {}  # by the swept values of a point, why it has no workload

    def plan(self) -> Experiment:
        """Make all points; the combinations of one are its places on the axes, several if duplicates were left out."""
        if self.mapping is None:
            root = load_yaml(self.path)
        else:  # it has no lines
            root = moved_to(load_yaml_text(self.mapping, MAPPING), Position(MAPPING))
        if not root.is_mapping:
            raise ConfigError(root.problem("", f"found {type_name(root.value)}, an experiment is a mapping"))
        self._check_version(root)
        root = self.problems.caught(annotated, root) or root
        if self.problems:
            raise self.problems.in_reading_order()
        original_axes = axes_of(root, self.problems)
        root, axes, pending = overridden(root, original_axes, self.overrides, self.problems)
        self._check_version(root)
        n_points = math.prod(len(axis.values) for axis in axes)
        if n_points > MAX_POINTS:
            self.problems.report(root, "sweep.grid", too_many_points(n_points))
            raise self.problems.in_reading_order()
        self._unknown_keys(root, axes)
        self._load_plugins(root)
        self.decisions.note_experiment(root, (*original_axes, *axes), has_plugins=bool(self.plugins))
        made: dict[str, tuple[RunSpec, Mapping[str, Node], Problems, list[tuple[int, ...]]]] = {}  # by content
        by_prefix = sorted(range(len(axes)), key=lambda i: len(axes[i].path))
        for i_point, places in enumerate(product(*(range(len(axis.values)) for axis in axes))):
            if self.problems and i_point >= MAX_POINTS_WITH_PROBLEMS:
                break
            tree = root
            for path, value in (*((axes[i].path, axes[i].values[places[i]]) for i in by_prefix), *pending):
                tree = with_set(tree, path, value, self.problems)
            swept_here = {axis.key: axis.values[j].plain() for axis, j in zip(axes, places, strict=True)}
            point = self._point(tree, swept_here)
            if point is not None:
                made.setdefault(point[0].model_dump_json(), (*point, []))[3].append(places)
        if self.problems:
            raise self.problems.in_reading_order()
        if self.workloads.input_error is not None:
            raise self.workloads.input_error
        if not made:
            for one in self.unmade.values():
                self.problems.take(one.problems)
            raise self.problems.in_reading_order()
        points, provenance, refusals, combinations = map(list, zip(*made.values(), strict=True))
        swept = [{a.key: a.values[j].plain() for a, j in zip(axes, places[0], strict=True)} for places in combinations]
        left = {i: run for i, run in enumerate(points) if not refusals[i]}
        unplanned = self._check_hours(root, left) if left else {}
        for i, error in unplanned.items():
            refusals[i].take([_refusal_of(error, provenance[i], root)])
        if all(refusals):
            for i, problems in enumerate(refusals):
                where = f"{_in_words(points[i], swept[i])}: " if i in unplanned else ""
                self.problems.take(replace(problem, message=where + problem.message) for problem in problems)
            raise self.problems.in_reading_order()
        return Experiment(
            name=points[0].experiment,
            description=str(root.value["description"].value) if "description" in root.value else "",
            figures=tuple(root.value["figures"].plain()) if "figures" in root.value else (),
            path=self.path,
            mapping=self.mapping,
            points=points,
            provenance=provenance,
            axes={axis.key: [value.plain() for value in axis.values] for axis in axes},
            overrides=self.overrides,
            n_duplicates=n_points - len(points) - len(self.unmade),
            combinations=combinations,
            refused={i: _reason(problems) for i, problems in enumerate(refusals) if problems},
            unmade=self.unmade,
            notes=(*self.workloads.notes, *self._notes_on_machines()),
            machine_descriptions={m.spec.name: m.description for m in self.machines.values() if m is not None},
        )

    def _notes_on_machines(self) -> list[str]:
        found = [machine for machine in self.machines.values() if machine is not None]
        return list(dict.fromkeys(note for machine in found for note in machine.notes))

    # what all points share

    def _unknown_keys(self, root: Node, axes: Sequence[Axis]) -> None:
        known = list(ExperimentFile.model_fields)
        unknown = [(key, key, node) for key, node in root.value.items() if key not in known]
        unknown += [(f"sweep.grid.{a.key}", a.path[0], a.values[0]) for a in axes if a.path[0] not in known]
        for i, (shown, key, node) in enumerate(unknown):
            if i < MAX_GUESSES and (places := _places_of(key)):
                message = f"unknown key `{key}` at the top level; write it as `{'` or `'.join(places)}`"
            else:
                message = unknown_key(key, "", known, can_guess=i < MAX_GUESSES)
            self.problems.add(node, shown, message, at_key=True)

    def _check_version(self, root: Node) -> None:
        """A file of another version follows other rules: nothing else in it is read."""
        node = root.get("schema_version")
        if node is None or (node.value == SCHEMA_VERSION and type(node.value) is int):
            return
        shown = f"is {node.value}, this t3sim reads {SCHEMA_VERSION}"
        if not isinstance(node.value, int) or isinstance(node.value, bool):
            advice = f"found {type_name(node.value)}, a whole number is needed: {SCHEMA_VERSION}"
        elif node.value > SCHEMA_VERSION:
            advice = f"{shown}; use the t3sim that the file was written for, or a newer one"
        else:
            advice = f"{shown}; there is no older version to migrate from, write {SCHEMA_VERSION} or leave the key out"
        self.problems.add(node, "schema_version", advice)
        raise self.problems.in_reading_order()

    def _check_hours(self, root: Node, left: Mapping[int, RunSpec]) -> dict[int, UsageError]:
        """Refuse what would simulate for days, unless the file or ``-s`` says that it is meant.

        Returns by index of a point why it cannot be planned.
        """
        points, refused = list(left.values()), dict[int, UsageError]()
        node = root.get("max_hours")
        limit = DEFAULT_MAX_HOURS if node is None else node.value
        what = f"is {limit}, but the experiment of {len(points)} point{'s' * (len(points) > 1)}"
        least = math.ceil(least_hours(points))
        if least > limit:
            message = f"{what} needs at least {least} hours on one core; increase `max_hours` to run it"
        else:
            hours = math.ceil(planned_hours(points, limit, refused))
            if hours <= limit:
                return {i: refused[n] for n, i in enumerate(left) if n in refused}
            message = f"{what} needs about {hours} hours on one core; run it with -s max_hours={hours}"
        self.problems.report(root, "max_hours", message)
        raise self.problems.in_reading_order()

    def _load_plugins(self, root: Node) -> None:
        node = root.get("plugins")
        listed = node.value if node is not None and isinstance(node.value, list) else []
        for item in listed:
            if not isinstance(item.value, str):
                continue
            path = os.path.realpath(self.folder / item.value)
            if not os.path.isfile(path) or Path(path).suffix != ".py":  # noqa: PTH113 - never raises
                self.problems.add(item, "plugins", f"no Python file `{item.value}`, looked for at {path}")
                continue
            load_plugins([path])
            self.plugins += (path,)

    # one point

    def _point(self, tree: Node, swept: Mapping[str, Any]) -> tuple[RunSpec, Mapping[str, Node], Problems] | None:
        """The point of a tree, its values' nodes, and why it is refused; None if a value of its own is illegal."""
        before, refusals = len(self.problems), Problems(str(self.path))
        content = {key: node for key, node in tree.value.items() if key in OF_A_POINT}
        kept = replace(tree, value=content)
        point, bad_keys = self._read_point(kept)
        machine = self._machine(tree)
        tiling = self.problems.caught(resolve_tiling, tree.get("tiling"), self.folder, "tiling", machine)
        kernels, kernels_tree = tiling or (None, None)
        if "name" not in bad_keys and not _NAME.fullmatch(point.name):
            self.problems.report(tree, "name", "a name has letters, digits, `.`, `_` and `-` only, at most 100")
        strategy = self.decisions.strategy(tree)
        arbitration = self.decisions.arbitration(tree, strategy.name if strategy else None)
        choices = [choice for choice in (strategy, arbitration) if choice is not None]
        workload = None
        if "workload" not in bad_keys:
            spec = machine.spec if machine else None
            try:
                workload = self.workloads.read(tree, point.workload, kernels, spec)
            except CannotSliceError as error:
                self.unmade[", ".join(_texts(swept))] = error
            except ConfigError as error:
                self.problems.take(error.problems)
        if machine is not None and workload is not None:
            check_point(refusals, tree, machine, workload, point, choices)
        if len(self.problems) > before or machine is None or workload is None or strategy is None:
            return None
        with base_units():
            policy = arbitration and ArbitrationSpec(policy=arbitration.name, params=arbitration.params)
            run = RunSpec(
                experiment=point.name, machine=_held(machine.spec, point.operating_point), workload=workload,
                strategy=strategy.name, strategy_params=strategy.params, arbitration=policy, mode=point.mode,
                staggered=point.staggered, quantum=point.quantum, plugins=self.plugins,
            )  # fmt: skip
        if kernels is None or kernels_tree is None or workload.trace is not None:
            at = tree.value["workload"].position
            leaves = {f"tiling.{name}": Node(value, at, None, "derived", TRACED) for name, value in workload.tiling}
        else:
            leaves = tiling_leaves_of(kernels, kernels_tree, run)
        leaves |= {key: node for choice in choices for key, node in choice.leaves().items()}
        return run, self._provenance(tree, kept, run, machine, leaves), refusals

    def _provenance(
        self, tree: Node, kept: Node, run: RunSpec, machine: ResolvedMachine, resolved: Mapping[str, Node]
    ) -> Mapping[str, Node]:
        """Where every value of a point came from; the machine's part is shared by all its points."""
        own = {".".join(path): node for path, node in kept.leaves() if path[0] not in NOT_OF_A_RUN}
        gemm, workload = run.workload.gemm, run.workload
        for name, node in self.workloads.model_leaves(tree).items():
            if f"workload.{name}" not in own:  # tokens and sequence of the workload replace the model's
                own[f"workload.model.{name}"] = node
        if gemm is not None and "workload.gemm.m" not in own:
            source = TRACED if workload.trace else f"{workload.model} {workload.sublayer} on {workload.tp} GPUs"
            at = tree.value["workload"].position
            own |= {f"workload.gemm.{name}": Node(value, at, None, "derived", source) for name, value in gemm}
        if workload.experts is not None:
            at, source = tree.value["workload"].position, workload.model or "default"
            for name, value in _leaves_of(workload.experts, "workload.experts"):
                own.setdefault(name, Node(value, at, None, "derived" if workload.model else "default", source))
        own |= resolved
        latency = format_time(shortest_latency(run.machine))
        defaults = {
            "operating_point": (run.machine.gpu.operating_point, ""),
            "mode": (run.mode, ""),
            "staggered": (run.staggered, ""),
            "quantum": (latency, "link latency"),
        }
        if workload.layer is not None:
            defaults["workload.attention"] = (workload.layer.attention, "")
            shares = self.workloads.operators(tree)[1].leaves()
            own |= {f"workload.operators.{path[0]}": node for path, node in shares}
        for key, (value, source) in defaults.items():
            own.setdefault(key, Node(value, DEFAULT, None, "default", source))
        return ChainMap(own, {f"machine.{key}": node for key, node in machine.leaves().items()})

    def _read_point(self, kept: Node) -> tuple[PointFile, set[str]]:
        """The point as pydantic reads it; keys with problems are reported and stand-ins take their place."""
        content = kept.plain()
        try:
            return PointFile.model_validate(content), set()
        except ValidationError as error:
            self.problems.take(spec_problems(error, PointFile, kept, ""))
            bad_keys = {str(item["loc"][0]) for item in error.errors(include_url=False)}
        stand_ins = {"name": "unnamed", "workload": {}}
        good = {key: value for key, value in content.items() if key not in bad_keys}
        return PointFile.model_validate({**stand_ins, **good}), bad_keys

    def _machine(self, tree: Node) -> ResolvedMachine | None:
        node = tree.get("machine")
        if node is None:
            self.problems.add(tree, "machine", "is missing")
            return None
        cache_key = repr(node.plain())
        if cache_key not in self.machines:
            self.machines[cache_key] = self.problems.caught(resolve_machine, node, self.folder)
        return self.machines[cache_key]


def _places_of(key: str) -> list[str]:
    """Return the dotted keys that end in *key*, of workload, machine and strategy: where a top-level one may belong."""
    sections: dict[str, type[BaseModel]] = {"workload": WorkloadFile, "machine": UniformMachineSpec}
    found = [path for prefix, model in sections.items() for path in paths_to(key, model, prefix)]
    found += [f"strategy.{key}"] * any(key in entry.parameters for entry in in_order())
    return found if len(found) <= MOST_PLACES else []


def _leaves_of(spec: BaseModel, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield dotted key and value of each field of *spec* and of specs in it that has one."""
    for name, value in spec:
        if isinstance(value, BaseModel):
            yield from _leaves_of(value, f"{prefix}.{name}")
        elif value not in (None, ""):
            yield f"{prefix}.{name}", value


def _refusal_of(error: UsageError, provenance: Mapping[str, Node], root: Node) -> Problem:
    """Return why a point cannot be planned as a problem of the key that the message begins with, if it does."""
    key, colon, rest = error.message.partition(": ")
    is_key = bool(colon) and key.split(".")[0] in ExperimentFile.model_fields
    message = rest if is_key else error.message
    if key == "workload.gemm.output" and "workload.output" in provenance:  # of a model
        key = "workload.output"
    node = provenance.get(key if is_key else "strategy")
    if node is None or not node.position.line:
        return problem_at(root, key if is_key else "strategy", message)
    return node.problem(key if is_key else "strategy", message)


def _reason(problems: Iterable[Problem]) -> str:
    """Return the first of *problems* as a reason of a refusal, without its place."""
    first = next(iter(problems))
    return f"{first.key}: {first.message}" if first.key else first.message


def _held(machine: MachineSpec, name: OperatingPoint | None) -> MachineSpec:
    """Return *machine* held at the operating point *name*, which its name then states if it is not its own."""
    if name is None or not machine.has_operating_points or name == machine.gpu.operating_point:
        return machine
    return machine.at_operating_point(name).model_copy(update={"name": f"{machine.name}@{name}"})


def tiling_leaves_of(kernels: Kernels, tree: Node, run: RunSpec) -> dict[str, Node]:
    """Where the values of a point's tiling came from; of a library: those of the chosen kernel, and which it is."""
    found: dict[str, Node] = {}
    derived: dict[str, Node] = {}
    if isinstance(kernels, KernelLibrarySpec):
        fitting, chosen = fitting_kernels(kernels, run.machine), run.workload.tiling
        assert isinstance(fitting, KernelLibrarySpec)
        name = next(name for name, tiling in fitting.kernels.items() if split(tiling, chosen.split_k) == chosen)
        tree = tree.value["kernels"].value[name]
        source = f"the shortest schedule on {run.machine.gpu.n_compute_units} compute units"
        found["tiling.kernel"] = Node(name, tree.position, None, "derived", source)
        if chosen.prefetch_depth != kernels.kernels[name].prefetch_depth:
            source = f"as many slices as a compute unit holds; the kernel has {kernels.kernels[name].prefetch_depth}"
            derived["tiling.prefetch_depth"] = Node(chosen.prefetch_depth, tree.position, None, "derived", source)
        if chosen.split_k != kernels.kernels[name].split_k:
            source = "the shortest schedule, including the reduction of partial sums"
            derived["tiling.split_k"] = Node(chosen.split_k, tree.position, None, "derived", source)
    return found | {f"tiling.{'.'.join(path)}": node for path, node in tree.leaves() if path != ("preset",)} | derived
