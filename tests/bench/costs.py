"""What the speed tests measure, each as a function that returns figures.

As a program it calls one of them in a process of its own and prints the figures:

    python -m tests.bench.costs FUNCTION [ARGUMENT ...]

*overrides* are those of the command line, of the experiment T-NLG FC-2 at TP 8.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t3sim.checks.audit import Audit
from t3sim.config.experiment import RunSpec
from t3sim.experiment.planning.plan import load_experiment
from t3sim.gpu.assemble import layout_for
from t3sim.gpu.compiled import compiled_advance
from t3sim.gpu.ticks import TickBase
from t3sim.gpu.units import codes
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.dram.memory_controller import advance_channel, enqueue_request, has_room, has_work
from t3sim.gpu.units.state import Layout
from t3sim.gpu.units.table_rows import COMMAND_LOG
from t3sim.program.plan import Part
from t3sim.system.compilation import compile_for
from t3sim.system.explicit import ExplicitParts
from t3sim.system.parts import MirroredParts, Parts, PhaseStore
from t3sim.system.simulate import operator_of, plan_for
from tests.conftest import REPOSITORY
from tests.harness.channel_bench import ChannelBench, Setup
from tests.harness.planned import plan_phases

EXPERIMENT = REPOSITORY / "experiments" / "t3-tnlg-fc2" / "experiment.yaml"
# HBM2 timings of configs/memory/hbm2-reference.yaml: what the bandwidth tests use, refresh on.
REFERENCE = {
    "nBL": 2, "nCL": 14, "nCWL": 5, "nRCDRD": 14, "nRCDWR": 12, "nRP": 14, "nRAS": 34, "nRC": 48, "nRTP": 5, "nWR": 16,
    "nCCDS": 2, "nCCDL": 4, "nCCDWS": 2, "nCCDWL": 8, "nRRDS": 4, "nRRDL": 4, "nFAW": 15, "nRTW": 13,
    "nWTRS": 6, "nWTRL": 8, "nREFI": 3900, "nRFC": 350,
    "nRFCpb": 0, "nRREFD": 0,
}  # fmt: skip
N_CHANNELS = 32
Figures = dict[str, Any]


def point(*overrides: str) -> RunSpec:
    """Return the first point of the experiment."""
    return load_experiment(EXPERIMENT, overrides).points[0]


def fused_part(run: RunSpec) -> Part:
    """Return the fused GEMM and reduce-scatter of a point under T3."""
    return next(part for part in plan_for(run, operator_of(run)).parts() if part.role == "fused")


def phases(names: Sequence[str], *overrides: str) -> dict[str, Figures]:
    """Simulate the phases of these names, each once, on a kernel that is compiled already."""
    points = load_experiment(EXPERIMENT, overrides).points
    machine = points[0].machine
    compiled_advance(layout_for(machine))
    ticks, quantum_us = TickBase.of(machine), machine.link.latency / 1e6
    figures = {}
    for job in plan_phases(points, {}).values():
        if job.name not in names:
            continue
        started = time.perf_counter()
        phase = job.simulate(lambda share: None)
        wall_s, counters = time.perf_counter() - started, phase.counters
        figures[job.name] = {
            "wall_s": wall_s,
            "mem_requests": counters["mem_requests"],
            "line_accesses": counters["l2_accesses"] + counters["l2_store_accesses"],
            "quanta": ticks.to_us(phase.ticks) / quantum_us,
        }
    return figures


def places_of(pattern: str, n: int) -> Any:
    """Return *n* accesses: reads of consecutive addresses, of random ones, or of one stream with stores to another.

    Bank groups and banks rotate with the address; a row has 32 places of each bank.
    """
    i = np.arange(n)
    kind = np.full(n, codes.OPERAND_READ)
    if pattern == "random":
        line = np.random.default_rng(1).integers(0, 1 << 22, n)
    elif pattern == "mixed":
        line, kind = (i >> 1) + (i & 1) * (1 << 21), np.where(i & 1, codes.WRITE_BACK, kind)
    else:
        line = i
    low, group, bank, high = line & 3, line >> 2 & 3, line >> 4 & 3, line >> 6 & 7
    row = line >> 9 ^ high >> 2
    return row << 24 | (high << 2 | low) << 16 | ((group ^ low) << 2 | bank ^ high & 3) << 8 | kind


@kernel
def serve(gpu_state, tiles, signals, command_log, pick_stream, places, fed, quantum):
    """Let channels serve *places*, a row each, in turns of *quantum* cycles; *fed* counts what each has taken."""
    gpu = gpu_state[0]
    start, is_busy = 0, True
    while is_busy:
        is_busy = False
        for number in range(len(places)):
            channel = gpu.channels[number]
            while fed[number] < places.shape[1] and has_room(channel, codes.COMPUTE, 1):
                enqueue_request(channel, codes.COMPUTE, places[number, fed[number]], -1, start)
                fed[number] += 1
            advance_channel(channel, number, gpu.tracker, tiles, signals, command_log, pick_stream, start + quantum)
            channel.n_done = 0
            is_busy |= has_work(channel)
        start += quantum


def channels(pattern: str, n: int, n_channels: int = N_CHANNELS) -> Figures:
    """Let channels serve *n* accesses each, in turns of 64 cycles."""
    bench = ChannelBench(Setup(timings=REFERENCE, is_split=True))
    blank = bench.reset().copy()
    mine = bench.state[0].channels[:n_channels]
    places = np.stack([places_of(pattern, n)] * n_channels)
    log = np.zeros(1, COMMAND_LOG).view(np.recarray)
    wall_s = float("inf")
    for _ in range(5):  # the first time compiles
        mine[:] = blank
        started = time.perf_counter()
        serve(*bench.tables(log), places, np.zeros(n_channels, np.int64), 64)
        wall_s = min(wall_s, time.perf_counter() - started)
    share = n * REFERENCE["nBL"] / int(mine["last_done_at"].max())
    return {"wall_s": wall_s, "share": share, "n_columns": int(mine["n_commands"][:, [codes.RD, codes.WR]].sum())}


def compilation() -> Figures:
    """Compile the loop of the standard layout, or take it from the cache."""
    started = time.perf_counter()
    compiled_advance(Layout())
    return {"wall_s": time.perf_counter() - started}


def peak_bytes() -> int:
    """Return the most memory that this process has had.

    ``getrusage`` counts what the process had that started it: on Linux, ask for what this program had.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def fused(checks: str, *overrides: str) -> Figures:
    """Simulate the fused sublayer, with all *checks* or with ``none``."""
    run = point("strategy=t3-mca", *overrides)
    part, audit = fused_part(run), Audit(has_checks=checks == "all")
    started = time.process_time()
    phase = MirroredParts(run, PhaseStore(), audit).phase(part)
    cpu_s = time.process_time() - started
    counted = {"n_requests": phase.counters["mem_requests"], "n_checked": audit.n_commands}
    return {"cpu_s": cpu_s, "peak": peak_bytes(), **counted}


def ring(n_gpus: str, *overrides: str) -> dict[str, Figures]:
    """Simulate the fused sublayer of a ring mirrored and then explicit."""
    run = point("strategy=t3", *overrides, f"workload.tp={n_gpus}")
    compile_for([run])
    part, kinds = fused_part(run), dict[str, type[Parts]](mirrored=MirroredParts, explicit=ExplicitParts)
    figures = {}
    for mode, kind in kinds.items():
        started, cpu = time.perf_counter(), time.process_time()
        phase = kind(run.model_copy(update={"mode": mode}), PhaseStore(), Audit(has_timeline=False)).phase(part)
        wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
        figures[mode] = {"ticks": phase.ticks, "wall_s": wall_s, "cpu_s": cpu_s, "peak": peak_bytes()}
    return figures


def main(arguments: Sequence[str]) -> None:
    """Print the figures of one function as JSON."""
    name, *rest = arguments
    print(json.dumps({"compilation": compilation, "fused": fused, "ring": ring}[name](*rest)))


if __name__ == "__main__":
    main(sys.argv[1:])
