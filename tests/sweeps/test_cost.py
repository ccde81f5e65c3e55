"""What is said of the cost before the start: from the plan alone, compilation included, and true of these phases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from t3sim.errors import ConfigError
from t3sim.experiment.planning import estimate
from t3sim.experiment.planning.estimate import least_hours, phase_seconds, planned_hours
from t3sim.experiment.planning.plan import load_experiment
from t3sim.experiment.running import cost
from t3sim.experiment.running.cost import (
    cost_lines,
    described,
    layouts_to_compile,
    prepare_kernel,
)
from t3sim.experiment.running.runner import Sweep, run
from t3sim.experiment.running.workers import THIS_PROCESS, Workers
from t3sim.gpu.units.state import Layout
from t3sim.program.plan import Part
from t3sim.program.side_by_side import side_by_side_part
from t3sim.system.parts import PhaseJob
from t3sim.system.simulate import operator_of
from tests.conftest import REPOSITORY
from tests.harness.planned import plan_phases
from tests.sweeps.sweeping import SWEEP, experiment, phases_in

STUDY = REPOSITORY / "experiments/t3-tnlg-fc2/experiment.yaml"
HBM3 = Layout(n_dram_banks=64)
TINY = ("machine=t3-tiny", "tiling=gemm-64x64", "workload={gemm: {m: 1024, n: 1024, k: 1024}, tp: 8}")
SLOW = ("workload={gemm: {m: 4096, n: 2048, k: 1024}, tp: 4}", "machine.link.bandwidth=10 GB/s")
H200 = ("machine=h200", "tiling=cublas-hopper", "workload={gemm: {m: 4096, n: 8192, k: 1024}, tp: 8}")
EXPLICIT = ("workload={gemm: {m: 2048, n: 2048, k: 512}, tp: 4}", "mode=explicit")

EXPERTS = (
    "machine=h200", "tiling=cublas-hopper", "mode=mirrored", "strategy=moe-sequential",
    "workload={experts: {n_experts: 256, top_k: 8, hidden: 7168, intermediate: 2048, tokens_per_gpu: 64, ep: 8}}",
    "workload.experts.element=fp8_block",
)  # fmt: skip


@pytest.fixture
def reference_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host as fast as the core of the estimate."""
    monkeypatch.setattr(cost, "host_factor", lambda: 1.0)


def lines_of(sweep: Sweep, workers: Workers) -> list[str]:
    return list(cost_lines(sweep.n_phases, sweep.n_damaged, sweep.missing, workers))


@pytest.mark.usefixtures("reference_host")
def test_the_cost_is_said_before_the_start(tmp_path: Path) -> None:
    planned, output = experiment(tmp_path, SWEEP), tmp_path / "results"
    run(planned, tmp_path / "other")  # compiles the kernel
    first, second = lines_of(Sweep(planned, output), Workers(2))
    assert first == "phases      15 distinct ones"
    assert second == "cost        about 1 s of one core; 1 s in all with 2 workers"
    run(planned, output)
    phases_in(output)[0].write_bytes(b"")
    phases_in(output)[1].unlink()
    first, _ = lines_of(Sweep(planned, output), THIS_PROCESS)
    assert first == "phases      15 distinct ones, 13 of them finished already, 1 damaged and simulated again"


@pytest.mark.usefixtures("reference_host")
@pytest.mark.parametrize("is_compiled", [False, True])
def test_what_the_cache_does_not_have_is_in_the_cost(
    is_compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "is_compiled", lambda _layout: is_compiled)
    _, line = lines_of(Sweep(experiment(tmp_path, SWEEP), tmp_path / "results"), Workers(2))
    n = f"{cost.COMPILE_SECONDS:.0f} s of it to compile the kernel"
    assert (n in line) is not is_compiled


@pytest.mark.usefixtures("reference_host")
def test_what_is_compiled_is_said_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    had = {Layout()}
    monkeypatch.setattr(cost, "is_compiled", had.__contains__)
    monkeypatch.setattr(cost, "compiled_advance", had.add)
    said: list[str] = []
    for _ in range(2):
        prepare_kernel([Layout(), HBM3], said.append)
    (line,) = said
    assert line.startswith(f"compiling   the kernel for the layout n_dram_banks 64: about {cost.COMPILE_SECONDS:.0f} s")
    assert described(Layout()) == "the standard layout"


def test_only_the_layouts_of_these_points_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "is_compiled", lambda _layout: False)
    points = [*load_experiment(STUDY, H200).points, *load_experiment(STUDY, TINY).points]
    assert len(layouts_to_compile(points)) == 2
    assert len(layouts_to_compile(points[:1])) == 1


def test_one_estimate_for_the_limit_and_for_the_phases() -> None:
    for path in ("experiments/t3-sublayers", "experiments/t3-tnlg-fc2", "docs/examples/age_limit"):
        points = load_experiment(REPOSITORY / path / "experiment.yaml").points
        by_phases = sum(phase_seconds(job) for job in plan_phases(points, {}).values())
        assert planned_hours(points, 24, {}) * 3600 == pytest.approx(by_phases, rel=1e-9)
        assert planned_hours(points * 2, 24, {}) * 3600 == pytest.approx(by_phases, rel=1e-9)
        assert 0 < least_hours(points) * 3600 < by_phases


def test_long_arrays_are_planned_with_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours of 4 MiB: twice those of the 2 MiB that are planned, and about those of a plan of all of it."""
    (run,) = load_experiment(STUDY, ["workload={collective: {op: all-reduce, size: 4 MiB, gpus: 4}}", *TINY[:2],
                                     "strategy=sequential", "sweep=null"]).points  # fmt: skip
    whole = planned_hours([run], 24, {})
    monkeypatch.setattr(estimate, "LONGEST_PLANNED", 2 << 20)
    short, times = estimate.shortened(run)
    assert (short.workload.collective.size, times) == (2 << 20, 2)
    assert planned_hours([run, run], 24, {}) == 2 * planned_hours([short], 24, {}) == pytest.approx(whole, rel=0.3)


def n_planned(points: list[Any], limit: float, monkeypatch: pytest.MonkeyPatch) -> tuple[int, float]:
    """Return how many of *points* are planned to find out their hours, and the hours."""
    planned: list[Any] = []

    def evaluate(run: Any, *arguments: Any) -> Any:
        planned.append(run)
        return real(run, *arguments)

    real = estimate.evaluate
    with monkeypatch.context() as patched:
        patched.setattr(estimate, "evaluate", evaluate)
        patched.setattr(estimate, "SURELY_PLANNED", 10)
        hours = planned_hours(points, limit, {})
    return len(planned), hours


def test_a_huge_sweep_is_refused_without_planning_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bandwidths = ", ".join(f"{n} GB/s" for n in range(50, 110))
    (grid,) = [f"sweep={{grid: {{machine.link.bandwidth: [{bandwidths}]}}}}"]
    points = load_experiment(STUDY, [grid, "strategy=t3-mca"]).points
    n, hours = n_planned(points, 1000, monkeypatch)
    assert n == 60
    few, about = n_planned(points, hours / 10, monkeypatch)
    assert few == 10
    assert about == pytest.approx(hours, rel=0.1)


@pytest.mark.parametrize(
    "overrides",
    [
        ["workload={collective: {op: all-gather, size: 1 TiB, gpus: 8}}", "strategy=sequential"],
        ["workload={gemm: {m: 4096017, n: 4256, k: 2128}, tp: 8}", "mode=explicit", "strategy=t3-mca"],
    ],
    ids=["collective", "GEMMs"],
)
def test_what_is_too_large_to_plan_is_refused_by_its_size(
    overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(estimate, "evaluate")
    with pytest.raises(
        ConfigError, match=r"max_hours: is 2, but the .*point.* needs (at least|about) \d+ hours on one core"
    ):
        load_experiment(STUDY, ["max_hours=2", *overrides])


@pytest.mark.parametrize(
    ("overrides", "took"),
    [
        pytest.param(
            (),
            {"gemm": 3.06, "reduce-scatter": 1.0, "all-gather": 0.61, "fused, round_robin": 3.49, "fused, mca": 3.41,
             "reduce-scatter, near memory": 0.64},
            id="T-NLG FC-2",
        ),
        pytest.param(("machine.gpu.l2.capacity=2 MiB",), {"gemm": 3.61}, id="small L2"),
        pytest.param(("machine.gpu.l2.capacity=128 MiB",), {"gemm": 1.9, "fused, mca": 2.67}, id="large L2"),
        pytest.param(SLOW, {"gemm": 0.28, "fused, round_robin": 0.62, "all-gather": 0.44}, id="slow links"),
        pytest.param(TINY, {"gemm": 0.47, "fused, mca": 0.52, "reduce-scatter": 0.06}, id="t3-tiny"),
        pytest.param(H200, {"gemm": 1.08, "fused, round_robin": 1.93, "all-gather": 0.85}, id="h200"),
        pytest.param(EXPERTS, {"first GEMM of the experts": 4.15, "second GEMM of the experts": 2.0}, id="experts"),
        pytest.param(EXPLICIT, {"fused, mca": 0.89, "all-gather": 0.48}, id="explicit"),
    ],
)  # fmt: skip
def test_the_estimate_of_measured_phases(overrides: tuple[str, ...], took: dict[str, float]) -> None:
    """What phases took, in seconds of the core of ``cost.SAMPLE_SECONDS``; the factor is what the issue allows.

    Canary: rates that are wrong by a factor of 2.5 are noticed.
    """
    points = load_experiment(STUDY, overrides).points
    estimates = {job.name: phase_seconds(job) for job in plan_phases(points, {}).values()}
    for name, seconds in took.items():
        assert 2 / 3 < estimates[name] / seconds < 3 / 2, name
        assert not 2 / 3 < 2.5 * estimates[name] / seconds < 3 / 2, f"canary: {name}"


def test_what_is_in_the_background_takes_no_longer_than_what_it_is_for() -> None:
    """A reduce-scatter beside one GEMM, and beside ten: those behind it are cut off, and are not estimated."""
    [run] = load_experiment(STUDY, ["machine=h200", "strategy=sequential", "tiling=cublas-hopper"]).points

    def seconds(n_gemms: int, *background: int) -> float:
        part = side_by_side_part(operator_of(run), "reduce-scatter", n_gemms, 1)
        own = Part.alike(part.role, part.name, replace(part.programs[0], background=background))
        return phase_seconds(PhaseJob((), "x", lambda _report: pytest.fail("planned only"), own, run.machine))

    assert seconds(3, 0) == pytest.approx(seconds(10, 0), rel=1e-6)
    assert seconds(3, 0) < 0.5 * seconds(10)
