"""``t3sim calibrate --from``: a machine from published tables alone, by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from t3sim.cli import main
from t3sim.config.resolve import resolve_machine
from t3sim.config.yaml_loader import Node, Position

GBPS = 10**9
RATE, START_US = 123.0, 40.0  # of the links (GB/s), and of a ring


def calibrate(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["calibrate", *map(str, arguments)])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Rings on 4 and 8 GPUs that start in 40 us and run at 123 GB/s on 8."""
    rows = ["collective,gpus,bytes,time_us"]
    for name in ("all_gather", "reduce_scatter"):
        rows += [f"{name},4,{size},{START_US + size * 3 / 4 / 50e3:.6f}" for size in (1 << 25, 1 << 27)]
        rows += [f"{name},8,{size},{START_US + size * 7 / 8 / RATE / 1e3:.6f}" for size in (1 << 20, 1 << 26, 1 << 28)]
    (tmp_path / "collectives.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    provenance = {"device": "NVIDIA Z9", "driver": "1", "cuda": "1", "date": "2026-11-29", "versions": "none"}
    (tmp_path / "provenance.json").write_text(json.dumps(provenance), encoding="utf-8")
    return tmp_path / "collectives.csv"


def test_the_rate_of_the_links_is_read_off_large_rings(table: Path, tmp_path: Path) -> None:
    """By the difference of the two largest on the most GPUs, so that their start does not count."""
    result = calibrate("--from", table, "--start", "a100", "--no-search", "--name", "z9", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    file = tmp_path / "out" / "z9.yaml"
    machine = resolve_machine(Node(str(file), Position("")))
    assert machine.spec.link.bandwidth == round(RATE) * GBPS
    assert machine.spec.gpu.n_compute_units == 108
    assert "Z9" in file.read_text(encoding="utf-8")
    used = (tmp_path / "out" / "calibration.csv").read_text(encoding="utf-8")
    assert "link.bandwidth" in used
    assert "collectives.csv:6" in used or "collectives.csv,6" in used


def test_from_takes_no_folder(table: Path, tmp_path: Path) -> None:
    result = calibrate(tmp_path, "--from", table)
    assert result.exit_code == 2
    assert "--from" in result.stderr


@pytest.mark.parametrize(("option", "code", "word"), [(["--no-search"], 2, "--judge"), ([], 3, "aside.csv")])
def test_judging_rows_are_read_before_anything_is_simulated(
    table: Path, tmp_path: Path, option: list[str], code: int, word: str
) -> None:
    """Rows that cannot be read, or that would not be used, end the command before its long search."""
    result = calibrate("--from", table, "--judge", tmp_path / "aside.csv", "-o", tmp_path / "out", *option)
    assert result.exit_code == code
    assert word in result.stderr
    assert "phases" not in result.output
    assert not (tmp_path / "out").exists()
