"""A checkpoint in NVFP4 on B200s: `workload show` names its types, and what `advise` answers follows from them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from t3sim.cli import main
from tests.advice.test_advise_command import SMALL

LLAMA = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 8192, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 8, "torch_dtype": "bfloat16",
}  # fmt: skip
NVFP4 = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
EXPERIMENT = """
name: small
machine: b200
tiling: gemm-128x128
workload: {model: config.json, sublayer: FC-2, tp: 4, tokens: 1024}
strategy: t3
"""


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(one) for one in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def answer(folder: Path, more: dict[str, object]) -> tuple[str, dict[str, float], str]:
    """Return what `workload show` says of a checkpoint, times (us) of strategies on a small B200, and the answer."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**LLAMA, **more}), encoding="utf-8")
    (folder / "e.yaml").write_text(EXPERIMENT, encoding="utf-8")
    shown = invoke("workload", "show", folder / "config.json", "--tp", 4, "--tokens", 1024)
    settings = [word for value in SMALL for word in ("-s", value)]
    text = invoke("advise", folder / "e.yaml", *settings, "--no-figures", "-o", folder / "out")
    with (folder / "out" / "candidates.csv").open(encoding="utf-8", newline="") as file:
        times = {f"{row['strategy']} {row['parameters']}".strip(): row["time_us"] for row in csv.DictReader(file)}
    return shown, {name: float(time) for name, time in times.items() if time}, text


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, dict[str, float], str]]:
    folder = tmp_path_factory.mktemp("types")
    return {name: answer(folder / name, dict(more)) for name, more in (("bf16", {}), ("nvfp4", NVFP4))}


def test_show_and_advise_name_the_types(answers: dict[str, tuple[str, dict[str, float], str]]) -> None:
    for name, other in (("bf16", "nvfp4"), ("nvfp4", "bf16")):
        row = next(line for line in answers[name][0].splitlines() if line.split()[:1] == ["FC-2"])
        assert row.split()[-1] == name
        assert other not in row
    assert "nvfp4" in answers["nvfp4"][2].lower()


def test_four_bits_leave_more_communication_to_hide(answers: dict[str, tuple[str, dict[str, float], str]]) -> None:
    """The GEMM takes less, the collectives in 16 bits do not, so the best overlap gains less over none."""
    (_, wide, _), (_, narrow, _) = answers["bf16"], answers["nvfp4"]
    assert narrow["sequential"] < 0.9 * wide["sequential"]
    gains = [times["sequential"] / min(times.values()) for times in (wide, narrow)]
    assert gains[0] != pytest.approx(gains[1], rel=0.02)
