"""T3 without a ring, multimem kernels, a collective engine: what each stores, counts and sends, in both modes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t3sim.config.experiment import GemmShape
from t3sim.gpu.table_builder import tables_of
from t3sim.gpu.ticks import TickBase
from t3sim.gpu.tracking import spacing_of
from t3sim.program.exchange import exchange_program
from t3sim.program.operations import UPDATE, Gemm, Moves, Program
from t3sim.program.operator import Operator
from t3sim.program.verify import problems_of
from t3sim.results.writer import read_results
from t3sim.strategies.multimem import multimem_program
from t3sim.strategies.multimem_ag import multimem_ag_program
from t3sim.strategies.t3_direct import TRIGGERED, direct_program
from t3sim.strategies.t3_nvls import nvls_program
from t3sim.strategies.te_pipelined import te_pipelined_program
from tests.harness.here import t3sim_here
from tests.program.strategies import operator, operator_of
from tests.smoke.command_line import rows_of, simulated

FORMS = {
    "direct": direct_program,
    "direct, triggered all-gather": partial(direct_program, all_gather=TRIGGERED, blocks=3),
    "nvls reduce-scatter": partial(nvls_program, blocks=3, is_gathered=False),
    "nvls all-reduce": partial(nvls_program, blocks=3, is_gathered=True),
    "multimem reduce-scatter": partial(multimem_program, units=1, is_gathered=False),
    "multimem all-reduce": partial(multimem_program, units=0, is_gathered=True),
    "multimem all-gather": partial(multimem_ag_program, chunks=0, units=1),
    "exchange, direct": partial(exchange_program, blocks=None),
    "exchange, triggered": partial(exchange_program, blocks=3),
    "engine": partial(te_pipelined_program, splits=2, units=0),
}
OF_ROWS = [name for name in FORMS if name.startswith("multimem")]  # owners own rows, and may share tiles
MULTICAST = ", multicast: {reduction_bandwidth: 150 GB/s, table: 16 KiB}"
EXPERIMENT = f"""
name: beyond
machine: {{preset: t3-tiny, link: {{topology: switch, ingress_buffer: 512 KiB{MULTICAST}}}}}
workload: {{gemm: {{m: 1024, n: 256, k: 128}}, tp: 4, operator: OPERATOR}}
tiling: gemm-64x64
strategy: STRATEGY
sweep: {{grid: {{mode: [mirrored, explicit]}}}}
"""
CASES = [
    ("gemm-rs", "t3-direct"), ("gemm-ar", "{name: t3-direct, all_gather: triggered}"), ("gemm-rs", "t3-nvls"),
    ("gemm-ar", "t3-nvls"), ("gemm-rs", "multimem-rs"), ("gemm-ar", "{name: multimem-ar, communication_units: 1}"),
    ("ag-gemm", "{name: multimem-ag, communication_units: 1}"), ("gemm-rs", "{name: ace, splits: 2}"),
    ("gemm-a2a", "sequential"), ("gemm-a2a", "t3"), ("gemm-a2a", "t3-direct"),
]  # fmt: skip


def programs(name: str, op: Operator) -> list[Program]:
    op = replace(op, kind="ag-gemm") if name.endswith("all-gather") and name in OF_ROWS else op
    return [FORMS[name](op, rank) for rank in range(op.n)]


def gemm_of(program: Program) -> Gemm:
    (found,) = (one for one in program.operations if isinstance(one, Gemm))
    return found


def text_of(operator: str, strategy: str) -> str:
    return EXPERIMENT.replace("OPERATOR", operator).replace("STRATEGY", strategy)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_programs_are_sound(name: str, n: int) -> None:
    for staggered in (True, False):
        assert problems_of(programs(name, operator(n, staggered=staggered))) == []


@pytest.mark.parametrize("name", OF_ROWS)
def test_owners_may_share_tiles(name: str) -> None:
    for staggered in (True, False):
        op = operator_of(GemmShape(m=72, n=320, k=64), 3, staggered=staggered)
        assert op.parts is not None
        assert problems_of(programs(name, op)) == []


@pytest.mark.parametrize(
    "name", [name for name in FORMS if name not in ("direct", "engine", "multimem all-gather", "exchange, direct")]
)
def test_commands_that_wait_for_nothing_are_a_race(name: str) -> None:
    spoilt = programs(name, operator(3))
    for one in (one for program in spoilt for one in program.operations):
        if isinstance(one, Moves):
            one.steps["wait_signal"] = -1
    assert {problem.check for problem in problems_of(spoilt)} <= {"races", "sums"}
    assert problems_of(spoilt)


@pytest.mark.parametrize(("due", "check"), [(1, "waits"), (3, "waits")])
def test_a_tracker_that_counts_too_few_or_too_many_is_found(due: int, check: str) -> None:
    op = operator(2)
    spoilt = programs("direct", op)
    for program in spoilt:
        gemm_of(program).stores.updates[op.chunk(1).start :] = due
    assert {problem.check for problem in problems_of(spoilt)} == {check}


def test_each_stage_has_tiles_of_every_owner() -> None:
    """The next rank's first; own tiles are complete with one update of each rank, others go to their owner."""
    op = operator(4)
    kernel = gemm_of(direct_program(op, 0))
    position = op.tiles.workgroups["chunk"]
    assert position[kernel.order].reshape(-1, op.n).tolist() == [list(range(op.n))] * len(op.chunk(0))
    assert (kernel.stores.kind == UPDATE).all()
    assert (kernel.stores.distance == (position + 1) % op.n).all()
    assert (kernel.stores.updates == np.where(position == op.n - 1, op.n, 0)).all()


def test_own_tiles_of_the_direct_order_use_every_set_of_the_tracker() -> None:
    """Where one workgroup in four is counted, consecutive ones of these have consecutive sets."""
    op = operator(4, tile_rows=8)
    found = tables_of(direct_program(op, 0), op.machine, TickBase.of(op.machine), 0)
    n_sets, own = op.machine.gpu.tracker.n_sets, op.chunk(3)
    per_tile = len(found.tiles) // op.tiles.n_workgroups
    sets = found.tiles["tracker_set"][own.start * per_tile : own.stop * per_tile : per_tile]
    assert len(own) == n_sets
    assert sorted(sets.tolist()) == list(range(n_sets))


def test_units_of_a_multicast_all_gather_share_each_chunk() -> None:
    """The first chunk is sent by all units before the second one, so the GEMM can begin; it waits for all shares."""
    op = replace(operator(4, tile_rows=8), kind="ag-gemm")
    program = multimem_ag_program(op, 0, chunks=2, units=2)
    gather = next(one for one in program.operations if isinstance(one, Moves) and one.steps["is_multicast"].any())
    steps = gather.steps[(gather.steps["is_multicast"] > 0).any(axis=1)]
    assert steps.shape == (2, 2)  # chunks, units
    first, n = steps["operand"], steps["n_granules"]
    assert (first[0].max() < first[1].min()) & (n > 0).all()
    assert (first[:, 0] + n[:, 0] == first[:, 1]).all()
    waits = gemm_of(program).waits
    assert waits is not None
    assert set(waits.at_least.tolist()) == {2}


def test_spacing_of_what_is_counted() -> None:
    assert [spacing_of(np.array(places)) for places in ([3, 7, 11], [0, 1, 2], [0, 1, 5], [4], [])] == [4, 1, 1, 1, 1]


@pytest.mark.parametrize(("operator", "strategy"), CASES)
def test_values_and_times_in_both_modes(operator: str, strategy: str, tmp_path: Path) -> None:
    text = text_of(operator, strategy).replace("m: 1024, n: 256", "m: 256, n: 128")
    one, all_of_them = read_results(simulated(text, tmp_path, "--check", "--data") / "results.csv")
    assert one.time_us == all_of_them.time_us > 0


@pytest.mark.parametrize(
    ("operator", "strategy", "due"),
    [
        # Chunks of 128 KiB on four GPUs: what the fused part writes for the GEMM, reads and writes for the collective.
        ("gemm-rs", "t3-direct", (1, 0, 3)),
        ("gemm-ar", "{name: t3-direct, all_gather: triggered}", (1, 3, 6)),
        ("gemm-rs", "t3-nvls", (4, 4, 1)),
        ("gemm-ar", "t3-nvls", (4, 4, 4)),
        ("gemm-a2a", "t3", (4, 3, 3)),
        ("gemm-a2a", "t3-direct", (1, 0, 3)),
    ],
)
def test_traffic_in_chunks(operator: str, strategy: str, due: tuple[int, int, int], tmp_path: Path) -> None:
    row = rows_of(simulated(text_of(operator, strategy), tmp_path, "-s", "mode=mirrored"))[0]
    names = ("dram_gemm_write_bytes", "dram_rs_read_bytes", "dram_rs_write_bytes")
    counted = [int(row[name]) / (128 << 10) for name in names]
    assert counted == pytest.approx(due, abs=0.05)  # flags


@pytest.mark.parametrize(
    ("operator", "strategy", "change", "key"),
    [
        ("gemm-rs", "t3-nvls", (MULTICAST, ""), "machine.link.multicast"),
        ("gemm-ar", "t3-nvls", (f"topology: switch, ingress_buffer: 512 KiB{MULTICAST}", "topology: ring"),
         "machine.link.multicast"),
        ("gemm-rs", "t3-direct", (f"topology: switch, ingress_buffer: 512 KiB{MULTICAST}", "topology: ring"),
         "machine.link.topology"),
        ("gemm-a2a", "t3", (f"topology: switch, ingress_buffer: 512 KiB{MULTICAST}", "topology: ring"),
         "machine.link.topology"),
        ("gemm-a2a", "flux-push", ("", ""), "flux-push"),
        ("gemm-rs", "t3-direct", ("m: 1024, n: 256", "m: 1088, n: 192"), "workload"),
        ("gemm-a2a", "t3-direct", ("m: 1024", "m: 868"), "workload"),  # as many tiles, of other sizes
        ("ag-gemm", "t3-direct", ("", ""), "t3-direct"),
        ("gemm-rs", "multimem-rs", (MULTICAST, ""), "machine.link.multicast"),
        ("gemm-ar", "multimem-ar", (MULTICAST, ""), "machine.link.multicast"),
        ("ag-gemm", "{name: multimem-ag, communication_units: 1}", (MULTICAST, ""), "machine.link.multicast"),
        ("gemm-rs", "{name: ace, splits: 3}", ("", ""), "strategy.splits"),
    ],
)  # fmt: skip
def test_what_a_fabric_or_shape_cannot_carry_is_refused(
    operator: str, strategy: str, change: tuple[str, str], key: str, tmp_path: Path
) -> None:
    text = text_of(operator, strategy)
    assert change[0] in text
    experiment = tmp_path / "experiment.yaml"
    experiment.write_text(text.replace(*change), encoding="utf-8")
    done = t3sim_here("run", experiment, "-o", tmp_path / "results", cwd=tmp_path)
    assert done.returncode == 2
    assert key in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("change", "word"),
    [({"units": (0, 1)}, "engine"), ({"flags": (2, 1)}, "engine"), ({"engine": 0}, "operand")],
)
def test_what_an_engine_cannot_do_is_named(change: dict[str, Any], word: str) -> None:
    spoilt = programs("nvls reduce-scatter", operator(2))
    for i, program in enumerate(spoilt):
        operations = [replace(one, **change) if one.name == "reduce" else one for one in program.operations]
        spoilt[i] = replace(program, operations=tuple(operations))
    (found, *_) = problems_of(spoilt)
    assert found.check == "form"
    assert word in found.message
