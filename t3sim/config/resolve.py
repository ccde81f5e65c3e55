"""Resolution of named machines and kernels, with presets and changes, to frozen specs."""

from collections.abc import Iterator
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
from t3sim.units import format_bandwidth, format_frequency, format_time


@dataclass(frozen=True)
class ResolvedMachine:
    """A machine, and for each of its values the node that says where it came from."""

    spec: MachineSpec
    tree: Node
    description: str = ""
    library: Node | None = None  # of GEMM kernels, that its file names under `kernels`
    notes: tuple[str, ...] = ()  # what follows from a change and was perhaps not meant

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
    named, changes = presets.preset_and_changes("machine", node, key, folder)
    tree = changes if named is None else _changed(*named, changes, node.value["preset"].position)
    is_changed = named is not None and any(path and path != ("name",) for path, _ in changes.leaves())
    described = changes.get("description") if is_changed else tree.get("description")
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
    origin = "" if named is None else named[0]
    if named is not None and not is_changed and (below := named[1].get("preset")) is not None:
        origin = str(below.value)  # of a file: the preset that it changes
    text = str(described.value) if described is not None else described_by_figures(spec, origin)
    notes = () if named is None else tuple(_notes(spec, (changes, named[1])))
    return ResolvedMachine(spec, tree, text, library, notes)


def described_by_figures(machine: MachineSpec, preset: str = "") -> str:
    """Return a description of a machine that has none, from its values; *preset* is what it was made from."""
    gpu, memory, link = machine.gpu, machine.memory, machine.link
    flops = gpu.n_compute_units * gpu.compute_unit.matrix_flops_per_cycle * gpu.compute_clock / 1e12
    figures = (
        f"{gpu.n_compute_units} compute units, {flops:.0f} TFLOP/s FP16 at {format_frequency(gpu.compute_clock)},"
        f" {memory.bandwidth / 1e12:.2f} TB/s of memory, links of {format_bandwidth(link.bandwidth)} in each direction"
    )
    if link.nic is not None and link.gpus_per_node is not None:
        nic = f"network interfaces of {format_bandwidth(link.nic.bandwidth)} and {format_time(link.nic.latency)}"
        figures += f", nodes of {link.gpus_per_node} GPUs, {nic}"
    return f"changed from {preset}: {figures}" if preset else figures


def _notes(machine: MachineSpec, changes: tuple[Node, ...]) -> Iterator[str]:
    """Yield what *changes* of a preset bring along."""
    for one in changes if changes[1].get("preset") is not None else changes[:1]:
        memory = one.get("memory")
        if memory is not None and memory.get("clock") is not None and memory.get("timing") is None:
            period_ns = 1e9 / machine.memory.clock
            row_ns = machine.memory.timing.nRCDRD * period_ns
            yield (
                f"{machine.name}: timings of the memory stay in cycles of its new clock, {period_ns:.3g} ns each:"
                f" nRCDRD is {row_ns:.3g} ns; change `memory.timing` as well to keep them in ns"
            )


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
