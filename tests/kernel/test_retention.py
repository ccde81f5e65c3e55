"""What is stored past the tags of the L2 is loaded from it until so much has been brought in that it is gone."""

from __future__ import annotations

from typing import Any

import pytest

from t3sim.gpu.units import codes
from t3sim.program.operations import STEP, STORE, UPDATE, Buffer, Moves, Program, Signals, table
from t3sim.system.machine import MirroredMachine
from tests.kernel.small import machine, mirrored

N = 4096  # granules of 64 B that are copied
GRANULE = 64
WIDE = "memory: {preset: hbm2-2ch, n_channels: 4, clock: 2 GHz}, link: {bandwidth: 100 GB/s}"


def spec(retention: int | None) -> Any:
    """A machine whose L2 keeps what was stored until *retention* granules have been brought in."""
    kept = "" if retention is None else f", l2: {{retention: {retention * GRANULE} B}}"
    return machine(f"gpu: {{compute_unit: {{l2_bytes_per_cycle: 16}}{kept}}}, {WIDE}")


def run(retention: int | None, *steps: dict[str, int]) -> MirroredMachine:
    """Run copies of N granules on one compute unit, one after the other."""
    rows = [{"n_granules": N, "n_operands": 1} | step for step in steps]
    moves = Moves(name="moves", launch=0, n_workgroups=1, steps=table(STEP, rows).reshape(-1, 1))
    everything, told = Buffer("all", 0, 1 << 20), Signals("told", 0)
    program = Program(0, 2, (moves,), granule=GRANULE, line=2, buffers=(everything,), signals=(told,))
    wired = mirrored(spec(retention), program)
    wired.run()
    return wired


def read(wired: MirroredMachine) -> int:
    """Return granules that move kernels have read from the memory."""
    return int(wired.core.gpu.channels["n_served"].sum(axis=(0, 1))[codes.COLLECTIVE_READ])


A_TO_B, B_TO_C = {"kept_at": N}, {"operand": N, "kept_at": 2 * N}


@pytest.mark.parametrize("share", [1, 2, 4])
@pytest.mark.parametrize(("of_it", "is_found"), [(0.9, False), (1.1, True)])
def test_a_copy_is_in_the_l2_until_so_much_has_been_brought_in(share: int, of_it: float, is_found: bool) -> None:
    """The last part of B, copied from A, is copied to C: as much of A and of B has been brought in since it began.

    What is found brings in nothing; what is not does, so the rest is gone, too.
    """
    part = N // share
    last = {"n_granules": part, "operand": 2 * N - part, "kept_at": 2 * N}
    wired = run(int(of_it * 2 * part), A_TO_B, last)
    assert int(wired.core.gpu.l2.n_found) == is_found * part
    assert read(wired) == N + (not is_found) * part


def test_what_has_only_been_read_is_read_again() -> None:
    """Nothing but stores is noted: what is read once is not kept for those who come later."""
    assert read(run(1 << 16, {"kept_at": N}, {"kept_at": 2 * N})) == 2 * N


def test_a_load_that_finds_its_line_takes_a_hit_and_no_more() -> None:
    """One line: the memory and the way to it are what it takes longer from there."""
    line = {"n_granules": 2}
    times = {}
    for retention in (None, 1 << 16):
        wired = run(retention, A_TO_B | line, B_TO_C | line)
        steps = wired.core.tables.steps
        times[retention] = (int(steps[1].end_at - steps[1].start_at)) / wired.core.gpu.compute_ticks
    l2, slot = spec(None).gpu.l2, spec(None).gpu.issue_slot
    assert l2.hit_latency <= times[1 << 16] <= l2.hit_latency + 4 * slot
    assert times[None] >= times[1 << 16] + l2.miss_latency


@pytest.mark.parametrize(("send", "found"), [(STORE, N), (UPDATE, 0)])
def test_what_another_gpu_has_stored_is_found_but_no_sum_of_the_memory(send: int, found: int) -> None:
    """A sum is made near memory, bypassing the L2, so it is read from memory, even if it was stored before."""
    zeros = {"n_operands": 0, "kept_at": N}
    sent = {"kept_at": -1, "send": send, "distance": 1, "destination": N, "post_signal": 0}
    taken = {"operand": N, "kept_at": 2 * N, "wait_signal": 0, "wait_at_least": N}
    assert int(run(1 << 16, zeros, sent, taken).core.gpu.l2.n_found) == found
