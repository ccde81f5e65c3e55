"""`wave-groups` and `te-pipelined-rs`: rings of parts of a GEMM's output, each when its part is made."""

from __future__ import annotations

import numpy as np
import pytest

from t3sim.config.experiment import RunSpec
from t3sim.errors import ConfigError, UsageError
from t3sim.program.operations import Gemm, Moves
from t3sim.program.verify import problems_of
from t3sim.strategies import OverlapStrategy, overlap_strategies, te_pipelined
from t3sim.strategies.wave_groups import wave_groups_program
from t3sim.system.simulate import simulate
from t3sim.workload.tiling import TileTrace
from tests.harness.sublayers import point
from tests.program.spoil import changed, orderings, posts
from tests.program.strategies import operator

PARAMS = {
    "wave-groups": {"waves": 1, "communication_units": 1},
    "te-pipelined-rs": {"splits": 2, "communication_units": 1},
}


def of(name: str, *overrides: str, tp: int = 4, shape: tuple[int, int] = (128, 128)) -> RunSpec:
    given = [f"strategy.{key}={value}" for key, value in PARAMS[name].items()]
    return point(name, *given, *overrides, shape=(shape[0] * tp, shape[1], 72), tp=tp)


def strategy(name: str) -> OverlapStrategy:
    return overlap_strategies.get(name)


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("n", [2, 3, 5])
def test_each_ordering_is_needed(name: str, n: int) -> None:
    good = strategy(name)(operator(n), PARAMS[name]).parts()[0].programs
    assert problems_of(good) == []
    for what, of_operation, change in orderings(good[0]):
        assert {one.check for one in problems_of(changed(good, of_operation, change))} == {"races"}, what
    for what, of_operation, change in posts(good[0]):
        assert {one.check for one in problems_of(changed(good, of_operation, change))} == {"waits"}, what


@pytest.mark.parametrize("name", PARAMS)
def test_reduce_scatters_run_beside_the_gemm(name: str) -> None:
    spans = simulate(of(name, shape=(256, 256))).phase("fused").spans
    last_of_gemms = max(span.end for span in spans if span.kind == "gemm")
    rings = sorted((span for span in spans if span.kind == "moves"), key=lambda span: span.start)
    assert rings[0].start < last_of_gemms < rings[-1].end
    for one, other in zip(rings, rings[1:], strict=False):  # noqa: RUF007 - as many as there are
        assert other.start >= one.end


def test_groups_have_whole_waves_and_tiles_of_every_rank() -> None:
    op = operator(4, tile_rows=3)
    program = wave_groups_program(op, 0, 1, 1)
    [gemm] = [one for one in program.operations if isinstance(one, Gemm)]
    rings = [one for one in program.operations if isinstance(one, Moves)]
    n_units = op.machine.gpu.n_compute_units - 1
    assert gemm.units == (0, n_units)
    assert {one.units for one in rings} == {(n_units, n_units + 1)}
    group = gemm.stores.signal[gemm.order]
    assert (np.diff(group) >= 0).all(), "group after group"
    for signal in np.unique(group):
        counts = np.bincount(gemm.trace.workgroups["chunk"][gemm.stores.signal == signal], minlength=4)
        assert (counts == counts[0]).all()
        assert counts.sum() >= n_units or signal == group[-1]


def test_splits_have_the_kernel_of_their_shape_and_units(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def tiles_of(self: object, **given: int) -> TileTrace:
        asked.append(given)
        return whole(self, **given)

    op = operator(4)
    whole = type(op).tiles_of
    monkeypatch.setattr(type(op), "tiles_of", tiles_of)
    te_pipelined.te_pipelined_program(op, 0, 2, 1)
    assert asked == [{"columns": 64, "n_chunks": 4, "n_compute_units": op.machine.gpu.n_compute_units - 1}]


def test_the_last_reduce_scatter_has_twice_the_units() -> None:
    program = te_pipelined.te_pipelined_program(operator(4), 0, 2, 1)
    n = operator(4).machine.gpu.n_compute_units
    assert [one.units for one in program.operations if isinstance(one, Moves)] == [(n - 1, n), (n - 2, n)]


def test_refusals() -> None:
    with pytest.raises(UsageError, match=r"strategy\.splits: is 3, which does not divide the 128 columns; 2 does"):
        te_pipelined.te_pipelined(operator(4), {"splits": 3, "communication_units": 1})
    with pytest.raises(UsageError, match="is 4, which does not divide the 1 columns; 1 does"):
        te_pipelined.te_pipelined(operator(4, columns=1), {"splits": 4, "communication_units": 1})
    for name in PARAMS:
        with pytest.raises(ConfigError, match=r"communication_units: is 4, must be below `machine\.gpu\.n_compute_u"):
            of(name, "strategy.communication_units=4")
        assert simulate(of(name, shape=(96, 94), tp=3)).total > 0, "tiles of two ranks, that fill no lines"
