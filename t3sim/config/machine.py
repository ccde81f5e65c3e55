"""What a machine is made of: frozen specs of every part, in SI base units.

A spec holds what a data sheet would state and nothing else: no state, no derived numbers, no defaults for hardware
values (those live in ``configs/``, each with its source).  Quantities are written with units in YAML and are integers
here: bytes, bytes per second, hertz, picoseconds, or cycles of the clock that the docstring names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from t3sim import units
from t3sim.config.number_lists import LARGEST_NUMBER, numbers_in, parse_number_list


def _written(parser: Callable[[object], object]) -> BeforeValidator:
    """A quantity that files hold as a text with its unit."""
    return BeforeValidator(parser, json_schema_input_type=str)


Bytes = Annotated[int, _written(units.parse_bytes), Field(gt=0)]
BytesPerSecond = Annotated[int, _written(units.parse_bandwidth), Field(gt=0)]
Hertz = Annotated[int, _written(units.parse_frequency), Field(gt=0)]
Picoseconds = Annotated[int, _written(units.parse_time), Field(ge=0)]
PicosecondsAboveZero = Annotated[int, _written(units.parse_time), Field(gt=0)]
Cycles = Annotated[int, _written(units.parse_cycles), Field(ge=0)]
CyclesAboveZero = Annotated[int, _written(units.parse_cycles), Field(gt=0)]
ReadAhead = Annotated[int | Literal["chunk"], _written(units.parse_bytes_or_word("chunk"))]
MatrixClock = Annotated[int | Literal["compute_clock"], _written(units.parse_frequency_or_word("compute_clock"))]
NumberList = Annotated[str, BeforeValidator(parse_number_list, json_schema_input_type=str | int)]  # such as 0-17,44
AccessBytes = Annotated[Literal[32, 64], _written(units.parse_bytes)]
Count = Annotated[int, Field(gt=0, lt=units.LIMIT, strict=True)]
Share = Annotated[float, Field(gt=0, le=1, strict=True)]
CountOrZero = Annotated[int, Field(ge=0, lt=units.LIMIT, strict=True)]


@dataclass(frozen=True)
class AtMost:
    """The largest value of a field: the state of a GPU has to fit a computer's memory, products of values 64 bits."""

    limit: int


Latency = Annotated[Picoseconds, AtMost(10**12)]
CommandCycles = Annotated[Count, AtMost(1 << 20)]
CommandCyclesOrZero = Annotated[CountOrZero, AtMost(1 << 20)]
LinesInFlight = Annotated[Count, AtMost(1 << 14)]
BytesPerCycle = Annotated[Count, AtMost(1 << 30)]
EngineRate = Annotated[BytesPerSecond, AtMost(1 << 50)]


class Spec(BaseModel):
    """Base of all specs: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ComputeUnitSpec(Spec):
    """One compute unit; cycles are of the GPU's compute clock."""

    max_threads: Count
    lds: Bytes  # local data share plus L1, what operand slices are staged in
    registers: Bytes  # vector register file, holds the accumulators
    matrix_flops_per_cycle: Annotated[Count, AtMost(1 << 30)]
    matrix_efficiency: Share  # of the matrix rate that a GEMM main loop reaches
    l2_bytes_per_cycle: BytesPerCycle  # width of the path between the CU and the L2, for loads
    l2_store_bytes_per_cycle: Count  # the same for stores
    max_outstanding_lines: LinesInFlight  # line accesses in flight per CU (loads), and the same number of stores
    workgroup_launch: Latency  # from a freed slot to the first instruction of its next workgroup
    epilogue: Annotated[Cycles, AtMost(1 << 20)] = 0  # of a tile, from its last multiplication to its first store
    max_unsent_bytes: Annotated[Bytes, AtMost(1 << 24)] | None = (
        None  # of its stores to other GPUs in the egress buffer; None: what that holds
    )


class L2Spec(Spec):
    """The L2 cache; cycles are of the GPU's compute clock."""

    capacity: Annotated[Bytes, AtMost(1 << 31)]
    n_banks: Annotated[Count, AtMost(4096)]
    associativity: Annotated[Count, AtMost(1 << 10)]
    line: Bytes
    bank_bytes_per_cycle: BytesPerCycle
    hit_latency: Cycles  # CU to data back in the CU, unloaded
    miss_latency: Annotated[Cycles, AtMost(1 << 20)]  # added on a miss, besides the DRAM itself
    mshrs_per_bank: Annotated[Count, AtMost(1 << 14)]
    bank_queue_entries: Count  # line accesses that may wait in front of a bank
    at_kernel_end: Literal["write-back", "keep"]  # what becomes of dirty lines
    n_partitions: Count  # each keeps copies of the lines of the others that its compute units load
    crossing_latency: Cycles  # from one partition to another, each way


class TrackerSpec(Spec):
    """T3's tracker (T3 section 4.2.1)."""

    n_sets: Annotated[Count, AtMost(1 << 16)]  # indexed by the low bits of the workgroup id: a power of two
    entries_per_set: Annotated[Count, AtMost(1 << 10)]  # wavefront-tile entries


class DmaSpec(Spec):
    """T3's DMA engine (T3 section 4.2.2); cycles of the compute clock."""

    wavefront_tiles_per_block: Annotated[Count, AtMost(1 << 20)]
    read_ahead: ReadAhead  # bytes read but not yet on the link, or one chunk
    bytes_per_cycle: BytesPerCycle  # rate at which the engine issues reads
    command_cost: Latency = 0  # from when a command is its turn to its first read


class CopyEngineSpec(Spec):
    """Copy engines: they read memory and store it here or at another GPU, command after command."""

    number: Annotated[Count, AtMost(64)]
    startup: Latency  # of a command, from when it may start to its first read
    bandwidth: EngineRate  # at which an engine issues reads
    max_outstanding_lines: LinesInFlight  # lines of an engine that are read and not stored yet
    packet_payload: Bytes | None = None  # of what it stores at other GPUs; None: as of what compute units do
    handover: Latency = 0  # of a stream from a kernel to a command, or back, besides the launch


class ExpectedTimeSpec(Spec):
    """What the library that runs the collectives expects of a protocol, its own table: it takes the quickest.

    ``start`` + steps of the ring x (``step`` + chunk / ``bandwidth``).
    """

    start: Picoseconds
    step: Picoseconds
    bandwidth: BytesPerSecond


class FlaggedProtocolSpec(Spec):
    """Channels that send flags inside the data, so that no receiver waits for a separate flag, but more is sent.

    Flags go over the link and into the receive buffers, not into operands and results.
    """

    launch: Picoseconds  # besides the launch of any kernel
    slice_overhead: Picoseconds
    chunk: Bytes  # as ``channel_chunk``: of data
    slices: Count
    least_slice: Bytes
    data_per_line: Bytes  # of a line in a receive buffer; the rest are flags
    expected: ExpectedTimeSpec


Protocol = Literal["simple", "low_latency", "low_latency_128"]


class CollectiveKernelSpec(Spec):
    """A ring collective run by compute units (the baseline).

    ``kind`` ``chunk``: all compute units share each step of the ring (T3 section 2.3).  ``channels``: ``channels``
    compute units each run a ring of their own, in slices, and copy what arrives out of a receive buffer (NCCL).

    The numbers stated here are those of the plain protocol (NCCL's Simple), whose flags follow the data;
    ``low_latency`` and ``low_latency_128`` (NCCL's LL and LL128) are protocols that small arrays may take instead.
    """

    max_outstanding_lines: LinesInFlight  # loads in flight per CU: registers and unrolling of the copy loop
    kind: Literal["chunk", "channels"]
    launch: Picoseconds  # besides the launch of any kernel: until the kernels of all GPUs run
    slice_overhead: Picoseconds  # of a compute unit, from its last store of a step to the next step
    channels: Count
    channel_chunk: Bytes  # of a channel's part of a chunk: taken through all steps before the next
    slices: Count  # of such a part, each passed on as soon as it is complete
    least_slice: Bytes  # a shorter part of a chunk is not cut any further
    expected: ExpectedTimeSpec | None = None  # needed to choose among protocols
    low_latency: FlaggedProtocolSpec | None = None
    low_latency_128: FlaggedProtocolSpec | None = None

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

    eager_call: Latency  # from the call of an operator to its first operation, unless all are a captured graph
    eager_issue: Latency  # of each operation
    launch: Latency | None = None  # from an operation to the next one of its stream; None: `kernel_launch`
    gemm_setup: Latency = 0  # in front of a GEMM of its library
    barrier: Latency = 0  # of its barrier over the GPUs, besides a launch and the link's latency
    copy_bandwidth: EngineRate | None = None  # of an engine between its buffers; None: of the engine
    sum_bandwidth: EngineRate | None = None  # sums that its kernel makes; None: what units and memory let through


class GpuSpec(Spec):
    """One GPU without its memory.

    ``compute_unit_groups`` lists the compute units of each group (NVIDIA's GPCs, AMD's shader engines or dies): the
    groups have equal parts of the link and of its egress buffer when several store to other GPUs.  Empty: all
    compute units are one group.
    """

    n_compute_units: Annotated[Count, AtMost(LARGEST_NUMBER + 1)]
    compute_clock: Hertz
    matrix_clock: MatrixClock  # the same while a GEMM runs: what the power limit leaves
    issue_slot: Annotated[CyclesAboveZero, AtMost(1 << 10)]  # granularity of CU and L2 events
    kernel_launch: Latency
    compute_unit: ComputeUnitSpec
    l2: L2Spec
    tracker: TrackerSpec
    dma: DmaSpec
    collective_kernel: CollectiveKernelSpec
    copy_engines: CopyEngineSpec | None = None
    host: HostSpec | None = None
    compute_unit_groups: tuple[NumberList, ...] = ()

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

    def at_matrix_clock(self) -> GpuSpec:
        """Return this GPU as it is while a GEMM runs."""
        return self.model_copy(update={"compute_clock": self.clock_of_matrices})

    @property
    def clock_of_matrices(self) -> int:
        """The compute clock while a GEMM runs, in hertz."""
        return self.compute_clock if isinstance(self.matrix_clock, str) else self.matrix_clock


class DramTimingSpec(Spec):
    """Command timing in cycles of the memory clock, JEDEC names.

    ``nCCDWS`` / ``nCCDWL``: column delay after a near-memory update to other bank groups / within its bank group (T3
    section 5.1.1: twice ``nCCDL``). ``nRTW`` is RD to WR on the same channel.  Refresh is off if ``nREFI`` is 0.
    """

    nBL: CommandCycles
    nCL: CommandCycles
    nCWL: CommandCycles
    nRCDRD: CommandCycles
    nRCDWR: CommandCycles
    nRP: CommandCycles
    nRAS: CommandCycles
    nRC: CommandCycles
    nRTP: CommandCycles
    nWR: CommandCycles
    nCCDS: CommandCycles
    nCCDL: CommandCycles
    nCCDWS: CommandCycles
    nCCDWL: CommandCycles
    nRRDS: CommandCycles
    nRRDL: CommandCycles
    nFAW: CommandCycles
    nRTW: CommandCycles
    nWTRS: CommandCycles
    nWTRL: CommandCycles
    nREFI: CommandCyclesOrZero
    nRFC: CommandCyclesOrZero


class DramQueueSpec(Spec):
    """The FR-FCFS queue of one channel.

    ``unified``: one queue of ``entries`` for reads and writes, served oldest row hit first.  ``split``: ``entries`` for
    each direction, writes drained between the watermarks.
    """

    kind: Literal["unified", "split"]
    entries: Annotated[int, Field(gt=0, le=256, strict=True)]
    write_high_watermark: CountOrZero
    write_low_watermark: CountOrZero


class MemorySpec(Spec):
    """HBM of one GPU with its memory controllers."""

    n_channels: Annotated[Count, AtMost(1 << 10)]
    clock: Hertz
    access: AccessBytes  # bytes of one column command
    n_bank_groups: Annotated[Count, AtMost(1 << 6)]
    banks_per_group: Annotated[Count, AtMost(1 << 6)]
    row: Bytes
    channel_interleave: Bytes  # consecutive bytes on one channel
    timing: DramTimingSpec
    queue: DramQueueSpec
    stream_queue_entries: Annotated[Count, AtMost(1 << 16)]  # requests per stream in front of the arbiter


class LinkSpec(Spec):
    """What connects a GPU to others; the latency is from the store or DMA read to the memory controller there.

    ``topology`` ``ring``: one direction of a link to the neighbour.  ``switch``: a port to, and one from, a switch that
    leads to every GPU, both of this bandwidth.  A store of b bytes goes in packets of at most ``packet_payload`` bytes,
    each with a header; ``bandwidth`` is the rate of data in full packets (without headers, in any).
    """

    bandwidth: BytesPerSecond
    latency: Annotated[PicosecondsAboveZero, AtMost(10**12)]
    egress_buffer: Annotated[Bytes, AtMost(1 << 24)]  # stores held at the sender before it pushes back
    topology: Literal["ring", "switch"] = "ring"
    ingress_buffer: Annotated[Bytes, AtMost(1 << 26)] | None = (
        None  # of a switch: that one GPU may have on the way to another
    )
    packet_payload: Bytes | None = None
    packet_header: Bytes | None = None


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

    limit: Picoseconds
    seed: CountOrZero


class UniformMachineSpec(Spec):
    """A ring of identical GPUs."""

    name: str
    gpu: GpuSpec
    memory: MemorySpec
    link: LinkSpec


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
        """Return all clocks of the ring, in hertz."""
        parts: list[MachineSpec | GpuOverride] = [self, *self.own_gpus]
        return {c for part in parts for c in (part.gpu.compute_clock, part.gpu.clock_of_matrices, part.memory.clock)}

    def at_matrix_clock(self) -> MachineSpec:
        """Return the same ring, all its GPUs at their matrix clock."""
        parts: list[MachineSpec | GpuOverride] = [self, *self.own_gpus]
        if all(part.gpu.compute_clock == part.gpu.clock_of_matrices for part in parts):
            return self
        own = tuple(one.model_copy(update={"gpu": one.gpu.at_matrix_clock()}) for one in self.own_gpus)
        return self.model_copy(update={"gpu": self.gpu.at_matrix_clock(), "own_gpus": own})
