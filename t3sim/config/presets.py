"""The shipped presets: one folder per kind, one file per preset, each number with its origin and source.

A file is found by the name of its stem (``cu80``).  Where a configuration names a preset it may also name a file of its
own, by a path that ends in ``.yaml``, relative to the file that names it.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from t3sim.config.experiment import KernelLibrarySpec, Kernels, TilingSpec
from t3sim.config.trees import found_words, overlay, validated, with_value
from t3sim.config.yaml_loader import Node, Position, load_yaml, type_name
from t3sim.errors import ConfigError, Problem, UsageError
from t3sim.registry import unknown_name
from t3sim.spelling import spelled_as

KINDS = ("gpu", "memory", "link", "machine", "model", "kernel", "operators")
ORIGINS = ("datasheet", "paper", "derived", "measured", "fitted", "assumed", "user")
DEFAULT_TILING = "gemm-256x128"
DEFAULT_OPERATORS = "bert-v100"
PARTS = ("gpu", "memory", "link")  # of a machine, each a preset of its own
SKEW = "start_skew"  # of its GPUs
MOST_PRESETS = 20  # machine files that name one another

_ANNOTATION_KEYS = {"value", "origin", "source"}
_PACKAGE = Path(__file__).resolve().parent.parent


def shipped(name: str) -> Path:
    """A folder that comes with t3sim, like ``traces``: inside the package when installed, next to it in a clone."""
    installed = _PACKAGE / f"_{name}"
    return installed if installed.is_dir() else _PACKAGE.parent / name


def configs_root() -> Path:
    """The folder of presets."""
    return shipped("configs")


def preset_names(kind: str) -> list[str]:
    """The shipped presets of one kind, sorted."""
    return list(_names_in(configs_root() / kind))


@lru_cache(maxsize=32)
def _names_in(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


def load_preset(
    kind: str, name: str, named_at: Position | None = None, key: str = "", folder: Path | None = None
) -> Node:
    """The annotated tree of one preset; an unknown name is a ConfigError at the place that names it.

    A file is relative to the file that names it, or to *folder* if that is no file (an override of the command line).
    """
    if not name.endswith((".yaml", ".yml")) and "/" not in name:
        names = preset_names(kind)
        spelled = spelled_as(name, names)
        if spelled not in names:
            raise _problem(named_at, key, unknown_name(kind, name, names))
        return _load_shipped(configs_root(), kind, spelled)
    path = folder_of(named_at, folder) / name
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists raises for a name that is too long
        raise _problem(named_at, key, no_such_file(kind, name, path))
    try:
        return annotated(load_yaml(path, str(path)))
    except ConfigError as error:
        if named_at is None or error.problems[0].line:
            raise
        raise _problem(named_at, key, f"`{name}` {error.problems[0].message}") from None  # the whole file


def no_such_file(kind: str, name: str, path: Path) -> str:
    """The message for a file that an experiment or an option names and that is not there."""
    if "://" in name:
        return f"`{name}` is a URL; nothing is downloaded: give the path of a local file"
    if kind == "model" and not name.endswith((".yaml", ".yml", ".json")):
        return f"no such file `{name}`; nothing is downloaded: give the path of the checkpoint's config.json"
    return f"no such file `{name}`, searched at {path}"


def folder_of(named_at: Position | None, folder: Path | None = None) -> Path:
    """The folder that names of files count from at a place; *folder* where the place is no file."""
    if named_at is None:
        return Path()
    return folder if folder is not None and not named_at.line else Path(named_at.file).parent


@lru_cache(maxsize=256)
def _load_shipped(root: Path, kind: str, name: str) -> Node:
    return annotated(load_yaml(root / kind / f"{name}.yaml", f"configs/{kind}/{name}.yaml"))


def _problem(position: Position | None, key: str, message: str) -> ConfigError:
    return ConfigError((position or Position("")).problem(key, message))


def annotated(node: Node, path: tuple[str, ...] = ()) -> Node:
    """Turn each ``{value, origin, source}`` into a leaf that carries its origin and source."""
    if not node.is_mapping:
        return node
    if "value" not in node.value:
        return replace(node, value={key: annotated(child, (*path, key)) for key, child in node.value.items()})
    problems = list(_wrong_annotations(node, path))
    if problems:
        raise ConfigError(problems)
    origin, source = node.get("origin"), node.get("source")
    value: Node = node.value["value"]
    says, where = "user" if origin is None else origin.value, "" if source is None else source.value
    return replace(value, key_position=node.key_position, origin=says, source=where)


def _wrong_annotations(node: Node, path: tuple[str, ...]) -> Iterator[Problem]:
    """What is wrong with the keys of an annotated value."""
    for key, child in node.value.items():
        name = ".".join((*path, key))
        if key not in _ANNOTATION_KEYS:
            message = unknown_name("key of an annotated value", key, tuple(sorted(_ANNOTATION_KEYS)))
            yield child.problem(name, message, at_key=True)
        elif key != "value" and not isinstance(child.value, str):
            yield child.problem(name, f"found {type_name(child.value)}, a text is needed")
        elif key == "origin" and child.value not in ORIGINS:
            yield child.problem(name, unknown_name("origin", child.value, ORIGINS))


def as_mapping(node: Node) -> Node:
    """A preset's name as the mapping ``{preset: name}``."""
    return replace(node, value={"preset": node}) if isinstance(node.value, str) else node


def preset_and_changes(
    kind: str, node: Node, key: str, folder: Path | None = None
) -> tuple[tuple[str, Node] | None, Node]:
    """The preset that the mapping *node* names and its tree, None if it names none, and the values given with it."""
    preset, changes = node.get("preset"), without(node, "preset")
    if preset is None:
        return None, changes
    if not isinstance(preset.value, str):
        raise ConfigError(preset.problem(f"{key}.preset", f"found {found_words(preset.plain())}, a name is needed"))
    return (preset.value, load_preset(kind, preset.value, preset.position, key, folder)), changes


def expand_part(kind: str, node: Node, key: str, folder: Path | None = None) -> Node:
    """The full tree of one part: its preset, with the values given next to ``preset:`` on top."""
    node = as_mapping(node)
    named, changes = preset_and_changes(kind, node, key, folder) if node.is_mapping else (None, node)
    if named is None:
        return changes
    return overlay(replace(without(named[1], "description"), key_position=node.key_position), changes)


def expand_machine(tree: Node, key: str = "machine", depth: int = 0) -> Node:
    """The tree of a machine file, its values on top of the machine that it names under ``preset:``, if it names one."""
    if not tree.is_mapping:
        raise ConfigError(Problem(tree.position.file, 1, 1, "", "a machine is a mapping of gpu, memory and link"))
    named, changes = preset_and_changes("machine", tree, key)
    if named is None:
        return tree
    if depth == MOST_PRESETS:
        raise ConfigError(tree.value["preset"].problem(f"{key}.preset", "these files name each other in a circle"))
    base = without(without(expand_machine(named[1], key, depth + 1), "name"), "description")
    return replace(tree, value=changed_machine(base, changes))


def changed_machine(base: Node, changes: Node) -> dict[str, Node]:
    """The sections of a machine with *changes* on top; another preset of a part replaces the part."""
    merged = dict(base.value)
    for name, child in changes.value.items():
        if name in merged and name.partition("[")[0] in (*PARTS, SKEW):
            child = as_mapping(child)
            child = child if child.get("preset") is not None else overlay(as_mapping(merged[name]), child)
        merged[name] = child
    return merged


def load_kernels(name: str) -> Kernels:
    """One kernel of ``configs/kernel``, or a library of them."""
    return kernels_of(spread(without(load_preset("kernel", name, None, "tiling"), "description")), "tiling")


def spread(tree: Node, key: str = "tiling") -> Node:
    """The library *tree* with what it says of ``every`` kernel written into each, unless that says otherwise itself."""
    every, kernels = tree.get("every"), tree.get("kernels")
    if every is None or kernels is None or not kernels.is_mapping:
        return tree
    one = overlay(without(load_preset("kernel", DEFAULT_TILING, None, key), "description"), as_mapping(every))
    validated(TilingSpec, one, f"{key}.every")  # once, and not in each kernel
    each = {name: overlay(every, one) for name, one in kernels.value.items()}
    return with_value(without(tree, "every"), ("kernels",), replace(kernels, value=each))


def kernels_of(tree: Node, key: str) -> Kernels:
    """The kernel that *tree* describes, or the library if it has ``kernels``."""
    is_library = tree.get("kernels") is not None
    return validated(KernelLibrarySpec, tree, key) if is_library else validated(TilingSpec, tree, key)


def load_tiling(name: str = DEFAULT_TILING) -> TilingSpec:
    """How a GEMM kernel cuts its work, from ``configs/kernel``; raises ``UsageError`` for a library of kernels."""
    found = load_kernels(name)
    if not isinstance(found, TilingSpec):
        raise UsageError(f"tiling {name} is a library of kernels; one kernel is needed here, like {DEFAULT_TILING}")
    return found


def without(node: Node, key: str) -> Node:
    """The node without *key*, if it is a mapping."""
    if not node.is_mapping:
        return node
    return replace(node, value={name: child for name, child in node.value.items() if name != key})
