"""Missing and unwritable files, one in a process of its own; every other bad input: tests/faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.here import t3sim_here
from tests.smoke.command_line import ONE_POINT, entries, t3sim


def test_missing_experiment(tmp_path: Path) -> None:
    done = t3sim("run", "nowhere.yaml", "-o", "out", cwd=tmp_path)
    assert done.returncode in (2, 3)
    assert "nowhere.yaml: no such file" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert entries(tmp_path) == []


@pytest.mark.parametrize("output", ["file", "file/below/it"])
def test_unwritable_output_folder_is_found_before_simulating(output: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept", encoding="utf-8")
    (tmp_path / "e.yaml").write_text(ONE_POINT, encoding="utf-8")
    done = t3sim_here("run", "e.yaml", "-o", output, cwd=tmp_path)
    assert done.returncode == 5
    assert done.stderr == f"t3sim: {output}: cannot write here: a part of the path is a file, not a folder (ENOTDIR)\n"
    assert "Times (us)" not in done.stdout
    assert entries(tmp_path) == ["e.yaml", "file"]
    assert (tmp_path / "file").read_text(encoding="utf-8") == "kept"
