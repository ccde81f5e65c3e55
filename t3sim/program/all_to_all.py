"""All-to-all as NCCL runs it: sends and receives between all pairs of GPUs, in one group.

The data for a peer are cut into parts, each on a channel of its own; parts of different peers begin on different
channels.  A part goes to a receive buffer of the peer piece by piece, and a receiver copies each piece to the output
when it has arrived.  Senders and receivers of a channel are groups of warps, of other peers concurrently: only who
waits for a flag pays for fence and barrier.

Source: NCCL 2.29, ``src/device/sendrecv.h`` and ``src/enqueue.cc`` (``addP2pToPlan``).
Leaves out: that senders and receivers of a channel share a compute unit; flags in the data (LL) of small messages.
Pinned by ``tests/collective/test_all_to_all.py``.
"""

from t3sim.errors import UsageError
from t3sim.program.kernels import program
from t3sim.program.operations import STEP, STORE, Content, Moves, Program, table
from t3sim.program.operator import Operator

PIECES_OF_CHUNK = 4  # a piece is a step of the buffer, a ring's chunk four of them

Step = dict[str, int]


def all_to_all_program(op: Operator, rank: int) -> Program:
    """Return the all-to-all of an array of n chunks as *rank* runs it; position p of the input goes to distance p.

    Position d of the output comes from distance d.  Raises ``UsageError`` if the links do not lead to all GPUs.
    """
    n, c, spec = op.n, op.chunk_granules, op.machine.gpu.collective_kernel
    if op.machine.link.topology == "ring" and n > 2:
        raise UsageError("machine.link.topology: an all-to-all needs links between all GPUs; take `switch`")
    line, memory = op.line, op.memory()
    data, staged, output = (memory.buffer(name, n * c) for name in ("data", "staged", "output"))
    n_parts = max(min(spec.channels, c * op.granule // spec.least_slice), 1)
    part = -(-c // (n_parts * line)) * line
    piece = min(max(spec.channel_chunk // PIECES_OF_CHUNK // (line * op.granule), 1) * line, part)
    pieces = [
        (number, start, min(piece, part, c - start, (number + 1) * part - start))
        for number in range(n_parts)
        for start in range(number * part, min((number + 1) * part, c), piece)
    ]
    n_channels = min(spec.channels, n * n_parts)
    arrived = memory.signal("arrived", n * len(pieces))
    sends: list[list[Step]] = [[] for _ in range(n_channels)]
    receives: list[list[Step]] = [[] for _ in range(n_channels)]
    for i, (number, start, length) in enumerate(pieces):
        for p in range(n):
            channel, distance = (p * n_parts + number) % n_channels, -p % n
            step = {"n_granules": length, "n_operands": 1}
            if p == 0:
                sends[channel].append({**step, "operand": data.first + start, "kept_at": output.first + start})
                continue
            to = {"send": STORE, "distance": p, "destination": staged.first + distance * c + start}
            signal = arrived[distance * len(pieces) + i]
            sends[channel].append({**step, "operand": data.first + p * c + start, **to, "post_signal": signal})
            # What is sent at the same time comes from the GPU to which this one is at distance p.
            come = {"wait_signal": signal, "wait_at_least": length}
            place = {"operand": staged.first + distance * c + start, "kept_at": output.first + distance * c + start}
            receives[channel].append({**step, **place, **come})
    operations = [
        _role(op, name, i, columns) for i, (name, columns) in enumerate((("send", sends), ("receive", receives)))
    ]
    inputs = tuple(Content(data.first + p * c, c, p, of=0) for p in range(n))
    outputs = tuple(Content(output.first + d * c, c, 0, of=d) for d in range(n))
    return program(op, rank, memory, *operations, inputs=inputs, outputs=outputs)


def _role(op: Operator, name: str, number: int, columns: list[list[Step]]) -> Moves:
    """Return the kernel of senders or of receivers: a column for each channel."""
    n, longest, spec = len(columns), max(map(len, columns)), op.machine.gpu.collective_kernel
    rows = [column[i] if i < len(column) else {} for i in range(longest) for column in columns]
    units = (number * n, (number + 1) * n)
    if units[1] > op.machine.gpu.n_compute_units:
        raise UsageError(f"machine.gpu.collective_kernel.channels: 2 x {n} are more than the compute units of the GPU")
    return Moves(
        name=name, steps=table(STEP, rows).reshape(-1, n), n_workgroups=n, units=units, stream=number,
        startup=spec.launch if spec.exchange_launch is None else spec.exchange_launch, wake=spec.slice_overhead,
    )  # fmt: skip
