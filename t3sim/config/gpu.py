"""Specs of a GPU without its memory: compute units, caches, T3's tracker and DMA engine, copy engines, clocks, host."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from numpy.typing import NDArray
from pydantic import Field

from t3sim.config import limits
from t3sim.config.collective_kernel import CollectiveKernelSpec
from t3sim.config.operating_points import OperatingPoint
from t3sim.config.spec import (
    AtMost,
    Bytes,
    BytesOrZero,
    BytesPerCycle,
    Count,
    Cycles,
    CyclesAboveZero,
    EngineRate,
    Hertz,
    Latency,
    LinesInFlight,
    MatrixClock,
    MatrixRate,
    ReadAhead,
    Share,
    ShortCycles,
    Spec,
    Unit,
)


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
        """Return the bytes of the L1 that workgroups with *lds* bytes of LDS leave."""
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
    zero_fill_bytes_per_cycle: BytesPerCycle | None = Field(
        None,
        description="Rate at which a compute unit fills operand lines beyond the array with zeros, in place of loading "
        "them, for kernels with `tiling.fills_tiles`. If omitted, this takes no time.",
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
        """Return the compute clock while this *share* of the matrix peak is used, in hertz: decision 44."""
        return self.compute_clock - (self.compute_clock - self.clock_of_matrices) * share

    def clock_at_work(self, share: float) -> float:
        """Return the compute clock while all compute units multiply for this *share* of the time, in hertz."""
        return self.clock_at_share(1.0 if self.clock_scales_with_units else share)

    def at_matrix_share(self, share: float, ticks_hz: int) -> GpuSpec:
        """Return this GPU while this *share* of its matrix peak is used: its cycle in whole ticks."""
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
