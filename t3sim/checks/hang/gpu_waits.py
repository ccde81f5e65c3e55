"""Which part of a GPU waits for which.

Every unit of the kernel refuses to go on for a reason that its state shows.  ``graph_of`` writes each reason down as an
edge from the part that waits to the part it waits for, or as a fault if there is no such part (see ``wait_graph``).
Parts carry instance names, ``gpu[0].channel[3].bank[5]``, as in timelines.
"""

from __future__ import annotations

from collections.abc import Sequence

from t3sim.checks.hang.compute_waits import ComputeWaits
from t3sim.checks.hang.memory_waits import MemoryWaits
from t3sim.checks.hang.overlap_waits import OverlapWaits
from t3sim.checks.hang.unit_waits import HungGpu, counted
from t3sim.checks.hang.wait_graph import WaitGraph
from t3sim.gpu.kernel import codes


def graph_of(gpus: Sequence[HungGpu]) -> WaitGraph:
    """Return who waits for whom in all of *gpus*; its roots are ``NAME.kernel``."""
    graph = WaitGraph()
    by_name = {gpu.name: gpu for gpu in gpus}
    for gpu in gpus:
        GpuWaits(gpu, graph).add_all()
        if gpu.link is not None:
            upstream = by_name.get(gpu.upstream or "")
            _add_link(graph, gpu, upstream)
    return graph


def _add_link(graph: WaitGraph, gpu: HungGpu, upstream: HungGpu | None) -> None:
    """The wire between two GPUs: has it lost something, or has the sender something left?"""
    assert gpu.link is not None
    missing = int(gpu.core.gpu.expected_inbound - gpu.core.gpu.n_inbound)
    lost = gpu.n_delivered - int(gpu.core.gpu.inbox_tail)
    if lost > 0:
        graph.fault(gpu.link, f"{counted(lost, 'granule')} it delivered never reached the inbox of {gpu.name}")
    if upstream is None or missing <= 0:
        return
    senders = GpuWaits(upstream, graph).senders()
    for part, reason in senders:
        graph.wait(gpu.link, part, reason)
    if not senders and gpu.core.gpu.inbox_head == gpu.core.gpu.inbox_tail:
        graph.fault(
            gpu.link,
            f"{gpu.name} expects {counted(missing, 'more granule')}, but its neighbour has nothing left to send",
        )


class GpuWaits(ComputeWaits, OverlapWaits, MemoryWaits):
    """All units of one GPU."""

    def add_all(self) -> None:
        """Write down every part of this GPU that waits."""
        kernel = self.gpu.running_kernel
        if kernel & codes.KERNEL_GEMM:
            self.add_gemm()
        if kernel & codes.KERNEL_COLLECTIVE:
            self.add_collective()
        if kernel != codes.KERNEL_NONE:
            self.add_mailbox()
            self.add_link_port()
            self.add_channels()

    def add_gemm(self) -> None:
        """Workgroups, dispatcher, L2, tracker, DMA engine; what the end of the kernel waits for."""
        gpu = self.gpu
        unfinished = int(gpu.n_workgroups - gpu.n_finished)
        for c in range(int(gpu.n_compute_units)):
            for s in self.resident_slots(c):
                self.wait("kernel", f"compute_unit[{c}].slot[{s}]", f"{counted(unfinished, 'workgroup')} not finished")
                self.add_slot(c, s)
        if gpu.n_dispatched < gpu.n_workgroups:
            self.wait("kernel", "workgroup_dispatcher", f"{counted(unfinished, 'workgroup')} not finished")
            self.add_dispatcher()
        self.add_l2()
        self.add_tracker()
        self.add_dma()
