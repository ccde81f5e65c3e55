"""What an overlap strategy is: a function from an operator to a plan of programs.

It says what each GPU runs and how the times of the parts add up (``t3sim.program``); it contains the idea and nothing
else.  What other parts of t3sim need to know of it is declared with it (``OverlapStrategy``): none of them knows a
strategy by its name.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from t3sim.config.experiment import OperatorKind
from t3sim.errors import PluginError, UsageError, home_of
from t3sim.observe.timeline import Timeline
from t3sim.observe.waits import Wait
from t3sim.program.moe_operator import AnyOperator
from t3sim.program.operator import Operator
from t3sim.program.plan import Plan
from t3sim.registry import Parameter, Registry, check_declaration, encoded


@dataclass(frozen=True)
class Span:
    """An operation on one GPU: ticks from the begin of its part, bytes that it moved.

    What it sends is written where it arrives and counted here only, what it loads from others is read there and not
    counted; None: it cannot be distinguished from other operations.
    """

    gpu: int
    name: str
    kind: str
    stream: int
    start: int
    end: int
    waited: int | None  # of this, until its first workgroup had a unit to run on; None: a barrier takes none
    traffic_class: str
    read_bytes: int | None  # from the DRAM of the GPU
    written_bytes: int | None  # to it
    sent_bytes: int  # to other GPUs


@dataclass(frozen=True)
class GpuPhase:
    """What a phase was on one GPU of an explicit ring: ticks on the clock of the sublayer, what the GPU counted."""

    start: int  # launched
    end: int
    counters: dict[str, Any]
    sent: int = 0  # when its link had carried all that it sent: a kernel may end while the link's buffer is not empty


@dataclass(frozen=True)
class Phase:
    """A part as it was simulated: how long it took and what it counted.

    ``ticks`` is what it adds to the time of the sublayer: from the last end of what came before to its own last end.
    Explicit mode: ``counters`` are those of the GPU that ends last (the first of several).
    """

    name: str
    ticks: int
    counters: dict[str, Any]
    timeline: Timeline
    gpus: tuple[GpuPhase, ...] = ()  # explicit mode: one for each GPU
    waits: tuple[Wait, ...] = ()  # of every simulated GPU
    end: int = 0  # mirrored mode, as in ``GpuPhase``
    sent: int = 0  # mirrored mode, as in ``GpuPhase``
    spans: tuple[Span, ...] = ()  # of the operations of every simulated GPU
    role: str = ""  # of the part in its plan
    at: int = 0  # when it began on its first GPU, on the clock of the sublayer
    counts: bool = True  # in the time of the sublayer; False: it was simulated for reference
    # For phases that depend on this one: keys of the simulations that it is made of; in explicit mode how it starts.
    jobs: tuple[tuple[Any, ...], ...] = field(default=(), compare=False, repr=False)
    start: Any = field(default=None, compare=False, repr=False)

    @property
    def is_finished(self) -> bool:
        """Return whether it has been simulated; else it is one of a plan, and its times have no meaning."""
        return bool(self.counters)

    @property
    def identity(self) -> Hashable:
        """Return what points share that share this phase: what was simulated, and how it started."""
        return self.jobs, self.start


After = Sequence[Phase]
Params = Mapping[str, int]  # values of the parameters of a strategy, by name
Function = Callable[[Any, Params], Plan]  # of an operator of a kind that the strategy declares
F = TypeVar("F", bound=Function)
Kind = Literal["baseline", "design", "bound", "estimate"]
Availability = Literal["exists today", "needs hardware", "bound"]


@dataclass(frozen=True)
class OverlapStrategy:
    """A strategy and what it declares."""

    name: str
    plan: Function
    # baseline: speedups are over it; bound: no design is faster; estimate: of parts alone, and a design may be faster.
    kind: Kind = "design"
    parameters: Mapping[str, Parameter] = field(default_factory=dict)  # `communication_units` has a result column
    arbitration: str | None = None  # policy of its fused phase; None: it has no fused phase, or the policy is no matter
    has_fixed_policy: bool = False  # an experiment may set the parameters of the policy, not replace it
    refused_policies: tuple[str, ...] = ()  # that an experiment cannot put in place of `arbitration`
    has_near_memory: bool = False  # whether its reduce-scatter adds incoming data near the memory
    needs: str = ""  # hardware not available today; none: it can be run today
    runs_collectives: bool = False  # whether a workload that is one collective may name it
    splits_k: bool = False  # whether its GEMMs may be kernels that split k: it needs no tile before the kernel's end
    has_stages: bool = False  # whether the tiles of a GEMM are made in as many stages as there are GPUs, none empty
    shares_rows: bool = False  # whether ranks own equal shares of the rows, to which rows of zeros are added if need be
    operators: tuple[OperatorKind, ...] = ("gemm-rs", "gemm-ar")  # that a workload with a GEMM may ask of it
    one_node: str = ""  # why it needs all GPUs on one node, and what to take on several; none: it runs on several
    caution: str = ""  # what measurements of others say against it that is not explained; advice that names it says so
    refines: str | None = None  # the strategy that this one improves: a report says what it gains
    order: int | None = None  # of its bars, and which colour; None: after those that have a number

    def __post_init__(self) -> None:
        check_declaration(self.plan, "op, params", self.parameters)

    def __call__(self, op: AnyOperator, params: Mapping[str, Any]) -> Plan:
        """Return the plan of a sublayer; raises ``PluginError`` if it is something else.

        ``UsageError`` if the GPUs are on several nodes, and it needs them on one.
        """
        if self.one_node and op.ranks.n_nodes > 1:
            where = f"{op.n} GPUs are on {op.ranks.n_nodes} nodes"
            raise UsageError(
                f"machine.link.gpus_per_node: {where}, and {self.name} is for those of one: {self.one_node}"
            )
        if isinstance(op, Operator):
            op = op.with_equal_rows() if self.shares_rows else op
            op = op if self.splits_k else op.unsplit(self.name)
        plan: object = self.plan(op, self.encode(params))
        if not isinstance(plan, Plan):
            raise PluginError(*home_of(self.plan), f"strategy `{self.name}` returned {type(plan).__name__}, not Plan")
        return plan

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
        names = ("kind", "order", "has_near_memory", "refines", "availability")
        return {name: getattr(self, name) for name in names}

    @property
    def availability(self) -> Availability:
        """Whether it can be run: on GPUs of today, with other hardware, or nowhere."""
        if self.kind in ("bound", "estimate"):
            return "bound"
        return "needs hardware" if self.needs else "exists today"


overlap_strategies: Registry[OverlapStrategy] = Registry("overlap strategy", OverlapStrategy)


def strategy(name: str, **declared: Any) -> Callable[[F], F]:
    """Decorator: register a function as the overlap strategy *name*; *declared* as in ``OverlapStrategy``."""

    def register(plan: F) -> F:
        overlap_strategies.register(name)(OverlapStrategy(name, plan, **declared))
        return plan

    return register


def in_order() -> list[OverlapStrategy]:
    """Return all strategies in the order that they declare."""
    entries = [overlap_strategies.get(name) for name in overlap_strategies]
    return sorted(entries, key=lambda entry: (entry.order is None, entry.order))


def availability_of(names: Iterable[str]) -> str:
    """Say which of the strategies *names* need hardware not available today, and why: one line, empty if all can be."""
    entries = [overlap_strategies.get(name) for name in dict.fromkeys(names)]
    needing = [f"{entry.name} ({entry.needs})" for entry in entries if entry.availability == "needs hardware"]
    bounds = [entry.name for entry in entries if entry.availability == "bound"]
    parts = [f"needs hardware not available today: {', '.join(needing)}"] if needing else []
    return "; ".join([*parts, *([f"bounds, not designs: {', '.join(bounds)}"] if bounds else [])])


def baselines() -> set[str]:
    """Return the names of the strategies that speedups are over."""
    return {entry.name for entry in in_order() if entry.kind == "baseline"}


def bounds() -> set[str]:
    """Return the names of the strategies that are bounds on times, not designs."""
    return {entry.name for entry in in_order() if entry.availability == "bound"}


MEANINGS: dict[OperatorKind, str] = {
    "gemm-rs": "a GEMM, then the reduce-scatter of its output",
    "gemm-ar": "a GEMM, then the all-reduce of its output",
    "gemm-a2a": "a GEMM, then the all-to-all of its output, a chunk of the rows for each GPU",
    "ag-gemm": "an all-gather of the rows of A, then the GEMM",
    "moe": "a layer of routed experts: dispatch, two grouped GEMMs, combine",
}


def not_an_operator_of(strategy: OverlapStrategy, operator: OperatorKind) -> str:
    """Say that *strategy* does not overlap *operator*, and which ones of t3sim do."""
    own = ", ".join(f"{kind} ({MEANINGS[kind]})" for kind in strategy.operators)
    names = [entry.name for entry in in_order() if operator in entry.operators]
    return f"`{strategy.name}` is of {own}; {operator} ({MEANINGS[operator]}) takes {', '.join(names) or 'none yet'}"
