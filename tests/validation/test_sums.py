"""What SMs of an H200 take for a line that they copy, add up or read, alone and beside each other, against measured."""

from __future__ import annotations

import pytest

from t3sim.config.machine import MachineSpec
from tests.conftest import cases
from tests.harness.sms import h200, measured_rows, simulated_us

SIZES = 1 << 20, 5 << 20  # bytes of results of each SM: their difference has no start, and few ends, in it
TOLERANCES = {"copy": 0.03, "sum of two": 0.07, "read": 0.12}
CASES = [(kernel, n) for kernel in TOLERANCES for n in (1, 16, 32)]


def measured(kernel: str, n_sms: int) -> float:
    """Return cycles for a line of results, in the mean of the SMs."""
    wanted = {"operands_in": "memory", "kernel": kernel, "sms": str(n_sms)}
    (row,) = (row for row in measured_rows("h200-sm-rates.csv") if wanted.items() <= row.items())
    return float(row["mean_cycles"])


def simulated(spec: MachineSpec, kernel: str, n_sms: int) -> float:
    less, more = (simulated_us(spec, kernel, size, n_sms=n_sms) for size in SIZES)
    return (more - less) * spec.gpu.compute_clock / 1e6 * spec.gpu.l2.line / (SIZES[1] - SIZES[0])


@pytest.mark.parametrize(
    ("kernel", "n_sms"), cases(CASES, *(case for case in CASES if case[1] == 1), ("read", 32), n_names=2), ids=str
)
def test_sms_move_as_much_as_measured_beside_each_other(kernel: str, n_sms: int) -> None:
    assert simulated(h200(), kernel, n_sms) == pytest.approx(measured(kernel, n_sms), rel=TOLERANCES[kernel])
