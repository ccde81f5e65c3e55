"""How fast the simulator is: ``make bench`` prints the figures; nothing here fails for being slow.

Each test asserts only that the work was done.  Times are of one core of this machine; what can be
compared across machines is the ratio of two of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.bench import costs
from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]  # fifteen runs in a test, on a machine that others use

PHASES = ("gemm", "reduce-scatter", "fused, mca")


def say(what: str, value: str) -> None:
    """Print one figure."""
    print(f"bench  {what:44} {value}")


@pytest.fixture(scope="module")
def measured() -> dict[str, costs.Figures]:
    """Simulate the phases of T-NLG FC-2 at TP 8, each once."""
    return costs.phases(PHASES)


@pytest.mark.parametrize("name", PHASES)
def test_phase(measured: dict[str, costs.Figures], name: str) -> None:
    figures = measured[name]
    wall_ns = figures["wall_s"] * 1e9
    say(f"{name}: wall", f"{figures['wall_s']:8.2f} s")
    say(f"{name}: per memory request", f"{wall_ns / figures['mem_requests']:8.0f} ns of {figures['mem_requests']}")
    if figures["line_accesses"]:
        say(
            f"{name}: per L2 line access", f"{wall_ns / figures['line_accesses']:8.0f} ns of {figures['line_accesses']}"
        )
    say(f"{name}: per quantum of 500 ns", f"{wall_ns / figures['quanta']:8.0f} ns of {figures['quanta']:.0f}")
    assert figures["mem_requests"] > 1_000_000
    assert figures["quanta"] > 500


def test_fused_over_isolated(measured: dict[str, costs.Figures]) -> None:
    ratio = measured["fused, mca"]["wall_s"] / measured["gemm"]["wall_s"]
    say("fused over isolated GEMM: wall", f"{ratio:8.2f}")
    assert measured["fused, mca"]["line_accesses"] > 10_000_000


def test_where_the_time_goes() -> None:
    """The units of the loop by their share of its time, in a build that counts: what the counting costs is in it."""
    figures = json.loads(timed([sys.executable, "-m", "tests.bench.units"])[1])
    rows = sorted(figures["functions"].items(), key=lambda row: -row[1]["cycles"])
    total = sum(row["cycles"] for _, row in rows)
    for name, row in rows:
        visits, cycles = row["visits"], row["cycles"]
        each = f"{visits:11,} visits, {cycles / max(visits, 1):9,.0f} cycles each, {100 * cycles / total:5.1f} %"
        say(f"{row['unit']} ({name})", each)
    assert figures["functions"]["serve_column_bus"]["visits"] >= figures["n_requests"] > 1_000_000


@pytest.mark.parametrize("pattern", ["stream", "random", "mixed"])
def test_channels(pattern: str) -> None:
    n, n_channels = 50_000, costs.N_CHANNELS
    figures = costs.channels(pattern, n)
    each = figures["wall_s"] * 1e9 / (n * n_channels)
    say(
        f"{n_channels} channels, {pattern}: per request",
        f"{each:8.0f} ns, {1e3 / each:.1f} million/s, {100 * figures['share']:.1f} % of peak bandwidth",
    )
    assert figures["n_columns"] == n * n_channels


def timed(command: list[str], **environment: str) -> tuple[float, str]:
    """Run *command*; return wall time and what it printed."""
    started = time.perf_counter()
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    return time.perf_counter() - started, done.stdout


def figures_of(*arguments: str, **environment: str) -> costs.Figures:
    """Return what a function of ``costs`` returns in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.costs", *arguments]
    figures: costs.Figures = json.loads(timed(command, **environment)[1])
    return figures


def test_help() -> None:
    command = [sys.executable, "-c", "from t3sim.cli import main; main()", "--help"]
    best = min(timed(command)[0] for _ in range(5))
    say("t3sim --help: wall, best of 5", f"{best:8.3f} s")
    assert "Usage: t3sim" in timed(command)[1]


def test_compile(tmp_path: Path) -> None:
    cold, warm = (figures_of("compilation", T3SIM_CACHE_DIR=str(tmp_path))["wall_s"] for _ in range(2))
    say("compilation of the loop, empty cache", f"{cold:8.2f} s")
    say("the same from the cache", f"{warm:8.2f} s")
    assert any(tmp_path.rglob("*.nbc"))


def test_peak_memory() -> None:
    figures = figures_of("fused", "none")
    say("fused run, peak resident memory", f"{figures['peak'] / 2**20:8.0f} MiB")
    assert figures["n_requests"] > 1_000_000


PAIRS = 7


def test_what_counting_costs() -> None:
    """Pairs of runs with and without the counts that the invariants compare: the median ratio."""
    figures_of("fused", "none", T3SIM_LEDGER="0")  # compiles
    ratios = []
    for _ in range(PAIRS):
        counted, plain = figures_of("fused", "none"), figures_of("fused", "none", T3SIM_LEDGER="0")
        assert counted["n_requests"] == plain["n_requests"] > 1_000_000
        ratios.append(counted["cpu_s"] / plain["cpu_s"])
    say("fused run, with over without counting", f"{np.median(ratios):8.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


def test_what_checking_costs() -> None:
    """Pairs of runs with and without --check: the median ratio."""
    figures_of("fused", "all")  # compiles
    ratios = []
    for _ in range(PAIRS):
        checked, plain = figures_of("fused", "all"), figures_of("fused", "none")
        assert checked["n_requests"] == plain["n_requests"] < checked["n_checked"]
        ratios.append(checked["cpu_s"] / plain["cpu_s"])
    say("fused run, with over without --check", f"{np.median(ratios):8.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
