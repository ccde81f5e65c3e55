"""A wired machine in which every GPU is simulated; in a ring, device *d* sends to device *d* - 1.

At position ``p`` device ``d`` works on chunk ``(d + p) mod n``, so what it has done there is what its
neighbour needs at position ``p + 1``.

The GPUs advance in windows of the shortest link latency: nothing that is sent inside a window arrives before its end.
So a GPU may run alone, on whatever thread, through all windows that every GPU has begun from which it can hear;
between two turns the links carry the messages, and each is taken in at the begin of the window that follows the one in
which it was sent.
The result depends neither on the number of threads nor on any order.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from t3sim.config.machine import MachineSpec
from t3sim.errors import UsageError
from t3sim.gpu.arbitration import ArbitrationPolicy
from t3sim.gpu.core import T3_TRAFFIC, GpuCore
from t3sim.gpu.device import LOOK_EVERY
from t3sim.gpu.kernel.codes import NEVER
from t3sim.gpu.ticks import TickBase
from t3sim.gpu.traffic import TrafficClasses
from t3sim.program.operations import Program
from t3sim.system.machine import Machine, quantum_of
from t3sim.system.threads import Turns

MOST_WINDOWS = 8  # that a GPU advances at a time: more makes nothing faster
Report = Callable[[float], None]
Outcome = tuple[list[tuple[int, NDArray[Any]]], Exception | None]  # of a turn: what was sent, by window; what is raised


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
    ) -> None:
        """*order* is the order in which devices and links are set up; like *n_threads* it never changes a result.

        *ticks* is the time of a larger ring that this is a part of.
        """
        self.order = list(range(n_devices) if order is None else order)
        self.ticks = TickBase.of(spec) if ticks is None else ticks
        cores = {d: GpuCore(spec.of_gpu(d), policy, params, ticks=self.ticks, traffic=traffic) for d in self.order}
        self.window = window_of(list(cores.values()), quantum_ps)
        super().__init__([cores[d] for d in range(n_devices)], self.window, n_devices)
        self.n_windows = [0] * n_devices  # through which each device has gone
        self._n_taken_in = [0] * n_devices  # of these, those whose messages are with their receivers
        # The window through which others may go that hear from it; NEVER if it is over: all it sent is on the wire.
        self._open_until = [1] * n_devices
        self._may_go = [True] * n_devices  # neither on its way nor over nor failed
        # All devices together may be about *n_devices* windows apart. Each thread has a turn, and a window is left for
        # each, so that the thread that is done first need not wait for the others.
        most = MOST_WINDOWS if n_threads == 1 else n_devices // n_threads - 1
        self._most_windows = max(1, min(MOST_WINDOWS, most))
        self._shares_threads = n_threads < n_devices
        self._turns: Turns[Outcome] = Turns(n_threads, n_devices)
        self._failed: dict[int, Exception] = {}  # by device
        # For each device, of each: what it has sent, and by the end of which window.
        self._arrived: list[list[deque[tuple[int, NDArray[Any]]]]] = [
            [deque() for _ in range(n_devices)] for _ in range(n_devices)
        ]
        self._sent_in = 0  # windows, by whose end the sender had sent what a link delivers now
        self._leaving: dict[int, int] = {}  # of kernels that have ended: when the last of what they sent is on the wire
        for d in self.order if n_devices > 1 else ():
            self.connect(d)
            self.devices[d].egress = self.links[d].carry  # at once: a turn is put on it between two moments
        self._heard = [self.senders_to(d) for d in range(n_devices)]

    def hand_over(self, sender: int, receiver: int, messages: NDArray[Any]) -> None:
        """Keep *messages* until *receiver* comes to the window that begins when they had been sent."""
        self._arrived[receiver][sender].append((self._sent_in, messages))

    def load(self, d: int, program: Program, start_at: int = 0) -> None:
        """Load *program* on GPU *d*, whose host begins at tick *start_at*; ``note_loaded`` when all have theirs.

        Raises ``UsageError`` for streams in the background: what others wait for might be cut off with them.
        """
        if program.background:
            raise UsageError("program: streams in the background need mirrored mode, where one GPU stands for all")
        shift = self.load_on(d, program, start_at)
        if d in self.links:
            self.links[d].transform = shift

    # --- running ---------------------------------------------------------------------------------

    def run(self, reports: Sequence[Report] | None = None) -> list[int]:
        """Run what is loaded to its end; return the tick at which each device ended.

        *reports*, one for each device, are told the share of its work that is done, now and then.  Raises
        as ``run_watched``.
        """
        with self._turns.threads():
            return self.run_watched(self._run_all(reports), LOOK_EVERY + len(self.devices))

    def _run_all(self, reports: Sequence[Report] | None) -> Generator[simpy.Event, Any, None]:
        """Advance all devices until the kernel of each has ended and all it sent is on the wire.

        The next turn is always of the device that may go furthest. In a ring it comes to be the one behind the one
        that went last, which finds its neighbour ahead and goes on for several windows at once: the caches of the host
        like that better than going round window by window.
        Up to two turns for each thread are under way, and each is taken in as it ends, so a thread waits neither for
        the slowest one nor for the links.  Nothing depends on which ends first: a device takes in messages by the
        window in which they were sent.
        """
        while True:
            while self._turns.has_room and (turn := self._furthest()):
                self._may_go[turn[0]] = False
                self._turns.give(turn[0], partial(self._advance_one, *turn))
            if not self._turns.n_open:
                break
            d, (sent, error) = self._turns.take()
            before = self._n_taken_in[d]
            self._n_taken_in[d] = self.n_windows[d] - (error is not None)
            self._open_until[d] = NEVER if self._has_ended(d) else self._n_taken_in[d] + 1
            self._may_go[d] = error is None and self._open_until[d] != NEVER
            if error is not None:
                self._failed[d] = error
            for n_windows, messages in sent:
                self._sent_in = n_windows
                self.devices[d].put_on_link(messages)
            self._look_at(d, before, reports)
            # Time moves in every turn: a moment of SimPy holds one turn and no more.
            yield self.env.timeout(max(1, min(self._n_taken_in) * self.window - int(self.env.now)))
        if self._failed:
            raise self._failed[min(self._failed, key=lambda d: (self.n_windows[d], d))]

    def settle(self) -> bool:
        """See the base class."""
        is_sent = any(sent for sent, _ in self._turns.settle())
        return is_sent or any(queue for queues in self._arrived for queue in queues)

    def _has_ended(self, d: int) -> bool:
        """Return whether the kernel of device *d* has ended and all that it sent is on the wire."""
        return self.cores[d].now >= self._leaving.get(d, NEVER)

    def _furthest(self) -> tuple[int, int] | None:
        """Return the device that may advance by most windows, the first of several, and by how many; None: none may.

        A device may go to the end of the first window that one it hears from is in.  After a failure, into none that
        begins after the end of the window of that: so the failure that is raised, the one in the earliest window, is
        the same with any number of threads.
        """
        last = min([self.n_windows[d] for d in self._failed], default=NEVER)
        furthest, most = 0, 0
        for d, may_go in enumerate(self._may_go):
            if may_go:
                room = min([last, *(self._open_until[other] for other in self._heard[d])]) - self._n_taken_in[d]
                if room > most:
                    furthest, most = d, room
                    if most >= self._most_windows:
                        return d, self._most_windows
        return (furthest, most) if most else None

    def _look_at(self, d: int, before: int, reports: Sequence[Report] | None) -> None:
        """Look at a device that has advanced from window *before* on: does it move, how far is it?"""
        if d in self._leaving or d in self._failed:
            return
        if self.n_windows[d] // LOOK_EVERY == before // LOOK_EVERY:
            return
        watch = self.devices[d].watch
        if watch is not None:
            watch()
        if reports is not None:
            reports[d](self.cores[d].share_done)

    def _advance_one(self, d: int, n_windows: int) -> Outcome:
        """Advance device *d* by so many windows; return what it sent in each, with the number of the window."""
        device, core, arrived = self.devices[d], self.cores[d], self._arrived[d]
        sent: list[tuple[int, NDArray[Any]]] = []
        if self._shares_threads:
            core.fetch()
        try:
            for _ in range(n_windows):
                for queue in arrived:
                    while queue and queue[0][0] <= self.n_windows[d]:
                        device.receive(queue.popleft()[1])
                self.n_windows[d] += 1
                horizon = self.n_windows[d] * self.window
                if device.advance(min(horizon, self._leaving.get(d, NEVER))):
                    self._leaving[d] = all_sent_at(core)
                    device.advance(min(horizon, self._leaving[d]))  # the rest of the window
                messages = core.take_outbox()
                if len(messages):
                    sent.append((self.n_windows[d], messages))
                if self._has_ended(d):
                    break
        except Exception as error:  # noqa: BLE001 - raised again by the driver
            return sent, error
        return sent, None


def all_sent_at(core: GpuCore) -> int:
    """Return the end of the issue slot in which the last store that waits for the link starts on the wire, 0 if none.

    All of them are in the buffer: the kernel has ended.
    """
    port, queues = core.gpu.link_port, core.unsent_stores()
    waiting = np.concatenate(queues)
    if not len(waiting):
        return 0
    costs = int(port.payload_cost) + int(port.header_cost) // waiting["packet"].astype(np.int64)
    # Whichever of the queues comes last: if packets differ, this is at most the difference too late.
    last = int(costs[-1]) if len(queues) == 1 else int(costs.min())
    scale = int(port.scale)
    start = max(core.now * scale, int(port.free_at_scaled)) + int(costs.sum()) - last
    return (start // (core.slot_ticks * scale) + 1) * core.slot_ticks


def window_of(cores: Sequence[GpuCore], quantum_ps: int | None) -> int:
    """Return the ticks of a window: what is sent in one arrives after the next one has begun.

    That is the shortest latency, or the quantum if that is shorter, in whole issue slots.  If slots differ, a GPU may
    be up to a slot behind the end of its window, so the latency must be longer by that.
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
