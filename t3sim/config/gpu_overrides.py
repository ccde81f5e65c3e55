"""Per-GPU overrides: values of single GPUs and links of a ring, and when each GPU starts.

``gpu[3]:`` and ``memory[3]:`` hold what differs in one GPU, ``link[2]:`` what differs in the link over which ``gpu[2]``
sends, each with values on top of the machine's, or with another preset.  ``start_skew:`` says how much later a GPU
comes to its first kernel.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from t3sim.config.gpu import GpuSpec  # fmt: skip
from t3sim.config.limits import FINEST_TICKS_HZ
from t3sim.config.link import LinkSpec  # fmt: skip
from t3sim.config.machine import GpuOverride, LinkOverride, MachineSpec, StartSkew  # fmt: skip
from t3sim.config.machine_checks import machine_findings
from t3sim.config.memory import MemorySpec  # fmt: skip
from t3sim.config.presets import SKEW, expand_part
from t3sim.config.trees import Problems, node_at, overlay, validated, value_at
from t3sim.config.yaml_loader import Node, type_name
from t3sim.errors import ConfigError
from t3sim.units import format_frequency

OVERRIDE_KEY = re.compile(r"(gpu|memory|link)\[(0|[1-9][0-9]{0,5})\]")
MODELS: dict[str, type[GpuSpec | MemorySpec | LinkSpec]] = {"gpu": GpuSpec, "memory": MemorySpec, "link": LinkSpec}
MOST_NAMES = 3  # of values, in a message
MHZ = 10**6
# What GPUs of one ring must have in common: messages are accesses, collectives go by lines, and the tracker's size
# decides how far a neighbour may run ahead.
SHARED = ("memory.access", "gpu.l2.line", "gpu.tracker.n_sets", "gpu.tracker.entries_per_set")


def is_override(name: str) -> bool:
    """Return whether a key of a machine says something about single GPUs, links or starts."""
    return name == SKEW or OVERRIDE_KEY.fullmatch(name) is not None


@dataclass(frozen=True)
class Override:
    """One key such as ``gpu[3]``: which part of which GPU, as written, and as it comes out."""

    name: str
    kind: str
    number: int
    node: Node  # presets expanded, without the values it has in common with the machine
    spec: GpuSpec | MemorySpec | LinkSpec


class GpuOverrides:
    """Reads the per-GPU overrides of a machine, and collects what is wrong with them."""

    def __init__(self, tree: Node, overrides: dict[str, Node], key: str, folder: Path | None) -> None:
        """*tree* is the machine without *overrides*, its presets expanded; *key* is the machine's."""
        self._tree, self._overrides, self._key, self._folder = tree, overrides, key, folder
        self._problems = Problems()

    def applied_to(self, machine: MachineSpec) -> tuple[MachineSpec, Node]:
        """Return *machine* with its overrides, and the tree with them; all problems at once as a ConfigError."""
        tried = self._problems.caught
        keys = [(name, match) for name in self._overrides if (match := OVERRIDE_KEY.fullmatch(name)) is not None]
        parts = [part for name, match in keys if (part := tried(self._part, name, match[1], int(match[2]))) is not None]
        late = (tried(self._skew, *one) for one in (tried(self._late_gpus) or {}).items())
        skews = tuple(skew for skew in late if skew is not None and skew.delay)
        self._problems.raise_any()
        gpus, links = applied(machine, parts)
        spec = machine.model_copy(update={"own_gpus": gpus, "own_links": links, "start_skew": skews})
        self._check(spec, parts)
        self._problems.raise_any()
        written = {part.name: part.node for part in parts}
        return spec, replace(self._tree, value={**self._tree.value, **self._overrides, **written})

    def _wrong(self, node: Node, name: str, message: str, at_key: bool = False) -> ConfigError:
        return ConfigError(node.problem(f"{self._key}.{name}", message, at_key))

    # --- reading ---------------------------------------------------------------------------------

    def _part(self, name: str, kind: str, number: int) -> Override:
        node, shown = self._overrides[name], f"{self._key}.{name}"
        if kind == "link":  # one that carries nothing lets nothing get round the ring
            bandwidth, no_way = (
                node.get("bandwidth"),
                f"the ring is broken: the link over which gpu[{number}] sends",
            )
            if node.value == "down":
                raise self._wrong(node, name, f"{no_way} is down")
            if bandwidth is not None and re.fullmatch(r"0+(\.0*)? *[A-Za-z/]*", str(bandwidth.value)):
                raise self._wrong(bandwidth, f"{name}.bandwidth", f"{no_way} has no bandwidth")
        written = expand_part(kind, node, shown, self._folder)
        if not written.is_mapping:
            raise self._wrong(node, name, f"found {type_name(node.value)}, a mapping of values is needed")
        is_whole = isinstance(node.value, str) or node.get("preset") is not None
        whole = written if is_whole else overlay(self._tree.value[kind], written)
        return Override(name, kind, number, written, validated(MODELS[kind], whole, shown))

    def _late_gpus(self) -> dict[str, Node]:
        node = self._overrides.get(SKEW)
        if node is not None and not node.is_mapping:
            message = f'found {type_name(node.value)}, a mapping is needed, like {{"gpu[3]": 5 us}}'
            raise self._wrong(node, SKEW, message)
        return {} if node is None else node.value

    def _skew(self, name: str, delay: Node) -> StartSkew:
        match = OVERRIDE_KEY.fullmatch(name)
        if match is None or match[1] != "gpu":
            message = f"unknown GPU `{name}`; a GPU is called like `gpu[3]`"
            raise self._wrong(delay, f"{SKEW}.{name}", message, at_key=True)
        whole = Node({"number": Node(int(match[2]), delay.position), "delay": delay}, delay.position)
        try:
            return validated(StartSkew, whole, f"{self._key}.{SKEW}.{name}")
        except ConfigError as error:
            raise ConfigError(replace(p, key=p.key.removesuffix(".delay")) for p in error.problems) from None

    # --- checking --------------------------------------------------------------------------------

    def _check(self, spec: MachineSpec, parts: list[Override]) -> None:
        """Note what does not fit together inside one GPU with overrides, and between it and the others."""
        for number in sorted({part.number for part in parts}):
            of_gpu = [part for part in parts if part.number == number]
            alone = spec.of_gpu(number)
            for path in SHARED:
                if value_at(alone, path) != value_at(spec, path):
                    message = f"is {value_at(alone, path)}, all GPUs must have the same, {value_at(spec, path)}"
                    self._place(of_gpu, path, message)
            if not has_fine_ticks(alone):
                for path, message in machine_findings(alone):
                    self._place(of_gpu, path, message)
        with_clock = [part for part in parts if part.kind != "link"]
        if has_fine_ticks(spec) and with_clock and not self._problems:
            clocks = ", ".join(format_frequency(clock) for clock in sorted(spec.clocks()))
            path = "gpu.compute_clock" if with_clock[0].kind == "gpu" else "memory.clock"
            ticks = format_frequency(math.lcm(*spec.clocks()))
            advice = "at most 1 THz: choose clocks with a larger common divisor"
            self._place(with_clock, path, f"the clocks of the ring ({clocks}) meet only in ticks of {ticks}; {advice}")

    def _place(self, parts: list[Override], path: str, message: str) -> None:
        """Note a finding at the value of *parts* that it is about, or else at the first of them."""
        kind, *rest = path.split(".")
        for part in parts:
            node, is_whole = node_at(part.node, tuple(rest))
            if part.kind == kind and is_whole:
                self._problems.add(node, f"{self._key}.{part.name}.{'.'.join(rest)}", message)
                return
        message = f"on gpu[{parts[0].number}], `{path}` {message}"
        self._problems.add(parts[0].node, f"{self._key}.{parts[0].name}", message)


def has_fine_ticks(machine: MachineSpec) -> bool:
    """Return whether clocks of whole MHz meet only in ticks that are too fine to count time in."""
    clocks = machine.clocks()
    return all(clock % MHZ == 0 for clock in clocks) and math.lcm(*clocks) > FINEST_TICKS_HZ


def applied(machine: MachineSpec, parts: list[Override]) -> tuple[tuple[GpuOverride, ...], tuple[LinkOverride, ...]]:
    """Return the GPUs and the links that come out different from the machine's."""
    common = {"gpu": machine.gpu, "memory": machine.memory, "link": machine.link}
    gpus, links = [], []
    for number in sorted({part.number for part in parts}):
        own: dict[str, Any] = common | {part.kind: part.spec for part in parts if part.number == number}
        if (own["gpu"], own["memory"]) != (machine.gpu, machine.memory):
            gpus.append(GpuOverride(number=number, gpu=own["gpu"], memory=own["memory"]))
        if own["link"] != machine.link:
            links.append(LinkOverride(number=number, link=own["link"]))
    return tuple(gpus), tuple(links)


def differing(one: BaseModel, other: BaseModel, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of the values in which two specs of a kind differ."""
    for name, value in one:
        against = getattr(other, name)
        if isinstance(value, BaseModel) and isinstance(against, BaseModel):
            yield from differing(value, against, f"{prefix}{name}.")
        elif value != against:
            yield prefix + name


def differences(machine: MachineSpec) -> Iterator[tuple[str, str]]:
    """Yield what makes a ring heterogeneous, so that one GPU cannot represent all: key below the machine, and words."""
    changed = [
        *((f"gpu[{own.number}]", own.gpu, machine.gpu) for own in machine.own_gpus),
        *((f"memory[{own.number}]", own.memory, machine.memory) for own in machine.own_gpus),
        *((f"link[{own.number}]", own.link, machine.link) for own in machine.own_links),
    ]
    for key, own, common in changed:
        names = list(differing(own, common))
        if names:
            more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            yield key, f"{key} differs in {', '.join(f'`{name}`' for name in names[:MOST_NAMES])}{more}"
    for skew in machine.start_skew:
        yield f"{SKEW}.gpu[{skew.number}]", f"gpu[{skew.number}] starts later than others"


def located(machine: MachineSpec, path: list[str]) -> tuple[type[BaseModel], tuple[str, ...], Any] | None:
    """Return spec, place in it and value of what *path* below *machine* names; None if it came to nothing."""
    match = OVERRIDE_KEY.fullmatch(path[0])
    if match is not None:
        kind, alone = match[1], machine.of_gpu(int(match[2]))
        return MODELS[kind], tuple(path[1:]), value_at(alone, ".".join([kind, *path[1:]]))
    if path[0] == SKEW:
        delays = {f"gpu[{skew.number}]": skew.delay for skew in machine.start_skew}
        return StartSkew, ("delay",), delays.get(path[1], 0)
    return MachineSpec, tuple(path), value_at(machine, ".".join(path))
