"""CU split: a GEMM and an all-reduce of other data run concurrently on disjoint compute units."""

from dataclasses import replace
from functools import partial

import numpy as np

from t3sim.program.contents import Tiles
from t3sim.program.kernels import gemm, program
from t3sim.program.operations import Program
from t3sim.program.operator import Operator
from t3sim.program.parts import all_gather_part, all_reduce, gemm_part, part_of, reduce_scatter_part
from t3sim.program.plan import Part, Plan, in_order, longest
from t3sim.registry import Parameter
from t3sim.strategies.interface import Params, strategy

PARAMETERS = {"communication_units": Parameter(
    minimum=1, below="gpu.n_compute_units",
    meaning="Compute units of each GPU reserved for the collective; the others run the GEMM.",
)}  # fmt: skip


def split_program(op: Operator, rank: int, n_compute_units: int) -> Program:
    """Return two streams that start at once: the GEMM, and the all-reduce on the last *n_compute_units*."""
    memory, n_all = op.memory(), op.machine.gpu.n_compute_units
    kernel = gemm(op, memory, rank, units=(0, n_all - n_compute_units))
    made = Tiles("gemm", np.arange(op.tiles.n_workgroups), kernel.stores.first, kernel.stores.pitch, of=0)
    collectives, given, summed = all_reduce(op, memory, (n_all - n_compute_units, n_all))
    beside = (replace(one, stream=1 + one.stream, traffic_class=1) for one in collectives)
    return program(op, rank, memory, kernel, *beside, inputs=given, outputs=(made, *summed))


def isolated_parts(op: Operator, n_compute_units: int) -> tuple[Part | None, ...]:
    """Return GEMM, reduce-scatter and all-gather, each alone on its compute units; one GPU has the GEMM only."""
    return (
        gemm_part(op, op.machine.gpu.n_compute_units - n_compute_units),
        reduce_scatter_part(op, n_compute_units=n_compute_units),
        all_gather_part(op, n_compute_units=n_compute_units),
    )


@strategy("cu-split", parameters=PARAMETERS, arbitration="round_robin", order=1)
def cu_split(op: Operator, params: Params) -> Plan:
    """GEMM and collective run concurrently on disjoint compute units of a GPU and contend for memory.

    The all-reduce is one of other data, and does not wait for the GEMM; each kernel alone for its column.
    """
    alone = isolated_parts(op, n := params["communication_units"])
    if op.n == 1:
        return Plan(in_order(*alone))
    program_of, name = partial(split_program, n_compute_units=n), f"GEMM and all-reduce, {n} compute units"
    both = part_of(op, "split", name, program_of, is_arbitrated=True)
    return Plan(both, also=tuple(one for one in alone if one is not None))


@strategy("isolated-cu-split", kind="estimate", parameters=PARAMETERS, order=8)
def isolated_cu_split(op: Operator, params: Params) -> Plan:
    """The longer of GEMM and all-reduce, each alone on its compute units with all of the memory (T3 figure 6)."""
    kernel, *collectives = isolated_parts(op, params["communication_units"])
    return Plan(longest(kernel, in_order(*collectives)))
