"""Mirrored mode: does a GPU receive from itself what its neighbour would have sent?"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from t3sim.fabric.mirror import ChunkShift
from t3sim.gpu.units.table_rows import MESSAGE

Chunks = list[list[int]]  # granules of each wavefront tile of each chunk


WHOLE_CHUNK = 100  # tiles of a workgroup: more than a chunk has


def shift_of(chunks: Chunks, tiles_per_workgroup: int = WHOLE_CHUNK) -> ChunkShift:
    edges = np.cumsum([0, *map(len, chunks)])
    sizes = np.array([n for chunk in chunks for n in chunk], np.int64)
    return ChunkShift(sizes, np.stack([edges[:-1], edges[1:]], axis=1), tiles_per_workgroup)


def granules_of(chunks: Chunks, position: int) -> list[tuple[int, int]]:
    """Return every (tile, granule) of the chunk at *position*, tiles numbered over all chunks."""
    first = sum(map(len, chunks[:position]))
    return [(first + i, granule) for i, n in enumerate(chunks[position]) for granule in range(n)]


def batch_of(sent: list[tuple[int, int]], times: list[int]) -> NDArray[Any]:
    messages = np.zeros(len(sent), MESSAGE)
    messages["at"] = times
    messages["kind"] = 7
    messages["tile"] = [tile for tile, _ in sent]
    messages["granule"] = [granule for _, granule in sent]
    return messages


@st.composite
def rings(draw: st.DrawFn) -> Chunks:
    """Two to five chunks of unlike sizes; ragged tiles may be empty, a chunk is not."""
    tile = st.integers(0, 6)
    chunk = st.lists(tile, min_size=1, max_size=5).filter(any)
    return draw(st.lists(chunk, min_size=2, max_size=5))


@st.composite
def departures(draw: st.DrawFn) -> tuple[Chunks, list[NDArray[Any]]]:
    """A ring and batches in which all chunks but the last leave, interleaved, each granule once."""
    chunks = draw(rings())
    rng = draw(st.randoms(use_true_random=False))
    sent = [g for p in range(len(chunks) - 1) for g in granules_of(chunks, p)]
    rng.shuffle(sent)
    times = np.cumsum([rng.randrange(4) for _ in sent]).tolist()
    cuts = sorted(rng.randrange(len(sent) + 1) for _ in range(3))
    edges = [0, *cuts, len(sent)]
    return chunks, [batch_of(sent[a:b], times[a:b]) for a, b in pairwise(edges) if b > a]


def check_arrivals(chunks: Chunks, batches: list[NDArray[Any]], transform: Any) -> None:
    """Everything of positions 1.. arrives once, in order of time, floor(k m / n) of m after k of n have left."""
    first_tiles = np.cumsum([0, *map(len, chunks)])
    totals = [sum(chunk) for chunk in chunks]
    sent_by, arrived_by = [0] * len(chunks), [0] * len(chunks)
    arrived: list[tuple[int, int]] = []
    last_at = 0
    for batch in batches:
        before = batch.copy()
        arriving = transform(batch)
        assert (batch == before).all(), "the sender's messages were changed"
        assert (np.diff(arriving["at"], prepend=last_at) >= 0).all()
        assert set(arriving["kind"].tolist()) <= {7}
        last_at = int(batch["at"][-1])
        assert set(arriving["at"].tolist()) <= set(batch["at"].tolist())
        for at in np.unique(batch["at"]):
            # Progress is stated per departure; compare after each moment, when all of its departures have counted.
            for tile in batch["tile"][batch["at"] == at]:
                sent_by[int(np.searchsorted(first_tiles, tile, side="right")) - 1] += 1
            for tile in arriving["tile"][arriving["at"] == at]:
                arrived_by[int(np.searchsorted(first_tiles, tile, side="right")) - 1] += 1
            for p in range(len(chunks) - 1):
                assert arrived_by[p + 1] == sent_by[p] * totals[p + 1] // totals[p]
        arrived += [(int(message["tile"]), int(message["granule"])) for message in arriving]
    expected = [g for p in range(1, len(chunks)) for g in granules_of(chunks, p)]
    assert sorted(arrived) == expected


@given(departures())
@settings(max_examples=150)
def test_every_granule_arrives_exactly_once(case: tuple[Chunks, list[NDArray[Any]]]) -> None:
    """Does each granule of positions 1.. arrive once, as far along as the chunk before it?"""
    chunks, batches = case
    check_arrivals(chunks, batches, shift_of(chunks))


@st.composite
def workgroups(draw: st.DrawFn) -> tuple[Chunks, list[NDArray[Any]]]:
    """Chunks of one to four workgroups of one tile each, larger chunks first; what leaves is interleaved."""
    counts = sorted(draw(st.lists(st.integers(1, 4), min_size=2, max_size=5)), reverse=True)
    chunks = [draw(st.lists(st.integers(1, 6), min_size=n, max_size=n)) for n in counts]
    rng = draw(st.randoms(use_true_random=False))
    sent = [g for p in range(len(chunks) - 1) for g in granules_of(chunks, p)]
    rng.shuffle(sent)
    return chunks, [batch_of(sent, list(range(len(sent))))]


@given(workgroups())
@settings(max_examples=150)
def test_a_workgroup_is_driven_by_the_one_of_its_place(case: tuple[Chunks, list[NDArray[Any]]]) -> None:
    """Have all granules of a workgroup arrived once its partner has left, and none before it began to leave?"""
    chunks, [batch] = case
    arriving = shift_of(chunks, 1)(batch)
    first = np.cumsum([0, *map(len, chunks)])
    for p, (here, there) in enumerate(pairwise(chunks)):
        for j in range(len(there)):
            driver = first[p] + j * len(here) // len(there)
            left, came = batch["at"][batch["tile"] == driver], arriving["at"][arriving["tile"] == first[p + 1] + j]
            assert len(came) == there[j]
            assert left.min() <= came.min()
            assert came.max() <= left.max()


@given(st.integers(2, 5), st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any), st.randoms())
@settings(max_examples=50)
def test_equal_chunks_are_shifted(n: int, chunk: list[int], rng: Any) -> None:
    """With chunks of one shape, does a granule arrive as the same granule of the next position, at its own time?"""
    chunks = [chunk] * n
    sent = [g for p in range(n - 1) for g in granules_of(chunks, p)]
    rng.shuffle(sent)
    batch = batch_of(sent, list(range(len(sent))))
    arriving = shift_of(chunks)(batch)
    assert (arriving["tile"] == batch["tile"] + len(chunk)).all()
    for column in ("at", "kind", "granule"):
        assert (arriving[column] == batch[column]).all()
