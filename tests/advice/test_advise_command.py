"""``t3sim advise`` as a user runs it."""

from __future__ import annotations

import csv
import inspect
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from t3sim.advice import search
from t3sim.advice.answer import circumstances
from t3sim.advice.cases import cases_of_model
from t3sim.advice.search import Case, candidates
from t3sim.cli import main
from t3sim.config.presets import preset_names
from t3sim.errors import ModelError, UsageError
from t3sim.experiment.planning.plan import load_experiment
from t3sim.program.operator import Operator
from t3sim.program.plan import Plan
from t3sim.strategies import OverlapStrategy
from t3sim.system.simulate import simulate
from t3sim.system.user_code import plan_of
from t3sim.workload.tiling_rules import tiling_findings
from tests.conftest import REPOSITORY

SMALL = (
    "machine.gpu.n_compute_units=16", "machine.memory.n_channels=8", "machine.gpu.l2.n_banks=16",
    "machine.gpu.l2.capacity=7.5 MiB", "machine.gpu.collective_kernel.channels=3",
)  # fmt: skip
EXPERIMENT = """
name: small
machine: h200
tiling: gemm-128x128
workload: {gemm: {m: 1024, n: 512, k: 256}, tp: 4}
strategy: t3
sweep: {grid: {workload.gemm.m: [512, 1024]}}
"""


def advised(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, ["advise", *arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The answer for two small GEMMs of an experiment: its folder, and what was printed."""
    folder = tmp_path_factory.mktemp("advice")
    file = folder / "small.yaml"
    file.write_text(EXPERIMENT)
    overrides = [part for value in SMALL for part in ("-s", value)]
    result = advised(str(file), *overrides, "-o", str(folder / "out"))
    assert result.exit_code == 0, result.output
    return folder / "out", result.output


def rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_for_each_gemm_and_what_was_simulated_is_consistent(answer: tuple[Path, str]) -> None:
    folder, _ = answer
    advice, candidates, exposed = (rows(folder / f"{name}.csv") for name in ("advice", "candidates", "exposed"))
    assert [row["m"] for row in advice] == ["512", "1024"]
    for row in advice:
        own = [one for one in candidates if one["m"] == row["m"]]
        times = {(one["strategy"], one["parameters"]): float(one["time_us"]) for one in own if one["time_us"]}
        best = min(times, key=lambda key: times[key])
        assert best == (row["winner"], row["parameters"])
        reference = times["sequential", ""]
        assert float(row["speedup"]) == pytest.approx(reference / times[best])
        parts = [float(one["us"]) for one in exposed
                 if one["m"] == row["m"] and (one["strategy"], one["parameters"]) == best]  # fmt: skip
        assert sum(parts) == pytest.approx(times[best])
        assert int(row["n_simulated"]) == len(times)
        assert float(row["bound_us"]) <= times[best]
        assert row["with_hardware"] == "t3-mca"
    assert [row["with_hardware_status"] for row in advice] == ["simulated", "estimated"]


def test_what_is_estimated_of_other_hardware_is_near_its_simulation(answer: tuple[Path, str]) -> None:
    folder, printed = answer
    runs = load_experiment(folder.parent / "small.yaml", [*SMALL, "strategy=t3-mca"]).points
    for row, result in zip(rows(folder / "advice.csv"), map(simulate, runs), strict=True):
        assert result.operator is not None
        assert float(row["with_hardware_us"]) == pytest.approx(result.ticks.to_us(result.operator), rel=0.1)
    assert "t3-mca would take about" in " ".join(printed.split())


def test_what_is_printed_fits_a_terminal_and_says_why(answer: tuple[Path, str]) -> None:
    folder, text = answer
    lines = text.splitlines()
    assert max(len(line) for line in lines if str(folder) not in line) <= 80
    assert "x sequential" in text
    assert "No design" in text or "no design" in text
    assert "Not validated: values of the machine were changed, other GEMM kernels" in text


def test_figures_are_drawn(answer: tuple[Path, str]) -> None:
    folder, _ = answer
    for name in ("map", "exposed", "parameters"):
        assert (folder / f"{name}.png").stat().st_size > 5000


def test_the_profile_has_what_pytorch_reads(answer: tuple[Path, str]) -> None:
    folder, _ = answer
    profile = json.loads((folder / "profile.json").read_text())
    assert profile["distributedInfo"]["pg_config"] == [{"pg_name": "tp4", "ranks": [0, 1, 2, 3]}]
    events = profile["traceEvents"]
    kernels = {one["args"]["External id"]: one["dur"] for one in events if one["cat"] == "kernel"}
    hosts = [one for one in events if one["cat"] == "cpu_op"]
    plain, with_bias = (
        {tuple(map(tuple, one["args"]["Input Dims"])) for one in hosts if one["name"] == name}
        for name in ("aten::mm", "aten::addmm")
    )
    assert {((512, 256), (256, 512)), ((1024, 256), (256, 512))} <= plain
    assert with_bias == {((512,), *dims, (), ()) for dims in plain}
    assert len({one["name"] for one in hosts}) == 2
    assert {((16, 256), (256, 512)), ((128, 256), (256, 512))} < plain  # PyTorch scales in proportion: small ones, too
    assert all(kernels[one["args"]["External id"]] > 0 for one in hosts)
    collectives = [one["args"] for one in events if "Collective name" in one["args"]]
    assert {(one["Collective name"], one["In msg nelems"], one["Out msg nelems"]) for one in collectives} == {
        ("_reduce_scatter_base", 512 * 512, 512 * 128), ("_reduce_scatter_base", 1024 * 512, 1024 * 128),
        ("_allgather_base", 512 * 128, 512 * 512), ("_allgather_base", 1024 * 128, 1024 * 512),
        *(("_reduce_scatter_base", n, n // 4) for n in (1 << 13, 1 << 16)),
        *(("_allgather_base", n // 4, n) for n in (1 << 13, 1 << 16)),
    }  # fmt: skip


def test_the_same_again_simulates_nothing(answer: tuple[Path, str]) -> None:
    folder, _ = answer
    before = (folder / "advice.csv").read_bytes()
    overrides = [part for value in SMALL for part in ("-s", value)]
    result = advised(str(folder.parent / "small.yaml"), *overrides, "-o", str(folder), "--no-figures")
    assert result.exit_code == 0
    assert "cost" not in result.output
    assert (folder / "advice.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("T-NLG", "--tokens", "1..x"), "--tokens 1..x: `1..x` is not a whole number"),
        (("T-NLG", "--tp", "0"), "--tp 0: `0` is not"),
        (("T-NLG", "--tokens", "8192..4096"), "did you mean 4096..8192?"),
        (("T-NLG", "--tp", "3"), "is not divisible by tp (3)"),
        (("T-NLGG",), "t3sim: TARGET: unknown model `T-NLGG`"),
        (("T-NLG", "--machine", "h220"), "t3sim: --machine: unknown machine `h220`; did you mean `h20`?"),
        (("T-NLG", "--tiling", "x"), "t3sim: --tiling: unknown kernel `x`"),
        (("T-NLG", "--machine", "t3-150", "--tiling", "gemm-128x256"), "t3sim: --tiling: [128, 256] needs 192 KiB"),
        (("software-overlap-h200", "--tp", "8"), "t3sim: --tp: TARGET is an experiment, which says so itself; -s work"),
        (("t3-tnlg-fc3",), "t3sim: TARGET: unknown model"),
        (("T-NLG", "--tp", "1"), "has no GEMM on more than one GPU"),
        (("T-NLG", "-s", "staggered=false"), "use `mode: explicit`"),
        (("T-NLG", "-s", "mode=explicit"), "advice is on rings of identical GPUs in mirrored mode"),
    ],
)
def test_what_cannot_be_answered_is_refused(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = advised(*arguments, "-o", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert message in result.output


def test_a_model_gives_the_gemms_of_a_pass() -> None:
    model = str(REPOSITORY / "experiments" / "ag-gemm-h200" / "llama-3-70b.yaml")
    for phase, expected in (("forward", ["OP", "FC-2", "QKV", "FC-1"]), ("backward", ["FC-1", "IP", "FC-2", "OP"])):
        runs = cases_of_model(model, "h200", "cublas-hopper", [4, 8], [1024], phase, ())
        assert [run.workload.sublayer for run in runs if run.workload.tp == 8] == expected
        assert len(runs) == 8


@pytest.mark.parametrize("machine", preset_names("machine"))
def test_kernels_that_fit_are_chosen_for_every_machine(machine: str) -> None:
    """Those of its library, and the default kernel on machines of the study; Hopper's kernels are all persistent."""
    is_of_study = machine.startswith("t3-")
    for run in cases_of_model("T-NLG", machine, None, [4], [1024], "forward", ()):
        assert (run.workload.kernels is None) == is_of_study
        assert run.workload.tiling.persistent == (not is_of_study and not machine.startswith(("a100", "l40s")))
        assert tiling_findings(run.workload.tiling, run.machine) == []


@pytest.mark.parametrize("tiling", ["gemm-256x128", "gemm-128x128"])
def test_circumstances_have_half_the_tokens_with_any_tile(tiling: str, tmp_path: Path) -> None:
    """Four tiles for four GPUs: half the tokens are two, of several owners each."""
    file = tmp_path / "few.yaml"
    file.write_text(EXPERIMENT)
    shape = "workload={gemm: {m: 512, n: 256, k: 128}, tp: 4}"
    overrides = ("machine=t3-tiny", f"tiling={tiling}", shape, "sweep.grid.workload.gemm.m=[512]")
    run = load_experiment(file, overrides).points[0]
    assert {"half the tokens", "twice the tokens"} <= {*circumstances(Case(run, [], {}))}


TINY_MODEL = "{name: tiny, hidden: 256, layers: 2, tokens: 64, tensor_parallel: [2], heads: 4, head_dim: 64}\n"


def of_tiny_model(folder: Path, *arguments: str) -> tuple[Result, list[dict[str, str]], list[dict[str, str]]]:
    """Ask for a tiny model on t3-tiny: the result, and the rows of advice.csv and of candidates.csv."""
    model = folder / "tiny.yaml"
    model.write_text(TINY_MODEL)
    result = advised(
        str(model),
        "--machine",
        "t3-tiny",
        "--tiling",
        "gemm-64x64",
        "-o",
        str(folder / "out"),
        "--no-figures",
        *arguments,
    )
    tables = [rows(folder / "out" / f"{name}.csv") for name in ("advice", "candidates")]
    return result, tables[0], tables[1]


@pytest.mark.parametrize(("tokens", "operators"), [("33", {"gemm-ar"}), ("100", {"gemm-rs", "ag-gemm"})])
def test_any_number_of_tokens_is_answered(tokens: str, operators: set[str], tmp_path: Path) -> None:
    """What cannot run is listed with its reason, and takes no other candidate and no other GEMM with it."""
    result, advice, candidates = of_tiny_model(tmp_path, "--tp", "4", "--tokens", tokens)
    assert result.exit_code == 0, result.output
    assert {row["operator"] for row in advice} == operators
    assert all(float(row["time_us"]) > 0 and row["winner"] for row in advice)
    for row in candidates:
        assert (row["status"] == "refused") == bool(row["reason"])
        assert (row["status"] == "simulated") == bool(row["time_us"])
        assert row["status"] in ("simulated", "outlined", "refused")


@pytest.fixture(scope="module")
def unrefused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the answer for the tiny model, in which no candidate is refused."""
    folder = tmp_path_factory.mktemp("unrefused")
    result, _, candidates = of_tiny_model(folder, "--tp", "4", "--tokens", "512")
    assert result.exit_code == 0, result.output
    found = {row["status"] for row in candidates if row["strategy"] == "te-pipelined-rs"}
    assert "simulated" in found
    assert "refused" not in found
    return folder / "out"


@pytest.mark.parametrize("error", [UsageError, ModelError, ValueError])
def test_a_candidate_refused_by_its_simulation_takes_no_other_with_it(
    error: type[Exception], unrefused: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outline is fine.  Canary: without the refusal the same candidate is simulated."""

    def refusing(strategy: OverlapStrategy, op: Operator, params: object) -> Plan:
        plan = plan_of(strategy, op, params)  # type: ignore[arg-type]
        if strategy.name in ("te-pipelined-rs", "t3-mca") and in_runner():
            raise error(f"{strategy.name} cannot")
        return plan

    monkeypatch.setattr(sys.modules["t3sim.system.simulate"], "plan_of", refusing)
    phases = str(unrefused / "phases")
    result, advice, candidates = of_tiny_model(tmp_path, "--tp", "4", "--tokens", "512", "--phases", phases)
    assert result.exit_code == 0, result.output
    assert {row["gemm"] for row in advice} == {"OP", "FC-2", "QKV", "FC-1"}
    pushed = [row for row in candidates if row["strategy"] == "te-pipelined-rs"]
    assert "refused" in {row["status"] for row in pushed}
    assert "simulated" not in {row["status"] for row in pushed}
    assert all(row["reason"] == "te-pipelined-rs cannot" for row in pushed if row["status"] == "refused")
    said = "t3-mca, which needs hardware that does not exist, was not simulated: t3-mca cannot"
    assert said in " ".join(result.output.split())


def in_runner() -> bool:
    """Return whether this is called to plan or simulate points, not for an outline."""
    return any(frame.filename.endswith("phase_runner.py") for frame in inspect.stack())


@pytest.mark.parametrize(
    ("given", "operators"),
    [("auto", {"gemm-rs", "ag-gemm"}), ("tensor", {"gemm-ar"}), ("sequence", {"gemm-rs", "ag-gemm"})],
)
def test_the_parallelism_decides_the_operators_and_is_said(given: str, operators: set[str], tmp_path: Path) -> None:
    arguments = ("--tp", "2", "--tokens", "256", "--only-today", "--parallelism", given)
    result, advice, _ = of_tiny_model(tmp_path, *arguments)
    assert {row["operator"] for row in advice} == operators
    assert ("all-reduce" in result.output) == ("gemm-ar" in operators)


def test_a_point_outside_of_what_was_measured_has_no_error(answer: tuple[Path, str]) -> None:
    folder, text = answer
    assert {row["error"] for row in rows(folder / "advice.csv")} == {""}
    assert "+-" not in text


def test_all_ties_are_named(answer: tuple[Path, str]) -> None:
    folder, text = answer
    said = " ".join(text.split())
    for row in rows(folder / "advice.csv"):
        assert (row["is_tie"] == "True") == bool(row["ties"])
        if row["ties"]:
            assert f"any of: {row['winner']}" in said
            assert all(name in said for name in row["ties"].split("; ")[:4])
    assert any(row["ties"] for row in rows(folder / "advice.csv"))
    assert "To decide, measure" in said


HOSTED = """
name: hosted
machine: {preset: h200, gpu: {n_compute_units: 16, l2: {n_banks: 16, capacity: 7.5 MiB}}, memory: {n_channels: 8}}
tiling: gemm-128x128
workload: {gemm: {m: 1024, n: 512, k: 512}, tp: 2, operator: ag-gemm}
strategy: sequential
"""


@pytest.mark.parametrize(("call", "decides"), [("1 ms", True), ("0 ns", False)])
def test_a_winner_is_named_only_where_both_hosts_agree(
    call: str, decides: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that takes a millisecond for a call makes what it calls lose.  Canary: one that takes nothing does not."""
    few = ("sequential", "te-ring-ag")
    monkeypatch.setattr(search, "candidates", lambda *given: [c for c in candidates(*given) if c.strategy in few])
    (tmp_path / "hosted.yaml").write_text(HOSTED)
    link = ("-s", "machine.link.bandwidth=20 GB/s", "-s", "machine.gpu.collective_kernel.channels=3")
    issue = ("-s", f"machine.gpu.host.eager_call={call}", "-s", "machine.gpu.host.eager_issue=0 ns")
    out = str(tmp_path / "out")
    result = advised(str(tmp_path / "hosted.yaml"), *link, *issue, "--only-today", "--no-figures", "-o", out)
    assert result.exit_code == 0, result.output
    found = {row["host"]: row["winner"] for row in rows(tmp_path / "out" / "advice.csv")}
    assert ("The host decides" in result.output) == decides, result.output
    assert list(found) == (["graph", "eager"] if decides else [""])


def test_a_flux_form_is_named_with_what_measurements_say(tmp_path: Path) -> None:
    """Where the switch adds up, another form wins."""
    (tmp_path / "small.yaml").write_text(EXPERIMENT)
    overrides = [part for value in (*SMALL, "machine.link.multicast=null") for part in ("-s", value)]
    result = advised(str(tmp_path / "small.yaml"), *overrides, "-o", str(tmp_path / "out"), "-j", "1", "--no-figures")
    assert result.exit_code == 0, result.output
    names = {row["winner"] for row in rows(tmp_path / "out" / "advice.csv")}
    assert any(name.startswith("flux") for name in names)
    assert "Caution: Flux was measured slower than sequential" in " ".join(result.output.split())


def test_multimem_is_ranked_where_links_have_multicast(answer: tuple[Path, str]) -> None:
    """As what exists today; T3 with reduction in the switch is not: it needs hardware."""
    folder, _text = answer
    found = rows(folder / "candidates.csv")
    of_multimem = [row for row in found if row["strategy"] == "multimem-rs"]
    assert of_multimem
    assert {row["status"] for row in of_multimem} <= {"simulated", "outlined"}
    assert all(float(row["outline_us"]) > 0 for row in of_multimem)


ALL_REDUCES = EXPERIMENT.replace("tp: 4}", "tp: 4, operator: gemm-ar}").replace("[512, 1024]", "[1, 16, 512]")


@pytest.fixture(scope="module")
def thresholds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The answer for a small GEMM with its all-reduce at three numbers of tokens."""
    folder = tmp_path_factory.mktemp("thresholds")
    (folder / "small.yaml").write_text(ALL_REDUCES.replace("strategy: t3", "strategy: sequential"))
    overrides = [part for value in SMALL for part in ("-s", value)]
    result = advised(str(folder / "small.yaml"), *overrides, "-o", str(folder / "out"), "-j", "1")
    assert result.exit_code == 0, result.output
    return folder / "out", result.output


def test_libraries_of_all_reduces_are_schemes(thresholds: tuple[Path, str]) -> None:
    folder, printed = thresholds
    schemes = {row["scheme"] for row in rows(folder / "candidates.csv") if row["strategy"] == "sequential"}
    assert {"nccl", "vllm", "pytorch-one-shot", "pytorch-two-shot"} <= schemes
    found = rows(folder / "thresholds.csv")
    assert [found[0]["from_m"], found[-1]["to_m"]] == ["1", "512"]
    assert found[0]["scheme"] != "nccl"  # of a few KiB
    assert f"{found[0]['scheme']} from 1" in printed
    assert (folder / "thresholds.png").exists()


def test_tables_of_all_reduces_are_what_was_simulated(thresholds: tuple[Path, str]) -> None:
    folder, _ = thresholds
    times = {(int(row["bytes"]), row["algorithm"]): float(row["time_us"]) for row in rows(folder / "all_reduces.csv")}
    content = json.loads((folder / "all_reduces.json").read_text())
    limit = content["vllm"]["CUSTOM_ALL_REDUCE_MAX_SIZES"]["9.0"]["4"]
    own = min(us for (size, name), us in times.items() if size == limit // 2 and name.startswith("vllm"))
    assert own < times[limit // 2, "nccl"]
    switch = content["vllm"]["one_stage_below"]["9.0"]["4"]
    assert times[switch // 2, "vllm-one-stage"] < times[switch // 2, "vllm-two-stage"]
    assert times[1024, "vllm-one-stage"] < times[1024, "nccl"]


def test_without_an_all_reduce_there_are_no_such_tables(answer: tuple[Path, str]) -> None:
    folder, _ = answer
    assert not (folder / "all_reduces.json").exists()
    assert not (folder / "thresholds.csv").exists()  # of two numbers of tokens
    assert {row["scheme"] for row in rows(folder / "candidates.csv")} & {"sequential"}
