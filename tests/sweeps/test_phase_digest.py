"""Two phases have one digest exactly if the same things decide them."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from t3sim.experiment.planning.plan import load_experiment
from t3sim.experiment.running import phase_digest as module
from t3sim.experiment.running.phase_digest import phase_digest
from t3sim.experiment.running.phase_files import StoredPhase, decode, encode
from t3sim.observe.timeline import Timeline
from t3sim.observe.waits import Wait
from t3sim.strategies import Phase
from t3sim.system.parts import PhaseJob
from tests.harness.planned import plan_phases
from tests.smoke.command_line import GEMM, HEADER
from tests.sweeps.sweeping import experiment

BASE = HEADER + GEMM + "strategy: t3-mca\narbitration: {policy: mca, threshold: 5}\n"


def fused(folder: Path, *overrides: str) -> PhaseJob:
    """Return the fused phase of the base point with changes."""
    if not (folder / "experiment.yaml").exists():
        experiment(folder, BASE)
    points = load_experiment(folder / "experiment.yaml", overrides).points
    return next(job for job in plan_phases(points, {}).values() if job.name.startswith("fused"))


def test_names_do_not_matter(tmp_path: Path) -> None:
    job = fused(tmp_path)
    renamed = [item.model_copy(update={"name": "other"}) if hasattr(item, "gpu") else item for item in job.key]
    assert tuple(renamed) != job.key
    assert phase_digest(replace(job, key=tuple(renamed)), ()) == phase_digest(job, ())


def test_only_sources_that_simulate_decide_a_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit of a report, a command or a plan keeps all phases, one of the kernel or of a strategy keeps none."""
    above = ["cli/run.py", "analysis/report.py", "experiment/planning/plan.py"]
    names = ["__init__.py", *above, "gpu/core.py", "strategies/t3.py"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")
    monkeypatch.setattr("t3sim.__file__", str(tmp_path / "__init__.py"))
    before, decides = module.simulator_digest.__wrapped__(), {}
    for name in names:
        (tmp_path / name).write_text("x = 1\n", encoding="utf-8")
        decides[name] = module.simulator_digest.__wrapped__() != before
        (tmp_path / name).write_text("", encoding="utf-8")
    assert [name for name, does in decides.items() if does] == ["__init__.py", "gpu/core.py", "strategies/t3.py"]


def test_the_layers_that_decide_no_phase_are_those_above_the_system(repository: Path) -> None:
    contracts = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    [system] = [i for i, layer in enumerate(layers) if "(system)" in layer]
    above = {name.strip(" ()") for layer in layers[:system] for name in layer.split("|")}
    assert above | {"__main__.py"} == set(module.ABOVE_SYSTEM)


def test_a_phase_comes_back_from_its_file_as_it_was() -> None:
    timeline = Timeline()
    timeline.add_span("gpu[0]", "a", 0, 10, size=3, share=1 / 3)
    timeline.add_counter("gpu[0]", "level", [0, 10], [0.1, -0.0])
    counters = {"bytes": 2**62, "spread": 1 / 3, "none": None, "states": {"idle": 1}}
    waits = (Wait("gpu[0]", "compute unit", 4, "working", 2**62), Wait("gpu[1]", "link port", 1, "DRAM", 0))
    stored = StoredPhase("ab", Phase("gemm", 7, counters, timeline, waits=waits), 0.1 + 0.2, {"has_checks": True})
    assert repr(decode(encode(stored), with_timeline=True)) == repr(stored)
    assert decode(encode(stored), with_timeline=False).phase == Phase("gemm", 7, counters, Timeline(), waits=waits)
    for i in (0, 20, 90, len(encode(stored)) - 1):
        content = bytearray(encode(stored))
        content[i] ^= 1
        with pytest.raises(ValueError, match="it is not what was written"):
            decode(bytes(content), with_timeline=False)
