"""Whole fused runs: does each granule get its updates, and leave once, after the last of them (T1, T4, T6, T7)?

The account is taken from the DRAM commands, not from counters of the tracker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from t3sim.config.experiment import RunSpec
from t3sim.errors import ModelError
from t3sim.gpu.core import GpuCore
from t3sim.gpu.units.codes import DMA_READ, INCOMING_UPDATE, LOCAL_UPDATE
from t3sim.gpu.units.signals import GRANULE_BITS
from t3sim.system.machine import MirroredMachine
from t3sim.workload.tiling import expected_chunk_bytes
from tests.harness.sublayers import ObservedParts, point

# One workgroup at a time on one compute unit.  Between two GPUs, where no DMA read overtakes another, the neighbour's
# stores then arrive in dispatch order, and a tracker that holds one workgroup is enough.
IN_ORDER = ("machine.gpu.n_compute_units=1", "machine.gpu.compute_unit.lds=40 KiB")
RUNS = {
    "even": point("t3", tp=4),
    "two GPUs": point("t3", tp=2),
    "one GPU": point("t3", tp=1),
    "ragged": point("t3", shape=(200, 150, 72), tp=3),
    "ragged, blocks of three tiles": point(
        "t3", "machine.gpu.dma.wavefront_tiles_per_block=3", shape=(330, 150, 72), tp=4
    ),
    "blocks of a chunk": point("t3", "machine.gpu.dma.wavefront_tiles_per_block=64", tp=4),
    "split queues": point("t3-mca", "machine.memory.queue.kind=split", tp=4),
    "one workgroup in the tracker": point(
        "t3", *IN_ORDER, "machine.gpu.tracker={n_sets: 1, entries_per_set: 2}", shape=(256, 192, 64), tp=2
    ),
    "two sets of one": point(
        "t3", *IN_ORDER, "machine.gpu.tracker={n_sets: 2, entries_per_set: 2}", shape=(250, 150, 64), tp=4
    ),
}


class Run(NamedTuple):
    """A finished fused run: the GPU, its positions and all its DRAM commands."""

    core: GpuCore
    trace: Any
    commands: NDArray[Any]


def fused_run(run: RunSpec, disturb: Callable[[MirroredMachine], None] = lambda machine: None) -> Run:
    """Simulate the fused phase of *run*; *disturb* may change the machine first."""
    log: list[NDArray[Any]] = []

    def observe(machine: MirroredMachine) -> None:
        machine.core.stream_commands(lambda rows: log.append(rows.copy()))
        disturb(machine)

    parts = ObservedParts(run, observe)
    parts.fused()
    return Run(parts.machines[0].core, parts.op.tiles, np.concatenate(log))


def granules_of(run: Run, kind: int) -> list[tuple[int, int]]:
    """Return (tile, granule) of every command of *kind*, sorted."""
    tags = run.commands["tag"][run.commands["kind"] == kind]
    return sorted(zip((tags >> GRANULE_BITS).tolist(), (tags & ((1 << GRANULE_BITS) - 1)).tolist(), strict=True))


def all_granules(run: Run, first: int, last: int) -> list[tuple[int, int]]:
    """Return every (tile, granule) of the chunk positions *first* to *last* (excluded)."""
    ranges = run.trace.chunk_ranges * int(run.core.gemms[0].n_wavefronts)
    sizes = run.core.tables.tiles["n_granules"]
    tiles = [tile for start, stop in ranges[first:last] for tile in range(start, stop)]
    return [(tile, granule) for tile in tiles for granule in range(int(sizes[tile]))]


def check_account(run: Run) -> None:
    """Every granule has the updates of its chunk position, and is read for the neighbour once, after the last."""
    n = run.trace.n_chunks
    first = 1 if n > 1 else 0
    assert granules_of(run, LOCAL_UPDATE) == all_granules(run, first, n), "updates of the GEMM"
    assert granules_of(run, INCOMING_UPDATE) == all_granules(run, 1, n), "updates of the neighbour"
    sent = all_granules(run, 1, n - 1)
    assert granules_of(run, DMA_READ) == sent, "reads of the DMA engine"
    check_order(run.commands)
    chunks = expected_chunk_bytes(run.trace, run.core.machine.memory.access)
    assert len(sent) * run.core.machine.memory.access == chunks[1 : n - 1].sum()


def check_order(commands: NDArray[Any]) -> None:
    """No granule is read for the neighbour before its last update has been issued (same address, so same channel)."""
    ranks = np.arange(len(commands))
    is_update = np.isin(commands["kind"], (LOCAL_UPDATE, INCOMING_UPDATE)) & (commands["tag"] >= 0)
    is_read = commands["kind"] == DMA_READ
    last_update = dict(zip(commands["tag"][is_update].tolist(), ranks[is_update].tolist(), strict=True))
    reads = zip(commands["tag"][is_read].tolist(), ranks[is_read].tolist(), strict=True)
    assert all(last_update[tag] < rank for tag, rank in reads), "a read before the last update"


def check_tracker(run: Run) -> None:
    """All that was allocated has triggered, within capacity, and every command ran after it was ready."""
    tracker, tables = run.core.gpu.tracker, run.core.tables
    n_tracked = int((tables.tiles["updates_expected"] > 0).sum())
    assert tracker.n_allocated == tracker.n_triggered == n_tracked
    assert tracker.n_entries == 0
    assert (tracker.entry_tile == -1).all()
    assert 0 < tracker.peak_entries <= tracker.n_sets * tracker.entries_per_set
    commands = tables.commands[: int(run.core.gpu.dma.n_commands)]
    assert (commands["tiles_missing"] == 0).all()
    assert (commands["granules_left"] == 0).all()
    assert (commands["ready_at"] >= 0).all()
    assert (commands["start_at"] >= commands["ready_at"]).all()
    assert (commands["end_at"] > commands["start_at"]).all()


@pytest.mark.parametrize("name", RUNS)
def test_every_granule_is_updated_and_sent_as_its_position_says(name: str) -> None:
    run = fused_run(RUNS[name])
    check_account(run)
    check_tracker(run)


@pytest.mark.parametrize(("n_sets", "entries"), [(1, 2), (2, 4), (4, 2), (4, 8), (16, 2)])
def test_a_tracker_of_any_size_completes_and_loses_nothing(n_sets: int, entries: int) -> None:
    """Four compute units drift apart, and the stores of a small tracker wait: does the run come to its end?"""
    finished = fused_run(point("t3", f"machine.gpu.tracker={{n_sets: {n_sets}, entries_per_set: {entries}}}", tp=4))
    check_account(finished)
    check_tracker(finished)


# --- updates that should not be there -----------------------------------------------------------------------


def on_arrival(change: Callable[[NDArray[Any]], NDArray[Any]]) -> Callable[[MirroredMachine], None]:
    """Let *change* act on the first batch that the neighbour sends."""

    def disturb(machine: MirroredMachine) -> None:
        deliver, is_first = machine.device.receive, True

        def receive(messages: NDArray[Any]) -> None:
            nonlocal is_first
            deliver(change(messages) if is_first else messages)
            is_first = False

        machine.device.receive, machine.device.is_tapped = receive, True

    return disturb


def twice(messages: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([messages[:1], messages])


def for_another_tile(messages: NDArray[Any]) -> NDArray[Any]:
    changed = messages.copy()
    changed["tile"][0] += 1
    return changed


def lost(messages: NDArray[Any]) -> NDArray[Any]:
    return messages[1:]


@pytest.mark.parametrize("change", [twice, for_another_tile, lost])
@pytest.mark.parametrize("name", ["even", "two GPUs"])
def test_an_update_too_many_or_too_few_ends_the_run(change: Any, name: str) -> None:
    """Is a run whose tiles get another number of updates never reported as finished?"""
    with pytest.raises(ModelError):
        fused_run(RUNS[name], on_arrival(change))


def once_more(machine: MirroredMachine) -> None:
    """Let the first granule of the neighbour arrive a second time, after its tile has triggered."""
    deliver, arrived = machine.device.receive, []

    def receive(messages: NDArray[Any]) -> None:
        arrived.append(messages)
        deliver(messages)

    def repeat() -> Any:
        while not arrived or int(n_open(int(arrived[0]["tile"][0]))) > 0:
            yield machine.env.timeout(machine.device.quantum_ticks)
        copy = arrived[0][:1].copy()
        copy["at"] = max(int(machine.env.now), int(arrived[-1]["at"][-1]))
        deliver(copy)

    def n_open(tile: int) -> Any:
        return machine.core.tables.tiles[int(machine.core.tables.tiles[tile].first_tile)].n_open

    machine.device.receive, machine.device.is_tapped = receive, True
    machine.env.process(repeat())


@pytest.mark.parametrize("name", ["even", "one workgroup in the tracker"])
def test_an_update_of_a_tile_that_has_triggered_ends_the_run(name: str) -> None:
    """At once, and by name, whether its set has room for it by then or not?"""
    with pytest.raises(ModelError, match=r"one update too many.* wavefront tile \d+ .* expects \d+ granule updates"):
        fused_run(RUNS[name], once_more)
