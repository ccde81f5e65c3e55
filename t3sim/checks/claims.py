"""A claim about a simulated machine: two numbers that must be equal, and the message if they are not."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.errors import ModelError
from t3sim.gpu.core import GpuCore

Number = int | NDArray[np.int64]
MAX_SHOWN = 5


@dataclass(frozen=True)
class Claim:
    """*left* equals *right* (or is at most *right*): numbers, or arrays of one number for each *part*."""

    rule: str
    part: str  # instance name; `[]` represents the index into the arrays
    meaning: str
    left: Number
    right: Number
    is_bound: bool = False

    def breaches(self) -> list[str]:
        """Return one line for each place in which the claim does not hold."""
        if not np.any(self.left > self.right if self.is_bound else self.left != self.right):
            return []
        left, right = np.broadcast_arrays(np.atleast_1d(self.left), np.atleast_1d(self.right))
        wrong = left > right if self.is_bound else left != right
        sign = "is more than" if self.is_bound else "is not"
        return [
            f"{self.rule} broken: {self.part.replace('[]', f'[{i}]')}: {self.meaning}: {left[i]} {sign} {right[i]}"
            for i in np.flatnonzero(wrong)
        ]


def refuse(lines: list[str], name: str) -> None:
    """Raise ``ModelError`` for the broken claims *lines*, if there are any."""
    if lines:
        more = [f"... and {len(lines) - MAX_SHOWN} more"] if len(lines) > MAX_SHOWN else []
        head = f"{name}: the simulated machine broke {len(lines)} of its own invariants; this result would be wrong"
        raise ModelError("\n".join([head, *lines[:MAX_SHOWN], *more]))


def channels_of(core: GpuCore) -> Any:
    """Return the records of the channels that the machine has."""
    return core.gpu.channels[: core.machine.memory.n_channels]
