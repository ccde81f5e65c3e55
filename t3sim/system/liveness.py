"""Deadlock and livelock detection: deadlocks at once, livelocks after a time limit, event loops, Ctrl-C.

``run_to_end`` steps SimPy and sees what SimPy alone can see: that no event is left although the run has not ended,
and that events continue while time does not advance.  A ``Liveness`` looks into the GPUs every few quanta (see
``checks.hang``).  Both end a run that hangs with a ``ModelError`` that says which part waits for what.
"""

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import simpy

from t3sim.checks.hang.progress import (
    has_something_to_come,
    patience_of,
    progress_of,
    pulse_of,
    rotation_ticks,
    unscheduled_channels,
)
from t3sim.checks.hang.report import Hang, describe_hang, headline
from t3sim.errors import ModelError
from t3sim.gpu.core import GpuCore
from t3sim.gpu.device import Device
from t3sim.gpu.units.codes import NEVER

EVENTS_PER_PROCESS = 10  # at one moment: a process has a handful of reasons to be resumed twice without time moving
LEAST_EVENT_LIMIT = 1000
MESSAGE_LINES = 9  # of a report, in the message; the command line shows ten


class WatchedEnvironment(simpy.Environment):
    """A SimPy environment that remembers which processes ask for something at the present moment."""

    def __init__(self, initial_time: int = 0) -> None:
        super().__init__(initial_time)
        self.asked_now: Counter[simpy.Process] = Counter()  # events by process, for the present moment only
        self._asked_at = initial_time

    def schedule(self, event: simpy.Event, priority: Any = simpy.events.NORMAL, delay: float = 0) -> None:
        """Schedule as SimPy does; count events without delay."""
        if self.now != self._asked_at:
            self._asked_at = int(self.now)
            self.asked_now.clear()
        if delay == 0 and self.active_process is not None:
            self.asked_now[self.active_process] += 1
        super().schedule(event, priority, delay)


@dataclass
class WatchedGpu:
    """A GPU under watch."""

    device: Device
    pulse: bytes = b""
    progress: bytes = b""  # may lack what has changed while the pulse did


class Liveness:
    """Watches the GPUs of one machine; nothing moves in it means: in none of them."""

    def __init__(
        self,
        env: simpy.Environment,
        devices: Sequence[Device],
        n_quanta_between: int = 1,
        settle: Callable[[], bool] = lambda: False,
    ) -> None:
        """*n_quanta_between* is how many quanta at most lie between looks at two GPUs, or two at the same one.

        *settle* waits until no GPU is being advanced; it returns whether something waits for a GPU that its inbox does
        not hold yet.
        """
        self.env = env
        self._settle = settle
        self.gpus = [WatchedGpu(device) for device in devices]
        self._moved_at = int(env.now)
        self._quiet_since: int | None = None  # when nothing was found to come
        self._patience = max(patience_of(gpu.device.core) for gpu in self.gpus)
        # Of several GPUs the last look at another one is up to the time between two looks old.
        n_quanta = 0 if len(self.gpus) == 1 else 2 * n_quanta_between
        self._rotation = max(rotation_ticks(gpu.device.core) + n_quanta * gpu.device.quantum_ticks for gpu in self.gpus)
        for gpu in self.gpus:
            gpu.pulse, gpu.progress = pulse_of(gpu.device.core), progress_of(gpu.device.core)
            gpu.device.watch = partial(self.after_quantum, gpu)

    def after_quantum(self, gpu: WatchedGpu) -> None:
        """Look at *gpu*, which has just run for a quantum; raise ``ModelError`` if the machine hangs.

        To look at all that may move is to read thousands of words that are in no cache: the pulse comes first.
        """
        core = gpu.device.core
        if self._has_moved(gpu):
            self._moved_at, self._quiet_since = core.now, None
            return
        if unscheduled_channels(core):
            raise self.error(Hang.LOST_WAKE_UP)
        if core.now < core.gpu.next_start_at < NEVER:
            self._moved_at = core.now  # before its launch an operation is not late
        still = core.now - self._moved_at
        if still > self._patience:
            raise self.error(Hang.NO_PROGRESS)
        if still < self._rotation or not self.is_quiet():
            self._quiet_since = None
        elif self._quiet_since is None:
            # A moment may have come just now: what it allows has a rotation to happen.
            self._quiet_since = core.now
        elif core.now - self._quiet_since >= self._rotation:
            raise self.error(Hang.DEADLOCK)

    @staticmethod
    def _has_moved(gpu: WatchedGpu) -> bool:
        """Return whether anything has moved since the last look, or the one before: the pulse does not show all."""
        pulse = pulse_of(gpu.device.core)
        if pulse != gpu.pulse:
            gpu.pulse = pulse
            return True
        before, gpu.progress = gpu.progress, progress_of(gpu.device.core)
        return gpu.progress != before

    def is_quiet(self) -> bool:
        """Return whether nothing is left that could make one of the GPUs move without an external event."""
        if len(self.gpus) == 1 and self.env.peek() != simpy.core.Infinity:
            return False  # something besides the GPU itself is going to happen
        if self._settle():
            return False
        return not any(has_something_to_come(gpu.device.core) for gpu in self.gpus)

    def cores(self) -> dict[str, GpuCore]:
        """Return the GPUs by name."""
        return {gpu.device.name: gpu.device.core for gpu in self.gpus}

    def error(self, hang: Hang) -> ModelError:
        """Return the error that reports *hang*: its head as the message, all of it as the details."""
        self._settle()
        report = describe_hang(hang, self.cores(), self._moved_at)
        return ModelError(headline(report, MESSAGE_LINES), report)


def run_to_end(env: WatchedEnvironment, process: simpy.Process, liveness: Liveness | None = None) -> Any:
    """Run *env* until *process* ends; return its value, or raise what it raises.

    Raises ``ModelError`` when no event is left although the process has not ended, and when events continue without
    time moving.  *liveness* adds the state of the GPUs to the report.
    """
    if not process.processed:
        process.callbacks.append(_defuse)
    processes: set[simpy.Process] = set()
    now, n_events = env.now, 0
    with noted_interrupts() as interrupts:
        while not process.processed:
            if env.peek() == simpy.core.Infinity:
                raise _starved(process, liveness)
            env.step()
            if interrupts:
                raise KeyboardInterrupt
            if env.now != now:
                now, n_events = env.now, 0
                continue
            processes.update(env.asked_now)
            n_events += 1
            if n_events > max(LEAST_EVENT_LIMIT, EVENTS_PER_PROCESS * len(processes)):
                raise _looping(env, n_events)
    result: Any = process.value
    if not process.ok:
        raise result
    return result


@contextmanager
def noted_interrupts() -> Iterator[list[int]]:
    """Yield a list that grows with each Ctrl-C, besides what the handler in force does.

    A KeyboardInterrupt that is raised while Numba looks up the policy it is given is cleared there, one in twenty.
    Elsewhere than in the main thread nothing is noted: signals do not arrive there.
    """
    noted: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield noted
        return

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, handler)


def _defuse(event: simpy.Event) -> None:
    """Keep SimPy from raising a copy of what ended the process; its waiter raises the original."""
    event.defused = True


def _starved(process: simpy.Process, liveness: Liveness | None) -> ModelError:
    """Return the error for a machine in which nothing will ever happen again."""
    first = (
        f"deadlock: nothing is scheduled any more, but process `{process.name}` has not ended\n"
        f"  it waits for {process.target}, which is never triggered"
    )
    if liveness is None:
        return ModelError(first)
    report = describe_hang(Hang.DEADLOCK, liveness.cores(), int(liveness.env.now))
    return ModelError(first, f"{first}\n{report}")


def _looping(env: WatchedEnvironment, n_events: int) -> ModelError:
    """Return the error for processes that resume each other while time stands still."""
    by_name: Counter[str] = Counter()
    for process, n in env.asked_now.items():
        by_name[process.name] += n
    guilty = ", ".join(f"`{name}` ({n} times)" for name, n in by_name.most_common(5))
    return ModelError(
        f"zero-time loop: {n_events} events at tick {env.now} and time does not move\n"
        f"  these processes schedule events at the same moment: {guilty or 'none; events trigger each other'}"
    )
