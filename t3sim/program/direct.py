"""All-reduces by direct loads: one-shot, two-shot and multimem kernels over memory that all GPUs of a host can address.

*One-shot*: each GPU loads the whole array from all GPUs and adds it up.  *One-shot push*: each stores its array at all
GPUs, and adds up what has arrived.  The data are their own flags (nothing has arrived where a value stands that no
element has), so there is no barrier; the buffers of the call before are cleared.  *Two-shot*: each GPU adds up its own
chunk; then the sums are exchanged: each GPU stores its own at all others (*push*), or loads those of the others
(*pull*).  *Multimem*: it loads the sums of its own chunk from the switch and stores them at all GPUs with multicast
stores.  A barrier before the first load says that the inputs of all GPUs are complete, another one that the sums are,
or that inputs may be overwritten.  A barrier is a flag that each workgroup stores at every other GPU, and polls for.

Leaves out: that flags of several GPUs share a line; loads of a thread's next round before the stores of this one.  In a
two-shot push the sums are read back from memory before they are sent to other GPUs; the real kernel has them in
registers.
Pinned by ``tests/collective/test_direct.py``.
"""

from itertools import zip_longest

from t3sim.collective.direct import THREAD_BYTES, DirectKernel
from t3sim.program.contents import Content
from t3sim.program.kernels import program, refuse_several_nodes, refuse_without_multicast
from t3sim.program.operations import STEP, STORE, Buffer, Memory, Moves, Program, table
from t3sim.program.operator import Operator

WARP = 32  # threads

Step = dict[str, int]


class _Steps:
    """The steps of a kernel in the making: a column for each workgroup."""

    def __init__(self, op: Operator, memory: Memory, kernel: DirectKernel, n_workgroups: int) -> None:
        self.op, self.memory, self.kernel, self.n_workgroups = op, memory, kernel, n_workgroups
        self.columns: list[list[Step]] = [[] for _ in range(n_workgroups)]

    def share(self, n_granules: int, workgroup: int) -> tuple[int, int]:
        """Return the part of *n_granules* that a workgroup has: first granule and length, in whole lines."""
        line, n = self.op.line, self.n_workgroups
        each = -(-n_granules // (line * n)) * line
        first = min(workgroup * each, n_granules)
        return first, min(each, n_granules - first)

    def flags(self, name: str, *, of_all: bool = False) -> list[Step]:
        """Let each workgroup store a flag at every other GPU; return what each has to wait for.

        The flags of the workgroups of its own number; *of_all*: of all workgroups, those of its own GPU included.
        """
        n, n_workgroups, line = self.op.n, self.n_workgroups, self.op.line
        places = self.memory.buffer(name, n * n_workgroups * line)
        told = self.memory.signal(name, 1 if of_all else n_workgroups)
        waits = []
        for w, column in enumerate(self.columns):
            signal, place = told[0 if of_all else w], places.first + w * n * line
            flag = {"n_granules": 1, "post_signal": signal}
            column += [{**flag, "send": STORE, "distance": d, "destination": place + d * line} for d in range(1, n)]
            if of_all:
                column.append({**flag, "kept_at": place})
            waits.append({"wait_signal": signal, "wait_at_least": n * n_workgroups if of_all else n - 1})
        return waits

    def moves(self, name: str, rounds: int = 1, launch: int | None = None) -> Moves:
        """Return the kernel; each thread has *rounds* loads of 16 B outstanding at a time, from each GPU."""
        gpu = self.op.machine.gpu
        rows = [row for group in zip_longest(*self.columns, fillvalue={}) for row in group]
        lines = WARP * THREAD_BYTES // gpu.l2.line * rounds
        has_wavefronts = gpu.collective_kernel.n_wavefronts > 0
        return Moves(
            name=name, steps=table(STEP, rows).reshape(-1, self.n_workgroups), n_workgroups=self.n_workgroups,
            launch=launch, wake=gpu.compute_unit.flag_latency + self.kernel.fence(self.op.machine),
            wavefronts=(self.kernel.threads // WARP, lines) if has_wavefronts else None,
        )  # fmt: skip


def direct_program(op: Operator, rank: int, kernel: DirectKernel) -> Program:
    """Return the all-reduce of an array of n chunks like the output of *op* by *kernel*, as *rank* runs it.

    Chunk p of a rank's memory is chunk (rank + p) mod n of the array, as in rings; in libraries it is chunk p.
    """
    refuse_several_nodes(op, kernel.form)
    memory, n, c = op.memory(), op.n, op.chunk_granules
    kernel = kernel.fitted(n * c * op.granule, op.machine.gpu.n_compute_units)
    n_workgroups = kernel.n_workgroups(n * c * op.granule, n)
    if kernel.form == "one-shot push":
        return _pushed_program(op, rank, kernel, n_workgroups)
    if kernel.form == "multimem":
        return _multimem_program(op, rank, kernel, n_workgroups)
    if kernel.form == "one-shot":
        n_workgroups = -(-n_workgroups // n) * n  # so that none has parts of two chunks, one after the other
    n_workgroups = min(n_workgroups, op.machine.gpu.n_compute_units)
    data = memory.buffer("data", n * c)
    output = memory.buffer("output", n * c)
    first, second = (_Steps(op, memory, kernel, n_workgroups) for _ in range(2))
    is_one_shot = kernel.form == "one-shot"
    operations = [_one_shot(first, data, output)] if is_one_shot else _two_shot(first, second, data, output)
    inputs = tuple(Content(data.first + p * c, c, p, of=0) for p in range(n))
    outputs = tuple(Content(output.first + p * c, c, p, of=None) for p in range(n))
    return program(op, rank, memory, *operations, inputs=inputs, outputs=outputs)


def _pushed_program(op: Operator, rank: int, kernel: DirectKernel, n_workgroups: int) -> Program:
    """Return the all-reduce without a barrier.

    Each workgroup has a part of one chunk, the same one on all GPUs: at position p here, p - d at distance d.
    """
    memory, n, c = op.memory(), op.n, op.chunk_granules
    n_parts = max(min(n_workgroups // n, -(-c // op.line)), 1)  # of a chunk
    data, output = memory.buffer("data", n * c), memory.buffer("output", n * c)
    given, cleared = memory.buffer("given", n * n * c), memory.buffer("cleared", n * n * c)
    steps = _Steps(op, memory, kernel, n * n_parts)
    arrived = memory.signal("arrived", n * n_parts)
    each = -(-c // (op.line * n_parts)) * op.line
    for w, column in enumerate(steps.columns):
        position, part = divmod(w, n_parts)
        start = min(part * each, c)
        length = min(each, c - start)
        if not length:
            continue
        own = {"n_granules": length, "n_operands": 1, "operand": data.first + position * c + start}
        # A thread that has one round stores what it has loaded at all GPUs, and clears, without waiting.
        has_one_round = length * op.granule <= kernel.threads * THREAD_BYTES
        sent_from = len(column)
        for d in range(1, n):
            there = (position - d) % n
            column.append({
                **own, "send": STORE, "distance": d, "post_signal": arrived[there * n_parts + part],
                "destination": given.first + ((n - d) * n + there) * c + start,
            })  # fmt: skip
        column.append({**own, "kept_at": given.first + position * c + start})
        cleared_from = len(column)
        column += [
            {"n_granules": length, "kept_at": cleared.first + (source * n + position) * c + start}
            for source in range(n)
        ]
        if has_one_round:
            column[sent_from]["n_batched"] = column[cleared_from]["n_batched"] = n - 1
        column.append({
            "n_granules": length, "n_operands": n, "operand": given.first + position * c + start, "stride": n * c,
            "kept_at": output.first + position * c + start, "wait_signal": arrived[w],
            "wait_at_least": (n - 1) * length,
        })  # fmt: skip
    inputs = tuple(Content(data.first + p * c, c, p, of=0) for p in range(n))
    outputs = tuple(Content(output.first + p * c, c, p, of=None) for p in range(n))
    return program(op, rank, memory, steps.moves("all-reduce", n), inputs=inputs, outputs=outputs)


def _multimem_program(op: Operator, rank: int, kernel: DirectKernel, n_workgroups: int) -> Program:
    """Return the all-reduce in the switch, with copies before and after it if the library needs them.

    The flag after the sums is a multicast store too, so it reaches each GPU after them, also the sender.
    """
    refuse_without_multicast(op, "multimem")
    memory, n, c = op.memory(), op.n, op.chunk_granules
    given = memory.buffer("input", n * c) if kernel.copies else None
    data, sums = memory.buffer("data", n * c), memory.buffer("sums", n * c)
    output = memory.buffer("output", n * c) if kernel.copies else sums
    steps, line, own = (
        _Steps(op, memory, kernel, min(n_workgroups, op.machine.gpu.n_compute_units)),
        op.line,
        (n - 1) * c,
    )
    ready = steps.flags("inputs are complete")
    flags, told = (
        memory.buffer("sums are there", n * steps.n_workgroups * line),
        memory.signal("sums", steps.n_workgroups),
    )
    to_all = {"is_multicast": 1, "send": STORE}
    for w, column in enumerate(steps.columns):
        start, length = steps.share(c, w)
        column.append({
            "n_granules": length, "is_reduced": 1, "n_operands": n, "operand": data.first + own + start, "stride": -c,
            "source_stride": 1, **to_all, "destination": sums.first + own + start, "spread": c, **ready[w],
        })  # fmt: skip
        place = flags.first + (w * n + n - 1) * line
        column.append({"n_granules": 1, **to_all, "destination": place, "spread": line, "post_signal": told[w]})
        column.append({"wait_signal": told[w], "wait_at_least": n})
    operations = [steps.moves("all-reduce")]
    if given is not None:
        operations = [_copy("copy in", given, data), *operations, _copy("copy out", sums, output)]
    inputs = tuple(Content((given or data).first + p * c, c, p, of=0) for p in range(n))
    outputs = tuple(Content(output.first + p * c, c, p, of=None) for p in range(n))
    return program(op, rank, memory, *operations, inputs=inputs, outputs=outputs)


def _copy(name: str, given: Buffer, to: Buffer) -> Moves:
    """Return a kernel on all compute units that copies a buffer."""
    step = {"n_granules": given.n_granules, "n_operands": 1, "operand": given.first, "kept_at": to.first}
    return Moves(name=name, steps=table(STEP, [step]).reshape(1, 1))


def _one_shot(steps: _Steps, data: Buffer, output: Buffer) -> Moves:
    """Return the kernel that adds up the whole array.

    At position q of the GPU at distance d is chunk q + d of this rank: for chunk p, operand q lies at distance p - q.
    """
    c, n = steps.op.chunk_granules, steps.op.n
    ready = steps.flags("inputs are complete")
    for w, column in enumerate(steps.columns):
        column += [
            {
                "n_granules": part, "n_operands": n, "operand": data.first + start, "stride": c, "source": position,
                "source_stride": -1, "kept_at": output.first + position * c + start, **ready[w],
            }
            for position, start, part in _pieces(steps, w, n)
        ]  # fmt: skip
    done = steps.flags("inputs may be overwritten")
    for w, column in enumerate(steps.columns):
        column.append(done[w])
    return steps.moves("all-reduce")


def _two_shot(first: _Steps, second: _Steps, data: Buffer, output: Buffer) -> list[Moves]:
    """Return the two stages of a two-shot kernel, of which the second follows without a launch.

    The chunk that a rank adds up is the last one in its memory.
    """
    c, n = first.op.chunk_granules, first.op.n
    own, is_pull = (n - 1) * c, first.kernel.form == "two-shot pull"
    sums = first.memory.buffer("sums", c) if is_pull else None
    kept = output.first + own if sums is None else sums.first
    ready = first.flags("inputs are complete")
    for w, column in enumerate(first.columns):
        start, length = first.share(c, w)
        column.append({
            "n_granules": length, "n_operands": n, "operand": data.first + own + start, "stride": -c,
            "source_stride": 1, "kept_at": kept + start, **ready[w],
        })  # fmt: skip
    if sums is None:
        for w, column in enumerate(second.columns):
            for position, start, part in _pieces(second, w, n - 1):
                place = kept + start
                column.append({
                    "n_granules": part, "n_operands": 1, "operand": place, "send": STORE, "distance": position + 1,
                    "destination": place - (position + 1) * c,
                })  # fmt: skip
        done = second.flags("sums are there", of_all=True)
    else:
        told = first.flags("sums are complete", of_all=True)
        done = [{}] * first.n_workgroups
        for w, column in enumerate(second.columns):
            for position, start, part in _pieces(second, w, n):
                column.append({
                    "n_granules": part, "n_operands": 1, "operand": sums.first + start, "source": position,
                    "kept_at": output.first + (n - 1 + position) % n * c + start, **told[w],
                })  # fmt: skip
    for w, column in enumerate(second.columns):
        if done[w]:
            column.append(done[w])
    return [first.moves("all-reduce, sums"), second.moves("all-reduce, exchange", n, launch=0)]


def _pieces(steps: _Steps, workgroup: int, n_chunks: int) -> list[tuple[int, int, int]]:
    """Return the pieces of *n_chunks* that a workgroup has: number of the chunk, first granule inside it, length."""
    c, found = steps.op.chunk_granules, []
    first, length = steps.share(n_chunks * c, workgroup)
    while length > 0:
        number, inside = divmod(first, c)
        part = min(length, c - inside)
        found.append((number, inside, part))
        first, length = first + part, length - part
    return found
