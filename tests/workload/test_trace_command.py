"""``t3sim trace``: what it writes is what experiments generate, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from t3sim.cli.trace import trace
from t3sim.config.presets import load_tiling
from t3sim.errors import T3SimError
from t3sim.workload.models import named_model
from t3sim.workload.sublayers import gemm_of
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
