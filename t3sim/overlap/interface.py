"""What an overlap strategy is: a composition of simulated phases of one sublayer.

A strategy is a function of ``Phases``: it asks for the phases it is made of, each simulated on the
machine of the experiment (isolated phases are simulated once and shared), and says how long
the sublayer takes.  It contains the idea and nothing else.  What other parts of t3sim need to know of it
is declared beside it (``OverlapStrategy``): none of them knows a strategy by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from t3sim.errors import PluginError, home_of
from t3sim.observe.timeline import Timeline
from t3sim.observe.waits import Wait
from t3sim.registry import Parameter, Registry, check_declaration, encoded


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
    # For phases that depend on this one: keys of the simulations that it is made of; in explicit mode how it starts.
    jobs: tuple[tuple[Any, ...], ...] = field(default=(), compare=False, repr=False)
    start: Any = field(default=None, compare=False, repr=False)


After = Sequence[Phase | None]


@dataclass(frozen=True)
class LeastTimes:
    """What no design of a GEMM and its ring reduce-scatter is faster than, in ticks from the start of the sublayer."""

    compute: int  # compute units launch, multiply and store without a pause
    link: int  # the chunks that leave a GPU, and the latency of the last byte
    memory: int  # operands once, and the traffic of a reduce-scatter near the memory


class Phases(Protocol):
    """The phases a strategy can ask for.

    A phase starts on each GPU when the phases that it comes *after* have ended there; without *after* it starts with
    the sublayer.  That matters only in heterogeneous rings (explicit mode).
    """

    @property
    def n_compute_units(self) -> int:
        """Compute units of a GPU."""

    @property
    def params(self) -> Mapping[str, int]:
        """Values of the parameters that the strategy declares."""

    def gemm(self, *, n_compute_units: int | None = None, after: After = ()) -> Phase:
        """Return the GEMM alone, output through the L2, on so many compute units (default: all)."""

    def reduce_scatter(
        self, *, has_near_memory: bool = False, n_compute_units: int | None = None, after: After = ()
    ) -> Phase | None:
        """Return the ring reduce-scatter of the GEMM's output alone, on so many compute units; None on one GPU."""

    def all_gather(self, *, n_compute_units: int | None = None, after: After = ()) -> Phase | None:
        """Return the ring all-gather of the reduced output alone, on so many compute units; None on one GPU."""

    def fused(self, mapping: Callable[..., None], *, after: After = ()) -> Phase:
        """Return the GEMM with its output mapped by *mapping* (see ``t3.ring_reduce_scatter``).

        The memory controllers arbitrate by the policy of the experiment, else by the one that the strategy declares.
        """

    def least(self) -> LeastTimes:
        """Return what no design is faster than; nothing is simulated for it."""


@dataclass(frozen=True)
class SublayerTimes:
    """How long the sublayer takes, and the phases that say why."""

    ticks: int
    gemm: Phase
    reduce_scatter: Phase | None = None
    all_gather: Phase | None = None
    fused: Phase | None = None
    gathers_last: bool = True  # whether the all-gather starts when everything else has ended

    @property
    def operator(self) -> int | None:
        """Ticks of GEMM and reduce-scatter, None if the all-gather runs beside them."""
        return self.ticks - duration(self.all_gather) if self.gathers_last else None


Times = Callable[[Phases], SublayerTimes]
F = TypeVar("F", bound=Times)
Kind = Literal["baseline", "design", "bound", "estimate"]


@dataclass(frozen=True)
class OverlapStrategy:
    """A strategy and what it declares."""

    name: str
    times: Times
    # baseline: speedups are over it; bound: no design is faster; estimate: of parts alone, and a design may be faster.
    kind: Kind = "design"
    parameters: Mapping[str, Parameter] = field(default_factory=dict)  # `collective_compute_units` has a result column
    arbitration: str | None = None  # policy of its fused phase; None: it has no fused phase, or the policy is no matter
    has_fixed_policy: bool = False  # an experiment may set the parameters of the policy, not replace it
    refused_policies: tuple[str, ...] = ()  # that an experiment cannot put in place of `arbitration`
    has_near_memory: bool = False  # whether its reduce-scatter adds incoming data near the memory
    runs_collectives: bool = False  # whether a workload that is one collective may name it
    refines: str | None = None  # the strategy that this one improves: a report says what it gains
    order: int | None = None  # of its bars, and which colour; None: after those that have a number

    def __post_init__(self) -> None:
        check_declaration(self.times, "phases", self.parameters)

    def __call__(self, phases: Phases) -> SublayerTimes:
        """Return the times of a sublayer; raises ``PluginError`` if they are something else."""
        times: object = self.times(phases)
        if not isinstance(times, SublayerTimes):
            found = type(times).__name__
            raise PluginError(*home_of(self.times), f"strategy `{self.name}` returned {found}, not SublayerTimes")
        return times

    def takes(self, policy: str) -> bool:
        """Return whether an experiment may run its fused phase with *policy*."""
        if self.has_fixed_policy:
            return policy == self.arbitration
        return self.arbitration is not None and policy not in self.refused_policies

    def encode(self, params: Mapping[str, Any]) -> dict[str, int]:
        """Return the values of its parameters for *params*; ValueError names one that is illegal or missing."""
        return encoded(self.parameters, params)

    @property
    def label(self) -> dict[str, Any]:
        """What readers of results need to know of it, for a file."""
        names = ("kind", "order", "has_near_memory", "refines")
        return {name: getattr(self, name) for name in names}


overlap_strategies: Registry[OverlapStrategy] = Registry("overlap strategy", OverlapStrategy)


def strategy(name: str, **declared: Any) -> Callable[[F], F]:
    """Decorator: register a function as the overlap strategy *name*; *declared* as in ``OverlapStrategy``."""

    def register(times: F) -> F:
        overlap_strategies.register(name)(OverlapStrategy(name, times, **declared))
        return times

    return register


def in_order() -> list[OverlapStrategy]:
    """Return all strategies in the order that they declare."""
    entries = [overlap_strategies.get(name) for name in overlap_strategies]
    return sorted(entries, key=lambda entry: (entry.order is None, entry.order))


def baselines() -> set[str]:
    """Return the names of the strategies that speedups are over."""
    return {entry.name for entry in in_order() if entry.kind == "baseline"}


def duration(phase: Phase | None) -> int:
    """Return the ticks of a phase, 0 if the machine is one GPU and there is none."""
    return 0 if phase is None else phase.ticks
