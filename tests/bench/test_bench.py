"""How fast the simulator is: ``make bench`` prints the figures; nothing here fails for being slow.

Each test asserts only that the work was done.  Times are of one core of this machine; what can be
compared across machines is the ratio of two of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t3sim.experiment.plan import load_experiment
from t3sim.experiment.runner import plan_phases
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.assemble import compiled_advance, compiled_policy, layout_for
from t3sim.gpu.kernel import codes
from t3sim.gpu.kernel.state import COMMAND_LOG, STEP_TABLE, TILE_TABLE, Layout
from t3sim.gpu.ticks import TickBase
from tests.conftest import REPOSITORY
from tests.harness.channel_bench import UNLIMITED, ChannelBench, Setup, drive

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

EXPERIMENT = REPOSITORY / "experiments" / "t3-tnlg-fc2" / "experiment.yaml"
PHASES = ("gemm", "reduce-scatter", "fused, mca")
# HBM2 timings of configs/memory/hbm2-reference.yaml: what the bandwidth tests use, refresh on.
REFERENCE = {
    "nBL": 2, "nCL": 14, "nCWL": 5, "nRCDRD": 14, "nRCDWR": 12, "nRP": 14, "nRAS": 34, "nRC": 48, "nRTP": 5, "nWR": 16,
    "nCCDS": 2, "nCCDL": 4, "nCCDWS": 2, "nCCDWL": 8, "nRRDS": 4, "nRRDL": 4, "nFAW": 15, "nRTW": 13,
    "nWTRS": 6, "nWTRL": 8, "nREFI": 3900, "nRFC": 350,
}  # fmt: skip


def say(what: str, value: str) -> None:
    """Print one figure."""
    print(f"bench  {what:44} {value}")


@pytest.fixture(scope="module")
def measured() -> dict[str, dict[str, Any]]:
    """Simulate the phases of T-NLG FC-2 at TP 8, each once, on a kernel that is compiled already."""
    points = load_experiment(EXPERIMENT).points
    machine = points[0].machine
    compiled_advance(layout_for(machine))
    ticks = TickBase.of(machine)
    quantum_us = machine.link.latency / 1e6
    figures = {}
    for job in plan_phases(points, {}).values():
        if job.name not in PHASES:
            continue
        started = time.perf_counter()
        phase = job.simulate(lambda share: None)
        wall_s = time.perf_counter() - started
        counters = phase.counters
        figures[job.name] = {
            "wall_s": wall_s,
            "mem_requests": counters["mem_requests"],
            "line_accesses": counters["l2_accesses"] + counters["l2_store_accesses"],
            "quanta": ticks.to_us(phase.ticks) / quantum_us,
        }
    return figures


@pytest.mark.parametrize("name", PHASES)
def test_phase(measured: dict[str, dict[str, Any]], name: str) -> None:
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


def test_fused_over_isolated(measured: dict[str, dict[str, Any]]) -> None:
    ratio = measured["fused, mca"]["wall_s"] / measured["gemm"]["wall_s"]
    say("fused over isolated GEMM: wall", f"{ratio:8.2f}")
    assert measured["fused, mca"]["line_accesses"] > 10_000_000


def read_places(pattern: str, n: int) -> Any:
    """Return *n* reads: consecutive addresses with rotating bank groups, or a random bank and row each."""
    if pattern == "stream":
        i = np.arange(n)
        row, high, bank, group, low = i >> 9, (i >> 6) & 7, (i >> 4) & 3, (i >> 2) & 3, i & 3
        return (row << 24) | ((high * 4 + low) << 16) | (((group ^ low) * 4 + bank) << 8) | codes.OPERAND_READ
    rng = np.random.default_rng(1)
    row, bank, column = rng.integers(0, 1 << 14, n), rng.integers(0, 16, n), rng.integers(0, 32, n)
    return (row << 24) | (column << 16) | (bank << 8) | codes.OPERAND_READ


@pytest.mark.parametrize("pattern", ["stream", "random"])
def test_channel(pattern: str) -> None:
    n = 200_000
    bench = ChannelBench(Setup(timings=REFERENCE, is_split=True))
    places = np.zeros((2, n), np.int64)
    places[codes.COMPUTE] = read_places(pattern, n)
    arrivals = np.zeros((2, n), np.int64)
    arrivals[codes.COMM] = codes.NEVER
    tiles, steps, log = (np.zeros(1, dtype).view(np.recarray) for dtype in (TILE_TABLE, STEP_TABLE, COMMAND_LOG))
    pick_stream = compiled_policy(arbitration_policies.get("round_robin").pick_stream, Layout())
    wall_s = 0.0
    for _ in range(2):  # the first time compiles
        bench.reset()
        bench.channel["now"] = 0
        started = time.perf_counter()
        drive(bench.state, tiles, steps, log, pick_stream, places, arrivals, 64, UNLIMITED)
        wall_s = time.perf_counter() - started
    channel = bench.channel
    share = n * REFERENCE["nBL"] / int(channel["last_done_at"])
    say(
        f"one channel, {pattern} reads: per request",
        f"{wall_s * 1e9 / n:8.0f} ns, {100 * share:.1f} % of peak bandwidth",
    )
    assert int(channel["n_commands"][codes.RD]) == n


def timed(command: list[str], **environment: str) -> tuple[float, str]:
    """Run *command*; return wall time and what it printed."""
    started = time.perf_counter()
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    return time.perf_counter() - started, done.stdout


def test_help() -> None:
    command = [sys.executable, "-c", "from t3sim.cli import main; main()", "--help"]
    best = min(timed(command)[0] for _ in range(5))
    say("t3sim --help: wall, best of 5", f"{best:8.3f} s")
    assert "Usage: t3sim" in timed(command)[1]


COMPILE = """
import time
from t3sim.gpu.assemble import compiled_advance
from t3sim.gpu.kernel.state import Layout
started = time.perf_counter()
compiled_advance(Layout())
print(time.perf_counter() - started)
"""


def test_compile(tmp_path: Path) -> None:
    cold, warm = (float(timed([sys.executable, "-c", COMPILE], T3SIM_CACHE_DIR=str(tmp_path))[1]) for _ in range(2))
    say("compilation of the loop, empty cache", f"{cold:8.2f} s")
    say("the same from the cache", f"{warm:8.2f} s")
    assert any(tmp_path.rglob("*.nbc"))


FUSED = f"""
import resource, sys
from t3sim.experiment.plan import load_experiment
from t3sim.experiment.runner import plan_phases
points = load_experiment({str(EXPERIMENT)!r}, ["strategy=t3-mca"]).points
job = next(job for job in plan_phases(points, {{}}).values() if job.name == "fused, mca")
phase = job.simulate(lambda share: None)
scale = 1 if sys.platform == "darwin" else 1024
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale, phase.counters["mem_requests"])
"""


def test_peak_memory() -> None:
    peak_bytes, n_requests = map(int, timed([sys.executable, "-c", FUSED])[1].split())
    say("fused run, peak resident memory", f"{peak_bytes / 2**20:8.0f} MiB")
    assert n_requests > 1_000_000


# Prints the CPU time of the fused sublayer and how many requests it served; checked if asked for.
COSTED = f"""
import sys, time
from t3sim.checks.audit import Audit
from t3sim.experiment.plan import load_experiment
from t3sim.overlap.t3 import ring_reduce_scatter
from t3sim.system.phases import MirroredPhases, PhaseStore
from t3sim.workload.tiling import make_tile_trace
run = load_experiment({str(EXPERIMENT)!r}, ["strategy=t3-mca"]).points[0]
trace = make_tile_trace(run.workload.gemm, run.workload.tiling, run.workload.tp)
audit = Audit(has_checks=len(sys.argv) > 1)
started = time.process_time()
phase = MirroredPhases(run, trace, PhaseStore(), audit).fused(ring_reduce_scatter)
print(time.process_time() - started, phase.counters["mem_requests"], audit.n_commands)
"""
PAIRS = 7


def costs(arguments: list[str], **environment: str) -> tuple[float, int, int]:
    """Return CPU seconds, requests served and commands checked of a fused run in a process of its own."""
    seconds, *numbers = timed([sys.executable, "-c", COSTED, *arguments], **environment)[1].split()
    return float(seconds), *map(int, numbers)


def test_what_counting_costs() -> None:
    """Pairs of runs with and without the counts that the invariants compare: the median ratio."""
    costs([], T3SIM_LEDGER="0")  # compiles
    ratios = []
    for _ in range(PAIRS):
        (counted, n_counted, _), (plain, n_plain, _) = costs([]), costs([], T3SIM_LEDGER="0")
        assert n_counted == n_plain > 1_000_000
        ratios.append(counted / plain)
    say("fused run, with over without counting", f"{np.median(ratios):8.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


def test_what_checking_costs() -> None:
    """Pairs of runs with and without --check: the median ratio."""
    costs(["--check"])  # compiles
    ratios = []
    for _ in range(PAIRS):
        (checked, n_checked, n_commands), (plain, n_plain, _) = costs(["--check"]), costs([])
        assert n_checked == n_plain < n_commands
        ratios.append(checked / plain)
    say("fused run, with over without --check", f"{np.median(ratios):8.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
