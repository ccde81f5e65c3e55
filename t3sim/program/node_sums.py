"""Reduce-scatter of rows on several nodes by software: sums of a node, made on compute units, go over the rails.

The rows of every rank arrive at the GPU of its *rail* (the one of the same number) in the node where they are made.
There a kernel adds up what all GPUs of the node have made for ranks of other nodes, chunk by chunk as it arrives, and
the network interface sends each sum to its owner.  That adds up, at the end, what its node has made for it and the sums
of the other nodes.  On one node only this last sum is left.
Sources: Triton-distributed 1512a81, `reduce_scatter_multi_node` (other nodes first, sums on a few SMs, one message for
each node); Flux 19831ca, `ThreadblockSwizzleStreamKRankOffsetAcrossNode`.
Pinned by ``tests/program/test_rails.py``.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from t3sim.program.contents import Tiles
from t3sim.program.kernels import total
from t3sim.program.operations import NONE, STEP, STORE, Buffer, Ints, Memory, Moves, Wait, table
from t3sim.program.operator import Operator
from t3sim.program.roles import Step, nic_sends
from t3sim.program.row_chunks import RowChunks
from t3sim.registry import Parameter

NODE_SUM_UNITS = Parameter(
    0, minimum=0, below="gpu.n_compute_units", tried=(0, 16), on_nodes=True,
    meaning="With several nodes: compute units reserved for adding up what goes to other nodes; 0: all compute units"
            " add up, concurrently with the GEMM.",
)  # fmt: skip
NODE_CHUNKS = Parameter(
    "tile_rows", words={"tile_rows": 0}, minimum=1, on_nodes=True,
    meaning="With several nodes: parts of the rows of a rank that are added up and sent to other nodes one by one; or"
            " one part for each row of tiles.",
)  # fmt: skip


class NodeSums:
    """Places for what each GPU of a node makes for a rank, for sums of nodes, and what adds up and sends them.

    Arrays have an entry for each tile of *cut*: the ``node`` and the ``gpu`` of its owner, counted from the next one,
    so that the own one is the last; and where its GPU stores it, ``part``, on the GPU at ``distance``, posting
    ``signal`` if it is for another node.
    """

    def __init__(self, op: Operator, memory: Memory, cut: RowChunks) -> None:
        self._op, self._cut = op, cut
        self.nodes, self.gpus = op.ranks.n_nodes, op.ranks.per_node
        g, others, size = self.gpus, self.nodes - 1, cut.size
        self.node, self.gpu = cut.position // g, cut.position % g
        self.partials = memory.buffer("partials", (self.nodes * g + others) * size)
        self.output = memory.buffer("output", size)
        self.distance = (self.gpu + 1) % g
        self.part = self.first(self.node, g - 1 - self.gpu) + cut.inside
        self.signal = np.full(len(cut.position), NONE)
        if others:
            self._sums = memory.buffer("sums of the node", others * size)
            self._arrived = memory.signal("parts of the node", others * cut.n)
            self._summed, self._come = memory.signal("summed", others * cut.n), memory.signal("sums of other nodes")
            is_far = self.node < others
            self.signal[is_far] = (self._arrived.first + self.node * cut.n + cut.chunk)[is_far]

    def first(self, node: Any, source: Any) -> Any:
        """Return the first granule of the rows for *node* from the GPU of which the rail is *source* further."""
        return self.partials.first + (node * self.gpus + source) * self._cut.size

    def arrived(self, node: int, chunk: int) -> int:
        """Return the signal that counts what has arrived for a node; NONE for the own one."""
        return self._arrived[node * self._cut.n + chunk] if node < self.nodes - 1 else NONE

    def operations(self, due: Sequence[int], units: int, stream: int) -> list[Moves]:
        """Return the kernel that adds up sums of the node, and the messages that send them, from *stream* on.

        *due*: granules of each chunk of the rows of a rank that arrive.  The kernel runs on the last *units*; 0: on
        all, as warps concurrent with those of a GEMM.
        """
        if self.nodes == 1:
            return []
        size, every = self._cut.size, self._op.machine.gpu.n_compute_units
        sums: list[Step] = []
        messages: list[Step] = []
        for node in range(self.nodes - 1):
            for k, (start, length) in enumerate(self._cut.pieces()):
                number = node * self._cut.n + k
                sums.append({
                    "n_granules": length, "n_operands": self.gpus, "operand": int(self.first(node, 0)) + start,
                    "stride": size, "kept_at": self._sums.first + node * size + start,
                    "wait_signal": self._arrived[number], "wait_at_least": due[k],
                    "post_signal": self._summed[number],
                })  # fmt: skip
                messages.append({
                    "n_granules": length, "n_operands": 1, "operand": self._sums.first + node * size + start,
                    "send": STORE, "distance": (node + 1) * self.gpus,
                    "destination": self.partials.first + (self.nodes * self.gpus + node) * size + start,
                    "wait_signal": self._summed[number], "wait_at_least": length, "post_signal": self._come[0],
                })  # fmt: skip
        add = Moves(
            name="sums of the node", steps=table(STEP, sums).reshape(-1, 1), units=(every - (units or every), every),
            shares_units=units == 0, stream=stream, launch=0, traffic_class=1,
        )  # fmt: skip
        return [add, *nic_sends(self._op, messages, stream + 1, traffic_class=1)]

    def total(self, after: Sequence[Wait] = (), **more: Any) -> Moves:
        """Return the kernel that adds up what the own node has made and the sums of the other ones."""
        others, whole = self.nodes - 1, [(0, self._cut.n_granules)]
        own = Buffer("partials", int(self.first(others, 0)), (self.gpus + others) * self._cut.size)
        come = [Wait(self._come[0], others * self._cut.n_granules)] if others else []
        return total("sum", own, self.gpus + others, self.output, pieces=whole, after=[*after, *come], **more)

    def reduced(self, pitch: Ints) -> Tiles:
        """Return where the own tiles lie, summed, in rows *pitch* apart."""
        own = np.flatnonzero(self._cut.position == self._op.n - 1)
        return Tiles("gemm", own, self.output.first + self._cut.inside[own], pitch[own])
