"""A run that hangs on the command line: exit code 4, a short message, the state in a file, no results."""

from __future__ import annotations

from pathlib import Path

from tests.harness.here import t3sim_here
from tests.smoke.command_line import ONE_POINT, result_files

STINGY = '''
from t3sim.plugins import COMPUTE, NO_STREAM, head_is_ready, policy


@policy("stingy")
def pick_stream(channel, now):
    """Never serve communication."""
    return COMPUTE if head_is_ready(channel, COMPUTE, now) else NO_STREAM
'''
HANGS = ONE_POINT + "plugins: [stingy.py]\narbitration: stingy\n"


def test_a_policy_that_starves_communication_ends_in_code_4_and_a_file(tmp_path: Path) -> None:
    """A later run removes the report.  Canary: without the plugin the same experiment ends."""
    (tmp_path / "stingy.py").write_text(STINGY, encoding="utf-8")
    (tmp_path / "e.yaml").write_text(HANGS, encoding="utf-8")
    done = t3sim_here("run", "e.yaml", "-o", "out", cwd=tmp_path)
    lines = done.stderr.splitlines()
    assert done.returncode == 4, done.stderr
    assert len(lines) <= 10
    assert lines[0].startswith("t3sim: no progress: ")
    assert "gpu[0].channel[0].arbiter: the policy" in lines[1]
    assert lines[-1] == f"the state of the machine is in {Path('out') / 'hang.txt'}"
    assert result_files(tmp_path / "out") == ["hang.txt"]
    report = (tmp_path / "out" / "hang.txt").read_text(encoding="utf-8")
    assert "state of gpu[0]" in report
    (tmp_path / "e.yaml").write_text(ONE_POINT, encoding="utf-8")
    assert HANGS.startswith(ONE_POINT)
    done = t3sim_here("run", "e.yaml", "-o", "out", "--no-figures", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "results.csv" in result_files(tmp_path / "out")
    assert not (tmp_path / "out" / "hang.txt").exists()
