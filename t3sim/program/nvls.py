"""NCCL's collectives in the switch (NVLS): all-reduce, reduce-scatter and all-gather by multicast and load-reduce.

A channel has three roles, each a group of warps: *scatter* copies the input to a staging buffer that all GPUs have
mapped for multicast; *reduce* loads the sums of its own chunk from the switch and stores them at every GPU (all-reduce)
or keeps them (reduce-scatter), or stores its own chunk at every GPU (all-gather); *gather* copies what has arrived to
the output.  A channel takes a piece of the chunk of every GPU at a time (a loop), and its roles work on consecutive
loops.  The chunk that a rank reduces is the last one in its memory.

Source: NCCL 2.29, ``src/device/all_reduce.h`` (``RunWorkColl`` of NVLS) and ``src/enqueue.cc`` (chunks).
Leaves out: that the roles of a channel share a compute unit, here each has one; the limited size of staging buffers.
Pinned by ``tests/collective/test_nvls.py``.
"""

from collections.abc import Callable

from t3sim.collective.nvls import piece_bytes
from t3sim.collective.schedule import Op
from t3sim.config.collective_kernel import NvlsSpec
from t3sim.errors import UsageError
from t3sim.program.contents import Content
from t3sim.program.kernels import program, refuse_without_multicast
from t3sim.program.operations import STEP, STORE, Buffer, Memory, Moves, Program, Signals, table
from t3sim.program.operator import Operator

Step = dict[str, int]
Piece = tuple[int, int, int, int]  # number of its loop and channel together, channel, first granule in a chunk, length


class _Channels:
    """The pieces of a collective, and what its roles have in common."""

    def __init__(self, op: Operator, spec: NvlsSpec, collective: Op) -> None:
        c, line = op.chunk_granules, op.line
        n_channels = min(spec.channels, -(-c // line))
        piece = piece_bytes(spec, n_channels, op.n, c * op.n * op.granule)
        each = min(max(piece // (line * op.granule), 1) * line, -(-c // (n_channels * line)) * line)
        self.op, self.spec, self.n_channels = op, spec, n_channels
        starts = range(0, c, each)
        self.pieces: list[Piece] = [(i, i % n_channels, start, min(each, c - start)) for i, start in enumerate(starts)]
        self.collective = collective

    def role(
        self, name: str, number: int, n_warps: int, steps_of: Callable[[Piece], list[Step]], *, waits: bool = True
    ) -> Moves:
        """Return the kernel of a role: a column for each channel; *waits*: each piece for a flag."""
        columns: list[list[Step]] = [[] for _ in range(self.n_channels)]
        for piece in self.pieces:
            columns[piece[1]] += steps_of(piece)
        longest = max(map(len, columns))
        rows = [column[i] if i < len(column) else {} for i in range(longest) for column in columns]
        n, spec = self.n_channels, self.spec
        reduces = name == "reduce"  # a fence and a barrier for each step, where the others have one for several
        return Moves(
            name=name, steps=table(STEP, rows).reshape(-1, n), n_workgroups=n, units=(number * n, (number + 1) * n),
            stream=number, startup=spec.launch, wake=spec.step_overhead if waits else 0,
            step_overhead=spec.step_overhead if reduces else 0, wavefronts=(n_warps, spec.warp_lines),
        )  # fmt: skip


def nvls_program(op: Operator, rank: int, collective: Op) -> Program:
    """Return *collective* of an array of n chunks as *rank* runs it.

    Raises ``UsageError`` if the machine has no collectives in the switch.
    """
    spec = op.machine.gpu.collective_kernel.nvls
    if spec is None:
        raise UsageError("machine.gpu.collective_kernel.nvls: this machine has no collectives in the switch")
    refuse_without_multicast(op, "NVLS")
    channels = _Channels(op, spec, collective)
    n_units = op.machine.gpu.n_compute_units
    if 3 * channels.n_channels > n_units:
        raise UsageError(
            f"machine.gpu.collective_kernel.nvls.channels: 3 x {channels.n_channels} are more than {n_units} units"
        )
    memory = op.memory()
    make = {"all-reduce": _all_reduce, "reduce-scatter": _reduce_scatter, "all-gather": _all_gather}[collective]
    operations, inputs, outputs = make(channels, memory)
    return program(op, rank, memory, *operations, inputs=inputs, outputs=outputs)


Made = tuple[list[Moves], tuple[Content, ...], tuple[Content, ...]]


def _all_reduce(of: _Channels, memory: Memory) -> Made:
    """Return the three roles: scatter, reduce to every GPU, gather."""
    n, c = of.op.n, of.op.chunk_granules
    data, staged = memory.buffer("data", n * c), memory.buffer("staged", n * c)
    sums, output = memory.buffer("sums", n * c), memory.buffer("output", n * c)
    arrived = memory.signal("sums are there", len(of.pieces))
    scatter, is_staged = _scatter(of, memory, data, staged)

    def reduce(piece: Piece) -> list[Step]:
        number, _, start, length = piece
        step = {**_sum(of, staged, start), **_to_all(of, sums, start), "n_granules": length}
        return [{**step, "wait_signal": is_staged[number], "wait_at_least": n, "post_signal": arrived[number]}]

    roles = [
        scatter, of.role("reduce", 1, of.spec.reduce_warps, reduce),
        of.role("gather", 2, of.spec.gather_warps, _gathered(of, sums, output, arrived)),
    ]  # fmt: skip
    inputs = tuple(Content(data.first + p * c, c, p, of=0) for p in range(n))
    return roles, inputs, tuple(Content(output.first + p * c, c, p, of=None) for p in range(n))


def _reduce_scatter(of: _Channels, memory: Memory) -> Made:
    """Return two roles: scatter, and reduce, which keeps the sums."""
    n, c = of.op.n, of.op.chunk_granules
    data, staged, output = memory.buffer("data", n * c), memory.buffer("staged", n * c), memory.buffer("output", c)
    scatter, is_staged = _scatter(of, memory, data, staged)

    def reduce(piece: Piece) -> list[Step]:
        number, _, start, length = piece
        step = {**_sum(of, staged, start), "n_granules": length, "kept_at": output.first + start}
        return [{**step, "wait_signal": is_staged[number], "wait_at_least": n}]

    roles = [scatter, of.role("reduce", 1, of.spec.reduce_warps, reduce)]
    inputs = tuple(Content(data.first + p * c, c, p, of=0) for p in range(n))
    return roles, inputs, (Content(output.first, c, n - 1, of=None),)


def _all_gather(of: _Channels, memory: Memory) -> Made:
    """Return two roles: one stores the own chunk at every GPU, the other gathers."""
    n, c = of.op.n, of.op.chunk_granules
    data, staged, output = memory.buffer("data", c), memory.buffer("staged", n * c), memory.buffer("output", n * c)
    arrived = memory.signal("chunks are there", len(of.pieces))

    def broadcast(piece: Piece) -> list[Step]:
        number, _, start, length = piece
        step = {"n_granules": length, "n_operands": 1, "operand": data.first + start, **_to_all(of, staged, start)}
        return [{**step, "post_signal": arrived[number]}]

    roles = [
        of.role("broadcast", 0, of.spec.scatter_warps, broadcast, waits=False),
        of.role("gather", 1, of.spec.gather_warps, _gathered(of, staged, output, arrived)),
    ]
    outputs = tuple(Content(output.first + p * c, c, (p + 1) % n, of=(p + 1) % n) for p in range(n))
    return roles, (Content(data.first, c, 0, of=0),), outputs


def _sum(of: _Channels, staged: Buffer, start: int) -> Step:
    """Return the operands of a sum over all GPUs of the own chunk."""
    n, c = of.op.n, of.op.chunk_granules
    first = staged.first + (n - 1) * c + start
    return {"is_reduced": 1, "n_operands": n, "operand": first, "stride": -c, "source_stride": 1}


def _to_all(of: _Channels, there: Buffer, start: int) -> Step:
    """Return where the own chunk is stored at every GPU."""
    n, c = of.op.n, of.op.chunk_granules
    return {"is_multicast": 1, "send": STORE, "destination": there.first + (n - 1) * c + start, "spread": c}


def _scatter(of: _Channels, memory: Memory, data: Buffer, staged: Buffer) -> tuple[Moves, Signals]:
    """Return the role that copies the input to the staging buffer, and signals: n once a piece is there on all GPUs.

    The flag of a piece goes to the GPU that reduces the chunk, after the copy.
    """
    op, n, c = of.op, of.op.n, of.op.chunk_granules
    flags = memory.buffer("flags", n * len(of.pieces) * op.line)
    is_staged = memory.signal("pieces are staged", len(of.pieces))

    def copies(piece: Piece) -> list[Step]:
        number, _, start, length = piece
        steps: list[Step] = []
        for p in range(n):
            place = p * c + start
            steps.append({
                "n_granules": length, "n_operands": 1, "operand": data.first + place, "kept_at": staged.first + place
            })  # fmt: skip
            distance = (p + 1) % n
            to = flags.first + (number * n + distance) * op.line
            where = {"send": STORE, "distance": distance, "destination": to} if distance else {"kept_at": to}
            steps.append({"n_granules": 1, "post_signal": is_staged[number], **where})
        return steps

    return of.role("scatter", 0, of.spec.scatter_warps, copies, waits=False), is_staged


def _gathered(of: _Channels, there: Buffer, output: Buffer, arrived: Signals) -> Callable[[Piece], list[Step]]:
    """Return the steps of the role that copies to the output what has arrived of a piece from all GPUs."""
    n, c = of.op.n, of.op.chunk_granules

    def steps(piece: Piece) -> list[Step]:
        number, _, start, length = piece
        step = {"n_granules": length, "n_operands": 1, "wait_signal": arrived[number], "wait_at_least": n * length}
        places = [p * c + start for p in range(n)]
        return [{**step, "operand": there.first + place, "kept_at": output.first + place} for place in places]

    return steps
