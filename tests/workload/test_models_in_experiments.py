"""Checkpoints in experiments and in ``advise``: of which group a sublayer is, and what is said of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from t3sim.advice.cases import cases_of_model, notes_on
from t3sim.cli import main
from t3sim.errors import ConfigError
from t3sim.experiment.planning.plan import load_experiment

CONFIGS = Path(__file__).parent / "data" / "configs"
DEEPSEEK = str(CONFIGS / "deepseek-v3.2.json")


def planned(**workload: Any) -> Any:
    given = {"model": DEEPSEEK, "tokens": 4096, "tp": 8, **workload}
    return load_experiment({"name": "e", "machine": "h200", "strategy": "sequential", "workload": given})


@pytest.mark.parametrize(
    ("workload", "k"),
    [
        ({"sublayer": "OP"}, 16 * 128),
        ({"sublayer": "FC-2"}, 18432 // 8),
        ({"sublayer": "FC-2", "group": 1}, 18432 // 8),
    ],
)
def test_the_gemm_of_a_group(workload: dict[str, Any], k: int) -> None:
    assert planned(**workload).points[0].workload.gemm.k == k


@pytest.mark.parametrize(
    ("workload", "key", "word"),
    [
        ({"sublayer": "FC-2", "group": 2}, "workload.sublayer", "routed experts instead"),
        ({"sublayer": "IP"}, "workload.sublayer", "low rank"),
        ({"sublayer": "OP", "group": 3}, "workload.group", "has 2 groups of layers"),
        ({"sublayer": "MLP"}, "workload.sublayer", "is called FC-2 here"),
        ({"sublayer": "o_proj"}, "workload.sublayer", "is called OP here"),
        ({"sublayer": "q_proj"}, "workload.sublayer", "QKV here of `operator: ag-gemm`"),
        ({"layer": "prompt", "sequence": 1024}, "workload.model", "dense feed-forward part"),
    ],
)
def test_refused(workload: dict[str, Any], key: str, word: str) -> None:
    with pytest.raises(ConfigError) as error:
        planned(**workload)
    assert error.value.problems[0].key.startswith(key)
    assert word in str(error.value)


def test_an_experiment_says_what_its_model_is() -> None:
    notes = planned(sublayer="OP").notes
    assert notes[0].startswith("deepseek-v3.2: quantization_config says fp8: ")
    assert notes_on(DEEPSEEK, ()) == tuple(note.removeprefix("deepseek-v3.2: ") for note in notes)


@pytest.mark.parametrize(
    ("name", "sublayers"),
    [
        ("deepseek-v3.2", ["OP", "FC-2", "FC-1"]),  # MLA has no QKV GEMM; the dense layers have both of the others
        ("qwen3-235b-a22b", ["OP", "QKV"]),  # experts in every layer
        ("qwen3-0.6b", ["OP", "FC-2", "QKV", "FC-1"]),
    ],
)
def test_advice_is_on_the_sublayers_that_there_are(name: str, sublayers: list[str]) -> None:
    runs = cases_of_model(str(CONFIGS / f"{name}.json"), "h200", None, [4], [1024], "forward", ())
    assert [run.workload.sublayer for run in runs] == sublayers


def test_a_run_says_that_it_is_of_another_element_type(tmp_path: Path) -> None:
    model = tmp_path / "config.json"
    model.write_text(
        '{"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1,'
        ' "num_attention_heads": 4, "quantization_config": {"quant_method": "awq", "bits": 4}}',
        encoding="utf-8",
    )
    path = tmp_path / "e.yaml"
    path.write_text(
        "name: e\nmachine: t3-tiny\nworkload: {model: config.json, sublayer: OP, tokens: 256, tp: 4}\n"
        "tiling: gemm-64x64\nstrategy: sequential\n",
        encoding="utf-8",
    )
    result = CliRunner().invoke(main, ["run", str(path), "-o", str(tmp_path / "out"), "--no-figures", "--jobs", "1"])
    assert result.exit_code == 0, result.output
    assert "quantization_config says awq (int4 weights, 16-bit activations)" in result.stderr
