"""Do random runs compute what NumPy computes, each element from all GPUs once, and nothing else change?"""

from __future__ import annotations

import pytest

from t3sim.selfcheck.data_cases import loaded, random_case, run_case
from tests.conftest import sample

N_ALL = 1050
N_CASES = sample(N_ALL, 10)  # in order of their seeds, so that the kinds take turns
BATCHES = sample(42, 1)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_runs_compute_what_numpy_computes(batch: int) -> None:
    """GEMMs, fused under all policies or over a switch, collectives; ragged shapes, prime rings, small trackers."""
    for seed in range(batch, N_CASES, BATCHES):
        case = random_case(seed)
        values = run_case(case)
        assert values.problems == [], str(case)
        assert values.n_events > 0, str(case)


@pytest.mark.parametrize("seed", range(sample(40, 2)))
def test_carrying_values_changes_no_time(seed: int) -> None:
    """Is every GPU of a run with values as fast as without?"""
    from t3sim.selfcheck.data_cases import carried

    case = random_case(seed)
    values, machine = carried(case)
    values.follow(machine.devices)
    assert machine.run() == loaded(case).run()
    assert values.check() == []
