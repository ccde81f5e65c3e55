"""TransformerEngine ring exchange: one GEMM per shard of A, which is forwarded to the next rank concurrently."""

from functools import partial

from t3sim.program.gathering import Gathering
from t3sim.program.host import HOST, STREAMS, run_by
from t3sim.program.kernels import program, refuse_without_engines
from t3sim.program.operations import Operation, Post, Program, Wait
from t3sim.program.operator import Operator
from t3sim.program.parts import fused_plan, gemm_part
from t3sim.program.plan import Plan, in_order
from t3sim.strategies.interface import Params, strategy


def te_ring_ag_program(op: Operator, rank: int, streams: int, host: int) -> Program:
    """Return the operations of `CommOverlapP2PBase::split_overlap_ag`: GEMMs round-robin over *streams*, and copies.

    A shard is forwarded when it has arrived; the GEMM and the next copy of the next rank wait for a flag after it.
    """
    memory, n = op.memory(), op.n
    gathering, come = Gathering(op, memory), memory.signal("come", n)
    operations: list[Operation] = []
    for step in range(n):
        position = -step % n  # the rows of rank - step
        after = (Wait(come[step], 1),) if step else ()
        operations.extend(gathering.gemm(f"gemm {step}", position, stream=step % streams, after=after))
        if step < n - 1:
            place, told = gathering.shards[position].first, Post(come[step + 1], 1)
            operations.append(
                gathering.push("send", step, place, -step - 1, 1, stream=streams, after=after, posts=(told,))
            )
    outputs = tuple(gathering.made(f"gemm {step}", -step % n) for step in range(n))
    return program(op, rank, memory, *run_by(op, operations, host), inputs=gathering.shards[:1], outputs=outputs)


ONE_NODE = "TransformerEngine's user buffers reach the GPUs of one node; take `flux-ag`"


@strategy(
    "te-ring-ag",
    one_node=ONE_NODE,
    parameters={"streams": STREAMS, "host": HOST},
    arbitration="round_robin",
    operators=("ag-gemm",),
    splits_k=True,
    shares_rows=True,
    order=22,
)
def te_ring_ag(op: Operator, params: Params) -> Plan:
    """``streams``: over which GEMMs are distributed: as many may run at once; ``host`` as of ``async-tp-ag``."""
    if op.n == 1:
        return Plan(in_order(gemm_part(op)))
    refuse_without_engines(op, "te-ring-ag")
    program_of = partial(te_ring_ag_program, streams=min(params["streams"], op.n), host=params["host"])
    return fused_plan(op, program_of)
