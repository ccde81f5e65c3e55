"""The compute clock while compute units multiply: decision 42."""

from __future__ import annotations

import pytest

from t3sim.cli.validate import machine_of
from t3sim.config.experiment import GemmShape
from t3sim.config.presets import load_tiling
from t3sim.errors import ConfigError
from t3sim.gpu.ticks import TickBase
from t3sim.overlap.least import compute_ticks
from t3sim.program.operator import Operator
from t3sim.program.parts import gemm_part, reduce_scatter_part
from t3sim.validation.points import unthrottled
from t3sim.workload.tiling import make_tile_trace
from tests.harness.machines import machine
from tests.harness.sms import measured_rows

MEASURED = {130: 1.63, 64: 1.77, 16: 1.97}  # GHz while so many SMs multiply


@pytest.mark.parametrize("n_units", MEASURED)
def test_the_clock_falls_as_measured_with_what_multiplies(n_units: int) -> None:
    """In the mean of the recorded GEMMs; on few SMs it falls a little less than in proportion."""
    waiting = {130: "1", 64: "68", 16: "116"}[n_units]
    rows = [row for row in measured_rows("h200-clocks.csv") if row["waiting"] == waiting and row["gemms"] != "30"]
    during = [float(row["ghz"]) for row in rows if 10 <= int(row["from_us"]) < 200]
    assert sum(during) / len(during) == pytest.approx(MEASURED[n_units], rel=0.03)
    assert unthrottled(machine("h200")).at_matrix_clock(n_units).gpu.compute_clock / 1e9 == pytest.approx(
        MEASURED[n_units], rel=0.04
    )


def test_a_part_has_the_clock_of_its_gemms() -> None:
    """All units: the matrix clock; some of them: one between; a collective alone: the compute clock."""
    spec = machine("h200")
    op = Operator(spec, 2, make_tile_trace(GemmShape(m=256, n=512, k=64), load_tiling("gemm-128x256"), 2))
    scatter = reduce_scatter_part(op)
    assert scatter is not None
    on_all, on_some, alone = (
        part.clocked(spec).gpu.compute_clock for part in (gemm_part(op), gemm_part(op, 66), scatter)
    )
    assert (on_all, alone) == (spec.gpu.matrix_clock, spec.gpu.compute_clock)
    assert on_some == pytest.approx((on_all + alone) / 2, rel=0.03)


def test_a_machine_whose_clock_does_not_fall_stays_as_it_is() -> None:
    spec = machine("t3-150")
    assert spec.at_matrix_clock(3) is spec.at_matrix_clock() is spec


def test_on_fewer_units_with_as_many_rounds_a_gemm_is_quicker_and_the_bound_knows() -> None:
    """133 tiles take two rounds on 132 units, and on 67, at a higher clock."""
    spec = machine("h200")
    trace = make_tile_trace(GemmShape(m=128 * 133, n=256, k=4096), load_tiling("gemm-128x256"), 1)
    hz = TickBase.of(spec)

    def rounds_ticks(n_units: int) -> float:
        gpu = spec.at_matrix_clock(n_units).gpu
        rate = gpu.compute_unit.matrix_flops_per_cycle * gpu.compute_unit.matrix_efficiency * gpu.compute_clock
        return -(-133 // n_units) * 2 * 128 * 256 * 4096 * hz.hz / rate

    assert rounds_ticks(67) < 0.95 * rounds_ticks(132)
    launched = hz.from_ps(spec.gpu.kernel_launch)
    assert rounds_ticks(67) * 0.99 < compute_ticks(spec, trace, hz) - launched < rounds_ticks(132)


def test_a_burst_clock_without_a_common_tick_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"`gpu.burst_matrix_clock` .1613 MHz. meet only in ticks of"):
        machine_of("h200", ["machine.gpu.burst_matrix_clock=1613 MHz"])
