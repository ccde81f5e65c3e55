"""The channel that jumps from event to event does command by command what a plain ticking one does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from t3sim.gpu.units.codes import BANK_SHIFT, FAR, OPERAND_READ, READ, ROW_SHIFT, WRITE, WRITE_BIT
from t3sim.gpu.units.dram.dram_channel import MOST_CYCLES, begin_refresh
from t3sim.gpu.units.dram.dram_queue import EITHER, MOST_KEYS, place_in_bank_list
from tests.conftest import cases
from tests.harness.channel_bench import ChannelBench
from tests.scheduling.random_streams import Case, Entry, entries, random_case, without_last_refreshes
from tests.scheduling.reference_channel import ReferenceChannel, Rules

N_BLOCKS, BLOCK = 15, 30


def expected(case: Case, rules: Rules | None = None) -> list[Entry]:
    """What the reference does, with the rules of the case or others."""
    log = ReferenceChannel(rules or case.rules).run(case.requests)
    return without_last_refreshes(log)


@pytest.mark.parametrize("block", cases(range(N_BLOCKS), 0, 1, 8))
def test_every_command_at_the_same_cycle(block: int) -> None:
    """Same commands, banks, rows and cycles, whatever the policy, queue, refresh and mix of kinds?"""
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        case = random_case(seed)
        assert without_last_refreshes(case.run()) == expected(case), f"seed {seed}"


@pytest.mark.parametrize("block", cases(range(3), 1))
def test_reads_that_wait_for_older_stores(block: int) -> None:
    """Is a DMA read held back behind a store to its address, and asked again at the start of each slot?"""
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        case = random_case(seed, has_checked_reads=True)
        assert without_last_refreshes(case.run()) == expected(case), f"seed {seed}"


def test_quanta_of_any_length_give_the_same_commands() -> None:
    """Does it matter how far the channel is run at a time?"""
    for seed in range(60):
        case = random_case(seed)
        logs = [without_last_refreshes(case.run(quantum)) for quantum in (1, 7, 64, 2048)]
        assert logs[1:] == logs[:-1], f"seed {seed}"


def test_counts_that_have_no_more_room_begin_anew() -> None:
    """Times and keys of banks have 32 bits: does a run in which they come to an end give the same commands?"""
    seen = Counter[str]()
    for seed in range(120):
        case = random_case(seed)
        cycles, requests = 20 + seed * 7 % 300, 3 + seed % 20
        setup = replace(case.setup, cycles_before=MOST_CYCLES - cycles, requests_before=MOST_KEYS - requests)
        bench = ChannelBench(setup)
        log = entries(bench.run(case.requests, quantum=case.rules.slot))
        assert without_last_refreshes(log) == expected(case), seed
        seen["times"] += bench.channel["epoch"] > -setup.cycles_before
        seen["keys"] += bench.channel["key_base"] > -setup.requests_before
    assert min(seen["times"], seen["keys"]) > 80


def test_a_bank_that_is_due_claims_no_row() -> None:
    """Neither for what waits in it, nor for what comes, until it has been refreshed; others do."""
    channel = ChannelBench(nREFI=500, nRFCpb=90, nRREFD=1).reset()
    channel["open_row"][0] = 5
    place_in_bank_list(channel, 7 << ROW_SHIFT | OPERAND_READ, 0)
    assert (channel["closed_key"][[READ, EITHER], 0] < FAR).all()
    begin_refresh(channel, 0)
    assert (channel["closed_key"][:, 0] == FAR).all()
    place_in_bank_list(channel, 8 << ROW_SHIFT | WRITE_BIT, 0)
    place_in_bank_list(channel, 8 << ROW_SHIFT | 1 << BANK_SHIFT | WRITE_BIT, 0)
    assert (channel["closed_key"][:, 0] == FAR).all()
    assert (channel["closed_key"][[WRITE, EITHER], 1] < FAR).all()
