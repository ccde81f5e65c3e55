"""What it costs to simulate every GPU of a ring: time and memory against their number and against mirrored mode."""

from __future__ import annotations

from functools import cache

import pytest

from t3sim.system.threads import n_cores
from tests.bench.costs import Figures
from tests.bench.test_bench import figures_of, say

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

RINGS = (2, 4, 8)


@cache
def costs_of(n_gpus: int) -> dict[str, Figures]:
    """Return what the fused T-NLG FC-2 on a ring of *n_gpus* costs in both modes, in a process of its own."""
    return figures_of("ring", str(n_gpus))


@pytest.mark.parametrize("n_gpus", RINGS)
def test_time_and_memory_of_a_ring(n_gpus: int) -> None:
    costs = costs_of(n_gpus)
    one, ring = costs["mirrored"], costs["explicit"]
    what = f"explicit, {n_gpus} GPUs"
    say(f"{what}: wall on {n_cores()} cores", f"{ring['wall_s']:8.2f} s, {ring['cpu_s']:.2f} s of CPU")
    say(f"{what}: over mirrored", f"{ring['wall_s'] / one['wall_s']:8.2f}")
    say(f"{what}: peak resident memory", f"{ring['peak'] / 2**20:8.0f} MiB")
    assert ring["ticks"] == one["ticks"]


def test_memory_of_each_further_gpu() -> None:
    peaks = [costs_of(n)["explicit"]["peak"] for n in RINGS]
    each = [(more - less) / (b - a) for a, b, less, more in zip(RINGS, RINGS[1:], peaks, peaks[1:], strict=False)]
    say("explicit: memory for each further GPU", ", ".join(f"{one / 2**20:.0f} MiB" for one in each))
    assert max(each) < 15 << 20  # the first ring loads what all share: the second step alone says little
