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
from typing import Literal

MatrixRate = Literal["fp16", "tf32", "fp8", "fp4", "int8"]
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


def output_type(operands: str) -> str:
    """Return the type in which a GEMM stores its output: that of 16-bit operands, or BF16, as libraries do."""
    return operands if ELEMENT_TYPES[operands].bits == 16 else "bf16"
