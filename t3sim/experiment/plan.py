"""From an experiment file and overrides to one frozen ``RunSpec`` for each point.

**Overrides** (``-s key=value``) apply after the file, in the order given; the
last one of a key wins.  An override of a swept key pins that axis: the axis
is dropped and every point has the given value.  ``sweep.grid.KEY=[...]``
replaces or adds an axis.  Paths in a file and in an override are relative to
the folder of the experiment file.

**Points** are the cartesian product of the axes in file order, the last axis
fastest.  Points that come out equal (an axis that a strategy does not use)
are kept once.

**Arbitration.**  ``t3-mca`` is T3 with the policy ``mca``; ``t3`` is T3 with
any other policy, ``round_robin`` unless the experiment names one.  So an
``arbitration:`` block with the policy ``mca`` sets the parameters of
``t3-mca``, a block with another policy is what ``t3`` uses, and the other
strategies use none; a strategy of the user's own takes any block.  A block
that no strategy of the experiment uses is an error, not ignored.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import sys
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from t3sim.config.experiment import (
    STRATEGIES,
    ArbitrationSpec,
    CollectiveSpec,
    GemmShape,
    RunSpec,
    TilingSpec,
    WorkloadSpec,
)
from t3sim.config.machine import Count, MachineSpec, PicosecondsAboveZero, Spec
from t3sim.config.presets import annotated, configs_root, load_model
from t3sim.config.resolve import (
    ResolvedMachine,
    node_at,
    resolve_machine,
    resolve_tiling,
    spec_problems,
    unknown_key,
    with_value,
)
from t3sim.config.yaml_loader import Node, Position, load_yaml, load_yaml_text, type_name
from t3sim.errors import ConfigError, InputDataError, Problem, T3SimError
from t3sim.registry import unknown_name
from t3sim.units import LIMIT, base_units, format_bytes, format_time, parse_cycles

MAX_POINTS = 100_000
MAX_MATRIX_BYTES = 1 << 40
MAX_TP = 1024
FP16_BYTES = 2
FP32_BYTES = 4
LANES_PER_WAVEFRONT = 64
MAX_PREFETCH_DEPTH = 3
COLLECTIVE_STRATEGIES = ("sequential", "ideal-rs-nmc")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


# --- the file as a user writes it ------------------------------------------------------------------


class WorkloadFile(Spec):
    """``workload:`` exactly one of a model's sublayer, a GEMM, a tile trace or a collective."""

    model: str | None = None
    sublayer: str | None = None
    tp: Annotated[int, Field(ge=1, le=MAX_TP, strict=True)] | None = None
    gemm: GemmShape | None = None
    trace: str | None = None
    collective: CollectiveSpec | None = None


class TilingFile(Spec):
    """``tiling:`` a preset of ``configs/kernel`` and values that replace the preset's."""

    preset: str | None = None
    workgroup_tile: tuple[Count, Count] | None = None
    wavefront_tile: tuple[Count, Count] | None = None
    k_slice: Count | None = None
    prefetch_depth: Count | None = None


class SweepFile(Spec):
    """``sweep:`` dotted key -> values; the points are all combinations."""

    grid: dict[str, list[Any]]


class ExperimentFile(Spec):
    """An experiment file."""

    name: str
    description: str = ""
    machine: str | dict[str, Any]
    workload: WorkloadFile
    tiling: str | TilingFile | None = None
    strategy: str
    arbitration: str | dict[str, Any] | None = None
    mode: Literal["mirrored", "explicit"] = "mirrored"
    quantum: PicosecondsAboveZero | None = None
    plugins: list[str] = Field(default_factory=list)
    sweep: SweepFile | None = None


# keys whose values this module reads itself, with their own messages
_OWN_KEYS = ("machine", "tiling", "arbitration", "sweep")


class _PointFile(Spec):
    """The part of a point that pydantic reads."""

    name: str
    description: str = ""
    workload: WorkloadFile
    strategy: str
    mode: Literal["mirrored", "explicit"] = "mirrored"
    quantum: PicosecondsAboveZero | None = None
    plugins: list[str] = Field(default_factory=list)


# --- the result ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Experiment:
    """A planned experiment: its points, and for each point where every value came from."""

    name: str
    description: str
    path: Path
    points: list[RunSpec]
    provenance: list[Mapping[str, Node]] = field(repr=False)  # one per point: dotted key -> node
    axes: dict[str, list[Any]] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    n_duplicates: int = 0  # combinations left out because they equal an earlier point
    machine_descriptions: dict[str, str] = field(default_factory=dict, repr=False)


def load_experiment(
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    trace_root: str | os.PathLike[str] | None = None,
) -> Experiment:
    """Read, check and resolve an experiment; nothing is simulated or written.

    Raises ConfigError with all problems at once, or InputDataError if the
    only problems are with a tile trace.
    """
    return _Planner(Path(path), tuple(overrides), Path(trace_root) if trace_root else None).plan()


def experiment_schema() -> dict[str, Any]:
    """The JSON schema of an experiment file."""
    schema = ExperimentFile.model_json_schema()
    machine = MachineSpec.model_json_schema()
    schema.setdefault("$defs", {}).update(machine.pop("$defs"))
    schema["$defs"]["MachineSpec"] = machine
    cleaned = _without_bounds_of_texts(schema)
    assert isinstance(cleaned, dict)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **cleaned, "title": "t3sim experiment"}


def _without_bounds_of_texts(schema: Any) -> Any:
    """Quantities are texts with units; their numeric bounds hold after parsing and say nothing about the text."""
    if isinstance(schema, list):
        return [_without_bounds_of_texts(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    bounds = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "gt", "ge", "lt", "le"}
    is_text = schema.get("type") == "string"
    return {key: _without_bounds_of_texts(item) for key, item in schema.items() if not (is_text and key in bounds)}


def load_plugins(plugins: Iterable[str]) -> None:
    """Run plugin files, each once in a process; what they register can then be named."""
    for plugin in plugins:
        module_name = "t3sim_plugin_" + re.sub(r"\W", "_", plugin)
        if module_name in sys.modules:
            continue
        spec = importlib.util.spec_from_file_location(module_name, plugin)
        if spec is None or spec.loader is None:
            raise ConfigError(Problem(plugin, 0, 0, "plugins", "is not a Python file"))
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except T3SimError:
            del sys.modules[module_name]
            raise
        except Exception as error:
            del sys.modules[module_name]
            message = f"cannot be loaded: {type(error).__name__}: {error}"
            raise ConfigError(Problem(plugin, 0, 0, "plugins", message)) from error


# --- planning --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Axis:
    key: str
    values: list[Node]

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self.key.split("."))


class _Planner:
    """Collects the problems of one experiment while its points are made."""

    def __init__(self, path: Path, overrides: tuple[str, ...], trace_root: Path | None) -> None:
        self.path = path
        self.folder = Path(os.path.realpath(path)).parent
        self.overrides = overrides
        self.trace_root = trace_root
        self.problems: dict[Problem, None] = {}  # an ordered set: many points can have the same problem
        self.input_error: InputDataError | None = None
        self.machines: dict[str, ResolvedMachine | None] = {}
        self.strategies: set[str] = set()  # of the whole experiment, pinned or not
        self.policies_used: set[str] = set()  # policies of arbitration blocks that some point uses
        self.policies_given: dict[str, Position] = {}

    def plan(self) -> Experiment:
        root = load_yaml(self.path)
        if not root.is_mapping:
            at = root.position
            raise ConfigError(
                Problem(at.file, at.line, at.column, "", f"found {type_name(root.value)}, an experiment is a mapping")
            )
        try:
            root = annotated(root)
        except ConfigError as error:
            raise self._sorted(error.problems) from None
        root, axes = self._overridden(root, self._axes(root))
        n_points = math.prod(len(axis.values) for axis in axes)
        if n_points > MAX_POINTS:
            self._report(root, ("sweep", "grid"), f"makes {n_points} points, at most {MAX_POINTS} are planned at once")
            raise self._sorted(self.problems)
        self._unknown_keys(root)
        self._strategy_names(root, axes)
        self._load_plugins(root)
        points: list[RunSpec] = []
        provenance: list[Mapping[str, Node]] = []
        seen: set[str] = set()
        by_prefix = sorted(range(len(axes)), key=lambda i: len(axes[i].path))
        for combination in product(*(axis.values for axis in axes)):
            tree = root
            for i in by_prefix:
                tree = self._set(tree, axes[i].path, combination[i])
            for key_path, value in self.pending:
                tree = self._set(tree, key_path, value)
            made = self._point(tree)
            if made is None:
                continue
            digest = made[0].model_dump_json()
            if digest in seen:
                continue
            seen.add(digest)
            points.append(made[0])
            provenance.append(made[1])
        self._unused_arbitration()
        if self.problems:
            raise self._sorted(self.problems)
        if self.input_error is not None:
            raise self.input_error
        return Experiment(
            name=points[0].experiment,
            description=str(root.value["description"].value) if "description" in root.value else "",
            path=self.path,
            points=points,
            provenance=provenance,
            axes={axis.key: [value.plain() for value in axis.values] for axis in axes},
            overrides=self.overrides,
            n_duplicates=n_points - len(points),
            machine_descriptions={m.spec.name: m.description for m in self.machines.values() if m is not None},
        )

    # problems

    def _report(self, root: Node, path: tuple[str, ...], message: str, at_key: bool = False) -> None:
        node, _ = node_at(root, path)
        at = (node.key_position if at_key else None) or node.position
        self._add(at, ".".join(path), message)

    def _add(self, at: Position, key: str, message: str) -> None:
        self.problems[Problem(at.file, at.line, at.column, key, message)] = None

    def _sorted(self, problems: Iterable[Problem]) -> ConfigError:
        """In reading order, the experiment file first."""
        own = str(self.path)
        return ConfigError(sorted(problems, key=lambda p: (p.file != own, p.file, p.line, p.column)))

    # sweep and overrides

    def _axes(self, root: Node) -> list[_Axis]:
        sweep = root.get("sweep")
        if sweep is None or sweep.value is None:
            return []
        if not sweep.is_mapping:
            self._report(root, ("sweep",), f"found {type_name(sweep.value)}, a mapping with the key grid is needed")
            return []
        for key, node in sweep.value.items():
            if key != "grid":
                at = node.key_position or node.position
                self._add(at, f"sweep.{key}", unknown_key(key, "sweep", ["grid"]))
        grid = sweep.get("grid")
        if grid is None:
            return []
        if not grid.is_mapping:
            self._report(root, ("sweep", "grid"), f"found {type_name(grid.value)}, a mapping is needed")
            return []
        return [axis for key, node in grid.value.items() if (axis := self._axis(key, node)) is not None]

    def _axis(self, key: str, node: Node) -> _Axis | None:
        shown = f"sweep.grid.{key}"
        if not isinstance(node.value, list) or not node.value:
            found = "an empty list" if node.value == [] else type_name(node.value)
            self._add(node.position, shown, f"found {found}, a list of values is needed")
            return None
        if key.split(".", maxsplit=1)[0] in ("sweep", "name", "description", "plugins"):
            self._add(node.key_position or node.position, shown, f"`{key}` cannot be swept")
            return None
        seen: list[Any] = []
        for value in node.value:
            if value.plain() in seen:
                self._add(value.position, shown, f"`{value.plain()}` is listed twice")
            seen.append(value.plain())
        at = node.key_position
        return _Axis(key, [replace(value, key_position=at) for value in node.value])

    def _overridden(self, root: Node, axes: list[_Axis]) -> tuple[Node, list[_Axis]]:
        """Apply ``-s``: to the tree what no axis can undo, to the axes what concerns them."""
        self.pending: list[tuple[tuple[str, ...], Node]] = []
        self.original_axes = list(axes)
        for text in self.overrides:
            key, value = self._parsed_override(text)
            if key is None or value is None:
                continue
            path = tuple(key.split("."))
            if path[:2] == ("sweep", "grid") and len(path) > 2:
                axis_key = ".".join(path[2:])
                axis = self._axis(axis_key, value)
                if axis is not None:
                    names = [a.key for a in axes]
                    axes = [axis if a.key == axis_key else a for a in axes] + ([] if axis_key in names else [axis])
                continue
            if path[0] == "sweep":
                root = self._set(root, path, value)
                axes = self._axes(root)
                continue
            axes = [a for a in axes if a.path[: len(path)] != path]
            self.pending.append((path, value))
        for path, value in self.pending:  # so that what is checked once for all points sees them too
            root = self._set(root, path, value)
        return root, axes

    def _parsed_override(self, text: str) -> tuple[str | None, Node | None]:
        key, equals, value_text = text.partition("=")
        key = key.strip()
        at = Position(f"-s {text if len(text) <= 60 else text[:57] + '...'}")
        if not equals or not re.fullmatch(r"[^.\s]+(\.[^.\s]+)*", key):
            self._add(at, "", "an override is written key=value, like `-s workload.tp=8`")
            return None, None
        if "\n" in value_text or not value_text.strip():
            self._add(at, key, "has no value")
            return None, None
        try:
            node = load_yaml_text(f"v: {value_text}", at.file)
        except ConfigError as error:
            for problem in error.problems:
                self.problems[replace(problem, line=0, column=0, key=key)] = None
            return None, None
        value = node.get("v")
        if value is None or len(node.value) != 1:
            self._add(at, key, "has more than one value")
            return None, None
        return key, replace(_moved_to(value, at), key_position=at)

    def _set(self, root: Node, path: tuple[str, ...], value: Node) -> Node:
        for n in range(1, len(path)):
            node, is_whole = node_at(root, path[:n])
            if is_whole and isinstance(node.value, list):
                self._add(value.position, ".".join(path), f"`{'.'.join(path[:n])}` is a list, it has no keys")
                return root
            if is_whole and not node.is_mapping and node.value is not None and not _takes_preset(path[:n]):
                shown = ".".join(path[:n])
                self._add(
                    value.key_position or value.position,
                    ".".join(path),
                    f"`{shown}` is {type_name(node.value)}, it has no keys",
                )
                return root
        return with_value(root, path, value)

    # what all points share

    def _unknown_keys(self, root: Node) -> None:
        known = list(ExperimentFile.model_fields)
        for key, node in root.value.items():
            if key not in known:
                self._add(node.key_position or node.position, key, unknown_key(key, "", known))

    def _strategy_names(self, root: Node, axes: list[_Axis]) -> None:
        """Strategies of the whole experiment, with those that an override pinned away."""
        for axis in (*self.original_axes, *axes):
            if axis.key == "strategy":
                self.strategies |= {value.value for value in axis.values if isinstance(value.value, str)}
        node = root.get("strategy")
        if node is not None and isinstance(node.value, str):
            self.strategies.add(node.value)

    def _load_plugins(self, root: Node) -> None:
        self.plugins: tuple[str, ...] = ()
        node = root.get("plugins")
        if node is None or not isinstance(node.value, list):
            return
        found = []
        for item in node.value:
            if not isinstance(item.value, str):
                continue
            path = Path(os.path.realpath(self.folder / item.value))
            if not path.is_file() or path.suffix != ".py":
                self._add(item.position, "plugins", f"no Python file `{item.value}`, looked for at {path}")
                continue
            try:
                load_plugins([str(path)])
            except T3SimError as error:
                self._add(item.position, "plugins", f"`{item.value}` {str(error).split(': plugins: ')[-1]}")
                continue
            found.append(str(path))
        self.plugins = tuple(found)

    # one point

    def _point(self, tree: Node) -> tuple[RunSpec, Mapping[str, Node]] | None:
        before = len(self.problems)
        content = {key: node for key, node in tree.value.items() if key in _PointFile.model_fields}
        kept = replace(tree, value=content)
        point, bad_keys = self._read_point(kept)
        machine = self._machine(tree)
        tiling, tiling_tree = self._tiling(tree)
        if "name" not in bad_keys and not _NAME.fullmatch(point.name):
            self._report(tree, ("name",), "a name has letters, digits, `.`, `_` and `-` only, at most 100")
        if point.mode == "explicit":
            self._report(tree, ("mode",), "explicit mode is not available yet; use `mirrored`")
        strategy = None if "strategy" in bad_keys else self._strategy(tree, point.strategy)
        arbitration = self._arbitration_block(tree, strategy)
        workload = None if "workload" in bad_keys else self._workload(tree, point.workload, tiling)
        if machine is not None and workload is not None:
            self._check(tree, machine.spec, workload, point, arbitration)
        if len(self.problems) > before or machine is None or workload is None or strategy is None:
            return None
        with base_units():
            run = RunSpec(
                experiment=point.name,
                machine=machine.spec,
                workload=workload,
                strategy=strategy,
                arbitration=arbitration,
                mode=point.mode,
                quantum=point.quantum,
                plugins=self.plugins,
            )
        return run, self._provenance(tree, kept, run, machine, tiling_tree)

    def _provenance(
        self, tree: Node, kept: Node, run: RunSpec, machine: ResolvedMachine, tiling_tree: Node | None
    ) -> Mapping[str, Node]:
        """Where every value of a point came from; the machine's part is shared by all its points."""
        own = {".".join(path): node for path, node in kept.leaves() if path[0] != "description"}
        gemm, workload = run.workload.gemm, run.workload
        if gemm is not None and "workload.gemm.m" not in own:
            origin = f"{workload.model} {workload.sublayer} on {workload.tp} GPUs"
            source = origin if workload.trace is None else "the trace's manifest"
            at = tree.value["workload"].position
            for name, value in gemm:
                own[f"workload.gemm.{name}"] = Node(value, at, None, "derived", source)
        if tiling_tree is not None and workload.trace is None:
            own |= {f"tiling.{'.'.join(path)}": node for path, node in tiling_tree.leaves() if path != ("preset",)}
        else:
            at = tree.value["workload"].position
            for name, value in workload.tiling:
                own[f"tiling.{name}"] = Node(value, at, None, "derived", "the trace's manifest")
        if run.arbitration is not None:
            own |= self._arbitration_leaves(tree.get("arbitration"), run.arbitration)
        default = Position("default")
        own.setdefault("mode", Node(run.mode, default, None, "default"))
        own.setdefault("quantum", Node(format_time(run.machine.link.latency), default, None, "default", "link latency"))
        return ChainMap(own, {f"machine.{key}": node for key, node in machine.leaves().items()})

    @staticmethod
    def _arbitration_leaves(block: Node | None, spec: ArbitrationSpec) -> dict[str, Node]:
        from t3sim.gpu.arbitration import arbitration_policies

        default = Position("default")
        found = {path[-1] if path else "policy": node for path, node in block.leaves()} if block is not None else {}
        policy = found.get("policy", found.get("preset"))
        if policy is None or policy.value != spec.policy:
            found = {"policy": Node(spec.policy, default, None, "default", "the strategy's own")}
        leaves = {"arbitration.policy": found.get("policy") or found["preset"]}
        for name, parameter in arbitration_policies.get(spec.policy).parameters.items():
            leaves[f"arbitration.{name}"] = found.get(name) or Node(parameter.default, default, None, "default")
        return leaves

    def _read_point(self, kept: Node) -> tuple[_PointFile, set[str]]:
        """The point as pydantic reads it; keys with problems are reported and stand-ins take their place."""
        content = kept.plain()
        try:
            return _PointFile.model_validate(content), set()
        except ValidationError as error:
            self._take(spec_problems(error, _PointFile, kept, ""))
            bad_keys = {str(item["loc"][0]) for item in error.errors(include_url=False)}
        stand_ins = {"name": "unnamed", "strategy": STRATEGIES[0], "workload": {}}
        good = {key: value for key, value in content.items() if key not in bad_keys}
        return _PointFile.model_validate({**stand_ins, **good}), bad_keys

    def _take(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self.problems[problem] = None

    def _missing(self, tree: Node, key: str) -> None:
        self._add(tree.position, key, "is missing")

    def _machine(self, tree: Node) -> ResolvedMachine | None:
        node = tree.get("machine")
        if node is None:
            self._missing(tree, "machine")
            return None
        cache_key = repr(node.plain())
        if cache_key not in self.machines:
            try:
                self.machines[cache_key] = resolve_machine(node, self.folder)
            except ConfigError as error:
                self.machines[cache_key] = None
                self._take(error.problems)
        return self.machines[cache_key]

    def _tiling(self, tree: Node) -> tuple[TilingSpec | None, Node | None]:
        try:
            return resolve_tiling(tree.get("tiling"), self.folder)
        except ConfigError as error:
            self._take(error.problems)
            return None, None

    def _strategy(self, tree: Node, name: str) -> str | None:
        known = self._known_strategies()
        if name in known:
            return name
        self._report(tree, ("strategy",), unknown_name("strategy", name, known))
        return None

    def _known_strategies(self) -> list[str]:
        """The strategies of t3sim and those that the experiment's plugins registered."""
        if not self.plugins:
            return list(STRATEGIES)
        from t3sim.overlap import overlap_strategies

        return list(dict.fromkeys((*STRATEGIES, *overlap_strategies.names())))

    # arbitration

    def _arbitration_block(self, tree: Node, strategy: str | None) -> ArbitrationSpec | None:
        """The block as a spec, if *strategy* uses it; checked in any case."""
        default = {"t3": ArbitrationSpec(policy="round_robin"), "t3-mca": ArbitrationSpec(policy="mca")}
        node = tree.get("arbitration")
        if node is None or node.value is None:
            return default.get(strategy or "")
        spec = self._parsed_arbitration(node)
        if spec is None:
            return None
        users = set(self._known_strategies()) - set(STRATEGIES) | {"t3-mca" if spec.policy == "mca" else "t3"}
        self.policies_given.setdefault(spec.policy, node.position)
        if users & self.strategies:
            self.policies_used.add(spec.policy)
        return spec if strategy in users else default.get(strategy or "")

    def _parsed_arbitration(self, node: Node) -> ArbitrationSpec | None:
        policy_node: Node | None = node
        params: dict[str, Node] = {}
        if node.is_mapping:
            params = {key: child for key, child in node.value.items() if key not in ("policy", "params", "preset")}
            nested = node.get("params")
            if nested is not None and nested.is_mapping:
                params |= nested.value
            elif nested is not None and nested.value is not None:
                self._add(nested.position, "arbitration.params", f"found {type_name(nested.value)}, not a mapping")
            policy_node = node.get("policy") or node.get("preset")
        if policy_node is None:
            self._add(node.key_position or node.position, "arbitration.policy", "is missing")
            return None
        policy = policy_node.value
        if not isinstance(policy, str):
            self._add(policy_node.position, "arbitration.policy", f"found {type_name(policy)}, a name is needed")
            return None
        from t3sim.gpu.arbitration import arbitration_policies

        if policy not in arbitration_policies:
            message = unknown_name("arbitration policy", policy, arbitration_policies.names())
            self._add(policy_node.position, "arbitration.policy", message)
            return None
        values: dict[str, Any] = {}
        known = arbitration_policies.get(policy).parameters
        is_legal = True
        for name, child in params.items():
            key = f"arbitration.{name}"
            if name not in known:
                message = unknown_name(f"parameter of policy `{policy}`", name, list(known))
                self._add(child.key_position or child.position, key, message)
                is_legal = False
                continue
            try:
                values[name] = _parameter(child)
                known[name].encode(values[name])
            except ValueError as error:
                self._add(child.position, key, str(error))
                is_legal = False
        return ArbitrationSpec(policy=policy, params=values) if is_legal else None

    def _unused_arbitration(self) -> None:
        for policy, at in self.policies_given.items():
            if policy in self.policies_used or not self.strategies & set(STRATEGIES):
                continue
            wanted = "t3-mca" if policy == "mca" else "t3"
            self._add(at, "arbitration", f"policy `{policy}` is used by the strategy `{wanted}` only, which is not run")

    # workload

    def _workload(self, tree: Node, given: WorkloadFile, tiling: TilingSpec | None) -> WorkloadSpec | None:
        sources = [name for name in ("model", "gemm", "trace", "collective") if getattr(given, name) is not None]
        if len(sources) != 1:
            found = " and ".join(f"`{name}`" for name in sources) or "none"
            self._report(
                tree, ("workload",), f"needs exactly one of model, gemm, trace, collective; found {found}", at_key=True
            )
            return None
        source = sources[0]
        if source != "model" and given.sublayer is not None:
            self._report(tree, ("workload", "sublayer"), "needs `workload.model`")
            return None
        if source == "trace":
            return self._trace(tree, given)
        if source == "collective":
            assert given.collective is not None
            if given.tp is not None and given.tp != given.collective.gpus:
                self._report(
                    tree,
                    ("workload", "tp"),
                    f"is {given.tp}, but `workload.collective.gpus` is {given.collective.gpus}",
                )
                return None
            if tiling is None:
                return None
            return WorkloadSpec(tp=given.collective.gpus, collective=given.collective, tiling=tiling)
        if given.tp is None:
            self._report(tree, ("workload",), "`workload.tp` is missing: the number of GPUs", at_key=True)
            return None
        if source == "gemm":
            gemm, model, sublayer = given.gemm, None, None
        else:
            made = self._sublayer(tree, given, given.tp)
            if made is None:
                return None
            gemm, model, sublayer = made
        if tiling is None or gemm is None:
            return None
        return WorkloadSpec(model=model, sublayer=sublayer, tp=given.tp, gemm=gemm, tiling=tiling)

    def _sublayer(self, tree: Node, given: WorkloadFile, tp: int) -> tuple[GemmShape, str, str] | None:
        from t3sim.workload.sublayers import SUBLAYERS, gemm_of

        model = None
        try:
            model_node, _ = node_at(tree, ("workload", "model"))
            at = model_node.position
            place = at if at.line else Position(str(self.folder / "experiment"))
            model = load_model(str(given.model), place, "workload.model")
        except ConfigError as error:
            stand_in = str(self.folder / "experiment")
            self._take(replace(p, file=model_node.position.file) if p.file == stand_in else p for p in error.problems)
        if given.sublayer is None:
            self._report(
                tree, ("workload",), f"`workload.sublayer` is missing: one of {', '.join(SUBLAYERS)}", at_key=True
            )
            return None
        if given.sublayer not in SUBLAYERS:
            self._report(tree, ("workload", "sublayer"), unknown_name("sublayer", given.sublayer, SUBLAYERS))
            return None
        if model is None:
            return None
        try:
            return gemm_of(model, given.sublayer, tp), model.name, given.sublayer
        except ValueError as error:
            self._report(tree, ("workload", "tp"), str(error))
            return None

    def _trace(self, tree: Node, given: WorkloadFile) -> WorkloadSpec | None:
        from t3sim.workload.trace_file import read_header

        if tree.get("tiling") is not None:
            self._report(tree, ("tiling",), "a trace brings its own tiling; remove `tiling`", at_key=True)
            return None
        try:
            path = self._trace_path(str(given.trace))
            gemm, tiling, n_chunks = read_header(path)
        except InputDataError as error:
            self.input_error = self.input_error or error
            return None
        if given.tp is not None and given.tp != n_chunks:
            self._report(tree, ("workload", "tp"), f"is {given.tp}, but the trace has {n_chunks} chunks")
            return None
        return WorkloadSpec(tp=n_chunks, gemm=gemm, trace=str(path), tiling=tiling)

    def _trace_path(self, written: str) -> Path:
        """Where the trace is: beside the experiment or among the shipped traces, never elsewhere."""
        if "\0" in written or "://" in written or "\\" in written:
            raise InputDataError(f"workload.trace: `{written!r}` is not a relative path")
        shipped = configs_root().parent / "traces"
        roots = [self.trace_root] if self.trace_root else [self.folder, shipped]
        candidates = [root / written for root in roots]
        if not self.trace_root and written.startswith("traces/"):
            candidates.append(shipped.parent / written)
        real_roots = [Path(os.path.realpath(root)) for root in roots]
        inside = []
        has_escaped = False
        for candidate in candidates:
            real = Path(os.path.realpath(candidate))
            if any(real.is_relative_to(root) for root in real_roots):
                inside.append(real)
            else:
                has_escaped |= os.path.lexists(candidate) or candidate.parent.exists()
        if has_escaped or not inside:
            shown = " and ".join(str(root) for root in real_roots)
            raise InputDataError(
                f"workload.trace: `{written}` is outside the trace root ({shown}); --trace-root names another"
            )
        for real in inside:
            if real.exists():
                return real
        looked = " and at ".join(dict.fromkeys(str(real) for real in inside))
        raise InputDataError(f"workload.trace: no trace `{written}`, looked for at {looked}")

    # checks across sections

    def _check(
        self,
        tree: Node,
        machine: MachineSpec,
        workload: WorkloadSpec,
        point: _PointFile,
        arbitration: ArbitrationSpec | None,
    ) -> None:
        if point.quantum is not None and point.quantum > machine.link.latency:
            self._report(
                tree,
                ("quantum",),
                f"is {format_time(point.quantum)}, cannot be longer than `machine.link.latency`, "
                f"{format_time(machine.link.latency)}",
            )
        slot = -(-machine.gpu.issue_slot * 10**12 // machine.gpu.compute_clock)
        if point.quantum is not None and point.quantum < slot:
            self._report(
                tree,
                ("quantum",),
                f"is {format_time(point.quantum)}, below one `machine.gpu.issue_slot`, {format_time(slot)}",
            )
        threshold = arbitration.params.get("threshold") if arbitration else None
        if isinstance(threshold, int) and threshold > machine.memory.queue.entries:
            self._report(
                tree,
                ("arbitration", "threshold"),
                f"is {threshold}, cannot be above `machine.memory.queue.entries`, "
                f"{machine.memory.queue.entries} (`none` means no threshold)",
            )
        if workload.collective is not None:
            self._check_collective(tree, workload.collective, point.strategy)
        if workload.gemm is not None:
            tiling_key = ("tiling",) if workload.trace is None else ("workload", "trace")
            for path, message in tiling_findings(workload.tiling, machine):
                self._report(tree, (*tiling_key, path), message)
            n_wavefronts = math.prod(workload.tiling.workgroup_tile) // math.prod(workload.tiling.wavefront_tile)
            if point.strategy in ("t3", "t3-mca") and n_wavefronts > machine.gpu.tracker.entries_per_set:
                self._report(
                    tree,
                    ("machine", "gpu", "tracker", "entries_per_set"),
                    f"is {machine.gpu.tracker.entries_per_set}, but a workgroup has {n_wavefronts} wavefronts "
                    "and needs an entry for each in one set",
                )
            shape_key = ("workload", "gemm") if tree.value["workload"].get("gemm") else ("workload",)
            for path, message in shape_findings(workload.gemm, workload.tiling, workload.tp):
                self._report(tree, ("workload", path) if path == "tp" else shape_key, message)

    def _check_collective(self, tree: Node, collective: CollectiveSpec, strategy: str) -> None:
        if strategy in STRATEGIES and strategy not in COLLECTIVE_STRATEGIES:
            self._report(
                tree,
                ("strategy",),
                f"`{strategy}` overlaps a GEMM; a collective on its own takes {' or '.join(COLLECTIVE_STRATEGIES)}",
            )
        if collective.size > MAX_MATRIX_BYTES:
            self._report(
                tree,
                ("workload", "collective", "size"),
                f"is {format_bytes(collective.size)}, at most {format_bytes(MAX_MATRIX_BYTES)}",
            )
        if collective.gpus > MAX_TP:
            self._report(tree, ("workload", "collective", "gpus"), f"is {collective.gpus}, at most {MAX_TP}")
        if collective.size < FP16_BYTES * collective.gpus:
            self._report(
                tree,
                ("workload", "collective", "size"),
                f"is {format_bytes(collective.size)}, less than one FP16 element for each of {collective.gpus} GPUs",
            )


def tiling_findings(tiling: TilingSpec, machine: MachineSpec) -> list[tuple[str, str]]:
    """What keeps a workgroup of this tiling from running on a compute unit of this machine."""
    from t3sim.workload.tiling import MAX_WAVEFRONTS_PER_WORKGROUP

    rows, columns = tiling.workgroup_tile
    high, wide = tiling.wavefront_tile
    tile = f"[{rows}, {columns}]"
    if rows % high or columns % wide:
        return [("wavefront_tile", f"is [{high}, {wide}], must divide `workgroup_tile`, {tile}, in rows and columns")]
    findings: list[tuple[str, str]] = []
    n_wavefronts = (rows // high) * (columns // wide)
    if n_wavefronts > MAX_WAVEFRONTS_PER_WORKGROUP:
        findings.append(
            (
                "workgroup_tile",
                (
                    f"{tile} of [{high}, {wide}] wavefront tiles makes {n_wavefronts} wavefronts; T3's "
                    f"tracker tells apart at most {MAX_WAVEFRONTS_PER_WORKGROUP} in a workgroup"
                ),
            )
        )
    unit = machine.gpu.compute_unit
    slices = (tiling.prefetch_depth + 1) * (rows + columns) * tiling.k_slice * FP16_BYTES
    if slices > unit.lds:
        findings.append(
            (
                "workgroup_tile",
                (
                    f"{tile} needs {format_bytes(slices)} for operand slices, (prefetch_depth + 1) x "
                    f"(rows + columns) x k_slice x 2 B; `machine.gpu.compute_unit.lds` is "
                    f"{format_bytes(unit.lds)}"
                ),
            )
        )
    accumulators = rows * columns * FP32_BYTES
    if accumulators > unit.registers:
        findings.append(
            (
                "workgroup_tile",
                (
                    f"{tile} needs {format_bytes(accumulators)} for accumulators, rows x columns x 4 B; "
                    f"`machine.gpu.compute_unit.registers` is {format_bytes(unit.registers)}"
                ),
            )
        )
    line = machine.gpu.l2.line
    if tiling.k_slice * FP16_BYTES != line:
        message = f"is {tiling.k_slice}, must fill one L2 line of {line} B, {line // FP16_BYTES} FP16 elements"
        findings.append(("k_slice", message))
    if wide * FP16_BYTES % line:
        message = f"is [{high}, {wide}], its columns must fill L2 lines of {line} B, {line // FP16_BYTES} FP16 elements"
        findings.append(("wavefront_tile", message))
    if tiling.prefetch_depth > MAX_PREFETCH_DEPTH:
        findings.append(("prefetch_depth", f"is {tiling.prefetch_depth}, must be at most {MAX_PREFETCH_DEPTH}"))
    n_threads = n_wavefronts * LANES_PER_WAVEFRONT
    if n_threads > unit.max_threads:
        findings.append(
            (
                "workgroup_tile",
                f"{tile} runs {n_threads} threads; `machine.gpu.compute_unit.max_threads` is {unit.max_threads}",
            )
        )
    return findings


def shape_findings(gemm: GemmShape, tiling: TilingSpec, tp: int) -> list[tuple[str, str]]:
    """What makes a GEMM too large to simulate, or too small to share out."""
    from t3sim.workload.tiling import MAX_WORKGROUPS

    m, n, k = gemm.m, gemm.n, gemm.k
    shape = f"m {m}, n {n}, k {k}"
    for name, elements in (("output (m x n)", m * n), ("first operand (m x k)", m * k), ("second (k x n)", k * n)):
        if elements * FP16_BYTES > MAX_MATRIX_BYTES:
            return [("gemm", f"{shape}: the {name} has more than {format_bytes(MAX_MATRIX_BYTES)}")]
    if 2 * m * n * k >= LIMIT:
        return [("gemm", f"{shape}: more than 2^62 floating-point operations")]
    n_workgroups = -(-m // tiling.workgroup_tile[0]) * -(-n // tiling.workgroup_tile[1])
    if n_workgroups > MAX_WORKGROUPS:
        return [("gemm", f"{shape}: {n_workgroups} workgroup tiles, at most {MAX_WORKGROUPS} are simulated")]
    if tp > m:
        return [("tp", f"is {tp}, more than the {m} rows of the output")]
    if tp > n_workgroups:
        return [("tp", f"is {tp}, but the output has {n_workgroups} workgroup tiles; each chunk needs at least one")]
    return []


def _takes_preset(path: tuple[str, ...]) -> bool:
    """Whether a name at *path* is short for ``{preset: name}``."""
    return path in (
        ("machine",),
        ("machine", "gpu"),
        ("machine", "memory"),
        ("machine", "link"),
        ("tiling",),
        ("arbitration",),
    )


def _parameter(node: Node) -> Any:
    """A policy's parameter as a plain value; ``1000 cycles`` is 1000."""
    value = node.plain()
    if isinstance(value, str) and re.match(r"\s*[-+.]?[0-9]", value):
        return parse_cycles(value)
    if isinstance(value, (dict, list)):
        raise ValueError(f"found {type_name(value)}, a number or a word is needed")
    return value


def _moved_to(node: Node, at: Position) -> Node:
    """The same tree, all of it written at *at*."""
    value = node.value
    if isinstance(value, dict):
        value = {key: _moved_to(child, at) for key, child in value.items()}
    elif isinstance(value, list):
        value = [_moved_to(child, at) for child in value]
    return replace(node, value=value, position=at, key_position=at if node.key_position else None)


__all__ = ["Experiment", "experiment_schema", "load_experiment", "load_plugins", "shape_findings", "tiling_findings"]
