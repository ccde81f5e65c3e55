"""The tables outside a GPU's record: their length is set by the workload."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.collective.schedule import sent_granules
from t3sim.gpu.units import codes, table_rows
from t3sim.program import operations

Ints = NDArray[np.int64]


def records(dtype: np.dtype[Any], n: int) -> NDArray[Any]:
    """Return *n* zeroed records that both compiled and interpreted code can use (at least one)."""
    return np.zeros(max(n, 1), dtype).view(np.recarray)


def workgroup_table(n: int) -> NDArray[Any]:
    """Return *n* workgroups that have not run."""
    table = records(table_rows.WORKGROUP_TABLE, n)
    for name in ("start_at", "multiply_at", "main_loop_end_at", "end_at"):
        table[name] = -1
    return table


@dataclass
class Tables:
    """Arrays outside the record, their length set by the workload; operations name ranges of the others."""

    operations: NDArray[Any] = field(default_factory=lambda: records(table_rows.OPERATION_TABLE, 0))
    waits: NDArray[Any] = field(default_factory=lambda: records(table_rows.WAIT_TABLE, 0))
    posts: NDArray[Any] = field(default_factory=lambda: records(table_rows.POST_TABLE, 0))
    move_units: Ints = field(default_factory=lambda: np.full(1, -1))
    workgroups: NDArray[Any] = field(default_factory=lambda: workgroup_table(0))
    tiles: NDArray[Any] = field(default_factory=lambda: records(table_rows.TILE_TABLE, 0))
    commands: NDArray[Any] = field(default_factory=lambda: records(table_rows.DMA_TABLE, 0))
    ready_fifo: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    dma_queue: NDArray[Any] = field(default_factory=lambda: records(table_rows.MESSAGE, 0))
    steps: NDArray[Any] = field(default_factory=lambda: records(table_rows.STEP_TABLE, 0))
    signals: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    n_commands: int = 0
    n_contexts: int = 0  # outstanding commands of programs of T3's DMA engine
    read_ahead: int = 0  # granules of the DMA engine
    sends: dict[int, int] = field(default_factory=dict)  # granules, by the distance of the GPU that they go to
    loads: dict[int, int] = field(default_factory=dict)  # granules, by the distance of the GPU that they lie on
    sums: int = 0  # granules that the switch adds up: each is loaded from every GPU
    per_node: int = 1  # GPUs

    def posted(self) -> Ints:
        """Return [3, n] all that the program posts: the distance of the GPU, its signal, how much."""
        posts, tiles, steps = self.posts[: int(self.operations["n_posts"].sum())], self.tiles, self.steps
        is_sent = steps["send"] >= 0
        distance, amount = np.where(is_sent, steps["distance"], 0), np.where(is_sent, self.n_sent, steps["n_granules"])
        of_steps = np.stack([distance, steps["post_signal"], amount])
        to_all = of_steps[:, is_sent & (steps["is_multicast"] != 0)]
        found = np.concatenate([
            np.stack([posts["distance"], posts["signal"], posts["amount"]]),
            np.stack([tiles["distance"], tiles["signal"], tiles["n_granules"]]),
            of_steps,
            *(to_all + np.array([[d], [0], [0]]) for d in range(1, self.per_node)),
        ], axis=1)  # fmt: skip
        return found[:, found[1] != operations.NONE]

    @property
    def n_sent(self) -> Ints:
        """Return the granules as which the result of each step is sent, flags included."""
        found = np.array(self.steps["n_granules"])
        for kernel in self.operations[self.operations["kind"] == codes.MOVES]:
            own = slice(int(kernel.first_step), int(kernel.first_step + kernel.n_steps * kernel.n_step_columns))
            found[own] = sent_granules(found[own], (int(kernel.flags_numerator), int(kernel.flags_denominator)))
        return found


def count(found: dict[int, int], distances: Ints, n_granules: Ints) -> None:
    """Add *n_granules* to *found*, each at its one of *distances*."""
    for distance in np.unique(distances).tolist():
        found[distance] = found.get(distance, 0) + int(n_granules[distances == distance].sum())


def rows(dtype: np.dtype[Any], values: Sequence[tuple[int, ...]]) -> NDArray[Any]:
    """Return *values* as records (at least one)."""
    return np.array(list(values) or [(0,) * len(dtype.names or ())], dtype).view(np.recarray)
