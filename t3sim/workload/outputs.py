"""The output of a GEMM in memory: its element type, its bytes, and what a kernel stores if it splits k.

The type belongs to the tensor: what a kernel stores and what a collective carries of it are of the type of the output;
sums, inside a kernel and of panels of k, are FP32.  Scales of blocks (MXFP8, MXFP4, NVFP4, FP8 in blocks of 128) are
bytes of their own, in rows behind those of their elements (cuBLAS: tiles of scales, 512 bytes for 128 x 128 elements of
MXFP8).  Leaves out: the scale of a whole tensor, 4 bytes.  Pinned by ``tests/workload/test_outputs.py``.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3sim.config.element_types import ELEMENT_TYPES, PARTIAL_SUM, ElementType, output_type
from t3sim.config.experiment import GemmShape, TilingSpec
from t3sim.workload.operands import SIXTEEN_BITS

OUTPUT_PITCH_ALIGNMENT = 128  # bytes; each output row starts on a cache line
LEAST_STORE = 64  # bytes of a row of a tile: an access of the memory
Ints = NDArray[np.int64]


def output_name(gemm: GemmShape) -> str:
    """Return the name of the element type of the output."""
    return gemm.output or output_type(gemm.element)


def output_of(gemm: GemmShape) -> ElementType:
    """Return the element type of the output."""
    return ELEMENT_TYPES[output_name(gemm)]


def stored_as(gemm: GemmShape, tiling: TilingSpec) -> ElementType:
    """Return the element type that a GEMM kernel stores: that of the output, or of partial sums if it splits k."""
    return PARTIAL_SUM if tiling.split_k > 1 else output_of(gemm)


def output_bytes(gemm: GemmShape) -> int:
    """Return the bytes of the output and the scales of its blocks."""
    return output_of(gemm).n_bytes(gemm.m * gemm.n)


def row_bytes(gemm: GemmShape) -> int:
    """Return the bytes of a dense row of the output, without scales."""
    return -(-gemm.n * output_of(gemm).bits // 8)


class Granules(NamedTuple):
    """Where rectangles lie in an array, and what they take, in rows of memory and granules of these.

    Rows of memory hold the elements of rows, and scales of blocks behind them.
    """

    row: Ints
    n_rows: Ints
    column: Ints
    width: Ints


def granules_of(rectangles: NDArray[Any], granule: int, element: ElementType) -> Granules:
    """Return the places of *rectangles* (``WORKGROUP_DTYPE``, ``WAVEFRONT_DTYPE``) in an array of *element*.

    Granules are accesses of *granule* bytes.
    """
    row = element.stored_rows(np.array(rectangles["row"]))
    stop = element.stored_rows(rectangles["row"] + rectangles["n_rows"])
    first = rectangles["column"] * element.bits // (8 * granule)
    end = -(-(rectangles["column"] + rectangles["n_columns"]) * element.bits // (8 * granule))
    return Granules(row, stop - row, first, end - first)


def stored_wavefront_tile(tiling: TilingSpec, element: ElementType) -> tuple[int, int]:
    """Return rows and columns of the output that a wavefront stores, in whole lines of *element* or equal parts.

    Wavefronts of a tile of narrow elements exchange them through the LDS: each stores fewer rows, of more columns.
    """
    (_, columns), (high, wide) = tiling.workgroup_tile, tiling.wavefront_tile
    is_narrow = element.bits < SIXTEEN_BITS
    while is_narrow and wide % stored_columns(tiling, element) and columns % (2 * wide) == 0 and high % 2 == 0:
        high, wide = high // 2, 2 * wide
    return high, wide


def stored_columns(tiling: TilingSpec, element: ElementType) -> int:
    """Return how many elements are stored at once: those of a line, or of equal parts if a tile has no whole lines."""
    return math.gcd(element.n_elements(OUTPUT_PITCH_ALIGNMENT), tiling.workgroup_tile[1])
