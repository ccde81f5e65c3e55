"""The output of a GEMM in memory: its element type, its bytes, and what a kernel stores if it splits k.

The type belongs to the tensor: what a kernel stores and what a collective carries of it are of the type of the output;
sums, inside a kernel and of panels of k, are FP32.  Scales of blocks (MXFP8, MXFP4, NVFP4, FP8 in blocks of 128) are
bytes of their own, in rows behind those of their elements (cuBLAS: tiles of scales, 512 bytes for 128 x 128 elements of
MXFP8).  Leaves out: the scale of a whole tensor, 4 bytes.  Pinned by ``tests/workload/test_outputs.py``.
"""

from t3sim.config.element_types import ELEMENT_TYPES, PARTIAL_SUM, ElementType, output_type
from t3sim.config.experiment import GemmShape, TilingSpec


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
