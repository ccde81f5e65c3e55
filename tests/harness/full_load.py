"""One channel with the timings of configs/memory/hbm2-reference.yaml under full load."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from t3sim.gpu.units.codes import NEVER, WRITE_BACK
from tests.harness.channel_bench import ChannelBench, Command, Setup
from tests.harness.machines import machine

MEMORY = machine("t3-150", memory="hbm2-reference").memory
TIMINGS = MEMORY.timing.model_dump()
N = 20_000
FAR_ROW = 1 << 11

Places = NDArray[np.int64]
SETUP = Setup(
    TIMINGS,
    is_split=True,
    capacity=MEMORY.queue.entries,
    high_watermark=MEMORY.queue.write_high_watermark,
    low_watermark=MEMORY.queue.write_low_watermark,
)


def stream(n: int, first_row: int = 0) -> Places:
    """Consecutive accesses as the reference simulators map them: 4 to a group, then other groups, banks, columns."""
    i = np.arange(n)
    low, group, bank, high = i & 3, ((i >> 2) ^ i) & 3, (i >> 4) & 3, (i >> 6) & 7
    return (((i >> 9) + first_row) << 24) | ((high * 4 + low) << 16) | ((group * 4 + bank) << 8)


def random_reads(n: int) -> Places:
    draw = np.random.default_rng(1)
    return (draw.integers(0, 1 << 14, n) << 24) | (draw.integers(0, 32, n) << 16) | (draw.integers(0, 16, n) << 8)


def mixed(n: int, kind: int = WRITE_BACK) -> Places:
    """Reads and stores in turn, two streams that meet in the same banks."""
    return np.stack([stream(n // 2), stream(n // 2, FAR_ROW) | kind], axis=1).ravel()


def run(places: Places, setup: Setup = SETUP, **changes: int) -> tuple[ChannelBench, list[Command]]:
    bench = ChannelBench(setup, **changes)
    arrivals = np.stack([np.zeros_like(places), np.full_like(places, NEVER)])
    return bench, bench.run_arrays(np.stack([places, np.zeros_like(places)]), arrivals)


def share_of_peak(places: Places, setup: Setup = SETUP, **changes: int) -> float:
    """Data cycles over all cycles, in percent."""
    bench, _ = run(places, setup, **changes)
    return 100 * len(places) * bench.timings["nBL"] / int(bench.channel["last_done_at"])
