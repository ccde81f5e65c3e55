"""A program: the operations of one rank, as data.

A program is a list of operations in the order in which the host of the rank issues them.  Each belongs to a *stream*;
an operation starts when the one before it in its stream has ended, all its waits hold, and its launch is over.

**Places.**  An address is a number of a granule (one DRAM access).  Every GPU has the same buffers at the same
addresses.  Another GPU is named by its *distance* d: GPU (rank + d) mod n; 0 is the GPU itself (with several nodes see
``collective.ranks``).  A program is best written in its rank's own frame: chunk p of an array is chunk (rank + p) mod n
of all of it, what *distance* p means.  Then the programs of all
ranks are equal, and one GPU may represent all (``compare.difference``).

**Signals** are counters in a GPU's memory, zero at first.  They are posted (an amount is added) and waited for (until
they reach a value).  *A rank that sees a post sees all that the poster had done or seen before it*: a post at the end
of an operation follows all its stores, wherever they go; the posts of a store, granule by granule, follow that granule.

**Traffic.**  Each operation names the traffic class of its own requests; what arrives from other GPUs is of class
``Program.inbound_class``.

Lengths are granules, durations picoseconds; arrays are ``int64`` and -1 represents none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from t3sim.collective.ranks import Ranks
from t3sim.config.element_types import DEFAULT_TYPE
from t3sim.program.contents import Content, Rows, Tiles
from t3sim.workload.outputs import Granules, granules_of, output_of
from t3sim.workload.tiling import TileTrace, wavefront_parts

Ints = NDArray[np.int64]
NONE = -1
NIC = 64  # engine: the network interface; copy engines come before it
# Engines that are no copy engines: T3's DMA engine, which can also ask the switch for sums, and an engine of
# collectives, which adds what it reads (as ACE does).
DMA, ADDING_ENGINE = -1, -2

# How a result is stored.
CACHED, STORE, UPDATE = range(3)  # through the L2; bypassing it; as near-memory reduction

# Where the signal is that a step of ``Moves`` waits for.
HERE, AT_OPERANDS = range(2)  # on its own GPU; on each GPU that an operand lies on

STEP = np.dtype(
    [
        ("n_granules", "i8"),  # of the result; 0: nothing is done, but waits and posts hold
        # So many of the next steps of its column, as long as it is, are made concurrently with it, if the kernel has
        # wavefronts: each takes lines of one of them, when the signal of that step has been posted.
        ("n_batched", "i8"),
        # operand i: granule ``operand + i * stride`` of the GPU at distance ``source + i * source_stride``
        ("n_operands", "i8"),  # they are added up; 0: zeros are stored
        # w: operands (w + 1) i to (w + 1) i + w are the lines, in turn, of array i, whose elements are w + 1 times as
        # wide as those of the result; it begins at granule ``operand + i * stride`` of the own GPU and has whole lines
        ("wider", "i8"),
        ("operand", "i8"),
        ("stride", "i8"),
        ("source", "i8"),
        ("source_stride", "i8"),
        ("is_received", "i8"),  # 1: the last operand lies as a step sent it, flags between the data
        ("send", "i8"),  # STORE, UPDATE or NONE
        ("distance", "i8"),  # of the GPU that it is sent to
        ("destination", "i8"),  # granule there
        # 1: the switch loads the operands, one from each GPU, and adds them up: operand i lies at distance i
        ("is_reduced", "i8"),
        # 1: it is sent to every GPU, the own one too: on that at distance d to granule ``destination - d * spread``
        ("is_multicast", "i8"),
        ("spread", "i8"),
        ("kept_at", "i8"),  # granule of the own GPU where the result is stored too, NONE: it is not
        ("wait_signal", "i8"),
        ("wait_at_least", "i8"),
        ("wait_where", "i8"),  # HERE, AT_OPERANDS
        ("post_signal", "i8"),  # at the receiver, else where it is kept; 1 for each granule stored, flags included
    ]
)


@dataclass(frozen=True)
class Buffer:
    """A named range of granules, the same on every GPU."""

    name: str
    first: int
    n_granules: int

    @property
    def stop(self) -> int:
        """Return the first granule after it."""
        return self.first + self.n_granules


@dataclass(frozen=True)
class Signals:
    """A named range of signals, the same on every GPU; ``signals[i]`` is the number of one."""

    name: str
    first: int
    n: int = 1

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.n:
            raise IndexError(f"signals `{self.name}` are 0 to {self.n - 1}, not {index}")
        return self.first + index


@dataclass(frozen=True)
class Wait:
    """Until a signal of the own GPU has at least this value."""

    signal: int
    at_least: int


@dataclass(frozen=True)
class Post:
    """Add an amount to a signal of a GPU."""

    signal: int
    distance: int = 0
    amount: int = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Operation:
    """What all operations have."""

    kind: ClassVar[str]
    name: str
    stream: int = 0
    after: tuple[Wait, ...] = ()
    until: tuple[Wait, ...] = ()  # it has not ended before these hold: what others still have to send
    posts: tuple[Post, ...] = ()  # when it has ended
    launch: int | None = None  # from when it may start to its start; None: ``kernel_launch`` of the machine
    issue: int = 0  # that the host of the rank is busy with issuing it, one operation after the other
    traffic_class: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class OnComputeUnits(Operation):
    """A kernel: its workgroups get compute units by priority, then in the order of operations."""

    units: tuple[int, int] | None = None  # first compute unit that it may use, one past the last; None: all
    priority: int = 0  # larger goes first
    store_bytes: int | None = None  # in which it stores to other GPUs, a power of two; None: as much as a packet holds


@dataclass(frozen=True, kw_only=True, eq=False)
class Stores:
    """Where the output of a GEMM goes: arrays with an entry for each workgroup, in the order of the trace.

    Of a GEMM whose tiles are cut at owners, an entry for each of the ``parts``; none of these is counted or updated.

    A tile is stored row by row: its first row at granule ``first``, the next one ``pitch`` granules on.  A tile that
    is updated where it is counted (``updates``) names, as ``to``, the workgroup of the receiving GPU whose tile it is,
    which lies at that workgroup's ``first``.  Where chunks have different shapes (decision 10) the granules represent
    those of ``n_to`` workgroups from ``to`` on, in proportion.
    """

    kind: Ints  # CACHED, STORE, UPDATE
    distance: Ints
    first: Ints
    pitch: Ints
    to: Ints
    n_to: Ints
    signal: Ints  # at the receiver: 1 for each granule stored; of a tile that is forwarded, where that goes
    updates: Ints  # of each element of the own tile until the tracker calls it complete; 0: it does not count

    @classmethod
    def local(cls, first: Ints, pitch: int) -> Stores:
        """Return stores through the L2 to local memory."""
        n = len(first)
        values = {"kind": CACHED, "distance": 0, "pitch": pitch, "to": NONE, "n_to": 0, "signal": NONE, "updates": 0}
        return cls(first=np.array(first), **{name: np.full(n, value) for name, value in values.items()})

    def copy(self) -> Stores:
        """Return stores whose arrays may be written to."""
        return Stores(**{name: np.array(values) for name, values in vars(self).items()})

    @property
    def n(self) -> int:
        """Return the number of workgroups."""
        return len(self.kind)


@dataclass(frozen=True)
class Forward:
    """T3's DMA engine: complete tiles, as counted by the tracker, are forwarded block by block.

    Tiles of the workgroups *to* of the GPU at *distance* receive those of *workgroups*, one each in this order (in
    proportion if their numbers differ, as in ``Stores``).  A block is a number of consecutive wavefront tiles of one
    ``Forward``.
    """

    workgroups: range
    to: range
    distance: int
    tiles_per_block: int
    is_update: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class TileWaits:
    """What each workgroup waits for before its first load: arrays with entries as those of ``Stores``."""

    signal: Ints
    at_least: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Gemm(OnComputeUnits):
    """A GEMM kernel: one workgroup for each tile of *trace*, dispatched in *order*.

    It ends when its workgroups have, the tiles that it counts are complete, and the last forward has left.
    What it makes is chunk (rank + first_chunk + p) mod n of the output for chunk p of the trace, whose tiles are those
    from ``first_tile`` on there; only checks read this.
    Row i of A is ``n_slices * line`` granules from ``a + i * n_slices * line`` on, B lies likewise by columns; of a
    grouped GEMM (``workload.grouped``) the B of its groups are contiguous.
    """

    kind: ClassVar[str] = "gemm"
    trace: TileTrace
    a: int
    b: int
    stores: Stores
    parts: TileTrace | None = None  # what its tiles are cut into, each with a place of its own (``cut_at_owners``)
    order: Ints  # numbers of workgroups
    n_resident: int | None = None  # workgroups of a persistent kernel; None: as many as its compute units hold
    waits: TileWaits | None = None
    forwards: tuple[Forward, ...] = ()
    a_content: tuple[Content | Rows, ...] = ()  # what A has to hold where others write it; only checks read this
    # What it makes, an entry for each row of the trace, where that is stored; None: elements of its own.
    makes: Rows | None = None
    first_chunk: int = 0
    first_tile: int = 0

    @property
    def stored(self) -> TileTrace:
        """Return what ``stores`` and ``waits`` have an entry for each of: the tiles, or the parts of these."""
        return self.trace if self.parts is None else self.parts

    @cached_property
    def makers(self) -> Ints:
        """The workgroup that makes each of ``stored``."""
        return np.arange(self.trace.n_workgroups) if self.parts is None else self.trace.makers(self.parts)

    @cached_property
    def parts_of_tiles(self) -> Ints:
        """Numbers of ``stored``, tile by tile, each from its first row on."""
        return np.lexsort((self.stored.workgroups["row"], self.makers))

    @cached_property
    def stored_order(self) -> Ints:
        """Numbers of ``stored`` in the order in which workgroups are dispatched."""
        place = np.empty(self.trace.n_workgroups, np.int64)
        place[self.order] = np.arange(self.trace.n_workgroups)
        return self.order if self.parts is None else np.lexsort((self.parts.workgroups["row"], place[self.makers]))

    def wavefronts(self) -> NDArray[Any]:
        """Return what each wavefront makes of each of ``stored``: ``WAVEFRONT_DTYPE``."""
        return self.trace.wavefront_tiles() if self.parts is None else wavefront_parts(self.trace, self.parts)

    def operands(self, line: int) -> dict[str, range]:
        """Return the granules of A and of B, by these names; a cache line has *line* of them."""
        shape, row = self.trace.gemm, self.trace.n_slices * line
        n_columns = shape.n * self.trace.n_matrices
        return {"A": range(self.a, self.a + shape.m * row), "B": range(self.b, self.b + n_columns * row)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Moves(OnComputeUnits):
    """A kernel that reads, adds, copies and sends: collectives, sums, copies by compute units or by a copy engine.

    ``steps`` [operation, column] of ``STEP``.  With one column all workgroups share each step, its lines dealt out in
    turn; with several, each workgroup has a column of its own (channels).  A step reads its operands, adds them, and
    stores the result, line after line.  A copy engine takes no compute units; its steps are copies, one column of
    commands, each started up when what it waits for is there.  The network interface (``NIC``) has a column of messages
    for each queue pair, which share its rate fairly.  T3's DMA engine (``DMA``), or an engine that adds
    (``ADDING_ENGINE``), has as many outstanding commands as there are columns; they share the rate and the read-ahead
    of ``gpu.dma``, and each costs its ``command_cost``.
    """

    kind: ClassVar[str] = "moves"
    steps: NDArray[Any]
    n_workgroups: int | None = None  # None: one on each compute unit that it may use, or one for each column
    startup: int = 0  # of a workgroup on its compute unit
    step_overhead: int = 0  # of a workgroup, from its last store of a step to the next step
    flags: tuple[int, int] = (1, 1)  # granules sent, over granules of data
    engine: int | None = None  # copy engine, NIC, DMA, ADDING_ENGINE; None: on compute units
    shares_units: bool = False  # its workgroups run as warps on compute units of GEMMs; else each has a unit to itself
    lds: int = 0  # bytes of the LDS that a workgroup takes
    bandwidth: int | None = None  # bytes of results a second that its code makes; None: as its units, or engine, can
    is_of_gemm: bool = False  # the GEMM library's own, in one call with the GEMM before it: the sum of its panels
    wake: int = 0  # from the post that a step had to wait for to the step: the workgroup polls a flag
    # Wavefronts of a workgroup, and lines of each operand that one of them loads at a time; None: those of the ring
    # kernels of the machine.  Of commands of an engine: steps of a batch that are made concurrently.
    wavefronts: tuple[int, int] | None = None
    instructions: int = 0  # of a wavefront, from the last of the lines that it loads at a time to its first store
    # What it keeps in these rows is no sum of its operands, but computed of them: a conversion, an activation.
    makes: Rows | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Barrier(Operation):
    """Ends when all ranks have reached it.

    The k-th barrier of a name on one rank meets the k-th of that name on the others.
    """

    kind: ClassVar[str] = "barrier"


def is_of_commands(operation: Operation) -> bool:
    """Return whether an operation is of commands of an engine that is no copy engine, columns of them concurrently."""
    return isinstance(operation, Moves) and operation.engine in (DMA, ADDING_ENGINE)


def is_on_network(operation: Operation) -> bool:
    """Return whether an operation is of messages of the network interface, a column of them for each queue pair."""
    return isinstance(operation, Moves) and operation.engine == NIC


def is_stepwise(moves: Moves) -> bool:
    """Return whether steps of a kernel wait or post by themselves, so that others go on before all of them are made."""
    return bool((moves.steps["wait_signal"] != NONE).any() or (moves.steps["post_signal"] != NONE).any())


def reaches_others(operation: Operation) -> bool:
    """Return whether an operation stores at other GPUs, loads from them or signals them."""
    if isinstance(operation, Barrier) or any(post.distance for post in operation.posts):
        return True
    if isinstance(operation, Gemm):
        return bool(operation.stores.distance.any()) or any(one.distance for one in operation.forwards)
    assert isinstance(operation, Moves)
    steps = operation.steps
    is_sent = (steps["send"] >= 0) & ((steps["distance"] != 0) | (steps["is_multicast"] != 0))
    return bool(is_sent.any() or steps["source"].any() or steps["source_stride"].any())


@dataclass(frozen=True, eq=False)
class Program:
    """What one rank runs.  ``inputs`` and ``outputs`` say what its memory holds before and has to hold after.

    Streams in the ``background`` keep the GPU busy for the others: the program is over when all other streams are,
    whatever is left of these.
    """

    rank: int
    n: int  # ranks
    operations: tuple[Operation, ...]  # in the order in which the host issues them
    granule: int  # bytes
    line: int  # granules of a cache line
    buffers: tuple[Buffer, ...] = ()
    signals: tuple[Signals, ...] = ()
    classes: tuple[str, ...] = ("compute", "communication")
    inbound_class: int = 1
    inputs: tuple[Content | Rows, ...] = ()
    outputs: tuple[Content | Tiles | Rows, ...] = ()
    background: tuple[int, ...] = ()  # streams
    per_node: int | None = None  # GPUs of a node; None: all ranks are on one
    element: str = DEFAULT_TYPE  # of what is stored and sent, but for operands of GEMMs

    @property
    def ranks(self) -> Ranks:
        """Return the ranks, and what distances between them mean."""
        return Ranks.of(self.n, self.per_node)

    @property
    def n_signals(self) -> int:
        """Return how many signals a GPU has."""
        return max((block.first + block.n for block in self.signals), default=0)

    @property
    def n_granules(self) -> int:
        """Return the first granule after all buffers."""
        return max((buffer.stop for buffer in self.buffers), default=0)

    def stores_operands(self) -> bool:
        """Return whether operations store operands of a GEMM, here or (if all ranks run one program) from elsewhere."""
        stored = [np.zeros((2, 0), np.int64)]  # first granule and first one after it
        for one in self.operations:
            if isinstance(one, Moves):
                steps = one.steps.reshape(-1)
                to_all = steps[steps["is_multicast"] > 0]
                for d in range(1, self.ranks.per_node if len(to_all) else 1):
                    first = to_all["destination"] - d * to_all["spread"]
                    stored.append(np.stack([first, first + to_all["n_granules"]]))
                for name, is_meant in (("kept_at", steps["kept_at"] != NONE), ("destination", steps["send"] != NONE)):
                    first = steps[name][is_meant]
                    stored.append(np.stack([first, first + steps["n_granules"][is_meant]]))
            elif isinstance(one, Gemm):
                stored.append(np.stack([one.stores.first, one.stores.first + 1]))
        first, behind = np.concatenate(stored, axis=1)
        gemms = [one for one in self.operations if isinstance(one, Gemm)]
        operands = [granules for gemm in gemms for granules in gemm.operands(self.line).values()]
        return any(bool(((first < one.stop) & (behind > one.start)).any()) for one in operands)

    def streams(self) -> dict[int, list[int]]:
        """Return the numbers of the operations of each stream, in order."""
        found: dict[int, list[int]] = {}
        for number, operation in enumerate(self.operations):
            found.setdefault(operation.stream, []).append(number)
        return found


@dataclass
class Memory:
    """Assigns places: contiguous buffers, each on a channel stripe, and signals."""

    stripe: int = 1  # granules
    buffers: list[Buffer] = field(default_factory=list)
    signals: list[Signals] = field(default_factory=list)

    def buffer(self, name: str, n_granules: int, *, is_on_stripe: bool = True) -> Buffer:
        """Return a new buffer; on the next stripe, or right after the one before."""
        first = max((buffer.stop for buffer in self.buffers), default=0)
        if is_on_stripe:
            first = -(-first // self.stripe) * self.stripe
        self.buffers.append(Buffer(name, first, n_granules))
        return self.buffers[-1]

    def signal(self, name: str, n: int = 1) -> Signals:
        """Return *n* new signals."""
        first = max((block.first + block.n for block in self.signals), default=0)
        self.signals.append(Signals(name, first, n))
        return self.signals[-1]


def table(dtype: np.dtype[Any], rows: Sequence[dict[str, int]], **common: int) -> NDArray[Any]:
    """Return an array of *dtype* with an entry for each of *rows*; what they do not say is *common*, NONE or 0."""
    entries = np.zeros(len(rows), dtype)
    signals_and_places = ("send", "kept_at", "wait_signal", "post_signal")
    for name in dtype.names or ():
        entries[name] = common.get(name, NONE if name in signals_and_places else 0)
    alike: dict[tuple[str, ...], tuple[list[int], list[tuple[int, ...]]]] = {}  # numbers and values, by what is said
    for number, row in enumerate(rows):
        numbers, values = alike.setdefault((*row,), ([], []))
        numbers.append(number)
        values.append((*row.values(),))
    for names, (numbers, values) in alike.items():
        columns = np.array(values, np.int64).reshape(len(numbers), len(names))
        for i, name in enumerate(names):
            entries[name][numbers] = columns[:, i]
    return entries


def tile_granules(trace: TileTrace, granule: int, *, is_stored: bool = False) -> Granules:
    """Return the place of each tile in the output; *is_stored*: as the kernel stores it, which may be partial sums."""
    return granules_of(trace.workgroups, granule, trace.element if is_stored else output_of(trace.gemm))


def wide_granules(step: Any, operand: int, line: int) -> Ints:
    """Return the granules of *operand* of a step that adds wider elements: one of so many lines of its array."""
    times = int(step["wider"]) + 1
    offsets, (array, part) = np.arange(int(step["n_granules"])), divmod(operand, times)
    first = int(step["operand"]) + array * int(step["stride"]) + part * line
    return np.asarray(first + offsets // line * times * line + offsets % line)


def paired(here: range, there: range) -> tuple[Ints, Ints]:
    """Return which workgroups of *there* those of *here* represent: the first, and how many (decision 10)."""
    driver = np.arange(len(there)) * len(here) // max(len(there), 1)
    edges = np.searchsorted(driver, np.arange(len(here) + 1))
    return there.start + edges[:-1].clip(max=len(there) - 1), np.diff(edges)


def has_unlike_chunks(gemm: Gemm) -> bool:
    """Return whether tiles are sent to tiles of other shapes (decision 10), so that the link has to translate."""
    shapes = gemm.stored.workgroups[["n_rows", "n_columns"]]
    is_sent = (gemm.stores.distance != 0) & (gemm.stores.to >= 0)
    there = gemm.stores.to[is_sent]
    if (gemm.stores.n_to[is_sent] != 1).any() or (shapes[is_sent] != shapes[there.clip(max=len(shapes) - 1)]).any():
        return True
    return any(
        len(one.workgroups) != len(one.to)
        or (shapes[one.workgroups.start : one.workgroups.stop] != shapes[one.to.start : one.to.stop]).any()
        for one in gemm.forwards
    )
