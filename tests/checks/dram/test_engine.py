"""The compiled part of the checker: its codes are those of the log, its modes agree; tools/lint has its rules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from t3sim.checks.dram import codes
from t3sim.checks.dram.rules import GAPS
from t3sim.config import limits
from t3sim.gpu.units import codes as kernel_codes
from t3sim.gpu.units.table_rows import COMMAND_LOG
from tests.checks.dram.replay import verdict
from tests.checks.dram.traffic import KINDS, PATTERNS, TIMINGS, TracedBench, requests
from tests.conftest import REPOSITORY
from tests.harness.channel_bench import Setup

REFRESHED = ("refreshed", "banks always refreshing")


def recorded_trace(timings: str) -> np.ndarray:
    """Two channels with all commands, one in fifty of them a cycle off: legal and illegal ones."""
    logs = []
    for channel in range(2):
        bench = TracedBench(Setup(TIMINGS[timings]))
        log = bench.run_arrays(*requests(PATTERNS["few rows"], KINDS["mixed"], 150, channel), until=3000)
        logs.append(np.array(log, COMMAND_LOG))
        logs[-1]["channel"] = channel
    trace = np.concatenate(logs)
    trace["at"][::50] -= 1
    return trace


def test_codes_are_those_of_the_command_log() -> None:
    names = ("ACT", "PRE", "RD", "WR", "UPD", "REF", "N_KINDS", "UPDATE_BIT")
    assert [getattr(codes, name) for name in names] == [getattr(kernel_codes, name) for name in names]
    assert codes.STORE_BIT == kernel_codes.WRITE_BIT
    assert kernel_codes.N_KINDS == codes.N_KINDS
    assert set(COMMAND_LOG.names) >= {"at", "channel", "command", "bank", "row", "column", "kind"}


def test_capacities_are_enough_for_every_memory_that_the_configuration_accepts() -> None:
    assert codes.MAX_BANKS >= limits.MOST_BANKS_OF_A_CHANNEL
    assert len(GAPS) <= codes.FOUR_ACTIVATES


@pytest.mark.parametrize("timings", REFRESHED)
def test_compiled_and_interpreted_checkers_agree(timings: str, tmp_path: Path) -> None:
    """The same violations, in the same words, and the same counts?"""
    trace = recorded_trace(timings)
    np.save(tmp_path / "trace.npy", trace)
    environment = {**os.environ, "T3SIM_INTERPRETED": "1"}
    command = [sys.executable, "-m", "tests.checks.dram.replay", str(tmp_path / "trace.npy"), timings]
    output = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True)
    compiled = verdict(trace, timings)
    assert json.loads(output.stdout) == json.loads(json.dumps(compiled))
    assert len(compiled["violations"]) == codes.N_KEPT
    assert len(compiled["violated"]) >= 10
