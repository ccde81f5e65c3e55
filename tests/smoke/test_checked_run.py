"""``t3sim run --check`` and ``--data``: the same results, and what was looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import cases
from tests.harness.here import t3sim_here
from tests.smoke.command_line import ALL_STRATEGIES, ONE_POINT, digest_of, entries, simulated

# A policy that after a while names a stream without asking whether it has anything: the trial before the run is over.
BLIND_POLICY = '''"""At last always communication, ready or not."""

from t3sim.plugins import COMM, COMPUTE, head_is_ready, policy


@policy("blind")
def pick_stream(channel, now):
    channel.policy_scratch[0] += 1
    if channel.policy_scratch[0] > 1000 or head_is_ready(channel, COMM, now):
        return COMM
    return COMPUTE
'''


@pytest.mark.parametrize("options", cases(["--check", "--data", "--check --data"], "--check --data"))
def test_checks_change_no_result_and_the_run_says_what_was_checked(tmp_path: Path, options: str) -> None:
    small = ALL_STRATEGIES.replace("{m: 512, n: 512, k: 256}", "{m: 256, n: 256, k: 128}")
    base = simulated(small, tmp_path / "unchecked")
    (tmp_path / "e.yaml").write_text(small, encoding="utf-8")
    done = t3sim_here("run", "e.yaml", *options.split(), "--no-figures", "-o", "results", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    said = [line for line in done.stdout.splitlines() if line.startswith(("checked", "data"))]
    due = {"--check": "phases: nothing broken", "--data": "results equal NumPy's"}
    for line, option in zip(said, options.split(), strict=True):
        assert line.endswith(due[option])
    assert digest_of(tmp_path / "results") == digest_of(base)


def test_a_machine_that_breaks_a_rule_ends_with_code_4_and_no_results(tmp_path: Path) -> None:
    """Here a policy of the user's own that picks a stream with nothing in it."""
    (tmp_path / "blind.py").write_text(BLIND_POLICY, encoding="utf-8")
    text = ONE_POINT + "plugins: [blind.py]\narbitration: {policy: blind}\n"
    (tmp_path / "e.yaml").write_text(text, encoding="utf-8")
    done = t3sim_here("run", "e.yaml", "--no-figures", cwd=tmp_path)
    assert done.returncode == 4
    [line] = done.stderr.splitlines()
    assert line.startswith("t3sim: arbitration policy `blind` picked a stream with nothing ready in channel[")
    assert line.endswith("it must return COMPUTE or COMM with a ready head, or NO_STREAM")
    assert not [name for name in entries(tmp_path) if name.endswith((".csv", ".parquet"))]


def test_values_that_do_not_fit_into_memory_are_refused(tmp_path: Path) -> None:
    text = ONE_POINT.replace("{m: 512, n: 512, k: 256}", "{m: 65536, n: 16384, k: 64}") + "max_hours: 1000\n"
    (tmp_path / "e.yaml").write_text(text, encoding="utf-8")
    done = t3sim_here("run", "e.yaml", "--data", cwd=tmp_path)
    assert done.returncode == 2
    assert "carrying real values needs about " in done.stderr
