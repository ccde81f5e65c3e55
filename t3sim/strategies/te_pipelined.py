"""TransformerEngine pipelined reduce-scatter: each split of the columns is reduced during the GEMM of the next."""

from dataclasses import replace

import numpy as np

from t3sim.errors import UsageError
from t3sim.program.contents import Content
from t3sim.program.host import run_by
from t3sim.program.kernels import operands, program
from t3sim.program.operations import STORE, Gemm, Operation, Post, Program, Stores, Wait
from t3sim.program.operator import Operator
from t3sim.program.parts import fused_plan
from t3sim.program.plan import Plan
from t3sim.program.tile_ring import COMMUNICATION_UNITS, tile_ring
from t3sim.registry import Parameter
from t3sim.strategies.interface import Params, strategy


def te_pipelined_program(op: Operator, rank: int, splits: int, units: int) -> Program:
    """Return a GEMM for each split and a ring on the last *units*; that of the last split has twice as many.

    Without *units* an engine that adds runs the rings.
    """
    memory, n_all = op.memory(), op.machine.gpu.n_compute_units
    trace = op.of_whole_rows().tiles_of(columns=op.shape.n // splits, n_chunks=op.n, n_compute_units=n_all - units)
    part = replace(op, trace=trace)
    made, every = memory.signal("made", splits), np.arange(part.owned.n_workgroups)
    a, b = operands(part, memory, trace)
    columns = [b, *(memory.buffer(f"B {s}", b.n_granules) for s in range(1, splits))]
    gemms: list[Operation] = []
    rings: list[Operation] = []
    inputs: list[Content] = []
    outputs = []
    for s in range(splits):
        first = n_all - (units if s < splits - 1 else min(2 * units, n_all))
        on = (first, n_all) if units else None
        ring = tile_ring(part, memory, f"reduce-scatter {s}", f"gemm {s}", part.owned, every, on)
        stores = replace(Stores.local(ring.first, 1), pitch=ring.pitch, kind=np.full(len(every), STORE))
        gemms.append(Gemm(
            name=f"gemm {s}", trace=trace, parts=part.parts, a=a.first, b=columns[s].first, stores=stores,
            order=part.order(rank, by_owner=True), units=(0, n_all - units), posts=(Post(made[s]),),
            first_tile=s * (len(every) // op.n),
        ))  # fmt: skip
        rings += [replace(one, stream=1, after=(Wait(made[s], 1),), traffic_class=1) for one in ring.kernels]
        inputs += ring.padding
        outputs.append(ring.reduced)
    return program(op, rank, memory, *run_by(op, gemms), *rings, inputs=tuple(inputs), outputs=tuple(outputs))


PARAMETERS = {
    "splits": Parameter(
        4, minimum=1, tried=(2, 4, 8),
        meaning="Groups of columns, each with its own GEMM and reduce-scatter.",
    ),
    "communication_units": COMMUNICATION_UNITS,
}  # fmt: skip


def check_splits(op: Operator, splits: int) -> None:
    """Raise ``UsageError`` unless *splits* divide the columns of the output."""
    n = op.shape.n
    if n % splits:
        nearest = next(m for d in range(splits) for m in (splits - d, splits + d) if n % m == 0)
        raise UsageError(f"strategy.splits: is {splits}, which does not divide the {n} columns; {nearest} does")


ONE_NODE = "TransformerEngine's user buffers reach the GPUs of one node; take `wave-groups` or `flux-push`"


@strategy(
    "te-pipelined-rs",
    one_node=ONE_NODE,
    shares_rows=True,
    parameters=PARAMETERS,
    arbitration="round_robin",
    order=13,
)
def te_pipelined(op: Operator, params: Params) -> Plan:
    """``splits`` of the columns; ``communication_units`` run the reduce-scatters, the others the GEMMs."""
    splits, units = params["splits"], params["communication_units"]
    check_splits(op, splits)
    return fused_plan(op, lambda op, r: te_pipelined_program(op, r, splits, units))
