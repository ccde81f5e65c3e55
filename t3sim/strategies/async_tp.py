"""PyTorch async tensor parallelism: one GEMM per destination rank, whose rows are copied during the next GEMM."""

from functools import partial

from t3sim.program.chunks import Chunks
from t3sim.program.host import HOST, run_by
from t3sim.program.kernels import program, refuse_without_engines
from t3sim.program.operations import Barrier, Operation, Post, Program, Wait
from t3sim.program.operator import Operator
from t3sim.program.parts import all_gather_part, gemm_part, part_of
from t3sim.program.plan import Part, Plan, in_order
from t3sim.strategies.interface import Params, strategy


def async_tp_program(op: Operator, rank: int, host: int) -> Program:
    """Return the operations of `_pipelined_produce_and_all2all` and the sum after it.

    Steps alternate between two streams, each with a buffer of its own.  A barrier before a copy ensures that all boxes
    are full, one after it that they may be written again.  Each rank sends where PyTorch's fetch: the same copies
    between the same barriers.
    """
    memory = op.memory()
    chunks = Chunks(op, memory, "async-tp")
    boxes = [memory.buffer(f"box {stream}", chunks.size) for stream in range(2)]
    begun, joined = memory.signal("begun"), memory.signal("joined")
    operations: list[Operation] = [Barrier(name="all added up", posts=(Post(begun[0]),))]
    for step in range(1, op.n):
        stream, box = step % 2, boxes[step % 2].first
        after = (Wait(begun[0], 1),) if step == 1 else ()
        posts = (Post(joined[0]),) if stream else ()
        operations += [
            *chunks.gemm(f"gemm {step}", step - 1, box, stream=stream, after=after),
            Barrier(name=f"made {stream}", stream=stream),
            chunks.send(f"copy {step}", step - 1, box, stream=stream),
            Barrier(name=f"copied {stream}", stream=stream, posts=posts),
        ]
    operations += [
        *chunks.gemm("own gemm", op.n - 1, chunks.partials.first),
        Barrier(name="all there", after=(Wait(joined[0], op.n // 2),)),
        chunks.total(),
    ]
    return program(op, rank, memory, *run_by(op, operations, host), outputs=(chunks.reduced("own gemm"),))


ONE_NODE = "PyTorch's symmetric memory spans the GPUs of one node; take `flux-push` or `copy-engine-scatter`"


@strategy(
    "async-tp",
    one_node=ONE_NODE,
    shares_rows=True,
    parameters={"host": HOST},
    arbitration="round_robin",
    splits_k=True,
    order=11,
)
def async_tp(op: Operator, params: Params) -> Plan:
    """``host``: operations come as those of a captured graph (``graph``), or one by one (``eager``)."""
    return Plan(in_order(async_tp_part(op, params), all_gather_part(op)), also=(gemm_part(op),))


def async_tp_part(op: Operator, params: Params) -> Part:
    """Return the GEMMs, copies and barriers, and the sum."""
    refuse_without_engines(op, "async-tp")
    return part_of(op, "fused", "fused", partial(async_tp_program, host=params["host"]), is_arbitrated=True)
