"""Checks of the plan that a user's strategy returns, and attribution of hangs to plugin code.

A strategy is called twice and must return the same plan.  The programs of the plan are checked, and made into what the
GPU runs, before any is simulated.  An endless loop cannot be distinguished from slow code, so it is not ended: after a
minute a warning names the file and the function, and Ctrl-C works.
"""

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from t3sim.config.machine import MachineSpec
from t3sim.errors import PACKAGES, PluginError, ProgramError, UsageError, home_of, is_of_a_user
from t3sim.fabric.interface import check_arrivals, check_reach
from t3sim.gpu.core import GpuCore, name_of
from t3sim.gpu.table_builder import tables_of
from t3sim.gpu.ticks import TickBase
from t3sim.gpu.traffic import TrafficClasses
from t3sim.program.compare import digest
from t3sim.program.moe_operator import AnyOperator
from t3sim.program.operations import Moves, Operation, Program
from t3sim.program.plan import Bound, InOrder, Longest, Part, Plan, Tree, parts_of
from t3sim.program.verify import check_plan
from t3sim.program.verify.shadow import MOST_RANKS
from t3sim.strategies.interface import OverlapStrategy

PATIENCE_S = 60.0
LOOK_EVERY_S = 1.0
LOOKS_BEFORE_LEAVING = 2  # after Ctrl-C, while compiled code does not come back
INTERRUPTED = 130


def plan_of(strategy: OverlapStrategy, op: AnyOperator, params: Mapping[str, Any]) -> Plan:
    """Return the plan of *strategy*.

    Raises ``PluginError`` if that of a user cannot be run, or differs when the strategy is called again.
    """
    name, home = strategy.name, home_of(strategy.plan)
    if not is_of_a_user(home[0]):
        plan = strategy(op, params)
        check_loads(plan, op.machine)
        return plan
    thread = threading.get_ident()
    with watched(lambda: at_work_in_strategy(name, thread)):
        plans = strategy(op, params), strategy(op, params)
    for plan in plans:
        problem = next(problems_of_plan(plan, strategy, op.n), None)
        if problem is not None:
            raise PluginError(*home, f"strategy `{name}`: {problem}")
    if shown(plans[0]) != shown(plans[1]):
        raise PluginError(*home, f"strategy `{name}` returns something else when it is called again")
    try:
        check_programs_of(plans[0], op.machine)
    except (ProgramError, UsageError) as error:
        problems = str(error).splitlines()
        raise PluginError(*home, "\n".join(f"strategy `{name}`: {problem}" for problem in problems)) from error
    return plans[0]


def problems_of_plan(plan: Plan, strategy: OverlapStrategy, n: int) -> Iterator[str]:
    """Yield what in *plan* is not what it must be, on *n* GPUs: a user may have put in anything."""
    yield from problems_of_tree(plan.tree, strategy)
    also: Any = plan.also
    if not isinstance(also, tuple) or not all(isinstance(one, Part) for one in also):
        yield "`also` of its plan is not a tuple of parts"
    if not plan.parts():
        yield "its plan has no part"
    for part in plan.parts():
        programs: Sequence[Any] = part.programs
        if not all(isinstance(program, Program) for program in programs):
            yield f"part `{part.name}` has something else than programs"
        elif not all(isinstance(operation, Operation) for program in programs for operation in program.operations):
            yield f"part `{part.name}` has something else than operations in its programs"
        if part.n != n:
            yield f"part `{part.name}` has programs of {part.n} ranks, not of {n}"
        if part.is_arbitrated and strategy.arbitration is None:
            yield f"part `{part.name}` is arbitrated, so the strategy declares `arbitration`, a policy for it"
    yield from problems_of_roles(plan)


def problems_of_tree(tree: Any, strategy: OverlapStrategy) -> Iterator[str]:
    """Yield what in *tree* is not what it must be."""
    if isinstance(tree, InOrder | Longest):
        for one in tree.of:
            yield from problems_of_tree(one, strategy)
    elif isinstance(tree, Bound):
        if type(tree.ticks) is not int or tree.ticks < 0:
            yield f"its plan has a bound of {tree.ticks!r}, not a whole number of ticks"
        if strategy.kind not in ("bound", "estimate"):
            yield "its plan has a bound, a time that is not simulated; `kind` of such a strategy is bound or estimate"
        yield from problems_of_tree(tree.of, strategy)
    elif not isinstance(tree, Part):
        yield f"its plan holds {type(tree).__name__}, not a part, `in_order` or `longest` of parts"


def problems_of_roles(plan: Plan) -> Iterator[str]:
    """Yield which part of *plan* has the role of another: a result has one phase for each role."""
    tree, with_role = list(parts_of(plan.tree)), dict[str, Part]()
    in_tree = {(part.role, part.key) for part in tree}
    for part in (*tree, *(one for one in plan.also if (one.role, one.key) not in in_tree)):
        if part.role in with_role:
            other = with_role[part.role].name
            yield f"part `{part.name}` has the role `{part.role}` of part `{other}`; each part needs a role of its own"
        with_role[part.role] = part


# Machines and programs that have been checked.
_passed: set[tuple[MachineSpec, tuple[str, ...]]] = set()


def check_programs_of(plan: Plan, machine: MachineSpec) -> None:
    """Raise ``ProgramError`` or ``UsageError`` unless the programs of *plan* can run on GPUs of *machine*.

    Each is checked once in a process.
    """
    parts = plan.parts()
    key = machine, tuple(digest(program, meaning=True) for part in parts for program in part.programs)
    if key in _passed:
        return
    if parts[0].n <= MOST_RANKS:
        check_plan(plan)
    else:
        warnings.warn(f"programs of {parts[0].n} ranks are not checked, of {MOST_RANKS} at most", stacklevel=2)
    check_fit(plan, machine)
    _passed.add(key)


def check_fit(plan: Plan, machine: MachineSpec) -> None:
    """Raise ``UsageError`` unless the links and units of *machine* can do what the programs of *plan* ask for.

    That the programs compute what they say is not checked: plans of users have been (``plan_of``), and those of shipped
    strategies are by the tests.
    """
    check_loads(plan, machine)
    ticks = TickBase.of(machine)
    for part in plan.parts():
        spec = part.clocked(machine)
        check_arrivals(spec.link, part.programs)
        for rank, program in enumerate(part.programs if part.difference else part.programs[:1]):
            TrafficClasses(program.classes)
            tables_of(program, spec, ticks, 0)  # raises for what the GPU cannot run
            check_reach(spec.link, program, rank)


def check_loads(plan: Plan, machine: MachineSpec) -> None:
    """Raise ``UsageError`` unless a unit may have a line of each array in flight that a kernel adds up."""
    lines = machine.gpu.collective_kernel.max_outstanding_lines
    for one in (one for part in parts_of(plan.tree) for one in part.programs[0].operations):
        if isinstance(one, Moves) and (most := int(one.steps["n_operands"].max(initial=0))) > lines:
            key = "machine.gpu.collective_kernel.max_outstanding_lines"
            raise UsageError(f"{key}: is {lines}, must be at least {most}: `{one.name}` adds up so many arrays")


def shown(plan: Plan) -> list[Any]:
    """Return what two answers of a strategy must have in common."""
    return [[(part.role, part.key) for part in plan.parts()], shape_of(plan.tree)]


def shape_of(tree: Tree) -> Any:
    """Return how the parts of *tree* are put together."""
    if isinstance(tree, Part):
        return tree.key
    if isinstance(tree, Bound):
        return [tree.ticks, shape_of(tree.of)]
    return [type(tree).__name__, *map(shape_of, tree.of)]


def at_work_in_strategy(name: str, thread: int) -> str | None:
    """Return which function of a user is at work in *thread*, the outermost; None if t3sim is."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - the only way to see another thread
    found = None
    while frame is not None and not frame.f_code.co_filename.startswith(PACKAGES):
        if is_of_a_user(frame.f_code.co_filename):
            found = frame.f_code
        frame = frame.f_back
    if found is None:
        return None
    return f"{found.co_filename}:{found.co_firstlineno}: strategy `{name}` is in `{found.co_name}`"


@contextmanager
def watched_policy(cores: Sequence[GpuCore]) -> Iterator[None]:
    """Watch the policy of *cores* while they run, if a user wrote it: compiled code hears no signal."""
    policy = cores[0].policy
    path, line = home_of(policy.pick_stream)
    if not is_of_a_user(path):
        yield
        return
    function = getattr(policy.pick_stream, "__name__", "pick_stream")
    what = f"{path}:{line}: arbitration policy `{name_of(policy)}` is in `{function}`"
    before = [b""]

    def look() -> str | None:
        now = b"".join(core.state[0].channels[key].tobytes() for core in cores for key in ("now", "queue_head"))
        is_same, before[0] = now == before[0], now
        return what if is_same else None

    with watched(look, is_compiled=True):
        yield


@contextmanager
def watched(look: Callable[[], str | None], *, is_compiled: bool = False) -> Iterator[None]:
    """Call *look* now and then; warn once of what it says if it says the same for a minute.

    *is_compiled*: while it says something, Ctrl-C ends the process, since no handler runs before compiled code returns.
    """
    is_over = threading.Event()

    def watch(is_interrupted: Callable[[], bool]) -> None:
        said, since, n_after = None, time.monotonic(), 0
        has_warned = False
        while not is_over.wait(LOOK_EVERY_S):
            found = look()
            if found is None or found != said:
                said, since, n_after = found, time.monotonic(), 0
                continue
            n_after += is_interrupted()
            if n_after >= LOOKS_BEFORE_LEAVING:
                os.write(2, f"t3sim: interrupted; {found}\n".encode())
                os._exit(INTERRUPTED)
            if not has_warned and time.monotonic() - since >= PATIENCE_S:
                has_warned = True
                warnings.warn(f"{found} and has not come back for {PATIENCE_S:.0f} s; Ctrl-C ends it", stacklevel=2)

    with noticed_interrupts() if is_compiled else nullcontext(lambda: False) as is_interrupted:
        watcher = threading.Thread(target=watch, args=(is_interrupted,), name="t3sim watch", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()


@contextmanager
def noticed_interrupts() -> Iterator[Callable[[], bool]]:
    """Yield what says whether a Ctrl-C has come, although the main thread runs compiled code; elsewhere none comes."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    numbers: set[int] = set()

    def has_come() -> bool:
        with suppress(BlockingIOError):
            numbers.update(os.read(reader, 64))
        return signal.SIGINT in numbers

    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield has_come
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        os.close(reader)
