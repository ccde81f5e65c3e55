"""``t3sim advise`` on layers of routed experts: who wins, from how many tokens, and what cannot be asked."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from t3sim.advice.experts import CANDIDATES, case_of, runs_of_model, settle
from t3sim.cli._experts import table
from t3sim.strategies import in_order
from tests.faults.refusals import t3sim_here

CONFIGS = Path(__file__).parent.parent / "workload" / "data" / "configs"
EXPERIMENT = """\
name: small
machine: h200
workload: {experts: {n_experts: 16, top_k: 2, hidden: 512, intermediate: 256, tokens_per_gpu: 4, ep: 4, element: bf16}}
strategy: moe-sequential
sweep: {grid: {workload.experts.tokens_per_gpu: [2, 8, 32]}}
"""


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("advice")
    (folder / "e.yaml").write_text(EXPERIMENT, encoding="utf-8")
    done = t3sim_here("advise", str(folder / "e.yaml"), "-o", str(folder / "out"), "-j", "1")
    assert done.code == 0, done.errors
    return folder / "out", done.printed


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_winner_is_the_fastest_candidate_of_each_layer(answer: tuple[Path, str]) -> None:
    folder, _ = answer
    found, candidates = rows(folder / "experts.csv"), rows(folder / "experts_candidates.csv")
    assert [row["tokens_per_gpu"] for row in found] == ["2", "8", "32"]
    for row in found:
        own = [one for one in candidates if one["tokens_per_gpu"] == row["tokens_per_gpu"]]
        fastest = min((one for one in own if one["time_us"]), key=lambda one: float(one["time_us"]))
        assert (row["winner"], row["parameters"]) == (fastest["strategy"], fastest["parameters"])
        baseline = min(float(one["time_us"]) for one in own if one["strategy"] == "moe-sequential" and one["time_us"])
        assert float(row["speedup"]) == pytest.approx(baseline / float(row["time_us"]))
        assert {one["strategy"] for one in own} == {
            one.name for one in in_order() if "moe" in one.operators and not one.needs
        }


def test_other_hardware_is_simulated_for_each_layer(answer: tuple[Path, str]) -> None:
    """But is no candidate; ``--only-today`` leaves it out."""
    folder, output = answer
    found = rows(folder / "experts.csv")
    assert {row["with_hardware"] for row in found} == {"moe-t3"}
    assert all(float(row["with_hardware_us"]) > 0 for row in found)
    assert "With hardware that does not exist, moe-t3 would take" in " ".join(output.split())


def test_parts_add_up_and_thresholds_cover_all_tokens(answer: tuple[Path, str]) -> None:
    folder, _ = answer
    times: dict[tuple[str, ...], float] = {}
    for row in rows(folder / "experts_parts.csv"):
        key = (row["tokens"], row["strategy"], row["parameters"])
        times[key] = times.get(key, 0.0) + float(row["us"])
    simulated = [one for one in rows(folder / "experts_candidates.csv") if one["time_us"]]
    for one in simulated:
        assert times[one["tokens"], one["strategy"], one["parameters"]] == pytest.approx(
            float(one["time_us"]), abs=0.01
        )
    ranges = rows(folder / "experts_thresholds.csv")
    assert (ranges[0]["from_tokens"], ranges[-1]["to_tokens"]) == ("8", "128")


def test_the_table_fits_a_terminal_and_figures_are_drawn(answer: tuple[Path, str]) -> None:
    folder, output = answer
    assert max(map(len, output.splitlines())) <= 80 + len(str(folder))
    assert "4 GPUs of h200, routing balanced" in " ".join(output.split())
    assert (folder / "experts.png").stat().st_size > 0


def test_tokens_of_a_model_are_those_of_all_gpus() -> None:
    left: list[str] = []
    given: dict[str, Any] = {"gpus": [8, 7], "tokens": [64, 100], "routings": ["balanced", "power_law_1.2"]}
    runs = runs_of_model(str(CONFIGS / "gpt-oss-120b.json"), "h200", None, **given, overrides=(), left_out=left.append)
    layers = [run.workload.experts for run in runs]
    assert [(one.tokens_per_gpu, one.routing.text) for one in layers if one is not None] == [
        (8, "balanced"), (13, "balanced"), (8, "power_law_1.2"), (13, "power_law_1.2"),
    ]  # fmt: skip
    assert [run.mode for run in runs] == ["mirrored", "mirrored", "explicit", "explicit"]
    assert len(left) == 2  # 7 GPUs do not divide the experts
    assert all("7" in text for text in left)


def test_numbers_of_compute_units_are_searched_over() -> None:
    [run] = runs_of_model(str(CONFIGS / "gpt-oss-120b.json"), "h200", None, [8], [64], ["balanced"], (), lambda _: None)
    units = [dict(one.candidate.params).get("communication_units") for one in case_of(run, {}).choices]
    assert len({one for one in units if one is not None}) >= 3


def test_what_the_weights_alone_rule_out_is_not_simulated() -> None:
    """Two batches of few tokens read all weights twice; other hardware follows at every fourth number of tokens."""
    model = str(CONFIGS / "gpt-oss-120b.json")
    runs = runs_of_model(model, "h200", None, [8], [512, 1024, 2048], ["balanced"], (), lambda _: None)
    cases = [case_of(run, {}, only_today=False) for run in runs]
    least = {one.candidate.strategy: cases[0].least(one) for one in cases[0].choices}
    n_bytes = 16 * 3 * 2880 * 2880 * 4.25 / 8  # gate, up and down of the experts of a GPU, in MXFP4
    assert least["moe-sequential"] == pytest.approx(n_bytes / runs[0].machine.memory.bandwidth * 1e6, rel=0.02)
    asked: list[str] = []

    def simulate(wanted: Any) -> Any:
        asked.extend(one.strategy for one in wanted)
        return [
            SimpleNamespace(operator=us, ticks=SimpleNamespace(to_us=float))
            for us in [least["moe-sequential"]] * len(wanted)
        ]

    settle(cases, simulate)
    assert least["moe-two-batch"] > 1.8 * least["moe-sequential"]
    assert "moe-two-batch" not in asked
    assert {"moe-sequential", "moe-low-latency", "moe-fused"} <= set(asked)
    rows = [row for row in cases[0].candidate_rows() if row[CANDIDATES.index("strategy")] == "moe-two-batch"]
    assert all("weights" in row[-1] for row in rows)
    assert asked.count("moe-t3") == 2
    assert "not simulated, since reading the weights alone takes longer (moe-two-batch)" in " ".join(table(cases))


@pytest.mark.parametrize(("options", "word"), [
    (("--routing", "even"), "--routing: "), (("--tp", "7"), "--tp: is 7"), (("--tp", "16"), "--tp: is 16"),
    (("--machine", "nope"), "--machine: "), (("--tiling", "nope"), "--tiling: "), (("--dtype", "nope"), "nope"),
])  # fmt: skip
def test_what_cannot_be_asked(options: tuple[str, ...], word: str, tmp_path: Path) -> None:
    done = t3sim_here(
        "advise", str(CONFIGS / "gpt-oss-120b.json"), "--part", "experts", "--tokens", "64", "-o", str(tmp_path / "o"),
        *options,
    )  # fmt: skip
    assert done.code == 2
    assert word in done.errors
    assert "experiment" not in done.errors


def test_a_model_without_experts_has_none_to_advise_on(tmp_path: Path) -> None:
    llama = {"model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 2,
             "num_attention_heads": 8}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(llama), encoding="utf-8")
    done = t3sim_here("advise", str(tmp_path / "config.json"), "--part", "experts", "-o", str(tmp_path / "o"))
    assert done.code == 2
    assert "no routed experts" in done.errors
