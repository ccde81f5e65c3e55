"""Simulated phases that several shape tests look at, each simulated once in a process."""

from __future__ import annotations

from functools import cache

import pytest

from t3sim.config.experiment import RunSpec, WorkloadSpec
from t3sim.config.presets import load_model, load_tiling
from t3sim.experiment.plan import load_experiment
from t3sim.system.phases import MirroredPhases, PhaseStore
from t3sim.workload.sublayers import gemm_of
from t3sim.workload.tiling import TileTrace, make_tile_trace

MODELS = ("Mega-GPT-2", "T-NLG")
# FC-1 has the shape of FC-2: both are simulated once.
CASES = [(model, sublayer, tp) for model in MODELS for tp in (8, 16) for sublayer in ("OP", "FC-2", "FC-1", "IP")]

STORE = PhaseStore()


@cache
def base_run(machine: str = "t3-150") -> RunSpec:
    """Return the first point of the shipped experiment, on *machine*."""
    return load_experiment("experiments/t3-tnlg-fc2/experiment.yaml", [f"machine={machine}"]).points[0]


def phases_of(model: str, sublayer: str, tp: int, strategy: str = "sequential") -> tuple[MirroredPhases, TileTrace]:
    """Return the phases of a sublayer on t3-150, for *strategy*, and its tiles."""
    gemm = gemm_of(load_model(model), sublayer, tp)
    tiling = load_tiling()
    workload = WorkloadSpec(model=model, sublayer=sublayer, tp=tp, gemm=gemm, tiling=tiling)
    run = base_run().model_copy(update={"workload": workload, "strategy": strategy})
    trace = make_tile_trace(gemm, tiling, tp)
    return MirroredPhases(run, trace, STORE), trace


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1]}-TP{case[2]}")
def case(request: pytest.FixtureRequest) -> tuple[str, str, int]:
    """One of the 16 sublayers of the T3 study."""
    return request.param
