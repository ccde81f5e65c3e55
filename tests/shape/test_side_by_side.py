"""A collective beside a GEMM on four compute units: which of them it gets, and when."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from t3sim.config.experiment import GemmShape
from t3sim.config.presets import load_tiling
from t3sim.gpu.units import codes
from t3sim.program.operator import Operator
from t3sim.program.side_by_side import ROUNDS, kernels_for, side_by_side_part
from t3sim.strategies.interface import Span
from t3sim.system.spans import spans_of
from t3sim.workload.tiling import make_tile_trace
from tests.kernel.small import mirrored

from .conftest import base_run

# 18 tiles: four rounds on four compute units, and two tiles more, so that two of the units have nothing to do at last.
SHAPE = GemmShape(m=192, n=384, k=1024)


class Run(NamedTuple):
    tiles: Any  # the workgroup table: start_at, end_at, cu of each tile, kernel after kernel
    started_at: int  # first tick at which the collective did something
    collective_slots: np.ndarray  # slots of each compute unit that went to the collective
    spans: tuple[Span, ...]
    slot: int  # ticks
    startup: int  # ticks


@cache
def together(*, persistent: bool, n_workgroups: int, startup_us: int = 0, n_gemms: int = 2) -> Run:
    """Two GEMMs in turn, and one reduce-scatter of *n_workgroups* channels from the start."""
    run = base_run("t3-tiny")
    kernel = {"kind": "channels", "channels": n_workgroups, "slices": 1, "launch": startup_us * 10**6}
    gpu = run.machine.gpu
    gpu = gpu.model_copy(update={"collective_kernel": gpu.collective_kernel.model_copy(update=kernel)})
    tiling = load_tiling("gemm-64x64").model_copy(update={"persistent": persistent})
    spec = run.machine.model_copy(update={"gpu": gpu})
    op = Operator(spec, 2, make_tile_trace(SHAPE, tiling, 2))
    # The reduce-scatter is of another array: of two chunks.
    part = side_by_side_part(op, "reduce-scatter", n_gemms, 1)
    machine = mirrored(spec, replace(part.programs[0], background=()))  # to the end of both
    machine.run()
    core = machine.core
    slots = np.array(core.gpu.compute_units["state_slots"][:4, codes.COLLECTIVE_WORK])
    starts = core.tables.steps["start_at"]
    startup = int(core.moves[0].startup_ticks)
    first = int(starts[starts >= 0].min())
    return Run(np.array(core.tables.workgroups), first, slots, tuple(spans_of(core)), core.slot_ticks, startup)


def kernel_of(run: Run, number: int) -> Any:
    """The tiles of one of the two GEMMs."""
    return run.tiles.reshape(2, -1)[number]


def test_a_persistent_gemm_keeps_its_compute_units_until_its_last_tile_is_dispatched() -> None:
    """Does the collective wait until the first GEMM has no tile left, and no longer?"""
    run = together(persistent=True, n_workgroups=2, startup_us=5)
    first = kernel_of(run, 0)
    last_dispatch = int(first["start_at"].max())
    assert run.started_at > last_dispatch
    assert run.started_at < int(first["end_at"].max()) < int(kernel_of(run, 1)["start_at"].min())


def test_a_span_says_how_long_a_collective_waited_for_a_compute_unit() -> None:
    """From its launch until it starts up, in the last tiles of the first GEMM, which waits for nothing itself."""
    run = together(persistent=True, n_workgroups=2, startup_us=5)
    gemm, *_, collective = sorted(run.spans, key=lambda span: (span.kind, span.start))
    assert (gemm.kind, gemm.waited, collective.kind) == ("gemm", 0, "moves")
    began = collective.start + collective.waited
    assert collective.waited > 0
    assert 0 <= run.started_at - (began + run.startup) < run.slot


def test_the_first_compute_unit_that_is_free_is_taken() -> None:
    """The last two of 18 tiles leave two of four units idle: the collective runs there, not on the first ones."""
    run = together(persistent=True, n_workgroups=2, startup_us=5)
    first = kernel_of(run, 0)
    late = set(first["cu"][np.argsort(first["start_at"])[-2:]].tolist())
    assert not late & set(np.flatnonzero(run.collective_slots).tolist())


def test_the_longer_one_runs_the_more_often_the_closer_they_are() -> None:
    """And the other one so often that it goes on until the end: they took up to 2.95 times as long on H200s."""
    assert kernels_for(100, 100) == (4, 12)
    assert kernels_for(100, 151) == (14, 3)
    assert kernels_for(1000, 100) == (1, 30)
    for gemm, collective in ((100, 100), (100, 350), (900, 140), (10, 990)):
        n_gemms, n_collectives = kernels_for(gemm, collective)
        longer = max(gemm, collective)
        rounds, company = (n_gemms, n_collectives) if gemm == longer else (n_collectives, n_gemms)
        assert rounds in ROUNDS.values()
        assert company * min(gemm, collective) >= 2.95 * rounds * longer
