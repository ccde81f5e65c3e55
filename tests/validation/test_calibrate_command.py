"""``t3sim calibrate`` simulates with the workers and the phase files of the other commands."""

from __future__ import annotations

from pathlib import Path

from tests.harness.here import t3sim_here
from tests.harness.measured import gemm, write_folder
from tests.smoke.command_line import t3sim


def calibrated(cwd: Path, *options: str) -> dict[str, bytes]:
    """The files of a fit to one GEMM on t3-tiny, by name; a search along two numbers."""
    arguments = ("measured", "--points", "points.csv", "--start", "t3-tiny", "--tiling", "gemm-64x64", "-o", "out")
    done = (t3sim if "-j" in options else t3sim_here)("calibrate", *arguments, *options, cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("phases ")]
    return {path.name: path.read_bytes() for path in (cwd / "out").iterdir() if path.suffix in {".csv", ".yaml"}}


def test_workers_come_to_the_same_and_finished_phases_are_not_simulated_again(tmp_path: Path) -> None:
    write_folder(tmp_path / "measured", {"gemm_gaps": [gemm(28.0, gap_us=500, kernel="cublas")]})
    (tmp_path / "points.csv").write_text("file,line\ngemm_gaps.csv,2\n", encoding="utf-8")
    by_workers = calibrated(tmp_path, "-j", "1", "--phases", "a")
    assert set(by_workers) == {"calibrated.yaml", "calibration.csv"}
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()}
    assert len(kept) > 2  # a phase for each machine that was tried
    assert calibrated(tmp_path, "--phases", "a") == by_workers
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()} == kept
