"""Which kernel of a library runs a GEMM: against what cuBLAS ran on an H200, by hand, and by a naive twin.

``cublas_kernels.csv`` holds the tile that cuBLAS (of CUDA 13) took for each of 353 FP16 GEMMs on 132 multiprocessors,
in rows and columns of the row-major output, and whether it split k.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t3sim.config.experiment import GemmShape, KernelLibrarySpec, TilingSpec
from t3sim.config.presets import load_kernels, load_tiling
from t3sim.workload.kernel_choice import chosen_kernel, schedule_length, tiling_of

N_UNITS = 132
MIN_TILE = 64  # rows and columns of the smallest tile in the library

Rule = Callable[[KernelLibrarySpec, GemmShape, int], str]


@dataclass(frozen=True)
class Recorded:
    """A GEMM and the tile that cuBLAS took."""

    gemm: GemmShape
    tile: tuple[int, int]
    splits_k: bool


@cache
def recorded() -> tuple[Recorded, ...]:
    with (Path(__file__).parent / "cublas_kernels.csv").open(newline="") as file:
        rows = [{name: int(value) for name, value in row.items()} for row in csv.DictReader(file)]
    return tuple(
        Recorded(GemmShape(m=r["m"], n=r["n"], k=r["k"]), (r["rows"], r["columns"]), bool(r["splits_k"])) for r in rows
    )


@cache
def within_reach() -> tuple[Recorded, ...]:
    """Those that the library has a tile for, or one turned: no split of k, no tile of fewer than 64 rows."""
    return tuple(one for one in recorded() if not one.splits_k and min(one.tile) >= MIN_TILE)


@cache
def library() -> KernelLibrarySpec:
    found = load_kernels("cublas-hopper")
    assert isinstance(found, KernelLibrarySpec)
    return found


def of_tiles(*tiles: tuple[int, int], operand_cost: int = 1) -> KernelLibrarySpec:
    kernels = {
        f"{rows}x{columns}": TilingSpec(
            workgroup_tile=(rows, columns), wavefront_tile=(rows, columns), k_slice=64, prefetch_depth=1
        )
        for rows, columns in tiles
    }
    return KernelLibrarySpec(operand_cost=operand_cost, kernels=kernels)


def tile_of(rule: Rule, gemm: GemmShape) -> tuple[int, int]:
    return library().kernels[rule(library(), gemm, N_UNITS)].workgroup_tile


def share_of_tiles(rule: Rule) -> float:
    """Share of the recorded GEMMs for which *rule* takes cuBLAS's tile, or that one turned."""
    found = [sorted(tile_of(rule, one.gemm)) == sorted(one.tile) for one in within_reach()]
    return sum(found) / len(found)


def mean_difference(rule: Rule) -> float:
    """Mean of how much longer or shorter waves times tile are than with cuBLAS's own tile."""

    def length(gemm: GemmShape, tile: tuple[int, int]) -> int:
        rows, columns = tile
        n_tiles = -(-gemm.m // rows) * -(-gemm.n // columns)
        return -(-n_tiles // N_UNITS) * rows * columns

    found = [abs(length(one.gemm, tile_of(rule, one.gemm)) / length(one.gemm, one.tile) - 1) for one in within_reach()]
    return sum(found) / len(found)


def one_tile(kernels: KernelLibrarySpec, gemm: GemmShape, n_units: int) -> str:
    """What the library had been before: 128 x 256 for everything."""
    return "128x256"


def least_work(kernels: KernelLibrarySpec, gemm: GemmShape, n_units: int) -> str:
    """A seeded defect: the waves are forgotten, so that only padding and operands count."""
    return min(kernels.kernels, key=lambda name: schedule_length(kernels.kernels[name], kernels.operand_cost, gemm, 1))


def without_operands(kernels: KernelLibrarySpec, gemm: GemmShape, n_units: int) -> str:
    """A seeded defect: operands cost nothing, so that small tiles are as good as large ones."""
    return min(kernels.kernels, key=lambda name: schedule_length(kernels.kernels[name], 0, gemm, n_units))


def test_most_gemms_have_the_tile_that_cublas_took() -> None:
    """The source in the preset says so; a change of its list or of the rule has to say it anew."""
    assert len(recorded()) == 353
    assert len(within_reach()) == 329
    same = [tile_of(chosen_kernel, one.gemm) == one.tile for one in recorded()]
    turned = [sorted(tile_of(chosen_kernel, one.gemm)) == sorted(one.tile) for one in recorded()]
    assert (sum(same), sum(turned)) == (269, 296)


def test_schedules_are_as_long_as_those_of_cublas() -> None:
    """Within 1 % in the mean: what a wrong tile costs in time is what matters."""
    assert mean_difference(chosen_kernel) < 0.01


@pytest.mark.parametrize("rule", [one_tile, least_work, without_operands])
def test_canary_another_rule_is_noticed(rule: Rule) -> None:
    assert share_of_tiles(rule) < 0.75 < share_of_tiles(chosen_kernel)
    assert mean_difference(rule) > 0.015


@pytest.mark.parametrize(("operand_cost", "is_as_good"), [(7, False), (8, True), (31, True), (32, False)])
def test_the_cost_of_an_operand_has_the_range_that_the_preset_states(operand_cost: int, is_as_good: bool) -> None:
    other = library().model_copy(update={"operand_cost": operand_cost})

    def rule(kernels: KernelLibrarySpec, gemm: GemmShape, n_units: int) -> str:
        return chosen_kernel(other, gemm, n_units)

    assert (share_of_tiles(rule) == share_of_tiles(chosen_kernel)) == is_as_good


def test_by_hand() -> None:
    """T-NLG on 132 units: 64 x 17 tiles of 128 x 256 are 9 waves, 52 x 17 of 160 x 256 are 7."""
    both = of_tiles((128, 256), (160, 256), operand_cost=16)
    gemm = GemmShape(m=8192, n=4256, k=2128)
    assert schedule_length(both.kernels["128x256"], 16, gemm, 132) == 9 * (128 * 256 + 16 * 384)
    assert schedule_length(both.kernels["160x256"], 16, gemm, 132) == 7 * (160 * 256 + 16 * 416)
    assert chosen_kernel(both, gemm, 132) == "160x256"
    assert chosen_kernel(both, gemm, 1088) == "128x256"  # one wave of either


def test_ties() -> None:
    """Equally long: the fewest tiles; then the widest."""
    gemm = GemmShape(m=768, n=4096, k=64)
    assert chosen_kernel(of_tiles((128, 192), (192, 128)), gemm, 132) == "192x128"  # 132 and 128 tiles, one wave
    square = GemmShape(m=1024, n=1024, k=64)
    assert chosen_kernel(of_tiles((128, 64), (64, 128)), square, 132) == "64x128"


def waves_one_by_one(tile: tuple[int, int], operand_cost: int, gemm: GemmShape, n_units: int) -> int:
    """A naive twin of ``schedule_length``: tiles are dealt to the units in turn, and the busiest unit is last."""
    work = [0] * n_units
    unit = 0
    for _ in range(0, gemm.m, tile[0]):
        for _ in range(0, gemm.n, tile[1]):
            work[unit] += tile[0] * tile[1] + operand_cost * sum(tile)
            unit = (unit + 1) % n_units
    return max(work)


sides = st.integers(1, 40)
shapes = st.builds(GemmShape, m=st.integers(1, 300), n=st.integers(1, 300), k=st.integers(1, 10_000))
libraries = st.builds(
    lambda tiles, cost: of_tiles(*tiles, operand_cost=cost),
    st.lists(st.tuples(sides, sides), min_size=1, max_size=5, unique=True),
    st.integers(1, 50),
)


@given(libraries, shapes, st.integers(1, 40))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_no_other_kernel_would_end_sooner(kernels: KernelLibrarySpec, gemm: GemmShape, n_units: int) -> None:
    def ends_at(name: str) -> int:
        return waves_one_by_one(kernels.kernels[name].workgroup_tile, kernels.operand_cost, gemm, n_units)

    chosen = chosen_kernel(kernels, gemm, n_units)
    assert ends_at(chosen) == min(map(ends_at, kernels.kernels))


@given(libraries, shapes, st.integers(1, 40), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_neither_k_nor_the_order_of_the_list_decides(
    kernels: KernelLibrarySpec, gemm: GemmShape, n_units: int, random: object
) -> None:
    names = list(kernels.kernels)
    random.shuffle(names)  # type: ignore[attr-defined]
    other = kernels.model_copy(update={"kernels": {name: kernels.kernels[name] for name in names}})
    longer = gemm.model_copy(update={"k": 2 * gemm.k})
    assert tiling_of(other, longer, n_units) == tiling_of(kernels, gemm, n_units)


def test_one_kernel_runs_everything() -> None:
    tiling = load_tiling("gemm-128x256")
    assert tiling_of(tiling, GemmShape(m=1, n=1, k=1), 132) == tiling
