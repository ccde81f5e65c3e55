"""The spec of a machine: identical GPUs and links, or with per-GPU overrides."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pydantic import Field

from t3sim.config import limits
from t3sim.config.gpu import GpuSpec
from t3sim.config.link import LinkSpec
from t3sim.config.memory import MemorySpec
from t3sim.config.operating_points import OperatingPoint
from t3sim.config.spec import CountOrZero, Picoseconds, Spec


class GpuOverride(Spec):
    """A GPU that differs from the others of its ring; what it has in common with them is repeated."""

    number: CountOrZero
    gpu: GpuSpec
    memory: MemorySpec


class LinkOverride(Spec):
    """A link that differs from the others: ``link[number]`` leads from ``gpu[number]`` to ``gpu[number - 1]``."""

    number: CountOrZero
    link: LinkSpec


class StartSkew(Spec):
    """Delay of the first kernel of a GPU after that of the others."""

    number: CountOrZero
    delay: Picoseconds


class UniformMachineSpec(Spec):
    """A ring of identical GPUs."""

    name: str = Field(description="Name of the machine in the results. If omitted, the name of the preset or file.")
    gpu: GpuSpec = Field(description="The GPU: a preset, or its values.")
    memory: MemorySpec = Field(description="The memory: a preset, or its values.")
    link: LinkSpec = Field(description="The link: a preset, or its values.")


class MachineSpec(UniformMachineSpec):
    """A ring of GPUs, identical but for per-GPU overrides.

    A heterogeneous ring (GPUs and links that differ, skew) needs every GPU simulated (explicit mode).
    """

    own_gpus: tuple[GpuOverride, ...] = ()
    own_links: tuple[LinkOverride, ...] = ()
    start_skew: tuple[StartSkew, ...] = ()

    @property
    def n_engines(self) -> int:
        """Return the number of copy engines of a GPU and of its network interface, one for each queue pair."""
        return self.gpu.n_copy_engines + (0 if self.link.nic is None else self.link.nic.queue_pairs)

    @property
    def is_uniform(self) -> bool:
        """Whether all GPUs and links are identical and start together, so that one represents all."""
        return not (self.own_gpus or self.own_links or self.start_skew)

    def of_gpu(self, number: int) -> MachineSpec:
        """Return a ring of GPUs identical to ``gpu[number]``, with links identical to the one that it sends over."""
        own = {one.number: one for one in self.own_gpus}.get(number, self)
        sends = {one.number: one for one in self.own_links}.get(number, self)
        return MachineSpec(name=self.name, gpu=own.gpu, memory=own.memory, link=sends.link)

    def clocks(self) -> set[int]:
        """Return all clocks of the ring, in hertz, but for those that the compute clocks fall to."""
        parts: list[MachineSpec | GpuOverride] = [self, *self.own_gpus]
        return {clock for part in parts for clock in (part.gpu.compute_clock, part.memory.clock)}

    @property
    def has_operating_points(self) -> bool:
        """Whether the clock of a GPU depends on its operating point."""
        parts: list[MachineSpec | GpuOverride] = [self, *self.own_gpus]
        return any(part.gpu.operating_points is not None for part in parts)

    def at_operating_point(self, name: OperatingPoint) -> MachineSpec:
        """Return the same ring, all its GPUs held at the operating point *name*."""
        if not self.has_operating_points:
            return self
        own = tuple(one.model_copy(update={"gpu": one.gpu.at_operating_point(name)}) for one in self.own_gpus)
        return self.model_copy(update={"gpu": self.gpu.at_operating_point(name), "own_gpus": own})

    @property
    def clock_falls(self) -> bool:
        """Whether a GPU's compute clock falls while it multiplies."""
        parts: list[MachineSpec | GpuOverride] = [self, *self.own_gpus]
        return any(part.gpu.clock_of_matrices != part.gpu.compute_clock for part in parts)

    @property
    def ticks_hz(self) -> int:
        """Ticks a second of simulated time: a cycle of each clock has a whole number of them.

        The fewest; if the clock falls as many as may be: where it falls to is met to half a tick of a cycle.
        """
        hz = math.lcm(*self.clocks())
        return hz * max(limits.FINEST_TICKS_HZ // hz, 1) if self.clock_falls else hz

    def at_matrix_share(
        self, share: float, of_own: Mapping[int, float] | None = None, ticks_hz: int | None = None
    ) -> MachineSpec:
        """Return the same ring, all its GPUs while this *share* of the matrix peak is used.

        *of_own* has the shares of GPUs of their own, by number; *ticks_hz* is the time of a larger ring.
        """
        if not self.clock_falls:
            return self
        hz, shares = ticks_hz or self.ticks_hz, of_own or {}

        def clocked(one: GpuOverride) -> GpuOverride:
            return one.model_copy(update={"gpu": one.gpu.at_matrix_share(shares.get(one.number, share), hz)})

        own = tuple(map(clocked, self.own_gpus))
        return self.model_copy(update={"gpu": self.gpu.at_matrix_share(share, hz), "own_gpus": own})
