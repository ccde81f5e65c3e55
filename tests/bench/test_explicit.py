"""What it costs to simulate every GPU of a ring: time and memory against their number and against mirrored mode."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from t3sim.system.threads import n_cores
from tests.bench.test_bench import EXPERIMENT, say
from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

RINGS = (2, 4, 8)

# Simulates the fused sublayer mirrored and then explicit, one after the other in one process; prints what each cost.
COSTED = f"""
import json, resource, sys, time
from t3sim.experiment.plan import load_experiment
from t3sim.overlap.t3 import ring_reduce_scatter
from t3sim.system.compilation import compile_for
from t3sim.system.explicit import ExplicitPhases
from t3sim.system.phases import MirroredPhases, PhaseStore
from t3sim.workload.tiling import make_tile_trace

run = load_experiment({str(EXPERIMENT)!r}, ["strategy=t3", f"workload.tp={{sys.argv[1]}}"]).points[0]
compile_for([run])
trace = make_tile_trace(run.workload.gemm, run.workload.tiling, run.workload.tp)
unit = 1 if sys.platform == "darwin" else 1024
costs = {{}}
for name, kind in (("mirrored", MirroredPhases), ("explicit", ExplicitPhases)):
    started, cpu = time.perf_counter(), time.process_time()
    phase = kind(run.model_copy(update={{"mode": name}}), trace, PhaseStore()).fused(ring_reduce_scatter)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    costs[name] = {{"ticks": phase.ticks, "wall_s": wall_s, "cpu_s": cpu_s, "peak": peak}}
print(json.dumps(costs))
"""


@cache
def costs_of(n_devices: int) -> dict[str, dict[str, Any]]:
    """Return what the fused T-NLG FC-2 on a ring of *n_devices* costs in both modes, in a process of its own."""
    command = [sys.executable, "-c", COSTED, str(n_devices)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    costs: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return costs


@pytest.mark.parametrize("n_devices", RINGS)
def test_time_and_memory_of_a_ring(n_devices: int) -> None:
    costs = costs_of(n_devices)
    one, ring = costs["mirrored"], costs["explicit"]
    what = f"explicit, {n_devices} GPUs"
    say(f"{what}: wall on {n_cores()} cores", f"{ring['wall_s']:8.2f} s, {ring['cpu_s']:.2f} s of CPU")
    say(f"{what}: over mirrored", f"{ring['wall_s'] / one['wall_s']:8.2f}")
    say(f"{what}: peak resident memory", f"{ring['peak'] / 2**20:8.0f} MiB")
    assert ring["ticks"] == one["ticks"]


def test_memory_grows_linearly() -> None:
    peaks = [costs_of(n)["explicit"]["peak"] for n in RINGS]
    each = [(more - less) / (b - a) for a, b, less, more in zip(RINGS, RINGS[1:], peaks, peaks[1:], strict=False)]
    say("explicit: memory for each further GPU", ", ".join(f"{one / 2**20:.0f} MiB" for one in each))
    assert each[1] < 2 * each[0] + (1 << 20)
