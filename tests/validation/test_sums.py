"""What SMs of an H200 copy and add up, alone and beside each other, simulated against measured."""

from __future__ import annotations

import pytest

from t3sim.validation.tiles import with_value
from tests.harness.sms import N_OPERANDS, h200, measured_rows, simulated_us

SIZE = 2 << 20  # bytes of results of each SM
CASES = [(kernel, n) for kernel in N_OPERANDS for n in (1, 16, 32)]


def measured(kernel: str, n_sms: int) -> float:
    wanted = {"device": "NVIDIA H200", "operands_in": "memory", "kernel": kernel, "sms": str(n_sms)}
    (row,) = (row for row in measured_rows("h200-sums.csv") if wanted.items() <= row.items())
    return float(row["us"])


@pytest.mark.parametrize(("kernel", "n_sms"), CASES, ids=str)
def test_sms_move_as_much_as_measured_beside_each_other(kernel: str, n_sms: int) -> None:
    assert simulated_us(h200(), kernel, SIZE, n_sms=n_sms) == pytest.approx(measured(kernel, n_sms), rel=0.075)


def test_canary_sums_that_wait_once_are_too_quick() -> None:
    """As those on the device are that have all operands before they add."""
    spec = with_value(h200(), "gpu.collective_kernel.sum_rounds", 1)
    found = simulated_us(spec, "sum of two", SIZE, n_sms=32)
    assert found < 0.85 * measured("sum of two", 32)
    assert found == pytest.approx(measured("sum of two, all loads first", 32), rel=0.08)
