"""Element types of tensors: bits, the scales stored with them, and which matrix rate multiplies them.

Sources: IEEE 754 (FP16, FP32); OCP 8-bit floating point specification (FP8); OCP microscaling formats specification
v1.0 (MXFP8, MXFP4: blocks of 32 elements with an 8-bit scale); NVIDIA cuBLAS documentation, "1D block scaling" (NVFP4:
blocks of 16 with an 8-bit scale) and "outer vector scaling" (FP8 with a scale for each row); DeepSeek-V3 technical
report, section 3.3 (``fp8_block``: an FP32 scale for 128 elements); AWQ and GPTQ checkpoints (INT4: an FP16 scale for
128 weights).  All types are summed up in FP32 (INT8: INT32), 4 bytes.

Leaves out: the scale of a tensor, and those of rows and columns (4 bytes each), which are small against the operands.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

MatrixRate = Literal["fp16", "tf32", "fp8", "fp4", "int8"]
ReducedName = Literal["fp16", "bf16", "fp32", "fp8"]
ElementName = Literal[
    "fp16", "bf16", "fp32", "fp8", "fp8_rowwise", "fp8_block", "mxfp8", "mxfp4", "nvfp4", "int8", "int4"
]


@dataclass(frozen=True)
class ElementType:
    """A type of the elements of a tensor."""

    bits: int
    significand: int  # bits, with the leading one that is not stored; of an integer all but the sign
    rate: MatrixRate  # of a GEMM that multiplies operands of this type
    block: int = 1  # elements that share a scale stored with them
    scale_bits: int = 0
    is_for_weights: bool = False  # only: matrix units multiply it after conversion to the type of the activations

    @property
    def stored_bits(self) -> Fraction:
        """Bits of an element in memory, with its part of the scale of its block."""
        return self.bits + Fraction(self.scale_bits, self.block)

    def n_bytes(self, n_elements: int) -> int:
        """Return the bytes of a number of elements and of the scales of their blocks."""
        return int(-(-n_elements * self.stored_bits // 8))

    def n_elements(self, n_bytes: int) -> int:
        """Return how many elements, without scales, fill a number of bytes."""
        return n_bytes * 8 // self.bits

    def stored_rows(self, n_rows: Any) -> Any:
        """Return the rows of memory that *n_rows* of an array and the scales of their blocks take (int or integers).

        Scales lie in rows of their own behind those of their elements, as wide as these.
        """
        ratio = self.stored_bits / self.bits
        return -(-n_rows * ratio.numerator // ratio.denominator)


ELEMENT_TYPES: dict[str, ElementType] = {
    "fp16": ElementType(16, 11, "fp16"),
    "bf16": ElementType(16, 8, "fp16"),
    "fp32": ElementType(32, 24, "tf32"),
    "fp8": ElementType(8, 4, "fp8"),
    "fp8_rowwise": ElementType(8, 4, "fp8"),
    "fp8_block": ElementType(8, 4, "fp8", block=128, scale_bits=32),
    "mxfp8": ElementType(8, 4, "fp8", block=32, scale_bits=8),
    "mxfp4": ElementType(4, 2, "fp4", block=32, scale_bits=8),
    "nvfp4": ElementType(4, 2, "fp4", block=16, scale_bits=8),
    "int8": ElementType(8, 7, "int8"),
    "int4": ElementType(4, 3, "int8", block=128, scale_bits=16, is_for_weights=True),
}
DEFAULT_TYPE = "fp16"


PARTIAL_SUM = ELEMENT_TYPES["fp32"]  # of panels of k, and of accumulators
REDUCED_TYPES: tuple[ReducedName, ...] = ("fp16", "bf16", "fp32", "fp8")  # of arrays that collectives add up
ADDED_IN_HARDWARE: tuple[ReducedName, ...] = ("fp16", "bf16", "fp32")  # by memories, and by all switches
NOT_OUTPUTS = {
    "fp8_rowwise": "the scale of a row is known when the whole row is, and a workgroup makes a tile of it",
    "int4": "it is a type of weights",
}
OUTPUTS = tuple(name for name in ELEMENT_TYPES if name not in NOT_OUTPUTS)


def output_type(operands: str) -> str:
    """Return the type in which a GEMM stores its output unless it states one: that of 16-bit operands, or BF16."""
    return operands if ELEMENT_TYPES[operands].bits == 16 else "bf16"
