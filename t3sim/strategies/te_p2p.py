"""TransformerEngine point-to-point reduce-scatter: one GEMM per destination rank, whose rows are sent afterwards."""

from functools import partial

from t3sim.errors import UsageError
from t3sim.program.chunks import Chunks
from t3sim.program.host import HOST, STREAMS, run_by
from t3sim.program.kernels import program, refuse_without_engines
from t3sim.program.operations import Operation, Post, Program, Wait
from t3sim.program.operator import Operator
from t3sim.program.parts import fused_plan
from t3sim.program.plan import Plan
from t3sim.strategies.interface import Params, strategy

MOST_STREAMS = 3  # of TransformerEngine


def te_p2p_program(op: Operator, rank: int, streams: int, host: int) -> Program:
    """Return the operations of `split_overlap_rs`: the rows of the next rank first, the own ones last.

    GEMMs are distributed round-robin over *streams*, and each waits for the one two before it, so two run at a time.
    The sum begins when all others have arrived; there is no barrier.
    """
    memory = op.memory()
    chunks, rest = Chunks(op, memory, "te-p2p-rs"), op.n - 1
    made = memory.buffer("made", rest * chunks.size)
    done, arrived = memory.signal("done", rest), memory.signal("arrived")
    operations: list[Operation] = []
    for p in range(op.n):
        to = chunks.partials.first if p == rest else made.first + p * chunks.size
        after = (Wait(done[p - 2], 1),) if p > 1 else ()
        name = "own gemm" if p == rest else f"gemm {p + 1}"
        posts = (Post(done[p]),) if p < rest else ()
        operations.extend(chunks.gemm(name, p, to, stream=p % streams, after=after, posts=posts))
        if p < rest:
            ready = (Wait(done[p], 1),)
            operations.append(chunks.send(f"send {p + 1}", p, to, signal=arrived[0], stream=streams, after=ready))
    there = [Wait(arrived[0], rest * chunks.n_granules)] if rest else []
    operations.append(chunks.total(after=there, stream=rest % streams))
    return program(op, rank, memory, *run_by(op, operations, host), outputs=(chunks.reduced("own gemm"),))


ONE_NODE = "TransformerEngine's user buffers reach the GPUs of one node; take `flux-push` or `copy-engine-scatter`"


@strategy(
    "te-p2p-rs",
    one_node=ONE_NODE,
    parameters={"streams": STREAMS, "host": HOST},
    arbitration="round_robin",
    splits_k=True,
    shares_rows=True,
    order=12,
)
def te_p2p(op: Operator, params: Params) -> Plan:
    """``streams``: over which GEMMs are distributed, one to three; ``host`` as of `async-tp`."""
    refuse_without_engines(op, "te-p2p-rs")
    if params["streams"] > MOST_STREAMS:
        raise UsageError(f"strategy.streams: is {params['streams']}, TransformerEngine has at most {MOST_STREAMS}")
    return fused_plan(op, partial(te_p2p_program, streams=params["streams"], host=params["host"]))
