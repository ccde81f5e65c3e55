"""The SimPy face of a GPU: kernels as processes, messages as batches.

A GPU runs alone for one quantum, at most the link latency: nothing that another GPU does in that
time can reach it.  What it sent is handed to the link, what arrived before is in its inbox, so
the result does not depend on the length of the quantum.
"""

from collections.abc import Callable, Generator
from typing import Any

import simpy
from numpy.typing import NDArray

from t3sim.errors import ModelError
from t3sim.gpu.core import GpuCore
from t3sim.gpu.units.codes import NEVER

LOOK_EVERY = 8  # quanta between two checks of progress: a check costs a hundredth of a quantum


class Device:
    """One GPU in simulated time."""

    def __init__(self, env: simpy.Environment, name: str, core: GpuCore, quantum_ticks: int) -> None:
        """*quantum_ticks* is rounded down to whole issue slots."""
        self.env = env
        self.name = name
        self.core = core
        self.quantum_ticks = quantum_ticks // core.slot_ticks * core.slot_ticks
        self.egress: Callable[[NDArray[Any]], None] | None = None  # where the outgoing link takes messages
        self.is_tapped = False  # messages pass here even if the GPU receives only its own
        self.watch: Callable[[], None] | None = None  # called now and then, while the kernel has not ended

    def unwire(self) -> None:
        """Let go of links, watchers and readers after the last run, so that memory is free without the collector."""
        self.egress = self.watch = None
        self.core.stop_streaming()

    def receive(self, messages: NDArray[Any]) -> None:
        """Take messages from a link; they carry their own arrival time."""
        self.core.receive(messages)

    def advance(self, horizon: int) -> bool:
        """Run to tick *horizon*; return whether the kernel has ended.  Touches nothing but this GPU."""
        return self.core.advance(horizon)

    def put_on_link(self, messages: NDArray[Any]) -> None:
        """Put on the outgoing link what was sent while the GPU advanced."""
        if len(messages):
            if self.egress is None:
                raise ModelError(f"{self.name} sent {len(messages)} granules but has no link")
            self.egress(messages)

    def tap(self, listener: Callable[[NDArray[Any]], None]) -> None:
        """Pass what is sent to *listener* before it is put on the link; call it before a run."""
        send, self.is_tapped = self.egress, True

        def heard(messages: NDArray[Any]) -> None:
            listener(messages)
            if send is not None:
                send(messages)

        self.egress = heard

    def run_kernel(
        self, report: Callable[[float], None] | None = None, n_at_once: int = 1
    ) -> Generator[simpy.Event, Any, int]:
        """Run the loaded kernel to its end; return the tick at which it ended.

        *report* receives the completed share of the work, every ``LOOK_EVERY`` quanta.  SimPy's clock moves by up to
        *n_at_once* quanta at a time, if nothing else is due in them: an event takes ten microseconds.
        """
        n_quanta = 0
        until = int(self.env.now)
        while True:
            n = 1
            if self.core.hears_itself:  # so the loop need not come back after each
                n_before_others = int(min(self.env.peek(), NEVER) - until) // self.quantum_ticks
                n = max(1, min(n_at_once - n_quanta % n_at_once, n_before_others))
            n_quanta += n
            until += n * self.quantum_ticks
            is_done = self.advance(until)
            if is_done or not self.core.hears_itself:
                self.put_on_link(self.core.take_outbox())
            if is_done:
                yield self.env.timeout(max(self.core.now - int(self.env.now), 0))
                return self.core.kernel_end_at
            if n_quanta % LOOK_EVERY == 0:
                if self.watch is not None:
                    self.watch()
                if report is not None:
                    report(self.core.share_done)
            if n_quanta % n_at_once == 0 or self.env.peek() <= until:
                yield self.env.timeout(until - int(self.env.now))
