"""What an overlap strategy is: a composition of simulated phases of one sublayer.

A strategy is a function of ``Phases``: it asks for the phases it is made of, each simulated on the
machine of the experiment (isolated phases are simulated once and shared), and says how long
the sublayer takes.  It contains the idea and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from t3sim.observe.timeline import Timeline
from t3sim.observe.waits import Wait
from t3sim.registry import Registry


@dataclass(frozen=True)
class GpuPhase:
    """What a phase was on one GPU of an explicit ring: ticks on the clock of the sublayer, what the GPU counted."""

    start: int  # launched
    end: int
    counters: dict[str, Any]
    sent: int = 0  # when its link had carried all that it sent: a kernel may end while the link's buffer is not empty


@dataclass(frozen=True)
class Phase:
    """One simulated kernel, or several that run together: how long it took and what it counted.

    ``ticks`` is what it adds to the time of the sublayer: from the last end of what came before to its own last end.
    Explicit mode: ``counters`` are those of the GPU that ends last (the first of several).
    """

    name: str
    ticks: int
    counters: dict[str, Any]
    timeline: Timeline
    gpus: tuple[GpuPhase, ...] = ()  # explicit mode: one for each GPU
    number: int = 0  # explicit mode: kernels before it on the same GPU
    waits: tuple[Wait, ...] = ()  # of every simulated GPU
    end: int = 0  # mirrored mode, as in ``GpuPhase``
    sent: int = 0  # mirrored mode, as in ``GpuPhase``


After = Sequence[Phase | None]


class Phases(Protocol):
    """The phases a strategy can ask for.

    A phase starts on each GPU when the phases that it comes *after* have ended there, or with the sublayer.  That
    matters only where GPUs are unlike (explicit mode): a strategy that does not say it gets phases that start together.
    """

    @property
    def n_compute_units(self) -> int:
        """Compute units of a GPU."""

    @property
    def collective_compute_units(self) -> int | None:
        """Compute units that the experiment gives to the collective (``collective_compute_units``), if it says so."""

    def gemm(self, *, n_compute_units: int | None = None, after: After = ()) -> Phase:
        """Return the GEMM alone, output through the L2, on so many compute units (default: all)."""

    def reduce_scatter(
        self, *, has_near_memory: bool = False, n_compute_units: int | None = None, after: After = ()
    ) -> Phase | None:
        """Return the ring reduce-scatter of the GEMM's output alone, on so many compute units; None on one GPU."""

    def all_gather(self, *, n_compute_units: int | None = None, after: After = ()) -> Phase | None:
        """Return the ring all-gather of the reduced output alone, on so many compute units; None on one GPU."""

    def fused(self, program: Callable[..., None], default_policy: str, *, after: After = ()) -> Phase:
        """Return the GEMM with its output mapped by *program* (see ``t3.ring_reduce_scatter``)."""


@dataclass(frozen=True)
class SublayerTimes:
    """How long the sublayer takes, and the phases that say why."""

    ticks: int
    gemm: Phase
    reduce_scatter: Phase | None = None
    all_gather: Phase | None = None
    fused: Phase | None = None


Strategy = Callable[[Phases], SublayerTimes]
overlap_strategies: Registry[Strategy] = Registry("overlap strategy")


def duration(phase: Phase | None) -> int:
    """Return the ticks of a phase, 0 if the machine is one GPU and there is none."""
    return 0 if phase is None else phase.ticks
