"""Which kernel of a library runs a GEMM: against what cuBLAS ran on an H200, by hand, and by a naive twin.

``cublas_kernels.csv`` holds the tile that cuBLAS (of CUDA 13) took for each of 353 FP16 GEMMs on 132 multiprocessors,
in rows and columns of the row-major output, and whether it split k; ``validation/h200-split-k.csv`` has 360 of small
outputs, with the number of panels.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from t3sim.config.experiment import GemmShape, KernelLibrarySpec, PartialSumsSpec, TilingSpec
from t3sim.config.presets import load_kernels
from t3sim.workload.kernel_choice import chosen_kernel, schedule_length, split, tiling_of, without_split

N_UNITS = 132
INTEGERS = ("m", "n", "k", "rows", "columns", "split_k")
MIN_TILE = 64  # rows and columns of the smallest tile in the library

Rule = Callable[[KernelLibrarySpec, GemmShape, int], tuple[str, int]]


@dataclass(frozen=True)
class Recorded:
    """A GEMM and the tile that cuBLAS took."""

    gemm: GemmShape
    tile: tuple[int, int]
    split_k: int  # in ``cublas_kernels.csv`` 2 represents any number of panels


@cache
def recorded() -> tuple[Recorded, ...]:
    with (Path(__file__).parent / "cublas_kernels.csv").open(newline="") as file:
        rows = [{name: int(value) for name, value in row.items()} for row in csv.DictReader(file)]
    return tuple(
        Recorded(GemmShape(m=r["m"], n=r["n"], k=r["k"]), (r["rows"], r["columns"]), 1 + r["splits_k"]) for r in rows
    )


@cache
def within_reach() -> tuple[Recorded, ...]:
    """Those that the library has a tile for, or one turned: no split of k, no tile of fewer than 64 rows."""
    return tuple(one for one in recorded() if one.split_k == 1 and min(one.tile) >= MIN_TILE)


@cache
def of_small_outputs() -> tuple[Recorded, ...]:
    """Those recorded for split-K whose tile the library has, or one turned."""
    path = Path(__file__).parents[2] / "validation" / "h200-split-k.csv"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    found = (
        Recorded(GemmShape(m=r["m"], n=r["n"], k=r["k"]), (r["rows"], r["columns"]), r["split_k"])
        for r in ({name: int(row[name]) for name in INTEGERS} for row in csv.DictReader(lines))
    )
    return tuple(one for one in found if min(one.tile) >= MIN_TILE)


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
    return library().kernels[rule(library(), gemm, N_UNITS)[0]].workgroup_tile


def mean_difference(rule: Rule) -> float:
    """Mean of how much longer or shorter waves times tile are than with cuBLAS's own tile."""

    def length(gemm: GemmShape, tile: tuple[int, int]) -> int:
        rows, columns = tile
        n_tiles = -(-gemm.m // rows) * -(-gemm.n // columns)
        return -(-n_tiles // N_UNITS) * rows * columns

    found = [abs(length(one.gemm, tile_of(rule, one.gemm)) / length(one.gemm, one.tile) - 1) for one in within_reach()]
    return sum(found) / len(found)


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


def splits_alike(rule: Rule) -> tuple[int, int]:
    """Of the small outputs: how often *rule* splits k or does not as cuBLAS, and how often into as many panels."""
    found = [(rule(library(), one.gemm, N_UNITS)[1], one.split_k) for one in of_small_outputs()]
    return sum((own > 1) == (other > 1) for own, other in found), sum(own == other for own, other in found)


def test_k_is_split_where_cublas_does() -> None:
    """284 of 328, 246 into as many panels; and 350 of the 353 above."""
    assert len(of_small_outputs()) == 328
    assert sum(one.split_k > 1 for one in of_small_outputs()) == 113
    assert splits_alike(chosen_kernel) == (284, 246)
    alike = [(chosen_kernel(library(), one.gemm, N_UNITS)[1] > 1) == (one.split_k > 1) for one in recorded()]
    assert sum(alike) == 350


def of_few_rows() -> list[tuple[GemmShape, tuple[int, int], bool]]:
    """What cuBLAS ran for 300 BF16 GEMMs of 1 to 4096 rows: tile (rows, columns), whether k is split."""
    path = Path(__file__).parents[2] / "validation" / "h200-few-rows.csv"
    rows = csv.DictReader(line for line in path.read_text().splitlines() if not line.startswith("#"))
    found = []
    for row in rows:
        name = re.search(r"nvjet\w+?_(\d+)x(\d+)_64x\d+", row["kernels"])
        if name is not None:
            shape = GemmShape(m=int(row["m"]), n=int(row["n"]), k=int(row["k"]))
            found.append((shape, (int(name[2]), int(name[1])), "splitK" in row["kernels"]))
    return found


def test_gemms_of_few_rows_have_the_small_tiles_that_cublas_took() -> None:
    """The others are mostly tiles whose columns are no multiple of 64, which cannot be simulated."""
    rows = of_few_rows()
    assert len(rows) == 300
    same = [tile_of(chosen_kernel, gemm) == tile for gemm, tile, _ in rows]
    alike = [(chosen_kernel(library(), gemm, N_UNITS)[1] > 1) == is_split for gemm, _, is_split in rows]
    few = [is_same for is_same, (gemm, _, _) in zip(same, rows, strict=True) if gemm.m <= 32]
    assert (sum(few), len(few)) == (99, 105)
    assert (sum(same), sum(alike)) == (214, 294)


def test_scales_of_rows_have_the_one_kernel_that_cublas_has() -> None:
    """Whatever the shape; FP8 with a scale for each tensor has the kernels of 16 bits."""
    names = set()
    with (Path(__file__).parents[2] / "validation" / "h200-fp8-kernels.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["element"] == "fp8_rowwise"]
    assert len(rows) > 100
    for row in rows:
        gemm = GemmShape(m=int(row["m"]), n=int(row["n"]), k=int(row["k"]), element="fp8_rowwise")
        name, n_panels = chosen_kernel(library(), gemm, N_UNITS)
        assert f"_{name}_" in row["kernel"]
        assert n_panels == 1
        names.add(chosen_kernel(library(), gemm.model_copy(update={"element": "fp8"}), N_UNITS)[0])
    assert len(names) > 3


def test_a_split_by_hand() -> None:
    """512 x 512 x 4096 on 132 units: 64 tiles of 64 x 64 leave as many units for a second panel."""
    one = of_tiles((64, 64), operand_cost=16).model_copy(
        update={"partial_sums": PartialSumsSpec(launch=1_000_000, element=100)}
    )
    gemm, tiling = GemmShape(m=512, n=512, k=4096), one.kernels["64x64"]
    whole, half = 64 * 64 + 16 * 128, (64 * 64 + 16 * 128) / 2
    assert schedule_length(tiling, one, gemm, 132) == whole
    n_sums = -(-512 * 512 * 2 // 132)
    assert schedule_length(split(tiling, 2), one, gemm, 132) == half + (1_000_000 + 100 * n_sums) / 4096
    assert chosen_kernel(one, gemm, 132) == ("64x64", 2)
    assert chosen_kernel(one, gemm, 127) == ("64x64", 1)  # one unit too few
    assert chosen_kernel(one, gemm.model_copy(update={"k": 256}), 132) == ("64x64", 1)  # no longer worth it
    assert chosen_kernel(one, gemm.model_copy(update={"n": 500}), 132) == ("64x64", 1)  # no whole lines
    assert tiling_of(one, gemm, 132).split_k == 2
    assert tiling_of(without_split(one), gemm, 132).split_k == 1


def test_by_hand() -> None:
    """T-NLG on 132 units: 64 x 17 tiles of 128 x 256 are 9 waves, 52 x 17 of 160 x 256 are 7."""
    both = of_tiles((128, 256), (160, 256), operand_cost=16)
    gemm = GemmShape(m=8192, n=4256, k=2128)
    assert schedule_length(both.kernels["128x256"], both, gemm, 132) == 9 * (128 * 256 + 16 * 384)
    assert schedule_length(both.kernels["160x256"], both, gemm, 132) == 7 * (160 * 256 + 16 * 416)
    assert chosen_kernel(both, gemm, 132) == ("160x256", 1)
    assert chosen_kernel(both, gemm, 1088) == ("128x256", 1)  # one wave of either


def test_ties() -> None:
    """Equally long: the fewest tiles; then the widest."""
    gemm = GemmShape(m=768, n=4096, k=64)
    assert chosen_kernel(of_tiles((128, 192), (192, 128)), gemm, 132) == ("192x128", 1)  # 132 and 128 tiles, one wave
    square = GemmShape(m=1024, n=1024, k=64)
    assert chosen_kernel(of_tiles((128, 64), (64, 128)), square, 132) == ("64x128", 1)


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

    chosen, n_panels = chosen_kernel(kernels, gemm, n_units)
    assert n_panels == 1  # such a library does not split k
    assert ends_at(chosen) == min(map(ends_at, kernels.kernels))
