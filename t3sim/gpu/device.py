"""The SimPy face of a GPU: kernels as processes, messages as batches.

A GPU runs alone for one quantum, at most the link latency: nothing that another GPU does in that
time can reach it.  What it sent is handed to the link, what arrived before is in its inbox, so
the result does not depend on the length of the quantum.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import simpy
from numpy.typing import NDArray

from t3sim.errors import ModelError

if TYPE_CHECKING:
    from t3sim.gpu.core import GpuCore

PATIENCE_SLOTS = 200_000  # slots without any progress before a run is given up (about 1 ms)


class Device:
    """One GPU in simulated time."""

    def __init__(self, env: simpy.Environment, name: str, core: GpuCore, quantum_ticks: int) -> None:
        """*quantum_ticks* is rounded down to whole issue slots."""
        self.env = env
        self.name = name
        self.core = core
        self.quantum_ticks = quantum_ticks // core.slot_ticks * core.slot_ticks
        self.egress: Callable[[NDArray[Any]], None] | None = None  # where the outgoing link takes messages
        self._last_progress: tuple[int, ...] = ()
        self._last_progress_at = 0

    def receive(self, messages: NDArray[Any]) -> None:
        """Take messages from a link; they carry their own arrival time."""
        self.core.receive(messages)

    def run_kernel(self, report: Callable[[float], None] | None = None) -> Generator[simpy.Event, Any, int]:
        """Run the loaded kernel to its end; return the tick at which it ended."""
        while True:
            horizon = int(self.env.now) + self.quantum_ticks
            is_done = self.core.advance(horizon)
            sent = self.core.take_outbox()
            if len(sent):
                if self.egress is None:
                    raise ModelError(f"{self.name} sent {len(sent)} granules but has no link")
                self.egress(sent)
            if is_done:
                yield self.env.timeout(max(self.core.now - int(self.env.now), 0))
                return self.core.kernel_end_at
            self._check_progress()
            if report is not None:
                report(self.core.share_done)
            yield self.env.timeout(self.quantum_ticks)

    def _check_progress(self) -> None:
        """Raise ``ModelError`` when nothing has moved for a long time although a kernel is running."""
        gpu = self.core.gpu
        progress = (
            int(gpu.channels["n_commands"].sum()),
            int(gpu.n_finished),
            int(gpu.n_inbound),
            int(gpu.link_port.n_sent),
            int(gpu.compute_units["state_slots"][:, 0].sum()),
        )
        if progress != self._last_progress:
            self._last_progress = progress
            self._last_progress_at = self.core.now
        elif self.core.now - self._last_progress_at > PATIENCE_SLOTS * self.core.slot_ticks:
            raise ModelError(describe_stall(self.name, self.core))


def describe_stall(name: str, core: GpuCore) -> str:
    """Return what every unit of a GPU that no longer moves is waiting for."""
    gpu = core.gpu
    waiting = [c for c in range(core.machine.gpu.n_compute_units) if gpu.compute_units[c].is_waiting]
    queued = int((gpu.channels["queue_tail"] - gpu.channels["queue_head"]).sum())
    received = f"{int(gpu.n_inbound)} of {int(gpu.expected_inbound)}"
    inbox = int(gpu.inbox_tail - gpu.inbox_head)
    lines = [
        f"{name} no longer moves at {core.ticks.to_us(core.now):.3f} us although a kernel is running",
        f"workgroups: {int(gpu.n_finished)} of {int(gpu.n_workgroups)} finished, {int(gpu.n_dispatched)} dispatched",
        f"link: {received} granules received, {inbox} in the inbox, {int(gpu.link_port.n_sent)} sent",
        f"tracker: {int(gpu.tracker.n_entries)} entries in use, {int(gpu.n_tiles_open)} tiles not triggered",
        f"dma: {int(gpu.dma.n_commands_done)} of {int(gpu.dma.n_commands)} commands done, {int(gpu.dma.n_ready)} armed",
        f"controllers: {queued} requests in stream queues, {int(gpu.channels['occupancy'].sum())} in DRAM queues",
        f"compute units waiting for a controller: {len(waiting)}",
    ]
    return "\n".join(lines)
