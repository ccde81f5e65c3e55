"""Bounds that no run may beat, from its commands and messages, and queueing laws where the model is a known queue.

Elsewhere: streaming and random bandwidth of a channel (tests/timing/test_bandwidth.py), latency of one access to the
cycle (tests/timing/test_latency.py), the address map as a bijection that uses every bank (tests/kernel/
test_address_map.py), one bank at 1/tRC (tests/timing/test_bandwidth.py), a full-size GEMM against the roofline
(tests/shape/test_isolated_gemm.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from math import exp, factorial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from t3sim.gpu.core import GpuCore
from t3sim.gpu.units.codes import ACT, INCOMING_WRITE, NEVER, OPERAND_READ
from t3sim.gpu.units.link.link_port import buffer_store, has_buffer_room, transmit
from t3sim.gpu.units.table_rows import MESSAGE
from t3sim.strategies import Phase
from t3sim.system.machine import MirroredMachine
from tests.conftest import DEEP, sample
from tests.harness.channel_bench import UNSHADOWED, ChannelBench, Setup, commands_of
from tests.harness.sublayers import ObservedParts, collective_point, point
from tests.kernel.small import core_of, messages_of, trace_of, with_gemm

REFRESH = "machine.memory.timing={nREFI: 900, nRFC: 120}"
RUNS = {
    "sequential": point("sequential", shape=(200, 150, 72), tp=3),
    "t3": point("t3", tp=4),
    "t3-mca, refresh, split queues": point("t3-mca", REFRESH, "machine.memory.queue.kind=split", tp=4),
    "near-memory RS": point("ideal-rs-nmc", shape=(256, 512, 64), tp=4),
    "fast link": point("t3", "machine.link.bandwidth=100 GB/s", shape=(256, 512, 64), tp=4),
    "all-gather": collective_point("all-gather", "64 KiB", 5),
}


@dataclass
class Observed:
    """One machine of a run: what its DRAM was told and what left over its link."""

    machine: MirroredMachine
    commands: list[NDArray[Any]] = field(default_factory=list)
    departures: list[NDArray[Any]] = field(default_factory=list)

    @property
    def core(self) -> GpuCore:
        return self.machine.core

    def log(self) -> NDArray[Any]:
        return np.concatenate(self.commands)


@cache
def observed(name: str) -> list[tuple[Observed, Phase]]:
    """Every phase of a run with its machine, in the order of simulation."""
    machines: list[Observed] = []

    def observe(machine: MirroredMachine) -> None:
        one = Observed(machine)
        machines.append(one)
        machine.core.stream_commands(lambda rows: one.commands.append(rows.copy()))
        take_outbox = machine.core.take_outbox

        def taken() -> NDArray[Any]:
            messages = take_outbox()
            one.departures.append(messages["at"].copy())
            return messages

        machine.core.take_outbox = taken  # type: ignore[method-assign]
        machine.device.is_tapped = True

    parts = ObservedParts(RUNS[name], observe)
    parts.simulate()
    return [(one, phase) for one, (_, phase) in zip(machines, parts.simulated, strict=True)]


# --- B1: channels ----------------------------------------------------------------------------------------


# --- B2: link, L2 ports, paths of compute units ------------------------------------------------------------


def check_link_rate(departures: NDArray[np.int64], cost: int, scale: int) -> None:
    """In any window at most rate x window and one granule: from any departure to any later one.

    The i-th granule's wire time is i x cost / scale ticks and a departure is rounded up, so ``at x scale - i x cost``
    may fall behind its running maximum by less than one tick.
    """
    slack = departures * scale - np.arange(len(departures)) * cost
    assert (np.maximum.accumulate(slack) - slack < scale).all(), "faster than the link"


def departures_of(one: Observed) -> NDArray[np.int64]:
    return np.concatenate(one.departures) if one.departures else np.zeros(0, np.int64)


@pytest.mark.parametrize("name", RUNS)
def test_b2_the_link_carries_no_more_than_its_rate(name: str) -> None:
    for one, _ in observed(name):
        port = one.core.gpu.ports[0]
        departures = departures_of(one)
        assert len(departures) == port.n_sent
        check_link_rate(departures, int(port.granule_cost), int(port.scale))


@pytest.mark.parametrize("name", ["sequential", "t3"])
def test_b2_l2_banks_and_paths_carry_no_more_than_their_rate(name: str) -> None:
    """Accesses x time of one are at most the time all banks, or all paths of compute units, have had."""
    for one, _ in observed(name):
        gpu = one.core.gpu
        accesses = int(gpu.l2.n_accesses + gpu.l2.n_store_accesses)
        assert accesses * int(gpu.l2.bank_ticks) <= int(gpu.l2.n_banks) * one.core.now
        assert accesses * int(gpu.line_issue_ticks) <= int(gpu.n_compute_units) * one.core.now


# --- B4: whole phases ----------------------------------------------------------------------------------------


def least_ticks(name: str, core: GpuCore, phase: Phase) -> dict[str, float]:
    """Lower bounds of a phase, each by one resource alone."""
    machine, hz = core.machine, core.ticks.hz
    gpu, memory, link = machine.gpu, machine.memory, machine.link
    columns = phase.counters["column_commands"]
    bounds = {
        "DRAM": columns / memory.n_channels * memory.timing.nBL * hz / memory.clock,
        "link": phase.counters["link_bytes"] * hz / link.bandwidth,
    }
    run = RUNS[name].workload
    if phase.counters["link_bytes"]:
        bounds["link"] += link.latency * hz / 1e12
    if run.gemm is not None and not phase.name.startswith(("all-gather", "reduce-scatter")):
        shape = run.gemm
        rate = gpu.n_compute_units * gpu.compute_unit.matrix_flops_per_cycle * gpu.compute_clock
        bounds["matrix"] = 2 * shape.m * shape.n * shape.k * hz / rate
        compulsory = (shape.m + shape.n) * shape.k * 2 / memory.access
        bounds["operands"] = compulsory / memory.n_channels * memory.timing.nBL * hz / memory.clock
    else:
        n_steps = (run.collective.gpus if run.collective else run.tp) - 1
        bounds["chain"] = phase.counters["link_bytes"] * hz / link.bandwidth + n_steps * link.latency * hz / 1e12
    return bounds


def check_bounds(name: str, core: GpuCore, phase: Phase, ticks: int) -> None:
    for resource, least in least_ticks(name, core, phase).items():
        assert ticks >= least, f"{phase.name} takes {ticks} ticks, but {resource} alone {least}"


@pytest.mark.parametrize("name", RUNS)
def test_b4_no_phase_beats_a_resource(name: str) -> None:
    """Matrix pipes, DRAM, link with its latencies, compulsory operands: each alone is no longer than the run."""
    for one, phase in observed(name):
        check_bounds(name, one.core, phase, phase.ticks)


# --- B7: capacities, slot by slot ---------------------------------------------------------------------------


# --- Q2, Q3: operational laws ---------------------------------------------------------------------------------


# --- Q4, Q5: the link port as a queue -------------------------------------------------------------------------

SERVICE = 1000  # ticks for 64 B at 448 MB/s, exactly
# Worst of eight seeds of a Lindley recursion over a million arrivals, doubled: this is another seed and another sum.
TOLERANCE = {0.5: 0.012, 0.7: 0.022, 0.9: 0.05, 0.95: 0.116}


def waits(arrivals: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ticks each granule waits for the wire, by the real port."""
    core = core_of("link: {bandwidth: 448 MB/s}")
    port = core.gpu.ports[0]
    assert int(port.granule_cost) == SERVICE * int(port.scale)
    n = len(arrivals)
    queue = messages_of(MESSAGE, arrivals)
    outbox = messages_of(MESSAGE, np.zeros(n, np.int64))
    port.dma_tail = n
    transmit(core.gpu, 0, core.peers, core.store_queue, queue, outbox, NEVER >> 8)
    assert core.gpu.n_outbox == n
    return np.asarray(outbox["at"] - arrivals - SERVICE)


def poisson(rho: float, n: int, seed: int) -> NDArray[np.int64]:
    gaps = np.random.default_rng(seed).exponential(SERVICE / rho, n)
    return np.cumsum(gaps).astype(np.int64)


@pytest.mark.parametrize("rho", TOLERANCE)
def test_q4_random_arrivals_wait_as_in_m_d_1(rho: float) -> None:
    """W = rho s / 2(1 - rho)."""
    expected = rho * SERVICE / (2 * (1 - rho))
    assert waits(poisson(rho, 1_000_000, seed=3)).mean() == pytest.approx(expected, rel=TOLERANCE[rho])


def m_d_1_k_loss(rho: float, k: int) -> float:
    """Share of arrivals that find *k* in the system, by the chain embedded at departures."""
    arriving = [exp(-rho) * rho**j / factorial(j) for j in range(k)]
    chain = np.zeros((k, k))
    for i in range(k):
        for j in range(max(i - 1, 0), k - 1):
            chain[i, j] = arriving[j - max(i - 1, 0)]
        chain[i, k - 1] = 1 - chain[i, : k - 1].sum()
    left = np.linalg.matrix_power(chain, 1 << 12)[0]
    return float(1 - 1 / (left[0] + rho))


def share_lost(rho: float, buffer_bytes: int, n: int) -> float:
    """Share of stores that find the port's buffer full, if they go away instead of waiting."""
    core = core_of(f"link: {{bandwidth: 448 MB/s, egress_buffer: {buffer_bytes} B}}")
    port, n_lost = core.gpu.ports[0], 0
    for i, at in enumerate(poisson(rho, n, seed=4).tolist()):
        transmit(core.gpu, 0, core.peers, core.store_queue, core.tables.dma_queue, core.outbox, at)
        core.gpu.n_outbox = 0
        if has_buffer_room(port, 1):
            buffer_store(core.gpu, core.store_queue, INCOMING_WRITE, -1, 0, i, -1, 64, at)
        else:
            n_lost += 1
    return n_lost / n


@pytest.mark.parametrize("entries", [2, 4] if DEEP else [2])
def test_q5_a_bounded_buffer_is_full_as_in_m_d_1_k(entries: int) -> None:
    """The buffer and the granule on the wire are K places; 6 %: a thousand and more are lost, in bursts."""
    lost = share_lost(0.95, entries * 64, sample(40_000, 4_000))
    assert lost == pytest.approx(m_d_1_k_loss(0.95, entries + 1), rel=0.06)


# --- Q6, Q7: random rows, and a closed loop of loads ------------------------------------------------------------


def cycles_per_access(n_banks: int, **changes: int) -> float:
    """Mean cycles from activate to activate of random rows in *n_banks* banks, as many groups as there are."""
    order = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15][:n_banks]
    draw = np.random.default_rng(6)
    n = 4000
    banks = np.array(order)[draw.integers(0, n_banks, n)]
    rows = np.arange(n)  # no row twice, so no row hit
    places = np.stack([(rows << 24) | (banks << 8) | OPERAND_READ, np.zeros(n, np.int64)])
    arrivals = np.stack([np.zeros(n, np.int64), np.full(n, NEVER)])
    log = ChannelBench(Setup({**UNSHADOWED, **changes}, capacity=64)).run_arrays(places, arrivals)
    activates = commands_of(log, ACT)
    assert len(activates) == n
    return (activates[-1].at - activates[0].at) / (n - 1)


def least_cycles(n_banks: int, t: dict[str, int]) -> float:
    """max(tRC / b, tFAW / 4, tRRD, the column bus) cycles for one access."""
    return max(t["nRC"] / n_banks, t["nFAW"] / 4, t["nRRDS"], t["nCCDS"])


@pytest.mark.parametrize("n_banks", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("changes", [{}, {"nFAW": 60}, {"nRRDS": 20, "nRRDL": 21, "nFAW": 90}, {"nCCDS": 25}])
def test_q6_random_rows_are_bound_by_banks_window_and_buses(n_banks: int, changes: dict[str, int]) -> None:
    """Never faster than the narrowest of them; one bank at that rate."""
    measured, least = cycles_per_access(n_banks, **changes), least_cycles(n_banks, {**UNSHADOWED, **changes})
    assert measured >= least * 0.996  # the last 16 of 4000 rows may be open before their columns are due
    # Between the bounds: 25 %, for the times when a queue of 64 random requests has none for a free bank.
    assert measured <= least * (1.001 if n_banks == 1 else 1.25)


N_LINES = 128  # of one workgroup tile, cold


def ticks_per_line(outstanding: int) -> tuple[float, GpuCore]:
    """Load the operands of one workgroup with at most *outstanding* lines in flight; return ticks for each."""
    unit = f"max_outstanding_lines: {outstanding}, workgroup_launch: 0 ns"
    core = with_gemm(trace_of(64, 64, 64), f"gpu: {{n_compute_units: 1, compute_unit: {{{unit}}}}}")
    while not core.advance(core.now + 1_000_000):
        pass
    entry = core.tables.workgroups[0]
    return int(entry.multiply_at - entry.start_at) / N_LINES, core


def closed_bounds(core: GpuCore, outstanding: int) -> tuple[float, float]:
    """Ticks for each line: the shortest round trip over the lines in flight, and the narrowest part."""
    gpu, t, memory = core.gpu, core.machine.memory.timing, core.machine.memory
    dram = (t.nCL + t.nBL + t.nCCDS) * int(gpu.memory_ticks)  # two accesses that hit an open row
    trip = int(gpu.l2.request_ticks + gpu.l2.return_ticks + gpu.l2.miss_ticks) + dram
    channels = 2 * t.nCCDS * int(gpu.memory_ticks) / memory.n_channels
    return trip / outstanding, max(channels, float(gpu.line_issue_ticks))


@pytest.mark.parametrize("outstanding", [1, 2, 4, 8, 16, 32, 64, 128])
def test_q7_loads_in_flight_bound_the_rate(outstanding: int) -> None:
    """Throughput is at most the lines in flight over the shortest trip, and at most the narrowest part's rate."""
    measured, core = ticks_per_line(outstanding)
    by_latency, by_rate = closed_bounds(core, outstanding)
    assert measured >= max(by_latency, by_rate)
    if by_latency > 4 * by_rate:
        # Bound by latency: issue slots of 8 cycles at each end of a trip, and row misses, add to the shortest one.
        assert measured <= 1.25 * by_latency
