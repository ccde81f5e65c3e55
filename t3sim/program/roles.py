"""Roles of a collective: kernels that run concurrently, each with a column of steps for each channel, and NIC sends."""

import itertools
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from t3sim.errors import UsageError
from t3sim.program.operations import NIC, STEP, STORE, Moves, Wait, table
from t3sim.program.operator import Operator

PIECES_OF_CHUNK = 4  # a piece is a step of the buffer, a ring's chunk four of them

Step = dict[str, int]
Piece = tuple[int, int, int]  # number, first granule in a chunk, length


def pieces_of(op: Operator, n_granules: int) -> list[Piece]:
    """Return the pieces in which the library's kernels send *n_granules*: as of its point-to-point protocol."""
    spec, line = op.machine.gpu.collective_kernel, op.line
    piece = max(spec.channel_chunk // PIECES_OF_CHUNK // (line * op.granule), 1) * line
    least = max(spec.least_slice // (line * op.granule), 1) * line
    share = -(-n_granules // (spec.channels * line)) * line  # of a channel
    each = min(piece, max(share, least))
    starts = range(0, n_granules, each)
    return [(number, start, min(each, n_granules - start)) for number, start in enumerate(starts)]


class Roles:
    """The roles of a collective in the making."""

    def __init__(self, op: Operator, names: Sequence[str], units: tuple[int, int] | None = None) -> None:
        """Each of *names* gets its own compute units, of *units* (None: all), one for each channel.

        ``UsageError`` if there are too few.
        """
        spec = op.machine.gpu.collective_kernel
        self._first, stop = units or (0, op.machine.gpu.n_compute_units)
        n_units = stop - self._first
        if len(names) > n_units:
            key = "machine.gpu.n_compute_units" if units is None else "strategy.communication_units"
            least = len(names)
            raise UsageError(f"{key}: is {n_units}, and the collective has {least} concurrent kernels; take {least}")
        self.op, self.n_channels = op, min(spec.channels, n_units // max(len(names), 1))
        self.columns: dict[str, list[list[Step]]] = {name: [[] for _ in range(self.n_channels)] for name in names}
        self.messages: list[Step] = []

    def add(self, name: str, turn: int, step: Step) -> None:
        """Give a step to a role: the *turn*-th one goes to channel *turn* mod channels."""
        self.columns[name][turn % self.n_channels].append(step)

    def send_message(self, step: Step) -> None:
        """Let the network interface send a step: operand, distance, destination, what it waits for and posts."""
        self.messages.append({"n_operands": 1, "send": STORE, **step})

    def operations(self, until: Sequence[Wait] = ()) -> list[Moves]:
        """Return the kernels; the last one has not ended before *until* holds."""
        spec = self.op.machine.gpu.collective_kernel
        made = [
            Moves(
                name=name, steps=self._table(columns), n_workgroups=self.n_channels,
                units=(self._first + i * self.n_channels, self._first + (i + 1) * self.n_channels), stream=i,
                startup=spec.launch,
                wake=spec.slice_overhead, until=tuple(until) if i == 0 else (),
            )
            for i, (name, columns) in enumerate(self.columns.items())
        ]  # fmt: skip
        return made + nic_sends(self.op, self.messages, len(made), until=() if made else until)

    def receiver(self, until: Sequence[Wait]) -> Moves:
        """Return the kernel of a GPU that only receives: it ends when *until* holds."""
        spec = self.op.machine.gpu.collective_kernel
        return Moves(
            name="receive", steps=table(STEP, [{}]).reshape(1, 1), n_workgroups=1, units=(0, 1), startup=spec.launch,
            until=tuple(until),
        )  # fmt: skip

    def _table(self, columns: list[list[Step]]) -> NDArray[Any]:
        longest = max(map(len, columns), default=0)
        rows = [column[i] if i < len(column) else {} for i in range(max(longest, 1)) for column in columns]
        return table(STEP, rows).reshape(-1, len(columns))


def nic_sends(
    op: Operator,
    messages: Sequence[Step],
    stream: int,
    until: Sequence[Wait] = (),
    *,
    apart: Sequence[Sequence[Step]] = (),
    **more: Any,
) -> list[Moves]:
    """Return *messages* (steps of ``STEP`` that send) dealt to the queue pairs of the network interface, in order.

    Each group *apart* has queue pairs of its own, as far as there are enough, so that none waits for the others.
    """
    nic, groups = op.machine.link.nic, [group for group in (messages, *apart) if group]
    if nic is None or not groups:
        return []
    groups = [[*itertools.chain(*groups[i :: nic.queue_pairs])] for i in range(min(nic.queue_pairs, len(groups)))]
    columns: list[Sequence[Step]] = []
    for i, group in enumerate(groups):
        n = min(len(range(i, nic.queue_pairs, len(groups))), len(group))
        columns += [group[k::n] for k in range(n)]
    longest = max(map(len, columns))
    sends = table(STEP, [column[i] if i < len(column) else {} for i in range(longest) for column in columns])
    sends = sends.reshape(-1, len(columns))
    return [Moves(name="messages", steps=sends, engine=NIC, stream=stream, launch=0, until=tuple(until), **more)]
