"""Do mutants get into the simulator, everywhere it looks, and out of it again?"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.units import codes
from t3sim.gpu.units.dram import dram_channel, near_memory
from tests.conftest import REPOSITORY
from tests.harness.mutants import UNCHANGED, Mutant, run_mutants

HERE = "tests.harness.test_mutants:gaps_and_policy"
NEAR_MEMORY = "t3sim.gpu.units.dram.near_memory"


def gaps_and_policy() -> str:
    """A scenario: what an update costs, and what the registered policy picks from an empty channel."""
    from t3sim.gpu.units.state import Layout, empty_gpu

    channel = empty_gpu(Layout(n_channels=1, n_compute_units=1))[0].channels[0]
    channel["nCCDL"], channel["nCCDWL"] = 6, 13
    policy = arbitration_policies.get("compute_first")
    seen_by_the_channel = dram_channel.store_gap_same_group(channel, codes.LOCAL_UPDATE)
    return f"{seen_by_the_channel} {near_memory.UPDATE_BIT} {policy.pick_stream(channel, 0)}"


def test_mutants_reach_importers_constants_and_registered_functions() -> None:
    """One process for all: each mutant changes what it should and leaves nothing behind for the next?"""
    mutants = [
        Mutant("function", NEAR_MEMORY, "return channel.nCCDWL", "return channel.nCCDL"),
        Mutant("constant", "t3sim.gpu.units.codes", "UPDATE_BIT = 16\n", "UPDATE_BIT = 64\n"),
        Mutant("policy", "t3sim.gpu.arbitration.compute_first", "return NO_STREAM\n", "return 7\n"),
        Mutant("raises", NEAR_MEMORY, "return channel.nCCDWL", "raise RuntimeError('no update')"),
        Mutant("hangs", NEAR_MEMORY, "return channel.nCCDWL", "while True:\n            pass"),
        Mutant("nothing", NEAR_MEMORY, "return channel.nCCDWL", "return  channel.nCCDWL"),
    ]
    outcomes = run_mutants(mutants, HERE, seconds_each=1)
    assert outcomes == {
        UNCHANGED: "13 16 -1",
        "function": "6 16 -1",
        "constant": "6 64 -1",
        "policy": "13 16 7",
        "raises": "RuntimeError: no update",
        "hangs": "TimeoutError: the scenario did not come to its end",
        "nothing": "13 16 -1",
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [("return channel.nCCDXL", "", "has 0 times the text"), ("return channel.nCCDWL", "return return", "SyntaxError")],
)
def test_a_mutant_that_cannot_be_made_is_an_error_and_no_outcome(old: str, new: str, message: str) -> None:
    """A source that has moved on must not make a mutant look noticed."""
    with pytest.raises(RuntimeError, match=message):
        run_mutants([Mutant("stale", NEAR_MEMORY, old, new)], HERE)


def test_every_mutant_can_be_made() -> None:
    """Most are tried by ``make test-deep`` only: is the text that each of them replaces still there?"""
    found = [mutant for module in users_of_mutants() for mutant in mutants_in(module)]
    gone = [mutant.name for mutant in found if source_of(mutant).count(mutant.old) != 1]
    assert gone == []
    assert len(found) > 100


def users_of_mutants() -> Iterator[ModuleType]:
    """Yield the test modules that have mutants."""
    for path in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        if path != Path(__file__) and "harness.mutants" in path.read_text(encoding="utf-8"):
            yield import_module(".".join(path.relative_to(REPOSITORY).with_suffix("").parts))


def mutants_in(module: ModuleType) -> Iterator[Mutant]:
    """Yield the mutants in the lists of a module, each by itself or in a record."""
    for value in vars(module).values():
        for one in value if isinstance(value, (list, tuple)) else ():
            is_row = isinstance(one, tuple) and len(one) > 3 and str(one[1]).startswith("t3sim.")
            mutant = Mutant(*one[:4]) if is_row else getattr(one, "mutant", one)
            if isinstance(mutant, Mutant):
                yield mutant


def source_of(mutant: Mutant) -> str:
    """Return the source that a mutant changes."""
    return Path(inspect.getfile(import_module(mutant.module))).read_text(encoding="utf-8")
