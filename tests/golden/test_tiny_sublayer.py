"""Has anything moved that was not meant to? The counters of one tiny sublayer, phase by phase.

``pytest tests/golden --update-golden`` rewrites the file; say in the change why it moved.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from t3sim.experiment.plan import load_experiment
from t3sim.system import simulate
from t3sim.system.parts import PhaseStore

GOLDEN = Path(__file__).with_name("tiny_sublayer.json")
OVERRIDES = ["machine=t3-tiny", "tiling=gemm-64x64", "workload={gemm: {m: 512, n: 331, k: 200}, tp: 3}"]


def counters_now() -> dict[str, dict[str, Any]]:
    """Return ticks and counters of every phase of a small, ragged sublayer at TP 3."""
    store = PhaseStore()
    phases = {}
    for run in load_experiment("experiments/t3-tnlg-fc2/experiment.yaml", OVERRIDES).points:
        for phase in simulate(run, None, store).phases:
            counters = {"ticks": phase.ticks, **phase.counters}
            del counters["workgroup_spread"]  # the one float: its last digit may differ between processors
            phases[phase.name] = counters
    return phases


def differences(golden: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the counters that moved, one line each."""
    names = [(phase, name) for phase in {**golden, **now} for name in {**golden.get(phase, {}), **now.get(phase, {})}]
    values = [(p, n, golden.get(p, {}).get(n), now.get(p, {}).get(n)) for p, n in names]
    return [f"{phase}: {name} was {before}, is {after}" for phase, name, before, after in values if before != after]


def test_counters_are_those_of_the_golden_file(update_golden: bool) -> None:
    now = json.loads(json.dumps(counters_now()))
    if update_golden:
        GOLDEN.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
    assert differences(json.loads(GOLDEN.read_text()), now) == []


def test_canary_one_tick_is_noticed() -> None:
    golden = json.loads(GOLDEN.read_text())
    moved = {**golden, "gemm": {**golden["gemm"], "ticks": golden["gemm"]["ticks"] + 1}}
    assert len(differences(golden, moved)) == 1
