"""Simulated phases that several shape tests look at, each simulated once in a process."""

from __future__ import annotations

from functools import cache

import pytest

from t3sim.config.experiment import RunSpec, WorkloadSpec
from t3sim.config.presets import load_tiling
from t3sim.experiment.planning.plan import load_experiment
from t3sim.system.parts import PhaseStore
from t3sim.workload.models import named_model
from t3sim.workload.sublayers import gemm_of
from tests.conftest import cases
from tests.harness.sublayers import ObservedParts

MODELS = ("Mega-GPT-2", "T-NLG")
# FC-1 has the shape of FC-2: both are simulated once.
CASES = [(model, sublayer, tp) for model in MODELS for tp in (8, 16) for sublayer in ("OP", "FC-2", "FC-1", "IP")]

STORE = PhaseStore()


@cache
def base_run(machine: str = "t3-150") -> RunSpec:
    """Return the first point of the shipped experiment, on *machine*."""
    return load_experiment("experiments/t3-tnlg-fc2/experiment.yaml", [f"machine={machine}"]).points[0]


class StoredParts(ObservedParts):
    """Parts of which each is simulated once in a process."""

    def __init__(self, run: RunSpec) -> None:
        super().__init__(run)
        self.store = STORE


def parts_of(model: str, sublayer: str, tp: int, strategy: str = "sequential") -> StoredParts:
    """Return the parts of a sublayer on t3-150, for *strategy*."""
    gemm = gemm_of(named_model(model).spec, sublayer, tp)
    workload = WorkloadSpec(model=model, sublayer=sublayer, tp=tp, gemm=gemm, tiling=load_tiling())
    return StoredParts(base_run().model_copy(update={"workload": workload, "strategy": strategy}))


# T-NLG FC-2 at TP 8 is simulated by other tests of this folder; OP is the shortest.
@pytest.fixture(params=cases(CASES, ("T-NLG", "OP", 16)), ids=lambda case: f"{case[0]}-{case[1]}-TP{case[2]}")
def case(request: pytest.FixtureRequest) -> tuple[str, str, int]:
    """One of the 16 sublayers of the T3 study."""
    return request.param
