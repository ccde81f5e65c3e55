"""Streams in the background keep a GPU busy for the others: when is a program with them over, and what is cut off?"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Literal

import pytest

from t3lab.validation.simulations.concurrent import MemoryContention
from t3sim.checks.audit import Audit
from t3sim.checks.invariants import broken
from t3sim.config.presets import load_tiling
from t3sim.errors import ModelError
from t3sim.gpu.units import _kept
from t3sim.program.operations import Program
from t3sim.program.operator import Operator
from t3sim.program.plan import Part
from t3sim.program.side_by_side import side_by_side_part
from t3sim.strategies.interface import Phase
from t3sim.system.machine import MirroredMachine, check_drained
from t3sim.system.parts import MirroredParts, PhaseStore
from tests.conftest import cases
from tests.kernel.small import machine, mirrored, trace_of

from .conftest import base_run

SPEC = machine()


@cache
def program(*background: int) -> Program:
    """Return one GEMM in stream 0 and eight reduce-scatters, which take far longer, in stream 1."""
    part = side_by_side_part(Operator(SPEC, 2, trace_of(128, 128, n_chunks=1)), "reduce-scatter", 1, 8)
    assert part.programs[0].background == (1,)
    return replace(part.programs[0], background=background)


def run(given: Program, quantum_ps: int | None = None) -> MirroredMachine:
    one = mirrored(SPEC, given, quantum_ps=quantum_ps)
    one.run()
    return one


def phase_of(given: Program, audit: Audit | None = None) -> Phase:
    run = base_run("t3-tiny").model_copy(update={"machine": SPEC})
    return MirroredParts(run, PhaseStore(), audit).phase(Part.alike("x", "x", given))


def ran(phase: Phase) -> set[tuple[str, int, int]]:
    """What has run to its end, and when."""
    return {(span.name, span.start, span.end) for span in phase.spans}


def test_it_is_over_when_all_other_streams_are() -> None:
    cut, whole = phase_of(program(1)), phase_of(program())
    gemm = next(span for span in whole.spans if span.kind == "gemm")
    core = run(program(1)).core
    assert gemm.end <= cut.ticks <= gemm.end + core.slot_ticks + int(core.gpu.memory_ticks)
    assert whole.ticks > 2 * cut.ticks
    assert ran(cut) < ran(whole)
    assert (gemm.name, gemm.start, gemm.end) in ran(cut)


def test_the_long_stream_may_be_awaited_and_the_short_one_in_the_background() -> None:
    """Then nothing of it is left."""
    cut, whole = phase_of(program(0)), phase_of(program())
    assert cut.spans == whole.spans


@pytest.mark.parametrize("quantum_ps", [40_000, 100_000, 333_000])
def test_where_it_is_cut_does_not_depend_on_the_quantum(quantum_ps: int) -> None:
    expected, found = (run(program(1), quantum).core for quantum in (None, quantum_ps))
    assert found.now == expected.now
    assert int(found.gpu.channels["n_requests"].sum()) == int(expected.gpu.channels["n_requests"].sum())


def test_what_is_cut_off_is_no_error_and_all_else_is_checked() -> None:
    """Work is left inside; every claim that can be made of a running machine holds, and so do its waits."""
    core = run(program(1)).core
    with pytest.raises(ModelError, match="work left"):
        check_drained(core, "gpu[0]")
    assert not broken(core)
    audit = Audit(has_checks=True)
    phase = phase_of(program(1), audit)
    assert audit.n_commands > 0
    of_unit: dict[str, int] = {}
    for wait in phase.waits:
        of_unit[wait.unit] = of_unit.get(wait.unit, 0) + wait.ticks
    assert of_unit.get("compute unit", 0) == (SPEC.gpu.n_compute_units * phase.ticks if _kept.IS_COUNTING else 0)


@pytest.mark.parametrize("beside", cases(["read", "write", "copy"], "write"))
def test_accounts_of_what_streams_in_the_background_add_up(beside: Literal["read", "write", "copy"]) -> None:
    """Units that are busy when they are cut off, and a memory that holds writes back: each has a whole account."""
    tiling = load_tiling("gemm-128x256")
    given = MemoryContention(base_run("h200").machine, tiling, "read", 1, 1 << 20, beside, n_beside=40)
    [phase] = given.result(PhaseStore())  # whose claims are checked
    assert [span.name for span in phase.spans] == ["probe"]
