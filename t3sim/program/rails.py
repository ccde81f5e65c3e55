"""The second level of a reduce-scatter, and of an all-gather, that T3's tracker triggers on several nodes.

Tiles of every owner are first reduced in the node, at the GPU of the owner's *rail* (the one of the same number), by
near-memory updates that a tracker counts.  A complete tile starts a message of the network interface, which reads the
sum of the node from memory and adds it, near memory, to the tile of its owner.  So over each rail go as many bytes as
the owners behind it have, once for each other node, and no compute unit works for it (T3 section 7.8).

An all-gather goes the other way: complete tiles are sent over the rail, and from there to the GPUs of each node.
Pinned by ``tests/program/test_rails.py``.
"""

import numpy as np

from t3sim.config.limits import MOST_CONTEXTS
from t3sim.program.contents import Tiles
from t3sim.program.operations import NONE, STORE, UPDATE, Gemm, Memory, Moves, Wait
from t3sim.program.operator import Operator
from t3sim.program.packed_tiles import PackedTiles
from t3sim.program.roles import Step, nic_sends
from t3sim.program.triggered import commands, in_columns


class Rails:
    """Tiles of a GEMM, in one piece each, and where sums of nodes and of all GPUs lie, for each rail.

    The owner of a tile is ``node`` + 1 nodes and ``gpu`` + 1 GPUs further, so that the own one is the last of both.
    ``place`` is where a tile lies on the GPU of the rail: the sum of the node for an owner on another one, or the
    output.  ``complete`` has a signal for each of those tiles, node by node, that counts what has been added to it.

    In a node GPUs add directly at the GPU of the rail, or in a ring (*is_ring*), where each tile has a place on every
    GPU, and what is forwarded to the GPU of the rail posts the same signal there.
    """

    def __init__(self, op: Operator, memory: Memory, *, is_ring: bool = False, is_gathered: bool = False) -> None:
        """*is_gathered*: the output has a place for the chunk of every GPU, else for the own one."""
        ranks = op.ranks
        self._op, self.tiles = op, PackedTiles(op, op.tiles)
        self.nodes, self.gpus = ranks.n_nodes, ranks.per_node
        self.node, self.gpu = self.tiles.position // self.gpus, self.tiles.position % self.gpus
        self.n_posts = min(self.gpus, 2) if is_ring else self.gpus  # of a granule, when the node has added it up
        each, inside = self.tiles.each, self.tiles.inside
        self.output = memory.buffer("output", (op.n if is_gathered or is_ring else 1) * each)
        if is_ring:
            first = self.output.first + self.tiles.position * each
        else:
            own = self.output.first + (op.n - 1) * each if is_gathered else self.output.first
            of_node = np.full(self.nodes, own)
            if self.nodes > 1:
                partials = memory.buffer("sums of the node", (self.nodes - 1) * each)
                of_node[:-1] = partials.first + np.arange(self.nodes - 1) * each
            first = of_node[self.node]
        self.place = first + inside
        self.complete = memory.signal("complete", self.nodes * self.tiles.n)
        signal = self.complete.first + self.node * self.tiles.n + self.tiles.number
        self.signal = np.where(self.gpu >= self.gpus - 2, signal, NONE) if is_ring else signal
        self._own = np.array(op.chunk(op.n - 1))

    def stored(self, kernel: Gemm) -> Gemm:
        """Return *kernel* with its tiles in one piece each, counted where they are complete."""
        return self.tiles.stored(kernel, self.place, self.signal)

    def reduced(self) -> Tiles:
        """Return the own tiles, which all GPUs have added to."""
        return Tiles("gemm", self._own, self.place[self._own], self.tiles.width[self._own])

    def n_granules(self) -> int:
        """Return the granules of the tiles of a chunk."""
        return int(self.tiles.size[self._own].sum())

    def sums(self, arrived: int | None = None) -> list[Step]:
        """Return messages that add sums of the node to the tiles of their owners, in the order of the GEMM.

        They post *arrived* at the owner, or by default the signal that counts what has been added to the tile.
        """
        steps: list[Step] = []
        for node in range(self.nodes - 1):
            here = self._op.chunk(node * self.gpus + self.gpus - 1)
            for w, own in zip(here, self._own.tolist(), strict=True):
                size = int(self.tiles.size[w])
                steps.append({
                    "n_granules": size, "n_operands": 1, "operand": int(self.place[w]), "send": UPDATE,
                    "distance": (node + 1) * self.gpus, "destination": int(self.place[own]),
                    "wait_signal": int(self.signal[w]),
                    "wait_at_least": self.n_posts * size,
                    "post_signal": int(self.signal[own]) if arrived is None else arrived,
                })  # fmt: skip
        return steps

    def reducing(self, memory: Memory, stream: int) -> list[Moves]:
        """Return the operation that sends all ``sums``, and has not ended before those of other nodes have arrived."""
        arrived = memory.signal("sums of other nodes")[0]
        until = (Wait(arrived, (self.nodes - 1) * self.n_granules()),)
        return self.messages(self.sums(arrived), stream, until)

    def gathers(self, memory: Memory, blocks: int) -> tuple[list[Step], list[Moves]]:
        """Return the messages and commands of an all-gather: each own tile starts its own when all have added to it.

        The output has a place for every tile.  *blocks* commands at a time send own tiles to the GPUs of the node, and
        as many, as far as the engine has them, those that came over the rail.
        """
        ranks, g, each = self._op.ranks, self.gpus, self.tiles.each
        arrived = memory.signal("arrived")
        come = memory.signal("over the rail", (self.nodes - 1) * self.tiles.n) if self.nodes > 1 else arrived
        n_added = self.n_posts + self.nodes - 1
        messages: list[Step] = []
        near: list[list[Step]] = []
        far: list[list[Step]] = []

        def there(distance: int, w: int) -> int:
            """Return the place of own tile *w* at the GPU at *distance*."""
            return self._gathered(int(ranks.back(distance))) * each + int(self.tiles.inside[w]) + self.output.first

        for w in self._own.tolist():
            size, number = int(self.tiles.size[w]), int(self.tiles.number[w])
            after = {"wait_signal": int(self.signal[w]), "wait_at_least": n_added * size}
            to_gpus = np.roll(np.arange(1, g), -number).tolist()
            send = {"n_granules": size, "n_operands": 1, "send": STORE, "post_signal": arrived[0]}
            near.append([
                {**send, "operand": int(self.place[w]), "distance": d, "destination": there(d, w), **after}
                for d in to_gpus
            ])  # fmt: skip
            for node in range(1, self.nodes):
                signal = come.first + (node - 1) * self.tiles.n + number
                messages.append({
                    **send, "operand": int(self.place[w]), "distance": (self.nodes - node) * g,
                    "destination": there((self.nodes - node) * g, w), "post_signal": signal, **after,
                })  # fmt: skip
                place = self.output.first + self._gathered(node * g) * each + int(self.tiles.inside[w])
                far.append([
                    {**send, "operand": place, "distance": d, "wait_signal": signal, "wait_at_least": size,
                     "destination": self.output.first + self._gathered(int(ranks.at(node * g, ranks.back(d)))) * each
                     + int(self.tiles.inside[w])}
                    for d in to_gpus
                ])  # fmt: skip
        due = (Wait(arrived[0], (g - 1) * self.nodes * self.n_granules()),) if g > 1 else ()
        moves = [commands("all-gather", in_columns(near, blocks), stream=1, until=due)] if g > 1 else []
        if far and g > 1:
            moves.append(commands("forward", in_columns(far, min(blocks, MOST_CONTEXTS - blocks)), stream=2))
        return messages, moves

    def waits_over_rails(self, messages: list[Step]) -> tuple[Wait, ...]:
        """Return waits for what *messages* of other nodes bring here, where nothing else waits for it."""
        return tuple(Wait(one["post_signal"], one["n_granules"]) for one in messages) if self.gpus == 1 else ()

    def everything(self) -> Tiles:
        """Return the output with the tiles of all GPUs."""
        every = np.arange(len(self.node))
        return Tiles("gemm", every, self.output.first + self.tiles.position * self.tiles.each + self.tiles.inside,
                     self.tiles.width)  # fmt: skip

    def messages(self, steps: list[Step], stream: int, until: tuple[Wait, ...] = ()) -> list[Moves]:
        """Return the operation of the network interface that sends *steps*."""
        return nic_sends(self._op, steps, stream, until, traffic_class=1) if steps else []

    def _gathered(self, distance: int) -> int:
        """Return the position, in the output, of the chunk that the GPU at *distance* owns."""
        ranks = self._op.ranks
        return int(ranks.at(distance, ranks.back(self._op.owner(0))))
