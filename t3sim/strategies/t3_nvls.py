"""T3 with reduction in the switch: complete tiles start loads of their sums, and stores of these at every GPU.

Tiles are stored in local memory.  When the tracker completes one, the DMA engine signals the owner of the tile;
when all GPUs have signalled, the DMA engine of the owner loads the sum from the switch and keeps it, or stores it at
every GPU with a multicast store.  These are the operations of switches of today (NVLS); nothing is reduced near
memory.  A switch that merges what is pushed into it would need a place for each tile from its first contribution to
its last one, and GPUs in step.
"""

from dataclasses import replace
from functools import partial

from t3sim.program.kernels import gemm, program, refuse_without_multicast
from t3sim.program.operations import Program
from t3sim.program.operator import Operator
from t3sim.program.packed_tiles import PackedTiles
from t3sim.program.parts import fused_plan, gemm_part, part_of
from t3sim.program.plan import Plan, in_order
from t3sim.program.tile_sums import TileSums, by_owner_in_turn
from t3sim.program.triggered import BLOCKS_IN_FLIGHT, commands, in_columns
from t3sim.strategies.interface import Params, strategy


def nvls_program(op: Operator, rank: int, blocks: int, *, is_gathered: bool) -> Program:
    """Return the GEMM, commands that signal complete tiles to their owners, and commands that load *blocks* sums each.

    *is_gathered*: sums go to every GPU, else they stay with the owner of the tile.
    """
    memory, order = op.memory(), by_owner_in_turn(op, rank)
    kernel = replace(gemm(op, memory, rank), order=order)
    sums = TileSums(op, memory, PackedTiles(op, op.tiles), order, is_gathered=is_gathered)
    kernel = sums.stored(kernel)
    kernel.stores.updates[:] = 1
    columns = in_columns(([one] for one in sums.sums), blocks)
    operations = (
        kernel, commands("tell", [sums.tell], stream=1), commands("reduce", columns, stream=2, until=sums.until),
    )  # fmt: skip
    return program(op, rank, memory, *operations, outputs=sums.outputs())


ONE_NODE = "a switch adds up for the GPUs of one node; take `t3-direct`"


@strategy(
    "t3-nvls", one_node=ONE_NODE, arbitration="round_robin",
    needs="T3's tracker and DMA engine, which loads sums from the switch",
    parameters={"blocks_in_flight": BLOCKS_IN_FLIGHT}, refines="t3", order=24,
)  # fmt: skip
def t3_nvls(op: Operator, params: Params) -> Plan:
    """A reduce-scatter in the switch, tile by tile, or with `gemm-ar` an all-reduce."""
    refuse_without_multicast(op, "t3-nvls")
    form = partial(nvls_program, blocks=params["blocks_in_flight"])
    if op.n == 1:
        return Plan(in_order(gemm_part(op)))
    if op.kind == "gemm-rs":
        return fused_plan(op, partial(form, is_gathered=False))
    fused = part_of(op, "fused", "fused", partial(form, is_gathered=True), is_arbitrated=True)
    return Plan(in_order(fused), also=(gemm_part(op),))
