"""The axes of a sweep, and the overrides (``-s key=value``) that pin, replace or add them.

An override of a swept key pins that axis: the axis is dropped and every point has the given value.  An override of a
mapping that contains swept keys replaces the mapping and pins the keys that it names; the other axes remain on top.
``sweep.grid.KEY=[...]`` replaces or adds an axis.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from t3sim.config.gpu_overrides import OVERRIDE_KEY
from t3sim.config.trees import Problems, node_at, unknown_key, with_value
from t3sim.config.yaml_loader import MAX_DEPTH, Node, Position, load_yaml_text, type_name
from t3sim.errors import ConfigError

NOT_SWEPT = ("schema_version", "name", "description", "plugins", "sweep", "figures", "max_hours")
HAVE_PRESETS = ("machine", "machine.gpu", "machine.memory", "machine.link", "tiling", "strategy", "arbitration")
Pending = tuple[tuple[str, ...], Node]  # path, value


@dataclass(frozen=True)
class Axis:
    """A swept key and its values, each written where the axis is."""

    key: str
    values: list[Node]

    @property
    def path(self) -> tuple[str, ...]:
        """The key as steps into the tree."""
        return tuple(self.key.split("."))


def axes_of(root: Node, problems: Problems) -> list[Axis]:
    """The axes of the ``sweep:`` section, in file order; what is not an axis is reported."""
    sweep = root.get("sweep")
    if sweep is None or sweep.value is None:
        return []
    if not sweep.is_mapping:
        problems.report(root, "sweep", f"found {type_name(sweep.value)}, a mapping with the key grid is needed")
        return []
    for key, node in sweep.value.items():
        if key != "grid":
            problems.add(node, f"sweep.{key}", unknown_key(key, "sweep", ["grid"]), at_key=True)
    grid = sweep.get("grid")
    if grid is not None and not grid.is_mapping:
        problems.report(root, "sweep.grid", f"found {type_name(grid.value)}, a mapping is needed")
    axes = grid.value.items() if grid is not None and grid.is_mapping else ()
    return [axis for key, node in axes if (axis := _axis(key, node, problems)) is not None]


def _axis(key: str, node: Node, problems: Problems) -> Axis | None:
    shown = f"sweep.grid.{key}"
    if not isinstance(node.value, list) or not node.value:
        found = "an empty list" if node.value == [] else type_name(node.value)
        problems.add(node, shown, f"found {found}, a list of values is needed")
    elif key.count(".") >= MAX_DEPTH:
        problems.add(node, "sweep.grid", f"a key of more than {MAX_DEPTH} steps", at_key=True)
    elif key.split(".", maxsplit=1)[0] in NOT_SWEPT:
        problems.add(node, shown, f"`{key}` cannot be swept", at_key=True)
    else:
        seen: set[str] = set()
        for value in node.value:
            text = repr(value.plain())
            if text in seen:
                problems.add(value, shown, f"`{value.plain()}` is listed twice")
            seen.add(text)
        return Axis(key, [replace(value, key_position=node.key_position) for value in node.value])
    return None


def overridden(
    root: Node, axes: list[Axis], overrides: Sequence[str], problems: Problems
) -> tuple[Node, list[Axis], list[Pending]]:
    """Apply ``-s``: to the tree what no axis can undo, to the axes what concerns them.

    The last of the three is what has to be set again in every point, after the axes.
    """
    pending: list[Pending] = []
    for path, value in filter(None, (_parsed_override(text, problems) for text in overrides)):
        if path[:2] == ("sweep", "grid") and len(path) > 2:
            axis = _axis(".".join(path[2:]), value, problems)
            if axis is not None:
                axes = list(({a.key: a for a in axes} | {axis.key: axis}).values())
        elif path[0] == "sweep":
            root = with_set(root, path, value, problems)
            axes = axes_of(root, problems)
        else:
            axes = [a for a in axes if not _is_pinned(a, path, value)]
            pending = [one for one in pending if one[0][: len(path)] != path]
            pending.append((path, value))
    for path, value in pending:  # so that what is checked once for all points sees them too
        root = with_set(root, path, value, problems)
    return root, axes, [one for one in pending if not any(_is_below(a.path, one[0]) for a in axes)]


def _is_below(path: tuple[str, ...], other: tuple[str, ...]) -> bool:
    return len(path) > len(other) and path[: len(other)] == other


def _is_pinned(axis: Axis, path: tuple[str, ...], value: Node) -> bool:
    """Return whether an override gives the swept key a value; below a mapping that it replaces, the axis remains."""
    return axis.path == path or (_is_below(axis.path, path) and node_at(value, axis.path[len(path) :])[1])


def _parsed_override(text: str, problems: Problems) -> Pending | None:
    key, equals, value_text = text.partition("=")
    key = key.strip()
    at = Position(f"-s {text if len(text) <= 60 else text[:57] + '...'}")
    if not equals or not re.fullmatch(r"[^.\s]+(\.[^.\s]+)*", key):
        problems.add(at, "", "an override is written key=value, like `-s workload.tp=8`")
    elif key.count(".") >= MAX_DEPTH:
        problems.add(at, "", f"a key of more than {MAX_DEPTH} steps")
    elif "\n" in value_text or not value_text.strip():
        problems.add(at, key, "has no value")
    else:
        try:
            node = load_yaml_text(f"v: {value_text}", at.file)
        except ConfigError as error:
            problems.take(replace(problem, line=0, column=0, key=key) for problem in error.problems)
            return None
        value = node.get("v")
        if value is not None and len(node.value) == 1:
            return tuple(key.split(".")), replace(moved_to(value, at), key_position=at)
        problems.add(at, key, "has more than one value")
    return None


def with_set(root: Node, path: tuple[str, ...], value: Node, problems: Problems) -> Node:
    """A copy of the tree with *value* at *path*, or the tree itself if a list or a plain value is in the way."""
    for n in range(1, len(path)):
        node, is_whole = node_at(root, path[:n])
        is_list, shown = isinstance(node.value, list), ".".join(path[:n])
        # Where a name is short for ``{preset: name}``.
        takes_preset = shown in HAVE_PRESETS or (n == 2 and path[0] == "machine" and OVERRIDE_KEY.fullmatch(path[1]))
        is_plain = not node.is_mapping and node.value is not None and not takes_preset
        if is_whole and (is_list or is_plain):
            found = "a list" if is_list else type_name(node.value)
            problems.add(value, ".".join(path), f"`{shown}` is {found}, it has no keys", at_key=not is_list)
            return root
    return with_value(root, path, value)


def moved_to(node: Node, at: Position) -> Node:
    """The same tree, all of it written at *at*."""
    value = node.value
    if isinstance(value, dict):
        value = {key: moved_to(child, at) for key, child in value.items()}
    elif isinstance(value, list):
        value = [moved_to(child, at) for child in value]
    return replace(node, value=value, position=at, key_position=at if node.key_position else None)
