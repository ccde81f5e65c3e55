"""Flux, pull: the owner of the rows fetches each tile from all GPUs when it is complete, and reduces them."""

from functools import partial

import numpy as np

from t3sim.program.contents import Tiles
from t3sim.program.host import run_by
from t3sim.program.kernels import gemm, program, total
from t3sim.program.operations import AT_OPERANDS, NONE, Barrier, Post, Program, Wait
from t3sim.program.operator import Operator
from t3sim.program.packed_tiles import PackedTiles, beside
from t3sim.program.parts import fused_plan
from t3sim.program.plan import Plan
from t3sim.registry import Parameter
from t3sim.strategies.flux import CAUTION
from t3sim.strategies.interface import Params, strategy

COMMUNICATION_UNITS = Parameter(
    0, minimum=0, below="gpu.n_compute_units", tried=(0, 8, 16, 32),
    meaning="Compute units reserved for fetching; 0: all compute units fetch, concurrently with the GEMM.",
)  # fmt: skip


def flux_pull_program(op: Operator, rank: int, units: int) -> Program:
    """Return a GEMM that stores tile by tile, and a kernel that fetches the own tiles from all others.

    A block fetches a tile when the other rank says that it is stored.  Each rank makes the rows of the next one first,
    so all fetch from the one before at first; Flux's own pairs (rank XOR step) are not one program for all ranks.
    """
    memory, tiles, rest = op.memory(), PackedTiles(op, op.owned), op.n - 1
    kernel = gemm(op, memory, rank, units=(0, op.machine.gpu.n_compute_units - units), by_owner=True)
    made, slots = memory.buffer("made", rest * tiles.each), memory.buffer("slots", op.n * tiles.each)
    output = memory.buffer("output", tiles.each)
    stored, fetched = memory.signal("stored", rest * tiles.n), memory.signal("fetched")
    is_own = tiles.position == rest
    first = np.where(is_own, slots.first, made.first + tiles.position * tiles.each) + tiles.inside
    signal = np.where(is_own, NONE, stored.first + tiles.position * tiles.n + tiles.number)
    own = np.flatnonzero(is_own)
    steps = [
        [{
            "n_granules": int(tiles.size[w]), "n_operands": 1, "source": d, "wait_where": AT_OPERANDS,
            "operand": made.first + (rest - d) * tiles.each + int(tiles.inside[w]),
            "kept_at": slots.first + d * tiles.each + int(tiles.inside[w]),
            "wait_signal": stored[(rest - d) * tiles.n + t], "wait_at_least": int(tiles.size[w]),
        }]
        for d in range(rest, 0, -1) for t, w in enumerate(own)
    ]  # fmt: skip
    fetch = beside(op, units, "fetch", steps, posts=(Post(fetched[0]),))
    reduced = Tiles("gemm", own, output.first + tiles.inside[own], tiles.width[own])
    begin, end = Barrier(name="all added up"), Barrier(name="all fetched", after=(Wait(fetched[0], 1),))
    kernel, add = tiles.stored(kernel, first, signal), total("sum", slots, op.n, output, pieces=tiles.pieces())
    operations = run_by(op, [begin, fetch, kernel, end, add], is_library=False)
    return program(op, rank, memory, *operations, outputs=(reduced,))


ONE_NODE = "its kernel loads from other GPUs' memory, which it reaches in its node only; take `flux-push`"


@strategy(
    "flux-pull",
    one_node=ONE_NODE,
    shares_rows=True,
    parameters={"communication_units": COMMUNICATION_UNITS},
    arbitration="round_robin",
    order=16,
    caution=CAUTION,
)
def flux_pull(op: Operator, params: Params) -> Plan:
    """Warps on the compute units of the GEMM fetch, as Flux's do, or ``communication_units`` do nothing else."""
    program_of = partial(flux_pull_program, units=params["communication_units"])
    return fused_plan(op, program_of, ordered=op.in_whole_rows())
