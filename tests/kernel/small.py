"""The machine the unit tests of the kernel run on: t3-tiny, with what a test changes, in the standard layout.

A test calls the functions of one unit on the records of a ``GpuCore``, compiled as in a
run; ``T3SIM_INTERPRETED=1`` runs the same tests on the uncompiled functions.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.config.experiment import GemmShape, TilingSpec
from t3sim.config.machine import MachineSpec
from t3sim.config.resolve import resolve_machine
from t3sim.config.yaml_loader import load_yaml_text
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.core import GpuCore
from t3sim.gpu.kernel import codes
from t3sim.gpu.kernel.command_processor import start_operations
from t3sim.gpu.kernel.workgroup_dispatcher import dispatch_workgroups
from t3sim.gpu.routes import StoreRoutes
from t3sim.workload.tiling import TileTrace, make_tile_trace

TILING = TilingSpec(workgroup_tile=(64, 64), wavefront_tile=(32, 64), k_slice=64, prefetch_depth=1)
FOREVER = 1 << 36  # ticks; ten seconds


@cache
def machine(changes: str = "") -> MachineSpec:
    """Return t3-tiny with *changes*, inline YAML such as ``gpu: {n_compute_units: 2}``."""
    text = f"machine: {{preset: t3-tiny, {changes}}}"
    return resolve_machine(load_yaml_text(text, "test.yaml").get("machine")).spec


def core_of(changes: str = "") -> GpuCore:
    """Return an idle GPU of ``machine(changes)``."""
    return GpuCore(machine(changes), arbitration_policies.get("round_robin"), {})


def trace_of(m: int, n: int, k: int = 64, *, n_chunks: int = 1, tiling: TilingSpec = TILING) -> TileTrace:
    """Return the tile trace of a GEMM with tiles of 64 x 64 and wavefront tiles of 32 x 64."""
    return make_tile_trace(GemmShape(m=m, n=n, k=k), tiling, n_chunks)


def load_mapped(core: GpuCore, trace: TileTrace, program: Any, *arguments: Any, device_id: int = 0) -> StoreRoutes:
    """Load *trace* with its output mapped by *program*, as one device of a ring does; return the routes."""
    routes = StoreRoutes(trace.n_workgroups)
    program(routes, trace, device_id, *arguments)
    core.load_gemm(trace, routes, start_at=0, device_id=device_id)
    return routes


def dispatch(core: GpuCore, now: int = 0) -> None:
    """Start the operations whose time has come, and let the dispatcher fill free slots."""
    t = core.tables
    start_operations(core.gpu, t.operations, t.running, now)
    dispatch_workgroups(core.gpu, t.operations, t.running, t.workgroups, t.tiles, t.commands, now)


def set_residents(core: GpuCore, n_slots: int) -> None:
    """Let *n_slots* workgroups of the only GEMM be resident on a compute unit."""
    gemm = core.tables.operations[0]
    core.gpu.n_slots = gemm.n_slots = n_slots
    gemm.share = codes.ALL_SHARES // n_slots


def free_slot(core: GpuCore, cu: int, slot: int) -> None:
    """Take a workgroup of the only GEMM out of its slot."""
    unit = core.gpu.compute_units[cu]
    unit.slots[slot].workgroup = -1
    unit.shares -= core.tables.operations[0].share


def take_requests(core: GpuCore, stream: int) -> list[tuple[int, int, int, int]]:
    """Empty the queues of *stream*, in place of the DRAM; return (channel, place, tag, cycle) of each request."""
    taken = []
    for channel_id in range(int(core.gpu.n_channels)):
        channel = core.gpu.channels[channel_id]
        head, tail = int(channel.queue_head[stream]), int(channel.queue_tail[stream])
        for i in range(head, tail):
            index = i & (channel.request_at.shape[1] - 1)
            request = channel.request_place[stream, index], channel.request_tag[stream, index]
            taken.append((channel_id, int(request[0]), int(request[1]), int(channel.request_at[stream, index])))
        channel.queue_head[stream] = tail
    return taken


def messages_of(dtype: np.dtype[Any], at: Any, **columns: Any) -> NDArray[Any]:
    """Return messages that the kernel can read: times *at* and the other columns, no signal, zero elsewhere."""
    messages = np.zeros(len(at), dtype).view(np.recarray)
    messages["at"], messages["signal"], messages["packet"] = at, -1, 1
    for name, values in columns.items():
        messages[name] = values
    return messages
