"""Time of each unit of one GPU up to a given tick, by stall reason: integers that add up exactly.

The kernel counts slots, cycles and fractions of ticks up to the end of the last slot that it ran.  Here they become
ticks, and the account of each unit is closed at the end of the phase, which lies inside or after that slot.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.config.machine import MachineSpec
from t3sim.gpu.core import GpuCore
from t3sim.gpu.units import codes
from t3sim.observe.waits import CHANNEL, COMPUTE_UNIT, COPY_ENGINE, DISPATCHER, DMA_ENGINE, L2_BANK, LINK_PORT

Ticks = NDArray[np.int64]


def units_of(machine: MachineSpec, n_ports: int = 1, n_contexts: int = 0) -> dict[str, int]:
    """Return how many units of each kind a GPU has; those of its network interface are copy engines, too.

    An outstanding command of T3's DMA engine is a unit of it.
    """
    return {
        COMPUTE_UNIT: machine.gpu.n_compute_units,
        **({COPY_ENGINE: machine.n_engines} if machine.n_engines else {}),
        DISPATCHER: 1,
        L2_BANK: machine.gpu.l2.n_banks,
        CHANNEL: machine.memory.n_channels,
        DMA_ENGINE: 1 + n_contexts,
        LINK_PORT: n_ports,
    }


def time_accounts(core: GpuCore, total: int, start: int = 0) -> dict[str, Ticks]:
    """Return for each kind of unit the ticks of [unit, reason] from tick *start* to *total*, when its work is over.

    Each row adds up to *total* - *start*; the one of the L2 banks is of all of them.  The kernel must have its ledger
    (``_kept.IS_COUNTING``), what was loaded must have ended, and *start* must not be later than it began.
    """
    gpu = core.gpu
    slot, launch = core.slot_ticks, int(gpu.first_active_at)
    until = launch + int(gpu.n_active_slots) * slot  # a GPU of a ring may continue, to send what waits for the link
    units, n = movers(core), core.machine.gpu.n_compute_units
    first_context = n + core.machine.n_engines
    units[:, codes.FOR_LAUNCH] += launch
    dispatcher = np.array(gpu.dispatcher_slots)[None] * slot
    dispatcher[:, codes.FOR_LAUNCH] += launch
    dma = np.array(gpu.dma.reason_slots)[None] * slot
    dma[:, codes.FOR_LAUNCH] += launch
    accounts = {
        COMPUTE_UNIT: closed(units[:n], until, total),
        **({COPY_ENGINE: closed(units[n:first_context], until, total)} if first_context > n else {}),
        DISPATCHER: closed(dispatcher, until, total),
        L2_BANK: bank_ticks(core, launch, total),
        CHANNEL: channel_ticks(core, total),
        DMA_ENGINE: np.concatenate(
            [closed(dma, until, total, int(gpu.dma.last_reason)), closed(units[first_context:], until, total)]
        ),
        LINK_PORT: np.concatenate([port_ticks(core, port, total) for port in core.ports]),
    }
    n_units = units_of(core.machine, len(core.ports), core.tables.n_contexts)
    for unit, rows in accounts.items():
        rows[:, codes.FOR_LAUNCH] -= start * n_units[unit] // len(rows)
    return accounts


def movers(core: GpuCore) -> Ticks:
    """Return for each unit that moves data the ticks by reason of the slots that ran.

    These are compute units, then copy engines, then commands of T3's DMA engine.

    Slots with nothing to run that the kernel has not accounted for yet are among them.
    """
    gpu = core.gpu
    units = gpu.compute_units[: int(gpu.n_compute_units + gpu.n_engines)]
    ticks = np.array(units["reason_ticks"])
    ticks[:, codes.NOTHING_LEFT] += idle_slots(core) * core.slot_ticks
    return ticks


def idle_slots(core: GpuCore) -> Ticks:
    """Return for each compute unit and copy engine its slots with nothing to run that are not accounted for yet.

    A compute unit acts in every slot once a GEMM has started.
    """
    gpu, spec = core.gpu, core.machine.gpu
    units = gpu.compute_units[: int(gpu.n_compute_units + gpu.n_engines)]
    is_engine = np.arange(len(units)) >= spec.n_compute_units
    is_idle = (units["move_operation"] < 0) & bool(gpu.is_busy) & (is_engine | (not gpu.runs_gemms))
    return np.where(is_idle, int(gpu.n_active_slots) - units["idle_from"], 0)


def closed(accounts: Ticks, until: int, total: int, last: int = codes.WORKING) -> Ticks:
    """Return *accounts* up to *until* as accounts up to *total*.

    What is missing is time with nothing left.  What is too much is taken from that; if there was less of it, from
    *last*, what the slot in which the phase ended began with; and from what there is most of.
    """
    accounts[:, codes.NOTHING_LEFT] += max(total - until, 0)
    excess = np.full(len(accounts), max(until - total, 0))
    for reason in (codes.NOTHING_LEFT, last, *np.argsort(-accounts.sum(axis=0))):
        taken = np.clip(accounts[:, reason], 0, excess)
        accounts[:, reason] -= taken
        excess -= taken
    return accounts


def channel_ticks(core: GpuCore, total: int) -> Ticks:
    """Return the accounts of the memory channels; after its last transfer a channel has nothing left to do."""
    channels, ticks = core.gpu.channels[: core.machine.memory.n_channels], int(core.gpu.memory_ticks)
    accounts = np.asarray(channels["reason_cycles"]) * ticks
    until = (int(channels["now"][0]) + 1) * ticks
    beyond = np.maximum(accounts[:, codes.FOR_LAUNCH] - total, 0)  # a kernel that ended in the cycle of its launch
    accounts[:, codes.FOR_LAUNCH] -= beyond
    accounts[:, codes.FOR_REQUEST] += beyond + total - until
    leave(core, accounts, total - np.maximum(channels["last_done_at"] * ticks, accounts[:, codes.FOR_LAUNCH]))
    return accounts


def bank_ticks(core: GpuCore, launch: int, total: int) -> Ticks:
    """Return the account of all L2 banks together; after its last access a bank has nothing left to do."""
    l2 = core.gpu.l2
    n_banks = int(l2.n_banks)
    n_accesses = int(l2.n_accesses + l2.n_crossings + l2.n_store_accesses)
    free_at = np.array(l2.bank_free_at[:n_banks])
    account = np.zeros((1, codes.N_REASONS), np.int64)
    account[:, codes.FOR_LAUNCH] = launch * n_banks
    account[:, codes.WORKING] = n_accesses * int(l2.bank_ticks) - np.maximum(free_at - total, 0).sum()
    account[:, codes.FOR_REQUEST] = total * n_banks - account.sum()
    leave(core, account, (total - np.clip(free_at, launch, total)).sum())
    return account


def leave(core: GpuCore, accounts: Ticks, ticks: Ticks | np.int64) -> None:
    """Turn *ticks* of each row from waiting for a request into time with nothing left: no request will come.

    Where something was cut off, more would have come.
    """
    if not core.has_run_all:
        return
    accounts[:, codes.FOR_REQUEST] -= ticks
    accounts[:, codes.NOTHING_LEFT] += ticks


def port_ticks(core: GpuCore, port: Any, total: int) -> Ticks:
    """Return the account of a link port, its fractions of ticks rounded so that the sum stays what it is.

    After its last granule it has nothing left to do.  If others keep it from sending to the end of the program and
    beyond, that is what it did last.
    """
    scale = int(port.scale)
    until = core.now * scale
    scaled, since_last = np.array(port.reason_scaled)[None], np.array(port.open_scaled)
    scaled[:, codes.FOR_LAUNCH] += since_last[codes.FOR_LAUNCH]
    scaled[:, codes.NOTHING_LEFT] += since_last.sum() - since_last[codes.FOR_LAUNCH]
    free_at = int(port.free_at_scaled)  # after the last slot if a granule is still on the wire
    covered = max(until, min(free_at, total * scale))
    scaled[:, codes.WORKING] = int(port.busy_scaled) - max(free_at - covered, 0)
    is_beyond = covered - total * scale > core.slot_ticks * scale
    scaled = closed(scaled, covered, total * scale, int(scaled[0].argmax()) if is_beyond else codes.WORKING)
    edges = np.cumsum(scaled, axis=1) // scale
    return np.diff(edges, prepend=0, axis=1)
