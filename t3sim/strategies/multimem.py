"""GEMMs that reduce in the switch, tile by tile: `multimem` loads of the sums by warps or compute units of one kernel.

The epilogue stores a tile in the own memory and a flag at its owner.  When that has the flags of all ranks, it loads
the sum of the tile from the switch (``multimem.ld_reduce``) and keeps it, or stores it at all GPUs (``multimem.st``).
Kernels of vLLM and FlashInfer do this in warps on the units of the GEMM, of FlagTree and ThunderKittens on SMs of their
own.  Owners take whole tiles here, in turn; kernels that cut each tile into a part for every rank move as much.
"""

from dataclasses import replace
from functools import partial
from itertools import zip_longest

import numpy as np

from t3sim.program.host import run_by
from t3sim.program.kernels import gemm, program, refuse_without_multicast
from t3sim.program.operations import STEP, Barrier, Ints, Moves, Program, table
from t3sim.program.operator import Operator
from t3sim.program.packed_tiles import PackedTiles
from t3sim.program.parts import fused_plan, gemm_part, part_of
from t3sim.program.plan import Plan, in_order
from t3sim.program.tile_sums import TileSums
from t3sim.program.triggered import Step, in_columns
from t3sim.registry import Parameter
from t3sim.strategies.interface import Params, strategy

UNITS = Parameter(
    0, minimum=0, below="gpu.n_compute_units", tried=(0, 8, 16),
    meaning="Compute units reserved for loading sums; 0: warps of all compute units load them, concurrently with the"
            " GEMM.",
)  # fmt: skip


def multimem_program(op: Operator, rank: int, units: int, *, is_gathered: bool) -> Program:
    """Return a barrier, the GEMM, the flags of its epilogue, and the kernel that gets the sums.

    The barrier: before it others may still load what was stored in the run before.
    """
    memory, every = op.memory(), op.machine.gpu.n_compute_units
    tiles = PackedTiles(op, op.owned)
    of_owners = in_turn(op, rank, tiles)
    kernel = gemm(op, memory, rank, units=(0, every - units), by_owner=True)
    kernel = replace(kernel, order=op.order_of(of_owners))
    sums = TileSums(op, memory, tiles, of_owners, is_gathered=is_gathered)
    flags = Moves(
        name="flags", steps=table(STEP, sums.tell).reshape(-1, 1), n_workgroups=1, units=(0, 1), shares_units=True,
        stream=1, launch=0, traffic_class=1,
    )  # fmt: skip
    # One compute unit has the flags, so the warps of the others load.
    where = (every - units, every) if units else (min(1, every - 1), every)
    reduce = loads(op, sums.sums, where, shares_units=not units)
    reduce = replace(reduce, until=sums.until)
    operations = run_by(op, [Barrier(name="all loaded"), flags, reduce, sums.stored(kernel)], is_library=False)
    return program(op, rank, memory, *operations, outputs=sums.outputs())


def in_turn(op: Operator, rank: int, tiles: PackedTiles) -> Ints:
    """Return tiles, or parts of them, in order: one of each owner, the next rank first and the local rows last.

    Not staggered, all ranks begin with the same owner.
    """
    position = tiles.position if op.staggered else (tiles.position + rank) % op.n
    return np.lexsort((position, tiles.number))


def loads(op: Operator, steps: list[Step], units: tuple[int, int], *, shares_units: bool) -> Moves:
    """Return the kernel that gets sums, each workgroup one after the other, from the launch of the GEMM on.

    Its warps are those that reduce in NCCL's kernels of the switch, if the machine says so.
    """
    columns = in_columns(([step] for step in steps), units[1] - units[0])
    rows = [row for group in zip_longest(*columns, fillvalue={}) for row in group]
    gpu, nvls = op.machine.gpu, op.machine.gpu.collective_kernel.nvls
    warps = None if nvls is None else (nvls.reduce_warps, nvls.warp_lines)
    return Moves(
        name="reduce", steps=table(STEP, rows).reshape(-1, len(columns)), n_workgroups=len(columns), units=units,
        shares_units=shares_units, stream=2, launch=0, traffic_class=1, wavefronts=warps,
        wake=gpu.compute_unit.flag_latency,
    )  # fmt: skip


def reduced_plan(op: Operator, name: str, params: Params, *, is_gathered: bool) -> Plan:
    """Return the plan of strategy *name*."""
    if op.n == 1:
        return Plan(in_order(gemm_part(op)))
    refuse_without_multicast(op, name)
    units = params["communication_units"]
    form = partial(multimem_program, units=units, is_gathered=is_gathered)
    fitting = op.in_whole_rows(op.machine.gpu.n_compute_units - units if units else None)
    if not is_gathered:
        return fused_plan(op, form, ordered=fitting)
    return Plan(in_order(part_of(fitting, "fused", "fused", form, is_arbitrated=True)), also=(gemm_part(op),))


ONE_NODE = "a switch adds up for the GPUs of one node; take `flux-push`"


@strategy(
    "multimem-rs", one_node=ONE_NODE, shares_rows=True, parameters={"communication_units": UNITS},
    arbitration="round_robin",
    operators=("gemm-rs",), order=25,
)  # fmt: skip
def multimem_rs(op: Operator, params: Params) -> Plan:
    """GEMM and reduce-scatter in the switch: `multimem` loads of the sum of each complete tile (vLLM, FlashInfer)."""
    return reduced_plan(op, "multimem-rs", params, is_gathered=False)


@strategy(
    "multimem-ar", one_node=ONE_NODE, shares_rows=True, parameters={"communication_units": UNITS},
    arbitration="round_robin",
    operators=("gemm-ar",), order=26,
)  # fmt: skip
def multimem_ar(op: Operator, params: Params) -> Plan:
    """GEMM and all-reduce in the switch: `multimem` loads and stores of each complete tile (vLLM, FlagTree)."""
    return reduced_plan(op, "multimem-ar", params, is_gathered=True)
