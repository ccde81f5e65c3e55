"""The shipped presets: one folder per kind, one file per preset, each number with its origin and source.

A file is found by the name of its stem (``cu80``).  Where a configuration
names a preset it may also name a file of its own, by a path that ends in
``.yaml``, relative to the file that names it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from t3sim.config.experiment import Kernels, ModelSpec, TilingSpec
from t3sim.config.yaml_loader import Node, Position, load_yaml, type_name
from t3sim.errors import ConfigError, Problem, UsageError
from t3sim.registry import unknown_name

KINDS = ("gpu", "memory", "link", "machine", "model", "kernel")
ORIGINS = ("datasheet", "paper", "derived", "measured", "fitted", "assumed", "user")
DEFAULT_TILING = "gemm-256x128"
PARTS = ("gpu", "memory", "link")  # of a machine, each a preset of its own

_ANNOTATION_KEYS = {"value", "origin", "source"}
_PACKAGE = Path(__file__).resolve().parent.parent


def configs_root() -> Path:
    """The folder of presets: inside the package when installed, beside it in a clone."""
    installed = _PACKAGE / "_configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "configs"


def preset_names(kind: str) -> list[str]:
    """The shipped presets of one kind, sorted."""
    return list(_names_in(configs_root() / kind))


@lru_cache(maxsize=32)
def _names_in(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


def load_preset(kind: str, name: str, named_at: Position | None = None, key: str = "") -> Node:
    """The annotated tree of one preset; an unknown name is a ConfigError at the place that names it."""
    if _is_path(name):
        folder = Path(named_at.file).parent if named_at is not None else Path()
        path = folder / name
        shown = str(path)
        if not os.path.exists(path):  # noqa: PTH110 - Path.exists raises for a name that is too long
            raise _problem(named_at, key, f"no such file `{name}`, looked for at {shown}")
        try:
            return annotated(load_yaml(path, shown))
        except ConfigError as error:
            if named_at is None or error.problems[0].line:
                raise
            raise _problem(named_at, key, f"`{name}` {error.problems[0].message}") from None  # the whole file
    return _load_shipped(configs_root(), kind, _stem(kind, name, named_at, key))


def _stem(kind: str, name: str, named_at: Position | None, key: str) -> str:
    """The preset's name as its file spells it; upper and lower case do not matter."""
    names = preset_names(kind)
    for known in names:
        if known.lower() == name.lower():
            return known
    raise _problem(named_at, key, unknown_name(kind, name, names))


def _is_path(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) or "/" in name


@lru_cache(maxsize=256)
def _load_shipped(root: Path, kind: str, name: str) -> Node:
    return annotated(load_yaml(root / kind / f"{name}.yaml", f"configs/{kind}/{name}.yaml"))


def _problem(position: Position | None, key: str, message: str) -> ConfigError:
    at = position or Position("")
    return ConfigError(Problem(at.file, at.line, at.column, key, message))


def annotated(node: Node, path: tuple[str, ...] = ()) -> Node:
    """Turn each ``{value, origin, source}`` into a leaf that carries its origin and source."""
    if not isinstance(node.value, dict):
        return node
    if "value" not in node.value:
        return replace(node, value={key: annotated(child, (*path, key)) for key, child in node.value.items()})
    problems = [
        Problem(
            where.file,
            where.line,
            where.column,
            ".".join((*path, key)),
            unknown_name("key of an annotated value", key, tuple(sorted(_ANNOTATION_KEYS))),
        )
        for key, child in node.value.items()
        if key not in _ANNOTATION_KEYS and (where := child.key_position or child.position)
    ]
    texts: dict[str, str] = {}
    for key in ("origin", "source"):
        child = node.value.get(key)
        if child is None:
            continue
        at = child.position
        if not isinstance(child.value, str):
            message = f"found {type_name(child.value)}, a text is needed"
            problems.append(Problem(at.file, at.line, at.column, ".".join((*path, key)), message))
        elif key == "origin" and child.value not in ORIGINS:
            message = unknown_name("origin", child.value, ORIGINS)
            problems.append(Problem(at.file, at.line, at.column, ".".join((*path, key)), message))
        else:
            texts[key] = child.value
    if problems:
        raise ConfigError(problems)
    value: Node = node.value["value"]
    return replace(
        value,
        key_position=node.key_position,
        origin=texts.get("origin", "user"),
        source=texts.get("source", ""),
    )


def machine_parts(name: str) -> dict[str, str]:
    """Return the presets that the machine *name*, a preset or a file, is made of: ``gpu``, ``memory``, ``link``."""
    sections = without_description(load_preset("machine", name)).value
    return {
        key: str(node.value["preset"].value if isinstance(node.value, dict) else node.value)
        for key, node in sections.items()
        if key in PARTS
    }


def model_node(name: str, named_at: Position | None = None, key: str = "workload.model") -> Node:
    """The annotated tree of a transformer of ``configs/model``, by its name in any case, or of a file of the user."""
    node = without_description(load_preset("model", name, named_at, key))
    if isinstance(node.value, dict) and "name" not in node.value:
        called = Path(name).stem if _is_path(name) else _stem("model", name, named_at, key)
        node = replace(node, value={"name": Node(called, node.position), **node.value})
    return node


def load_model(name: str, named_at: Position | None = None, key: str = "workload.model") -> ModelSpec:
    """The transformer that ``model_node`` describes."""
    from t3sim.config.resolve import validated

    return validated(ModelSpec, model_node(name, named_at, key), "model")


def load_kernels(name: str) -> Kernels:
    """One kernel of ``configs/kernel``, or a library of them."""
    from t3sim.config.resolve import kernels_of

    return kernels_of(without_description(load_preset("kernel", name, None, "tiling")), "tiling")


def load_tiling(name: str = DEFAULT_TILING) -> TilingSpec:
    """How a GEMM kernel cuts its work, from ``configs/kernel``; raises ``UsageError`` for a library of kernels."""
    found = load_kernels(name)
    if not isinstance(found, TilingSpec):
        raise UsageError(f"tiling {name} is a library of kernels; one kernel is needed here, like {DEFAULT_TILING}")
    return found


def without_description(node: Node) -> Node:
    """The mapping without its ``description:``, which is for readers only."""
    if not isinstance(node.value, Mapping):
        return node
    return replace(node, value={key: child for key, child in node.value.items() if key != "description"})
