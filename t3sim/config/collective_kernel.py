"""Specs of the kernels that run collectives on compute units: NCCL's protocols, collectives in the switch."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field

from t3sim.config.spec import AtMost, Bytes, BytesPerSecond, Count, LinesInFlight, Picoseconds, ShortCycles, Spec


class ExpectedTimeSpec(Spec):
    """What the library that runs the collectives expects of a protocol, its own table: it takes the fastest.

    ``start`` + steps of the ring x (``step`` + chunk / ``bandwidth``).
    """

    start: Picoseconds = Field(description="Fixed cost of the collective in the library's cost model.")
    step: Picoseconds = Field(description="Fixed cost of each ring step in the library's cost model.")
    bandwidth: BytesPerSecond = Field(description="Bandwidth of each ring step in the library's cost model.")
    network_step: Picoseconds | None = Field(
        None,
        description="Fixed cost of each ring step to another node in the library's cost model, needed to choose among "
        "rings and trees on several nodes.",
    )
    network_bandwidth: BytesPerSecond | None = Field(
        None,
        description="Bandwidth of each ring step on several nodes, if network interfaces allow it; needed likewise.",
    )


class ExpectedTreeTimeSpec(Spec):
    """What the library expects of an all-reduce by trees with one protocol.

    ``start`` + 2 x (GPUs of a node before the last x ``step`` + levels of nodes x ``network_step``) + 2 x array /
    bandwidth, which is corrected by size (``collective.tree``).
    """

    start: Picoseconds = Field(description="Fixed cost of the collective in the library's cost model.")
    step: Picoseconds = Field(description="Fixed cost of each step inside a node in the library's cost model.")
    network_step: Picoseconds = Field(
        description="Fixed cost of each step to another node in the library's cost model."
    )
    bandwidth: BytesPerSecond = Field(description="Bandwidth of a tree on one node in the library's cost model.")
    network_bandwidth: BytesPerSecond = Field(
        description="Bandwidth of a tree on several nodes, if network interfaces allow it."
    )


class TreeSpec(Spec):
    """All-reduces by trees (NCCL's Tree): a cost model for each protocol, which is that of the rings otherwise."""

    simple: ExpectedTreeTimeSpec = Field(description="The library's cost model of trees with the plain protocol.")
    low_latency: ExpectedTreeTimeSpec | None = Field(
        None, description="The same with `low_latency`. If omitted, trees do not use it."
    )
    low_latency_128: ExpectedTreeTimeSpec | None = Field(
        None, description="The same with `low_latency_128`. If omitted, trees do not use it."
    )


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

    def sent_over_data(self, line: int) -> tuple[int, int]:
        """Return how much is sent over how much of it is data, of lines of *line* bytes, in lowest terms."""
        return Fraction(line, self.data_per_line).as_integer_ratio()


class ExpectedSwitchTimeSpec(Spec):
    """What the library expects of a collective in the switch: ``start`` + array / ``bandwidth``.

    On several nodes (NCCL's NVLSTree) each level of nodes adds twice ``network_step``.
    """

    start: Picoseconds = Field(description="Fixed cost of the collective in the library's cost model.")
    bandwidth: BytesPerSecond = Field(description="Bandwidth, of the whole array, in the library's cost model.")
    network_step: Picoseconds | None = Field(
        None,
        description="Fixed cost of each step to another node in the library's cost model. If omitted, it is not "
        "considered on several nodes.",
    )


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


class RowSumSpec(Spec):
    """Instructions of a wavefront that adds up rows of a token, 512 B at a time, without the loads of these rows."""

    store: ShortCycles = Field(
        description="Cycles of a wavefront to store such a sum through shared memory: a fence and a bulk copy."
    )
    row: ShortCycles = Field(description="Cycles of a wavefront to add one row.")
    row_issue: ShortCycles = Field(
        description="Cycles of a SIMD unit to issue the instructions of one row: wavefronts of one unit share it."
    )


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
    exchange_warps: Annotated[Count, AtMost(64)] | None = Field(
        None,
        description="Wavefronts of a channel that send, and as many that receive, in a group of sends and receives. If "
        "omitted, half of those of a ring.",
    )
    exchange_launch: Picoseconds | None = Field(
        None,
        description="Launch of a group of sends and receives (all-to-all), like `launch`. If omitted, as `launch`.",
    )
    exchange_low_latency: Literal["part", "peer"] = Field(
        "part",
        description="What may have 16 KiB with flags in the data (`low_latency`) in a group of sends and receives: "
        "`part`, each channel that a message is cut into (NCCL 2.29); `peer`, each channel that a peer may have, "
        "whatever the message takes of them (NCCL 2.27 and 2.28).",
    )
    tree: TreeSpec | None = Field(
        None,
        description="When the library takes trees for an all-reduce, like NCCL's Tree. If omitted, only if they are "
        "named; then with the plain protocol.",
    )
    row_sum: RowSumSpec | None = Field(
        None,
        description="Instructions of wavefronts that add up rows of tokens (combine). If omitted, they take no time.",
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

    @property
    def trees(self) -> dict[Protocol, ExpectedTreeTimeSpec]:
        """The cost models of trees, of those protocols that there are."""
        if self.tree is None:
            return {}
        flagged = {name: getattr(self.tree, name) for name in self.flagged}
        return {"simple": self.tree.simple, **{name: one for name, one in flagged.items() if one is not None}}

    def of_protocol(self, protocol: Protocol) -> CollectiveKernelSpec | FlaggedProtocolSpec:
        """Return what states ``launch``, ``slice_overhead`` and the slices of *protocol*, one that there is."""
        return self if protocol == "simple" else self.flagged[protocol]
