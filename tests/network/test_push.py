"""A GEMM that stores each tile to a slot of the owner of its rows (as Flux does), on GPUs behind a switch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from t3sim.gpu.core import GpuCore
from t3sim.gpu.units import codes
from t3sim.program.operations import STORE, Gemm, Program, Signals
from t3sim.system.ring import RingMachine
from t3sim.workload.tiling import TileTrace
from tests.harness.fabric import SWITCH, link_waits, served
from tests.kernel.small import at_once, explicit, gemm_of, machine, trace_of

N = 4
BASE, SLOT, PITCH = 1 << 16, 1 << 12, 8  # granules: of the slots, from one to the next, from row to row
IN_TURN = [(p + 1) % N for p in range(N)]  # the distance of the owner of the chunk at each position


def tiles() -> TileTrace:
    """A GEMM with two workgroups of 64 x 64 and one of 64 x 20 for each owner."""
    return trace_of(64 * N, 64 * 2 + 20, 64, n_chunks=N)


def push(owners: Sequence[int], rank: int = 0) -> Program:
    """Return the program in which the chunk at each position goes to the GPU at a distance, into its slot there."""
    trace, program = tiles(), at_once(gemm_of(machine(SWITCH), tiles()))
    (gemm,) = program.operations
    assert isinstance(gemm, Gemm)
    stores, workgroups = gemm.stores.copy(), trace.workgroups
    stores.kind[:], stores.pitch[:] = STORE, PITCH
    for (start, stop), distance in zip(trace.chunk_ranges, owners, strict=True):
        chosen = np.arange(start, stop)
        rows = workgroups["row"][chosen] - workgroups["row"][chosen].min()
        slot = -distance % N
        stores.distance[chosen], stores.signal[chosen] = distance, slot
        columns = workgroups["column"][chosen] * 2 // 64
        stores.first[chosen] = BASE + slot * SLOT + rows * PITCH + columns
    return replace(program, rank=rank, operations=(replace(gemm, stores=stores),), signals=(Signals("here", 0, N),))


def every_gpu(owners: Sequence[Sequence[int]]) -> RingMachine:
    return explicit(machine(SWITCH), *[push(order, rank) for rank, order in enumerate(owners)])


def slot_addresses(slot: int) -> list[int]:
    """Return the addresses of a chunk of 64 rows of 148 columns in a slot: 2 granules a tile, of the last one 1."""
    return [BASE + slot * SLOT + row * PITCH + granule for row in range(64) for granule in (0, 1, 2, 3, 4)]


def check_places(core: GpuCore) -> None:
    """Every slot of another GPU is filled once, and every slot's signal counts its granules."""
    messages = served(core)
    for distance in range(1, N):
        here = messages["granule"][messages["distance"] == distance]
        assert sorted(here.tolist()) == slot_addresses(distance)
    assert core.tables.signals.tolist() == [len(slot_addresses(0))] * N


def test_every_tile_lands_in_its_slot_and_posts() -> None:
    """Do all tiles of all GPUs arrive at their addresses, and the own ones stay, each granule posting its signal?"""
    ring = every_gpu([IN_TURN] * N)
    ring.run()
    for core in ring.cores:
        check_places(core)
        enqueued = core.gpu.channels["n_enqueued"].sum(axis=(0, 1))
        assert enqueued[codes.LOCAL_STORE] == len(slot_addresses(0))
        assert enqueued[codes.INCOMING_WRITE] == (N - 1) * len(slot_addresses(0))


def test_all_to_the_same_owner_first_is_incast() -> None:
    """Does the naive order, in which all GPUs begin with the rows of GPU 0, take longer, and do stores wait for it?"""
    in_turn, naive = every_gpu([IN_TURN] * N), every_gpu([[(owner - r) % N for owner in range(N)] for r in range(N)])
    ends = max(in_turn.run()), max(naive.run())
    waits: Any = [sum(link_waits(core) for core in ring.cores) for ring in (in_turn, naive)]
    assert ends[1] > ends[0]
    assert waits[1] > waits[0]
