"""How long loads from the memory of an H200 take, one after the other on one SM, simulated against measured."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from t3lab.validation.simulation import with_value
from t3sim.config.machine import MachineSpec
from t3sim.program.operations import STEP, Buffer, Moves, Program, table
from tests.harness.sms import h200, measured_rows
from tests.kernel.small import mirrored

N_LOADS, STRIDE = 3000, 64 << 10  # bytes from one load to the next: another row, and in turn another bank
EARLY, LATE = 60, 640  # cycles behind the median of a half that are a refresh's; what divides the halves


@cache
def simulated(spec: MachineSpec) -> NDArray[np.float64]:
    """Return the cycles from each load to the next one."""
    line = spec.gpu.l2.line // spec.memory.access
    places = np.random.default_rng(1).permutation(N_LOADS) * (STRIDE // spec.memory.access) + np.arange(N_LOADS) * line
    steps = [{"n_granules": line, "n_operands": 1, "operand": int(place)} for place in places]
    moves = Moves(name="loads", launch=0, n_workgroups=1, steps=table(STEP, steps).reshape(-1, 1))
    whole = Buffer("all", 0, int(places.max()) + line)
    wired = mirrored(spec, Program(0, 2, (moves,), granule=spec.memory.access, line=line, buffers=(whole,)))
    wired.run()
    starts = wired.core.tables.steps["start_at"][:N_LOADS]
    return np.diff(starts) / float(wired.core.gpu.compute_ticks)


@cache
def narrow() -> MachineSpec:
    """The machine with loads of 4 B, as they were measured."""
    return with_value(h200(), "gpu.compute_unit.wide_load_latency", 0)


@cache
def measured() -> NDArray[np.float64]:
    """Return the cycles of each load, to the 20 cycles that the file keeps."""
    rows = [r for r in measured_rows("h200-load-latency.csv") if r["device"] == "NVIDIA H200"]
    rows = [r for r in rows if r["what"] in {"memory near cycles", "memory far cycles"}]
    return np.concatenate([np.full(int(r["count"]), float(r["from"]) + 10) for r in rows])


def halves(cycles: NDArray[np.float64]) -> tuple[float, float]:
    """Return what loads take that wait for no refresh: those of the near half of the memory, and of the far one."""
    near, far = cycles[cycles < LATE], cycles[cycles >= LATE]
    return float(np.median(near)), float(np.median(far[far < LATE + 200]))


def share_refreshed(cycles: NDArray[np.float64]) -> float:
    """Return the share of loads that come later than all that wait for no refresh."""
    return float((cycles > halves(cycles)[1] + 3 * EARLY).mean())


def test_half_of_the_memory_is_farther_away() -> None:
    found, wanted = simulated(narrow()), measured()
    assert halves(found) == pytest.approx(halves(wanted), rel=0.08)
    assert (found < LATE).mean() == pytest.approx((wanted < LATE).mean(), abs=0.07)


def test_refreshes_hold_up_as_many_loads_and_for_as_long() -> None:
    found, wanted = simulated(narrow()), measured()
    assert share_refreshed(found) == pytest.approx(share_refreshed(wanted), abs=0.03)
    assert share_refreshed(wanted) > 0.06
    late = [np.percentile(cycles, 99.5) for cycles in (found, wanted)]
    assert late[0] == pytest.approx(late[1], rel=0.05)
