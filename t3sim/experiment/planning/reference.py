"""Reference page of all keys, generated from the pydantic models that read them."""

from collections.abc import Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from t3sim import units
from t3sim.config.experiment import KernelLibrarySpec, ModelSpec, OperatorsSpec, TilingSpec
from t3sim.config.experts import ExpertsFields
from t3sim.config.machine import UniformMachineSpec
from t3sim.config.machine_checks import POWERS_OF_TWO
from t3sim.config.presets import DEFAULT_OPERATORS, DEFAULT_TILING, SKEW, load_preset
from t3sim.config.resolve import resolve_machine
from t3sim.config.spec import AtMost, Unit
from t3sim.config.trees import annotations_of, shown_text, shown_value
from t3sim.config.yaml_loader import Node, Position
from t3sim.experiment.planning.schema import ExperimentFile
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.registry import Parameter
from t3sim.strategies import overlap_strategies

PAGE = """\
# All keys

This page lists every key of experiments, machines, kernels, operators and models; `t3sim config reference` prints it.
[Machines](users/machines.md) and [workloads](users/workloads.md) explain their use, [units](users/run.md#units) how
quantities are written. Dotted keys are written as in `-s` and `sweep:`. A key without a default is required, in the
file or in the preset that it names, unless its meaning says "If omitted". An integer without a unit is a count.
`t3sim config show EXPERIMENT` has the source of every value.

## Experiment

{experiment}

## Strategies

Parameters under `strategy:`; each belongs to the strategies named.

{strategies}

## Arbitration

Parameters under `arbitration:`; each belongs to the policies named.

{policies}

## Machine

A machine file has these keys without `machine.`; files of `configs/gpu`, `configs/memory` and `configs/link` have those
of their part. `gpu[N]`, `memory[N]` and `link[N]` override values of one GPU of the ring, with the same keys.

{machine}

## Kernel

One kernel, or a library with `operand_cost` and `kernels`; files of `configs/kernel` have these keys without `tiling.`.

{kernel}

## Experts

A layer of routed experts (`workload.operator: moe`); with `workload.model`, these keys replace what the model states.

{experts}

## Operators

Files of `configs/operators` have these keys without `workload.operators.`.

{operators}

## Model

Files of `configs/model`.

{model}
"""
# Presets whose values are shown, those of the later ones for keys that the first has not.
MACHINES, KERNELS, MODELS = ("t3-150", "h200"), (DEFAULT_TILING, "cublas-hopper"), ("T-NLG",)
WORDS = {int: "integer", float: "number", bool: "`true` or `false`", str: "text", list: "list", dict: "mapping"}
BOUNDS = {Gt: ("gt", ">"), Ge: ("ge", ">="), Lt: ("lt", "<"), Le: ("le", "<=")}


class Key(NamedTuple):
    """A key with its dots, what it means, what it may be and in which unit, its default if it has one."""

    name: str
    meaning: str
    allowed: str
    default: str = ""


def reference() -> str:
    """Return the page; ``docs/reference.md`` is a copy of it."""
    machines = {name: resolve_machine(Node(name, Position(""))).tree for name in MACHINES}
    kernels = {name: load_preset("kernel", name) for name in KERNELS}
    operators = {DEFAULT_OPERATORS: load_preset("operators", DEFAULT_OPERATORS)}
    models = {name: load_preset("model", name) for name in MODELS}
    strategies = [(name, overlap_strategies.get(name).parameters) for name in overlap_strategies]
    policies = [(name, arbitration_policies.get(name).parameters) for name in arbitration_policies]
    late = "Delay of the first kernel of a GPU."
    delay = Key(f"machine.{SKEW}.gpu[N]", late, units.usage_of(units.parse_time), "`0 ns`")
    what = "Library of GEMM kernels of the machine (machine files). It runs all GEMMs, unless `tiling` names another."
    library = Key("machine.kernels", what, "name of a preset, or a file", f"`{DEFAULT_TILING}`")
    return PAGE.format(
        experiment=table(keys_of(ExperimentFile)),
        strategies=table(parameter_keys("strategy", strategies)),
        policies=table(parameter_keys("arbitration", policies)),
        machine=table([*keys_of(UniformMachineSpec, "machine."), library, delay], machines, "machine."),
        kernel=table([*keys_of(TilingSpec, "tiling."), *keys_of(KernelLibrarySpec, "tiling.")], kernels, "tiling."),
        experts=table(keys_of(ExpertsFields, "workload.experts.")),
        operators=table(keys_of(OperatorsSpec, "workload.operators."), operators, "workload.operators."),
        model=table(keys_of(ModelSpec), models),
    )


def table(keys: Iterable[Key], examples: Mapping[str, Node] | None = None, prefix: str = "") -> str:
    """Return a Markdown table of *keys*; of *examples*, presets, the value in the first with the key."""
    header = ["key", "meaning", "unit and allowed values", "default"]
    rows = [[f"`{key.name}`", *key[1:]] for key in keys]
    if examples is not None:
        header.append("for example")
        rows = [[*row, example_of(row[0].strip("`").removeprefix(prefix), examples)] for row in rows]
    lines = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def example_of(name: str, presets: Mapping[str, Node]) -> str:
    """Return the value of a key in the first of *presets* that has it."""
    for preset, tree in presets.items():
        for path, node in tree.leaves():
            if ".".join(path) == name and node.origin not in ("", "user"):
                of_another = "" if preset == next(iter(presets)) else f" (`{preset}`)"
                return f"`{shown_text(node.plain())}`{of_another}"
    return ""


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[Key]:
    """Yield the keys of *model*, those of a mapping in its place."""
    for name, field in model.model_fields.items():
        inner = [part for part in parts_of(field.annotation) if isinstance(part, type) and issubclass(part, BaseModel)]
        if inner == parts_of(field.annotation):
            yield from keys_of(inner[0], f"{prefix}{name}.")
            continue
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        has_default = isinstance(default, (bool, int)) or bool(default)
        shown = f"`{str(default).lower() if isinstance(default, bool) else shown_value(model, (name,), default)}`"
        allowed = allowed_in(model, name)
        if f"{prefix}{name}".removeprefix("machine.") in POWERS_OF_TWO:
            allowed += ", a power of two"
        yield Key(prefix + name, field.description or "", allowed, shown if has_default else "")


def allowed_in(model: type[BaseModel], name: str) -> str:
    """Return what the field *name* may be, with its unit."""
    field = model.model_fields[name]
    kind, bounds = " or ".join(dict.fromkeys(words_of(part) for part in parts_of(field.annotation))), []
    annotated = annotations_of(field)  # a ``Field`` of a type that may be ``None`` opened up
    for extra in (e for one in annotated for e in (one.metadata if isinstance(one, FieldInfo) else (one,))):
        if isinstance(extra, BeforeValidator):
            one_of = units.usage_of(extra.func)
            kind = f"list, each {one_of}" if kind.startswith("list") else one_of
        elif isinstance(extra, Unit) and not kind.endswith(")"):
            kind += f" ({extra.name})"
        elif isinstance(extra, AtMost):
            bounds.append(f"<= {shown_value(model, (name,), extra.limit)}")
        elif type(extra) in BOUNDS and (bound := getattr(extra, BOUNDS[type(extra)][0])) != units.LIMIT:
            bounds.append(f"{BOUNDS[type(extra)][1]} {bound}")
    return ", ".join([kind, *dict.fromkeys(bounds)])


def parts_of(annotation: Any) -> list[Any]:
    """Return the types that a value may have besides ``None``."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return [part for part in parts if part is not NoneType]


def words_of(annotation: Any) -> str:
    """Return what a type is called in a file."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return words_of(inner[0])
    if origin is Literal:
        return " or ".join(f"`{word}`" for word in inner)
    if origin in (tuple, list):
        return f"list of {words_of(inner[0])}s"
    return WORDS.get(origin or annotation, "mapping")


def parameter_keys(section: str, entries: Iterable[tuple[str, Mapping[str, Parameter]]]) -> Iterator[Key]:
    """Yield the parameters of strategies or policies, given with their names; one that several have once."""
    users: dict[Key, list[str]] = {}
    for user, parameters in entries:
        for name, declared in parameters.items():
            allowed = declared.allowed + (f" ({declared.unit})" if declared.unit else "")
            for bound, words in ((declared.at_most, "at most"), (declared.below, "below")):
                allowed += f", {words} `machine.{bound}`" if bound else ""
            default = "" if declared.default is None else f"`{declared.default}`"
            users.setdefault(Key(f"{section}.{name}", declared.meaning, allowed, default), []).append(f"`{user}`")
    for key, names in users.items():
        yield key._replace(meaning=f"{', '.join(names)}: {key.meaning}" if key.meaning else "")
