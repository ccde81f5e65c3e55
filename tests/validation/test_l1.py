"""What one SM of an H200 copies and adds up with L1s of different sizes, simulated against measured."""

from __future__ import annotations

import pytest

from tests.harness.sms import h200, measured_rows, simulated_us

TURN = 64 << 10  # bytes of results
N_TURNS = 100
# LDS, which leaves 124, 60 and 28 KiB of L1.  Reads with 28 KiB take half as long again as measured: DEVIATIONS, H1.
CASES = [(kernel, kib) for kernel in ("copy", "sum of two") for kib in (103, 190, 222)]


def measured(kernel: str, kib: int) -> float:
    """Return nanoseconds for 64 KiB of results."""
    wanted = {"setting": "preferred", "kernel": kernel, "shared_memory_kib": str(kib)}
    return float(next(row["ns_for_64_kib"] for row in measured_rows("h200-l1.csv") if wanted.items() <= row.items()))


def simulated(kernel: str, kib: int) -> float:
    return simulated_us(h200(), kernel, N_TURNS * TURN, lds=kib << 10) / N_TURNS * 1e3


@pytest.mark.parametrize(("kernel", "kib"), CASES, ids=str)
def test_an_sm_moves_as_much_as_measured_with_each_l1(kernel: str, kib: int) -> None:
    assert simulated(kernel, kib) == pytest.approx(measured(kernel, kib), rel=0.075)
