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
from t3sim.system.machine import MirroredMachine
from t3sim.system.measure import counters_of
from tests.harness.sublayers import add_commands
from tests.harness.tiny_runs import Classes, machine_for

# What arrives has a class of its own, and nobody uses the second; compute units use the last one where it says so.
THREE = Classes(("compute", "unused", "arriving"), of_kernels=0, inbound=2)
LAST = Classes(("arriving", "unused", "kernels"), of_kernels=2, inbound=0)
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
