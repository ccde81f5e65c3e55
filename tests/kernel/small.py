"""The machine the unit tests of the kernel run on: t3-tiny, with what a test changes, in the standard layout.

A test calls the functions of one unit on the records of a ``GpuCore``, compiled as in a
run; ``T3SIM_INTERPRETED=1`` runs the same tests on the uncompiled functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.collective.schedule import CollectiveSchedule
from t3sim.config.experiment import GemmShape, TilingSpec
from t3sim.config.machine import MachineSpec
from t3sim.config.resolve import resolve_machine
from t3sim.config.yaml_loader import load_yaml_text
from t3sim.gpu.arbitration import ArbitrationPolicy, arbitration_policies
from t3sim.gpu.core import GpuCore
from t3sim.gpu.units import codes
from t3sim.gpu.units.compute.command_processor import start_operations
from t3sim.gpu.units.compute.workgroup_dispatcher import dispatch_workgroups
from t3sim.gpu.units.dram.memory_controller import queued_request
from t3sim.gpu.units.link.mailbox import receive_messages
from t3sim.program.kernels import program, ring
from t3sim.program.operations import Program
from t3sim.program.operator import Operator
from t3sim.program.parts import gemm_part
from t3sim.strategies.t3 import fused_program
from t3sim.system.machine import MirroredMachine
from t3sim.system.ring import RingMachine
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


def gemm_of(spec: MachineSpec, trace: TileTrace) -> Program:
    """Return the program of a GEMM alone, output through the L2."""
    return gemm_part(Operator(spec, trace.n_chunks, trace)).programs[0]


def fused_of(spec: MachineSpec, trace: TileTrace) -> Program:
    """Return T3's program of a GEMM whose chunks are those of *trace*."""
    return fused_program(Operator(spec, trace.n_chunks, trace), 0)


def ring_of(spec: MachineSpec, n: int, schedule: CollectiveSchedule) -> Program:
    """Return the program of a ring of *n* GPUs that runs *schedule*."""
    op = Operator(spec, n)
    memory = op.memory()
    return program(op, 0, memory, ring(op, memory, schedule, "ring"))


def at_once(program: Program) -> Program:
    """Return *program* without the time that launches take."""
    return replace(program, operations=tuple(replace(one, launch=0) for one in program.operations))


def mirrored(
    spec: MachineSpec,
    program: Program,
    policy: str | ArbitrationPolicy = "round_robin",
    params: Mapping[str, Any] | None = None,
    quantum_ps: int | None = None,
) -> MirroredMachine:
    """Return a GPU that runs *program* and represents all of its ranks, loaded."""
    wired = MirroredMachine(spec, policy_of(policy), dict(params or {}), quantum_ps, n_gpus=program.n)
    wired.load(program)
    return wired


def explicit(spec: MachineSpec, *programs: Program, **of_machine: Any) -> RingMachine:
    """Return a machine with a GPU for each of *programs*, loaded."""
    ring = RingMachine(spec, policy_of("round_robin"), {}, len(programs), **of_machine)
    for d, one in enumerate(programs):
        ring.load(d, one)
    ring.note_loaded()
    return ring


def policy_of(policy: str | ArbitrationPolicy) -> ArbitrationPolicy:
    """Return a policy by its name, or as it is."""
    return arbitration_policies.get(policy) if isinstance(policy, str) else policy


def with_gemm(trace: TileTrace, changes: str = "") -> GpuCore:
    """Return a GPU of ``machine(changes)`` with a GEMM, output through the L2, that starts at once."""
    core = core_of(changes)
    core.load(at_once(gemm_of(core.machine, trace)))
    return core


def with_fused(trace: TileTrace, changes: str = "") -> GpuCore:
    """Return a GPU of ``machine(changes)`` with T3's fused GEMM, that starts at once."""
    core = core_of(changes)
    core.load(at_once(fused_of(core.machine, trace)))
    return core


def dispatch(core: GpuCore, now: int = 0) -> None:
    """Start the operations whose time has come, and let the dispatcher fill free slots."""
    t = core.tables
    start_operations(core.gpu, now)
    dispatch_workgroups(core.gpu, t.workgroups, t.tiles, t.commands, now)


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
            request = queued_request(channel, stream, i)
            taken.append((channel_id, int(request.place), int(request.tag), int(request.at)))
        channel.queue_head[stream] = tail
    return taken


def take_in(core: GpuCore, slot_end: int, signals: Any = None) -> None:
    """Let the mailbox take in what arrives before *slot_end*; *signals* are in place of those of the program."""
    tables = core.tables
    signals = tables.signals if signals is None else signals
    receive_messages(core.gpu, core.inbox, tables.tiles, tables.steps, signals, tables.dma_queue, core.outbox, slot_end)


def messages_of(dtype: np.dtype[Any], at: Any, **columns: Any) -> NDArray[Any]:
    """Return messages that the kernel can read: times *at* and the other columns, no signal, zero elsewhere."""
    messages = np.zeros(len(at), dtype).view(np.recarray)
    messages["at"], messages["signal"], messages["packet"] = at, -1, 1
    for name, values in columns.items():
        messages[name] = values
    return messages
