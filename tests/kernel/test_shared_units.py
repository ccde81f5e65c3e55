"""Move kernels whose workgroups run as warps beside those of a GEMM: what they share, and what they do not wait for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from t3sim.checks.invariants import broken
from t3sim.errors import ModelError
from t3sim.gpu.time_accounts import time_accounts
from t3sim.gpu.units import codes
from t3sim.observe.waits import COMPUTE_UNIT
from t3sim.program.operations import STORE, Gemm, Moves
from tests.harness.fabric import digest_of_commands
from tests.harness.mutants import UNCHANGED, Mutant, run_mutants
from tests.kernel.test_command_processor import ONE_RESIDENT, PERSISTENT, Bench, Launch

NARROW_PATH = "gpu: {compute_unit: {lds: 32 KiB, l2_bytes_per_cycle: 2}}"
LESS_NARROW = NARROW_PATH.replace(": 2}", ": 8}")


def both(
    changes: str = ONE_RESIDENT, *, shares: bool = True, n_granules: int = 2048, n_tiles: int = 24, k: int = 256
) -> Bench:
    """Return a persistent GEMM on four compute units, and a copy by four workgroups that starts beside it."""
    bench = Bench(changes)
    bench.gemm(Launch(0), n_tiles, k=k, tiling=PERSISTENT)
    bench.copy(Launch(400), 4, n_granules)
    assert isinstance(bench.operations[1], Moves)
    bench.operations[1] = replace(bench.operations[1], shares_units=shares)
    return bench


@pytest.mark.parametrize("shares", [True, False])
def test_it_starts_beside_the_workgroups_of_a_gemm(*, shares: bool) -> None:
    """Does it run while a persistent GEMM has every compute unit; canary: does one that does not share wait for it?"""
    bench = both(shares=shares)
    gemm, copy = bench.run()
    assert (copy.end_at < gemm.end_at) == shares
    units = bench.core.gpu.compute_units[:4]
    assert (units["move_operation"] < 0).all()
    assert not units["is_taken"].any()
    assert np.unique(bench.workgroups(0)["cu"]).tolist() == [0, 1, 2, 3]
    assert broken(bench.core) == []


def test_a_gemm_starts_beside_it() -> None:
    """Do workgroups of a GEMM go to compute units on which a kernel that shares them runs, and get on beside it?"""
    bench = Bench(ONE_RESIDENT)
    bench.copy(Launch(0), 4, 1 << 14)
    bench.operations[0] = replace(bench.operations[0], shares_units=True)
    bench.gemm(Launch(4000), 8)
    copy, gemm = bench.run()
    alone = Bench(ONE_RESIDENT)
    alone.gemm(Launch(4000), 8)
    (unhindered,) = alone.run()
    assert 4 * gemm.end_at < copy.end_at, "whoever comes first in every slot starves the other"
    assert unhindered.end_at < gemm.end_at
    assert broken(bench.core) == []


def test_they_share_the_path_to_the_l2() -> None:
    """Does a narrow path take the lines of a GEMM and of a copy one after the other, without a gap?"""
    bench = both(NARROW_PATH, n_granules=1 << 12)
    operations = bench.run()
    gpu, moves = bench.core.gpu, bench.core.moves[0]
    of_gemm = 6 * (4 * (64 + 64) * int(gpu.line_issue_ticks) + 64 * int(gpu.store_issue_ticks))  # six tiles on a unit
    of_copy = (1 << 12) // 2 // 4 * int(moves.load_ticks + moves.store_ticks)
    busy, took = of_gemm + of_copy, int(operations["end_at"].max())
    assert of_copy > of_gemm // 10
    assert busy <= took <= 1.1 * busy


def test_what_a_unit_did_adds_up() -> None:
    """Do the accounts of units that both ran on hold all of their time, and the work of each once?"""
    bench = both(n_granules=1 << 14)
    bench.run()
    core = bench.core
    total = int(core.kernel_end_at)
    accounts = time_accounts(core, total)[COMPUTE_UNIT]
    assert (accounts.sum(axis=1) == total).all()
    assert (accounts[:, codes.WORKING] > 0).all()
    # Behind the GEMM the copy goes on alone, and its work is that of the unit.
    assert core.operations[1].end_at > core.operations[0].end_at
    assert int(core.gpu.compute_units["state_slots"][:4, codes.COLLECTIVE_WORK].min()) > 0


def test_a_step_that_waits_for_ever_is_named_with_its_unit() -> None:
    """Does a hang beside a GEMM say which unit waits for what?"""
    bench = both()
    copy: Any = bench.operations[1]
    steps = copy.steps.copy()
    steps["wait_signal"], steps["wait_at_least"] = bench.signal(), 1
    bench.operations[1] = replace(copy, steps=steps)
    with pytest.raises(ModelError) as caught:
        bench.run()
    report = f"{caught.value}\n{caught.value.details}"
    assert "compute_unit[0]" in report
    assert "waits for gpu[0].signal[0]" in report


def three(n_granules: int = 128, k: int = 64) -> Bench:
    """Return a GEMM, a copy that has two compute units for itself, and one that shares all four."""
    bench = Bench(ONE_RESIDENT)
    bench.copy(Launch(0, units=range(2)), 2, n_granules)
    bench.gemm(Launch(0), 6, k=k)
    bench.copy(Launch(0), 4, n_granules)
    bench.operations[2] = replace(bench.operations[2], shares_units=True)
    return bench


def test_no_unit_is_kept_free_for_it() -> None:
    """Do units go on with a GEMM while a kernel that would share them waits for others?"""
    bench = three()
    kept = [int((core.gpu.compute_units["wanted_by"] >= 0).sum()) for core in bench.slots()]
    assert max(kept) == 0
    assert broken(bench.core) == []


def digest() -> str:
    """Return the ends and a digest of all DRAM commands of GEMMs with copies beside them."""
    found = []
    for bench in (both(LESS_NARROW, n_granules=64, n_tiles=5, k=16), three(64, k=16)):
        commands = digest_of_commands(bench.core)
        found.append(f"{bench.run()['end_at'].tolist()} {commands.hexdigest()}")
    return " ".join(found)


MOVES, DISPATCHER = "t3sim.gpu.units.collective.move_kernel", "t3sim.gpu.units.compute.workgroup_dispatcher"
MUTANTS = (
    Mutant("it waits for an empty unit", MOVES, "(moves.shares_units or not", "(not"),
    Mutant("it takes the unit", MOVES, "cu.is_taken = 1 - moves.shares_units", "cu.is_taken = 1"),
    Mutant("its path is free", MOVES, "        hand_path_on(gpu, cu, credit)\n", "        return_promise(gpu, cu)\n"),
    Mutant("units are kept free for it", DISPATCHER, "codes.MOVES or moves.shares_units", "codes.MOVES"),
)


@pytest.mark.deep
def test_each_defect_of_sharing_changes_it() -> None:
    outcomes = run_mutants(MUTANTS, "tests.kernel.test_shared_units:digest")
    good = outcomes.pop(UNCHANGED)
    assert good == digest()
    assert [name for name, outcome in outcomes.items() if outcome == good] == []


def test_a_copy_that_ends_leaves_the_stores_of_a_gemm_outstanding() -> None:
    """Are all stores bypassing the L2 acknowledged once, whenever a kernel that shares the compute unit ends?"""
    bench = Bench(ONE_RESIDENT)
    bench.gemm(Launch(0), 24, tiling=PERSISTENT)
    gemm = bench.operations[0]
    assert isinstance(gemm, Gemm)
    stores = gemm.stores.copy()
    stores.kind[:] = STORE
    bench.operations[0] = replace(gemm, stores=stores)
    for i in range(1, 9):  # the last one ends while tiles are stored
        bench.copy(Launch(1000 * i), 4, 16)
        copy = replace(bench.operations[i], name=f"copy {i}", stream=i)
        assert isinstance(copy, Moves)
        bench.operations[i] = replace(copy, shares_units=True)
    bench.run()
    assert not bench.core.gpu.compute_units["outstanding_granules"].any()
    assert broken(bench.core) == []
