"""From trees of nodes to frozen specs: presets, overrides, validation, checks across fields.

The tree is kept beside the spec, so that every value can still be shown with
its origin and place, and every error points at the line that caused it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ValidationError

from t3sim import units
from t3sim.config.experiment import TilingSpec
from t3sim.config.machine import MachineSpec
from t3sim.config.presets import DEFAULT_TILING, annotated, load_preset, without_description
from t3sim.config.yaml_loader import Node, Position, type_name
from t3sim.errors import ConfigError, Problem
from t3sim.registry import nearest, unknown_name

SpecT = TypeVar("SpecT", bound=BaseModel)
Path_ = tuple[str, ...]
Finding = tuple[str, str]  # dotted path below the section, message

PARTS = ("gpu", "memory", "link")
LARGEST_LINK_DENOMINATOR = 1 << 20
LONGEST_CLOCK_LCM_HZ = 10**12  # one tick of simulated time is at least a picosecond
# Widths of the kernel's tables.
MOST_ACCESSES_IN_A_ROW = 256
MOST_BANKS_OF_A_CHANNEL = 64
MOST_ACCESSES_IN_A_LINE = 4
# What comes back to a CU waits in a ring of 128 issue slots; further ahead it would be counted too early.
LONGEST_RETURN_SLOTS = 40
LONGEST_QUEUED_RETURN_SLOTS = 100
LONGEST_TRIP_SLOTS = 120


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
        message = _message(dict(item), model, location)
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


def _message(item: dict[str, Any], model: type[BaseModel], location: tuple[Any, ...]) -> str:
    kind = item["type"]
    context = item.get("ctx", {})
    found = _found(item.get("input"))
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return unknown_key(str(location[-1]), ".".join(map(str, location[:-1])), fields_at(model, location[:-1]))
    if kind == "value_error":
        return str(context["error"])
    if kind in ("int_type", "int_from_float", "int_parsing", "int_parsing_size"):
        return f"found {found}, a whole number is needed"
    if kind in ("float_type", "float_parsing", "finite_number"):
        return f"found {found}, a number is needed"
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


def unknown_key(key: str, parent: str, known: list[str]) -> str:
    """The message for a key that does not exist, with the nearest that does."""
    guess = nearest(key, known)
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
        if name not in PARTS or name not in merged:
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
            for path, leaf in over.leaves()
            if path and path != ("name",)
        )
        stem = Path(named[0]).stem if named[0].endswith((".yaml", ".yml")) else Path(base.position.file).stem
        tree = _overlay_machine(base, over)
        if "name" not in over.value:
            name = Node(stem + changes, named[1], named[1], "user", "name of the preset and its changes")
            tree = replace(tree, value={"name": name, **{k: v for k, v in tree.value.items() if k != "name"}})
    else:
        tree = over
    described = tree.get("description")
    tree = without_description(tree)
    problems: list[Problem] = []
    parts: dict[str, Node] = {}
    for name, child in tree.value.items():
        try:
            parts[name] = expand_part(name, child, f"{key}.{name}", folder) if name in PARTS else child
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    tree = replace(tree, value=parts)
    spec = validated(MachineSpec, tree, key)
    problems = placed(machine_findings(spec), tree, key)
    if problems:
        raise ConfigError(problems)
    return ResolvedMachine(spec, tree, str(described.value) if described is not None else "")


def _plain_text(leaf: Node) -> str:
    value = leaf.plain()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def resolve_tiling(node: Node | None, folder: Path | None = None, key: str = "tiling") -> tuple[TilingSpec, Node]:
    """The tiling that an experiment asks for: a preset's name, values on top of a preset, or the default."""
    if node is None:
        node = Node(DEFAULT_TILING, Position("default"))
    node = annotated(_as_mapping(node), (key,))
    if node.is_mapping and node.get("preset") is None:
        node = with_value(node, ("preset",), Node(DEFAULT_TILING, node.position))
    tree = expand_part("kernel", node, key, folder)
    return validated(TilingSpec, tree, key), tree


def placed(findings: list[Finding], tree: Node, prefix: str) -> list[Problem]:
    """Findings of a check across fields as problems at the place of their first key."""
    problems = []
    for path, message in findings:
        node, _ = node_at(tree, tuple(path.split(".")))
        at = node.position
        problems.append(Problem(at.file, at.line, at.column, f"{prefix}.{path}" if path else prefix, message))
    return problems


# --- checks across fields ------------------------------------------------------------------------


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def machine_findings(machine: MachineSpec) -> list[Finding]:
    """What is wrong with a machine although each value alone is legal."""
    findings = [*_size_findings(machine), *_gpu_findings(machine), *_memory_findings(machine)]
    clocks = _clock_findings(machine)
    return [*findings, *clocks, *([] if clocks else _link_findings(machine))]


def _size_findings(machine: MachineSpec) -> list[Finding]:
    """Parts so large that the state of one GPU would not fit a computer's memory."""
    gpu, memory = machine.gpu, machine.memory
    limits = (
        ("gpu.n_compute_units", gpu.n_compute_units, 4096),
        ("gpu.compute_unit.max_outstanding_lines", gpu.compute_unit.max_outstanding_lines, 1 << 14),
        ("gpu.collective_kernel.max_outstanding_lines", gpu.collective_kernel.max_outstanding_lines, 1 << 14),
        ("gpu.issue_slot", gpu.issue_slot, 1 << 10),
        ("gpu.l2.n_banks", gpu.l2.n_banks, 4096),
        ("gpu.l2.associativity", gpu.l2.associativity, 1 << 10),
        ("gpu.l2.capacity", gpu.l2.capacity, 1 << 31),
        ("gpu.l2.mshrs_per_bank", gpu.l2.mshrs_per_bank, 1 << 14),
        ("gpu.tracker.n_sets", gpu.tracker.n_sets, 1 << 16),
        ("gpu.tracker.entries_per_set", gpu.tracker.entries_per_set, 1 << 10),
        ("memory.n_channels", memory.n_channels, 1 << 10),
        ("memory.n_bank_groups", memory.n_bank_groups, 1 << 6),
        ("memory.banks_per_group", memory.banks_per_group, 1 << 6),
        ("memory.stream_queue_entries", memory.stream_queue_entries, 1 << 16),
    )
    return [(path, f"is {value}, must be at most {limit}") for path, value, limit in limits if value > limit]


def _link_findings(machine: MachineSpec) -> list[Finding]:
    """The time of one access on the link has to be a fraction with a small denominator."""
    ticks = math.lcm(machine.gpu.compute_clock, machine.memory.clock)
    bandwidth = machine.link.bandwidth
    if bandwidth // math.gcd(machine.memory.access * ticks, bandwidth) > LARGEST_LINK_DENOMINATOR:
        return [("link.bandwidth", f"is {units.format_bandwidth(bandwidth)}; round it to whole MB/s")]
    return []


def _power_of_two(findings: list[Finding], path: str, value: int, shown: str | None = None) -> None:
    if not _is_power_of_two(value):
        findings.append((path, f"is {shown or value}, must be a power of two"))


def _gpu_findings(machine: MachineSpec) -> list[Finding]:
    findings: list[Finding] = []
    check = partial(_power_of_two, findings)
    l2 = machine.gpu.l2
    check("gpu.l2.n_banks", l2.n_banks)
    check("gpu.l2.line", l2.line, units.format_bytes(l2.line))
    check("gpu.tracker.n_sets", machine.gpu.tracker.n_sets)
    way_bytes = l2.n_banks * l2.associativity * l2.line
    sets, rest = divmod(l2.capacity, way_bytes)
    what = (
        f"{units.format_bytes(l2.capacity)} in {l2.n_banks} banks (`n_banks`) of {l2.associativity} ways "
        f"(`associativity`) of {units.format_bytes(l2.line)} (`line`)"
    )
    if rest or not sets:
        findings.append(("gpu.l2.capacity", f"{what} is not a whole number of sets"))
    elif not _is_power_of_two(sets):
        findings.append(
            ("gpu.l2.capacity", f"{what} makes {sets} sets per bank, must be a power of two; change `associativity`")
        )
    if l2.n_banks % machine.memory.n_channels:
        findings.append(
            (
                "gpu.l2.n_banks",
                f"is {l2.n_banks}, must be a multiple of `memory.n_channels`, {machine.memory.n_channels}",
            )
        )
    if l2.hit_latency < 2 * machine.gpu.issue_slot:
        message = (
            f"is {l2.hit_latency} cycles, must be at least twice `gpu.issue_slot`, {machine.gpu.issue_slot} cycles"
        )
        findings.append(("gpu.l2.hit_latency", message))
    findings += _return_findings(machine)
    read_ahead = machine.gpu.dma.read_ahead
    if isinstance(read_ahead, int) and read_ahead < l2.line:
        findings.append(
            (
                "gpu.dma.read_ahead",
                (
                    f"is {units.format_bytes(read_ahead)}, must be at least one line "
                    f"(`gpu.l2.line`, {units.format_bytes(l2.line)}), or `chunk`"
                ),
            )
        )
    return findings


def _return_findings(machine: MachineSpec) -> list[Finding]:
    """What would come back to a compute unit further ahead than the kernel can note."""
    l2, slot = machine.gpu.l2, machine.gpu.issue_slot
    slots = f"issue slots (`gpu.issue_slot`, {slot} cycles)"
    if l2.hit_latency > 2 * LONGEST_RETURN_SLOTS * slot:
        return [
            (
                "gpu.l2.hit_latency",
                f"is {l2.hit_latency} cycles, half of it must be at most {LONGEST_RETURN_SLOTS} {slots}",
            )
        ]
    queue = Fraction(l2.bank_queue_entries * l2.line, l2.bank_bytes_per_cycle)
    waits = (
        f"is {l2.bank_queue_entries}, so a line may wait {math.ceil(queue)} cycles (`line`, "
        f"{units.format_bytes(l2.line)}, at `bank_bytes_per_cycle`, {l2.bank_bytes_per_cycle})"
    )
    latency = f"`hit_latency`, {l2.hit_latency} cycles"
    for what, trip, longest in (
        (f"half of {latency}", Fraction(l2.hit_latency, 2) + queue, LONGEST_QUEUED_RETURN_SLOTS),
        (latency, l2.hit_latency + queue, LONGEST_TRIP_SLOTS),
    ):
        if trip > longest * slot:
            return [("gpu.l2.bank_queue_entries", f"{waits}; with {what}, that must be at most {longest} {slots}")]
    return []


def _data_findings(machine: MachineSpec) -> list[Finding]:
    """DRAM data that would come back to a compute unit further ahead than the kernel can note."""
    timing, l2, slot = machine.memory.timing, machine.gpu.l2, machine.gpu.issue_slot
    name, latency = ("nCL", timing.nCL) if timing.nCL >= timing.nCWL else ("nCWL", timing.nCWL)
    data = Fraction((latency + timing.nBL) * machine.gpu.compute_clock, machine.memory.clock)
    if Fraction(l2.hit_latency, 2) + data <= LONGEST_TRIP_SLOTS * slot:
        return []
    message = (
        f"is {latency}, with `nBL`, {timing.nBL}, and half of `gpu.l2.hit_latency`, {l2.hit_latency} cycles, "
        f"that must be at most {LONGEST_TRIP_SLOTS} issue slots (`gpu.issue_slot`, {slot} cycles)"
    )
    return [(f"memory.timing.{name}", message)]


def _count_findings(machine: MachineSpec) -> list[Finding]:
    """Counts of one thing inside another that the kernel has no room for."""
    memory = machine.memory
    findings: list[Finding] = []
    for key, size, most in (
        ("memory.row", memory.row, MOST_ACCESSES_IN_A_ROW),
        ("gpu.l2.line", machine.gpu.l2.line, MOST_ACCESSES_IN_A_LINE),
    ):
        if size > most * memory.access:
            message = (
                f"is {units.format_bytes(size)}, must be at most {most} accesses of `memory.access`, "
                f"{units.format_bytes(memory.access)}"
            )
            findings.append((key, message))
    n_banks = memory.n_bank_groups * memory.banks_per_group
    if n_banks > MOST_BANKS_OF_A_CHANNEL:
        message = (
            f"is {memory.banks_per_group}, in `memory.n_bank_groups`, {memory.n_bank_groups}, that makes {n_banks} "
            f"banks of a channel, must be at most {MOST_BANKS_OF_A_CHANNEL}"
        )
        findings.append(("memory.banks_per_group", message))
    return findings


def _memory_findings(machine: MachineSpec) -> list[Finding]:
    findings: list[Finding] = []
    memory, line = machine.memory, machine.gpu.l2.line
    check = partial(_power_of_two, findings)
    check("memory.n_channels", memory.n_channels)
    check("memory.n_bank_groups", memory.n_bank_groups)
    check("memory.banks_per_group", memory.banks_per_group)
    check("memory.row", memory.row, units.format_bytes(memory.row))
    check("memory.channel_interleave", memory.channel_interleave, units.format_bytes(memory.channel_interleave))
    for small_key, small, large_key, large in (
        ("memory.access", memory.access, "gpu.l2.line", line),
        ("gpu.l2.line", line, "memory.channel_interleave", memory.channel_interleave),
        ("memory.channel_interleave", memory.channel_interleave, "memory.row", memory.row),
    ):
        if small > large:
            findings.append(
                (
                    small_key,
                    f"is {units.format_bytes(small)}, cannot be larger than `{large_key}`, {units.format_bytes(large)}",
                )
            )
    findings += _count_findings(machine)
    findings += _timing_findings(machine)
    findings += _data_findings(machine)
    needed = 2 * line // memory.access
    if memory.stream_queue_entries < needed:
        message = f"is {memory.stream_queue_entries}, must be at least {needed}: a line read and one written back"
        findings.append(("memory.stream_queue_entries", message))
    queue = memory.queue
    low, high = queue.write_low_watermark, queue.write_high_watermark
    if queue.kind == "split":
        if not low < high:
            findings.append(
                ("memory.queue.write_low_watermark", f"is {low}, must be below `write_high_watermark`, {high}")
            )
        if high > queue.entries:
            findings.append(
                ("memory.queue.write_high_watermark", f"is {high}, cannot be above `entries`, {queue.entries}")
            )
    return findings


def _timing_findings(machine: MachineSpec) -> list[Finding]:
    findings: list[Finding] = []
    timing = machine.memory.timing
    at_least = (  # the first may not be shorter than the second
        ("nRAS", "nRCDRD"),
        ("nCCDS", "nBL"),
        ("nCCDL", "nCCDS"),
        ("nCCDWS", "nCCDS"),
        ("nCCDWL", "nCCDL"),
        ("nCCDWL", "nCCDWS"),
        ("nRRDL", "nRRDS"),
        ("nFAW", "nRRDS"),
        ("nWTRL", "nWTRS"),
    )
    for longer, shorter in at_least:
        if getattr(timing, longer) < getattr(timing, shorter):
            findings.append(
                (
                    f"memory.timing.{longer}",
                    f"is {getattr(timing, longer)}, cannot be below `{shorter}`, {getattr(timing, shorter)}",
                )
            )
    if timing.nRC < timing.nRAS + timing.nRP:
        findings.append(
            ("memory.timing.nRC", f"is {timing.nRC}, cannot be below `nRAS` + `nRP`, {timing.nRAS} + {timing.nRP}")
        )
    if timing.nRTW < timing.nCL + timing.nBL - timing.nCWL:
        message = (
            f"is {timing.nRTW}, cannot be below `nCL` + `nBL` - `nCWL`, {timing.nCL} + {timing.nBL} - {timing.nCWL}: "
            "a read and the write behind it would overlap on the data bus"
        )
        findings.append(("memory.timing.nRTW", message))
    if 0 < timing.nREFI <= timing.nRFC:
        findings.append(
            ("memory.timing.nREFI", f"is {timing.nREFI}, must be above `nRFC`, {timing.nRFC} (0 turns refresh off)")
        )
    longest = 1 << 20
    findings += [
        (f"memory.timing.{name}", f"is {value}, must be at most {longest} cycles")
        for name, value in timing
        if value > longest
    ]
    return findings


def _clock_findings(machine: MachineSpec) -> list[Finding]:
    findings: list[Finding] = []
    clocks: Mapping[str, int] = {"gpu.compute_clock": machine.gpu.compute_clock, "memory.clock": machine.memory.clock}
    for path, clock in clocks.items():
        if clock % 10**6:
            findings.append((path, f"is {units.format_frequency(clock)}, must be a whole number of MHz"))
    ticks = math.lcm(*clocks.values())
    if not findings and ticks > LONGEST_CLOCK_LCM_HZ:
        both = " and ".join(f"`{path}` ({units.format_frequency(clock)})" for path, clock in clocks.items())
        findings.append(
            ("gpu.compute_clock", f"{both} meet only in ticks of {units.format_frequency(ticks)}; at most 1 THz")
        )
    return findings


__all__ = [
    "Finding",
    "ResolvedMachine",
    "expand_part",
    "fields_at",
    "machine_findings",
    "node_at",
    "overlay",
    "placed",
    "resolve_machine",
    "resolve_tiling",
    "shown_value",
    "spec_problems",
    "unknown_key",
    "unknown_name",
    "validated",
    "with_value",
]
