"""PyTorch async tensor parallelism, all-gather: shards of A arrive one by one, with one GEMM per shard."""

from dataclasses import replace
from functools import partial

from t3sim.program.contents import Content
from t3sim.program.gathering import Gathering
from t3sim.program.host import HOST, run_by
from t3sim.program.kernels import program, refuse_without_engines, total
from t3sim.program.operations import Barrier, Buffer, Operation, Post, Program, Wait
from t3sim.program.operator import Operator
from t3sim.program.parts import fused_plan
from t3sim.program.plan import Plan
from t3sim.strategies.interface import Params, strategy


def async_tp_ag_program(op: Operator, rank: int, host: int) -> Program:
    """Return the operations of `_pipelined_multi_all_gather_and_consume`, whose steps alternate between two streams.

    The local rows go to a buffer that peers read, and last of all to their place in A.  Each rank sends where PyTorch's
    fetch: the same copies at the same places of the streams.
    """
    memory, n = op.memory(), op.n
    gathering = Gathering(op, memory)
    given, box = memory.buffer("given", gathering.size), memory.buffer("box", gathering.size)
    place = Buffer("A", gathering.shards[0].first, gathering.size)
    filled, come, joined = memory.signal("filled"), memory.signal("come", n), memory.signal("joined")
    rows = Content(given.first, gathering.size, 0, of=0)
    operations: list[Operation] = [
        Barrier(name="all read"),
        total("fill", given, 1, box),
        Barrier(name="all filled", posts=(Post(filled[0]),)),
        *gathering.gemm("gemm 0", 0, rows),
    ]
    for step in range(1, n):
        after, told = (Wait(filled[0], 1),) if step == 1 else (), Post(come[step], n - step)
        operations += [
            gathering.push("send", step, box.first, step, n - step, stream=step % 2, after=after, posts=(told,)),
            *gathering.gemm(f"gemm {step}", step, stream=step % 2, after=(Wait(come[step], 1),)),
        ]
    operations.append(replace(total("keep", given, 1, place), stream=n % 2))
    last = max(number for number, one in enumerate(operations) if one.stream == 1)
    operations[last] = replace(operations[last], posts=(*operations[last].posts, Post(joined[0])))
    operations.append(Barrier(name="all gathered", after=(Wait(joined[0], 1),)))
    made = (gathering.made(f"gemm {step}", step) for step in range(n))
    outputs = (*gathering.shards, *made)
    return program(op, rank, memory, *run_by(op, operations, host), inputs=(rows,), outputs=outputs)


ONE_NODE = "PyTorch's symmetric memory spans the GPUs of one node; take `flux-ag`"


@strategy(
    "async-tp-ag",
    one_node=ONE_NODE,
    shares_rows=True,
    parameters={"host": HOST},
    arbitration="round_robin",
    operators=("ag-gemm",),
    splits_k=True,
    order=21,
)
def async_tp_ag(op: Operator, params: Params) -> Plan:
    """``host``: operations come as those of a captured graph (``graph``), or one by one (``eager``)."""
    if op.n > 1:
        refuse_without_engines(op, "async-tp-ag")
    return fused_plan(op, partial(async_tp_ag_program, host=params["host"]))
