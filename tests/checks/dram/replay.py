"""Shows a recorded trace to the checker and prints all it has to say; a program, so that it can run interpreted.

``python -m tests.checks.dram.replay trace.npy refreshed``, for a memory of two channels with these timings.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.checks.dram.traffic import TIMINGS, check, memory_of

UNTIL = 4000


def verdict(log: NDArray[Any], timings: str) -> dict[str, Any]:
    """Return violations, totals and counts as plain data."""
    checker = check(log, memory_of(TIMINGS[timings], n_channels=2), UNTIL)
    return {
        "violations": [asdict(violation) for violation in checker.violations],
        "totals": [checker.n_commands, checker.n_violations],
        "violated": checker.violated,
        "tight": checker.tight_checks,
        "counts": {name: array.tolist() for name, array in asdict(checker.counts()).items()},
    }


if __name__ == "__main__":
    json.dump(verdict(np.load(sys.argv[1]), sys.argv[2]), sys.stdout)
