"""From what an experiment names to frozen specs: a machine with its presets and changes, kernels."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from t3sim.config import presets
from t3sim.config.experiment import Kernels, OperatorsSpec
from t3sim.config.gpu_overrides import GpuOverrides, is_override
from t3sim.config.machine import MachineSpec, UniformMachineSpec
from t3sim.config.machine_checks import machine_findings
from t3sim.config.trees import Problems, found_words, placed, validated, with_value
from t3sim.config.yaml_loader import Node, Position
from t3sim.errors import ConfigError


@dataclass(frozen=True)
class ResolvedMachine:
    """A machine, and for each of its values the node that says where it came from."""

    spec: MachineSpec
    tree: Node
    description: str = ""
    library: Node | None = (
        None  # that its file names under `kernels`: what runs its GEMMs unless `tiling` says otherwise
    )

    def leaves(self) -> dict[str, Node]:
        """Dotted path below the machine -> node."""
        return {".".join(path): node for path, node in self.tree.leaves()}


def resolve_machine(node: Node, folder: Path | None = None, key: str = "machine") -> ResolvedMachine:
    """The machine that an experiment's ``machine:`` describes; all problems at once as a ConfigError.

    *node* is the name of a preset, or a mapping with ``preset:`` and values that replace the preset's, or a whole
    machine.  A changed preset carries the changes in its name, so that results of different machines differ in their
    ``machine`` column.
    """
    node = presets.annotated(presets.as_mapping(node), (key,))
    if not node.is_mapping:
        raise ConfigError(node.problem(key, f"found {found_words(node.plain())}, the name of a machine is needed"))
    if (misplaced := node.get("kernels")) is not None:
        said = "belongs in a file of a machine, for `advise`, `validate` and `calibrate`; here `tiling` names kernels"
        raise ConfigError(misplaced.problem(f"{key}.kernels", said))
    named, tree = presets.preset_and_changes("machine", node, key, folder)
    if named is not None:
        tree = _changed(*named, tree, node.value["preset"].position)
    described = tree.get("description")
    values = presets.without(presets.without(tree, "description"), "kernels").value
    problems = Problems()
    library = tree.get("kernels")
    if library is not None:
        problems.caught(_check_library, library, f"{key}.kernels", folder)
    overrides = {name: child for name, child in values.items() if is_override(name)}
    parts = {name: child for name, child in values.items() if name not in overrides}
    for name in (name for name in presets.PARTS if name in parts):
        parts[name] = problems.caught(presets.expand_part, name, parts[name], f"{key}.{name}", folder) or parts[name]
    problems.raise_any()
    tree = replace(tree, value=parts)
    spec = MachineSpec(**dict(validated(UniformMachineSpec, tree, key)))
    problems.take(placed(machine_findings(spec), tree, key))
    problems.raise_any()
    if overrides:
        spec, tree = GpuOverrides(tree, overrides, key, folder).applied_to(spec)
    return ResolvedMachine(spec, tree, str(described.value) if described is not None else "", library)


def _check_library(named: Node, key: str, folder: Path | None) -> None:
    """Raise ``ConfigError`` unless *named* is the name of a kernel or of a library of them."""
    if not isinstance(named.value, str):
        raise ConfigError(named.problem(key, f"found {found_words(named.plain())}, the name of a library is needed"))
    presets.load_preset("kernel", named.value, named.position, key, folder)


def _changed(preset: str, base: Node, changes: Node, named_at: Position) -> Node:
    """The tree of a machine preset with *changes* of the user on top, and in its name."""
    base = presets.expand_machine(base)
    merged = presets.changed_machine(base, changes)
    if "name" not in changes.value:
        stem = Path(preset).stem if preset.endswith((".yaml", ".yml")) else Path(base.position.file).stem
        own = base.get("name")  # of a file of the user; shipped presets are called as their files are
        called = own.value if own is not None and isinstance(own.value, str) else stem
        words = "".join(
            f"+{'.'.join(path)}={_one_text(leaf.plain()).replace(' ', '')}"
            for path, leaf in sorted(changes.leaves(), key=lambda entry: entry[0])  # in whatever order they are written
            if path
        )
        merged["name"] = Node(called + words, named_at, named_at, "user", "name of the preset and its changes")
    return replace(base, value=merged)


def _one_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def resolve_tiling(
    node: Node | None, folder: Path | None = None, key: str = "tiling", machine: ResolvedMachine | None = None
) -> tuple[Kernels, Node]:
    """The kernel or library that runs GEMMs: a preset's name, values on top of a preset, or a library of one's own.

    Without any, the library that *machine* names, or the default kernel if it names none.
    """
    library = None if machine is None else machine.library
    if node is None and library is not None:
        node = Node(library.value, library.position)
    is_library = node is not None and node.is_mapping and node.get("kernels") is not None
    if library is not None and node is not None and node.is_mapping and not is_library and node.get("preset") is None:
        name = presets.DEFAULT_TILING
        said = f"has no `preset:` for these values; the machine's GEMMs take the kernels of {library.value}, not {name}"
        raise ConfigError(node.problem(key, f"{said}; give the preset of a kernel"))
    tree = _expanded("kernel", None if is_library else presets.DEFAULT_TILING, node, folder, key)
    tree = presets.spread(tree, key)
    return presets.kernels_of(tree, key), tree


def resolve_kernels(tiling: str | None, machine: ResolvedMachine, key: str = "--tiling") -> tuple[Kernels, str]:
    """The kernel or library called *tiling*, or in that file, or what runs on *machine* without; and its name."""
    node = None if tiling is None else Node(tiling, Position(key))
    named = tiling if machine.library is None or tiling is not None else str(machine.library.value)
    return resolve_tiling(node, None, key, machine)[0], named or presets.DEFAULT_TILING


def resolve_operators(node: Node | None, folder: Path | None, key: str) -> tuple[OperatorsSpec, Node]:
    """How fast the other kernels of a layer are: a preset's name, values on top of a preset, or the default."""
    tree = _expanded("operators", presets.DEFAULT_OPERATORS, node, folder, key)
    return validated(OperatorsSpec, tree, key), tree


def _expanded(kind: str, default: str | None, node: Node | None, folder: Path | None, key: str) -> Node:
    """The full tree of *node*, on top of the preset *default* unless it names another."""
    node = Node({}, Position("default")) if node is None else presets.annotated(presets.as_mapping(node), (key,))
    if default is not None and node.is_mapping and node.get("preset") is None:
        node = with_value(node, ("preset",), Node(default, node.position))
    return presets.expand_part(kind, node, key, folder)
