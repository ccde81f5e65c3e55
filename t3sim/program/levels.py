"""Direct collectives on one node, and hierarchical ones on several: a reduce-scatter in the node, one over the rails,
an all-gather over the rails, one in the node.

*In the node* each GPU stores its part of a chunk at the owner, which adds up what has arrived; sums are stored at all
others.  *Over the rails* GPUs of the same number do the same by messages of their network interfaces, which read memory
themselves.  A chunk belongs to the GPU at its distance; a chunk of the node is those of the GPUs of its rail.  On one
node the rails have one GPU, so what is left is the direct algorithm.  With near-memory reduction what is sent is added
where it arrives, and no kernel adds up.
Leaves out: receive buffers of an all-gather (the library's, unless the user registers the output).
Pinned by ``tests/collective/test_levels.py``.
"""

from typing import Any, NamedTuple

from t3sim.collective.schedule import Op
from t3sim.program.contents import Content
from t3sim.program.kernels import Units, program
from t3sim.program.operations import STORE, UPDATE, Buffer, Memory, Moves, Program, Signals, Wait
from t3sim.program.operator import Operator
from t3sim.program.roles import Piece, Roles, pieces_of


class Levels:
    """A collective of an array of n chunks of *c* granules: N nodes (rails have N GPUs) of G GPUs."""

    def __init__(
        self,
        op: Operator,
        memory: Memory,
        collective: Op,
        c: int,
        units: Units = None,
        *,
        has_near_memory: bool = False,
    ) -> None:
        self.op, self.memory, self.c, self._has_near_memory = op, memory, c, has_near_memory
        self.nodes, self.gpus = op.ranks.n_nodes, op.ranks.per_node
        self.pieces = pieces_of(op, self.c)
        reduces, gathers = collective != "all-gather", collective != "reduce-scatter"
        adds = reduces and not has_near_memory
        used = {
            "scatter": reduces and self.gpus > 1, "reduce": adds and self.gpus > 1,
            "rail reduce": adds and self.nodes > 1, "gather": gathers and self.gpus > 1,
        }  # fmt: skip
        names = [name for name, is_used in used.items() if is_used]
        self.roles = Roles(op, names or ["copy"] * (not has_near_memory), units)
        self.waits: list[Wait] = []  # for what arrives last

    def signals(self, name: str, n: int = 1) -> list[Signals]:
        """Return *n* signals for each piece."""
        return [self.memory.signal(f"{name} {i}", n) for i in range(len(self.pieces))]

    def place(self, gpu: int, node: int) -> int:
        """Return which chunk of the input is the one of the GPU at this distance: the own block comes last.

        Of one GPU in a node it is the own chunk that does.
        """
        found: int = place_of(self.op, node * self.gpus + gpu)
        return found

    # --- reduce-scatter ------------------------------------------------------------------------------

    def scatter(self, data: Buffer, to: Buffer) -> list[Signals]:
        """Reduce the own block over the node, chunk by chunk to *to*, the own one last; return signals of each piece.

        *data* has room for what arrives, after the input: the block of each other GPU.
        """
        n, g, c = self.nodes, self.gpus, self.c
        arrived, summed = self.signals("parts have arrived"), self.signals("sums of the node", n)
        turn = 0
        for i, start, length in self.pieces:
            for k in range(n):
                for gpu in range(1, g):
                    self.roles.add("scatter", turn, {
                        "n_granules": length, "n_operands": 1, "operand": data.first + ((gpu - 1) * n + k) * c + start,
                        "send": STORE, "distance": gpu, "post_signal": arrived[i][0],
                        "destination": data.first + ((g - 1 + g - gpu) * n + k) * c + start,
                    })  # fmt: skip
                    turn += 1
        for i, start, length in self.pieces:
            for k in range(n):
                self.roles.add("reduce", i * n + k, {
                    "n_granules": length, "n_operands": g, "stride": n * c,
                    "operand": data.first + ((g - 1) * n + k) * c + start, "wait_signal": arrived[i][0],
                    "wait_at_least": n * (g - 1) * length, "kept_at": to.first + (k - 1) % n * c + start,
                    "post_signal": summed[i][k],
                })  # fmt: skip
        return summed

    def rail_scatter(self, partials: Buffer, summed: list[Signals] | None, to: Buffer) -> list[Signals]:
        """Reduce the own chunk over the rail, from *partials* to the begin of *to*; return signals of each piece.

        *summed*: of each piece and node, that the part is there; None: it is from the start.
        """
        n, g, c = self.nodes, self.gpus, self.c
        arrived, done = self.signals("parts of the rail have arrived"), self.signals("sums are there")
        for i, start, length in self.pieces:
            for k in range(1, n):
                step = {
                    "n_granules": length, "operand": partials.first + (k - 1) * c + start, "distance": k * g,
                    "destination": partials.first + (n - 1 + n - k) * c + start, "post_signal": arrived[i][0],
                }  # fmt: skip
                self.roles.send_message(step | self._after(summed, i, k, length))
        for i, start, length in self.pieces:
            own = self._after(summed, i, 0, length)
            if own:  # an empty step that waits for the own part
                self.roles.add("rail reduce", i, own)
            self.roles.add("rail reduce", i, {
                "n_granules": length, "n_operands": n, "stride": c, "operand": partials.first + (n - 1) * c + start,
                "wait_signal": arrived[i][0], "wait_at_least": (n - 1) * length, "kept_at": to.first + start,
                "post_signal": done[i][0],
            })  # fmt: skip
        return done

    def _after(self, signals: list[Signals] | None, i: int, k: int, length: int) -> dict[str, int]:
        """Return the wait of a step for signal *k* of piece *i*."""
        return {} if signals is None else {"wait_signal": signals[i][k], "wait_at_least": length}

    def update(self, data: Buffer) -> None:
        """Add, near memory, the parts of the node in the blocks of *data*, and then the own chunk over the rail."""
        n, g, c = self.nodes, self.gpus, self.c
        added, done = self.signals("parts of the node", n), self.memory.signal("parts of the rail")
        own, turn = [data.first + self.place(0, k) * c for k in range(n)], 0
        for i, start, length in self.pieces:
            for k in [*range(1, n), 0]:
                for gpu in range(1, g):
                    self.roles.add("scatter", turn, {
                        "n_granules": length, "n_operands": 1, "operand": data.first + self.place(gpu, k) * c + start,
                        "send": UPDATE, "distance": gpu, "destination": own[k] + start, "post_signal": added[i][k],
                    })  # fmt: skip
                    turn += 1
            due = (g - 1) * length
            for k in range(1, n):
                after = {"wait_signal": added[i][k], "wait_at_least": due} if g > 1 else {}
                self.roles.send_message({
                    "n_granules": length, "operand": own[k] + start, "distance": k * g, "destination": own[0] + start,
                    "post_signal": done[0], **after, "send": UPDATE,
                })  # fmt: skip
            self.waits += [Wait(added[i][0], due)] if g > 1 else []
        self.waits += [Wait(done[0], (n - 1) * c)] if n > 1 else []

    # --- all-gather ----------------------------------------------------------------------------------

    def gather(self, own: Buffer, output: Buffer, ready: list[Signals] | None) -> None:
        """Store the own chunk, at the begin of *own*, at all GPUs; *ready*: signals of each piece, None: it is there.

        Block d of *output*, from the GPU at distance d of the node, has a chunk of each node.
        """
        n, g, c = self.nodes, self.gpus, self.c
        come, local = self.signals("chunks of the rail", n), self.memory.signal("chunks of the node")
        for i, start, length in self.pieces:
            for k in range(1, n):
                self.roles.send_message({
                    "n_granules": length, "operand": own.first + start, "distance": k * g,
                    "destination": output.first + (n - k) * c + start, "post_signal": come[i][n - k],
                    **self._after(ready, i, 0, length),
                })  # fmt: skip
        turn = 0
        for i, start, length in self.pieces:
            for k in range(n):
                after = self._after(ready, i, 0, length) if k == 0 else self._after(come, i, k, length)
                for gpu in range(1, g):
                    place = own.first if k == 0 else output.first + k * c
                    self.roles.add("gather", turn, {
                        "n_granules": length, "n_operands": 1, "operand": place + start, "send": STORE, "distance": gpu,
                        "destination": output.first + ((g - gpu) * n + k) * c + start, "post_signal": local[0],
                        **after,
                    })  # fmt: skip
                    turn += 1
        if g > 1:
            self.waits.append(Wait(local[0], (g - 1) * n * c))
        self.waits += [Wait(come[i][k], length) for i, _, length in self.pieces for k in range(1, n)]

    def copy(self, piece: Piece, given: Buffer, to: Buffer) -> None:
        """Copy a piece of the own chunk from *given* to *to*."""
        number, start, length = piece
        step = {"n_granules": length, "n_operands": 1, "operand": given.first + start, "kept_at": to.first + start}
        self.roles.add(next(reversed(self.roles.columns)), number, step)


class Placed(NamedTuple):
    """A collective on the places of its own buffers."""

    kernels: list[Moves]
    data: Buffer
    output: Buffer
    inputs: tuple[Content, ...]
    outputs: tuple[Content, ...]


def levels(
    op: Operator, memory: Memory, collective: Op, name: str = "", c: int | None = None, units: Units = None,
    *, has_near_memory: bool = False,
) -> Placed:  # fmt: skip
    """Return *collective* of an array of n chunks of *c* granules (None: those of *op*) on *units*; see the module.

    The names of its buffers begin with *name*.
    """
    c = op.chunk_granules if c is None else c
    of = Levels(op, memory, collective, c, units, has_near_memory=has_near_memory)
    n, g = op.ranks.n_nodes, op.ranks.per_node
    is_scatter, is_gather = collective == "reduce-scatter", collective == "all-gather"
    room = 0 if is_gather or has_near_memory else (g - 1) * n if g > 1 else n - 1  # for what arrives, after the input
    data = memory.buffer(f"{name}data", (1 if is_gather else op.n + room) * c)
    output = data if has_near_memory else memory.buffer(f"{name}output", (1 if is_scatter else op.n) * c)
    ready = None
    if is_gather:
        for piece in of.pieces:
            of.copy(piece, data, output)
    elif has_near_memory:
        of.update(data)
    else:
        ready = _reduced(of, data, output, name)
    if not is_scatter:
        of.gather(data if is_gather else output, output, ready)
    every = [(gpu, k) for gpu in range(g) for k in range(n)]
    inputs = tuple(Content(data.first + of.place(gpu, k) * c, c, k * g + gpu, of=0) for gpu, k in every)
    if is_gather:
        inputs = (Content(data.first, c, 0, of=0),)
    outputs = tuple(
        Content(output.first + (gpu * n + k) * c, c, k * g + gpu, of=k * g + gpu if is_gather else None)
        for gpu, k in (every[:1] if is_scatter else every)
    )
    if has_near_memory:
        outputs = (Content(data.first + of.place(0, 0) * c, c, 0, of=None),)
    return Placed(of.roles.operations(of.waits), data, output, inputs, outputs)


def levels_program(
    op: Operator, rank: int, collective: Op, units: Units = None, *, has_near_memory: bool = False
) -> Program:
    """Return *collective* of an array of n chunks as *rank* runs it, on *units* or all compute units."""
    memory = op.memory()
    placed = levels(op, memory, collective, units=units, has_near_memory=has_near_memory)
    return program(op, rank, memory, *placed.kernels, inputs=placed.inputs, outputs=placed.outputs)


def place_of(op: Operator, owner: Any) -> Any:
    """Return which chunk of the data of a reduce-scatter belongs to the GPU at the distance *owner*, or at several."""
    n, g = op.ranks.n_nodes, op.ranks.per_node
    return (owner // g - 1) % n if g == 1 else (owner % g - 1) % g * n + owner // g


def _reduced(of: Levels, data: Buffer, output: Buffer, name: str) -> list[Signals]:
    """Reduce and scatter *data* to the begin of *output*; return the signals of each piece."""
    if of.nodes == 1:
        return of.scatter(data, output)
    if of.gpus == 1:
        return of.rail_scatter(data, None, output)
    partials = of.memory.buffer(f"{name}sums of the node", (2 * of.nodes - 1) * of.c)
    return of.rail_scatter(partials, of.scatter(data, partials), output)
