"""How far is compute ahead of the link: what workgroups that have ended have for other GPUs, less what was sent?"""

from __future__ import annotations

import numpy as np

from .small import trace_of, with_fused, with_gemm

N_SLOTS = 3000
TILE_GRANULES = 64 * 64 * 2 // 64


def test_lead_is_what_has_ended_and_is_not_sent() -> None:
    """Slot by slot, in per cent of a stage: 16 tiles. A channel that sleeps keeps its own."""
    core = with_fused(trace_of(512, 256, n_chunks=4))
    gpu, workgroups = core.gpu, core.tables.workgroups
    channels = gpu.channels[: int(gpu.n_channels)]
    is_sent = np.arange(32) < 24  # the last of four chunks stays
    leads = []
    for _ in range(N_SLOTS):
        sent, before = int(gpu.ports[0].n_sent), channels["lead"].copy()
        core.advance(core.now + core.slot_ticks)
        ended = int((is_sent & (workgroups["end_at"] >= 0)).sum())
        expected = (ended * TILE_GRANULES - sent) * 100 // (16 * TILE_GRANULES)
        is_new = channels["lead"] == expected
        assert (is_new | (channels["lead"] == before)).all()
        leads += [expected] * int((is_new & (before != expected)).sum())
    assert min(leads) < 0  # the first tiles are on their way before they have ended
    assert expected == 100  # of two stages, half a stage is sent and half a stage stays
    assert max(leads) > 90


def test_a_stage_is_as_long_as_its_first_workgroups_take() -> None:
    """In per cent of what the link needs for as much (canary: nothing before its end)?"""
    core = with_gemm(trace_of(256, 256, 512))
    gpu = core.gpu
    while gpu.stage_operation >= 0:
        assert gpu.channels[0].first_stage_length == 0
        core.advance(core.now + core.slot_ticks)
    on_link = 16 * 64 * 64 * 2 / core.machine.link.bandwidth  # seconds
    took = core.ticks.to_us(core.now) / 1e6
    assert abs(gpu.channels[0].first_stage_length - 100 * took / on_link) <= 1
