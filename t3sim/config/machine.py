"""What a machine is made of: frozen specs of every part, in SI base units.

A spec holds what a data sheet would state and nothing else: no state, no derived numbers, no defaults for hardware
values (those live in ``configs/``, each with its source).  Quantities are written with units in YAML and are integers
here: bytes, bytes per second, hertz, picoseconds, or cycles of the clock that the docstring names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from t3sim import units
from t3sim.config import limits
from t3sim.config.number_lists import LARGEST_NUMBER, numbers_in, parse_number_list


def _written(parser: Callable[[object], object]) -> BeforeValidator:
    """A quantity that files hold as a text with its unit."""
    return BeforeValidator(parser, json_schema_input_type=str)


Bytes = Annotated[int, _written(units.parse_bytes), Field(gt=0)]
BytesOrZero = Annotated[int, _written(units.parse_bytes), Field(ge=0)]
BytesPerSecond = Annotated[int, _written(units.parse_bandwidth), Field(gt=0)]
Hertz = Annotated[int, _written(units.parse_frequency), Field(gt=0)]
Picoseconds = Annotated[int, _written(units.parse_time), Field(ge=0)]
PicosecondsAboveZero = Annotated[int, _written(units.parse_time), Field(gt=0)]
Cycles = Annotated[int, _written(units.parse_cycles), Field(ge=0)]
CyclesAboveZero = Annotated[int, _written(units.parse_cycles), Field(gt=0)]
ReadAhead = Annotated[int | Literal["chunk"], _written(units.parse_bytes_or_word("chunk"))]
MatrixClock = Annotated[
    Annotated[int, Field(gt=0)] | Literal["compute_clock"], _written(units.parse_frequency_or_word("compute_clock"))
]
AccessBytes = Annotated[Literal[32, 64], _written(units.parse_bytes)]
Count = Annotated[int, Field(gt=0, lt=units.LIMIT, strict=True)]
Share = Annotated[float, Field(gt=0, le=1, strict=True)]
CountOrZero = Annotated[int, Field(ge=0, lt=units.LIMIT, strict=True)]


@dataclass(frozen=True)
class AtMost:
    """The largest value of a field: the state of a GPU has to fit a computer's memory, products of values 64 bits."""

    limit: int


@dataclass(frozen=True)
class Unit:
    """What a number stands for that files give without a unit; without this it counts what its key names."""

    name: str


NumberList = Annotated[
    str, BeforeValidator(parse_number_list, json_schema_input_type=str | int), Unit("numbers and ranges like `0-17,44`")
]
Latency = Annotated[Picoseconds, AtMost(10**12)]
ShortCycles = Annotated[Cycles, AtMost(1 << 20)]
CommandCycles = Annotated[Count, AtMost(1 << 20), Unit("cycles")]
CommandCyclesOrZero = Annotated[CountOrZero, AtMost(1 << 20), Unit("cycles")]
LinesInFlight = Annotated[Count, AtMost(1 << 14), Unit("lines")]
BytesPerCycle = Annotated[Count, AtMost(1 << 30), Unit("B/cycle")]
EngineRate = Annotated[BytesPerSecond, AtMost(1 << 50)]


class Spec(BaseModel):
    """Base of all specs: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class L1Spec(Spec):
    """The L1 of a compute unit, which has what the LDS leaves of one memory.

    A load of a move kernel has a line of it until its data are in registers, so that the L1 limits loads in flight.
    GEMMs stage their operands in the LDS.  A compute unit takes the least size of the LDS that its workgroups need, and
    is set to another one only while no GEMM runs: beside GEMMs, a move kernel has what they leave.
    """

    with_lds: Bytes = Field(description="L1 and LDS together")
    lds_sizes: tuple[Bytes, ...] = Field(min_length=1, description="of which the LDS has one")

    def left_by(self, lds: int) -> int:
        """Return the bytes of the L1 beside workgroups that need so much LDS."""
        return self.with_lds - min((size for size in self.lds_sizes if size >= lds), default=self.with_lds)


class ComputeUnitSpec(Spec):
    """One compute unit; cycles are of the GPU's compute clock."""

    max_threads: Count = Field(description="threads of all its workgroups together")
    lds: Bytes = Field(description="local data share and L1 together: what slices of operands are staged in")
    registers: Bytes = Field(description="vector register file, which holds the accumulators")
    matrix_flops_per_cycle: Annotated[Count, AtMost(1 << 30), Unit("FLOP/cycle")] = Field(
        description="peak of its matrix units"
    )
    matrix_efficiency: Share = Field(description="of the matrix rate, what the main loop of a GEMM reaches")
    l2_bytes_per_cycle: BytesPerCycle = Field(description="width of the path from the L2, for loads")
    l2_store_bytes_per_cycle: Annotated[Count, Unit("B/cycle")] = Field(
        description="width of the path to the L2, for stores"
    )
    store_header: Annotated[BytesOrZero, AtMost(1 << 16)] = Field(
        0, description="what a line stored to another GPU takes of that path besides its data"
    )
    max_outstanding_lines: LinesInFlight = Field(description="loads of lines in flight, and as many stores")
    n_simds: Annotated[Count, AtMost(limits.MOST_SIMDS)] = Field(
        1, description="SIMD units, each of which loads for its wavefronts at its part of `l2_bytes_per_cycle`"
    )
    wide_load_latency: ShortCycles = Field(
        0, description="that a load of 16 B a thread, as of wavefronts of collectives, takes longer than others"
    )
    workgroup_launch: Latency = Field(description="from a freed slot to the first instruction of its next workgroup")
    epilogue: ShortCycles = Field(0, description="of a tile, from its last multiplication to its first store")
    count_latency: Latency = Field(
        0, description="of a tile that its kernel counts, behind its stores: a fence, and the counter's answer"
    )
    store_queue: Annotated[Bytes, AtMost(1 << 20)] | None = Field(
        None, description="its stores to other GPUs that wait for room in the egress buffer, with loads of GEMMs behind"
        " them; none: they wait nowhere",
    )  # fmt: skip
    l1: L1Spec | None = Field(None, description="its L1; none: loads in flight take no room in one")


class L2Spec(Spec):
    """The L2 cache; cycles are of the GPU's compute clock."""

    capacity: Annotated[Bytes, AtMost(1 << 31)] = Field(description="of all banks together")
    n_banks: Annotated[Count, AtMost(4096)] = Field(description="banks, each with a queue of its own")
    associativity: Annotated[Count, AtMost(1 << 10)] = Field(description="ways of a set")
    line: Bytes = Field(description="a cache line")
    bank_bytes_per_cycle: BytesPerCycle = Field(description="what one bank reads or writes")
    hit_latency: Cycles = Field(description="from the compute unit and back, unloaded")
    miss_latency: ShortCycles = Field(description="added on a miss, besides the DRAM itself")
    mshrs_per_bank: Annotated[Count, AtMost(1 << 14)] = Field(description="misses in flight from one bank")
    bank_queue_entries: Count = Field(description="accesses to lines that may wait in front of a bank")
    at_kernel_end: Literal["write-back", "keep"] = Field(description="what becomes of dirty lines when a kernel ends")
    n_partitions: Count = Field(description="each keeps copies of the lines of the others that its compute units load")
    crossing_latency: Cycles = Field(description="from one partition to another, each way")
    retention: Bytes | None = Field(
        None,
        description="bytes brought into it after which what was stored past its tags is gone; until then kernels that"
        " move data load that from it; none: they load it from the memory",
    )


class TrackerSpec(Spec):
    """T3's tracker (T3 section 4.2.1)."""

    n_sets: Annotated[Count, AtMost(1 << 16)] = Field(
        description="indexed by the low bits of the number of the workgroup"
    )
    entries_per_set: Annotated[Count, AtMost(1 << 10)] = Field(
        description="wavefront tiles that a set tracks at a time"
    )


class DmaSpec(Spec):
    """T3's DMA engine (T3 section 4.2.2); cycles of the compute clock."""

    wavefront_tiles_per_block: Annotated[Count, AtMost(1 << 20)] = Field(description="that one DMA command moves")
    read_ahead: ReadAhead = Field(description="what is read and not yet on the link, at most")
    bytes_per_cycle: BytesPerCycle = Field(description="rate at which the engine issues reads")
    command_cost: Latency = Field(0, description="from when it is the turn of a command to its first read")


class CopyEngineSpec(Spec):
    """Copy engines: they read memory and store it here or at another GPU, command after command."""

    number: Annotated[Count, AtMost(64)] = Field(description="engines of a GPU")
    startup: Latency = Field(description="of a command, from when it may start to its first read")
    bandwidth: EngineRate = Field(description="at which an engine issues reads")
    max_outstanding_lines: LinesInFlight = Field(description="lines of an engine that are read and not stored yet")
    packet_payload: Bytes | None = Field(
        None, description="of what it stores at other GPUs; none: as of what compute units store"
    )
    handover: Latency = Field(
        0,
        description="of a stream from a kernel to a command, or back, besides the launch; and to a command from one"
        " before it if signals are waited for or posted between them",
    )

    def between_commands(self, steps: NDArray[Any]) -> int:
        """Return the picoseconds from the end of a copy to the first read of the next one of *steps*."""
        told = ((steps["wait_signal"] >= 0) | (steps["post_signal"] >= 0)).any()
        return self.startup + (self.handover if told else 0)


class ExpectedTimeSpec(Spec):
    """What the library that runs the collectives expects of a protocol, its own table: it takes the quickest.

    ``start`` + steps of the ring x (``step`` + chunk / ``bandwidth``).
    """

    start: Picoseconds = Field(description="of the collective, once")
    step: Picoseconds = Field(description="of each step of the ring")
    bandwidth: BytesPerSecond = Field(description="of each step, besides")


class FlaggedProtocolSpec(Spec):
    """Channels that send flags inside the data, so that no receiver waits for a separate flag, but more is sent.

    Flags go over the link and into the receive buffers, not into operands and results.
    """

    launch: Picoseconds = Field(description="as `launch` of the plain protocol")
    slice_overhead: Picoseconds = Field(description="as `slice_overhead` of the plain protocol")
    chunk: Bytes = Field(description="as `channel_chunk`, of data")
    slices: Count = Field(description="as `slices` of the plain protocol")
    least_slice: Bytes = Field(description="as `least_slice` of the plain protocol")
    data_per_line: Bytes = Field(description="of a line in a receive buffer; the rest are flags")
    expected: ExpectedTimeSpec = Field(description="what the library expects of this protocol")


Protocol = Literal["simple", "low_latency", "low_latency_128"]


class CollectiveKernelSpec(Spec):
    """A ring collective run by compute units (the baseline).

    ``kind`` ``chunk``: all compute units share each step of the ring (T3 section 2.3).  ``channels``: ``channels``
    compute units each run a ring of their own, in slices, and copy what arrives out of a receive buffer (NCCL).

    With ``wavefront_lines`` the loads in flight are of each array; a wavefront loads, waits and stores by itself, the
    oldest first.  Where it adds up, it waits in ``sum_rounds`` rounds, of which the first loads the first array and a
    part of the others.  Threads that wait for flags in the data go on line by line.

    The numbers stated here are those of the plain protocol (NCCL's Simple), whose flags follow the data;
    ``low_latency`` and ``low_latency_128`` (NCCL's LL and LL128) are protocols that small arrays may take instead.
    """

    max_outstanding_lines: LinesInFlight = Field(
        description="loads in flight of a compute unit: registers and unrolling of the copy loop"
    )
    wavefront_lines: LinesInFlight | None = Field(
        None,
        description="lines that a wavefront (warp) loads, waits for and stores together; none: each line by itself",
    )
    sum_rounds: Annotated[Count, AtMost(64)] = Field(
        1, description="times that a wavefront waits for operands where it adds up; more: fewer loads are in flight"
    )
    lds: Annotated[Bytes, AtMost(1 << 24)] | None = Field(None, description="LDS of a workgroup; none: it takes none")
    kind: Literal["chunk", "channels"] = Field(
        description="whether all compute units share each step of the ring, or channels have rings of their own"
    )
    launch: Picoseconds = Field(description="of a workgroup on its compute unit, before its first step")
    slice_overhead: Picoseconds = Field(description="of a compute unit, from its last store of a step to the next step")
    channels: Count = Field(description="compute units that each run a ring")
    channel_chunk: Bytes = Field(
        description="of the part of a chunk that a channel has: taken through all steps before the next"
    )
    slices: Count = Field(description="of such a part, each passed on as soon as it is complete")
    least_slice: Bytes = Field(description="a shorter part of a chunk is not cut any further")
    expected: ExpectedTimeSpec | None = Field(None, description="needed to choose among protocols")
    low_latency: FlaggedProtocolSpec | None = Field(None, description="a protocol with flags in the data: LL of NCCL")
    low_latency_128: FlaggedProtocolSpec | None = Field(None, description="another one: LL128 of NCCL")

    @property
    def n_wavefronts(self) -> int:
        """Wavefronts of a workgroup that load and store by themselves; 0: it goes on line by line."""
        return self.max_outstanding_lines // self.wavefront_lines if self.wavefront_lines else 0

    @property
    def flagged(self) -> dict[Protocol, FlaggedProtocolSpec]:
        """The protocols that send flags inside the data."""
        both: dict[Protocol, FlaggedProtocolSpec | None]
        both = {"low_latency": self.low_latency, "low_latency_128": self.low_latency_128}
        return {name: one for name, one in both.items() if one is not None}

    def of_protocol(self, protocol: Protocol) -> CollectiveKernelSpec | FlaggedProtocolSpec:
        """Return what states ``launch``, ``slice_overhead`` and the slices of *protocol*, one that there is."""
        return self if protocol == "simple" else self.flagged[protocol]


class HostSpec(Spec):
    """The software that drives a GPU: what it costs to issue operations, and kernels of its own."""

    eager_call: Latency = Field(
        description="from the call of an operator to its first operation, unless all are a captured graph"
    )
    eager_issue: Latency = Field(description="of each operation")
    launch: Latency | None = Field(
        None, description="from an operation to the next one of its stream; none: `kernel_launch`"
    )
    gemm_setup: Latency = Field(0, description="in front of a GEMM of its library")
    barrier: Latency = Field(
        0, description="of its barrier over the GPUs, besides a launch and the latency of the link"
    )
    copy_bandwidth: EngineRate | None = Field(None, description="of an engine between its buffers; none: of the engine")
    sum_bandwidth: EngineRate | None = Field(
        None, description="of sums that its kernel makes; none: what units and memory let through"
    )


MATRIX_CLOCKS = ("matrix_clock", "burst_matrix_clock", "onset_matrix_clock")  # of a GPU, beside its compute clock


class GpuSpec(Spec):
    """One GPU without its memory.

    ``compute_unit_groups`` lists the compute units of each group (NVIDIA's GPCs, AMD's shader engines or dies): the
    groups have equal parts of the link and of its egress buffer when several store to other GPUs.  Empty: all
    compute units are one group.
    """

    n_compute_units: Annotated[Count, AtMost(LARGEST_NUMBER + 1)] = Field(description="compute units of a GPU")
    compute_clock: Hertz = Field(description="of compute units and L2")
    matrix_clock: MatrixClock = Field(
        description="the same while all compute units multiply all the time, GEMM after GEMM: the power limit"
    )
    burst_matrix_clock: MatrixClock = Field("compute_clock", description="the same before the power limit acts")
    onset_matrix_clock: MatrixClock = Field(
        "compute_clock", description="the same in a first GEMM after a pause, however much of the time they multiply"
    )
    matrix_clock_by: Literal["share", "units"] = Field(
        "share", description="what the clock falls in proportion to: the matrix peak that is used, or units that are"
    )
    power_limit_delay: Latency = Field(0, description="of GEMM after GEMM, until the power limit acts")
    issue_slot: Annotated[CyclesAboveZero, AtMost(1 << 10)] = Field(
        description="granularity of the events of compute units and L2"
    )
    kernel_launch: Latency = Field(description="of a kernel, from when it may start to its start")
    compute_unit: ComputeUnitSpec = Field(description="each of the compute units")
    l2: L2Spec = Field(description="the L2 cache")
    tracker: TrackerSpec = Field(description="the tracker of T3")
    dma: DmaSpec = Field(description="the DMA engine of T3")
    collective_kernel: CollectiveKernelSpec = Field(description="the kernel of collectives that compute units run")
    copy_engines: CopyEngineSpec | None = Field(None, description="copy engines; none: there are none")
    host: HostSpec | None = Field(
        None, description="the software that drives the GPU; none: it costs nothing but `kernel_launch`"
    )
    compute_unit_groups: tuple[NumberList, ...] = Field(
        (), description="the compute units of each group; none: all are one group"
    )

    @property
    def n_groups(self) -> int:
        """Groups of compute units."""
        return max(len(self.compute_unit_groups), 1)

    @property
    def groups(self) -> list[list[int]]:
        """The compute units of each group."""
        return [numbers_in(one) for one in self.compute_unit_groups] or [list(range(self.n_compute_units))]

    @property
    def n_copy_engines(self) -> int:
        """Copy engines of the GPU."""
        return 0 if self.copy_engines is None else self.copy_engines.number

    def clock_at_share(self, share: float) -> float:
        """Return the compute clock while so large a *share* of the matrix peak is used, in hertz: decision 44."""
        return self.compute_clock - (self.compute_clock - self.clock_of_matrices) * share

    def clock_at_work(self, share: float) -> float:
        """Return the compute clock while all compute units multiply for so large a *share* of the time, in hertz."""
        return self.clock_at_share(share if self.matrix_clock_by == "share" else 1.0)

    def at_matrix_share(self, share: float, ticks_hz: int) -> GpuSpec:
        """Return this GPU as it is while so large a *share* of its matrix peak is used: its cycle in whole ticks."""
        period = round(ticks_hz / self.clock_at_share(share))
        clocks = dict.fromkeys(MATRIX_CLOCKS, "compute_clock")
        return self.model_copy(update={"compute_clock": round(ticks_hz / period), **clocks})

    @property
    def clock_of_matrices(self) -> int:
        """The compute clock while all compute units multiply, in hertz."""
        return self.compute_clock if isinstance(self.matrix_clock, str) else self.matrix_clock

    def path_cycles(self, loaded: float, kept: float, sent: float) -> float:
        """Return the cycles of the path of a compute unit for bytes loaded, stored here, and stored elsewhere."""
        unit = self.compute_unit
        stored = kept + sent * (1 + unit.store_header / self.l2.line)
        return loaded / unit.l2_bytes_per_cycle + stored / unit.l2_store_bytes_per_cycle


class DramTimingSpec(Spec):
    """Command timing in cycles of the memory clock, JEDEC names.

    ``nCCDWS`` / ``nCCDWL``: column delay after a near-memory update to other bank groups / within its bank group (T3
    section 5.1.1: twice ``nCCDL``). ``nRTW`` is RD to WR on the same channel.  Refresh is off if ``nREFI`` is 0; with
    ``nRFCpb`` the banks of a channel are refreshed one after the other while the others work (JESD238, REFpb).
    """

    nBL: CommandCycles = Field(description="data of a column command on the bus")
    nCL: CommandCycles = Field(description="RD to its first data")
    nCWL: CommandCycles = Field(description="WR to its first data")
    nRCDRD: CommandCycles = Field(description="ACT to RD in its bank")
    nRCDWR: CommandCycles = Field(description="ACT to WR in its bank")
    nRP: CommandCycles = Field(description="PRE to ACT in its bank")
    nRAS: CommandCycles = Field(description="ACT to PRE in its bank")
    nRC: CommandCycles = Field(description="ACT to ACT in its bank")
    nRTP: CommandCycles = Field(description="RD to PRE in its bank")
    nWR: CommandCycles = Field(description="last data of a WR to PRE in its bank")
    nCCDS: CommandCycles = Field(description="column command to column command of another bank group")
    nCCDL: CommandCycles = Field(description="column command to column command of its bank group")
    nCCDWS: CommandCycles = Field(description="near-memory update to column command of another bank group")
    nCCDWL: CommandCycles = Field(description="near-memory update to column command of its bank group")
    nRRDS: CommandCycles = Field(description="ACT to ACT of another bank group")
    nRRDL: CommandCycles = Field(description="ACT to ACT of its bank group")
    nFAW: CommandCycles = Field(description="window in which a channel has four ACT at most")
    nRTW: CommandCycles = Field(description="RD to WR on its channel")
    nWTRS: CommandCycles = Field(description="last data of a WR to RD of another bank group")
    nWTRL: CommandCycles = Field(description="last data of a WR to RD of its bank group")
    nREFI: CommandCyclesOrZero = Field(description="in which every bank is refreshed once; 0: no refresh")
    nRFC: CommandCyclesOrZero = Field(description="REF to the next command of its channel")
    nRFCpb: CommandCyclesOrZero = Field(
        0, description="REF of one bank to its next ACT; 0: all banks at once, by `nRFC`"
    )
    nRREFD: CommandCyclesOrZero = Field(0, description="REF of one bank to ACT or REF of another one")


class DramQueueSpec(Spec):
    """The FR-FCFS queue of one channel.

    ``unified``: one queue of ``entries`` for reads and writes, served oldest row hit first.  ``split``: one for reads
    and one for writes, which are drained between the watermarks: as soon as no read waits, or, with ``write_age``, when
    more than the mark wait, one has waited so long, or a read wants one of them.  Stores are then acknowledged by the
    L2, in front of the memory.  A drain that ``write_turn`` ends leaves reads a turn of as many as their queue holds.
    With ``read_age`` it is over, too, when a read has waited so long, unless more writes than the high mark wait.
    """

    kind: Literal["unified", "split"] = Field(description="one queue for reads and writes, or one for each")
    entries: Annotated[int, Field(gt=0, le=256, strict=True)] = Field(description="of the queue; if split, for reads")
    write_high_watermark: CountOrZero = Field(
        description="of a split queue: they are drained when more writes than this wait"
    )
    write_low_watermark: CountOrZero = Field(description="of a split queue: until fewer than this are left")
    write_entries: Annotated[int, Field(gt=0, le=1024, strict=True)] | None = Field(
        None, description="of a split queue, for writes; none: as many as for reads"
    )
    write_age: Latency = Field(0, description="of a split queue: writes are drained when one has waited so long")
    write_turn: Annotated[Count, AtMost(1 << 20)] | None = Field(
        None,
        description="of a split queue with `write_age`: writes of a drain at most while reads wait; none: no limit",
    )
    read_age: Latency = Field(
        0,
        description="of a split queue with `write_age`: a drain ends when a read has waited so long; 0: no limit",
    )
    turn_to_writes: Latency = Field(
        0,
        description="of a split queue with `write_age`: from the start of a drain to its first write, beside timings",
    )

    @property
    def holds_writes(self) -> bool:
        """Whether writes wait though there may be nothing to read."""
        return self.kind == "split" and self.write_age > 0

    @property
    def for_writes(self) -> int:
        """Entries of the queue of writes, if it is split."""
        return self.entries if self.write_entries is None else self.write_entries


class MemorySpec(Spec):
    """HBM of one GPU with its memory controllers."""

    n_channels: Annotated[Count, AtMost(1 << 10)] = Field(description="channels, each with a controller")
    clock: Hertz = Field(description="of the DRAM commands")
    access: AccessBytes = Field(description="what one column command moves")
    n_bank_groups: Annotated[Count, AtMost(1 << 6)] = Field(description="of a channel")
    banks_per_group: Annotated[Count, AtMost(1 << 6)] = Field(description="banks of a bank group")
    row: Bytes = Field(description="of one bank")
    channel_interleave: Bytes = Field(description="consecutive bytes on one channel")
    timing: DramTimingSpec = Field(description="timings of the DRAM commands")
    queue: DramQueueSpec = Field(description="the queue of a channel")
    stream_queue_entries: Annotated[Count, AtMost(1 << 16)] = Field(
        description="requests of each stream that wait in front of the arbiter"
    )

    @property
    def bandwidth(self) -> float:
        """Bytes a second at the peak: every channel moves an access each ``nCCDS`` cycles."""
        return self.n_channels * self.access * self.clock / self.timing.nCCDS


class LinkSpec(Spec):
    """What connects a GPU to others; the latency is from the store or DMA read to the memory controller there.

    ``topology`` ``ring``: one direction of a link to the neighbour.  ``switch``: a port to, and one from, a switch that
    leads to every GPU, both of this bandwidth.  A store of b bytes goes in packets of at most ``packet_payload`` bytes,
    each with a header; ``bandwidth`` is the rate of data in full packets (without headers, in any).
    """

    bandwidth: BytesPerSecond = Field(description="of data, in each direction")
    latency: Annotated[PicosecondsAboveZero, AtMost(10**12)] = Field(
        description="from the store or DMA read to the memory controller there"
    )
    egress_buffer: Annotated[Bytes, AtMost(1 << 24)] = Field(
        description="stores that the sender holds before it pushes back"
    )
    topology: Literal["ring", "switch"] = Field(
        "ring", description="a link to one neighbour, or a port to a switch that leads to every GPU"
    )
    ingress_buffer: Annotated[Bytes, AtMost(1 << 26)] | None = Field(
        None, description="of a switch: what one GPU may have on the way to another"
    )
    packet_payload: Bytes | None = Field(None, description="data of a packet, at most; none: no packets")
    packet_header: Bytes | None = Field(None, description="of each packet, besides its data")


class GpuOverride(Spec):
    """A GPU that differs from the others of its ring; what it has in common with them is repeated."""

    number: CountOrZero
    gpu: GpuSpec
    memory: MemorySpec


class LinkOverride(Spec):
    """A link that differs from the others: ``link[number]`` leads from ``gpu[number]`` to ``gpu[number - 1]``."""

    number: CountOrZero
    link: LinkSpec


class StartSkew(Spec):
    """How much later than the others a GPU comes to its first kernel."""

    number: CountOrZero
    delay: Picoseconds


class StartJitterSpec(Spec):
    """What is added to the start of each kernel on each GPU: uniform in 0 to ``limit``, the same for the same seed."""

    limit: Picoseconds = Field(description="largest delay of the start of a kernel")
    seed: CountOrZero = Field(description="of the random delays; the same seed gives the same ones")


class UniformMachineSpec(Spec):
    """A ring of identical GPUs."""

    name: str = Field(description="of the machine in the results; of a preset, its own name")
    gpu: GpuSpec = Field(description="the GPU: a preset or its values")
    memory: MemorySpec = Field(description="the memory: a preset or its values")
    link: LinkSpec = Field(description="the link: a preset or its values")


class MachineSpec(UniformMachineSpec):
    """A ring of GPUs, identical but for per-GPU overrides.

    A heterogeneous ring (GPUs and links that differ, skew, jitter) needs every GPU simulated (explicit mode).
    """

    own_gpus: tuple[GpuOverride, ...] = ()
    own_links: tuple[LinkOverride, ...] = ()
    start_skew: tuple[StartSkew, ...] = ()
    start_jitter: StartJitterSpec | None = None

    @property
    def is_uniform(self) -> bool:
        """Whether all GPUs and links are identical and start together, so that one stands for all."""
        return not (self.own_gpus or self.own_links or self.start_skew or self.start_jitter)

    def of_gpu(self, number: int) -> MachineSpec:
        """Return a ring of GPUs identical to ``gpu[number]``, with links identical to the one that it sends over."""
        own = {one.number: one for one in self.own_gpus}.get(number, self)
        sends = {one.number: one for one in self.own_links}.get(number, self)
        return MachineSpec(name=self.name, gpu=own.gpu, memory=own.memory, link=sends.link)

    def clocks(self) -> set[int]:
        """Return all clocks of the ring, in hertz, but for those that the compute clocks fall to."""
        parts: list[MachineSpec | GpuOverride] = [self, *self.own_gpus]
        return {clock for part in parts for clock in (part.gpu.compute_clock, part.memory.clock)}

    @property
    def clock_falls(self) -> bool:
        """Whether a GPU's compute clock falls while it multiplies."""
        parts: list[MachineSpec | GpuOverride] = [self, *self.own_gpus]
        return any(part.gpu.clock_of_matrices != part.gpu.compute_clock for part in parts)

    @property
    def ticks_hz(self) -> int:
        """Ticks a second of simulated time: a cycle of each clock has a whole number of them.

        The fewest; if the clock falls as many as may be: where it falls to is met to half a tick of a cycle.
        """
        hz = math.lcm(*self.clocks())
        return hz * max(limits.FINEST_TICKS_HZ // hz, 1) if self.clock_falls else hz

    def at_matrix_share(
        self, share: float, of_own: Mapping[int, float] | None = None, ticks_hz: int | None = None
    ) -> MachineSpec:
        """Return the same ring, all its GPUs as they are while so large a *share* of the matrix peak is used.

        *of_own* has the shares of GPUs of their own, by number; *ticks_hz* is the time of a larger ring.
        """
        if not self.clock_falls:
            return self
        hz, shares = ticks_hz or self.ticks_hz, of_own or {}

        def clocked(one: GpuOverride) -> GpuOverride:
            return one.model_copy(update={"gpu": one.gpu.at_matrix_share(shares.get(one.number, share), hz)})

        own = tuple(map(clocked, self.own_gpus))
        return self.model_copy(update={"gpu": self.gpu.at_matrix_share(share, hz), "own_gpus": own})
