"""Does what the speed tests measure still run?  On t3-tiny, in every suite: speed is measured once in a while only."""

from __future__ import annotations

import ast
import json

import pytest
from numba import njit

from tests.bench import costs, units
from tests.bench.test_bench import PHASES
from tests.conftest import REPOSITORY

TINY = ("machine=t3-tiny", "tiling=gemm-64x64", "workload={gemm: {m: 256, n: 256, k: 128}, tp: 4}")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> costs.Figures:
    """What the program prints."""
    costs.main(arguments)
    figures: costs.Figures = json.loads(capsys.readouterr().out)
    return figures


def test_every_phase_that_is_measured_is_found() -> None:
    figures = costs.phases(PHASES, *TINY)
    assert list(figures) == list(PHASES)
    assert all(one["wall_s"] > 0 and one["mem_requests"] > 0 and one["quanta"] > 0 for one in figures.values())


@pytest.mark.parametrize("pattern", ["stream", "random", "mixed"])
def test_channels_serve_all_accesses(pattern: str) -> None:
    figures = costs.channels(pattern, 500, n_channels=3)
    assert figures["n_columns"] == 1500
    assert 0 < figures["share"] <= 1


def test_a_fused_run_is_checked_if_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    checked, plain = (printed(capsys, "fused", checks, *TINY) for checks in ("all", "none"))
    assert checked["n_requests"] == plain["n_requests"] > 0
    assert checked["n_checked"] > checked["n_requests"]
    assert plain["n_checked"] == 0


def test_a_ring_takes_the_same_time_in_both_modes(capsys: pytest.CaptureFixture[str]) -> None:
    figures = printed(capsys, "ring", "2", *TINY)
    assert figures["mirrored"]["ticks"] == figures["explicit"]["ticks"] > 0
    assert figures["explicit"]["peak"] >= figures["mirrored"]["peak"] > 0


def test_the_loop_is_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "compilation")["wall_s"] >= 0


def test_units_are_functions_of_the_kernel() -> None:
    folder = REPOSITORY / "t3sim" / "gpu" / "units"
    parsed = (ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py"))
    names = [node.name for module in parsed for node in module.body if isinstance(node, ast.FunctionDef)]
    assert [names.count(name) for name in units.UNITS] == [1] * len(units.UNITS)


def test_cycles_of_a_unit_are_without_those_of_the_unit_that_it_calls() -> None:
    decorate = units.counting(njit)

    def load_line(n: int) -> int:
        x = n
        for _ in range(n):
            x = (x * 69069 + 1) % 1000003  # cannot be known before
        return x

    inner = decorate(load_line)

    def advance_workgroups(n: int) -> int:
        return inner(n) + inner(n)  # type: ignore[no-any-return]

    outer = decorate(advance_workgroups)
    outer(1)  # compiles
    units.COUNTS[:] = 0
    outer(100_000)
    (calls, own), (inner_calls, inner_cycles) = (
        units.COUNTS[list(units.UNITS).index(name)] for name in ("advance_workgroups", "load_line")
    )
    assert (calls, inner_calls) == (1, 2)
    assert 0 < own < inner_cycles / 10
