"""Whole numbers rounded to the significand of an element type."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def rounded(values: NDArray[np.int64], significand: int) -> NDArray[np.int64]:
    """Return *values* rounded to so many significant bits, to nearest, halfway cases to even (IEEE 754).

    The range is left out: neither overflow nor subnormal numbers.
    """
    magnitude: Any = np.abs(values)
    excess = np.maximum(np.frexp(magnitude.astype(np.float64))[1] - significand, 0).astype(np.int64)
    kept, rest = magnitude >> excess, magnitude & ((np.int64(1) << excess) - 1)
    half = (np.int64(1) << excess) >> 1
    is_up = (rest > half) | ((rest == half) & (excess > 0) & (kept & 1 == 1))
    return np.asarray(np.sign(values) * ((kept + is_up) << excess), np.int64)
