"""Whole layers and split compute units on t3-tiny: what a point costs is what its parts cost."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from t3sim.config.experiment import GemmShape, RunSpec
from t3sim.experiment.planning.plan import load_experiment
from t3sim.experiment.running.point_record import record_of
from t3sim.gpu.ticks import TickBase
from t3sim.results.derive import derive
from t3sim.results.record import RunRecord
from t3sim.strategies import baselines
from t3sim.system.layer import gemm_seconds, operator_parts, other_ticks
from t3sim.system.parts import PhaseStore
from t3sim.system.simulate import SimulationResult, simulate
from t3sim.workload.layer import other_operators, sublayer_runs, sublayers_of
from t3sim.workload.models import named_model
from t3sim.workload.sublayers import gemm_of
from tests.harness.planned import plan_phases
from tests.harness.sublayers import point

MODEL = "hidden: 256\nlayers: 2\ntokens: 256\nsequence: 128\nheads: 4\ntensor_parallel: [4]\n"
HEAD = "name: e\nmachine: t3-tiny\ntiling: gemm-64x64\n"
TEXT = HEAD + "workload: {model: m.yaml, layer: training, tp: 4}\nstrategy: t3\n"
STRATEGIES = ("sequential", "t3", "t3-mca", "ideal-overlap", "ideal-rs-nmc")
ADDED = 1e-12  # sums of the same floats in another order


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layers")
    (folder / "m.yaml").write_text(MODEL, encoding="utf-8")
    (folder / "e.yaml").write_text(TEXT, encoding="utf-8")
    return folder


@cache
def layer_point(folder: Path, *overrides: str) -> RunSpec:
    return load_experiment(folder / "e.yaml", overrides).points[0]


STORE = PhaseStore()


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, SimulationResult]:
    """A training layer under every strategy."""
    return {name: simulate(layer_point(folder, f"strategy={name}"), store=STORE) for name in STRATEGIES}


def check_layer(whole: RunRecord, parts: Sequence[RunRecord]) -> None:
    """Fail unless a layer's row is the sum of the rows of its sublayers and of its other operators."""
    assert whole.time_us is not None
    assert whole.others_us is not None
    assert whole.time_us == pytest.approx(sum(part.time_us or 0 for part in parts) + whole.others_us, rel=ADDED)
    for name in dataclasses.asdict(whole):
        values = [getattr(part, name) for part in parts]
        if name in ("gemm_us", "rs_us", "ag_us", "fused_us") and values[0] is not None:
            assert getattr(whole, name) == pytest.approx(sum(values), rel=ADDED), name
        if name.startswith("dram_") or name in ("link_bytes", "mem_requests", "dma_commands", "tracker_stalls"):
            assert getattr(whole, name) == sum(values), name
        if name == "tracker_peak_entries":
            assert getattr(whole, name) == max(values)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_layer_is_the_sum_of_its_parts(strategy: str, results: dict[str, SimulationResult]) -> None:
    result = results[strategy]
    parts = [record_of(simulate(run, store=STORE)) for run in sublayer_runs(result.run)]
    assert [part.sublayer for part in parts] == ["OP", "FC-2", "FC-1", "IP"]
    check_layer(record_of(result), parts)


def test_a_row_says_what_the_layer_was(results: dict[str, SimulationResult]) -> None:
    record = record_of(results["t3-mca"])
    assert (record.model, record.sublayer, record.layer, record.tp) == ("m", None, "training", 4)
    assert (record.m, record.n, record.k) == (256, 256, None)
    assert (record.gemm_compute_units, record.communication_units) == (None, None)


def test_comparisons_are_end_to_end(results: dict[str, SimulationResult]) -> None:
    records = derive([record_of(results[name]) for name in STRATEGIES], baselines())
    base = records[0]
    for record in records:
        assert record.others_us == base.others_us
        assert record.speedup == pytest.approx((base.time_us or 0) / (record.time_us or 1), rel=ADDED)
        assert record.sublayer_ect_us == pytest.approx(
            (record.time_us or 0) - (base.gemm_us or 0) - (base.others_us or 0), rel=ADDED
        )
    by_sublayers = (base.time_us or 0) - (base.others_us or 0)
    ideal = records[STRATEGIES.index("ideal-rs-nmc")]
    assert ideal.speedup is not None
    assert 1 < ideal.speedup < by_sublayers / ((ideal.time_us or 0) - (ideal.others_us or 0))


def test_equal_sublayers_are_simulated_once(folder: Path) -> None:
    """FC-1 and FC-2 have one shape, all four have one output: three GEMMs and one collective of each kind."""
    jobs = plan_phases([layer_point(folder, "strategy=sequential")], {})
    assert [job.name for job in jobs.values()].count("gemm") == 3
    assert len(jobs) == 3 + 2


def test_a_prompt_is_the_forward_half(folder: Path, results: dict[str, SimulationResult]) -> None:
    prompt = simulate(layer_point(folder, "strategy=sequential", "workload.layer=prompt"), store=STORE)
    assert [part.run.workload.sublayer for part in prompt.sublayers] == list(sublayers_of("prompt"))
    training = results["sequential"]
    assert prompt.sublayers[0].total == training.sublayers[0].total
    assert prompt.others is not None
    assert training.others is not None
    assert 0 < prompt.others < training.others / 2


@pytest.mark.parametrize(
    ("override", "multiplying", "moving"),
    [
        ("machine.memory.clock=500 MHz", 1.0, 2.0),
        ("machine.gpu.compute_unit.matrix_flops_per_cycle=4096", 0.5, 1.0),
        ("machine.link.bandwidth=75 GB/s", 1.0, 1.0),
    ],
)
def test_other_operators_are_timed_on_the_machine(
    override: str, multiplying: float, moving: float, folder: Path
) -> None:
    base, changed = (parts_of(layer_point(folder, *more)) for more in ((), (override,)))
    for name, before in base.items():
        expected = (multiplying * before[0], moving * before[1], moving * before[2])
        assert changed[name] == pytest.approx(expected), name


Seconds = tuple[float, float, float]  # multiplying, storing what was multiplied, moving all operands


def parts_of(run: RunSpec) -> dict[tuple[str, str], Seconds]:
    """Seconds of every other operator of a layer, by name and phase."""
    found = {}
    for one in other_operators(run.workload.layer, run.workload.tp):  # type: ignore[arg-type]
        computing, moving = operator_parts(one, run.workload, run.machine)
        storing = 0.0
        if isinstance(one.kernel, GemmShape):
            storing = 2 * one.n_gemms * one.kernel.m * one.kernel.n / run.machine.memory.bandwidth
        found[one.name, one.phase] = (computing - storing, storing, moving)
    return found


def study_layer(repository: Path, *overrides: str) -> RunSpec:
    """T-NLG on 8 GPUs of t3-150, training with fused attention unless overridden."""
    given = ("workload={model: T-NLG, layer: training, attention: fused, tp: 8}", *overrides)
    return load_experiment(repository / "experiments/t3-tnlg-fc2/experiment.yaml", given).points[0]


WAVE = 2 * 256 * 128 / (0.84 * 2048 * 1.4e9)  # seconds for each element of k, of a tile on a compute unit


def check_gemms(found: dict[tuple[str, str], Seconds]) -> None:
    """Fail unless GEMMs take as many waves of 80 tiles as they have, and write their output at 1.024 TB/s."""
    for name, phase, n_waves, k, n_stored in (
        ("FC-1", "forward", 7, 4256, 8192 * 2128),  # 32 x 17 tiles
        ("OP weight gradient", "backward", 2, 8192, 532 * 4256),  # 3 x 34
        ("scores", "forward", 12, 152, 28 * 1024**2),  # 8 sequences and 3.5 heads of 4 x 8
        ("context", "forward", 3, 1024, 28 * 1024 * 152),  # of 4 x 2
    ):
        expected = (n_waves * WAVE * k, 2 * n_stored / 1.024e12)
        assert found[name, phase][:2] == pytest.approx(expected, rel=1e-9), name


def test_a_gemm_multiplies_in_waves_and_stores(repository: Path) -> None:
    check_gemms(parts_of(study_layer(repository, "workload.attention=unfused")))


def check_shares(run: RunSpec, elementwise: float, norm: float, attention: float) -> None:
    """Fail unless other kernels reach these shares of DRAM bandwidth and matrix rate."""
    found, tokens = parts_of(run), 8192 * 4256
    assert found["norm 1", "forward"] == pytest.approx((0.0, 0.0, 4 * tokens / (norm * 1.024e12)))
    assert found["dropout, residual 1", "forward"][2] == pytest.approx(7 * tokens / (elementwise * 1.024e12))
    flops = 4 * 8192 * 1024 * 4256 / 8
    assert found["fused attention", "forward"][0] == pytest.approx(flops / (attention * 229.376e12))


def test_other_kernels_reach_a_share_of_a_peak(repository: Path) -> None:
    check_shares(study_layer(repository), 0.81, 0.54, 0.6)
    check_shares(study_layer(repository, "workload.operators.norm=0.8"), 0.81, 0.8, 0.6)
    check_shares(study_layer(repository, "workload.operators=roofline"), 1.0, 1.0, 1.0)


def check_simulated_gemms(repository: Path, run: RunSpec) -> None:
    """Fail unless the 12 unlike GEMMs that the study simulates on t3-150 take what is computed, or up to 14 % less.

    They overlap a part of their stores, the more of them the shorter the dot product is.
    """
    text = (repository / "validation/notes/t3-study.md").read_text(encoding="utf-8")
    table = text.partition("<!-- begin cases -->")[2].partition("<!-- end cases -->")[0]
    rows = re.findall(r"^\| (\S+) (\S+), TP (\d+) \| ([0-9.]+) ", table, re.MULTILINE)
    assert len(rows) == 12
    for model, sublayer, tp, simulated_us in rows:
        gemm = gemm_of(named_model(model).spec, sublayer, int(tp))
        computed = 1e6 * gemm_seconds(gemm, 1, run.workload, run.machine)
        assert 1.0 < computed / float(simulated_us) < 1.14, (model, sublayer, tp)


def test_gemms_are_computed_as_they_are_simulated(repository: Path) -> None:
    check_simulated_gemms(repository, study_layer(repository))


def simulate_others(run: RunSpec) -> float:
    """Seconds of everything in a layer that is not simulated."""
    base = TickBase.of(run.machine)
    return other_ticks(run.workload, run.machine, base) / base.hz


def test_a_launch_is_charged_for_every_operator(folder: Path) -> None:
    base, launched = (layer_point(folder, *more) for more in ((), ("machine.gpu.kernel_launch=1 us",)))
    n_operators = 29  # `t3sim workload show` lists them
    assert simulate_others(launched) - simulate_others(base) == pytest.approx(n_operators * 1e-6, rel=1e-3)


def check_split(split: SimulationResult, whole: SimulationResult) -> None:
    """Fail unless each side ran alone on its own compute units, with all of the memory, from the same time on."""
    gemm, scatter, gather = (split.phase(role) for role in ("gemm", "reduce_scatter", "all_gather"))
    unsplit = whole.phase("gemm")
    assert gemm is not None
    assert scatter is not None
    assert gather is not None
    assert unsplit is not None
    n_collective = split.run.strategy_params["communication_units"]
    assert n_collective is not None
    idle = gemm.counters["cu_states"]["idle"]
    assert idle >= gemm.counters["slots_run"] * n_collective
    busy = scatter.counters["cu_states"]["collective"] / scatter.counters["slots_run"]
    assert 0 < busy <= n_collective
    assert gemm.ticks > unsplit.ticks
    assert gemm.counters["output_write_bytes"] == unsplit.counters["output_write_bytes"]
    assert split.total == max(gemm.ticks, scatter.ticks + gather.ticks)


@pytest.mark.parametrize("n_units", [1, 2, 3])
def test_split_compute_units(n_units: int) -> None:
    split = point("isolated-cu-split", f"strategy.communication_units={n_units}", tp=4)
    result = simulate(split, store=STORE)
    check_split(result, simulate(point("sequential"), store=STORE))
    record = record_of(result)
    assert (record.gemm_compute_units, record.communication_units) == (4 - n_units, n_units)
