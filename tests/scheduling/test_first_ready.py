"""First-ready first-come-first-served, in small worlds with exact orders."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import pytest

from t3sim.gpu.units.codes import ACT, COMM, DMA_READ, OPERAND_READ, PRE, RD, REF, WR, WRITE_BACK
from tests.harness.channel_bench import UNSHADOWED, ChannelBench, Command, Request, Setup

READ, STORE = OPERAND_READ, WRITE_BACK
LATE = 400


def order(log: list[Command]) -> list[tuple[int, int, int]]:
    """Commands with bank and row, without their cycles."""
    return [(entry.command, entry.bank, entry.row) for entry in log]


def test_a_row_hit_overtakes_an_older_request_of_another_row() -> None:
    """Is the open row served first?"""
    log = ChannelBench().run([Request(0, READ, 0, 0), Request(1, READ, 0, 1), Request(2, READ, 0, 0)])
    assert order(log) == [(ACT, 0, 0), (RD, 0, 0), (RD, 0, 0), (PRE, 0, 0), (ACT, 0, 1), (RD, 0, 1)]


def test_a_row_is_not_closed_while_hits_keep_coming() -> None:
    """Does a conflicting request wait as long as the queue holds a hit (no cap)?"""
    hits = [Request(LATE + 4 * i, READ, 0, 0, i % 4) for i in range(50)]
    log = ChannelBench().run([Request(0, READ, 0, 0), Request(LATE, READ, 0, 1), *hits])
    assert order(log) == [(ACT, 0, 0), *[(RD, 0, 0)] * 51, (PRE, 0, 0), (ACT, 0, 1), (RD, 0, 1)]


def test_the_oldest_of_several_ready_hits_goes_first() -> None:
    """Does age decide among banks that are ready?"""
    opened = [Request(0, READ, bank) for bank in (0, 4, 8)]
    log = ChannelBench().run([*opened, *(Request(LATE, READ, bank, column=1) for bank in (8, 0, 4))])
    assert [entry.bank for entry in log if entry.at >= LATE] == [8, 0, 4]


def test_split_queue_reads_first_and_drains_stores_when_nothing_is_to_be_read() -> None:
    """Do reads overtake older stores below the high watermark?"""
    late = [Request(LATE, STORE, 0, column=1), *(Request(LATE, READ, 0, column=i) for i in range(3))]
    log = ChannelBench(Setup(is_split=True)).run([Request(0, READ, 0), *late])
    assert [entry.command for entry in log if entry.at >= LATE] == [RD, RD, RD, WR]


def test_split_queue_drains_from_the_high_to_below_the_low_watermark() -> None:
    """With reads waiting, how many stores go at once: from one above the high mark to one below the low one?"""
    high, low = 8, 3
    setup = Setup(is_split=True, high_watermark=high, low_watermark=low)
    reads = [Request(LATE, READ, 0, column=i % 4, stream=COMM) for i in range(12)]
    stores = [Request(LATE, STORE, 4, column=i % 4) for i in range(high + 1)]
    log = ChannelBench(setup).run([Request(0, READ, 0), Request(0, READ, 4), *stores, *reads])
    late = [entry.command for entry in log if entry.at >= LATE]
    assert late == [WR] * (high + 1 - (low - 1)) + [RD] * 12 + [WR] * (low - 1)


def test_split_queue_prepares_rows_of_the_other_direction_in_the_cycle_after_the_last_command() -> None:
    """Is the row bus told of a change of direction at once, not at the next column slot?"""
    requests = [Request(0, READ, 0), Request(LATE, READ, 0, column=1), Request(LATE, STORE, 4)]
    log = ChannelBench(Setup(is_split=True)).run(requests)
    assert [(entry.at, entry.command) for entry in log if entry.at >= LATE][:2] == [(LATE, RD), (LATE + 1, ACT)]


AGE = 300  # cycles from the first write that came to the drain
HELD_BACK = Setup(is_split=True, high_watermark=8, low_watermark=3, write_age=AGE)


def test_writes_that_are_held_back_wait_for_the_mark_though_nothing_is_to_be_read() -> None:
    """Do eight writes wait, and does the ninth start a drain of all?"""
    stores = [Request(LATE + 10 * i, STORE, 4, column=i % 4) for i in range(9)]
    log = ChannelBench(HELD_BACK).run([Request(0, READ, 4), *stores])
    written = [entry.at for entry in log if entry.command == WR]
    assert written[0] == LATE + 80
    assert len(written) == 9


@pytest.mark.parametrize("n", [1, 8])
def test_writes_that_are_held_back_are_drained_when_the_first_has_waited_so_long(n: int) -> None:
    """Is the first one written then, however many come behind it, not earlier, and not when a read has just left?"""
    stores = [Request(LATE + i, STORE, 4, column=i % 4) for i in range(n)]
    log = ChannelBench(HELD_BACK).run([Request(0, READ, 4), *stores, Request(LATE + 50, READ, 4, stream=COMM)])
    assert next(entry.at for entry in log if entry.command == WR) == LATE + AGE


def test_a_read_of_what_is_held_back_starts_a_drain() -> None:
    """Does a read that waits for a store get it before the store has waited its time?"""
    requests = [Request(0, READ), Request(LATE, STORE), Request(LATE + 5, DMA_READ, stream=COMM)]
    log = ChannelBench(HELD_BACK).run(requests, quantum=16)
    written, read = (entry.at for entry in log if entry.at >= LATE)
    assert LATE + 5 <= written < LATE + 5 + 16 < read < LATE + AGE


@pytest.mark.parametrize("reads_first", [True, False])
def test_reads_and_writes_without_end_alternate(reads_first: bool) -> None:
    """Does neither wait longer, whichever come first, though more than the mark says come all the time?"""
    setup = replace(HELD_BACK, capacity=6, write_capacity=12, writes_per_drain=12)
    reads = [Request(0, READ, 4, column=i % 4) for i in range(60)]
    stores = [Request(0, STORE, 8, column=i % 4, stream=COMM) for i in range(60)]
    log = ChannelBench(setup).run([*reads, *stores] if reads_first else [*stores, *reads])
    turns = [len(list(some)) for _, some in groupby(entry.command for entry in log if entry.command in (RD, WR))]
    assert len(turns) > 8
    assert max(turns[1:-3]) <= 13
    assert min(turns[1:-3]) >= 6


READ_AGE = 60  # cycles from the first read that came in a drain to its end
IN_TURNS = replace(HELD_BACK, high_watermark=40, low_watermark=0, read_age=READ_AGE)


def test_a_drain_ends_when_a_read_has_waited_so_long() -> None:
    """Is the read served then, neither earlier nor after all writes, and are the others written an age later?"""
    stores = [Request(LATE, STORE, 4, column=i % 4) for i in range(30)]
    requests = [Request(0, READ, 0), Request(0, READ, 4), *stores, Request(LATE + AGE + 7, READ, stream=COMM)]
    late = [e for e in ChannelBench(IN_TURNS).run(requests) if e.at >= LATE]
    read_at = next(entry.at for entry in late if entry.command == RD)
    assert 0 <= read_at - (LATE + AGE + 7 + READ_AGE) <= UNSHADOWED["nCWL"] + UNSHADOWED["nBL"] + UNSHADOWED["nWTRS"]
    assert next(e.at for e in late if e.command == WR and e.at > read_at) == LATE + AGE + 7 + READ_AGE + AGE


def test_a_drain_goes_on_for_a_read_if_too_many_writes_wait() -> None:
    """Does the read wait until no more than the mark are left?"""
    setup = replace(IN_TURNS, high_watermark=20)
    stores = [Request(LATE, STORE, 4, column=i % 4) for i in range(60)]
    log = ChannelBench(setup).run(
        [Request(0, READ, 0), Request(0, READ, 4), *stores, Request(LATE + 7, READ, stream=COMM)]
    )
    late = [entry.command for entry in log if entry.at >= LATE]
    assert 40 <= late.index(RD) <= 42


def test_a_drain_is_over_when_no_write_is_left() -> None:
    """Is a later write held back again, though no read came?"""
    later = LATE + AGE + 500
    log = ChannelBench(IN_TURNS).run([Request(0, READ, 4), Request(LATE, STORE, 4), Request(later, STORE, 4)])
    assert [entry.at for entry in log if entry.command == WR] == [LATE + AGE, later + AGE]


@pytest.mark.parametrize("turnaround", [0, 35])
def test_the_first_write_of_a_drain_waits_for_the_turnaround(turnaround: int) -> None:
    """Does the direction change so much earlier than the first write comes?"""
    log = ChannelBench(replace(HELD_BACK, turnaround_to_writes=turnaround)).run(
        [Request(0, READ, 4), Request(LATE, STORE, 4)]
    )
    assert next(entry.at for entry in log if entry.command == WR) == LATE + AGE + turnaround


@pytest.mark.parametrize("slot", [16, 64, 100])
def test_a_read_held_behind_a_store_is_asked_again_in_the_next_slot(slot: int) -> None:
    """Does it enter in the first cycle of the slot after the store left, and never in one that is over?"""
    store_at = UNSHADOWED["nRCDWR"]
    data_end = store_at + UNSHADOWED["nCWL"] + UNSHADOWED["nBL"]
    next_slot = (store_at // slot + 1) * slot
    log = ChannelBench().run([Request(0, STORE), Request(5, DMA_READ, stream=COMM)], quantum=slot)
    assert [entry.at for entry in log] == [0, store_at, max(next_slot, data_end + UNSHADOWED["nWTRL"])]


def test_refresh_closes_every_row_and_the_requests_come_back() -> None:
    """What does a refresh do to rows that are open and wanted?"""
    requests = [Request(0, READ, 0), Request(0, READ, 4), Request(1000, READ, 0), Request(1000, READ, 4)]
    log = ChannelBench(nREFI=1000).run(requests)
    opened = [(ACT, 0, 0), (ACT, 4, 0), (RD, 0, 0), (RD, 4, 0)]
    assert order(log)[:10] == [*opened, (PRE, -1, -1), (REF, -1, -1), *opened]
