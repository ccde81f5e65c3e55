"""Specs of the memory of a GPU: DRAM timing, request queues, channels."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from t3sim.config.spec import (
    AccessBytes,
    AtMost,
    Bytes,
    CommandCycles,
    CommandCyclesOrZero,
    Count,
    CountOrZero,
    Hertz,
    Latency,
    Spec,
)


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
    more than the high mark wait, one is that old, or a read needs one of them; the L2 then acknowledges stores before
    they reach the memory.  After a drain that ``writes_per_drain`` ends, as many reads as their queue holds are
    served.  With ``read_age`` a drain also ends when a read is that old, unless more writes than the high mark wait.
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
    writes_per_drain: Annotated[Count, AtMost(1 << 20)] | None = Field(
        None,
        description="Maximum writes of a drain while reads wait, for a split queue with `write_age`. If omitted, "
        "there is no limit.",
    )
    read_age: Latency = Field(
        0,
        description="Age of the oldest read at which a drain ends, for a split queue with `write_age`; 0 sets no "
        "limit.",
    )
    turnaround_to_writes: Latency = Field(
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
