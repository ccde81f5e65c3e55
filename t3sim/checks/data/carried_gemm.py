"""Values of a GEMM: operands of small whole numbers, an output that stays or is reduced around the ring."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.checks.data.carried_run import GUARD_GRANULES, CarriedRun
from t3sim.checks.data.places import Ints, one_of
from t3sim.config.machine import MachineSpec
from t3sim.gpu.core import GpuCore
from t3sim.gpu.kernel import codes
from t3sim.gpu.kernel.l2_slice import LINE_SHIFT
from t3sim.gpu.kernel.signals import granule_of, tile_of
from t3sim.workload.tiling import TileTrace


class CarriedGemm(CarriedRun):
    """A GEMM whose output stays (through the L2) or is reduced and scattered around the ring (T3)."""

    def __init__(self, machine: MachineSpec, trace: TileTrace, cores: list[GpuCore], n_devices: int, seed: int) -> None:
        """*cores* have *trace* loaded, in order of device."""
        gemm = cores[0].gemms[0]
        self.pitch = int(gemm.c_row_granules)
        super().__init__(machine, n_devices, len(cores), int(gemm.c_granule), trace.gemm.m * self.pitch)
        self.trace, self.cores = trace, cores
        n_wavefronts = int(gemm.n_wavefronts)
        routes = np.stack([core.tables.workgroups["route"] for core in cores])
        self.is_fused = bool((routes != codes.ROUTE_CACHED).any())
        self.chunk, self.tile_of, self.index_of = output_map(trace, self.pitch, self.n_elements, n_wavefronts)
        self.is_output = self.chunk >= 0
        is_remote = (routes == codes.ROUTE_REMOTE_UPDATE) | (routes == codes.ROUTE_REMOTE_STORE)
        self.is_remote = np.zeros((len(cores), self.values.shape[1]), bool)
        self.sender_tile = [inverse(core.tables.tiles) for core in cores]
        self.is_remote[:, self.is_output] = is_remote[:, self.tile_of[self.is_output] // n_wavefronts]
        self.produced, self.reference = produce(trace, self.values.shape, self.pitch, seed, n_devices)
        self.values[:, self.is_output] = 0
        self.read_values = np.zeros_like(self.values)
        self.has_read = np.zeros(self.values.shape[:2], bool)
        if self.is_mirrored and self.is_fused:
            arriving = np.flatnonzero(self.is_output & (self.chunk > 0))
            self.sent_values[0, arriving] = self.due(1, arriving)
            self.n_sent[0, arriving] = 1

    def _check_addresses(self, d: Ints, a: Ints, tags: Ints) -> None:
        tile, index = tile_of(tags), granule_of(tags)
        wrong = (self.tile_of[a] != tile) | (self.index_of[a] != index)
        self._note(wrong, d, a, "a store at another place than its tile says")

    def _execute_own(self, kind: int, d: Ints, a: Ints, tags: Ints) -> None:
        if kind == codes.DMA_READ:
            self._check_addresses(d, a, tags)
            self._note(self.has_read[d, a], d, a, "read twice by the DMA engine")
            self.has_read[d, a] = True
            self.read_values[d, a] = self.values[d, a]
        elif kind in (codes.LOCAL_UPDATE, codes.LOCAL_STORE, codes.WRITE_BACK):
            if kind != codes.WRITE_BACK:
                self._check_addresses(d, a, tags)
            self._store(kind, d, a, self.produced[d, a])
        else:
            self._note(np.ones(len(a), bool), d, a, "an access that a GEMM does not make")

    def take_dirty_lines(self) -> None:
        """See the base class: a dirty line is what the next kernel finds, as if it had been written back."""
        for d, core in enumerate(self.cores):
            l2 = core.gpu.l2
            tags = l2.tags[l2.tags >= 0]
            line, bit = np.nonzero(tags[:, None] >> np.arange(int(l2.granules_per_line)) & 1)
            a = (tags[line] >> LINE_SHIFT) * int(l2.granules_per_line) + bit - self.base
            is_inside = (a >= 0) & (a < self.values.shape[1])
            self._note(~is_inside, np.full(len(a), d), a, "a dirty line outside the output")
            a = a[is_inside]
            self._execute_own(codes.WRITE_BACK, np.full(len(a), d), a, a)

    def _send(self, device: int, messages: NDArray[Any]) -> None:
        d = device
        tiles = self.cores[d].tables.tiles
        tile, index = self.sender_tile[d][messages["tile"]], messages["granule"]
        row_granules = tiles["row_granules"][tile]
        a = tiles["first_granule"][tile] - self.base + index // row_granules * self.pitch + index % row_granules
        remote = self.is_remote[d, a]
        self._note(~remote & ~self.has_read[d, a], np.full(len(a), d), a, "sent before it was read")
        self._receive(d, a, np.where(remote[:, None], self.produced[d, a], self.read_values[d, a]))

    def position(self, device: int, a: Ints) -> Ints:
        """Return at which position *device* works on granules *a*."""
        return (self.chunk[a] - device) % self.n_devices

    def due(self, device: int, a: Ints) -> Ints:
        """See the base class: the sum that *device* passes on, its own part and those of the GPUs before it."""
        values: Ints = np.zeros_like(self.values[0, a])
        position = self.position(device, a)
        for step in range(self.n_devices):
            giver = (device + step) % self.n_devices
            gives = position >= step
            values[gives] += self.reference[giver, a[gives]]
        return values

    def expected(self, device: int) -> Ints:
        """See the base class: fused, the first chunk stays empty and each later one is a partial sum."""
        values = np.tile(self.untouched, (len(self.is_output), 1))
        places = np.flatnonzero(self.is_output)
        if not self.is_fused:
            values[places] = self.reference[device, places]
            return values
        values[places] = self.due(device, places)
        if self.n_devices > 1:
            values[places[self.position(device, places) == 0]] = 0
        return values

    def to_give(self, device: int) -> NDArray[np.bool_]:
        """See the base class: fused, every chunk but the last."""
        everything = np.arange(len(self.is_output))
        is_sent = self.is_output & (self.position(device, everything) < self.n_devices - 1)
        return is_sent & self.is_fused


def inverse(tiles: NDArray[Any]) -> Ints:
    """Return for each tile the one whose stores go there, at a GPU that makes the same tiles; -1: none."""
    found = np.full(len(tiles), -1)
    (leaves,) = np.nonzero((tiles["distance"] != 0) & (tiles["to_tile"] >= 0))
    found[tiles["to_tile"][leaves]] = leaves
    return found


def output_map(trace: TileTrace, pitch: int, n_elements: int, n_wavefronts: int) -> tuple[Ints, Ints, Ints]:
    """Return for each granule of the output array: chunk, wavefront tile, index in the tile; -1 for padding."""
    size = trace.gemm.m * pitch + GUARD_GRANULES
    chunk, tile_of, index_of = (np.full(size, -1, np.int64) for _ in range(3))
    chunk_of = trace.workgroups["chunk"]
    for tile in trace.wavefront_tiles():
        rows = np.arange(tile["row"], tile["row"] + tile["n_rows"])
        first = tile["column"] // n_elements
        across = np.arange(first, -(-(tile["column"] + tile["n_columns"]) // n_elements))
        places = (rows[:, None] * pitch + across).reshape(-1)
        chunk[places] = chunk_of[tile["workgroup"]]
        tile_of[places] = tile["workgroup"] * n_wavefronts + tile["wavefront"]
        index_of[places] = np.arange(len(places))
    return chunk, tile_of, index_of


def produce(trace: TileTrace, shape: tuple[int, ...], pitch: int, seed: int, n_devices: int) -> tuple[Ints, Ints]:
    """Return values: those of *shape* made tile by tile, those of all *n_devices* as NumPy's product."""
    gemm, rng = trace.gemm, np.random.default_rng(seed)
    n_simulated, n_elements = shape[0], shape[2] - 1
    tiled, whole = np.zeros(shape, np.int64), np.zeros((n_devices, *shape[1:]), np.int64)
    tiled[..., -1] = one_of(np.arange(n_simulated))[:, None]
    whole[..., -1] = one_of(np.arange(n_devices))[:, None]
    padded = np.zeros((gemm.m, pitch * n_elements), np.int64)
    for d in range(n_devices):
        # Products of doubles are exact here: |sum| is at most 9 k, far below 2^53.
        a, b = rng.integers(-3, 4, (gemm.m, gemm.k)).astype(float), rng.integers(-3, 4, (gemm.k, gemm.n)).astype(float)
        n_used = gemm.m * pitch
        padded[:, : gemm.n] = a @ b
        whole[d, :n_used, :-1] = padded.reshape(n_used, n_elements)
        if d >= n_simulated:
            continue
        padded[:, : gemm.n] = 0
        for tile in trace.workgroups:
            rows = slice(tile["row"], tile["row"] + tile["n_rows"])
            columns = slice(tile["column"], tile["column"] + tile["n_columns"])
            padded[rows, columns] += (a[rows] @ b[:, columns]).astype(np.int64)
        tiled[d, :n_used, :-1] = padded.reshape(n_used, n_elements)
    return tiled, whole
