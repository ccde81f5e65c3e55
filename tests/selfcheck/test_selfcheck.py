"""Does `t3sim selfcheck` show what it says, and would each of its lines turn red?"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from t3sim.checks.data import CarriedProgram
from t3sim.checks.dram import checker
from t3sim.cli import main
from t3sim.gpu.core import GpuCore
from t3sim.gpu.units import codes
from t3sim.selfcheck import known, properties
from t3sim.selfcheck.known import known_runs
from t3sim.selfcheck.preset_cases import digests_of
from t3sim.selfcheck.properties import KNOWN_RESULTS, PROPERTIES, Depth, random_case
from t3sim.system.liveness import Liveness
from t3sim.system.ring import RingMachine
from tests import conftest

SMALL_MACHINES = (49, 17)  # seeds: stores that go to a neighbour, in T3 and in Flux
SHORT = Depth(
    audited_runs=4,
    dram_commands=100_000,
    data_cases=4,
    machines=SMALL_MACHINES,
    same_results=2,
    interpreted=("t3-tiny",),
)


@cache
def results() -> dict[str, str]:
    """Return the known results as this machine has them."""
    return {name: run() for name, run in known_runs()}


def test_the_command_shows_a_line_for_each_property(monkeypatch: pytest.MonkeyPatch) -> None:
    if not conftest.DEEP:  # of which the command takes 20 s
        monkeypatch.setattr(properties, "Depth", lambda: SHORT)
        found = results()
        monkeypatch.setattr(properties, "known_runs", lambda: ((name, partial(found.get, name)) for name in found))
    done = CliRunner().invoke(main, ["selfcheck"])
    assert (done.exit_code, done.stderr) == (0, "")
    lines = [line for line in done.stdout.splitlines() if not line.startswith("compiling")]
    assert [line[:24].split(maxsplit=1) for line in lines] == [["ok", name.ljust(16)] for name in PROPERTIES]
    assert max(map(len, lines)) < 170


def test_an_unknown_property_is_refused_with_the_known_ones() -> None:
    result = CliRunner().invoke(main, ["selfcheck", "--only", "hang"])
    assert result.exit_code == 2
    assert "unknown property `hang`; did you mean `hangs`?" in result.stderr


def test_results_are_those_that_are_shipped(update_golden: bool) -> None:
    """`--update-golden` writes them anew; say in the change what moved them."""
    now = results()
    if update_golden:
        KNOWN_RESULTS.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
    assert json.loads(KNOWN_RESULTS.read_text(encoding="utf-8")) == now


def lose_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is noted of the DRAM's commands lacks one."""
    take = CarriedProgram.take_commands
    monkeypatch.setattr(CarriedProgram, "take_commands", lambda self, n, commands: take(self, n, commands[1:]))


def shift_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second column command of a batch comes a cycle after the first."""
    take = checker.DramChecker.take

    def early(self: checker.DramChecker, commands: Any) -> None:
        moved = commands.copy()
        same = np.flatnonzero((moved["channel"] == moved["channel"][0]) & (moved["command"] == codes.RD))
        if len(same) > 1:
            moved["at"][same[1]] = moved["at"][same[0]] + 1
        take(self, moved)

    monkeypatch.setattr(checker.DramChecker, "take", early)


def count_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter of every GPU is one too high at the end."""
    advance = GpuCore.advance

    def wrong(self: GpuCore, until: int) -> bool:
        is_done = advance(self, until)
        self.gpu.channels["n_commands"][0, codes.RD] += is_done
        return is_done

    monkeypatch.setattr(GpuCore, "advance", wrong)


def start_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """In explicit mode the kernels of one GPU are launched an issue slot early."""
    load = RingMachine.load

    def early(self: RingMachine, d: int, program: Any, start_at: int = 0) -> None:
        load(self, d, program, start_at - (self.cores[d].slot_ticks if d == 1 else 0))

    monkeypatch.setattr(RingMachine, "load", early)


def depend_on_the_order_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something is left over from the run before."""
    trace, runs = properties.trace_of_commands, []

    def leaky(case: Any) -> str:
        runs.append(case)
        return trace(case) + (" again" if len(runs) > SHORT.same_results else "")

    monkeypatch.setattr(properties, "trace_of_commands", leaky)


def be_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "random_case", lambda seed: replace(random_case(seed), machine=1))


def compile_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled kernel runs another machine than the interpreted one, which is in another process."""
    monkeypatch.setattr(properties, "digests_of", lambda _: digests_of("t3-75"))


def see_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines that stop are given up in silence."""
    monkeypatch.setattr(Liveness, "error", lambda self, _: properties.ModelError("out of patience"))


def see_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(properties, "broken", lambda _: [])


DEFECTS = {
    "conservation": count_once_more,
    "dram": shift_a_command,
    "data": lose_a_store,
    "machines": start_too_early,
    "determinism": depend_on_the_order_of_runs,
    "interpreted": compile_another_machine,
    "known results": be_another_machine,
    "hangs": see_no_hang,
    "canary": see_no_defect,
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_turns_the_line_red(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 4, the word BROKEN, and what is wrong."""
    DEFECTS[name](monkeypatch)
    monkeypatch.setattr(properties, "Depth", lambda: replace(SHORT, machines=SMALL_MACHINES[:1]))
    result = CliRunner().invoke(main, ["selfcheck", "--only", name])
    assert result.exit_code == 4
    assert any(line.startswith(f"BROKEN  {name}") for line in result.stdout.splitlines())
    assert "1 of the properties do not hold on this machine; do not trust its results" in result.stderr


def test_every_property_has_a_defect_that_turns_it_red() -> None:
    assert set(DEFECTS) == set(PROPERTIES)
