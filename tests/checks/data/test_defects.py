"""Does a run that carries values notice each way in which data can go wrong?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from t3sim.checks.data import CarriedProgram
from t3sim.checks.data.elements import GIVERS
from t3sim.config.experiment import GemmShape
from t3sim.errors import ModelError, UsageError
from t3sim.gpu.units import codes
from t3sim.selfcheck.data_cases import TILINGS, DataCase, carried
from t3sim.system.machine import MirroredMachine
from t3sim.system.ring import RingMachine
from tests.conftest import cases

SHAPE = GemmShape(m=256, n=100, k=70)
FUSED = DataCase("fused round_robin", 4, SHAPE, TILINGS[0], machine=0, is_mirrored=False, seed=3)
SPLIT = replace(
    FUSED, kind="gemm", shape=GemmShape(m=256, n=128, k=200), tiling=TILINGS[0].model_copy(update={"split_k": 3})
)
SCATTER = replace(FUSED, kind="reduce-scatter")
NEAR_MEMORY = replace(FUSED, kind="reduce-scatter near memory")
GATHER = replace(FUSED, kind="all-gather")
PUSH = replace(FUSED, kind="flux-push next")
NAIVE = replace(FUSED, kind="flux-push naive")
CHANNELS = replace(FUSED, kind="channelled all-reduce")
FLAGS = replace(FUSED, kind="channelled all-reduce with flags")
Machine = MirroredMachine | RingMachine


def device(machine: Machine, number: int = 0) -> Any:
    return machine.devices[number]


def run_with(case: DataCase, *defects: Callable[[CarriedProgram, Machine], None]) -> list[str]:
    """Run *case* with *defects*; return what the values say, and the machine if it gives up."""
    values, machine = carried(case)
    for defect in defects:
        defect(values, machine)
    values.follow(machine.devices)
    said = []
    try:
        machine.run()
    except ModelError as error:
        said = [f"machine: {error}"]
    return [*values.check(), *said]


def on_messages(change: Callable[[Any], Any]) -> Callable[[CarriedProgram, Machine], None]:
    """Return a defect of the first GPU's mailbox: *change* acts on its first batch of data."""

    def seed(_: CarriedProgram, machine: Machine) -> None:
        core, is_first = device(machine).core, [True]
        receive = core.receive

        def changed(messages: Any) -> None:
            has_data = int((messages["kind"] < codes.SIGNAL).sum()) > 1
            receive(change(messages.copy()) if is_first[0] and has_data else messages)
            is_first[0] &= not has_data

        core.receive = changed

    return seed


def other_granule(messages: Any) -> Any:
    """The first granule is stored where the second belongs, too."""
    first, second = np.flatnonzero(messages["kind"] < codes.SIGNAL)[:2]
    messages["granule"][first] = messages["granule"][second]
    return messages


def as_plain_store(messages: Any) -> Any:
    """A store instead of an update: the last one wins."""
    messages["kind"] = codes.INCOMING_WRITE
    return messages


def posts_one(messages: Any) -> Any:
    """The first granule posts a signal that it has not been sent with."""
    messages["signal"][0] = 0
    return messages


def wrong_address(_: CarriedProgram, machine: Machine) -> None:
    """The tables send the stores of a tile one granule too far."""
    device(machine).core.tables.tiles["first_granule"][8] += 1


def triggers_early(_: CarriedProgram, machine: Machine) -> None:
    """Tiles are sent on when half of their updates are there."""
    tiles = device(machine).core.tables.tiles
    tiles["updates_expected"] //= 2


def starts_early(_: CarriedProgram, machine: Machine) -> None:
    """Steps do not wait for what the neighbour sends."""
    for one in machine.devices:
        one.core.tables.steps["wait_signal"] = -1


def passes_barriers(_: CarriedProgram, machine: Machine) -> None:
    """Operations do not wait for anything."""
    for one in machine.devices:
        one.core.tables.waits["at_least"] = 0


def reads_elsewhere(_: CarriedProgram, machine: Machine) -> None:
    """A step reads its operand one line too far."""
    device(machine).core.tables.steps["operand"][1] += 2


def reads_panels_elsewhere(_: CarriedProgram, machine: Machine) -> None:
    """The panels are added up as if they lay closer together."""
    device(machine).core.tables.steps["stride"][0] //= 2


def makes_a_panel_twice(values: CarriedProgram, _: Machine) -> None:
    """The workgroups of the first panel multiply the second one, too."""
    produced = values.produced[0]
    produced[: len(produced) // 3] = produced[len(produced) // 3 : 2 * (len(produced) // 3)]


def sends_elsewhere(_: CarriedProgram, machine: Machine) -> None:
    """A step stores its result one line too far."""
    device(machine).core.tables.steps["destination"][1] += 2


def lying_tile(values: CarriedProgram, _: Machine) -> None:
    """A compute unit gets one product wrong."""
    values.produced[0][5, 3] += 1


DEFECTS: dict[str, tuple[DataCase, Callable[[CarriedProgram, Machine], None], str]] = {
    "an arrival is stored elsewhere": (FUSED, on_messages(other_granule), "an arrival that was not sent"),
    "updates become stores": (FUSED, on_messages(as_plain_store), "a wrong value"),
    "a tile lies elsewhere": (FUSED, wrong_address, "a store at another place than its tile says"),
    "tiles trigger early": (FUSED, triggers_early, "a wrong value"),
    "a product is wrong": (FUSED, lying_tile, "a wrong value"),
    "panels are read elsewhere": (SPLIT, reads_panels_elsewhere, "a result without exactly its operands"),
    "a panel is made twice": (SPLIT, makes_a_panel_twice, "a wrong value"),
    "a partial sum lies elsewhere": (SPLIT, wrong_address, "a store at another place than its tile says"),
    "steps start early": (SCATTER, starts_early, "a wrong value"),
    "steps of a gather start early": (GATHER, starts_early, "a wrong value"),
    "an operand is read elsewhere": (SCATTER, reads_elsewhere, "a result without exactly its operands"),
    "a result is stored elsewhere": (SCATTER, sends_elsewhere, "a store at another place than its step says"),
    "an arrival of a step is lost elsewhere": (GATHER, on_messages(other_granule), "sent and not stored"),
    "updates of a step become stores": (NEAR_MEMORY, on_messages(as_plain_store), "a wrong value"),
    "a store posts another signal": (FUSED, on_messages(posts_one), "a store that posts another signal"),
    "a granule for a slot is stored elsewhere": (PUSH, on_messages(other_granule), "sent and not stored"),
    "a tile of a slot is wrong": (PUSH, lying_tile, "a wrong value"),
    "slots are added up early": (PUSH, passes_barriers, "a wrong value"),
    "steps of channels start early": (CHANNELS, starts_early, "a wrong value"),
    "flags are read early": (FLAGS, starts_early, "a flag read before it was there"),
    "channels store elsewhere": (FLAGS, sends_elsewhere, "a store at another place than its step says"),
}


@pytest.mark.parametrize("mode", cases(["explicit", "mirrored"], "mirrored"))
@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_shows_in_the_values(name: str, mode: str) -> None:
    case, defect, expected = DEFECTS[name]
    said = run_with(replace(case, is_mirrored=mode == "mirrored"), defect)
    assert any(expected in line or line.startswith("gpu[0]: a granule sent with the wrong") for line in said), said


def test_programs_that_differ_from_rank_to_rank_carry_values_too() -> None:
    """`naive`: all ranks begin with the same rows.  Nothing is wrong, and a defect on one GPU shows on another."""
    assert run_with(NAIVE) == []
    assert any(line.startswith("gpu[1]: a wrong value") for line in run_with(NAIVE, lying_tile))


def test_a_store_that_misses_its_buffer_is_noticed() -> None:
    def beyond(_: CarriedProgram, machine: Machine) -> None:
        tables = device(machine).core.tables
        tables.tiles["to_granule"][tables.tiles["distance"] != 0] += 1 << 16

    assert any("a store at another place" in line for line in run_with(PUSH, beyond))


def test_contributors_are_told_apart_even_where_values_agree() -> None:
    """Zeros from everybody: the values are right whatever happens, who gave them is not."""

    def all_zero(values: CarriedProgram, _: Machine) -> None:
        for produced in values.produced:
            produced[:, :GIVERS] = 0
        values.elements.parts[:] = 0
        values.elements.typed_parts[:] = 0

    said = run_with(FUSED, all_zero, on_messages(as_plain_store))
    assert any("the wrong contributors" in line for line in said)
    assert not any("a wrong value" in line for line in said)


def test_what_nothing_is_stored_to_is_guarded() -> None:
    """Is a changed word noticed in the chunk that goes straight to the neighbour?"""

    def scribble(values: CarriedProgram, _: Machine) -> None:
        values.values[1, 0, 0] += 1

    assert any("gpu[1]: a wrong value" in line for line in run_with(FUSED, scribble))


def test_more_gpus_than_contributors_can_be_told_apart_are_refused() -> None:
    many = replace(FUSED, n_gpus=17, shape=GemmShape(m=64 * 17, n=64, k=1), is_mirrored=True)
    with pytest.raises(UsageError, match="for at most 16 GPUs, not 17"):
        carried(many)
