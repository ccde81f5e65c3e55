"""Which measured rows are held out, and that a validation reports them apart."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd

from t3lab.report.validation import held_out, read_validation, summary_texts
from t3lab.validation.holdout import held_out_lines, is_held_out
from tests.analysis.test_validation import POINTS, write_tables
from tests.conftest import REPOSITORY


def test_the_file_is_what_its_rule_says() -> None:
    done = subprocess.run([sys.executable, "tools/holdout", "--check"], cwd=REPOSITORY, check=False)
    assert done.returncode == 0


def test_a_tenth_of_the_rows_and_two_sessions() -> None:
    lines = held_out_lines(REPOSITORY / "validation" / "holdout.csv")
    rested = REPOSITORY / "validation" / "h200" / "two-gpus-rested-b" / "contention.csv"
    assert is_held_out(rested, 2)
    assert is_held_out(rested, 47)
    others = {file: found for file, found in lines.items() if isinstance(found, set)}
    n_rows = sum(len((REPOSITORY / "validation" / file).read_text().splitlines()) - 1 for file in others)
    assert 0.07 < sum(map(len, others.values())) / n_rows < 0.16


def test_fitted_rows_and_files_of_others_are_not_held_out(tmp_path: Path) -> None:
    fitted = pd.read_csv(REPOSITORY / "validation" / "h200-calibration.csv")
    folder = REPOSITORY / "validation" / "h200"
    assert not any(is_held_out(folder / row.file, row.line) for row in fitted.itertuples())
    assert not is_held_out(tmp_path / "two-gpus-rested-b" / "contention.csv", 2)


def test_a_validation_gives_them_apart(tmp_path: Path) -> None:
    points = [{**point, "held_out": "true" if point["line"] == 3 else "false"} for point in POINTS]
    validation = read_validation(write_tables(tmp_path / "with", points))
    assert [(row[0], row[2]) for row in summary_texts(validation, held_out)] == [
        ("collectives from 16 MB", "1"),
        ("GEMM", "1"),
    ]
    assert summary_texts(read_validation(write_tables(tmp_path / "without")), held_out) == []
