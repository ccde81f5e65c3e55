"""A run that hangs on the command line: exit code 4, a short message, the state in a file, no results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.smoke.command_line import HEADER, ONE_POINT, result_files, simulated, t3sim

STINGY = '''
from t3sim.plugins import COMPUTE, NO_STREAM, head_is_ready, policy


@policy("stingy")
def pick_stream(channel, now):
    """Never serve communication."""
    return COMPUTE if head_is_ready(channel, COMPUTE, now) else NO_STREAM
'''
HANGS = ONE_POINT + "plugins: [stingy.py]\narbitration: stingy\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "stingy.py").write_text(STINGY, encoding="utf-8")
    return tmp_path


def test_a_policy_that_starves_communication_ends_in_code_4_and_a_file(folder: Path) -> None:
    (folder / "e.yaml").write_text(HANGS, encoding="utf-8")
    done = t3sim("run", "e.yaml", "-o", "out", cwd=folder)
    lines = done.stderr.splitlines()
    assert done.returncode == 4, done.stderr
    assert len(lines) <= 10
    assert lines[0].startswith("t3sim: no progress: ")
    assert "gpu[0].channel[0].arbiter: the policy has not served a ready communication request" in lines[1]
    assert lines[-1] == f"the state of the machine is in {Path('out') / 'hang.txt'}"
    assert result_files(folder / "out") == ["hang.txt"]
    report = (folder / "out" / "hang.txt").read_text(encoding="utf-8")
    assert "state of gpu[0]" in report


def test_a_later_run_removes_the_report(folder: Path) -> None:
    output = folder / "results"
    output.mkdir()
    (output / "hang.txt").write_text("an old report\n", encoding="utf-8")
    assert simulated(ONE_POINT, folder) == output
    assert not (output / "hang.txt").exists()


def test_canary_without_the_plugin_the_same_experiment_ends(folder: Path) -> None:
    assert HANGS.startswith(HEADER)
    assert (simulated(ONE_POINT, folder) / "results.csv").exists()
