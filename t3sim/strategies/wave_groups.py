"""FlashOverlap: one GEMM signals groups of tile waves, and each group has its own reduce-scatter."""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from t3sim.program.contents import Content
from t3sim.program.host import run_by
from t3sim.program.kernels import gemm, program
from t3sim.program.operations import STORE, Operation, Program, Wait
from t3sim.program.operator import Operator
from t3sim.program.parts import fused_plan
from t3sim.program.plan import Plan
from t3sim.program.tile_ring import COMMUNICATION_UNITS, tile_ring
from t3sim.registry import Parameter
from t3sim.strategies.interface import Params, strategy


def wave_groups_program(op: Operator, rank: int, waves: int, units: int) -> Program:
    """Return a GEMM and a ring for each group of its tiles, on the last *units*.

    All ranks have to make a group at the same time, so each has as many tiles of the rows of every rank: *waves* of the
    GEMM's compute units together.
    """
    memory, n_units = op.memory(), op.machine.gpu.n_compute_units - units
    kernel = gemm(op, memory, rank, units=(0, n_units), by_owner=True)
    stores, each = kernel.stores.copy(), op.owned.n_workgroups // op.n
    of_a_rank = -(-waves * n_units * each // op.tiles.n_workgroups)
    edges = [*range(0, each, of_a_rank), each]
    inputs: list[Content] = []
    rings: list[Operation] = []
    made, outputs, order = memory.signal("made", len(edges) - 1), [], []
    for g, (low, high) in enumerate(pairwise(edges)):
        tiles = (np.arange(op.n)[:, None] * each + np.arange(low, high)).ravel()
        of_group = tile_ring(op, memory, f"reduce-scatter {g}", "gemm", op.owned, tiles, (n_units, n_units + units))
        stores.kind[tiles], stores.signal[tiles] = STORE, made[g]
        stores.first[tiles], stores.pitch[tiles] = of_group.first, of_group.pitch
        full = (Wait(made[g], of_group.n_granules),)
        rings += [replace(one, stream=1 + one.stream, after=full, traffic_class=1) for one in of_group.kernels]
        inputs += of_group.padding
        outputs.append(of_group.reduced)
        order.append(tiles)
    kernel = replace(kernel, stores=stores, order=op.order_of(np.concatenate(order)))
    return program(
        op, rank, memory, *run_by(op, [kernel], is_library=False), *rings, inputs=tuple(inputs), outputs=tuple(outputs)
    )


PARAMETERS = {
    "waves": Parameter(
        1,
        minimum=1,
        tried=(1, 2, 4, 8, 16),
        meaning="Waves of tiles in each group; a reduce-scatter follows each group.",
    ),
    "communication_units": COMMUNICATION_UNITS,
}


@strategy("wave-groups", shares_rows=True, parameters=PARAMETERS, arbitration="round_robin", order=14)
def wave_groups(op: Operator, params: Params) -> Plan:
    """``waves`` of tiles in a group; ``communication_units`` run the reduce-scatters, the others the GEMM."""
    waves, units = params["waves"], params["communication_units"]
    return fused_plan(op, lambda op, r: wave_groups_program(op, r, waves, units), ordered=op.in_whole_rows())
