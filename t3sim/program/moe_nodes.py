"""Dispatch and combine of a layer of experts on several nodes: network interfaces carry what leaves a node.

*Normal form* (DeepEP, ``csrc/kernels/internode.cu``): a token goes once to each node that has experts of it, over the
rail of its GPU.  Half of the workgroups copy tokens to a send buffer, from which the network interface sends them in
messages of several tokens, and receive.  The other half *forwards*: the GPU on the rail stores a token at each GPU of
its node that has experts of it.  Combine is the same in the other direction: a forwarding GPU adds up the rows that
come from its node, and the GPU of the token those of the nodes.

The low-latency form is in ``moe_layer``: there each row that leaves the node is a message of its own, from a send
buffer straight to the GPU of the expert, or of the token, on whatever rail.

Messages of a channel go by one queue pair, in order.  With DeepEP's messages and a rate of 46 GB/s, 32 GPUs in nodes of
8 H800s dispatch 4096 tokens at 59 GB/s and combine at 61, where its README has 58 and 57.
Leaves out: limits of the buffers, so no sender waits for room; that workgroups of DeepEP have warps for both
sending and receiving, which follow each other here.
Pinned by ``tests/program/test_moe_nodes.py``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from t3sim.program.moe_normal import NEW, NormalLayer
from t3sim.program.moe_operator import MoeOperator
from t3sim.program.moe_rows import TokenCopies, position_in
from t3sim.program.operations import NONE, STORE, Ints, Memory, Operation, Post, Wait
from t3sim.program.row_steps import Steps, batched, copies_to, in_columns, joined, steps, waiting

# Tokens of a message, up to 16 GPUs and beyond: DeepEP's ``get_dispatch_config`` and ``get_combine_config``.
FEW_GPUS = 16
DISPATCH_MESSAGE, COMBINE_MESSAGE = (20, 8), (12, 8)
EDGE_WARPS, FORWARDING_WARPS, SUMMING_WARPS = 8, 8, 24  # of a workgroup


class Channels(NamedTuple):
    """Which channel carries each of a list of rows: arrays with an entry for each."""

    channel: Ints
    lane: Ints  # number of the pair of a node and a channel
    turn: Ints  # number of its batch, which is a message at most, among those of the channel


class Passed(NamedTuple):
    """Copies at a GPU, and who forwards them to it, or adds up what it makes of them: arrays with an entry for each."""

    copy: Ints
    distance: Ints  # of the forwarding GPU, on the same node
    number: Ints  # among all that this GPU forwards
    channel: Ints
    turn: Ints


def layer_of(op: MoeOperator, rank: int, memory: Memory, *more: Any, **named: Any) -> NormalLayer:
    """Return the layer on *rank*, of one node or of several."""
    return (NormalLayer if op.ranks.n_nodes == 1 else MoeNodes)(op, rank, memory, *more, **named)


class MoeNodes(NormalLayer):
    """A layer of experts on the GPUs of several nodes."""

    # --- who carries what ------------------------------------------------------------------------------

    @property
    def _node(self) -> int:
        """Return the GPUs of a node."""
        return self.op.ranks.per_node

    def _most(self, sizes: Callable[[int], int]) -> int:
        """Return the largest of *sizes* (rank) of all ranks that may differ, at least one: of a buffer."""
        return max(1, *(sizes(rank) for rank in self._ranks))

    def _channels_of(self, visits: TokenCopies, c: int, most: int) -> Channels:
        """Return the channels of copies of tokens on the rail, in batches of *most* at most.

        Both ends of the rail find the same.
        """
        node = visits.distance // self._node
        each = np.minimum(most, -(-np.bincount(node, minlength=1) // c)).clip(min=1)[node]
        batch = position_in(node) // each
        # The next node first, the own one last.
        turn = batch // c * self.op.ranks.n_nodes + (node - 1) % self.op.ranks.n_nodes
        return Channels(batch % c, node * c + batch % c, turn)

    def _passed_here(self, c: int, most: int) -> Passed:
        """Return the copies at the rank, each with the GPU of its node that has a part in its way."""
        every = []
        for distance in range(self._node):
            rank = int(self.op.ranks.at(self.rank, distance))
            forwards, by = self.op.forwards(rank), self._channels_of(self.op.visits_held(rank), c, most)
            here = np.flatnonzero(forwards.distance == self.op.ranks.back(distance))
            of = forwards.visit[here]
            every.append((forwards.copy[here], 0 * here + distance, here, by.channel[of], by.turn[of]))
        return Passed(*(np.concatenate(values) for values in zip(*every, strict=True)))

    def _over_rail(
        self, name: str, visits: TokenCopies, by: Channels, kept: Ints, there: Ints, row: int, ready: int, signal: Ints
    ) -> list[Operation]:
        """Return the messages to other nodes: one for each batch, or several if its places are not side by side.

        Rows lie at *kept* in the send buffer when the signal of their lane, from *ready* on, has counted them.  At
        *there* they post *signal*.
        """
        far = np.flatnonzero(visits.distance)
        far = far[np.lexsort((kept[far], by.channel[far], by.turn[far]))]
        is_new = np.ones(len(far), bool)
        is_new[1:] = (np.diff(by.lane[far]) != 0) | (np.diff(by.turn[far]) != 0)
        is_new[1:] |= (np.diff(kept[far]) != row) | (np.diff(there[far]) != row)
        starts = np.flatnonzero(is_new)
        first = far[starts]
        sends = steps(
            len(first), n_granules=np.diff(np.append(starts, len(far))) * row, operand=kept[first], send=STORE,
            distance=visits.distance[first], destination=there[first], post_signal=signal[first],
            wait_signal=ready + by.lane[first], wait_at_least=due(by.lane, by.turn)[first] * row,
        )  # fmt: skip
        return self.messages(name, sends, by.channel[first])

    def _notify(self, name: str, n_barriers: int, **more: Any) -> tuple[list[Operation], Wait]:
        """Return a kernel of one workgroup in which all GPUs tell each other so many times, and what holds then.

        Each time over the rails first, then in the nodes: so a GPU has heard of all.
        """
        (n, nodes, node), line = (self.n, self.op.ranks.n_nodes, self._node), self.line
        names = (f"{self.label}{name}: {one}" for one in ("written", "from the rail", "from the node"))
        written, come, told = (self.memory.signal(one, n_barriers) for one in names)
        over = self.memory.signal(f"{self.label}{name} is over")
        place = self._buffer(name, n_barriers * n, line)
        rail, near = np.arange(1, nodes) * node, np.arange(1, node)
        column, messages = [steps(1, n_operands=0)], [steps(0)]
        for number in range(n_barriers):
            first = place.first + number * n * line
            column.append(steps(1, n_operands=0, n_granules=1, kept_at=first, post_signal=written[number]))
            column.append(waiting(np.array([come[number]]), np.array([nodes - 1])))
            messages.append(steps(
                nodes - 1, n_granules=1, operand=first, send=STORE, distance=rail, post_signal=come[number],
                destination=first + self.op.ranks.back(rail) * line, wait_signal=written[number], wait_at_least=1,
            ))  # fmt: skip
            tell = steps(node - 1, n_operands=0, n_granules=1, send=STORE, distance=near, post_signal=told[number],
                         destination=first + self.op.ranks.back(near) * line)  # fmt: skip
            column += [tell, waiting(np.array([told[number]]), np.array([node - 1]))] if node > 1 else []
        kernel = self.kernel(name, joined(column).reshape(-1, 1), 1, posts=(Post(over[0]),), **more)
        sends = joined(messages)
        return [kernel, *self.messages(name, sends, 0 * sends["n_granules"])], Wait(over[0], 1)

    def _kernels(
        self, name: str, c: int, first_unit: int, sending: list[Steps], passing: list[Steps], receiving: list[Steps],
        told: Wait, fences: tuple[bool, bool], warps: int, **more: Any,
    ) -> list[Operation]:  # fmt: skip
        """Return the kernels: one that sends, then one that receives, on the same units; a third forwards meanwhile.

        *fences*: whether senders, and forwarding workgroups, tell other GPUs of each batch; the latter have *warps*.
        """
        runs = {"stream": self.stream, **more}
        edge, inner = (first_unit, first_unit + c), (first_unit + c, first_unit + 2 * c)
        fence = self.op.machine.gpu.collective_kernel.slice_overhead
        beside = {**runs, "stream": runs["stream"] + 1, "after": (told,)}
        return [
            self.kernel(f"{name}, senders", in_columns(sending), EDGE_WARPS, units=edge,
                        step_overhead=fence * fences[0], **runs),
            self.kernel(f"{name}, forwarding", in_columns(passing), warps, units=inner,
                        step_overhead=fence * fences[1], **beside),
            self.kernel(f"{name}, receivers", in_columns(receiving), EDGE_WARPS, units=edge, launch=0, **runs),
        ]  # fmt: skip

    # --- normal form -----------------------------------------------------------------------------------

    def dispatch(self, n_units: int, first_unit: int = 0, *, layout: int = NEW, **more: Any) -> list[Operation]:
        """Return the normal dispatch on *n_units* compute units: it leaves the copies of tokens that the rank gets."""
        op, c, row, pitch = self.op, self._channels(n_units), self.op.sent_row, self.sent_pitch
        given = self._buffer("tokens", op.n_tokens, pitch)
        sending = self._buffer("send buffer", self._most(lambda rank: len(op.visits_sent(rank).token)), row)
        rail = self._buffer("rail buffer", self._most(lambda rank: len(op.visits_held(rank).token)), row)
        staged, self.received = (self._buffer(name, self.n_copies, pitch) for name in ("receive buffer", "received"))
        self.inputs, self.outputs = (self._tokens(given, pitch),), (self._copies_held(self.received, pitch),)
        n_lanes, most = op.ranks.n_nodes * c, DISPATCH_MESSAGE[op.n > FEW_GPUS]
        ready, come = (self.memory.signal(self.label + name, n_lanes).first for name in ("to send", "over the rail"))
        arrived = self.memory.signal(f"{self.label}dispatched", self._node * c).first
        notify, told = self._notify("notify dispatch", 2 + (layout == NEW), **more)

        sent = op.visits_sent(self.rank)
        by = self._channels_of(sent, c, most)
        number = np.empty(len(sent.token), np.int64)
        number[np.lexsort((sent.token, sent.distance))] = np.arange(len(number))
        kept, there = sending.first + number * row, rail.first + sent.copy * row
        is_far = sent.distance > 0
        sends = steps(
            len(number), n_granules=row, operand=given.first + sent.token * pitch,
            kept_at=np.where(is_far, kept, there), post_signal=np.where(is_far, ready, come) + by.lane,
        )  # fmt: skip
        signal = come + op.ranks.back(sent.distance) // self._node * c + by.channel
        messages = self._over_rail("dispatch", sent, by, kept, there, row, ready, signal)

        held, forwards = op.visits_held(self.rank), op.forwards(self.rank)
        at, of = self._channels_of(held, c, most), forwards.visit
        passes = copies_to(
            forwards.distance, rail.first + of * row, staged.first + forwards.copy * pitch, row,
            arrived + op.ranks.back(forwards.distance) * c + at.channel[of],
        )  # fmt: skip
        least = due(at.lane, at.turn)[of] * row
        passing = self._receiving(passes, at.channel[of], at.turn[of], come + at.lane[of, None], least[:, None], c)

        got = self._passed_here(c, most)
        receives = steps(
            len(got.copy), n_granules=row, operand=staged.first + got.copy * pitch,
            kept_at=self.received.first + got.copy * pitch,
        )  # fmt: skip
        lane = got.distance * c + got.channel
        least = due(lane, got.turn)[:, None] * row
        receiving = self._receiving(receives, got.channel, got.turn, arrived + lane[:, None], least, c)
        sending_columns = in_batches(sends, by.channel, by.turn, c)
        return [*notify, *messages, *self._kernels(
            "dispatch", c, first_unit, sending_columns, passing, receiving, told, (False, True), FORWARDING_WARPS,
            **more,
        )]  # fmt: skip

    def combine(self, n_units: int, first_unit: int = 0, **more: Any) -> list[Operation]:
        """Return the normal combine on *n_units* compute units: tokens are the sums of what nodes have made of them."""
        op, c, row = self.op, self._channels(n_units), self.op.returned_row
        if not hasattr(self, "reduced"):
            self.reduced = self._buffer("rows of tokens", self.n_copies, row)
            self.inputs = (self._copies_made(self.reduced),)
        places = op.places_of_visits
        staged = self._buffer("rows of the node", self._most(lambda rank: len(op.forwards(rank).copy)), row)
        sending = self._buffer("sums to send", self._most(lambda rank: len(op.visits_held(rank).token)), row)
        back = self._buffer("rows that came back", max(1, *(one.n for one in places)), row)
        results = self.results()
        n_lanes, most = op.ranks.n_nodes * c, COMBINE_MESSAGE[op.n > FEW_GPUS]
        ready, come = (self.memory.signal(self.label + name, n_lanes).first for name in ("summed", "came back"))
        arrived = self.memory.signal(f"{self.label}combined", self._node * c).first
        notify, told = self._notify("notify combine", 2, **more)

        own = self._passed_here(c, most)
        sends = copies_to(
            own.distance, self.reduced.first + own.copy * row, staged.first + own.number * row, row,
            arrived + op.ranks.back(own.distance) * c + own.channel,
        )  # fmt: skip
        order = np.argsort((own.distance - 1) % self._node, kind="stable")
        sending_columns = in_batches(sends[order], own.channel[order], own.turn[order], c)

        held, forwards = op.visits_held(self.rank), op.forwards(self.rank)
        at, of = self._channels_of(held, c, most), forwards.visit
        n_rows = np.bincount(of, minlength=len(held.token))
        first = np.cumsum(n_rows) - n_rows
        kept = sending.first + held.copy * row
        there = back.first + self._places(places, held.distance, held.token, held.index) * row
        signal = come + op.ranks.back(held.distance) // self._node * c + at.channel
        is_far = held.distance > 0
        sums = steps(
            len(n_rows), n_granules=row, n_operands=n_rows, operand=staged.first + first * row, stride=row,
            kept_at=np.where(is_far, kept, there), post_signal=np.where(is_far, ready + at.lane, signal),
        )  # fmt: skip
        lane = forwards.distance * c + at.channel[of]
        which, least = (np.full((len(n_rows), self._node), NONE) for _ in range(2))
        which[of, forwards.distance] = arrived + lane
        least[of, forwards.distance] = due(lane, at.turn[of]) * row
        summing = self._receiving(sums, at.channel, at.turn, which, least, c)
        messages = self._over_rail("combine", held, at, kept, there, row, ready, signal)

        here, sent = places[self.rank % len(places)], op.visits_sent(self.rank)
        by = self._channels_of(sent, c, most)
        token = np.flatnonzero(here.count)
        which, least = (np.full((op.n_tokens, op.ranks.n_nodes), NONE) for _ in range(2))
        which[sent.token, sent.index] = come + by.lane
        least[sent.token, sent.index] = due(by.lane, by.turn) * row
        batch = np.arange(len(token)) // EDGE_WARPS
        final = self._sums(here, token, back, results, row)
        receiving = self._receiving(final, batch % c, batch // c, which[token], least[token], c)
        return [*notify, *messages, *self._kernels(
            "combine", c, first_unit, sending_columns, summing, receiving, told, (True, False), SUMMING_WARPS, **more,
        )]  # fmt: skip


def in_batches(every: Steps, channel: Ints, turn: Ints, n_channels: int) -> list[Steps]:
    """Return the columns of channels, each in its turns, in which steps are made concurrently."""
    order = np.lexsort((turn, channel))
    mine = (order[channel[order] == number] for number in range(n_channels))
    return [batched(every[one], turn[one]) for one in mine]


def due(lane: Ints, batch: Ints) -> Ints:
    """Return for each row how many rows of its *lane* there are in batches up to its own."""
    order = np.lexsort((batch, lane))
    lanes, batches = lane[order], batch[order]
    is_last = np.ones(len(order), bool)
    is_last[:-1] = (np.diff(lanes) != 0) | (np.diff(batches) != 0)
    ends = np.flatnonzero(is_last)
    found = np.empty(len(order), np.int64)
    found[order] = ends[np.searchsorted(ends, np.arange(len(order)))] + 1 - np.searchsorted(lanes, lanes)
    return found
