"""Frozen specs of all parts of a machine, in SI base units.

A spec holds what a data sheet would state and nothing else: no state, no derived numbers, no defaults for hardware
values (those live in ``configs/``, each with its source).  Quantities are written with units in YAML and are integers
here: bytes, bytes per second, hertz, picoseconds, or cycles of the clock that the docstring names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args, get_origin

from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from t3sim import units
from t3sim.config import limits
from t3sim.config.operating_points import OperatingPoint
from t3sim.spelling import spelled_as


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


Latency = Annotated[Picoseconds, AtMost(10**12)]
ShortCycles = Annotated[Cycles, AtMost(1 << 20)]
CommandCycles = Annotated[Count, AtMost(1 << 20), Unit("cycles")]
CommandCyclesOrZero = Annotated[CountOrZero, AtMost(1 << 20), Unit("cycles")]
LinesInFlight = Annotated[Count, AtMost(1 << 14), Unit("lines")]
BytesPerCycle = Annotated[Count, AtMost(1 << 30), Unit("B/cycle")]
MatrixRate = Annotated[float, Field(ge=0.125, le=16), Unit("times the 16-bit rate")]
EngineRate = Annotated[BytesPerSecond, AtMost(1 << 50)]


class Spec(BaseModel):
    """Base of all specs: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _spelled(cls, value: Any, info: ValidationInfo) -> Any:
        """Accept ``all_reduce`` for ``all-reduce``, of all fields that have a few words to choose from."""
        words = _words(cls.model_fields[str(info.field_name)].annotation)  # type: ignore[arg-type]
        return spelled_as(value, words) if words else value


@lru_cache(maxsize=1024)
def _words(annotation: Any) -> tuple[str, ...]:
    """Return the texts that a field may have besides others."""
    if get_origin(annotation) is Literal:
        return tuple(word for word in get_args(annotation) if isinstance(word, str))
    parts = (part for part in get_args(annotation) if get_origin(part) is not None)
    return tuple(word for part in parts for word in _words(part))


class L1Spec(Spec):
    """The L1 of a compute unit, which has what the LDS leaves of one memory.

    A load of a move kernel has a line of it until its data are in registers, so that the L1 limits loads in flight.
    GEMMs stage their operands in the LDS.  A compute unit takes the least size of the LDS that its workgroups need, and
    is set to another one only while no GEMM runs: concurrent with GEMMs, a move kernel has what they leave.
    """

    with_lds: Bytes = Field(description="Combined capacity of L1 and LDS.")
    lds_sizes: tuple[Bytes, ...] = Field(
        min_length=1, description="Allowed LDS carve-outs of the combined capacity; the L1 has the rest."
    )

    def left_by(self, lds: int) -> int:
        """Return the bytes of the L1 beside workgroups that need so much LDS."""
        return self.with_lds - min((size for size in self.lds_sizes if size >= lds), default=self.with_lds)


class MatrixRatesSpec(Spec):
    """How many times faster than 16-bit operands the matrix units multiply others; a type without one is refused."""

    tf32: MatrixRate | None = Field(None, description="FP32 operands, multiplied as TF32.")
    fp8: MatrixRate | None = Field(None, description="FP8 operands, MXFP8 among them.")
    fp4: MatrixRate | None = Field(None, description="FP4 operands: NVFP4, MXFP4.")
    int8: MatrixRate | None = Field(None, description="INT8 operands.")


class ComputeUnitSpec(Spec):
    """One compute unit; cycles are of the GPU's compute clock."""

    max_threads: Count = Field(description="Maximum resident threads, over all workgroups of a compute unit.")
    lds: Bytes = Field(
        description="Capacity of the local data share (shared memory), in which GEMMs stage operand slices."
    )
    registers: Bytes = Field(description="Capacity of the vector register file, which holds the accumulators.")
    matrix_flops_per_cycle: Annotated[Count, AtMost(1 << 30), Unit("FLOP/cycle")] = Field(
        description="Peak rate of the matrix units of a compute unit with 16-bit operands."
    )
    matrix_rates: MatrixRatesSpec | None = Field(
        None, description="Matrix rates of other element types. If omitted, only 16-bit operands are multiplied."
    )
    matrix_efficiency: Share = Field(description="Share of the peak matrix rate that the main loop of a GEMM reaches.")
    l2_bytes_per_cycle: BytesPerCycle = Field(description="Load bandwidth between a compute unit and the L2.")
    l2_store_bytes_per_cycle: Annotated[Count, Unit("B/cycle")] = Field(
        description="Store bandwidth between a compute unit and the L2."
    )
    store_header: Annotated[BytesOrZero, AtMost(1 << 16)] = Field(
        0, description="Header bytes that each remotely stored line adds to the store path."
    )
    max_outstanding_lines: LinesInFlight = Field(
        description="Maximum outstanding line loads of a compute unit, and the same number of stores."
    )
    n_simds: Annotated[Count, AtMost(limits.MOST_SIMDS)] = Field(
        1,
        description="SIMD units of a compute unit; each loads for its own wavefronts with an equal share of "
        "`l2_bytes_per_cycle`.",
    )
    wide_load_latency: ShortCycles = Field(
        0, description="Extra latency of 128-bit loads, which the wavefronts of collectives use."
    )
    workgroup_launch: Latency = Field(
        description="Dispatch latency: from a freed slot to the first instruction of its next workgroup."
    )
    count_latency: Latency = Field(
        0,
        description="Time to increment a completion counter after the stores of a tile: a fence and the round trip of "
        "the atomic.",
    )
    flag_latency: Latency = Field(
        0,
        description="Time from the arrival of a flag to the first instruction of the workgroup that polls for it, in "
        "all-reduce kernels that load directly from other GPUs.",
    )
    l1: L1Spec | None = Field(
        None, description="The L1 of a compute unit. If omitted, L1 capacity does not limit outstanding loads."
    )


class L2Spec(Spec):
    """The L2 cache; cycles are of the GPU's compute clock."""

    capacity: Annotated[Bytes, AtMost(1 << 31)] = Field(description="Capacity of the L2, over all banks.")
    n_banks: Annotated[Count, AtMost(4096)] = Field(description="Number of L2 banks, each with its own queue.")
    associativity: Annotated[Count, AtMost(1 << 10)] = Field(description="Number of ways in a set.")
    line: Bytes = Field(description="Size of a cache line.")
    bank_bytes_per_cycle: BytesPerCycle = Field(description="Bandwidth of one bank, for reads and for writes.")
    hit_latency: Cycles = Field(description="Unloaded round trip of an L2 hit, seen by a compute unit.")
    miss_latency: ShortCycles = Field(description="Extra latency of an L2 miss, without the DRAM access.")
    mshrs_per_bank: Annotated[Count, AtMost(1 << 14)] = Field(description="Maximum outstanding misses of a bank.")
    bank_queue_entries: Count = Field(description="Capacity of the request queue of a bank, in line accesses.")
    at_kernel_end: Literal["write-back", "keep"] = Field(description="Treatment of dirty lines at the end of a kernel.")
    n_partitions: Count = Field(
        description="Number of L2 partitions; each caches its own copies of remote lines that its compute units load."
    )
    crossing_latency: Cycles = Field(description="One-way latency between two partitions.")
    retention: Bytes | None = Field(
        None,
        description="Lifetime, in bytes of L2 fill traffic, of data written by L2-bypassing stores. Until it expires, "
        "data-movement kernels hit in the L2. If omitted, they read DRAM.",
    )


class TrackerSpec(Spec):
    """T3's tracker (T3 section 4.2.1)."""

    n_sets: Annotated[Count, AtMost(1 << 16)] = Field(
        description="Number of tracker sets, indexed by the low bits of the workgroup number."
    )
    entries_per_set: Annotated[Count, AtMost(1 << 10)] = Field(
        description="Wavefront tiles that a set can track at a time."
    )


class DmaSpec(Spec):
    """T3's DMA engine (T3 section 4.2.2); cycles of the compute clock."""

    wavefront_tiles_per_block: Annotated[Count, AtMost(1 << 20)] = Field(
        description="Wavefront tiles that one DMA command moves."
    )
    read_ahead: ReadAhead = Field(
        description="Maximum read-ahead: data read from memory but not yet sent over the link."
    )
    bytes_per_cycle: BytesPerCycle = Field(description="Rate at which the engine issues reads.")
    command_cost: Latency = Field(0, description="Issue latency of a DMA command, up to its first read.")


class CopyEngineSpec(Spec):
    """Copy engines: they read memory and store it here or at another GPU, command after command."""

    number: Annotated[Count, AtMost(64)] = Field(description="Number of copy engines of a GPU.")
    startup: Latency = Field(description="Start-up latency of a copy command, up to its first read.")
    bandwidth: EngineRate = Field(description="Rate at which a copy engine issues reads.")
    max_outstanding_lines: LinesInFlight = Field(
        description="Maximum lines of an engine that are read but not stored yet."
    )
    packet_payload: Bytes | None = Field(
        None, description="Maximum payload of the link packets of an engine. If omitted, `link.packet_payload` applies."
    )
    handover: Latency = Field(
        0,
        description="Extra latency of a stream that changes between kernels and copy commands, on top of the launch; "
        "also between two copy commands if a signal is waited for or posted between them.",
    )

    def between_commands(self, steps: NDArray[Any]) -> int:
        """Return the picoseconds from the end of a copy to the first read of the next one of *steps*."""
        told = ((steps["wait_signal"] >= 0) | (steps["post_signal"] >= 0)).any()
        return self.startup + (self.handover if told else 0)


class ExpectedTimeSpec(Spec):
    """What the library that runs the collectives expects of a protocol, its own table: it takes the fastest.

    ``start`` + steps of the ring x (``step`` + chunk / ``bandwidth``).
    """

    start: Picoseconds = Field(description="Fixed cost of the collective in the library's cost model.")
    step: Picoseconds = Field(description="Fixed cost of each ring step in the library's cost model.")
    bandwidth: BytesPerSecond = Field(description="Bandwidth of each ring step in the library's cost model.")


class FlaggedProtocolSpec(Spec):
    """Channels that send flags inside the data, so that no receiver waits for a separate flag, but more is sent.

    Flags go over the link and into the receive buffers, not into operands and results.
    """

    launch: Picoseconds = Field(description="Launch time of a workgroup, like `launch` of the plain protocol.")
    slice_overhead: Picoseconds = Field(
        description="Overhead between two steps, like `slice_overhead` of the plain protocol."
    )
    chunk: Bytes = Field(description="Data bytes of a piece, like `channel_chunk` of the plain protocol.")
    slices: Count = Field(description="Slices of a piece, like `slices` of the plain protocol.")
    least_slice: Bytes = Field(description="Smallest slice, like `least_slice` of the plain protocol.")
    data_per_line: Bytes = Field(description="Data bytes of a line in a receive buffer; the other bytes are flags.")
    expected: ExpectedTimeSpec = Field(description="The library's cost model of this protocol.")


class ExpectedSwitchTimeSpec(Spec):
    """What the library expects of a collective in the switch: ``start`` + array / ``bandwidth``."""

    start: Picoseconds = Field(description="Fixed cost of the collective in the library's cost model.")
    bandwidth: BytesPerSecond = Field(description="Bandwidth, of the whole array, in the library's cost model.")


class NvlsSpec(Spec):
    """Collectives that multicast and reduce in the switch (NCCL's NVLS); a channel has three groups of warps."""

    channels: Count = Field(description="Number of channels.")
    piece: Bytes = Field(description="Largest piece of a chunk that a channel takes at a time; small arrays have less.")
    scatter_warps: Annotated[Count, AtMost(64)] = Field(
        description="Warps of a channel that copy the input to the staging buffer."
    )
    reduce_warps: Annotated[Count, AtMost(64)] = Field(
        description="Warps of a channel that load sums and store them at every GPU."
    )
    gather_warps: Annotated[Count, AtMost(64)] = Field(description="Warps of a channel that copy to the output.")
    warp_lines: LinesInFlight = Field(description="Lines that a warp loads, waits for and stores as a unit.")
    launch: Picoseconds = Field(description="Launch time of a workgroup, like `launch` of the rings.")
    step_overhead: Picoseconds = Field(
        description="Time from the flag that a role waits for to its next step: polling, fence, barrier."
    )
    least_gpus: Count = Field(description="Smallest number of GPUs for which the library considers it.")
    expected: ExpectedSwitchTimeSpec = Field(description="The library's cost model.")


Protocol = Literal["simple", "low_latency", "low_latency_128"]


class CollectiveKernelSpec(Spec):
    """A ring collective run by compute units (the baseline).

    ``kind`` ``chunk``: all compute units share each step of the ring (T3 section 2.3).  ``channels``: ``channels``
    compute units each run a ring of their own, in slices, and copy what arrives out of a receive buffer (NCCL).

    With ``wavefront_lines`` the limit of outstanding loads is per array; wavefronts are independent, the oldest has
    priority.  A sum waits in ``sum_rounds`` rounds, of which the first loads the first array and a part of the others.
    Threads that wait for flags in the data proceed line by line.

    The numbers stated here are those of the plain protocol (NCCL's Simple), whose flags follow the data;
    ``low_latency`` and ``low_latency_128`` (NCCL's LL and LL128) are protocols that small arrays may take instead.
    """

    max_outstanding_lines: LinesInFlight = Field(
        description="Maximum outstanding loads of a compute unit; registers and loop unrolling of the copy loop limit "
        "them."
    )
    wavefront_lines: LinesInFlight | None = Field(
        None,
        description="Lines that a wavefront (warp) loads, waits for and stores as a unit. If omitted, each line "
        "proceeds independently.",
    )
    sum_rounds: Annotated[Count, AtMost(64)] = Field(
        1,
        description="Number of load batches of a reduction step; with more batches, fewer loads are outstanding at a "
        "time.",
    )
    lds: Annotated[Bytes, AtMost(1 << 24)] | None = Field(
        None, description="LDS allocation of a workgroup. If omitted, it allocates none."
    )
    kind: Literal["chunk", "channels"] = Field(
        description="Organisation of the ring: `chunk`, all compute units share each step; `channels`, each channel "
        "runs a ring of its own."
    )
    launch: Picoseconds = Field(description="Launch time of a workgroup on its compute unit, up to its first step.")
    slice_overhead: Picoseconds = Field(
        description="Time of a compute unit between its last store of a step and its next step."
    )
    channels: Count = Field(description="Number of channels: compute units that each run a ring.")
    channel_chunk: Bytes = Field(
        description="Bytes per channel processed through all ring steps before the next piece starts."
    )
    slices: Count = Field(description="Slices of a piece; each is forwarded as soon as it is complete.")
    least_slice: Bytes = Field(description="Smallest slice; a smaller piece is not divided further.")
    expected: ExpectedTimeSpec | None = Field(
        None, description="The library's cost model of this protocol, needed to choose among protocols."
    )
    low_latency: FlaggedProtocolSpec | None = Field(
        None, description="Protocol with flags inside the data, like NCCL's LL. If omitted, it is not available."
    )
    low_latency_128: FlaggedProtocolSpec | None = Field(
        None, description="Protocol with flags inside the data, like NCCL's LL128. If omitted, it is not available."
    )
    exchange_channels: Annotated[Count, AtMost(64)] | None = Field(
        None, description="Number of channels of a group of sends and receives. If omitted, as `channels`."
    )
    exchange_launch: Picoseconds | None = Field(
        None,
        description="Launch of a group of sends and receives (all-to-all), like `launch`. If omitted, as `launch`.",
    )
    nvls: NvlsSpec | None = Field(
        None, description="Collectives in the switch, like NCCL's NVLS. If omitted, they are not available."
    )

    @property
    def n_wavefronts(self) -> int:
        """Wavefronts of a workgroup that load and store independently; 0: it proceeds line by line."""
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
        description="Host time from the call of an operator to its first operation; a captured graph has no such time."
    )
    eager_issue: Latency = Field(description="Host time to issue one operation.")
    launch: Latency | None = Field(
        None, description="Time between two dependent operations of a stream. If omitted, `kernel_launch` applies."
    )
    gemm_setup: Latency = Field(0, description="Set-up time before each GEMM of the library.")
    barrier: Latency = Field(
        0, description="Time of a barrier across the GPUs, on top of a kernel launch and the link latency."
    )
    copy_bandwidth: EngineRate | None = Field(
        None,
        description="Bandwidth of a copy engine between two buffers of one GPU. If omitted, `copy_engines.bandwidth` "
        "applies.",
    )
    sum_bandwidth: EngineRate | None = Field(
        None, description="Bandwidth of the library's reduction kernel. If omitted, compute units and memory limit it."
    )


class OperatingPointSpec(Spec):
    """The clock of compute units and L2 in one regime of the power management while GEMMs run.

    The clock falls from ``compute_clock`` to ``matrix_clock`` in proportion to ``scales_with``.
    """

    matrix_clock: MatrixClock = Field(description="Clock of compute units and L2 at full use of the matrix units.")
    scales_with: Literal["share", "units"] = Field(
        "share",
        description="Utilisation that scales the clock reduction: the share of the matrix peak, or the share of busy "
        "compute units.",
    )


class OperatingPointsSpec(Spec):
    """The regimes that an experiment may name as its ``operating_point``."""

    sustained: OperatingPointSpec = Field(description="Regime of back-to-back GEMMs that have reached the power limit.")
    boost: OperatingPointSpec | None = Field(
        None,
        description="Regime of short loops of GEMMs, before the power limit acts. If omitted, the clock is "
        "`compute_clock`.",
    )
    onset: OperatingPointSpec | None = Field(
        None,
        description="Regime of the first GEMM after an idle interval. If omitted, the clock is `compute_clock`.",
    )
    power_limit_delay: Latency = Field(0, description="Duration of back-to-back GEMMs before the power limit acts.")


class GpuSpec(Spec):
    """One GPU without its memory."""

    n_compute_units: Annotated[Count, AtMost(limits.MOST_COMPUTE_UNITS)] = Field(
        description="Number of compute units (SMs) of a GPU."
    )
    compute_clock: Hertz = Field(description="Clock of compute units and L2 without matrix work.")
    operating_points: OperatingPointsSpec | None = Field(
        None,
        description="Operating points, each with the clock during GEMMs. If omitted, the clock is always "
        "`compute_clock`.",
    )
    operating_point: OperatingPoint = Field(
        "sustained",
        description="Operating point that the GPU is held at: `sustained`, `boost` or `onset`. The "
        "`operating_point` of an experiment replaces it.",
    )
    issue_slot: Annotated[CyclesAboveZero, AtMost(1 << 10)] = Field(
        description="Time granularity of the events of compute units and L2."
    )
    kernel_launch: Latency = Field(description="Launch latency of a kernel whose dependencies are met.")
    compute_unit: ComputeUnitSpec = Field(description="Properties of a compute unit.")
    l2: L2Spec = Field(description="Properties of the L2 cache.")
    tracker: TrackerSpec = Field(description="Properties of T3's tracker.")
    dma: DmaSpec = Field(description="Properties of T3's DMA engine.")
    collective_kernel: CollectiveKernelSpec = Field(
        description="Properties of the collective kernel that compute units run."
    )
    copy_engines: CopyEngineSpec | None = Field(
        None, description="Properties of the copy engines. If omitted, the GPU has none."
    )
    host: HostSpec | None = Field(
        None, description="Costs of the software that drives the GPU. If omitted, only `kernel_launch` applies."
    )
    compute_capability: str | None = Field(
        None,
        description="Compute capability of an NVIDIA GPU, by which libraries choose among their kernels. If omitted, "
        "they take their defaults.",
    )

    @property
    def n_copy_engines(self) -> int:
        """Copy engines of the GPU."""
        return 0 if self.copy_engines is None else self.copy_engines.number

    @property
    def held_at(self) -> OperatingPointSpec:
        """The clock at the operating point that the GPU is held at."""
        found: OperatingPointSpec | None = getattr(self.operating_points, self.operating_point, None)
        return OperatingPointSpec(matrix_clock="compute_clock") if found is None else found

    def at_operating_point(self, name: OperatingPoint) -> GpuSpec:
        """Return this GPU held at the operating point *name*."""
        return self if self.operating_points is None else self.model_copy(update={"operating_point": name})

    def clock_at_share(self, share: float) -> float:
        """Return the compute clock while so large a *share* of the matrix peak is used, in hertz: decision 44."""
        return self.compute_clock - (self.compute_clock - self.clock_of_matrices) * share

    def clock_at_work(self, share: float) -> float:
        """Return the compute clock while all compute units multiply for so large a *share* of the time, in hertz."""
        return self.clock_at_share(1.0 if self.clock_scales_with_units else share)

    def at_matrix_share(self, share: float, ticks_hz: int) -> GpuSpec:
        """Return this GPU as it is while so large a *share* of its matrix peak is used: its cycle in whole ticks."""
        period = round(ticks_hz / self.clock_at_share(share))
        clock = {"compute_clock": round(ticks_hz / period), "operating_points": None, "operating_point": "sustained"}
        return self.model_copy(update=clock)

    @property
    def clock_scales_with_units(self) -> bool:
        """Whether the clock falls with the compute units that multiply, however much of the time they do."""
        return self.held_at.scales_with == "units"

    @property
    def clock_of_matrices(self) -> int:
        """The compute clock while all compute units multiply back-to-back, in hertz."""
        clock = self.held_at.matrix_clock
        return self.compute_clock if isinstance(clock, str) else clock

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

    nBL: CommandCycles = Field(description="Data-bus occupancy of a column command.")
    nCL: CommandCycles = Field(description="Delay from RD to its first data.")
    nCWL: CommandCycles = Field(description="Delay from WR to its first data.")
    nRCDRD: CommandCycles = Field(description="Delay from ACT to RD in the same bank.")
    nRCDWR: CommandCycles = Field(description="Delay from ACT to WR in the same bank.")
    nRP: CommandCycles = Field(description="Delay from PRE to ACT in the same bank.")
    nRAS: CommandCycles = Field(description="Delay from ACT to PRE in the same bank.")
    nRC: CommandCycles = Field(description="Delay from ACT to ACT in the same bank.")
    nRTP: CommandCycles = Field(description="Delay from RD to PRE in the same bank.")
    nWR: CommandCycles = Field(description="Delay from the last data of a WR to PRE in the same bank.")
    nCCDS: CommandCycles = Field(description="Delay between column commands to different bank groups.")
    nCCDL: CommandCycles = Field(description="Delay between column commands to the same bank group.")
    nCCDWS: CommandCycles = Field(
        description="Delay from a near-memory update to a column command of a different bank group."
    )
    nCCDWL: CommandCycles = Field(
        description="Delay from a near-memory update to a column command of the same bank group."
    )
    nRRDS: CommandCycles = Field(description="Delay from ACT to ACT of a different bank group.")
    nRRDL: CommandCycles = Field(description="Delay from ACT to ACT of the same bank group.")
    nFAW: CommandCycles = Field(description="Window in which a channel may issue at most four ACT.")
    nRTW: CommandCycles = Field(description="Delay from RD to WR on the same channel.")
    nWTRS: CommandCycles = Field(description="Delay from the last data of a WR to RD of a different bank group.")
    nWTRL: CommandCycles = Field(description="Delay from the last data of a WR to RD of the same bank group.")
    nREFI: CommandCyclesOrZero = Field(
        description="Interval in which every bank is refreshed once; 0 disables refresh."
    )
    nRFC: CommandCyclesOrZero = Field(description="Delay from an all-bank REF to the next command of the channel.")
    nRFCpb: CommandCyclesOrZero = Field(
        0, description="Delay from a per-bank REF to the next ACT of that bank; 0 selects all-bank refresh (`nRFC`)."
    )
    nRREFD: CommandCyclesOrZero = Field(0, description="Delay from a per-bank REF to ACT or REF of a different bank.")


class DramQueueSpec(Spec):
    """The FR-FCFS queue of one channel.

    ``unified``: one queue of ``entries`` for reads and writes, served oldest row hit first.  ``split``: one for reads
    and one for writes, which are drained between the watermarks: as soon as no read waits, or, with ``write_age``, when
    more than the mark wait, one has waited so long, or a read wants one of them.  Stores are then acknowledged by the
    L2, in front of the memory.  A drain that ``write_turn`` ends leaves reads a turn of as many as their queue holds.
    With ``read_age`` it is over, too, when a read has waited so long, unless more writes than the high mark wait.
    """

    kind: Literal["unified", "split"] = Field(
        description="Organisation of the queue: `unified`, one for reads and writes; `split`, one for each."
    )
    entries: Annotated[int, Field(gt=0, le=256, strict=True)] = Field(
        description="Entries of the queue; of a split queue, those for reads."
    )
    write_high_watermark: CountOrZero = Field(
        description="Queued writes of a split queue above which a write drain starts."
    )
    write_low_watermark: CountOrZero = Field(
        description="Queued writes of a split queue below which a write drain ends."
    )
    write_entries: Annotated[int, Field(gt=0, le=1024, strict=True)] | None = Field(
        None, description="Entries for writes of a split queue. If omitted, as many as for reads."
    )
    write_age: Latency = Field(
        0,
        description="Age of the oldest write at which a drain of a split queue starts; 0 drains as soon as no read "
        "waits.",
    )
    write_turn: Annotated[Count, AtMost(1 << 20)] | None = Field(
        None,
        description="Maximum writes of a drain while reads wait, for a split queue with `write_age`. If omitted, "
        "there is no limit.",
    )
    read_age: Latency = Field(
        0,
        description="Age of the oldest read at which a drain ends, for a split queue with `write_age`; 0 sets no "
        "limit.",
    )
    turn_to_writes: Latency = Field(
        0,
        description="Extra turnaround time before the first write of a drain, on top of DRAM timing, for a split "
        "queue with `write_age`.",
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

    n_channels: Annotated[Count, AtMost(1 << 10)] = Field(
        description="Number of DRAM channels, each with its own controller."
    )
    clock: Hertz = Field(description="Clock of the DRAM commands.")
    access: AccessBytes = Field(description="Data of one column command.")
    n_bank_groups: Annotated[Count, AtMost(1 << 6)] = Field(description="Bank groups of a channel.")
    banks_per_group: Annotated[Count, AtMost(1 << 6)] = Field(description="Banks of a bank group.")
    row: Bytes = Field(description="Size of a row (page) of a bank.")
    channel_interleave: Bytes = Field(description="Consecutive bytes mapped to one channel.")
    timing: DramTimingSpec = Field(description="Timing parameters of the DRAM commands.")
    queue: DramQueueSpec = Field(description="Request queue of a channel.")
    stream_queue_entries: Annotated[Count, AtMost(1 << 16)] = Field(
        description="Capacity of the queue of each stream before the arbiter of a controller."
    )
    capacity: Bytes | None = Field(
        None,
        description="Size of the memory, which weights and KV cache of a layer of generation must fit. If omitted, "
        "not checked.",
    )

    @property
    def bandwidth(self) -> float:
        """Bytes a second at the peak: every channel moves an access each ``nCCDS`` cycles."""
        return self.n_channels * self.access * self.clock / self.timing.nCCDS


class MulticastSpec(Spec):
    """What a switch does for all GPUs at once (NVLink SHARP): stores to every GPU, loads of sums over all GPUs.

    A multicast store crosses the sender's egress port once, and the ingress port of every GPU.  For a load of a sum,
    every GPU sends its own granule to the switch, and one sum crosses the ingress port of the GPU that asked.
    """

    packet_payload: Bytes | None = Field(
        None,
        description="Maximum payload of a multicast store, of a contribution to a sum and of a sum. If omitted, as of "
        "other packets.",
    )
    reduction_bandwidth: BytesPerSecond = Field(
        description="Rate at which the reduction unit in front of a GPU's port produces sums."
    )
    table: Annotated[Bytes, AtMost(1 << 24)] = Field(
        description="Maximum sums in flight for one GPU: capacity of the switch's table of outstanding reductions."
    )


class NicSpec(Spec):
    """The network interface of a GPU, which connects it with the GPU of the same number on every other node (its rail).

    It reads the memory of the GPU itself (GPUDirect), message after message, and stores into the memory there.
    """

    bandwidth: BytesPerSecond = Field(description="Payload bandwidth of the network interface in each direction.")
    latency: Annotated[PicosecondsAboveZero, AtMost(10**12)] = Field(
        description="Latency from the network interface's read on one GPU to the memory controller of the other."
    )
    message_rate: Annotated[Count, AtMost(10**12), Unit("messages/s")] = Field(
        description="Maximum number of messages that the network interface starts in a second."
    )
    queue_pairs: Annotated[Count, AtMost(16)] = Field(
        4, description="Number of messages that the network interface reads from memory at the same time."
    )
    max_outstanding_lines: LinesInFlight = Field(
        256, description="Maximum lines of a message that are read but not stored yet."
    )


class LinkSpec(Spec):
    """What connects a GPU to others; the latency is from the store or DMA read to the memory controller there.

    ``topology`` names a fabric (``t3sim.fabric``).  ``ring``: one direction of a link to the neighbour.  ``switch``: a
    port to, and one from, a switch that leads to every GPU, both of this bandwidth.  ``mesh``: a link to each other
    GPU, each of this bandwidth.  ``two-level``: nodes, inside which GPUs are connected by a switch, or by a mesh if
    they have several ports, and a network interface for each GPU.  A store of b bytes goes in packets of at most
    ``packet_payload`` bytes, each with a header; ``bandwidth`` is the rate of data in full packets (without headers, in
    any).
    """

    bandwidth: BytesPerSecond = Field(
        description="Payload bandwidth of the link in each direction, with full packets of `packet_payload` bytes; "
        "headers come on top. Copy engines with larger packets exceed it."
    )
    latency: Annotated[PicosecondsAboveZero, AtMost(10**12)] = Field(
        description="Latency from a store or DMA read on one GPU to the memory controller of the other."
    )
    egress_buffer: Annotated[Bytes, AtMost(1 << 24)] = Field(
        description="Capacity of the sender's buffer for outgoing stores."
    )
    topology: str = Field(
        "ring",
        description="Topology: `ring`, a link to one neighbour; `switch`, a port to a switch that connects all GPUs; "
        "`mesh`, a link to each other GPU; `two-level`, nodes of `gpus_per_node` GPUs and network interfaces (`nic`); "
        "or a fabric of a plugin.",
    )
    ports: Annotated[Count, AtMost(7)] = Field(
        1, description="Number of ports of a GPU to other GPUs of its node, each of `bandwidth`: the links of a mesh."
    )
    nodes: Annotated[Count, Unit("nodes")] | None = Field(
        None, description="Number of nodes. If omitted, as many as the GPUs of the workload fill."
    )
    gpus_per_node: Annotated[Count, Unit("GPUs")] | None = Field(
        None, description="Number of GPUs of a node. If omitted, all GPUs are on one node."
    )
    nic: NicSpec | None = Field(
        None, description="Network interface of each GPU to other nodes. If omitted, GPUs have none."
    )
    ingress_buffer: Annotated[Bytes, AtMost(1 << 26)] | None = Field(
        None, description="Maximum data in flight from one GPU to another through a switch, a mesh or a network."
    )
    packet_payload: Bytes | None = Field(
        None, description="Maximum payload of a packet. If omitted, the link has no packets."
    )
    packet_header: Bytes | None = Field(None, description="Header bytes of each packet, on top of its payload.")
    multicast: MulticastSpec | None = Field(
        None, description="Multicast and reduction in the switch. If omitted, the switch has neither."
    )
    max_gpus: Annotated[Count, Unit("GPUs")] | None = Field(
        None,
        description="Number of GPUs that the links connect, of one host or NVLink domain. If omitted, any number.",
    )

    @property
    def n_ports(self) -> int:
        """Return the ports of a GPU, that to its network interface among them."""
        return self.ports + (self.nic is not None)


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
    """Delay of the first kernel of a GPU after that of the others."""

    number: CountOrZero
    delay: Picoseconds


class UniformMachineSpec(Spec):
    """A ring of identical GPUs."""

    name: str = Field(description="Name of the machine in the results. If omitted, the name of the preset or file.")
    gpu: GpuSpec = Field(description="The GPU: a preset, or its values.")
    memory: MemorySpec = Field(description="The memory: a preset, or its values.")
    link: LinkSpec = Field(description="The link: a preset, or its values.")


class MachineSpec(UniformMachineSpec):
    """A ring of GPUs, identical but for per-GPU overrides.

    A heterogeneous ring (GPUs and links that differ, skew) needs every GPU simulated (explicit mode).
    """

    own_gpus: tuple[GpuOverride, ...] = ()
    own_links: tuple[LinkOverride, ...] = ()
    start_skew: tuple[StartSkew, ...] = ()

    @property
    def n_engines(self) -> int:
        """Return the copy engines of a GPU, and behind them those of its network interface, one for each queue pair."""
        return self.gpu.n_copy_engines + (0 if self.link.nic is None else self.link.nic.queue_pairs)

    @property
    def is_uniform(self) -> bool:
        """Whether all GPUs and links are identical and start together, so that one represents all."""
        return not (self.own_gpus or self.own_links or self.start_skew)

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
    def has_operating_points(self) -> bool:
        """Whether the clock of a GPU depends on its operating point."""
        parts: list[MachineSpec | GpuOverride] = [self, *self.own_gpus]
        return any(part.gpu.operating_points is not None for part in parts)

    def at_operating_point(self, name: OperatingPoint) -> MachineSpec:
        """Return the same ring, all its GPUs held at the operating point *name*."""
        if not self.has_operating_points:
            return self
        own = tuple(one.model_copy(update={"gpu": one.gpu.at_operating_point(name)}) for one in self.own_gpus)
        return self.model_copy(update={"gpu": self.gpu.at_operating_point(name), "own_gpus": own})

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
