"""One DRAM channel on a bench: set timings, feed requests, run, read the command log.

The channel is that of the simulator, compiled or interpreted; the bench adds only the
feeding.  Requests of a stream enter its queue in the order given, each at its arrival cycle
or, if the queue is full then, in the first quantum in which there is room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.compiled import compiled_policy
from t3sim.gpu.units import codes
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.dram.memory_controller import advance_channel, enqueue_request, has_room, has_work
from t3sim.gpu.units.state import Layout, empty_gpu
from t3sim.gpu.units.table_rows import COMMAND_LOG, TILE_TABLE

# No rule is hidden by another one, and no two values are equal:
# nRC > nRAS + nRP, nFAW > 4 nRRDL > 4 nRRDS, nCCDL > nCCDS > nBL, nWTRL > nWTRS, nCCDWL > nCCDL.
UNSHADOWED = {
    "nBL": 2, "nCL": 15, "nCWL": 10, "nRCDRD": 17, "nRCDWR": 14, "nRP": 16, "nRAS": 40, "nRC": 61, "nRTP": 8, "nWR": 18,
    "nCCDS": 3, "nCCDL": 6, "nCCDWS": 4, "nCCDWL": 13, "nRRDS": 5, "nRRDL": 7, "nFAW": 37, "nRTW": 19,
    "nWTRS": 9, "nWTRL": 11, "nREFI": 0, "nRFC": 150,
    "nRFCpb": 0, "nRREFD": 12,
}  # fmt: skip

UNLIMITED = 1 << 40
CHANNEL = 0


class Request(NamedTuple):
    """One access: when it arrives, by which stream, what it is, where it goes."""

    at: int
    kind: int = codes.OPERAND_READ
    bank: int = 0
    row: int = 0
    column: int = 0
    stream: int = codes.COMPUTE

    @property
    def place(self) -> int:
        """The address as the channel takes it."""
        return (self.row << 24) | (self.column << 16) | (self.bank << 8) | self.kind


class Command(NamedTuple):
    """One line of the command log; bank -1 is all banks."""

    at: int
    command: int
    bank: int
    row: int
    kind: int


@dataclass(frozen=True)
class Setup:
    """How the channel is configured; the defaults leave nothing but the timings to think of."""

    timings: Mapping[str, int] = field(default_factory=lambda: dict(UNSHADOWED))
    policy: str = "round_robin"
    params: Mapping[str, Any] = field(default_factory=dict)
    is_split: bool = False
    capacity: int = 64
    high_watermark: int = 51
    low_watermark: int = 13
    write_capacity: int = 64
    write_age: int = 0
    writes_per_drain: int = 0  # 0: without limit
    read_age: int = 0
    turnaround_to_writes: int = 0
    producer_done: int = 0
    first_stage_occupancy: int = -1
    first_stage_length: int = 0
    lead: int = 0
    n_classes: int = 2
    cycles_before: int = 0  # from which times of banks are counted
    requests_before: int = 0  # from which keys are


@kernel
def drive(gpu_state, tiles, signals, command_log, pick_stream, places, arrivals, quantum, until):
    """Feed all streams and run channel 0 in quanta, to the end of the work or to *until*; return requests fed."""
    gpu = gpu_state[0]
    channel = gpu.channels[0]
    fed = np.zeros(places.shape[0], np.int64)
    start = 0
    while start < until:
        end = min(start + quantum, until)
        is_fed = True
        for stream in range(places.shape[0]):
            while fed[stream] < places.shape[1] and arrivals[stream, fed[stream]] < end:
                if not has_room(channel, stream, 1):
                    break
                at = max(arrivals[stream, fed[stream]], start)
                enqueue_request(channel, stream, places[stream, fed[stream]], -1, at)
                fed[stream] += 1
            if fed[stream] < places.shape[1] and arrivals[stream, fed[stream]] < until:
                is_fed = False
        advance_channel(channel, 0, gpu.tracker, tiles, signals, command_log, pick_stream, end)
        channel.n_done = 0
        if is_fed and not has_work(channel) and until >= 1 << 40:
            break
        start = end
    return fed.sum()


@cache
def _bench_state() -> tuple[Any, Any, Any, Any]:
    state = empty_gpu(Layout())
    tiles = np.zeros(1, TILE_TABLE).view(np.recarray)
    return state, state[0].channels[CHANNEL].copy(), tiles, np.zeros(0, np.int64)


class ChannelBench:
    """A fresh channel for each run."""

    def __init__(self, setup: Setup | None = None, **changes: int) -> None:
        """*changes* are timings that differ from those of *setup*."""
        self.setup = Setup() if setup is None else setup
        self.timings = {**self.setup.timings, **changes}
        self.state, self._blank, self._tiles, self._signals = _bench_state()
        policy = arbitration_policies.get(self.setup.policy)
        self._pick_stream = compiled_policy(policy.pick_stream, Layout())
        self._params = policy.encode(self.setup.params)

    @property
    def channel(self) -> Any:
        """The channel as the last run left it."""
        return self.state[0].channels[CHANNEL]

    def reset(self) -> Any:
        """Put an idle, configured channel on the bench and return it."""
        self.state[0].channels[CHANNEL] = self._blank
        channel, setup = self.channel, self.setup
        for name, value in self.timings.items():
            channel[name] = value
        channel["n_banks"], channel["banks_per_group"] = 16, 4
        channel["queue_capacity"] = setup.capacity
        channel["is_split"] = setup.is_split
        channel["write_high_watermark"] = setup.high_watermark
        channel["write_low_watermark"] = setup.low_watermark
        channel["write_capacity"], channel["write_age"] = setup.write_capacity, setup.write_age
        channel["writes_per_drain"] = setup.writes_per_drain or codes.NEVER
        channel["read_age"], channel["turnaround_to_writes"] = setup.read_age, setup.turnaround_to_writes
        channel["n_classes"] = setup.n_classes
        channel["stream_capacity"] = Layout().stream_queue_entries
        per_refresh = 16 if self.timings["nRFCpb"] else 1
        channel["next_refresh_at"] = self.timings["nREFI"] // per_refresh or codes.NEVER
        channel["refreshed_bank"] = -1
        channel["producer_done"] = setup.producer_done
        channel["epoch"], channel["key_base"] = -setup.cycles_before, -setup.requests_before
        for name in ("first_stage_occupancy", "first_stage_length", "lead"):
            channel[name] = getattr(setup, name)
        channel["policy_params"][: len(self._params)] = self._params
        return channel

    def run(self, requests: Sequence[Request], *, quantum: int = 16, until: int = UNLIMITED) -> list[Command]:
        """Run *requests*, per stream in order, to their end (or to *until*); return the command log."""
        streams = [[r for r in requests if r.stream == stream] for stream in range(self.setup.n_classes)]
        longest = max(len(stream) for stream in streams)
        places = np.zeros((len(streams), longest), np.int64)
        arrivals = np.full((len(streams), longest), codes.NEVER, np.int64)
        for i, stream in enumerate(streams):
            places[i, : len(stream)] = [r.place for r in stream]
            arrivals[i, : len(stream)] = [r.at for r in stream]
        return self.run_arrays(places, arrivals, quantum=quantum, until=until)

    def feed(self, places: Any, arrivals: Any, log: Any, *, quantum: int = 16, until: int = UNLIMITED) -> int:
        """Run requests as ``run_arrays`` does, their commands to *log*; return how many have been fed."""
        self.reset()
        return int(drive(*self.tables(log), places, arrivals, quantum, until))

    def tables(self, log: Any) -> tuple[Any, ...]:
        """Return what the compiled functions take first: the GPU, its tables, the command *log*, and the policy."""
        return self.state, self._tiles, self._signals, log, self._pick_stream

    def run_arrays(self, places: Any, arrivals: Any, *, quantum: int = 16, until: int = UNLIMITED) -> list[Command]:
        """As ``run``, with places and arrivals as arrays [stream, index]; arrival NEVER: no request."""
        log = np.zeros(4 * places.size + 1000, COMMAND_LOG).view(np.recarray)
        n_fed = self.feed(places, arrivals, log, quantum=quantum, until=until)
        assert until < UNLIMITED or n_fed == (arrivals < codes.NEVER).sum()
        n = int(log["at"][0])
        assert n < len(log) - 1, "the command log is full"
        rows = log[1 : n + 1]
        return [Command(*row) for row in zip(*(rows[name].tolist() for name in Command._fields), strict=True)]


def commands_of(log: Sequence[Command], command: int, bank: int | None = None) -> list[Command]:
    """Return the entries of one command, of one bank or of all."""
    return [entry for entry in log if entry.command == command and bank in (None, entry.bank)]
