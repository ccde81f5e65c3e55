"""DistFuse: an all-reduce kernel, concurrent with the GEMM, loads each tile from all GPUs when it is complete."""

from functools import partial

import numpy as np

from t3sim.program.contents import Tiles
from t3sim.program.host import run_by
from t3sim.program.kernels import gemm, program
from t3sim.program.operations import AT_OPERANDS, STORE, Barrier, Program, Wait
from t3sim.program.operator import Operator
from t3sim.program.packed_tiles import PackedTiles, beside
from t3sim.program.parts import gemm_part, part_of
from t3sim.program.plan import Plan, in_order
from t3sim.program.tile_ring import COMMUNICATION_UNITS
from t3sim.registry import Parameter
from t3sim.strategies.interface import Params, strategy

ONE, TWO = 1, 2
PARAMETERS = {
    "shots": Parameter(TWO, tried=(ONE, TWO), minimum=ONE, maximum=TWO,
                       meaning="Algorithm of the all-reduce: 1 (one-shot), every GPU reduces all tiles;"
                       " 2 (two-shot), the owner of a tile reduces it for all."),
    "communication_units": COMMUNICATION_UNITS,
}  # fmt: skip


def distfuse_program(op: Operator, rank: int, units: int, shots: int) -> Program:
    """Return a GEMM that stores tile by tile, and an all-reduce of its tiles on the last *units*."""
    memory, tiles, n = op.memory(), PackedTiles(op, op.owned), op.n
    kernel = gemm(op, memory, rank, units=(0, op.machine.gpu.n_compute_units - units), by_owner=True)
    made, output = memory.buffer("made", n * tiles.each), memory.buffer("output", n * tiles.each)
    stored, gathered = memory.signal("stored", n * tiles.n), memory.signal("gathered")
    # Tiles of one shot lie in the order of their rows, the same on all GPUs; of two, as the rank makes them, own last.
    chunk = (tiles.position + rank) % n if shots == ONE else tiles.position
    first, signal = chunk * tiles.each + tiles.inside, stored.first + chunk * tiles.n + tiles.number
    steps, others = [], range(1, n) if shots == TWO else ()
    for w in kernel.stored_order if shots == ONE else np.flatnonzero(tiles.position == n - 1):
        size, kept = int(tiles.size[w]), output.first + int(first[w])
        add = {"n_granules": size, "n_operands": n, "operand": made.first + int(first[w]), "source_stride": 1}
        add |= {"stride": 0 if shots == ONE else -tiles.each, "kept_at": kept}
        ask = {"n_operands": 1, "wait_where": AT_OPERANDS, "wait_at_least": size}
        apart = tiles.n if shots == TWO else 0  # of two shots, a tile has another place and signal on each GPU
        asks = [{**ask, "source": d, "wait_signal": int(signal[w]) - d * apart} for d in range(n)]
        give = {"n_granules": size, "n_operands": 1, "operand": kept, "send": STORE, "post_signal": gathered[0]}
        steps.append([*asks, add, *({**give, "distance": d, "destination": kept - d * tiles.each} for d in others)])
    until = (Wait(gathered[0], (n - 1) * int(tiles.size[: tiles.n].sum())),) if others else ()
    reduce = beside(op, units, "all-reduce", steps, until=until)
    kernel = tiles.stored(kernel, made.first + first, signal)
    everything = Tiles("gemm", np.arange(len(first)), output.first + first, tiles.width)
    operations = run_by(op, [Barrier(name="all added up"), reduce, kernel], is_library=False)
    return program(op, rank, memory, *operations, outputs=(everything,))


ONE_NODE = (
    "its kernel loads from other GPUs' memory, which it reaches in its node only; take `flux-push` or `t3-direct`"
)


@strategy(
    "distfuse",
    one_node=ONE_NODE,
    shares_rows=True,
    parameters=PARAMETERS,
    arbitration="round_robin",
    operators=("gemm-ar",),
    order=17,
)
def distfuse(op: Operator, params: Params) -> Plan:
    """``communication_units`` run the all-reduce of one or two ``shots``; after it every GPU has the whole output."""
    if op.n == 1:
        return Plan(in_order(gemm_part(op)))
    program_of = partial(distfuse_program, units=params["communication_units"], shots=params["shots"])
    fitting = op.in_whole_rows()
    ordered = fitting.unstaggered() if params["shots"] == ONE else fitting
    return Plan(in_order(part_of(ordered, "fused", "fused", program_of, is_arbitrated=True)), also=(gemm_part(op),))
