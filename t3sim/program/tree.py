"""NCCL's all-reduce by trees: a chain of the GPUs of each node, and a double binary tree over the nodes.

Each channel has a chain: GPU h of the node is its head, then h + 1 and so on.  Sums go up the chain; heads send them to
the node of their parent, by network interface, and the root has the whole sum, which goes down the same way.  A node's
first child is attached to the second GPU of the chain, its second child to the head (NCCL's balanced tree).  Channels
differ in their heads, and of two that have the same one each belongs to one of the two trees.  Pieces of the array, one
step of the buffer each, follow each other through the tree.  A channel has two roles, groups of warps: one reduces
upwards, the other one passes on downwards; the root does both at once.  Data have flags inside a node
(``collective.tree``).

In the frame of a rank the channels of a node are the same for all its GPUs, and both trees for two nodes; so one GPU
represents all on one and two nodes, and one of each node on more (``Part.classes``).

Source: NCCL 2.28, ``src/device/all_reduce.h`` (``runTreeSplit``), ``src/graph/connect.cc`` (``connectTrees``),
``src/enqueue.cc`` (chunks).
Leaves out: that both roles of a channel share a compute unit, here each has one; flags in data over the network, which
double them for LL; fewer channels than GPUs of a node.
Pinned by ``tests/collective/test_tree.py``.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from t3sim.collective.choice import channels_of
from t3sim.collective.schedule import NO_FLAGS, places_for, sent_granules
from t3sim.collective.tree import Place, place_in, tree_protocol
from t3sim.errors import UsageError
from t3sim.program.contents import Content
from t3sim.program.kernels import program, refuse_on_ring
from t3sim.program.operations import STEP, STORE, Moves, Program, table
from t3sim.program.operator import Operator
from t3sim.program.roles import PIECES_OF_CHUNK, nic_sends

Step = dict[str, int]
ALONE = Place(None, (None, None))  # of the only node


@dataclass(frozen=True)
class _Piece:
    """A part of the array on a channel: chunk of which node of the head's rail, first granule in it, length."""

    tree: int
    channel: int  # of its head and tree
    number: int  # on the channel
    node: int
    start: int
    length: int


class _Trees:
    """The program of a rank in the making."""

    def __init__(self, op: Operator, rank: int) -> None:
        spec, self.op, self.memory, self.c = op.machine.gpu.collective_kernel, op, op.memory(), op.chunk_granules
        self.nodes, self.gpus = op.ranks.n_nodes, op.ranks.per_node
        self.node = rank // self.gpus
        self.n_trees = min(self.nodes, 2)
        nic, n_units = op.machine.link.nic, op.machine.gpu.n_compute_units
        self.of_tree = max(min(spec.channels, n_units // 2) // (self.gpus * self.n_trees), 1)  # channels of a head
        self.n_columns = self.gpus * self.n_trees * self.of_tree
        if 2 * self.n_columns > n_units:
            raise UsageError(
                f"machine.gpu.n_compute_units: is {n_units}, and trees of {self.gpus} GPUs of a node need"
                f" {2 * self.n_columns}"
            )
        size = op.n * self.c * op.granule
        self.protocol = tree_protocol(spec, op.ranks, size, None if nic is None else nic.bandwidth)
        channels = channels_of(op.machine, self.protocol, self.n_columns)
        self.flags = channels.flags if self.gpus > 1 else NO_FLAGS
        self.places = places_for(self.flags)
        self.pieces = list(self._pieces(channels.loop_granules, channels.n_slices, channels.least_slice_granules))
        self.n_pieces = max(piece.number for piece in self.pieces) + 1
        self.up: list[list[Step]] = [[] for _ in range(self.n_columns)]
        self.down: list[list[Step]] = [[] for _ in range(self.n_columns)]
        # Messages by tree, up and down: each kind waits for others only.
        self.up_messages: list[list[Step]] = [[] for _ in range(self.n_trees)]
        self.down_messages: list[list[Step]] = [[] for _ in range(self.n_trees)]
        whole = op.n * self.c
        spread = self.places  # of data with flags; operands of a sum are equally far apart (``_operand``)
        self.data, self.first, self.second, self.output, self.come, self.partial = (
            self.memory.buffer(name, n * whole)
            for name, n in (
                ("data", spread), ("arrived", spread), ("arrived too", 2 * spread - 1), ("output", 1),
                ("from the parent", self.places), ("sums of the node", 1),
            )
        )  # fmt: skip
        n = self.n_columns * self.n_pieces
        names = ("first part", "second part", "sum", "to the parent", "to children")
        self.has_first, self.has_second, self.has_sum, self.goes_up, self.goes_down = (
            self.memory.signal(name, n) for name in names
        )
        self.posted = self.memory.buffer("flags of messages", 2 * n * op.line)

    def _pieces(self, loop: int, n_slices: int, least: int) -> Iterator[_Piece]:
        """Yield the pieces of the rail of one head: its chunks, node after node, cut in two and among channels."""
        simple = self.protocol == "simple"
        line, whole = self.op.line, self.nodes * self.c
        half = -(-whole // (self.n_trees * line)) * line
        for tree in range(self.n_trees):
            first, stop = tree * half, min((tree + 1) * half, whole)
            share = max(-(-(stop - first) // (self.of_tree * line)) * line, line)
            step = loop // PIECES_OF_CHUNK if simple else max(-(-min(loop, share) // (n_slices * line)) * line, least)
            for channel in range(self.of_tree):
                at, end, number = first + channel * share, min(first + (channel + 1) * share, stop), 0
                while at < end:
                    node, start = divmod(at, self.c)
                    length = min(step, end - at, self.c - start)
                    yield _Piece(tree, channel, number, node, start, length)
                    at, number = at + length, number + 1

    # --- where things are, on the GPU of a head's distance and a node ---------------------------------

    def at(self, piece: _Piece, head: int, node: int) -> int:
        """Return the granule of *piece* in an array of *node*, whose GPU has the head of the chain at a distance."""
        return (head * self.nodes + (piece.node - node) % self.nodes) * self.c + piece.start

    def column(self, piece: _Piece, head: int, node: int) -> int:
        """Return the column of the channel of *piece* there."""
        return (piece.channel * self.n_trees + (piece.tree - node) % self.n_trees) * self.gpus + head

    def signal_of(self, piece: _Piece, head: int, node: int) -> int:
        """Return the number of *piece* among the signals of a kind there."""
        return self.column(piece, head, node) * self.n_pieces + piece.number

    def attached(self, piece: _Piece, node: int, position: int) -> list[int]:
        """Return the child nodes whose heads send to the GPU at *position* of the chain of *node*."""
        first, second = self.place(piece, node).children
        found = [first] if position == min(1, self.gpus - 1) else []
        return [one for one in (*found, *([second] if position == 0 else ())) if one is not None]

    def place(self, piece: _Piece, node: int) -> Place:
        """Return the place of *node* in the tree of *piece*."""
        return place_in(piece.tree, self.nodes, node) if self.nodes > 1 else ALONE

    def slot(self, piece: _Piece, head: int, node: int, sender: int | None) -> tuple[int, int]:
        """Return where and with which signal a part for a sum arrives there: from node *sender*, or along the chain."""
        position = -head % self.gpus
        senders: list[int | None] = list(self.attached(piece, node, position))
        if position < self.gpus - 1:
            senders.append(None)
        number = senders.index(sender) + 1
        signals = self.has_first if number == 1 else self.has_second
        return self._operand(self.at(piece, head, node), number), signals[self.signal_of(piece, head, node)]

    def _operand(self, place: int, number: int) -> int:
        """Return the granule of an operand of a sum, 0 is the data: all are equally far apart."""
        return (
            self.data.first + number * (self.first.first - self.data.first) + (1 + number * (self.places - 1)) * place
        )

    # --- steps ----------------------------------------------------------------------------------------

    def add(self, piece: _Piece, head: int) -> None:
        """Add what this rank does with *piece* of the channels whose head is at distance *head*."""
        position, is_last = -head % self.gpus, head == 1 % self.gpus
        place, column = self.at(piece, head, self.node), self.column(piece, head, self.node)
        in_tree, kids = self.place(piece, self.node), self.attached(piece, self.node, position)
        n_parts = len(kids) + (not is_last)
        number, length = self.signal_of(piece, head, self.node), piece.length
        wire = sent_granules(length, self.flags)
        step: Step = {"n_granules": length, "n_operands": 1 + n_parts, "operand": self.data.first + place}
        if n_parts:
            step["stride"] = self._operand(place, 1) - step["operand"]
            waits = [(self.has_first[number], length), (self.has_second[number], length)][:n_parts]
            if not is_last:
                waits[-1] = waits[-1][0], wire
                step["is_received"] = 1
            self.up[column] += [{"wait_signal": signal, "wait_at_least": least} for signal, least in waits[:-1]]
            step |= dict(zip(("wait_signal", "wait_at_least"), waits[-1], strict=True))
        if position:
            there, signal = self.slot(piece, (head + 1) % self.gpus, self.node, None)
            self.up[column].append(
                step | {"send": STORE, "distance": self.gpus - 1, "destination": there, "post_signal": signal}
            )
        elif in_tree.parent is not None:
            self.up[column].append(step | {"kept_at": self.partial.first + place})
            self._send_up(piece, in_tree.parent, column, number)
        if position or in_tree.parent is not None:
            step = {
                "n_granules": length, "n_operands": 1, "operand": self.come.first + self.places * place,
                "wait_signal": self.has_sum[number], "wait_at_least": wire if position else length,
                "is_received": int(position > 0),
            }  # fmt: skip
            role = self.down[column]
        else:  # the root: sums go up and down at once
            role = self.up[column]
        step["kept_at"] = self.output.first + place
        if not is_last:
            head_there = (head - 1) % self.gpus
            there = self.come.first + self.places * self.at(piece, head_there, self.node)
            signal = self.has_sum[self.signal_of(piece, head_there, self.node)]
            step |= {"send": STORE, "distance": 1, "destination": there, "post_signal": signal}
        role.append(step)
        if kids:
            role.append(self._flag(number, self.goes_down[number], is_up=False))
        for kid in kids:
            self._send_down(piece, kid, position, number, place)

    def _flag(self, number: int, signal: int, *, is_up: bool) -> Step:
        """Return the store of a flag that the network interface waits for."""
        place = self.posted.first + (2 * number + is_up) * self.op.line
        return {"n_granules": 1, "kept_at": place, "post_signal": signal}

    def _send_up(self, piece: _Piece, parent: int, column: int, number: int) -> None:
        """Let the head send the sum of its node to *parent*."""
        is_first = self.place(piece, parent).children[0] == self.node
        shift = min(1, self.gpus - 1) if is_first else 0  # the GPU there that it is attached to, from the head
        there, signal = self.slot(piece, -shift % self.gpus, parent, self.node)
        self.up[column].append(self._flag(number, self.goes_up[number], is_up=True))
        self.up_messages[(piece.tree - self.node) % self.n_trees].append({
            "n_granules": piece.length, "n_operands": 1, "send": STORE,
            "operand": self.partial.first + self.at(piece, 0, self.node), "destination": there, "post_signal": signal,
            "distance": (parent - self.node) % self.nodes * self.gpus + shift,
            "wait_signal": self.goes_up[number], "wait_at_least": 1,
        })  # fmt: skip

    def _send_down(self, piece: _Piece, kid: int, position: int, number: int, place: int) -> None:
        """Let the GPU at *position* of the chain send the sum to the head of the node *kid*."""
        self.down_messages[(piece.tree - self.node) % self.n_trees].append({
            "n_granules": piece.length, "n_operands": 1, "send": STORE, "operand": self.output.first + place,
            "destination": self.come.first + self.places * self.at(piece, 0, kid),
            "post_signal": self.has_sum[self.signal_of(piece, 0, kid)],
            "distance": (kid - self.node) % self.nodes * self.gpus + -position % self.gpus,
            "wait_signal": self.goes_down[number], "wait_at_least": 1,
        })  # fmt: skip

    def operations(self) -> list[Moves]:
        """Return the two roles and the messages."""
        kernel = self.op.machine.gpu.collective_kernel
        spec, n, lines = kernel.of_protocol(self.protocol), self.n_columns, kernel.wavefront_lines
        shares = UP_AND_DOWN if self.protocol == "simple" else FLAGGED_UP_AND_DOWN
        made = []
        for i, (name, columns) in enumerate((("reduce up", self.up), ("pass on down", self.down))):
            longest = max(*map(len, columns), 1)
            rows = [column[k] if k < len(column) else {} for k in range(longest) for column in columns]
            n_warps = kernel.n_wavefronts * shares[i] // 100
            made.append(Moves(
                name=name, steps=table(STEP, rows).reshape(-1, n), n_workgroups=n, units=(i * n, (i + 1) * n), stream=i,
                startup=spec.launch, step_overhead=spec.slice_overhead, flags=self.flags, lds=kernel.lds or 0,
                wavefronts=None if lines is None else (max(n_warps, 1), lines),
            ))  # fmt: skip
        return made + nic_sends(self.op, (), len(made), apart=[*self.up_messages, *self.down_messages])


UP_AND_DOWN = (75, 50)  # percent of the warps of a ring: 12 and 8 of 20, where a ring has 16
FLAGGED_UP_AND_DOWN = (70, 30)  # percent of the warps


def tree_program(op: Operator, rank: int) -> Program:
    """Return the all-reduce of an array of n chunks by trees as *rank* runs it.

    Raises ``UsageError`` if the links lead to neighbours only, or if there are too few compute units.
    """
    refuse_on_ring(op, "a tree", "sequential")
    of, n, g, c = _Trees(op, rank), op.ranks.n_nodes, op.ranks.per_node, op.chunk_granules
    for piece in sorted(of.pieces, key=lambda one: one.number):
        for head in range(g):
            of.add(piece, head)
    every = [(gpu, k) for gpu in range(g) for k in range(n)]
    inputs, outputs = (
        tuple(Content(first + (gpu * n + k) * c, c, k * g + gpu, of=whose) for gpu, k in every)
        for first, whose in ((of.data.first, 0), (of.output.first, None))
    )
    return program(op, rank, of.memory, *of.operations(), inputs=inputs, outputs=outputs)
