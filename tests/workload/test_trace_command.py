"""``t3sim trace``: what it writes is what experiments generate, and what it refuses."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from t3sim.cli.trace import trace
from t3sim.config.presets import load_tiling, preset_names
from t3sim.errors import InputDataError, T3SimError, UsageError
from t3sim.workload.models import named_model
from t3sim.workload.sublayers import SUBLAYERS, gemm_of
from t3sim.workload.tiling import make_tile_trace
from t3sim.workload.trace_file import content_digest, read_manifest, read_trace


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(trace, [str(argument) for argument in arguments])


def test_made_trace_equals_generated_tiles(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.parquet"
    result = invoke("make", "--model", "T-NLG", "--sublayer", "FC-2", "--tp", "8", "-o", path)
    assert result.exit_code == 0, result.output
    made = make_tile_trace(gemm_of(named_model("T-NLG").spec, "FC-2", 8), load_tiling(), 8)
    assert content_digest(read_trace(path)) == content_digest(made)
    assert read_manifest(path).origin.startswith("t3sim trace make --model T-NLG --sublayer FC-2 --tp 8 --tiling ")

    shown = invoke("show", path, "--slots", "80")
    assert shown.exit_code == 0, shown.output
    assert "8192 x 4256 x 2128" in shown.output
    assert "8.31 MiB (8716288 B)" in shown.output
    assert shown.output.count("\n") < 25
    assert invoke("check", path).output == f"{path}: a valid trace\n"


def test_bare_gemm(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    result = invoke("make", "--gemm", "600,300,64", "--tp", "3", "--tiling", "gemm-128x128", "-o", path)
    assert result.exit_code == 0, result.output
    assert read_trace(path).n_workgroups == 15


def test_check_exits_with_3(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    invoke("make", "--gemm", "600,300,64", "--tp", "3", "-o", path)
    path.write_bytes(path.read_bytes()[:-1])
    result = invoke("check", path)
    assert result.exit_code == 3
    assert "not a readable Parquet file" in result.stderr
    assert isinstance(invoke("show", path).exception, InputDataError)
    missing = invoke("check", tmp_path / "none.parquet")
    assert missing.exit_code == 3
    assert "no such file" in missing.stderr


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["--tp", "8"], "give --model with --sublayer, or --gemm"),
        (["--tp", "8", "--model", "T-NLG"], "give --model with --sublayer"),
        (["--tp", "8", "--gemm", "1,2,3", "--model", "T-NLG"], "give either"),
        (["--tp", "8", "--gemm", "8192,4256"], "write three whole numbers"),
        (["--tp", "8", "--gemm", "8192,4256,0"], "write three whole numbers"),
        (["--tp", "0", "--gemm", "8192,4256,64"], "at least 1 chunk"),
        (["--tp", "3", "--model", "T-NLG", "--sublayer", "OP"], "not divisible by tp"),
        (["--tp", "8", "--model", "T-NLG", "--sublayer", "FC-3"], "unknown sublayer 'FC-3'"),
        (["--tp", "8", "--model", "T-NLH", "--sublayer", "OP"], "T-NLG"),
    ],
)
def test_refusals(arguments: list[str], cause: str, tmp_path: Path) -> None:
    result = invoke("make", *arguments, "-o", tmp_path / "x.parquet")
    assert isinstance(result.exception, T3SimError)
    assert result.exception.exit_code == 2
    assert cause in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_output_must_be_parquet(tmp_path: Path) -> None:
    result = invoke("make", "--gemm", "600,300,64", "--tp", "3", "-o", tmp_path / "x.csv")
    assert isinstance(result.exception, UsageError)


def test_every_studied_shape_can_be_cut() -> None:
    """The models' sublayers at the degrees studied: slices are whole and the chunks near-equal."""
    for model in (named_model(name).spec for name in preset_names("model")):
        for tp, sublayer in product(model.tensor_parallel, SUBLAYERS):
            made = make_tile_trace(gemm_of(model, sublayer, tp), load_tiling(), tp)
            assert made.chunk_elements().sum() == model.tokens * model.hidden, (model.name, tp, sublayer)
