"""What programs put on the wires, counted from their data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from t3sim.collective.schedule import sent_granules
from t3sim.program.operations import NONE, Gemm, Moves, Operation, Program, tile_granules


def granules_between(programs: Sequence[Program]) -> np.ndarray:
    """Return how many granules arrive from each rank at each other, [from, at]; 0 from a rank at itself."""
    n = len(programs)
    found = np.zeros((n, n), np.int64)
    for r, program in enumerate(programs):
        for operation in program.operations:
            for source, destination, n_granules in transfers(operation, program):
                found[(r + source) % n, (r + destination) % n] += n_granules
    np.fill_diagonal(found, 0)
    return found


def transfers(operation: Operation, program: Program) -> list[tuple[int, int, int]]:
    """Return what one operation moves: distances of the GPU that it comes from and of the one it goes to, granules.

    With flags, what is read from another GPU is counted as data only, what is sent as it is sent.
    """
    if isinstance(operation, Gemm):
        return of_gemm(operation, program)
    if not isinstance(operation, Moves):
        return []
    found = []
    for step in operation.steps.reshape(-1):
        n_granules = int(step["n_granules"])
        if step["send"] != NONE:
            found.append((0, int(step["distance"]), sent_granules(n_granules, operation.flags)))
        sources = (int(step["source"] + j * step["source_stride"]) for j in range(int(step["n_operands"])))
        found += [(source, 0, n_granules) for source in sources]
    return found


def of_gemm(gemm: Gemm, program: Program) -> list[tuple[int, int, int]]:
    """Return what the stores and forwards of a GEMM move; for tiles of other shapes what arrives counts."""
    stores = gemm.stores
    made = tile_granules(gemm.trace, program.granule)
    sizes = made.n_rows * made.width
    before = np.concatenate([[0], np.cumsum(sizes)])
    is_to = stores.to != NONE
    arriving = np.where(is_to, before[np.where(is_to, stores.to + stores.n_to, 0)] - before[stores.to * is_to], sizes)
    found = [(0, int(distance), int(n)) for distance, n in zip(stores.distance, arriving, strict=True)]
    return found + [(0, one.distance, int(sizes[one.to].sum())) for one in gemm.forwards]
