"""Bandwidth of one channel with the timings of configs/memory/hbm2-reference.yaml.

The bands hold what Ramulator 2.1 and DRAMsim3 reach with these timings: streaming reads 90.1 and
91.9 % of peak, random reads 45.0 and 45.8 %, half reads and half stores of two conflicting streams
68.6 and 82.3 % (that one depends on the policy, hence its width).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from t3sim.gpu.units.codes import ACT, INCOMING_UPDATE, RD, UPD, WR, WRITE_BACK
from tests.harness.channel_bench import Setup, commands_of
from tests.harness.full_load import MEMORY, TIMINGS, N, Places, mixed, random_reads, run, share_of_peak, stream


class TestBands:
    def test_streaming_reads(self) -> None:
        """89.5..92 %?  (measured 90.4; all but refresh)"""
        assert 89.5 <= share_of_peak(stream(N)) <= 92

    def test_random_reads(self) -> None:
        """44..46 %?  (measured 44.9; activations, and refresh)"""
        assert 44 <= share_of_peak(random_reads(N)) <= 46

    def test_half_reads_half_stores(self) -> None:
        """64..85 %?  (measured 65.9)"""
        assert 64 <= share_of_peak(mixed(N)) <= 85

    @pytest.mark.parametrize("kind", [WRITE_BACK, INCOMING_UPDATE])
    def test_half_reads_half_stores_in_a_unified_queue(self, kind: int) -> None:
        """Is one queue served by age in the same band, with near-memory updates too?  (measured 83.1, 82.5)"""
        setup = Setup(TIMINGS, capacity=MEMORY.queue.entries)
        assert 64 <= share_of_peak(mixed(N, kind), setup) <= 85


class TestBounds:
    def test_without_refresh_streaming_is_the_peak_but_for_the_start(self) -> None:
        """Is only the first access's latency lost, and less than two tCCDL beside?"""
        bench, _ = run(stream(N), nREFI=0)
        start = TIMINGS["nRCDRD"] + TIMINGS["nCL"]
        lost = int(bench.channel["last_done_at"]) - N * TIMINGS["nBL"]
        assert start <= lost < start + 2 * TIMINGS["nCCDL"]

    def test_without_refresh_random_is_the_activate_bound(self) -> None:
        """One activation each tRRD: 50 % of peak, within 0.5 % for start and chance hits?"""
        bound = 100 * TIMINGS["nBL"] / TIMINGS["nRRDS"]
        assert bound * 0.995 <= share_of_peak(random_reads(N), nREFI=0) <= bound * 1.005

    def test_refresh_costs_streaming_no_less_than_its_share(self) -> None:
        """At most 1 - tRFC / tREFI, at least 99 % of that: closing and opening rows costs some 25 cycles each time?"""
        bound = 100 * (1 - TIMINGS["nRFC"] / TIMINGS["nREFI"])
        assert bound * 0.99 <= share_of_peak(stream(N)) <= bound

    def test_one_bank_random_rows_is_one_access_per_row_cycle(self) -> None:
        """Is tRC the period of a bank?"""
        places = (np.arange(500) << 24).astype(np.int64)
        _, log = run(places, nREFI=0)
        cycles = np.array([entry.at for entry in commands_of(log, ACT)])
        assert set(np.diff(cycles)) == {TIMINGS["nRC"]}

    @pytest.mark.parametrize("places", [stream, random_reads, mixed])
    def test_the_data_bus_carries_one_burst_at_a_time(self, places: Callable[[int], Places]) -> None:
        """Do the bursts of reads, nCL after the command, and of stores, nCWL after, never overlap?"""
        _, log = run(places(N))
        latency = {RD: TIMINGS["nCL"], WR: TIMINGS["nCWL"], UPD: TIMINGS["nCWL"]}
        starts = np.sort([entry.at + latency[entry.command] for entry in log if entry.command in latency])
        assert len(starts) == N
        assert np.diff(starts).min() >= TIMINGS["nBL"]
