"""Traffic whose command trace the checker is shown: one channel on the bench, or a whole GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.checks.dram.checker import DramChecker
from t3sim.config.memory import DramTimingSpec, MemorySpec
from t3sim.gpu.units.codes import COLLECTIVE_WRITE, DMA_READ, INCOMING_UPDATE, LOCAL_UPDATE, OPERAND_READ, WRITE_BACK
from t3sim.gpu.units.table_rows import COMMAND_LOG
from tests.conftest import sample
from tests.harness.channel_bench import UNLIMITED, UNSHADOWED, ChannelBench, Setup
from tests.harness.machines import machine

Log = NDArray[Any]

REFRESHED = {**UNSHADOWED, "nREFI": 1000}
SLOW_UPDATES = {**REFRESHED, "nCCDWS": 31, "nCCDWL": 47}  # an update holds a read back longer than the turn-round
# A refresh that waits for an activate (tRC) makes the next one wait for tRFC; enough time is left for some work.
ALWAYS_REFRESHING = {**UNSHADOWED, "nREFI": UNSHADOWED["nRFC"] + 50}
BANK_BY_BANK = {**UNSHADOWED, "nREFI": 3000, "nRFCpb": 120}
# Each refresh waits for the one before it, and now and then for the last one of its bank.
BANKS_ALWAYS_REFRESHING = {**UNSHADOWED, "nREFI": 450, "nRFCpb": 371}
PRESETS = ("hbm2-1tb", "hbm2-1tb-32b", "hbm2-reference", "hbm3e-h200")


def memory_of(timings: Mapping[str, int], n_channels: int = 1) -> MemorySpec:
    """A memory with the geometry of the bench and the given timings."""
    memory = machine("t3-tiny").memory
    return memory.model_copy(update={"n_channels": n_channels, "timing": DramTimingSpec(**timings)})


class TracedBench(ChannelBench):
    """A channel on the bench whose runs return the command log as the kernel wrote it."""

    def run_arrays(self, places: Any, arrivals: Any, *, quantum: int = 16, until: int = UNLIMITED) -> Log:
        log = np.zeros(8 * places.size + 1000, COMMAND_LOG).view(np.recarray)
        self.feed(places, arrivals, log, quantum=quantum, until=until)
        assert log[0].tag == 0, "the command log is full"
        return log[1 : int(log[0].at) + 1]


def check(log: Log, memory: MemorySpec, until: int | None = None) -> DramChecker:
    """A checker that has seen all of *log*, and its end if *until* says when that was."""
    checker = DramChecker(memory)
    checker.take(log)
    if until is not None:
        checker.finish(until)
    return checker


def run_and_check(setup: Setup, places: Any, arrivals: Any, asked: Mapping[str, int] | None = None) -> DramChecker:
    """Run the channel as *setup* says; check it against *asked*, the timings of the setup unless given."""
    bench = TracedBench(setup)
    log = bench.run_arrays(places, arrivals)
    checker = check(log, memory_of(setup.timings if asked is None else asked), int(bench.channel.now) + 1)
    compare_with_model(checker, bench.state[0].channels[:1])
    return checker


def compare_with_model(checker: DramChecker, channels: Any) -> None:
    """The counts of the trace are those that the model kept, of channels that have no request left."""
    counts = checker.counts()
    np.testing.assert_array_equal(counts.commands, channels["n_commands"])
    np.testing.assert_array_equal(counts.columns, channels["n_requests"].sum(axis=1))
    np.testing.assert_array_equal(counts.turnarounds, channels["n_turnarounds"])
    np.testing.assert_array_equal(counts.last_data_end, channels["last_done_at"])


# --- one channel -------------------------------------------------------------------------------------

KINDS = {
    "reads": (OPERAND_READ,),
    "stores": (WRITE_BACK,),
    "updates": (INCOMING_UPDATE,),
    "mixed": (OPERAND_READ, OPERAND_READ, DMA_READ, WRITE_BACK, COLLECTIVE_WRITE, LOCAL_UPDATE, INCOMING_UPDATE),
    "reads and updates": (OPERAND_READ, OPERAND_READ, OPERAND_READ, INCOMING_UPDATE),
}


@dataclass(frozen=True)
class Pattern:
    """Where requests go and when they come: banks and rows to choose from, mean gap between arrivals."""

    banks: tuple[int, ...] = tuple(range(16))
    n_rows: int = 4
    row_length: int = 1  # requests in a row to the same bank and row
    mean_gap: int = 0


PATTERNS = {
    "streams": Pattern(n_rows=1 << 10, row_length=32),
    "row conflicts": Pattern(n_rows=1 << 10),
    "few rows": Pattern(n_rows=2),
    "one bank": Pattern(banks=(5,), n_rows=2, row_length=3),
    "one group": Pattern(banks=(8, 9, 10, 11), row_length=4),
    "frequent hits": Pattern(banks=(0, 4, 9), n_rows=1, mean_gap=5),
    "sparse": Pattern(n_rows=2, mean_gap=40),
    "rare": Pattern(banks=(0, 6), n_rows=2, row_length=2, mean_gap=150),
}


def requests(pattern: Pattern, kinds: tuple[int, ...], n: int, seed: int) -> tuple[Any, Any]:
    """Places and arrivals [stream, n] of *n* requests a stream."""
    draw = np.random.default_rng(seed)
    n_runs = -(-n // pattern.row_length)

    def repeated(values: Any) -> Any:
        return np.repeat(values, pattern.row_length, axis=1)[:, :n]

    bank = repeated(draw.choice(pattern.banks, (2, n_runs)))
    row = repeated(draw.integers(0, pattern.n_rows, (2, n_runs)))
    kind = repeated(draw.choice(kinds, (2, n_runs)))
    column = draw.integers(0, 32, (2, n))
    arrivals = np.cumsum(draw.integers(0, 2 * pattern.mean_gap + 1, (2, n)), axis=1)
    return (row << 24) | (column << 16) | (bank << 8) | kind, arrivals


@dataclass(frozen=True)
class Channel:
    """One run of a channel under load."""

    timings: str
    policy: str
    is_split: bool
    pattern: str
    kinds: str
    n: int
    seed: int

    def setup(self) -> Setup:
        return Setup(TIMINGS[self.timings], self.policy, {}, self.is_split)

    def requests(self) -> tuple[Any, Any]:
        return requests(PATTERNS[self.pattern], KINDS[self.kinds], self.n, self.seed)


TIMINGS: dict[str, dict[str, int]] = {
    "unshadowed": UNSHADOWED,
    "refreshed": REFRESHED,
    "slow updates": SLOW_UPDATES,
    "always refreshing": ALWAYS_REFRESHING,
    "bank by bank": BANK_BY_BANK,
    "banks always refreshing": BANKS_ALWAYS_REFRESHING,
    **{name: machine("t3-150", memory=name).memory.timing.model_dump() for name in PRESETS},
}
POLICIES = ("round_robin", "compute_first", "mca")
MOST_REQUESTS = sample(3000, 600)
REQUESTS = {  # few: these are slow
    "always refreshing": sample(200, 100),
    "banks always refreshing": sample(200, 100),
    "one bank": sample(1000, 200),
}


def channels() -> Iterator[Channel]:
    """Every policy with both queues under every timing, each with all patterns and kinds."""
    cases = product(TIMINGS, POLICIES, (False, True), PATTERNS, KINDS)
    for seed, (timings, policy, is_split, pattern, kinds) in enumerate(cases):
        n = min(REQUESTS.get(timings, MOST_REQUESTS), REQUESTS.get(pattern, MOST_REQUESTS))
        yield Channel(timings, policy, is_split, pattern, kinds, n, seed)


CHANNELS = tuple(channels())
