"""Signals: what a store says in its tag, and who posts when."""

from __future__ import annotations

import numpy as np
import pytest

from t3sim.gpu.units.codes import COMM, INCOMING_WRITE, SIGNAL
from t3sim.gpu.units.dram.memory_controller import admit_head
from t3sim.gpu.units.signals import granule_of, signal_of, store_tag, tile_of
from t3sim.gpu.units.table_rows import MESSAGE
from tests.kernel.small import FOREVER, core_of, messages_of, take_in

LARGEST = (1 << 32) - 1, (1 << 12) - 1, (1 << 18) - 1  # tile, granule, signal


@pytest.mark.parametrize("tile", [0, 1, 77, LARGEST[0]])
@pytest.mark.parametrize("granule", [0, 5, LARGEST[1]])
@pytest.mark.parametrize("signal", [-1, 0, 3, LARGEST[2]])
def test_a_tag_holds_tile_granule_and_signal(tile: int, granule: int, signal: int) -> None:
    """Does a tag give back what was put into it, and is it not below 0?"""
    tag = store_tag(tile, granule, signal)
    assert tag >= 0
    assert (tile_of(tag), granule_of(tag), signal_of(tag)) == (tile, granule, signal)


@pytest.mark.parametrize("signal", [-1, 0, 1, 10**6])
def test_a_tag_without_a_tile_holds_the_signal(signal: int) -> None:
    """Is the tag of a store to a plain address below 0, and does it give back its signal?"""
    tag = store_tag(-1, 99, signal)
    assert tag < 0
    assert signal_of(tag) == signal


def test_a_store_posts_when_it_enters_the_dram_queue() -> None:
    """Does a granule count when its controller admits it, not when it arrives, and one without a signal never?"""
    core = core_of()
    gpu, signals = core.gpu, np.zeros(3, np.int64)
    core.receive(messages_of(MESSAGE, [0, 0], kind=INCOMING_WRITE, tile=-1, granule=[0, 1], signal=[2, -1]))
    take_in(core, FOREVER, signals)
    assert signals.tolist() == [0, 0, 0]
    channel = gpu.channels[0]
    for _ in range(2):
        assert admit_head(channel, gpu.tracker, core.tables.tiles, signals, COMM)
    assert signals.tolist() == [0, 0, 1]
    assert channel.has_posted == 1


def test_a_signal_message_posts_its_amount_behind_what_was_sent_before_it() -> None:
    """Does a message of kind SIGNAL add its amount, become no request, and wait for a granule ahead of it?"""
    core = core_of()
    gpu, signals = core.gpu, np.zeros(1, np.int64)
    core.receive(messages_of(MESSAGE, [10, 20], kind=[INCOMING_WRITE, SIGNAL], tile=-1, granule=[0, 7], signal=[-1, 0]))
    full = int(gpu.channels[0].stream_capacity)
    gpu.channels[0].queue_tail[COMM] = full
    take_in(core, FOREVER, signals)
    assert signals.tolist() == [0]
    gpu.channels[0].queue_head[COMM] = 1
    take_in(core, FOREVER, signals)
    assert signals.tolist() == [7]
    assert (gpu.n_inbound, gpu.n_signals_received, gpu.has_news) == (1, 1, 1)
