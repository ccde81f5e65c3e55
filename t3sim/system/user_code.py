"""What a user's strategy may return, and who is at work when a user's code does not come back.

A strategy is asked twice and must give the same times.  A loop without an end cannot be told from slow code, so it is
not ended: after a minute a warning names the file and the function, and Ctrl-C works.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from t3sim.errors import PACKAGE, PluginError, home_of, is_of_a_user
from t3sim.gpu.core import GpuCore, name_of
from t3sim.overlap.interface import OverlapStrategy
from t3sim.program.operator import Operator
from t3sim.program.plan import Bound, Part, Plan, Tree

PATIENCE_S = 60.0
LOOK_EVERY_S = 1.0
LOOKS_BEFORE_LEAVING = 2  # after Ctrl-C, while compiled code does not come back
INTERRUPTED = 130


def plan_of(strategy: OverlapStrategy, op: Operator, params: Mapping[str, Any]) -> Plan:
    """Return the plan of *strategy*; raises ``PluginError`` if a user's says something else when it is asked again."""
    name, home = strategy.name, home_of(strategy.plan)
    if not is_of_a_user(home[0]):
        return strategy(op, params)
    thread = threading.get_ident()
    with watched(lambda: at_work_in_strategy(name, thread)):
        plan, again = strategy(op, params), strategy(op, params)
    if shown(plan) != shown(again):
        raise PluginError(*home, f"strategy `{name}` says something else when it is asked again")
    return plan


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
    while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
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
    is_over, interrupts = threading.Event(), threading.Event()

    def watch() -> None:
        said, since, n_after = None, time.monotonic(), 0
        has_warned = False
        while not is_over.wait(LOOK_EVERY_S):
            found = look()
            if found is None or found != said:
                said, since, n_after = found, time.monotonic(), 0
                continue
            n_after += interrupts.is_set()
            if n_after >= LOOKS_BEFORE_LEAVING:
                os.write(2, f"t3sim: interrupted; {found}\n".encode())
                os._exit(INTERRUPTED)
            if not has_warned and time.monotonic() - since >= PATIENCE_S:
                has_warned = True
                warnings.warn(f"{found} and has not come back for {PATIENCE_S:.0f} s; Ctrl-C ends it", stacklevel=2)

    watcher = threading.Thread(target=watch, name="t3sim watch", daemon=True)
    with noticed_interrupts(interrupts) if is_compiled else nullcontext():
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()


@contextmanager
def noticed_interrupts(interrupts: threading.Event) -> Iterator[None]:
    """Set *interrupts* at a Ctrl-C, although the main thread runs compiled code; elsewhere than there do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def listen() -> None:
        while number := os.read(reader, 1):
            if number[0] == signal.SIGINT:
                interrupts.set()

    listener = threading.Thread(target=listen, name="t3sim interrupts", daemon=True)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    listener.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        listener.join()
        os.close(reader)
