"""From trees of nodes to frozen specs: presets, overrides, validation.

The tree is kept beside the spec, so that every value can still be shown with
its origin and place, and every error points at the line that caused it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ValidationError

from t3sim import units
from t3sim.config.experiment import KernelLibrarySpec, Kernels, TilingSpec
from t3sim.config.machine import MachineSpec, UniformMachineSpec
from t3sim.config.machine_checks import Finding, machine_findings
from t3sim.config.presets import DEFAULT_TILING, annotated, load_preset, without_description
from t3sim.config.yaml_loader import Node, Position, type_name
from t3sim.errors import ConfigError, Problem
from t3sim.registry import nearest

SpecT = TypeVar("SpecT", bound=BaseModel)
Path_ = tuple[str, ...]

PARTS = ("gpu", "memory", "link")
STARTS = ("start_skew", "start_jitter")


# --- trees ---------------------------------------------------------------------------------------


def with_value(node: Node, path: Path_, value: Node) -> Node:
    """A copy of the tree in which *path* holds *value*; names of presets on the way become mappings."""
    if not path:
        return value
    if not isinstance(node.value, dict):
        content: dict[str, Node] = {} if node.value is None else {"preset": replace(node, key_position=None)}
    else:
        content = node.value
    child = content.get(path[0]) or Node(None, value.position, value.key_position or value.position)
    return replace(node, value={**content, path[0]: with_value(child, path[1:], value)})


def overlay(base: Node, over: Node) -> Node:
    """*over* on top of *base*: mappings are merged, everything else is replaced."""
    if not (isinstance(base.value, dict) and isinstance(over.value, dict)):
        return over
    merged = dict(base.value)
    for key, child in over.value.items():
        merged[key] = overlay(merged[key], child) if key in merged else child
    return replace(base, value=merged)


def node_at(root: Node, path: tuple[Any, ...]) -> tuple[Node, bool]:
    """The deepest node on *path* that exists, and whether it is the whole path."""
    node = root
    for step in path:
        value = node.value
        is_in_list = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if is_in_list or (isinstance(value, dict) and step in value):
            node = node.value[step]
        else:
            return node, False
    return node, True


# --- validation ----------------------------------------------------------------------------------


def validated(model: type[SpecT], node: Node, prefix: str) -> SpecT:
    """The spec that *node* describes; all its problems at once as a ConfigError."""
    try:
        return model.model_validate(node.plain())
    except ValidationError as error:
        raise ConfigError(spec_problems(error, model, node, prefix)) from None


MAX_GUESSES = 50  # of keys that are meant by unknown ones; nobody reads more, and each takes a while


def spec_problems(error: ValidationError, model: type[BaseModel], root: Node, prefix: str) -> list[Problem]:
    """Findings of pydantic as problems with their place in the file."""
    problems: dict[tuple[str, str], Problem] = {}
    for item in error.errors(include_url=False):
        location = item["loc"]
        node, is_whole = node_at(root, location)
        place = node.position
        if item["type"] in ("missing", "extra_forbidden"):
            place = node.key_position or node.position
        elif not is_whole:  # a branch of a union: report the value itself
            while location and not node_at(root, location)[1]:
                location = location[:-1]
        key = _joined(prefix, location)
        message = _message(dict(item), model, location, can_guess=len(problems) < MAX_GUESSES)
        problems.setdefault((key, message), Problem(place.file, place.line, place.column, key, message))
    return list(problems.values())


def _joined(prefix: str, location: tuple[Any, ...]) -> str:
    text = prefix
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def _found(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, (dict, list)):
        return type_name(value)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text if len(text) <= 40 else text[:37] + '...'}`"


def _message(item: dict[str, Any], model: type[BaseModel], location: tuple[Any, ...], can_guess: bool) -> str:
    kind = item["type"]
    context = item.get("ctx", {})
    found = _found(item.get("input"))
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        known = fields_at(model, location[:-1])
        return unknown_key(str(location[-1]), ".".join(map(str, location[:-1])), known, can_guess)
    if kind == "value_error":
        return str(context["error"])
    if kind in ("int_type", "int_from_float", "int_parsing", "int_parsing_size", "float_type"):
        needed = "a number" if kind == "float_type" else "a whole number"
        return f"found {'the text ' if isinstance(item.get('input'), str) else ''}{found}, {needed} is needed"
    if kind in ("bool_type", "bool_parsing"):
        return f"found {found}, true or false is needed"
    if kind == "string_type":
        return f"found {found}, a text is needed"
    bounds = {"greater_than": "gt", "greater_than_equal": "ge", "less_than": "lt", "less_than_equal": "le"}
    if kind in bounds:
        bound = context[bounds[kind]]
        words = {
            "greater_than": "above",
            "greater_than_equal": "at least",
            "less_than": "below",
            "less_than_equal": "at most",
        }[kind]
        return f"found {found}, must be {words} {'2^62' if bound == units.LIMIT else bound}"
    if kind == "literal_error":
        known = [word.strip("' ") for word in str(context["expected"]).replace(" or ", ",").split(",")]
        guess = nearest(str(item.get("input")), known)
        return f"found {found}; allowed: {', '.join(known)}" + (f"; did you mean `{guess}`?" if guess else "")
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        known = fields_at(model, location)
        return f"found {found}, a mapping is needed" + (f" with the keys {', '.join(known)}" if known else "")
    if kind in ("tuple_type", "list_type"):
        return f"found {found}, a list is needed"
    if kind in ("too_long", "too_short"):
        length = context.get("max_length", context.get("min_length"))
        return f"found {context.get('actual_length')} values, {length} are needed"
    return str(item["msg"])


def unknown_key(key: str, parent: str, known: list[str], can_guess: bool = True) -> str:
    """The message for a key that does not exist, with the nearest that does."""
    guess = nearest(key, known) if can_guess else None
    under = f" under `{parent}`" if parent else ""
    if guess:
        return f"unknown key `{key}`{under}; did you mean `{guess}`?"
    return f"unknown key `{key}`{under}; known: {', '.join(known)}"


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType):
        return next((found for part in get_args(annotation) if (found := _model_of(part))), None)
    return None


def fields_at(model: type[BaseModel] | None, location: tuple[Any, ...]) -> list[str]:
    """The keys that the spec at *location* below *model* knows."""
    for step in location:
        if model is None or step not in model.model_fields:
            return []
        model = _model_of(model.model_fields[step].annotation)
    return list(model.model_fields) if model else []


_FORMATS: dict[Any, Any] = {
    units.parse_bytes: units.format_bytes,
    units.parse_bandwidth: units.format_bandwidth,
    units.parse_time: units.format_time,
    units.parse_frequency: units.format_frequency,
    units.parse_cycles: units.format_cycles,
}


def shown_value(model: type[BaseModel], location: Path_, value: Any) -> str:
    """A resolved value with its unit, in the shortest spelling that reads back as the same."""
    for step in location[:-1]:
        inner = _model_of(model.model_fields[step].annotation) if step in model.model_fields else None
        if inner is None:
            return str(value)
        model = inner
    field = model.model_fields.get(location[-1])
    if isinstance(value, int) and not isinstance(value, bool) and field is not None:
        for extra in (*field.metadata, *_nested_metadata(field.annotation)):
            if isinstance(extra, BeforeValidator):
                return str(_FORMATS.get(extra.func, units.format_bytes)(value))
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(str, value)) + "]"
    return str(value)


def _nested_metadata(annotation: Any) -> list[Any]:
    return [extra for part in get_args(annotation) for extra in getattr(part, "__metadata__", ())]


# --- machines ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResolvedMachine:
    """A machine, and for each of its values the node that says where it came from."""

    spec: MachineSpec
    tree: Node
    description: str = ""

    def leaves(self) -> dict[str, Node]:
        """Dotted path below the machine -> node."""
        return {".".join(path): node for path, node in self.tree.leaves()}


def _as_mapping(node: Node) -> Node:
    """A preset's name as the mapping ``{preset: name}``."""
    if isinstance(node.value, str):
        return replace(node, value={"preset": replace(node, key_position=node.key_position)})
    return node


def _preset_name(node: Node, key: str) -> tuple[str, Position] | None:
    preset = node.get("preset")
    if preset is None:
        return None
    if not isinstance(preset.value, str):
        at = preset.position
        raise ConfigError(
            Problem(at.file, at.line, at.column, f"{key}.preset", f"found {_found(preset.plain())}, a name is needed")
        )
    return preset.value, preset.position


def _place(position: Position, folder: Path | None) -> Position:
    """Where relative file names count from: an override on the command line counts from *folder*."""
    return position if position.line or folder is None else Position(str(folder / "experiment"))


def expand_part(kind: str, node: Node, key: str, folder: Path | None = None) -> Node:
    """The full tree of one part: its preset, with the values given beside ``preset:`` on top."""
    node = _as_mapping(node)
    if not node.is_mapping:
        return node
    named = _preset_name(node, key)
    rest = replace(node, value={name: child for name, child in node.value.items() if name != "preset"})
    if named is None:
        return rest
    try:
        base = without_description(load_preset(kind, named[0], _place(named[1], folder), key))
    except ConfigError as error:
        raise _moved(error, named[1], folder) from None
    return overlay(replace(base, key_position=node.key_position), rest)


def _moved(error: ConfigError, position: Position, folder: Path | None) -> ConfigError:
    """Point at the override itself where ``_place`` put a stand-in."""
    if position.line or folder is None:
        return error
    stand_in = str(folder / "experiment")
    return ConfigError(
        replace(problem, file=position.file) if problem.file == stand_in else problem for problem in error.problems
    )


def _overlay_machine(base: Node, over: Node) -> Node:
    """Values of the user on top of a machine file; naming another preset of a part replaces the part."""
    merged = dict(base.value)
    for name, child in over.value.items():
        if name.partition("[")[0] not in (*PARTS, *STARTS) or name not in merged:
            merged[name] = child
            continue
        child = _as_mapping(child)
        merged[name] = child if child.get("preset") is not None else overlay(_as_mapping(merged[name]), child)
    return replace(base, value=merged)


def resolve_machine(node: Node, folder: Path | None = None, key: str = "machine") -> ResolvedMachine:
    """The machine that an experiment's ``machine:`` describes; all problems at once as a ConfigError.

    *node* is the name of a preset, or a mapping with ``preset:`` and values
    that replace the preset's, or a whole machine.  A changed preset carries
    the changes in its name, so that results of different machines differ in
    their ``machine`` column.
    """
    node = annotated(_as_mapping(node), (key,))
    if not node.is_mapping:
        at = node.position
        raise ConfigError(
            Problem(at.file, at.line, at.column, key, f"found {_found(node.plain())}, the name of a machine is needed")
        )
    named = _preset_name(node, key)
    over = replace(node, value={name: child for name, child in node.value.items() if name != "preset"})
    if named is not None:
        try:
            base = load_preset("machine", named[0], _place(named[1], folder), key)
        except ConfigError as error:
            raise _moved(error, named[1], folder) from None
        if not base.is_mapping:
            raise ConfigError(Problem(base.position.file, 1, 1, "", "a machine is a mapping of gpu, memory and link"))
        changes = "".join(
            f"+{'.'.join(path)}={str(_plain_text(leaf)).replace(' ', '')}"
            for path, leaf in sorted(over.leaves(), key=lambda entry: entry[0])  # in whatever order they are written
            if path and path != ("name",)
        )
        stem = Path(named[0]).stem if named[0].endswith((".yaml", ".yml")) else Path(base.position.file).stem
        tree = _overlay_machine(base, over)
        if "name" not in over.value:
            own = base.get("name")  # of a file of the user; shipped presets are called as their files are
            called = own.value if own is not None and isinstance(own.value, str) else stem
            name = Node(called + changes, named[1], named[1], "user", "name of the preset and its changes")
            tree = replace(tree, value={"name": name, **{k: v for k, v in tree.value.items() if k != "name"}})
    else:
        tree = over
    from t3sim.config.own_values import OwnValues, is_own

    described = tree.get("description")
    tree = without_description(tree)
    own_values = {name: child for name, child in tree.value.items() if is_own(name)}
    problems: list[Problem] = []
    parts: dict[str, Node] = {}
    for name, child in tree.value.items():
        if name in own_values:
            continue
        try:
            parts[name] = expand_part(name, child, f"{key}.{name}", folder) if name in PARTS else child
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    tree = replace(tree, value=parts)
    alike = validated(UniformMachineSpec, tree, key)
    spec = MachineSpec(name=alike.name, gpu=alike.gpu, memory=alike.memory, link=alike.link)
    problems = placed(machine_findings(spec), tree, key)
    if problems:
        raise ConfigError(problems)
    if own_values:
        spec, tree = OwnValues(tree, own_values, key, folder).of(spec)
    return ResolvedMachine(spec, tree, str(described.value) if described is not None else "")


def _plain_text(leaf: Node) -> str:
    value = leaf.plain()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def resolve_tiling(node: Node | None, folder: Path | None = None, key: str = "tiling") -> tuple[Kernels, Node]:
    """The kernel or library that an experiment asks for: a preset's name, values on top of a preset, or the default."""
    if node is None:
        node = Node(DEFAULT_TILING, Position("default"))
    node = annotated(_as_mapping(node), (key,))
    if node.is_mapping and node.get("preset") is None and node.get("kernels") is None:
        node = with_value(node, ("preset",), Node(DEFAULT_TILING, node.position))
    tree = expand_part("kernel", node, key, folder)
    return kernels_of(tree, key), tree


def kernels_of(tree: Node, key: str) -> Kernels:
    """The kernel that *tree* describes, or the library if it has ``kernels``."""
    if tree.get("kernels") is not None:
        return validated(KernelLibrarySpec, tree, key)
    return validated(TilingSpec, tree, key)


def placed(findings: list[Finding], tree: Node, prefix: str) -> list[Problem]:
    """Findings of a check across fields as problems at the place of their first key."""
    problems = []
    for path, message in findings:
        node, _ = node_at(tree, tuple(path.split(".")))
        at = node.position
        problems.append(Problem(at.file, at.line, at.column, f"{prefix}.{path}" if path else prefix, message))
    return problems


__all__ = [
    "ResolvedMachine",
    "expand_part",
    "fields_at",
    "kernels_of",
    "node_at",
    "overlay",
    "placed",
    "resolve_machine",
    "resolve_tiling",
    "shown_value",
    "spec_problems",
    "unknown_key",
    "validated",
    "with_value",
]
