"""A wired machine in which every GPU is simulated; in a ring, device *d* sends to device *d* - 1.

At position ``p`` device ``d`` works on chunk ``(d + p) mod n``, so what it has done there is what its
neighbour needs at position ``p + 1``.

The GPUs advance in windows of the shortest link latency: nothing that is sent inside a window arrives before its end.
So a GPU may run alone, on whatever thread, through all windows that every GPU has begun from which it can hear;
after each the links carry what it sent, and a message is taken in at the begin of the window that follows the one in
which it was sent.
The result depends neither on the number of threads nor on any order.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from t3sim.config.machine import MachineSpec
from t3sim.errors import UsageError
from t3sim.gpu.arbitration import ArbitrationPolicy
from t3sim.gpu.assemble import layout_for
from t3sim.gpu.core import NO_MESSAGES, T3_TRAFFIC, GpuCore
from t3sim.gpu.device import LOOK_EVERY
from t3sim.gpu.room import require_room
from t3sim.gpu.ticks import TickBase
from t3sim.gpu.traffic import TrafficClasses
from t3sim.gpu.units.codes import NEVER
from t3sim.program.operations import Program
from t3sim.system.machine import Machine, quanta_at_once, quantum_of
from t3sim.system.threads import Crew

Report = Callable[[float], None]
Outcome = tuple[NDArray[Any], Exception | None]  # what was sent; what is raised


class RingMachine(Machine):
    """*n_devices* GPUs, each as *spec* says (``MachineSpec.of_gpu``), in a ring or behind a switch."""

    def __init__(
        self,
        spec: MachineSpec,
        policy: ArbitrationPolicy,
        params: dict[str, Any],
        n_devices: int,
        quantum_ps: int | None = None,
        order: Sequence[int] | None = None,
        n_threads: int = 1,
        ticks: TickBase | None = None,
        traffic: TrafficClasses = T3_TRAFFIC,
        n_gpus: int | None = None,
        step: int = 1,
    ) -> None:
        """*n_gpus* (default: as many as devices) is how many there are: device d is rank d x *step* (``Machine``).

        *order* is the order in which devices and links are set up; like *n_threads* it never changes a result.

        *ticks* is the time of a larger ring that this is a part of.  Raises ``EnvironmentFailure`` if there is no
        memory for that many GPUs.
        """
        self.order = list(range(n_devices) if order is None else order)
        self.ticks = TickBase.of(spec) if ticks is None else ticks
        require_room([layout_for(spec.of_gpu(d), len(traffic.names)) for d in range(n_devices)])
        cores = {d: GpuCore(spec.of_gpu(d), policy, params, ticks=self.ticks, traffic=traffic) for d in self.order}
        self.window = window_of(list(cores.values()), quantum_ps)
        super().__init__([cores[d] for d in range(n_devices)], self.window, n_gpus or n_devices, step)
        self.n_windows = [0] * n_devices  # through which each device has gone
        # The window through which others may go that hear from it; NEVER if it is over: all it sent is on the wire.
        self._open_until = [1] * n_devices
        self._may_go = [True] * n_devices  # neither on its way nor over nor failed
        n_threads = min(n_threads, n_devices)
        self._last: list[int | None] = [None] * n_threads  # the device that each thread advanced last
        self._crew: Crew[int, Outcome] | None = None  # while it runs: a crew refers to the ring, whose memory is large
        self._reports: Sequence[Report] | None = None
        self._failed: dict[int, Exception] = {}  # by device
        self._leaving: dict[int, int] = {}  # of kernels that have ended: when the last of what they sent is on the wire
        for d in self.order if self.n_gpus > 1 else ():
            self.connect(d)
        self._heard = [self.senders_to(d) for d in range(n_devices)]
        # For each device, of each that it hears from and of itself (multicast): what that has sent, by the end of which
        # window.
        self._arrived: list[dict[int, deque[tuple[int, NDArray[Any]]]]] = [
            {sender: deque() for sender in (*senders, d)} for d, senders in enumerate(self._heard)
        ]

    def hand_over(self, sender: int, receiver: int, messages: NDArray[Any]) -> None:
        """Keep *messages* until *receiver* comes to the window that begins when they had been sent."""
        self._arrived[receiver][sender].append((self.n_windows[sender], messages))

    def load(self, d: int, program: Program, start_at: int = 0) -> None:
        """Load *program* on GPU *d*, whose host begins at tick *start_at*; ``note_loaded`` when all have theirs.

        Raises ``UsageError`` for streams in the background: what others wait for might be cut off with them.
        """
        if program.background:
            raise UsageError("program: streams in the background need mirrored mode, where one GPU represents all")
        shift = self.load_on(d, program, start_at)
        if d in self.links:
            self.links[d].transform = shift

    # --- running ---------------------------------------------------------------------------------

    def run(self, reports: Sequence[Report] | None = None) -> list[int]:
        """Run what is loaded to its end; return the tick at which each device ended.

        *reports*, one for each device, receive the completed share of its work from time to time.  Raises
        as ``run_watched``.
        """
        self._reports = reports
        crew = self._crew = Crew(len(self._last), self._choose, self._advance_one, self._take_in)
        try:
            with crew.threads():
                return self.run_watched(self._run_all(crew), LOOK_EVERY + len(self.devices))
        finally:
            self._crew = None

    def _run_all(self, crew: Crew[int, Outcome]) -> Generator[simpy.Event, Any, None]:
        """Advance all devices until the kernel of each has ended and all it sent is on the wire.

        Each turn is taken in as it ends, so no thread waits for the slowest one.  Nothing depends on which ends first:
        a device takes in messages by the window in which they were sent.
        """
        n_turns, n_at_once = 0, quanta_at_once(self.devices[0])
        while crew.do_one():
            n_turns += 1
            if n_turns % n_at_once == 0:  # time moves each time: a moment of SimPy holds so many turns and no more
                yield self.env.timeout(max(1, min(self.n_windows) * self.window - int(self.env.now)))
        if self._failed:
            raise self._failed[min(self._failed, key=lambda d: (self.n_windows[d], d))]

    def _take_in(self, d: int, outcome: Outcome) -> None:
        """Let the link carry what a device has sent in a window, and look at the device now and then."""
        messages, error = outcome
        if error is not None:
            self._failed[d] = error
            return
        self._open_until[d] = NEVER if self._has_ended(d) else self.n_windows[d] + 1
        self.devices[d].put_on_link(messages)
        self._look_at(d)
        self._may_go[d] = self._open_until[d] != NEVER

    def settle(self) -> bool:
        """See the base class."""
        if self._crew is not None:
            self._crew.settle()
        return any(queue for queues in self._arrived for queue in queues.values())

    def _has_ended(self, d: int) -> bool:
        """Return whether the kernel of device *d* has ended and all that it sent is on the wire."""
        return self.cores[d].now >= self._leaving.get(d, NEVER)

    def _room(self, d: int) -> int:
        """Return through how many windows device *d* may go: none if it is on its way, over, or failed.

        It may go to the end of the first window that one it hears from is in.  After a failure, into none that begins
        after the end of the window of that: so the failure that is raised, the one in the earliest window, is the same
        with any number of threads.
        """
        if not self._may_go[d]:
            return 0
        until = min([self._open_until[other] for other in self._heard[d]], default=NEVER)
        if self._failed:
            until = min(until, *(self.n_windows[one] for one in self._failed))
        return until - self.n_windows[d]

    def _choose(self, thread: int) -> int | None:
        """Return the device that *thread* is to advance by a window, None if there is none.

        The caches of a core hold the device that it has advanced, and another one costs half a window more.  So a
        thread stays with a device as long as that may go on.  Then it takes one behind a device that is on its way, the
        one that may go furthest of these or of all, the first of several: N devices of a ring on T threads come to go
        on for nearly N windows each, threads one after the other.  With a thread for each device each has its own.
        """
        last = self._last[thread]
        if last is not None and self._room(last) > 0:
            d = last
        else:
            has_its_own = len(self._last) == len(self.devices)
            rooms = {d: self._room(d) for d in ((thread,) if has_its_own else range(len(self.devices)))}
            d = max(rooms, key=lambda d: (rooms[d] > 0 and self._is_behind(d), rooms[d]))
            if rooms[d] <= 0:
                return None
        self._may_go[d], self._last[thread] = False, d
        return d

    def _is_behind(self, d: int) -> bool:
        """Return whether device *d* hears from one that is on its way, so that its room grows, or that is over."""
        return not all(self._may_go[other] for other in self._heard[d])

    def _look_at(self, d: int) -> None:
        """Look at device *d* now and then: does it move, how far is it?"""
        if d in self._leaving or self.n_windows[d] % LOOK_EVERY:
            return
        watch = self.devices[d].watch
        if watch is not None:
            watch()
        if self._reports is not None:
            self._reports[d](self.cores[d].share_done)

    def _advance_one(self, d: int) -> Outcome:
        """Advance a device by a window; return what it has sent."""
        device, core = self.devices[d], self.cores[d]
        try:
            for queue in self._arrived[d].values():
                while queue and queue[0][0] <= self.n_windows[d]:
                    device.receive(queue.popleft()[1])
            self.n_windows[d] += 1
            horizon = self.n_windows[d] * self.window
            if device.advance(min(horizon, self._leaving.get(d, NEVER))):
                self._leaving[d] = all_sent_at(core)
                device.advance(min(horizon, self._leaving[d]))  # the rest of the window
            return core.take_outbox(), None
        except Exception as error:  # noqa: BLE001 - raised again by the driver
            return NO_MESSAGES, error


def all_sent_at(core: GpuCore) -> int:
    """Return the end of the issue slot in which the last store that waits for the link starts on the wire, 0 if none.

    All of them are in the buffer: the kernel has ended.
    """
    return max(sent_at_port(core, port) for port in core.ports)


def sent_at_port(core: GpuCore, port: Any) -> int:
    """Return the same for one of its ports."""
    waiting = core.unsent_stores(port)
    if not len(waiting):
        return 0
    costs = int(port.payload_cost) + int(port.header_cost) // waiting["packet"].astype(np.int64)
    scale = int(port.scale)
    start = max(core.now * scale, int(port.free_at_scaled)) + int(costs[:-1].sum())
    return (start // (core.slot_ticks * scale) + 1) * core.slot_ticks


def window_of(cores: Sequence[GpuCore], quantum_ps: int | None) -> int:
    """Return the ticks of a window: what is sent in one arrives after the next one has begun.

    That is the shortest latency, or the quantum if that is shorter, in whole issue slots.  If slots differ, a GPU may
    be up to a slot after the end of its window, so the latency must be longer by that.
    """
    quanta = [quantum_of(core, quantum_ps) for core in cores]
    quantum, latency = min(quantum for quantum, _ in quanta), min(latency for _, latency in quanta)
    slots = {core.slot_ticks for core in cores}
    longest = max(slots)
    window = quantum // longest * longest if len(slots) == 1 else min(quantum, latency - longest)
    if window <= 0:
        raise UsageError(
            f"quantum: it must be longer than the longest issue slot of the ring, {longest} ticks"
            " (the shortest link latency bounds the quantum from above)"
        )
    return window
