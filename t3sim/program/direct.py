"""All-reduces by direct loads: one-shot and two-shot kernels over memory that all GPUs of a host can address.

*One-shot*: every GPU loads the whole array from all GPUs and adds it up.  *Two-shot*: every GPU adds up its own chunk,
and the sums are exchanged: stored at all others (*push*), or loaded by them from a scratch buffer (*pull*).  A barrier
before the first load says that the inputs of all GPUs are complete; one after the last access says that they may be
overwritten.  A barrier is a flag that each workgroup stores at every other GPU, and a wait for theirs.

Sources: PyTorch 2.11, ``CUDASymmetricMemoryOps.cu`` (one-shot, two-shot push); vLLM, ``custom_all_reduce.cuh``
(one-shot, two-shot pull).  Leaves out: the cost of a fence before a flag; that flags share lines.
Pinned by ``tests/collective/test_direct.py``.
"""

from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

import numpy as np

from t3sim.program.kernels import program
from t3sim.program.operations import NONE, STEP, STORE, Content, Memory, Moves, Program, table
from t3sim.program.operator import Operator

THREAD_BYTES = 16  # a load or store of a thread
WARP = 32  # threads


@dataclass(frozen=True)
class DirectKernel:
    """A kernel of a library: its algorithm and its launch limits."""

    algorithm: Literal["one-shot", "two-shot push", "two-shot pull"]
    max_workgroups: int
    threads: int  # of a workgroup; each loads 16 B from every GPU at a time

    def n_workgroups(self, n_bytes: int) -> int:
        """Return the workgroups for a GPU that reduces *n_bytes*: one for each round of its threads, up to the limit."""
        return max(min(-(-n_bytes // (self.threads * THREAD_BYTES)), self.max_workgroups), 1)


Steps = list[dict[str, int]]


class _Kernel:
    """The steps of one all-reduce kernel, a column for each workgroup, and the places it uses."""

    def __init__(self, op: Operator, memory: Memory, n_workgroups: int) -> None:
        self.op, self.n, self.c, self.n_workgroups = op, op.n, op.chunk_granules, n_workgroups
        self.memory = memory
        self.data = memory.buffer("data", op.n * self.c)
        self.columns: list[Steps] = [[] for _ in range(n_workgroups)]

    def share(self, n_granules: int, workgroup: int) -> tuple[int, int]:
        """Return the part of *n_granules* that a workgroup has: first granule and length, in whole lines."""
        n_lines = -(-n_granules // self.op.line)
        first, stop = (n_lines * w // self.n_workgroups * self.op.line for w in (workgroup, workgroup + 1))
        return min(first, n_granules), min(stop, n_granules) - min(first, n_granules)

    def barrier(self, name: str, *, of_all: bool = False) -> list[dict[str, int]]:
        """Let each workgroup store a flag at every other GPU; return, for each, the wait for theirs.

        *of_all*: for the flags of all workgroups of all GPUs, its own included, not of those of its number only.
        """
        n = self.n_workgroups
        flags = self.memory.buffer(name, self.n * n * self.op.line)
        told = self.memory.signal(name, 1 if of_all else n)
        for w, column in enumerate(self.columns):
            signal, place = told[0 if of_all else w], flags.first + w * self.n * self.op.line
            flag = {"n_granules": 1, "post_signal": signal}
            column += [
                {**flag, "send": STORE, "distance": d, "destination": place + d * self.op.line}
                for d in range(1, self.n)
            ]
            if of_all:
                column.append({**flag, "kept_at": place})
        amount = self.n * n if of_all else self.n - 1
        return [{"wait_signal": told[0 if of_all else w], "wait_at_least": amount} for w in range(n)]

    def moves(self, kernel: DirectKernel, **more: int) -> Moves:
        """Return the kernel."""
        rows = [row for group in zip_longest(*self.columns, fillvalue={}) for row in group]
        has_wavefronts = self.op.machine.gpu.collective_kernel.n_wavefronts > 0
        wavefronts = (kernel.threads // WARP, WARP * THREAD_BYTES // self.op.machine.gpu.l2.line)
        return Moves(
            name="all-reduce", steps=table(STEP, rows).reshape(-1, self.n_workgroups),
            n_workgroups=self.n_workgroups, wavefronts=wavefronts if has_wavefronts else None, **more,
        )  # fmt: skip


def direct_program(op: Operator, rank: int, kernel: DirectKernel) -> Program:
    """Return the all-reduce of an array like the output of *op*, one chunk for each rank, by *kernel*."""
    memory, n, c = op.memory(), op.n, op.chunk_granules
    is_one_shot = kernel.algorithm == "one-shot"
    reduced = c if not is_one_shot else n * c
    built = _Kernel(op, memory, kernel.n_workgroups(reduced * op.granule))
    output = memory.buffer("output", n * c)
    ready = built.barrier("inputs are complete")
    if is_one_shot:
        for w, column in enumerate(built.columns):
            first, length = built.share(n * c, w)
            column.append({
                "n_granules": length, "n_operands": n, "operand": built.data.first + first, "source_stride": 1,
                "kept_at": output.first + first, **ready[w],
            })  # fmt: skip
        inputs = tuple(Content(built.data.first + p * c, c, (p - rank) % n, of=0) for p in range(n))
        outputs = tuple(Content(output.first + p * c, c, (p - rank) % n, of=None) for p in range(n))
    else:
        own = n - 1  # position of the own chunk, as in T3's rings
        for w, column in enumerate(built.columns):
            first, length = built.share(c, w)
            add = {
                "n_granules": length, "n_operands": n, "operand": built.data.first + own * c + first, "stride": -c,
                "source_stride": 1, **ready[w],
            }  # fmt: skip
            kept = output.first + own * c + first
            if kernel.algorithm == "two-shot push":
                column.append({
                    **add, "kept_at": kept, "send": STORE, "distance": 1, "n_targets": n - 1,
                    "destination": kept - c, "target_stride": -c,
                })  # fmt: skip
            else:
                column.append({**add, "kept_at": memory_of(memory, "sums", c).first + first})
        if kernel.algorithm == "two-shot pull":
            sums = memory_of(memory, "sums", c)
            exchanged = built.barrier("sums are complete", of_all=True)
            for w, column in enumerate(built.columns):
                column += gathered(built, w, sums.first, output.first, exchanged[w])
        inputs = tuple(Content(built.data.first + p * c, c, p, of=0) for p in range(n))
        outputs = tuple(Content(output.first + p * c, c, p, of=None) for p in range(n))
    if kernel.algorithm != "two-shot pull":
        done = built.barrier("inputs may be overwritten")
        for w, column in enumerate(built.columns):
            column.append({**done[w]})
    return program(op, rank, memory, built.moves(kernel), inputs=inputs, outputs=outputs)


def memory_of(memory: Memory, name: str, n_granules: int):
    """Return the buffer *name*, a new one if there is none."""
    found = [one for one in memory.buffers if one.name == name]
    return found[0] if found else memory.buffer(name, n_granules)


def gathered(built: _Kernel, workgroup: int, sums: int, output: int, ready: dict[str, int]) -> Steps:
    """Return the steps of a workgroup that load its part of all sums: chunk after chunk, each from its owner."""
    c, n = built.c, built.n
    first, length = built.share(n * c, workgroup)
    steps = []
    while length > 0:
        distance, inside = divmod(first, c)
        part = min(length, c - inside)
        steps.append({
            "n_granules": part, "n_operands": 1, "operand": sums + inside, "source": distance,
            "kept_at": output + (n - 1 + distance) % n * c + inside, **ready,
        })  # fmt: skip
        first, length = first + part, length - part
    return steps
