"""Operands of a GEMM in memory: bytes, slices of k, and the rate at which matrix units multiply them.

Kernels stage operands in slices of k, one cache line of each row of A and of each column of B, whatever the type of the
elements: a kernel that takes 64 elements of 16 bits at a time takes 128 of 8 bits.  Scales of blocks are stored with
their elements, so a line of MXFP8 holds 124 elements and their scales.  With two operand types, a slice is a line
of the wider one; of the narrower one (such as 4-bit weights), each slice loads the proportional share of its rows.
Pinned by ``tests/workload/test_operands.py``.
"""

from fractions import Fraction

from t3sim.config.element_types import ELEMENT_TYPES, ElementType
from t3sim.config.experiment import GemmShape, TilingSpec
from t3sim.config.gpu import ComputeUnitSpec
from t3sim.errors import UsageError

SIXTEEN_BITS = 16


def operand_types(gemm: GemmShape) -> tuple[ElementType, ElementType]:
    """Return the element types of A and of B."""
    return ELEMENT_TYPES[gemm.element], ELEMENT_TYPES[gemm.weights or gemm.element]


def wider(gemm: GemmShape) -> ElementType:
    """Return the element type of the operand with more bits: it sets the slices of k and the matrix rate."""
    return max(operand_types(gemm), key=lambda one: (one.bits, one.stored_bits))


def k_slice_of(gemm: GemmShape, tiling: TilingSpec) -> int:
    """Return the elements of k in a slice: as many as fill, with their scales, the bytes of ``tiling.k_slice``."""
    return int(tiling.k_slice * SIXTEEN_BITS / wider(gemm).stored_bits)


def slice_row_bytes(tiling: TilingSpec) -> int:
    """Return the bytes that a row of A, or a column of B, has in a slice of k."""
    return tiling.k_slice * SIXTEEN_BITS // 8


def slices_of(gemm: GemmShape, tiling: TilingSpec) -> int:
    """Return the slices of k."""
    return -(-gemm.k // k_slice_of(gemm, tiling))


def whole_k(gemm: GemmShape, tiling: TilingSpec) -> int:
    """Return k rounded up to whole slices of elements, without their scales."""
    each = tiling.k_slice * SIXTEEN_BITS // wider(gemm).bits
    return -(-gemm.k // each) * each


def loaded_shares(gemm: GemmShape) -> tuple[Fraction, Fraction]:
    """Return which share of the rows of A, and of the columns of B, is loaded in each slice: 1 of the wider one."""
    widest = wider(gemm).stored_bits
    a, b = (min(one.stored_bits / widest, Fraction(1)) for one in operand_types(gemm))
    return a, b


def bytes_of_a(gemm: GemmShape, n_elements: int) -> int:
    """Return the bytes of a number of elements of A and their scales; what collectives carry if A is gathered."""
    return operand_types(gemm)[0].n_bytes(n_elements)


def bytes_of_b(gemm: GemmShape, n_elements: int) -> int:
    """Return the bytes of a number of elements of B and their scales."""
    return operand_types(gemm)[1].n_bytes(n_elements)


def operand_bytes(gemm: GemmShape) -> int:
    """Return the bytes of both operands and their scales."""
    return bytes_of_a(gemm, gemm.m * gemm.k) + bytes_of_b(gemm, gemm.n * gemm.k)


def matrix_rate(unit: ComputeUnitSpec, gemm: GemmShape) -> float:
    """Return how many times faster than in 16 bits matrix units multiply *gemm*.

    Raises ``UsageError`` if the machine does not multiply elements of that type.
    """
    found = stated_rate(unit, wider(gemm))
    if found is None:
        name = wider(gemm).rate
        message = f"is {gemm.element}, but this machine has no `gpu.compute_unit.matrix_rates.{name}`"
        raise UsageError(f"workload: element {message}")
    return found


def stated_rate(unit: ComputeUnitSpec, of: ElementType) -> float | None:
    """Return the matrix rate of an element type, relative to 16 bits; None: the machine does not multiply it."""
    if of.rate == "fp16":
        return 1.0
    return None if unit.matrix_rates is None else getattr(unit.matrix_rates, of.rate)


def slowed(work: int, rate: float) -> int:
    """Return 16-bit work that takes as long as *work* at a matrix *rate*, a whole number like *work*."""
    return work if rate == 1.0 else round(work / rate)
