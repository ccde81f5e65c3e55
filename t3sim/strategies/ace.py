"""A separate collective engine (ACE, ISCA 2021; T3's Table 3): no compute unit communicates, but software starts it.

The engine reads memory, adds, and sends to the neighbour, for each of some splits of the columns after its GEMM.  Its
rate and read-ahead are those of ``gpu.dma``.  Leaves out: the memory of the engine, which saves ACE some of the reads.
"""

from t3sim.program.engine_ring import engine_ring
from t3sim.program.kernels import program
from t3sim.program.operations import Memory, Program
from t3sim.program.operator import Operator
from t3sim.program.parts import gemm_part, part_of, ring_contents
from t3sim.program.plan import Part, Plan, in_order
from t3sim.registry import Parameter
from t3sim.strategies.interface import Params, strategy
from t3sim.strategies.te_pipelined import check_splits, te_pipelined_program

SPLITS = Parameter(
    1, minimum=1, tried=(1, 2, 4, 8),
    meaning="Groups of columns, each with its own GEMM and reduce-scatter; 1: one GEMM, then its reduce-scatter.",
)  # fmt: skip


def engine_all_gather_part(op: Operator) -> Part:
    """Return the all-gather of the reduced output, by the engine."""

    def program_of(op: Operator, rank: int) -> Program:
        memory = Memory(op.memory().stripe)
        kernel, _ = engine_ring(op, memory, "all-gather", op.chunk_granules, "all-gather")
        inputs, outputs = ring_contents("all-gather", op.n, op.chunk_granules, has_channels=True)
        return program(op, rank, memory, kernel, inputs=inputs, outputs=outputs)

    return part_of(op, "all_gather", "all-gather, engine", program_of)


ONE_NODE = "its engine sends to the neighbour; take `t3-direct`"


@strategy(
    "ace", one_node=ONE_NODE, shares_rows=True, parameters={"splits": SPLITS}, arbitration="round_robin",
    needs="an engine that runs collectives (ACE)", order=28,
)  # fmt: skip
def ace(op: Operator, params: Params) -> Plan:
    """``splits`` of the columns: the engine reduces one during the GEMM of the next."""
    splits = params["splits"]
    if op.n == 1:
        return Plan(in_order(gemm_part(op)))
    check_splits(op, splits)
    fused = part_of(op, "fused", "fused", lambda op, r: te_pipelined_program(op, r, splits, 0), is_arbitrated=True)
    return Plan(in_order(fused, engine_all_gather_part(op)), also=(gemm_part(op),))
