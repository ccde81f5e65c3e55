"""A layer of experts on two halves of the tokens: one half is dispatched or combined while the other is computed.

Kernels that communicate follow each other on compute units of their own, in one order on all GPUs; the others have the
units that are left.  Source: two-batch overlap of DeepSeek-V3's prefill (its technical report, section 3.4.1).
Pinned by ``tests/program/test_moe_layer.py``.
"""

from collections.abc import Sequence
from dataclasses import replace

from t3sim.errors import UsageError
from t3sim.program.contents import Rows
from t3sim.program.moe_nodes import layer_of
from t3sim.program.moe_normal import NormalLayer
from t3sim.program.moe_operator import MoeOperator
from t3sim.program.operations import Operation, Post, Program, Wait

COMMUNICATION, COMPUTE = 0, 2  # streams; senders have the one behind that of communication


def two_batches_program(op: MoeOperator, rank: int, n_units: int) -> Program:
    """Return the layer on both halves; ``UsageError`` with less than two tokens, or without a unit for the GEMMs."""
    n_all = op.machine.gpu.n_compute_units
    if op.n_tokens < 2:
        raise UsageError("workload.experts.tokens_per_gpu: is 1; two batches need two tokens")
    if n_units >= n_all:
        message = f"is {n_units}, of {n_all} compute units; the GEMMs need some of them"
        raise UsageError(f"strategy.communication_units: {message}")
    memory, units = op.memory(), (n_units, n_all)
    middle = op.n_tokens - op.n_tokens // 2
    halves = op.with_tokens(0, middle), op.with_tokens(middle, op.n_tokens)
    layers: list[NormalLayer] = []
    for number, half in enumerate(halves):
        behind = sum(one.n_elements for one in layers)
        layers.append(layer_of(half, rank, memory, f"batch {number}: ", COMMUNICATION, behind=behind))
    dispatched, computed = (memory.signal(name, 2) for name in ("dispatched", "computed"))
    operations: list[Operation] = []
    inputs: list[Rows] = []
    outputs: list[Rows] = []
    for number, layer in enumerate(layers):
        operations += linked(layer.dispatch(n_units), post=dispatched[number])
        inputs += layer.inputs
    for number, layer in enumerate(layers):
        compute = {"stream": COMPUTE, "units": units}
        stages = [
            *layer.permutation(**compute), *layer.first_gemm(**compute), *layer.activation(**compute),
            *layer.second_gemm(**compute), *layer.reduction(**compute),
        ]  # fmt: skip
        operations += linked(stages, after=dispatched[number], post=computed[number])
        combine = layer.combine(n_units, stream=COMMUNICATION)
        operations += linked(combine, after=computed[number] if stages else dispatched[number])
        outputs += layer.outputs
    return Program(
        rank, op.n, tuple(operations), op.granule, op.line, tuple(memory.buffers), tuple(memory.signals),
        inputs=tuple(inputs), outputs=tuple(outputs), per_node=op.machine.link.gpus_per_node,
    )  # fmt: skip


def linked(operations: Sequence[Operation], *, after: int | None = None, post: int | None = None) -> list[Operation]:
    """Return *operations*, of which the first waits for a signal and the last one posts another."""
    found = list(operations)
    if found and after is not None:
        found[0] = replace(found[0], after=(*found[0].after, Wait(after, 1)))
    if found and post is not None:
        found[-1] = replace(found[-1], posts=(*found[-1].posts, Post(post)))
    return found
