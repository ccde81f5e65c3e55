"""A layer of experts, one kernel after the other: dispatch, two grouped GEMMs with the activation, combine.

``moe-sequential`` sends a token once to each GPU that has experts of it, and copies it to their rows there (DeepEP's
normal kernels); ``moe-low-latency`` sends it to each expert (its low-latency kernels).
"""

from collections.abc import Callable
from typing import TypeVar

from t3sim.errors import UsageError
from t3sim.program.kernels import refuse_several_nodes
from t3sim.program.moe_batches import two_batches_program
from t3sim.program.moe_fused import FusedLayer
from t3sim.program.moe_layer import MoeLayer, program_of_stages
from t3sim.program.moe_low_latency import LowLatencyLayer
from t3sim.program.moe_nodes import layer_of
from t3sim.program.moe_normal import CACHED, NEW, NormalLayer
from t3sim.program.moe_one_sided import OneSidedLayer
from t3sim.program.moe_operator import MoeOperator
from t3sim.program.moe_shared import check_shared, concurrent_program, sum_program
from t3sim.program.moe_triggered import TriggeredLayer
from t3sim.program.operations import Operation, Program
from t3sim.program.plan import Part, Plan, in_order
from t3sim.registry import Parameter
from t3sim.strategies.interface import Params, strategy

COMMUNICATION_UNITS = Parameter(
    24, minimum=2, tried=(12, 24, 48),
    meaning="Compute units of the dispatch and combine kernels, half of them senders and half receivers.",
)  # fmt: skip

LAYOUT = Parameter(
    "new", words={"new": NEW, "cached": CACHED}, has_numbers=False,
    meaning="Layout of a dispatch: `new`, GPUs exchange how many rows each gets; `cached`, as in an earlier dispatch "
            "of the same tokens.",
)  # fmt: skip

GROUPED, BESIDE_DISPATCH, BESIDE_COMBINE = range(3)
SHARED = Parameter(
    "grouped", words={"grouped": GROUPED, "dispatch": BESIDE_DISPATCH, "combine": BESIDE_COMBINE}, has_numbers=False,
    meaning="Where shared experts are computed: `grouped`, as rows of the grouped GEMMs; `dispatch` or `combine`, by a"
            " second stream, concurrent with that kernel on the other compute units.",
)  # fmt: skip

ONE_NODE = (
    "its kernel stores into other GPUs' memory, which it reaches in its node only;"
    " take `moe-sequential` or `moe-low-latency`"
)
Layer = TypeVar("Layer", bound=MoeLayer)
# Between dispatch and combine: role of its part, name, what it does.
GEMM_STAGES: tuple[tuple[str, str, Callable[[MoeLayer], list[Operation]]], ...] = (
    ("first_gemm", "first GEMM of the experts", MoeLayer.first_gemm),
    ("activation", "activation", MoeLayer.activation),
    ("second_gemm", "second GEMM of the experts", MoeLayer.second_gemm),
)


def stage_part(
    op: MoeOperator, make: Callable[..., Layer], role: str, name: str, stage: Callable[[Layer], list[Operation]]
) -> Part:
    """Return the part in which all ranks run one stage of the layer that *make* (operator, rank, memory) returns."""

    def program_of(rank: int) -> Program:
        layer = make(op, rank, op.memory())
        operations = stage(layer)
        return program_of_stages(layer, operations, layer.inputs)

    return Part.repeated(role, named(op, name), program_of, op.n, len(op.representatives))


def with_shared_part(
    op: MoeOperator, role: str, name: str, stage: Callable[[NormalLayer], list[Operation]], n_units: int
) -> Part:
    """Return the part of a stage on *n_units*, and of the shared experts on the other compute units."""
    routed = op.of_routed_experts()

    def program_of(rank: int) -> Program:
        layer = layer_of(routed, rank, op.memory())
        return concurrent_program(layer, stage(layer), op, n_units)

    name = named(op, f"{name}, concurrent with shared experts")
    return Part.repeated(role, name, program_of, op.n, len(op.representatives))


def sum_part(op: MoeOperator) -> Part:
    """Return the part that adds the rows of shared experts to the tokens that came back."""
    routed = op.of_routed_experts()

    def program_of(rank: int) -> Program:
        return sum_program(layer_of(routed, rank, op.memory()), op)

    return Part.repeated("shared_sum", named(op, "sum with shared experts"), program_of, op.n, len(op.representatives))


@strategy(
    "moe-sequential",
    kind="baseline",
    operators=("moe",),
    parameters={"communication_units": COMMUNICATION_UNITS, "layout": LAYOUT, "shared_experts": SHARED},
)
def moe_sequential(op: MoeOperator, params: Params) -> Plan:
    """DeepEP's normal dispatch and combine on ``communication_units``, on which nothing else runs."""
    n_units, shared = params["communication_units"], params["shared_experts"]
    beside = {BESIDE_DISPATCH: "dispatch", BESIDE_COMBINE: "combine"}.get(shared)
    routed = op
    if beside is not None:
        check_shared(op, n_units)
        refuse_padding(op)
        routed = op.of_routed_experts()
    stages: tuple[tuple[str, str, Callable[[NormalLayer], list[Operation]]], ...] = (
        ("dispatch", "dispatch", lambda layer: layer.dispatch(n_units, layout=params["layout"])),
        ("permutation", "permutation", NormalLayer.permutation),
        *GEMM_STAGES,
        ("reduction", "reduction", NormalLayer.reduction),
        ("combine", "combine", lambda layer: layer.combine(n_units)),
    )
    parts = [stage_part(routed, layer_of, *one) for one in stages if one[0] != beside]
    for number, (role, name, stage) in enumerate(stages):
        if role == beside:
            parts.insert(number, with_shared_part(op, role, name, stage, n_units))
    return Plan(in_order(*parts, None if beside is None else sum_part(op)))


EXPERT, GPU = range(2)
ROW_FOR = Parameter(
    "expert", words={"expert": EXPERT, "gpu": GPU}, has_numbers=False,
    meaning="What a token is sent for, and comes back from: each `expert` of it (DeepEP's low-latency kernels), or each"
            " `gpu` that has experts of it, which copies it to their rows (TensorRT-LLM's one-sided kernels).",
)  # fmt: skip


@strategy("moe-low-latency", operators=("moe",), parameters={"row_for": ROW_FOR})
def moe_low_latency(op: MoeOperator, params: Params) -> Plan:
    """DeepEP's low-latency dispatch and combine, or TensorRT-LLM's one-sided ones, on all compute units."""
    if params["row_for"] == GPU:
        refuse_several_nodes(op, "moe-low-latency with `row_for: gpu`", "`row_for: expert`")
        one_sided: tuple[tuple[str, str, Callable[[OneSidedLayer], list[Operation]]], ...] = (
            ("dispatch", "one-sided dispatch", OneSidedLayer.one_sided_dispatch),
            ("permutation", "permutation", OneSidedLayer.permutation),
            *GEMM_STAGES,
            ("reduction", "reduction", OneSidedLayer.reduction),
            ("combine", "one-sided combine", OneSidedLayer.one_sided_combine),
        )
        return Plan(in_order(*(stage_part(op, OneSidedLayer, *one) for one in one_sided)))
    stages: tuple[tuple[str, str, Callable[[LowLatencyLayer], list[Operation]]], ...] = (
        ("dispatch", "low-latency dispatch", LowLatencyLayer.low_latency_dispatch),
        *GEMM_STAGES,
        ("combine", "low-latency combine", LowLatencyLayer.low_latency_combine),
    )
    return Plan(in_order(*(stage_part(op, LowLatencyLayer, *one) for one in stages)))


@strategy("moe-fused", one_node=ONE_NODE, operators=("moe",), arbitration="round_robin")
def moe_fused(op: MoeOperator, _params: Params) -> Plan:
    """One kernel: tiles of an expert start when its rows have come, and their epilogues send the rows back."""
    return Plan(in_order(layer_part(op, lambda rank: FusedLayer(op, rank).program())))


@strategy(
    "moe-two-batch",
    operators=("moe",),
    parameters={"communication_units": COMMUNICATION_UNITS},
    arbitration="round_robin",
)
def moe_two_batch(op: MoeOperator, params: Params) -> Plan:
    """Half of the tokens is dispatched or combined on ``communication_units`` while the other is computed."""
    return Plan(in_order(layer_part(op, lambda rank: two_batches_program(op, rank, params["communication_units"]))))


ENGINE, KERNEL = range(2)
DISPATCH = Parameter(
    "engine", words={"engine": ENGINE, "kernel": KERNEL}, has_numbers=False,
    meaning="Sender of tokens to their experts: `engine`, T3's DMA engine; `kernel`, warps on the units of the GEMMs,"
            " as in `moe-fused`.",
)  # fmt: skip
DIRECT, TRIGGERED = range(2)
COMBINE = Parameter(
    "direct", words={"direct": DIRECT, "triggered": TRIGGERED}, has_numbers=False,
    meaning="Sender of rows back: `direct`, the epilogue of the second GEMM stores them where they are added up;"
            " `triggered`, commands of T3's DMA engine, which complete tiles start.",
)  # fmt: skip
COMMANDS = Parameter(
    7, minimum=1, maximum=7,
    meaning="Commands, of up to 16 rows, that T3's DMA engine has outstanding, in dispatch and in combine each.",
)  # fmt: skip


@strategy(
    "moe-t3", one_node=ONE_NODE, operators=("moe",), arbitration="round_robin",
    needs="T3's tracker and DMA engine, near-memory reduction",
    parameters={"dispatch": DISPATCH, "combine": COMBINE, "blocks_in_flight": COMMANDS},
)  # fmt: skip
def moe_t3(op: MoeOperator, params: Params) -> Plan:
    """T3's engine dispatches, its tracker starts tiles, and rows are added up near memory of their tokens."""

    def program_of(rank: int) -> Program:
        return TriggeredLayer(
            op, rank, n_blocks=params["blocks_in_flight"], is_direct=params["combine"] == DIRECT,
            has_engine=params["dispatch"] == ENGINE,
        ).program()  # fmt: skip

    return Plan(in_order(layer_part(op, program_of)))


def layer_part(op: MoeOperator, program_of: Callable[[int], Program]) -> Part:
    """Return the part in which a program does all of the layer."""
    refuse_padding(op)
    return Part.repeated(
        "fused", named(op, "fused"), program_of, op.n, len(op.representatives), is_arbitrated=True
    )  # fmt: skip


def refuse_padding(op: MoeOperator) -> None:
    """Raise ``UsageError`` if groups of rows are padded, which takes a kernel for each stage."""
    if op.alignment > 1:
        what = (
            f"is {op.alignment}; padded groups are for `moe-sequential` and `moe-low-latency` without a second stream"
        )
        raise UsageError(f"tiling.group_alignment: {what}")


def named(op: MoeOperator, name: str) -> str:
    """Return the name of a part, which tells how many classes of load represent all GPUs."""
    return f"{name}, {op.period} classes of load" if 1 < op.period < op.n else name
