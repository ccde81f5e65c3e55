"""Which GPU does a thread advance next?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from threading import get_ident

import pytest

from t3sim.gpu.core import GpuCore
from tests.kernel.small import at_once, explicit, fused_of, machine, trace_of

N_GPUS = 8


@pytest.mark.parametrize(("n_threads", "least"), [(1, 0.9 * N_GPUS), (2, 2.0)])
def test_a_thread_stays_with_a_gpu(n_threads: int, least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of GPUs costs half a window: a single thread goes on for about as many windows as there are GPUs."""
    advanced: dict[int, list[GpuCore]] = defaultdict(list)  # by thread
    advance = GpuCore.advance

    def noted(core: GpuCore, until: int) -> bool:
        advanced[get_ident()].append(core)
        return advance(core, until)

    monkeypatch.setattr(GpuCore, "advance", noted)
    spec = machine()
    one = at_once(fused_of(spec, trace_of(1024, 512, n_chunks=N_GPUS)))
    explicit(spec, *(replace(one, rank=rank) for rank in range(N_GPUS)), n_threads=n_threads).run()
    n_windows = sum(map(len, advanced.values()))
    n_changes = sum(before is not after for cores in advanced.values() for before, after in pairwise(cores))
    assert n_windows > 20 * N_GPUS
    assert n_windows / n_changes > least
