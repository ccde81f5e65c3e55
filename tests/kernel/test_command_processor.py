"""Operations of one GPU: when each of them starts, on which compute units, beside which others, and what it posts.

All times are in ticks of 7 GHz; a slot is 40 of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from t3sim.checks.invariants import broken
from t3sim.config.experiment import TilingSpec
from t3sim.errors import ModelError, UsageError
from t3sim.gpu.core import GpuCore
from t3sim.gpu.ticks import TickBase
from t3sim.gpu.time_accounts import time_accounts, units_of
from t3sim.gpu.units import codes
from t3sim.gpu.units.compute.command_processor import end_operations, note_ready, start_operations
from t3sim.program.operations import (
    CACHED,
    STEP,
    STORE,
    Gemm,
    Moves,
    OnComputeUnits,
    Operation,
    Post,
    Program,
    Signals,
    TileWaits,
    Wait,
    table,
)
from t3sim.system.machine import MirroredMachine
from t3sim.workload.tiling import TileTrace
from tests.harness.mutants import UNCHANGED, Mutant, run_mutants
from tests.kernel.small import (
    FOREVER,
    TILING,
    gemm_of,
    machine,
    mirrored,
    trace_of,
)

SLOT, LAUNCH = 40, 4000
ONE_RESIDENT = "gpu: {compute_unit: {lds: 32 KiB}}"  # one workgroup of 64 x 64 on each of four compute units
PERSISTENT = TILING.model_copy(update={"persistent": True})
NARROW = TilingSpec(workgroup_tile=(32, 64), wavefront_tile=(32, 64), k_slice=64, prefetch_depth=1)


@dataclass(frozen=True)
class Launch:
    """When an operation starts, what it posts at its end, and where it runs."""

    ticks: int
    waits: tuple[tuple[int, int], ...] = ()  # signal, at least
    posts: tuple[tuple[int, int, int], ...] = ()  # distance, signal, amount
    units: range | None = None
    priority: int = 0
    stream: int | None = None  # None: a stream of its own


class Bench:
    """Operations for one GPU, and the machine that runs them."""

    def __init__(self, changes: str = "", n_signals: int = 0) -> None:
        self.spec = machine(changes)
        self.ticks = TickBase.of(self.spec)
        self.n_signals = n_signals
        self.operations: list[Operation] = []
        self.n_granules = 0  # that GEMMs have got so far: each has its own

    def signal(self) -> int:
        """Return the number of a new signal."""
        self.n_signals += 1
        return self.n_signals - 1

    def add(self, operation: Operation, launch: Launch) -> None:
        """Add an operation that starts as *launch* says."""
        said: dict[str, Any] = {
            "stream": 1000 + len(self.operations) if launch.stream is None else launch.stream,
            "launch": launch.ticks * 1000 // 7,
            "after": tuple(Wait(*wait) for wait in launch.waits),
            "posts": tuple(Post(signal, distance, amount) for distance, signal, amount in launch.posts),
        }
        if isinstance(operation, OnComputeUnits):
            units = launch.units and (launch.units.start, launch.units.stop)
            said |= {"units": units, "priority": launch.priority}
        self.operations.append(replace(operation, **said))

    def gemm(self, launch: Launch, n_workgroups: int = 4, k: int = 64, tiling: TilingSpec = TILING) -> None:
        """Add a GEMM of so many tiles in a column."""
        trace: TileTrace = trace_of(tiling.workgroup_tile[0] * n_workgroups, 64, k, tiling=tiling)
        program = gemm_of(self.spec, trace)
        (gemm,) = program.operations
        assert isinstance(gemm, Gemm)
        first, stores = self.n_granules, gemm.stores.copy()
        stores.first[:] += first
        self.n_granules += program.n_granules
        self.add(replace(gemm, a=gemm.a + first, b=gemm.b + first, stores=stores), launch)

    def copy(self, launch: Launch, n_workgroups: int, n_granules: int = 512) -> None:
        """Add a move kernel that copies *n_granules*."""
        step = {"n_granules": n_granules, "n_operands": 1, "kept_at": 8192}
        steps = table(STEP, [step]).reshape(1, 1)
        self.add(Moves(name="copy", steps=steps, n_workgroups=n_workgroups), launch)

    @cached_property
    def wired(self) -> MirroredMachine:
        """The machine, loaded with what has been added."""
        signals = (Signals("signals", 0, self.n_signals),)
        return mirrored(self.spec, Program(0, 1, tuple(self.operations), granule=64, line=2, signals=signals))

    @property
    def core(self) -> GpuCore:
        """The GPU, loaded."""
        return self.wired.core

    def run(self) -> Any:
        """Run to the end, checks included; return the table of operations."""
        self.wired.run()
        return self.core.operations

    def workgroups(self, operation: int) -> Any:
        table = self.core.tables.workgroups
        return table[table["operation"] == operation]

    def slots(self) -> Iterator[GpuCore]:
        """Run slot by slot; yield the core after each of them."""
        while not self.core.advance(self.core.now + SLOT):
            yield self.core
        yield self.core


# --- when operations start ------------------------------------------------------------------------------


@pytest.mark.parametrize("waits_for_both", [True, False])
def test_an_operation_starts_a_launch_after_the_last_signal_it_waits_for(waits_for_both: bool) -> None:
    """Two streams are joined; canary: without the wait for the longer one it starts before that has ended."""
    program = Bench()
    short, long = program.signal(), program.signal()
    program.gemm(Launch(LAUNCH, posts=((0, short, 1),)), 2)
    program.gemm(Launch(LAUNCH, posts=((0, long, 2),)), 8, k=512)
    waits = ((short, 1), (long, 2)) if waits_for_both else ((short, 1),)
    program.gemm(Launch(LAUNCH, waits))
    first, second, joined = program.run()
    assert first.end_at < second.end_at
    last = second if waits_for_both else first
    assert joined.start_at == last.end_at + LAUNCH
    assert (joined.start_at > second.end_at) == waits_for_both
    starts = program.workgroups(2)["start_at"]
    launched = int(program.core.gpu.workgroup_launch_ticks)
    assert 0 <= starts.min() - joined.start_at - launched < SLOT  # with the next slot


def test_operations_of_a_stream_run_in_order() -> None:
    """Each starts a launch after the end of the one before, whatever kind it is."""
    program = Bench()
    launch = Launch(LAUNCH, stream=0)
    program.gemm(launch)
    program.copy(launch, 2)
    program.gemm(launch)
    operations = program.run()
    assert operations["start_at"].tolist() == [LAUNCH, *(operations["end_at"][:-1] + LAUNCH).tolist()]
    assert (operations["end_at"] > operations["start_at"]).all()
    assert (operations["state"] == codes.OVER).all()
    assert program.core.tables.signals.tolist() == [1, 1]  # each but the last one tells the next


def test_a_gemm_ends_when_its_dirty_lines_are_written_back() -> None:
    """Reads of its output bypass the L2; two GEMMs that end at different times each wait for their own lines."""
    program = Bench("gpu: {l2: {at_kernel_end: write-back}}")
    program.gemm(Launch(0), 4, k=64)
    program.gemm(Launch(0), 8, k=256)
    operations = program.run()
    for number, operation in enumerate(operations):
        assert operation.end_at > program.workgroups(number)["end_at"].max()
    assert program.core.gpu.l2.n_granules_written_back == program.core.gpu.l2.n_granules_dirtied


# --- the same, of the functions alone: small enough for interpreted runs ---------------------------------


def started() -> str:
    """Run operations that end at once on a command processor of its own; return (operation, start) in order."""
    bench = Bench(n_signals=2)
    a, b = range(2)
    for launch in (
        Launch(100, posts=((0, a, 1),)),
        Launch(100, posts=((0, a, 1),), priority=1),
        Launch(70, ((a, 2),), ((0, b, 3),)),
        Launch(30, ((b, 3), (a, 1)), priority=1),
        Launch(500),
        Launch(30, ((b, 3),), priority=2),
        Launch(0, ((a, 3),)),  # never posted
        Launch(100),
    ):
        bench.copy(launch, 1)
    core = bench.core
    core.tables.operations["kind"], core.tables.operations["n_workgroups"] = codes.BARRIER, 0  # they end at once
    gpu, t, found = core.gpu, core.tables, []
    for now in range(0, 1000, SLOT):
        start_operations(gpu, now)
        found.append(" ".join(f"{now}:{o}" for o in gpu.running[: int(gpu.n_running)]))
        end_operations(gpu, t.waits, t.posts, core.store_queue, now)
        if gpu.has_news:
            note_ready(gpu, t.waits, now)
    left = [number for number, state in enumerate(t.operations["state"]) if state == codes.PENDING]
    return f"{' '.join(filter(None, found))}, left {left}, signals {t.signals.tolist()}"


ORDER = "120:1 120:0 120:7 200:2 240:5 240:3 520:4, left [6], signals [2, 3]"
PROCESSOR = "t3sim.gpu.units.compute.command_processor"
MUTANTS = (
    Mutant("no signal is awaited", PROCESSOR, "at_least:\n            return False", "at_least:\n            continue"),
    Mutant("one post is enough", PROCESSOR, "< waits[index].at_least", "< 1"),
    Mutant("no launch", PROCESSOR, "operation.issued_at) + operation.launch_ticks", "operation.issued_at)"),
    Mutant("no priority", PROCESSOR, "].priority < operation.priority", "].priority < 0"),
    Mutant("equals overtake", PROCESSOR, "].priority < operation.priority", "].priority <= operation.priority"),
    Mutant("posts nothing", PROCESSOR, "gpu.signals, entry.signal, entry.amount)", "gpu.signals, entry.signal, 0)"),
    Mutant("late starts forgotten", PROCESSOR, "min(gpu.next_start_at, operation.start_at)\n\n\n@kernel\ndef start(",
           "gpu.next_start_at\n\n\n@kernel\ndef start("),
)  # fmt: skip


def test_operations_that_start_together_take_their_turn_by_priority_then_in_order() -> None:
    assert started() == ORDER


@pytest.mark.deep
def test_the_same_interpreted_and_each_defect_of_the_command_processor_changes_it() -> None:
    outcomes = run_mutants(MUTANTS, "tests.kernel.test_command_processor:started")
    assert outcomes.pop(UNCHANGED) == ORDER
    assert [name for name, outcome in outcomes.items() if outcome == ORDER] == []


# --- who gets compute units ------------------------------------------------------------------------------


def first_on_each_unit(program: Bench) -> list[int]:
    """Return the operation that each compute unit has its first workgroup of."""
    table = program.core.tables.workgroups
    order = np.argsort(table["start_at"], kind="stable")
    return [int(table["operation"][order][table["cu"][order] == unit][0]) for unit in range(4)]


@pytest.mark.parametrize(("priority", "delay", "first"), [(0, 0, 0), (1, 0, 1), (0, -SLOT, 1), (-1, -SLOT, 1)])
def test_two_gemms_share_compute_units_by_priority_and_start(priority: int, delay: int, first: int) -> None:
    """The second of two GEMMs comes first if it has a higher priority or starts earlier."""
    program = Bench(ONE_RESIDENT)
    program.gemm(Launch(LAUNCH), 8)
    program.gemm(Launch(LAUNCH + delay, priority=priority), 8)
    program.run()
    assert first_on_each_unit(program) == [first] * 4
    if priority == 0:  # and goes on so
        assert program.workgroups(first)["start_at"].max() <= program.workgroups(1 - first)["start_at"].min()


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_partition_keeps_operations_on_their_own_compute_units(is_cut: bool) -> None:
    """A GEMM on units 0 and 1 and a move kernel on 2 and 3; canary: without it the GEMM takes all."""
    program = Bench(ONE_RESIDENT)
    program.gemm(Launch(0, units=range(2) if is_cut else None), 12)
    program.copy(Launch(LAUNCH, units=range(2, 4) if is_cut else None), 2)
    program.run()
    moved = np.flatnonzero(program.core.gpu.compute_units["state_slots"][:, codes.COLLECTIVE_WORK])
    of_gemm = set(program.workgroups(0)["cu"].tolist())
    assert len(moved) == 2
    if is_cut:
        assert (of_gemm, moved.tolist()) == ({0, 1}, [2, 3])
        assert program.core.gemms["n_stage_slots"].tolist() == [2]
    else:
        assert of_gemm == {0, 1, 2, 3}


def test_a_collective_takes_all_of_its_compute_units_and_never_more() -> None:
    program = Bench()
    program.copy(Launch(0, units=range(1, 3)), 2)
    (moves,) = program.run()
    assert moves.n_finished == 2


def check_shares(core: GpuCore) -> int:
    """No compute unit has more workgroups than fit; return the most operations that one has workgroups of."""
    most = 0
    for unit in core.gpu.compute_units[: int(core.gpu.n_compute_units)]:
        resident = unit.slots["workgroup"][unit.slots["workgroup"] >= 0]
        owners = core.tables.workgroups["operation"][resident]
        taken = sum(1 / int(core.tables.operations["n_slots"][owner]) for owner in owners)
        assert taken <= 1.001, f"{len(resident)} workgroups of {len(set(owners.tolist()))} operations"
        assert int(unit.shares) == sum(int(core.tables.operations["share"][owner]) for owner in owners)
        most = max(most, len(set(owners.tolist())))
    return most


def two_sizes() -> Bench:
    """A GEMM of which three workgroups fit on a compute unit, and one of which four do."""
    program = Bench("gpu: {compute_unit: {lds: 96 KiB}}")
    program.gemm(Launch(0), 30, k=128)
    program.gemm(Launch(LAUNCH, priority=1), 30, k=192, tiling=NARROW)
    assert program.core.gemms["n_slots"].tolist() == [3, 4]
    return program


def test_workgroups_of_two_gemms_never_take_more_than_a_compute_unit() -> None:
    assert max(check_shares(core) for core in two_sizes().slots()) == 2


# --- move kernels beside GEMMs ---------------------------------------------------------------------------


@pytest.mark.parametrize("is_persistent", [False, True])
def test_a_move_kernel_takes_the_compute_units_that_a_gemm_gives_up(is_persistent: bool) -> None:
    """As many as it has workgroups, as they become free; canary: a persistent GEMM keeps them to its last tile."""
    program = Bench(ONE_RESIDENT)
    program.gemm(Launch(0), 41, k=256, tiling=PERSISTENT if is_persistent else TILING)
    program.copy(Launch(LAUNCH), 3)
    for core in program.slots():
        gemm, moves = core.tables.operations[:2]
        if moves.n_dispatched == moves.n_workgroups:
            break
    left = int(gemm.n_workgroups - gemm.n_dispatched)
    assert left == 0 if is_persistent else left > 20
    assert program.core.advance(FOREVER)
    assert broken(program.core) == []
    assert (program.core.gpu.compute_units["wanted_by"] < 0).all()
    n_later = np.bincount(program.workgroups(0)["cu"], minlength=4)
    assert n_later.min() > 4, "a compute unit that did not come back to the GEMM"


# --- signals of workgroups -------------------------------------------------------------------------------


def waiting_workgroup(at_least: int = 1) -> Bench:
    """Workgroup 3 of the second of two GEMMs waits for the end of the first one."""
    program = Bench("gpu: {compute_unit: {lds: 64 KiB}}")
    done = program.signal()
    program.gemm(Launch(0, posts=((0, done, 1),)), 2, k=512)
    program.gemm(Launch(0), 4)
    waits = TileWaits(signal=np.array([-1, -1, -1, done]), at_least=np.array([0, 0, 0, at_least]))
    second = program.operations[1]
    assert isinstance(second, Gemm)
    program.operations[1] = replace(second, waits=waits)
    return program


def loads_too_early(program: Bench) -> bool:
    """Run; return whether workgroup 5 has loaded anything before the first GEMM has posted its end."""
    table, found = program.core.tables.workgroups, False
    for core in program.slots():
        has_posted = bool(core.tables.signals[0])
        if table["end_at"][5] < 0 <= table["start_at"][5] and not has_posted:
            slot = core.gpu.compute_units[int(table["cu"][5])].slots[int(table["slot"][5])]
            found |= bool(slot.load_line > 0 or slot.load_slice > 0)
        found |= bool(table["end_at"][5] >= 0 and not has_posted)
    return found


def test_a_workgroup_loads_nothing_before_its_signal_is_posted() -> None:
    """It has its slot and waits there, as a dependency; its neighbours go on."""
    program = waiting_workgroup()
    assert not loads_too_early(program)
    table = program.core.tables.workgroups
    posted_at = program.core.operations[0].end_at
    assert table["start_at"][5] < posted_at <= table["multiply_at"][5]
    assert (table["end_at"][2:5] < posted_at).all()
    assert program.core.gpu.compute_units["reason_ticks"][:, codes.FOR_DEPENDENCY].sum() > 0


# --- time accounts (C7) ----------------------------------------------------------------------------------


def program_with_gaps() -> Bench:
    """A GEMM, a move kernel, then two GEMMs and a move kernel at once; 4 us before each, in which nothing runs."""
    program = Bench()
    gap = program.ticks.from_ps(4_000_000)
    done, both = program.signal(), program.signal()
    program.copy(Launch(gap, posts=((0, done, 1),)), 2)
    program.gemm(Launch(gap, ((done, 1),), ((0, done, 1),)), 6)
    program.copy(Launch(gap, ((done, 2),), ((0, done, 1),)), 3)
    program.gemm(Launch(gap, ((done, 3),), ((0, both, 1),)), 5)
    program.gemm(Launch(gap, ((done, 3),), ((0, both, 1),)), 2, k=128)
    program.copy(Launch(gap, ((done, 3),), ((0, both, 1),)), 4)
    program.copy(Launch(gap, ((both, 3),)), 1)
    return program


def check_accounts(program: Bench, end_at: int) -> None:
    n_units = units_of(program.core.machine)
    for unit, rows in time_accounts(program.core, end_at).items():
        assert (rows >= 0).all(), unit
        assert rows.sum() == end_at * n_units[unit], unit
    states = program.core.gpu.compute_units["state_slots"][:4].sum(axis=1)
    assert (states == program.core.gpu.n_active_slots).all()


def test_the_time_of_every_unit_adds_up_with_gaps_between_operations() -> None:
    program = program_with_gaps()
    end_at = program.wired.run()
    operations = program.core.operations
    assert (operations["start_at"][1:4] - operations["end_at"][:3] == operations["launch_ticks"][1:4]).all()
    check_accounts(program, end_at)
    assert broken(program.core) == []
    dispatcher = program.core.gpu.dispatcher_slots
    gap = int(operations["launch_ticks"][0]) // SLOT
    assert dispatcher[codes.FOR_DEPENDENCY] >= 3 * (gap - 1)  # with GEMMs to come


# --- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "is_signalled"), [(CACHED, True), (CACHED, False), (STORE, True)])
def test_a_signal_of_tiles_that_stay_in_the_l2_is_refused(kind: int, is_signalled: bool) -> None:
    """Nothing would post it: a store posts as it enters a DRAM queue; canaries: no signal, or bypassing the L2."""
    program = Bench(n_signals=1)
    program.gemm(Launch(0), 3)
    (gemm,) = program.operations
    assert isinstance(gemm, Gemm)
    stores = gemm.stores.copy()
    stores.kind[1], stores.signal[1] = kind, 0 if is_signalled else -1
    program.operations = [replace(gemm, stores=stores)]
    if kind == CACHED and is_signalled:
        with pytest.raises(UsageError, match=r"operation `gemm`: this machine cannot post a signal for tiles .*CACHED"):
            program.run()
    else:
        program.run()
        n_granules = int(program.core.tables.tiles["n_granules"][2:4].sum())
        assert program.core.tables.signals[0] == (n_granules if is_signalled else 0)


# --- waits that never end ---------------------------------------------------------------------------------


def waits_for_nobody(program: Bench) -> None:
    program.core.tables.waits[0].at_least += 1


def workgroup_waits_for_nobody(program: Bench) -> None:
    table = program.core.tables.tiles
    first = int(program.core.tables.workgroups["first_tile"][1])
    table["wait_signal"][first], table["wait_at_least"][first] = 2, 3


def wait_for_each_other(program: Bench) -> None:
    """The first operation waits for a signal that the second one posts at its end."""
    tables = program.core.tables
    tables.waits = np.concatenate([tables.waits, tables.waits]).view(np.recarray)
    tables.waits[1].signal = 1
    operations = tables.operations
    operations[0].start_at, operations[0].first_wait, operations[0].n_waits = codes.NEVER, 1, 1
    program.core.gpu.next_start_at = codes.NEVER


def posted_by_itself(program: Bench) -> None:
    """A workgroup waits for the end of its own operation."""
    table = program.core.tables.tiles
    first = int(program.core.tables.workgroups["first_tile"][1])
    table["wait_signal"][first], table["wait_at_least"][first] = 0, 1


HANGS: dict[str, tuple[Callable[[Bench], None], str]] = {
    "an operation": (waits_for_nobody, "operation[1] waits for gpu[0].signal[0]: 1 of 2 posts"),
    "a workgroup": (workgroup_waits_for_nobody, "slot[0] waits for gpu[0].signal[2]: needs 3 posts"),
    "each other": (wait_for_each_other, "operation[0] waits for gpu[0].signal[1]: 0 of 1 posts"),
    "itself": (posted_by_itself, "slot[0] waits for gpu[0].signal[0]: needs 1 posts"),
}


def two_in_turn() -> Bench:
    """A GEMM that waits for another one; operation 1 posts signal 1, nobody signal 2."""
    program = Bench()
    done, end, _ = (program.signal() for _ in range(3))
    program.gemm(Launch(LAUNCH, posts=((0, done, 1),)))
    program.gemm(Launch(LAUNCH, ((done, 1),), ((0, end, 1),)))
    return program


@pytest.mark.parametrize("name", HANGS)
def test_a_wait_that_never_ends_is_named_with_its_signal(name: str) -> None:
    break_it, said = HANGS[name]
    program = two_in_turn()
    break_it(program)
    with pytest.raises(ModelError, match="deadlock") as hang:
        program.run()
    assert said in hang.value.details
