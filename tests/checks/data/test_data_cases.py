"""Do random runs compute what NumPy computes, each element from all GPUs once, and nothing else change?"""

from __future__ import annotations

from collections import Counter

import pytest

from t3sim.selfcheck.data_cases import (
    KINDS,
    LARGE_RINGS,
    MACHINES,
    SMALL_RINGS,
    TILINGS,
    loaded,
    random_case,
    run_case,
)
from t3sim.workload.kernel_choice import split
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


def test_the_cases_cover_what_they_claim() -> None:
    """In all of them: does every kind, ring size, tiling and machine come up, and are most shapes ragged?"""
    cases = [random_case(seed) for seed in range(N_ALL)]
    assert {case.kind for case in cases} == set(KINDS)
    assert {case.n_devices for case in cases} == {*SMALL_RINGS, *LARGE_RINGS}
    assert {split(case.tiling, 1) for case in cases} == set(TILINGS)
    assert {case.tiling.split_k for case in cases} == {1, 2, 3}
    assert {case.machine for case in cases} == set(range(len(MACHINES)))
    ragged = [case for case in cases if case.shape.m % 16 or case.shape.n % 64]
    assert len(ragged) > len(cases) / 2
    modes = Counter(case.is_mirrored for case in cases)
    assert min(modes[True], modes[False]) > len(cases) / 5


@pytest.mark.parametrize("seed", range(sample(40, 2)))
def test_carrying_values_changes_no_time(seed: int) -> None:
    """Is every GPU of a run with values as fast as without?"""
    from t3sim.selfcheck.data_cases import carried

    case = random_case(seed)
    values, machine = carried(case)
    values.follow(machine.devices)
    assert machine.run() == loaded(case).run()
    assert values.check() == []
