"""Layers of generation: what they are made of, what their memory holds, and what is refused, by the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from t3sim.cli import main
from t3sim.experiment.planning.plan import load_experiment
from t3sim.results.writer import read_results
from t3sim.workload.layer import held_of, other_operators, sublayer_runs
from t3sim.workload.sublayers import cache_width, weight_bytes_of
from tests.smoke.command_line import simulated

MODEL = "hidden: 256\nlayers: 2\ntokens: 8\nheads: 8\nkv_heads: 2\nhead_dim: 32\nwhole_heads: true\n"
TEXT = """
name: g
machine: {preset: t3-tiny, link: {topology: switch, ingress_buffer: 512 KiB}}
workload: {model: m.yaml, layer: generation, tokens: 8, context: 64, tp: 2}
strategy: sequential
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m.yaml").write_text(MODEL)
    (tmp_path / "x.yaml").write_text(TEXT)
    return tmp_path


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *overrides: str) -> str:
    given = [part for one in overrides for part in ("-s", one)]
    with pytest.raises(SystemExit) as stop:
        main(["run", str(folder / "x.yaml"), "-o", str(folder / "out"), *given])
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_a_layer_is_its_gemms_and_the_rest(folder: Path) -> None:
    [run] = load_experiment(str(folder / "x.yaml"), ()).runnable
    parts = [(one.workload.sublayer, one.workload.operator, one.workload.tp) for one in sublayer_runs(run)]
    assert parts == [("QKV", "gemm-rs", 1), ("OP", "gemm-ar", 2), ("FC-1", "gemm-rs", 1), ("FC-2", "gemm-ar", 2)]
    sequence = "workload.operator=gemm-rs"
    [run] = load_experiment(str(folder / "x.yaml"), (sequence, "strategy=t3", "machine=t3-tiny")).runnable
    strategies = [(one.strategy, one.workload.tp) for one in sublayer_runs(run)]
    assert strategies == [("sequential", 1), ("t3", 2)] * 2


def test_tokens_a_second(folder: Path) -> None:
    [row] = read_results(simulated(TEXT, folder) / "results.csv")
    assert row.time_us is not None
    assert row.tokens_per_s == pytest.approx(8e6 / row.time_us)
    assert row.gemm_us is not None
    assert row.others_us is not None
    assert row.layer == "generation"
    assert row.gemm_us + row.others_us < row.time_us  # and two all-reduces


def test_bytes_of_gemms_are_the_same_with_overlap(folder: Path) -> None:
    text = TEXT.replace("tp: 2}", "tp: 2, operator: gemm-rs}").replace("strategy: sequential", "")
    text = text.replace("{preset: t3-tiny, link: {topology: switch, ingress_buffer: 512 KiB}}", "t3-tiny")
    text += "tiling: gemm-64x64\nsweep: {grid: {strategy: [sequential, t3]}}\n"
    rows = read_results(simulated(text, folder) / "results.csv")
    assert len({row.dram_gemm_read_bytes for row in rows}) == 1  # weights of all four GEMMs


def test_a_longer_context_takes_the_time_of_its_cache(folder: Path) -> None:
    rows = read_results(simulated(TEXT + "sweep: {grid: {workload.context: [64, 65600]}}\n", folder) / "results.csv")
    more = 8 * 65536 * 2 * 32 * 2  # sequences x tokens x keys and values of one head x bytes
    us = more / 0.85 / bandwidth(folder) * 1e6
    assert rows[1].time_us - rows[0].time_us == pytest.approx(us, rel=0.05)  # type: ignore[operator]


def bandwidth(folder: Path) -> float:
    [run] = load_experiment(str(folder / "x.yaml"), ()).runnable
    return run.machine.memory.bandwidth


def test_what_gpus_keep(folder: Path) -> None:
    [run] = load_experiment(str(folder / "x.yaml"), ()).runnable
    layer = run.workload.layer
    assert layer is not None
    assert cache_width(layer.model, 2) == 2 * 32
    assert cache_width(layer.model, 8) == 2 * 32  # a copy: fewer heads than GPUs
    weights = 256 * (4 * 32 + 2 * 32) + 4 * 32 * 256 + 2 * 256 * 512
    assert weight_bytes_of(layer.model, 2) == 2 * weights
    held = held_of(layer, 2)
    assert (held.weights, held.per_token) == (2 * 2 * weights, 2 * 2 * 2 * 32)


def test_latent_attention_keeps_one_vector_for_all_heads(folder: Path) -> None:
    mla = "mla: {kv_lora_rank: 64, qk_nope_head_dim: 32, qk_rope_head_dim: 16, v_head_dim: 32}"
    (folder / "m.yaml").write_text(f"hidden: 256\nlayers: 2\ntokens: 8\nheads: 8\nwhole_heads: true\n{mla}\n")
    [run] = load_experiment(str(folder / "x.yaml"), ()).runnable
    layer = run.workload.layer
    assert layer is not None
    assert [cache_width(layer.model, tp) for tp in (1, 2, 8)] == [80] * 3
    assert [one.workload.sublayer for one in sublayer_runs(run)] == ["q", "kv_a", "kv_b", "OP", "FC-1", "FC-2"]
    [attention] = [one for one in other_operators(layer, 2) if one.kernel == "kv_cache"]
    assert attention.flops == 2 * 8 * 64 * 4 * (2 * 64 + 16)


@pytest.mark.parametrize(
    ("override", "key", "word"),
    [
        ("workload.context=0", "workload.context", "above 0"),
        ("workload.tokens=0", "workload.tokens", "above 0"),
        ("workload.context=null", "workload", "workload.context"),
        ("workload.sequence=64", "workload.sequence", "no effect"),
        ("workload.layer=prompt", "workload.context", "no effect"),
        ("workload.operator=ag-gemm", "workload.operator", "gemm-ar"),
        ("machine.memory.capacity=1 MiB", "workload.context", "alone do not fit"),
        ("machine.memory.capacity=4 MiB", "workload.context", "at most 1376 tokens fit"),
    ],
)
def test_refused(override: str, key: str, word: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("workload.context=2000",) if "4 MiB" in override else ()
    said = refused(folder, capsys, *more, override)
    assert f"{key}: " in said
    assert word in said


def test_a_context_that_just_fits_runs(folder: Path) -> None:
    given = ("machine.memory.capacity=4 MiB", "workload.context=1376")
    assert len(load_experiment(str(folder / "x.yaml"), given).runnable) == 1
