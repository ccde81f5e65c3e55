"""The same experiment gives the same results, wherever, however often and in whatever steps it is simulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import cases
from tests.smoke.command_line import ALL_STRATEGIES, HEADER, digest_of, manifest_of, rows_of, simulated

SMALLEST = (
    HEADER
    + "workload: {gemm: {m: 128, n: 128, k: 64}, tp: 2}\ntiling: gemm-64x64\n"
    + "sweep: {grid: {strategy: [sequential, t3]}}\n"
)


def assert_same(folder: Path, other: Path) -> None:
    """Fail unless two results folders agree in all but what depends on the host."""
    assert rows_of(folder) == rows_of(other)
    assert manifest_of(folder) == manifest_of(other)
    for name in ("experiment.yaml", "resolved.json", "trace.json.gz"):
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name


def test_manifest_holds_the_digest_of_the_rows(base: Path) -> None:
    assert manifest_of(base)["records_sha256"] == digest_of(base)


@pytest.mark.parametrize("seed", cases(["0", "1"], "1"))
def test_surroundings_do_not_matter(base: Path, tmp_path: Path, seed: str) -> None:
    env = {"PYTHONHASHSEED": seed, "LC_ALL": "C", "TZ": "Asia/Kathmandu", "COLUMNS": "40", "NO_COLOR": "1"}
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    assert_same(base, simulated(ALL_STRATEGIES, tmp_path / "run", cwd=elsewhere, env=env))


def test_run_over_an_earlier_result(base: Path, tmp_path: Path) -> None:
    simulated(ALL_STRATEGIES.replace("512", "256"), tmp_path)
    assert rows_of(tmp_path / "results") != rows_of(base)
    assert_same(base, simulated(ALL_STRATEGIES, tmp_path, cwd=tmp_path))  # its warning is no error there


@pytest.mark.parametrize("quantum", cases(["100 ns", "250 ns", "77777 ps"], "77777 ps"))
def test_quantum_does_not_matter(base: Path, tmp_path: Path, quantum: str) -> None:
    other = simulated(ALL_STRATEGIES, tmp_path, "-s", f"quantum={quantum}")
    assert rows_of(other) == rows_of(base)
    assert (other / "trace.json.gz").read_bytes() == (base / "trace.json.gz").read_bytes()
    assert manifest_of(other)["points"] != manifest_of(base)["points"]


def test_one_point_alone_is_the_same_point(base: Path, tmp_path: Path) -> None:
    alone = simulated(ALL_STRATEGIES, tmp_path, "-s", "strategy=t3-mca")
    compared_with_sequential = ("speedup", "overlap_efficiency", "sublayer_overlap_efficiency")
    expected = {name: "" if name in compared_with_sequential else cell for name, cell in rows_of(base)[2].items()}
    assert rows_of(alone) == [expected]


@pytest.mark.deep  # tests/properties compares them in one process
def test_compiled_equals_interpreted(tmp_path: Path) -> None:
    compiled = simulated(SMALLEST, tmp_path / "compiled", env={"T3SIM_INTERPRETED": ""})
    unused = tmp_path / "kernel-cache"
    env = {"T3SIM_INTERPRETED": "1", "T3SIM_CACHE_DIR": str(unused)}
    interpreted = simulated(SMALLEST, tmp_path / "interpreted", env=env)
    assert_same(compiled, interpreted)
    assert not unused.exists()  # or it would not have been interpreted
