"""Small runs with more traffic classes than T3's two, and what they leave behind.

As a program it prints the outcomes of ``SMALL``, for comparison between compiled and interpreted runs:
``python -m tests.harness.three_classes``.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

from t3sim.config.experiment import GemmShape
from t3sim.gpu.traffic import Sources, TrafficClasses
from t3sim.system.machine import MirroredMachine
from t3sim.system.measure import counters_of
from tests.harness.sublayers import add_commands
from tests.harness.tiny_runs import machine_for

# Each source of communication has a class of its own, and compute units use the last one where the name says so.
THREE = TrafficClasses(("compute", "forwarded", "arriving"), Sources(dma=1, arrivals=2))
LAST = TrafficClasses(("arriving", "forwarded", "kernels"), Sources(gemm=2, collective=2, dma=1, arrivals=0))
SHAPE = GemmShape(m=128, n=60, k=64)
NARROW = ("machine.memory.stream_queue_entries=16", "machine.memory.queue.entries=4")  # compute units stand in line
SMALL = [("fused", "mca"), ("reduce-scatter", "round_robin")]


def outcome(machine: MirroredMachine) -> dict[str, Any]:
    """Run what is loaded; return its time, a digest of its DRAM commands and its counters."""
    digest = hashlib.sha256()
    add_commands(machine.core, digest)
    ticks = machine.run()
    return {"ticks": ticks, "commands": digest.hexdigest(), "counters": counters_of(machine.core)}


def small_outcomes() -> list[dict[str, Any]]:
    """Return the outcomes of the runs that interpreted code simulates in seconds."""
    return [outcome(machine_for(phase, SHAPE, 2, policy, NARROW, THREE)) for phase, policy in SMALL]


if __name__ == "__main__":
    json.dump(small_outcomes(), sys.stdout)
