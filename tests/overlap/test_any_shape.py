"""Every strategy at every shape: fewer rows than GPUs, ragged tiles, tiles of several owners, lines that are not full.

Programs are verified on paper, and run with all checks and real values, mirrored; some in explicit mode too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from t3sim.checks.audit import Audit
from t3sim.config.experiment import GemmShape
from t3sim.errors import ConfigError, UsageError
from t3sim.program.operations import Gemm
from t3sim.program.verify import check_plan
from t3sim.system.simulate import operator_of, plan_for, simulate
from t3sim.workload.tiling import cut_at_owners, make_tile_trace, wavefront_parts
from tests.harness.sublayers import point
from tests.program.strategies import TILING

MACHINE = (
    "machine.link.topology=switch",
    "machine.link.ingress_buffer=16 KiB",
    "machine.gpu.copy_engines={number: 1, startup: 1 us, bandwidth: 60 GB/s, max_outstanding_lines: 128}",
)
# Of each strategy: the operator, and values of parameters that small machines have room for.
STRATEGIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "sequential": ("gemm-rs", ()),
    "flux-push": ("gemm-rs", ()),
    "flux-pull": ("gemm-rs", ("strategy.communication_units=1",)),
    "copy-engine-scatter": ("gemm-rs", ("strategy.order=by_chunk", "strategy.local_rows=copied")),
    "async-tp": ("gemm-rs", ()),
    "te-p2p-rs": ("gemm-rs", ()),
    "te-pipelined-rs": ("gemm-rs", ("strategy.splits=1", "strategy.communication_units=1")),
    "wave-groups": ("gemm-rs", ("strategy.communication_units=1",)),
    "sm-specialised": ("gemm-rs", ("strategy.communication_units=1",)),
    "distfuse": ("gemm-ar", ("strategy.communication_units=1",)),
    "flux-ag": ("ag-gemm", ()),
    "async-tp-ag": ("ag-gemm", ()),
    "te-ring-ag": ("ag-gemm", ()),
}
SHAPES = st.tuples(
    st.one_of(st.integers(1, 9), st.integers(10, 300)), st.one_of(st.integers(1, 9), st.integers(10, 200)),
    st.integers(1, 130),
)  # fmt: skip


def run_of(name: str, shape: tuple[int, int, int], tp: int, *overrides: str) -> Any:
    operator, params = STRATEGIES[name]
    return point(name, *MACHINE, *params, f"workload.operator={operator}", *overrides, shape=shape, tp=tp)


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=4, deadline=None, derandomize=True, phases=[Phase.generate])
@given(shape=SHAPES, tp=st.sampled_from([2, 3, 4, 8]))
def test_programs_are_right_at_any_shape(name: str, shape: tuple[int, int, int], tp: int) -> None:
    run = run_of(name, shape, tp)
    check_plan(plan_for(run, operator_of(run)))


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(
    ("shape", "tp", "output"),
    [((1, 3, 5), 4, "fp16"), ((200, 100, 72), 4, "fp8"), ((333, 65, 33), 3, "fp32"), ((64, 130, 64), 8, "fp16")],
)
def test_real_values_are_right(name: str, shape: tuple[int, int, int], tp: int, output: str) -> None:
    audit = Audit(has_checks=True, has_data=True)
    assert simulate(run_of(name, shape, tp, f"workload.gemm.output={output}"), audit=audit).total > 0
    assert audit.n_values > 0


@pytest.mark.parametrize(("output", "rows"), [("mxfp8", 33 * 8), ("fp8", 256), ("fp32", 256), ("nvfp4", 9 * 32)])
def test_outputs_are_stored_with_their_scales(output: str, rows: int) -> None:
    """Bytes of a GEMM that the memory has written, by hand: rows of 256 elements, and of the scales of their blocks."""
    tiling = "tiling={preset: gemm-64x64, workgroup_tile: [64, 128], wavefront_tile: [64, 64]}"
    run = run_of("sequential", (256, 256, 72), 4, tiling, f"workload.gemm.output={output}", "workload.operator=ag-gemm")
    audit = Audit(has_checks=True)
    phases = simulate(run, audit=audit).sublayers[0].by_role
    bits = {"mxfp8": 8, "fp8": 8, "fp32": 32, "nvfp4": 4}[output]
    assert phases["gemm"].counters["output_write_bytes"] == rows * 256 * bits // 8


def test_scales_of_blocks_are_not_carried() -> None:
    run = run_of("flux-ag", (256, 256, 72), 4, "workload.gemm.output=mxfp8")
    with pytest.raises(UsageError, match="without scales of blocks"):
        simulate(run, audit=Audit(has_data=True))


@pytest.mark.parametrize(("order", "tp"), [("naive", 4), ("naive", 3)])
@pytest.mark.parametrize("name", ["flux-push", "flux-ag"])
def test_ranks_that_begin_with_row_0_are_right_too(name: str, order: str, tp: int) -> None:
    audit = Audit(has_checks=True, has_data=True)
    run = run_of(name, (200, 70, 40), tp, f"strategy.order={order}", "mode=explicit")
    assert simulate(run, audit=audit).total > 0
    assert audit.n_values > 0


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 90), owners=st.integers(1, 9), columns=st.integers(1, 200))
def test_owners_have_like_parts_that_are_of_one_tile_each(rows: int, owners: int, columns: int) -> None:
    trace = make_tile_trace(GemmShape(m=rows * owners, n=columns, k=64), TILING, 1)
    parts = cut_at_owners(trace, owners)
    cover = np.zeros((rows * owners, columns), np.int64)
    for part, maker in zip(parts.workgroups, trace.makers(parts), strict=True):
        top, left, n_rows, n_columns = (int(part[name]) for name in ("row", "column", "n_rows", "n_columns"))
        cover[top : top + n_rows, left : left + n_columns] += 1
        tile = trace.workgroups[maker]
        assert tile["row"] <= top
        assert top + n_rows <= tile["row"] + tile["n_rows"]
        assert top // rows == (top + n_rows - 1) // rows == part["chunk"]
    assert (cover == 1).all()
    shapes = parts.workgroups[["n_rows", "n_columns"]].reshape(owners, -1)
    assert (shapes == shapes[0]).all()
    wavefronts = wavefront_parts(trace, parts)
    assert (wavefronts["n_rows"] * wavefronts["n_columns"]).sum() == cover.size


def test_a_tile_of_two_owners_goes_to_both() -> None:
    run = run_of("flux-push", (96, 64, 64), 4)  # 24 rows each, in tiles of 64
    fused = plan_for(run, operator_of(run)).parts()[0].programs[0]
    gemm = next(one for one in fused.operations if isinstance(one, Gemm))
    assert gemm.trace.n_workgroups == 2
    assert [sorted(set(gemm.stores.distance[gemm.makers == w].tolist())) for w in range(2)] == [[1, 2, 3], [0, 3]]
    assert gemm.stored.workgroups["n_rows"][gemm.stores.distance == 3].tolist() == [16, 8]


def test_t3_needs_a_tile_in_each_stage() -> None:
    with pytest.raises(ConfigError, match=r"workload\.tp: is 8, but the output has 1 workgroup tiles"):
        point("t3", shape=(64, 64, 64), tp=8)


def test_a_gemm_without_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"workload\.gemm\.m: found `0`, must be above 0"):
        point("flux-push", *MACHINE, shape=(0, 64, 64), tp=8)
