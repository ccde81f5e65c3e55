"""All-to-all as NCCL runs it: sends and receives between all pairs of GPUs, in one group.

The data for a peer are cut into parts, as few as give each channel one peer (``parts_of_peer``), each on a channel of
its own; parts of different peers take different channels.  A part goes to a receive buffer of the peer piece by piece,
and a receiver copies each piece to the output when it has arrived.  Senders and receivers of a channel are groups of
warps (``exchange_warps``), of different peers: only a group that waits for a flag pays for fence and barrier.  Short
messages have flags in the data (LL, ``with_flags``).

Source: NCCL 2.27 and 2.29, ``src/device/sendrecv.h`` (warps), ``src/enqueue.cc`` (``addP2pToPlan``: parts, protocol),
``src/include/channel.h`` and ``device.h`` (channels of a part).
Leaves out: that more parts than channels (more GPUs than channels) share the warps of a channel, up to eight of them
concurrently, here they follow each other; that senders and receivers of a channel share a compute unit.
Pinned by ``tests/collective/test_all_to_all.py``.
"""

from collections.abc import Sequence

from t3sim.collective.schedule import NO_FLAGS, Ratio, places_for, sent_granules
from t3sim.config.collective_kernel import CollectiveKernelSpec, FlaggedProtocolSpec
from t3sim.program.contents import Content
from t3sim.program.kernels import program
from t3sim.program.operations import STEP, STORE, Buffer, Memory, Moves, Program, Wait, table
from t3sim.program.operator import Operator
from t3sim.program.roles import PIECES_OF_CHUNK, Roles, Step, pieces_of

LEAST_PART = 8  # part of a step of the buffer that is worth a channel
LONGEST_PART = 32  # steps of the buffer above which more channels are taken
LONGEST_WITH_FLAGS = 16 << 10  # bytes on a channel (NCCL_P2P_LL_THRESHOLD)


def all_to_all_program(op: Operator, rank: int) -> Program:
    """Return the all-to-all of an array of n chunks as *rank* runs it; position p of the input goes to distance p.

    Position d of the output comes from distance d.  Raises ``UsageError`` if the links do not lead to all GPUs.
    """
    n, c = op.n, op.chunk_granules
    if op.ranks.n_nodes > 1:
        return rails_program(op, rank)
    memory, operations, data, output = exchange(op, c, range(n))
    inputs = tuple(Content(data.first + p * c, c, p, of=0) for p in range(n))
    outputs = tuple(Content(output.first + d * c, c, 0, of=d) for d in range(n))
    return program(op, rank, memory, *operations, inputs=inputs, outputs=outputs)


def exchange(op: Operator, c: int, peers: Sequence[int]) -> tuple[Memory, list[Moves], Buffer, Buffer]:
    """Return what each GPU runs that sends *c* granules to each GPU at the distances *peers*, 0 is itself; its buffers.

    The message for the i-th of *peers* lies at place i of the first buffer; what arrives lies in the second one, in the
    order of the distances that it comes from.
    """
    n, spec, line, memory = op.n, op.machine.gpu.collective_kernel, op.line, op.memory()
    step_bytes = max(spec.channel_chunk // PIECES_OF_CHUNK // (line * op.granule), 1) * line * op.granule
    channels = min(spec.exchange_channels or spec.channels, op.machine.gpu.n_compute_units // 2)
    n_parts = parts_of_peer(c * op.granule, n, channels, step_bytes)
    flagged, flags = with_flags(spec, c * op.granule, n_parts, channels), NO_FLAGS
    if flagged is not None:
        flags = flagged.sent_over_data(line * op.granule)
        if spec.exchange_low_latency == "peer":  # decided before the message is cut into parts
            n_parts = parts_of_peer(c * op.granule, n, channels, sent_granules(flagged.chunk, flags))
        step_bytes = in_slices(flagged, -(-c * op.granule // n_parts), line * op.granule)
    places, m = places_for(flags), len(peers)
    data, staged, output = (
        memory.buffer(name, size) for name, size in (("data", m * c), ("staged", m * c * places), ("output", m * c))
    )
    part = -(-c // (n_parts * line)) * line
    n_parts, piece = -(-c // part), min(step_bytes // op.granule, part)
    pieces = [
        (number, start, min(piece, part, c - start, (number + 1) * part - start))
        for number in range(n_parts)
        for start in range(number * part, min((number + 1) * part, c), piece)
    ]
    n_channels = min(channels, m * n_parts)
    arrived = memory.signal("arrived", m * len(pieces))
    sources = sorted(-p % n for p in peers)
    sends: list[list[Step]] = [[] for _ in range(n_channels)]
    receives: list[list[Step]] = [[] for _ in range(n_channels)]
    for i, (number, start, length) in enumerate(pieces):
        for j, p in enumerate(peers):
            channel, slot = (j * n_parts + number) % n_channels, sources.index(-p % n)
            step = {"n_granules": length, "n_operands": 1}
            operand, kept_at = data.first + j * c + start, output.first + slot * c + start
            if p == 0:
                sends[channel].append({**step, "operand": operand, "kept_at": kept_at})
                continue
            there, signal = staged.first + (slot * c + start) * places, arrived[slot * len(pieces) + i]
            to = {"send": STORE, "distance": p, "destination": there, "post_signal": signal}
            sends[channel].append({**step, "operand": operand, **to})
            # What is sent at the same time comes from the GPU to which this one is at distance p.
            come = {"is_received": 1, "wait_signal": signal, "wait_at_least": sent_granules(length, flags)}
            receives[channel].append({**step, "operand": there, "kept_at": kept_at, **come})
    operations = [
        _role(op, name, i, columns, flagged, flags)
        for i, (name, columns) in enumerate((("send", sends), ("receive", receives)))
    ]
    return memory, operations, data, output


def rails_program(op: Operator, rank: int) -> Program:
    """Return the all-to-all of nodes as *rank* runs it: first in the node, to the GPU on the rail of the destination.

    So each GPU sends by its own network interface what all GPUs of its node have for its rail (NCCL's PXN).  Part
    (k, g) of the input goes k nodes and g GPUs further; of the output it comes from there.
    """
    n, g, c = op.ranks.n_nodes, op.ranks.per_node, op.chunk_granules
    memory, roles, pieces = op.memory(), Roles(op, ["send", "copy"]), pieces_of(op, op.chunk_granules)
    data, output = (memory.buffer(name, op.n * c) for name in ("data", "output"))
    staged = memory.buffer("for the rail", op.n * c)
    local = memory.signal("parts of the node")
    come, far = (memory.signal(name, len(pieces) * g) for name in ("parts for the rail", "parts of other nodes"))
    turn = 0
    for i, start, length in pieces:
        for gpu in range(g):
            for k in range(n):
                step = {"n_granules": length, "n_operands": 1, "operand": data.first + (gpu * n + k) * c + start}
                back = -gpu % g
                there = (output if k == 0 else staged).first + (back * n + k) * c + start
                if gpu:
                    post = local[0] if k == 0 else come[i * g + back]
                    to = {"send": STORE, "distance": gpu, "destination": there, "post_signal": post}
                    roles.add("send", turn, step | to)
                elif k == 0:
                    roles.add("copy", i, step | {"kept_at": there})
                turn += gpu > 0
    for i, start, length in pieces:
        for gpu in range(g):
            for k in range(1, n):
                given = (staged if gpu else data).first + (gpu * n + k) * c + start
                after = {"wait_signal": come[i * g + gpu], "wait_at_least": (n - 1) * length} if gpu else {}
                roles.send_message({
                    "n_granules": length, "operand": given, "distance": k * g, "post_signal": far[i * g + gpu],
                    "destination": output.first + (gpu * n + n - k) * c + start, **after,
                })  # fmt: skip
    waits = [Wait(far[i * g + gpu], (n - 1) * length) for i, _, length in pieces for gpu in range(g)]
    every = [(gpu, k) for gpu in range(g) for k in range(n)]
    inputs = tuple(Content(data.first + (gpu * n + k) * c, c, k * g + gpu, of=0) for gpu, k in every)
    outputs = tuple(Content(output.first + (gpu * n + k) * c, c, 0, of=k * g + gpu) for gpu, k in every)
    operations = roles.operations([Wait(local[0], (g - 1) * c), *waits] if g > 1 else waits)
    return program(op, rank, memory, *operations, inputs=inputs, outputs=outputs)


def parts_of_peer(size: int, n: int, channels: int, step: int) -> int:
    """Return into how many parts, each on a channel of its own, the *size* bytes for each of *n* GPUs are cut.

    As few as give each channel one peer, and none shorter than an eighth of a *step* of the buffer; more while parts
    are longer than 32 steps (NCCL, ``src/enqueue.cc``, ``addP2pToPlan``, within a node).
    """
    n_parts = channels
    while n_parts * n > channels and n_parts > 1:
        n_parts //= 2
    n_parts = max(min(n_parts, -(-size // max(step // LEAST_PART, 1))), 1)
    while -(-size // n_parts) > LONGEST_PART * step and n_parts <= channels // 2:
        n_parts *= 2
    return n_parts


def with_flags(spec: CollectiveKernelSpec, size: int, n_parts: int, channels: int) -> FlaggedProtocolSpec | None:
    """Return LL if a message of *size* bytes in *n_parts*, to a peer that may have *channels*, takes it; else None.

    Up to 16 KiB for each part (NCCL 2.29), or for each channel that the peer may have (before).
    """
    n = n_parts if spec.exchange_low_latency == "part" else channels
    return spec.low_latency if size <= n * LONGEST_WITH_FLAGS else None


def in_slices(flagged: FlaggedProtocolSpec, part: int, line: int) -> int:
    """Return the bytes that are passed on at a time of a *part* on a channel: whole lines of *line* bytes."""
    each = max(-(-min(part, flagged.chunk) // flagged.slices), flagged.least_slice)
    return max(each // line, 1) * line


def _role(
    op: Operator, name: str, number: int, columns: list[list[Step]], flagged: FlaggedProtocolSpec | None, flags: Ratio
) -> Moves:
    """Return the kernel of senders or of receivers, a group of warps each: a column for each channel."""
    n, spec = len(columns), op.machine.gpu.collective_kernel
    longest = max(map(len, columns))
    rows = [column[i] if i < len(column) else {} for i in range(longest) for column in columns]
    units = (number * n, (number + 1) * n)
    n_warps = spec.exchange_warps or max(spec.n_wavefronts // 2, 1)
    warps = None if spec.wavefront_lines is None else (n_warps, spec.wavefront_lines)
    launch = spec.launch if spec.exchange_launch is None else spec.exchange_launch
    overhead = spec.slice_overhead if flagged is None else flagged.slice_overhead
    return Moves(
        name=name, steps=table(STEP, rows).reshape(-1, n), n_workgroups=n, units=units, stream=number,
        startup=launch if flagged is None else flagged.launch,
        step_overhead=overhead if name == "send" else 0, wake=overhead, wavefronts=warps, flags=flags,
    )  # fmt: skip
