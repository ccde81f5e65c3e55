"""The address map: a bijection that spreads what GEMMs touch over channels and banks."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from t3sim.config.presets import preset_names
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.core import GpuCore
from t3sim.workload.models import named_model
from t3sim.workload.sublayers import SUBLAYERS, gemm_of
from tests.harness.machines import machine
from tests.harness.places import map_granules

K_SLICE_LINES = 64  # elements of FP16 in a line of 128 bytes


class Geometry(NamedTuple):
    """Sizes as powers of two."""

    interleave: int
    channel: int
    bank: int
    group: int
    row_unit: int


BIG = Geometry(2, 5, 4, 2, 3)  # hbm2-1tb: 4 granules in a unit, 32 channels, 16 banks in 4 groups, 8 units in a row
SMALL = [
    BIG,
    Geometry(0, 0, 0, 0, 0),
    Geometry(0, 1, 2, 1, 1),
    Geometry(1, 1, 2, 2, 2),
    Geometry(2, 2, 3, 0, 1),
    Geometry(3, 3, 4, 2, 0),
    Geometry(1, 0, 1, 1, 3),
]


@cache
def core() -> GpuCore:
    return GpuCore(machine("t3-150"), arbitration_policies.get("round_robin"), {})


def mapped(granules: NDArray[np.int64], geometry: Geometry = BIG) -> tuple[NDArray[np.int64], ...]:
    """Return channel, bank, row, column of each granule."""
    gpu = core().gpu
    gpu.interleave_bits, gpu.channel_bits, gpu.bank_bits, gpu.group_bits, gpu.row_unit_bits = geometry
    gpu.n_channels = 1 << geometry.channel
    channels, places = np.zeros_like(granules), np.zeros_like(granules)
    map_granules(core().state, granules, channels, places)
    return channels, (places >> 8) & 255, places >> 24, (places >> 16) & 255


def granule_at(geometry: Geometry, channel: Any, bank: Any, row: Any, column: Any) -> Any:
    """The inverse of the map, written from its description."""
    group = bank >> (geometry.bank - geometry.group)
    spread = ((bank & ((1 << (geometry.bank - geometry.group)) - 1)) << geometry.group) | group
    unit_in_row, low = column >> geometry.interleave, column & ((1 << geometry.interleave) - 1)
    above = (row << geometry.row_unit) | unit_in_row
    inside = (above << geometry.bank) | ((spread ^ row) & ((1 << geometry.bank) - 1))
    channel_bits = (channel ^ inside ^ (inside >> geometry.channel)) & ((1 << geometry.channel) - 1)
    return (((inside << geometry.channel) | channel_bits) << geometry.interleave) | low


def hot_channel_share(granules: NDArray[np.int64]) -> float:
    """Accesses of the busiest channel over the mean of all."""
    counts = np.bincount(mapped(granules)[0], minlength=32)
    return float(counts.max() / counts.mean())


def lines(first_rows: range, pitch_lines: int, n_lines: int = 1) -> NDArray[np.int64]:
    """Granules of the first *n_lines* lines of some rows of a matrix, row after row."""
    in_row = np.arange(2 * n_lines)
    return (np.array(first_rows)[:, None] * 2 * pitch_lines + in_row).ravel()


class TestBijection:
    @pytest.mark.parametrize("geometry", SMALL)
    def test_every_place_of_a_few_rows_is_hit_once(self, geometry: Geometry) -> None:
        """Do all granules of 16 rows of each bank fill each place exactly once (and nothing beyond)?"""
        n_rows = 16
        columns = 1 << (geometry.row_unit + geometry.interleave)
        shape = (1 << geometry.channel, 1 << geometry.bank, n_rows, columns)
        places = mapped(np.arange(np.prod(shape)), geometry)
        index = np.ravel_multi_index(places, shape)
        assert (np.bincount(index, minlength=np.prod(shape)) == 1).all()

    @pytest.mark.parametrize("geometry", SMALL)
    def test_the_inverse_leads_back(self, geometry: Geometry) -> None:
        """Over the whole address range (2^38 granules), does the map lose nothing?"""
        granules = np.random.default_rng(7).integers(0, 1 << 38, 20_000)
        assert np.array_equal(granule_at(geometry, *mapped(granules, geometry)), granules)

    def test_fields_of_the_shipped_memory_are_in_range(self) -> None:
        """Do channel, bank and column stay below their numbers?"""
        granules = np.random.default_rng(8).integers(0, 1 << 34, 20_000)
        channel, bank, _, column = mapped(granules)
        assert (channel.max(), bank.max(), column.max()) == (31, 15, 31)


class TestLocality:
    def test_a_unit_of_256_bytes_stays_in_one_row(self) -> None:
        """Are four consecutive granules consecutive columns of one row, so that an L2 line opens one row?"""
        granules = np.random.default_rng(9).integers(0, 1 << 30, 1000)[:, None] * 4 + np.arange(4)
        channel, bank, row, column = (field.reshape(-1, 4) for field in mapped(granules.ravel()))
        for field in (channel, bank, row):
            assert (field == field[:, :1]).all()
        assert (column - column[:, :1] == np.arange(4)).all()

    def test_the_next_units_of_a_channel_are_in_other_bank_groups(self) -> None:
        """Do consecutive units of one channel visit all four groups before one again?"""
        granules = np.arange(1 << 17)[::4]
        channel, bank, _, _ = mapped(granules)
        groups = (bank[channel == 5] // 4)[: 4 * 64].reshape(-1, 4)
        assert (np.sort(groups, axis=1) == np.arange(4)).all()


class TestSpread:
    def test_a_sweep_uses_every_bank_of_every_channel_equally(self) -> None:
        """Does a contiguous array of whole stripes load all 512 banks alike, to the access?"""
        channel, bank, _, _ = mapped(np.arange(1 << 16))
        assert (np.bincount(channel * 16 + bank, minlength=512) == (1 << 16) // 512).all()

    @pytest.mark.parametrize("log2_stride", range(13))
    def test_power_of_two_strides_use_all_channels_equally(self, log2_stride: int) -> None:
        """Up to 256 KiB, does a stride of a power of two load all channels alike?"""
        assert hot_channel_share(np.arange(4096) << log2_stride) == 1.0

    @pytest.mark.parametrize("name", preset_names("model"))
    def test_a_slice_of_k_of_the_studied_shapes_is_spread(self, name: str) -> None:
        """One slice of k over 2048 rows of an operand: is the busiest channel below 1.7 times the mean?

        Measured: 1.0 for powers of two up to 1.62 for pitches of three times a power of two; a random
        map of 2048 lines has 1.26.  The bound is the measured worst with 5 % of slack.
        """
        model = named_model(name).spec
        for tp in model.tensor_parallel:
            for sublayer in SUBLAYERS:
                pitch = -(-gemm_of(model, sublayer, tp).k // K_SLICE_LINES)
                assert hot_channel_share(lines(range(2048), pitch)) < 1.7
