"""Send and receive, and broadcast: data that go one way, piece by piece.

*Send and receive*: each GPU sends an array to the next one of its node, or, with several nodes, to the GPU of the same
number on the next node.  Within a node it is an exchange with one peer (``all_to_all.exchange``); to another node the
network interface sends from memory to memory.
*Broadcast*: a chain from rank 0 over all GPUs of a node, and over the first GPUs of the nodes; each passes on a piece
when it has arrived (NCCL's ring).  On one node a short array has flags in the data (``collective.choice``).
Leaves out: flags in the data of a broadcast to other nodes.
Pinned by ``tests/network/test_fabrics.py`` and ``tests/collective/test_protocols.py``.
"""

from t3sim.collective.choice import channels_of, protocol_of
from t3sim.collective.schedule import places_for, sent_granules, slices_of
from t3sim.config.collective_kernel import Protocol
from t3sim.program.all_to_all import exchange
from t3sim.program.contents import Content
from t3sim.program.kernels import program
from t3sim.program.operations import STEP, STORE, Buffer, Memory, Moves, Program, Wait, table
from t3sim.program.operator import Operator
from t3sim.program.roles import Roles, pieces_of


def send_receive_program(op: Operator, rank: int) -> Program:
    """Return what each GPU runs that sends an array of the size of *op* to the next one, and receives one."""
    size, ranks = op.n * op.chunk_granules, op.ranks
    is_far = ranks.n_nodes > 1
    distance = ranks.per_node if is_far else 1
    source = int(ranks.back(distance))
    if is_far:
        memory = op.memory()
        data, output = (memory.buffer(name, size) for name in ("data", "output"))
        operations = _messages(op, memory, data, output, distance)
    else:
        memory, operations, data, output = exchange(op, size, (distance,))
    inputs, outputs = (Content(data.first, size, 0, of=0),), (Content(output.first, size, source, of=source),)
    return program(op, rank, memory, *operations, inputs=inputs, outputs=outputs)


def _messages(op: Operator, memory: Memory, data: Buffer, output: Buffer, distance: int) -> list[Moves]:
    """Return the sends of an array to the GPU at *distance*, on another node, by the network interface."""
    size = op.n * op.chunk_granules
    pieces, roles = pieces_of(op, size), Roles(op, [])
    arrived = memory.signal("arrived", len(pieces))
    for i, start, length in pieces:
        roles.send_message({
            "n_granules": length, "n_operands": 1, "operand": data.first + start, "distance": distance, "send": STORE,
            "destination": output.first + start, "post_signal": arrived[i],
        })  # fmt: skip
    return roles.operations([Wait(arrived[i], length) for i, _, length in pieces])


def broadcast_program(op: Operator, rank: int) -> Program:
    """Return what *rank* runs of the broadcast of an array of the size of *op* from rank 0: it passes pieces on.

    Inside a node GPU d sends to GPU d - 1, as in rings; GPU 0 of a node, the first of its chain, also to the next node.
    """
    size, ranks, memory = op.n * op.chunk_granules, op.ranks, op.memory()
    if ranks.n_nodes == 1:
        protocol = protocol_of(op.machine.gpu.collective_kernel, "broadcast", op.n, size * op.granule)
        if protocol != "simple":
            return _flagged_broadcast(op, rank, protocol)
    g, (node, gpu) = ranks.per_node, divmod(rank, ranks.per_node)
    pieces = pieces_of(op, size)
    sends_near, sends_far = g > 1 and gpu != 1 % g, gpu == 0 and node < ranks.n_nodes - 1
    roles = Roles(op, ["pass on"] if sends_near else [])
    data, output = (memory.buffer(name, size) for name in ("data", "output"))
    arrived = memory.signal("arrived", len(pieces))
    for i, start, length in pieces:
        given = (data if rank == 0 else output).first + start
        after = {} if rank == 0 else {"wait_signal": arrived[i], "wait_at_least": length}
        step = {"n_granules": length, "n_operands": 1, "operand": given, **after}
        to = {"send": STORE, "destination": output.first + start, "post_signal": arrived[i]}
        if sends_near:
            roles.add("pass on", i, step | to | {"distance": g - 1})
        if sends_far:
            roles.send_message(step | to | {"distance": g})
    first = int(ranks.at(0, ranks.back(rank)))  # the distance of rank 0
    content = Content(data.first, size, first, of=first)
    waits = [Wait(arrived[i], length) for i, _, length in pieces]
    operations = roles.operations() if rank == 0 else roles.operations(waits) or [roles.receiver(waits)]
    here = (content,) if rank == 0 else (Content(output.first, size, first, of=first),)
    return program(op, rank, memory, *operations, inputs=(content,) if rank == 0 else (), outputs=here)


def _flagged_broadcast(op: Operator, rank: int, protocol: Protocol) -> Program:
    """Return what *rank* runs of a broadcast on one node whose data have flags, from rank 0 to n - 1 to ... to 1.

    What arrives lies in a receive buffer; a GPU keeps it and passes it on in one step, slice by slice.
    """
    size, n, memory, spec = op.n * op.chunk_granules, op.n, op.memory(), op.machine.gpu.collective_kernel
    channels, flagged = channels_of(op.machine, protocol, spec.channels), spec.flagged[protocol]
    rows = [row for slices in slices_of(size, channels) for row in slices]
    places, n_channels = places_for(channels.flags), channels.n_channels
    data, output, received = (
        memory.buffer(name, n_granules)
        for name, n_granules in (("data", size), ("output", size), ("received", places * size))
    )
    arrived, steps = memory.signal("arrived", len(rows) * n_channels), []
    for i, row in enumerate(rows):
        for channel, (start, length) in enumerate(row):
            signal, place = arrived[i * n_channels + channel], received.first + places * start
            step = {"n_granules": length, "n_operands": 1, "operand": data.first + start}
            if rank > 0:
                sent = sent_granules(length, channels.flags)
                step |= {"operand": place, "is_received": 1, "kept_at": output.first + start}
                step |= {"wait_signal": signal, "wait_at_least": sent}
            if rank != 1 % n:
                step |= {"send": STORE, "distance": n - 1, "destination": place, "post_signal": signal}
            steps.append(step)
    kernel = Moves(
        name="broadcast", steps=table(STEP, steps).reshape(-1, n_channels), n_workgroups=n_channels,
        startup=flagged.launch, step_overhead=flagged.slice_overhead, flags=channels.flags, lds=spec.lds or 0,
    )  # fmt: skip
    first = -rank % n  # the distance of rank 0
    given, here = Content(data.first, size, first, of=first), Content(output.first, size, first, of=first)
    return program(op, rank, memory, kernel, inputs=() if rank else (given,), outputs=(here if rank else given,))
