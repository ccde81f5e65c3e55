"""``t3sim workload show``: the numbers it prints are those of the shapes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from t3sim.cli import main

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip
EXPERIMENT = (
    "name: e\nmachine: t3-150\nworkload: {model: T-NLG, layer: training, tp: 8}\n"
    "sweep: {grid: {strategy: [sequential, t3-mca]}}\n"
)


def show(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["workload", "show", *map(str, arguments)])


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_a_preset() -> None:
    """FC-2 of T-NLG on 8 GPUs: 2 x 8192 x 4256 x 2128 FLOP over its operands and output, 7/8 of it sent twice."""
    result = show("T-NLG")
    assert result.exit_code == 0, result.output
    assert "T-NLG on 8 GPUs: hidden 4256, feed-forward 17024, 28 heads of 152, 8192 tokens" in result.output
    output, operands = 8192 * 4256 * 2, (8192 + 4256) * 2128 * 2
    flops = 2 * 8192 * 4256 * 2128
    expected = [
        "FC-2", "forward", "8192", "4256", "2128", f"{flops / 1e9:.1f}", f"{output / 1e6:.1f}",
        f"{flops / (output + operands):.0f}", f"{2 * 7 / 8 * output / 1e6:.1f}", "-",
    ]  # fmt: skip
    assert expected in rows(result.output)
    assert result.output.count("T-NLG on ") == 2  # 8 and 16 GPUs, those of the study


def test_a_hugging_face_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    result = show(tmp_path / "config.json", "--tp", "8", "--tokens", "2048")
    said = " ".join(result.output.split())
    assert "feed-forward 14336 (gated), 32 heads of 128, 8 of keys and values, 2048 tokens, 32 layers" in said
    found = {row[0]: row[2:5] for row in rows(result.output) if row[1] in ("forward", "backward")}
    local_k = {"OP": "512", "FC-2": "1792", "FC-1": "3584", "IP": "768"}
    assert found == {name: ["2048", "4096", k] for name, k in local_k.items()}


def test_small_numbers_are_not_zero(tmp_path: Path) -> None:
    """One token: 64 elements of two bytes go to each of three other GPUs."""
    path = tmp_path / "e.yaml"
    path.write_text(
        "name: e\nmachine: h200\nstrategy: moe-sequential\nworkload: {experts: {n_experts: 8, top_k: 8, hidden: 64, "
        "intermediate: 64, tokens_per_gpu: 1, ep: 4}}\n",
        encoding="utf-8",
    )
    said = " ".join(show(path).output.split())
    assert "1 token of each GPU" in said
    assert f"sends up to {3 * 64 * 2 / 1e6:.2g} MB in dispatch" in said
    assert f"{2 * 3 * 64 * 64 * 2 / 1e9:.2g} GB" in said
    [row] = [row for row in rows(show("T-NLG", "--tp", "8", "--tokens", "1").output) if row[:1] == ["FC-2"]]
    assert row[5] == f"{2 * 4256 * 2128 / 1e9:.2g}"


def test_an_experiment_with_a_layer(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    result = show(path)
    assert result.exit_code == 0, result.output
    assert [row[0] for row in rows(result.output)[2:6]] == ["OP", "FC-2", "FC-1", "IP"]
    assert result.output.count("everything else in a layer of T-NLG, training, unfused attention") == 1
    # 32 x 13 tiles, 6 waves of 80: 2 x 480 x 256 x 128 x 4256 FLOP at 0.84 x 229.376 TFLOP/s, 26.1 MB at 1.024 TB/s
    assert ["QKV", "forward", "111.3", "109.5", "720.4", "compute"] in rows(result.output)
    # reads and writes 8192 x 4256 FP16 elements at 0.54 x 1.024 TB/s
    assert ["norm", "1", "forward", "0.0", "139.5", "252.2", "DRAM"] in rows(result.output)
    other = show(path, "--tp", "16")
    assert "T-NLG on 16 GPUs" in other.output


@pytest.mark.parametrize(
    ("workload", "shown"),
    [
        ("{gemm: {m: 512, n: 512, k: 64}, tp: 4}", "GEMM on 4 GPUs"),
        ("{collective: {op: all-gather, size: 1 MiB, gpus: 4}}", "a collective on 4 GPUs: no GEMM"),
    ],
)
def test_other_experiments(workload: str, shown: str, tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text(f"name: e\nmachine: t3-tiny\nworkload: {workload}\ntiling: gemm-64x64\nstrategy: sequential\n")
    result = show(path)
    assert result.exit_code == 0, result.output
    assert shown in result.output


def test_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    Path("bad.json").write_text("{}", encoding="utf-8")
    refused = {
        ("c.json",): "t3sim: c.json does not say how many tokens there are: give --tokens N",
        ("c.json", "--tokens", "64"): "t3sim: c.json does not say on how many GPUs it runs: give --tp N",
        ("T-NLG", "--tp", "3"): "t3sim: T-NLG OP: hidden (4256) is not divisible by tp (3), remainder 2",
        ("TNLH",): "workload.model: unknown model `TNLH`; did you mean `T-NLG`?",
        ("gone.json",): "gone.json: no such file",
        ("gone.yaml",): "gone.yaml: no such file",
        ("bad.json",): "bad.json: model_type: is missing; docs/users/workloads.md lists the families; a YAML file with"
        " hidden, layers and so on describes any other",
    }
    for arguments, message in refused.items():
        result = show(*arguments)
        assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"{message}\n"), arguments


def test_a_checkpoint_that_is_not_in_16_bit_is_said_first(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "quantization_config": {"quant_method": "fp8"}}), encoding="utf-8")
    lines = show(path, "--tp", "8", "--tokens", "64").output.splitlines()
    assert lines[0].startswith("quantization_config says fp8: ")
    assert next(row for row in map(str.split, lines) if row[:1] == ["FC-2"])[-1] == "fp8"


def test_a_trace_of_a_config(tmp_path: Path) -> None:
    from t3sim.workload.trace_file import read_manifest

    (tmp_path / "c.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    words = ["trace", "make", "--model", str(tmp_path / "c.json"), "--sublayer", "OP", "--tp", "8"]
    path = tmp_path / "x.parquet"
    refused = CliRunner().invoke(main, [*words, "-o", str(path)])
    assert "does not say how many tokens there are; give --tokens" in refused.stderr
    made = CliRunner().invoke(main, [*words, "--tokens", "1024", "-o", str(path)])
    assert made.exit_code == 0, made.output
    assert (read_manifest(path).gemm.m, read_manifest(path).gemm.k) == (1024, 512)


def test_routed_experts_of_a_model_and_of_an_experiment(tmp_path: Path) -> None:
    """64 tokens of each of 4 GPUs, 2 of 8 experts each: 64 rows of each expert; three quarters of the rows leave."""
    mixtral = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(mixtral), encoding="utf-8")
    (tmp_path / "e.yaml").write_text(
        "name: e\nmachine: h200\nstrategy: moe-sequential\n"
        "workload: {model: config.json, sublayer: MoE, tp: 4, tokens: 256}\n", encoding="utf-8",
    )  # fmt: skip
    for result in (show(tmp_path, "--tp", "4", "--tokens", "256"), show(tmp_path / "e.yaml")):
        assert result.exit_code == 0, result.output
        found = {tuple(row[:2]): row[2:5] for row in rows(result.output) if row[:1] == ["MoE"]}
        assert found["MoE", "FC-1"] == ["64", "28672", "4096"]
        assert found["MoE", "FC-2"] == ["64", "4096", "14336"]
        assert f"{64 * 2 * 0.75 * 4096 * 2 / 1e6:.1f} MB in dispatch" in " ".join(result.output.split())
