"""An operator: the computation of a strategy, and the properties of the machine that its programs depend on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from t3sim.collective.direct import NCCL
from t3sim.collective.ranks import Ranks
from t3sim.collective.schedule import chunk_bytes_of
from t3sim.config.element_types import DEFAULT_TYPE, ELEMENT_TYPES
from t3sim.config.experiment import GemmShape, KernelLibrarySpec, Kernels, OperatorKind
from t3sim.config.machine import MachineSpec
from t3sim.errors import UsageError
from t3sim.program.operations import Ints, Memory
from t3sim.workload.kernel_choice import tiling_of, without_split
from t3sim.workload.outputs import output_name
from t3sim.workload.tiling import TileTrace, cut_at_owners, make_tile_trace, moved_bytes

Collective = Literal["reduce-scatter", "all-gather", "all-reduce", "all-to-all", "send-receive", "broadcast"]


@dataclass(frozen=True, eq=False)
class Operator:
    """A GEMM whose output is reduced and scattered, with the all-gather after it (a sublayer); or one collective.

    In the frame of a rank: chunk p of ``trace`` is the chunk of the output at distance p, on one node (rank + p) mod n,
    and belongs to the GPU at distance ``owner(p)``, on one node (p + 1) mod n.  So a rank makes the rows of the next
    one first and its own last (T3 section 4.4), and with several nodes the rows of the next node first.

    Of kind ``ag-gemm``: a GEMM whose A is gathered.  Rank r has chunk r of the rows of A, its *shard*, and makes all
    rows of its columns of the output; so chunk p of ``trace`` multiplies the rows of rank (rank + p) mod n.
    """

    machine: MachineSpec
    n: int  # GPUs
    trace: TileTrace | None = None
    collective: Collective | None = None  # of an operator that is one collective
    size: int = 0  # bytes of the array of that collective, all chunks
    algorithm: str = NCCL  # that runs an all-reduce (``collective.direct``)
    collective_element: str = DEFAULT_TYPE  # type of the elements of that array
    staggered: bool = True  # False: all ranks begin with chunk 0
    kernels: Kernels | None = None  # what GEMMs of other shapes are run with; None: with the tiling of *trace*
    kind: OperatorKind = "gemm-rs"  # of an operator with a GEMM
    given: Operator | None = None  # what this one was made of so that its GEMM does not split k; None: it is as given

    @property
    def granule(self) -> int:
        """Return bytes of a DRAM access."""
        return self.machine.memory.access

    @property
    def ranks(self) -> Ranks:
        """Return the GPUs, and what distances between them mean."""
        return Ranks.of(self.n, self.machine.link.gpus_per_node)

    @property
    def line(self) -> int:
        """Return granules of a cache line."""
        return self.machine.gpu.l2.line // self.granule

    @property
    def tiles(self) -> TileTrace:
        """Return the tiles of the GEMM; ``UsageError`` if the operator is one collective."""
        if self.trace is None:
            raise UsageError("workload: a collective on its own has no GEMM; use strategy `sequential`")
        return self.trace

    @property
    def chunk_granules(self) -> int:
        """Return granules of a chunk of the collectives: the dense array in equal shares of whole lines.

        The array is the output of the GEMM, or the A that is gathered.
        """
        size = self.size
        if self.trace is not None:
            size = self.moved_bytes
        return chunk_bytes_of(size, self.n, self.machine.gpu.l2.line) // self.granule

    @property
    def element(self) -> str:
        """Return the element type of what is stored and sent, but for operands of the GEMM."""
        return self.collective_element if self.trace is None else output_name(self.trace.gemm)

    def stored_rows(self, n_rows: int) -> int:
        """Return the rows of memory that *n_rows* of the output take, with the scales of their blocks."""
        return int(ELEMENT_TYPES[self.element].stored_rows(n_rows))

    @property
    def moved_bytes(self) -> int:
        """Return the bytes of the array that is gathered or reduced: A or the output, in its type."""
        return moved_bytes(self.shape, self.kind)

    def owner(self, position: Any) -> Any:
        """Return the distance of the GPU that owns chunk *position*: one GPU and one node further than the position."""
        each = self.ranks.per_node
        return self.ranks.at(position, (1 if each > 1 else 0) + (each if self.ranks.n_nodes > 1 else 0))

    def chunk_order(self, rank: int) -> list[int]:
        """Return the positions of all chunks in the order in which *rank* makes them: from the first or chunk 0 on."""
        every = np.arange(self.n)
        found: list[int] = (every if self.staggered else self.ranks.distance(rank, every)).tolist()
        return found

    def chunk(self, position: int) -> range:
        """Return the workgroups of chunk *position* of the trace."""
        start, stop = self.tiles.chunk_ranges[position % self.n].tolist()
        return range(start, stop)

    def rows(self, position: int) -> range:
        """Return the rows of the output that belong to the owner of chunk *position*, in the frame of the rank."""
        each = self.owned_rows()
        return range(position * each, (position + 1) * each)

    @cached_property
    def owned(self) -> TileTrace:
        """The tiles of the GEMM by the owners of their rows: chunk p has those that belong to chunk p of the rows.

        Tiles that belong to several owners are cut into parts. Raises ``UsageError`` unless all own as many rows.
        """
        self._refuse_transposed()
        if self.has_like_chunks():
            return self.tiles
        try:
            return cut_at_owners(self.tiles, self.n)
        except ValueError as error:
            raise UsageError(f"workload: {error}") from None

    def owned_rows(self) -> int:
        """Return how many rows of the output each rank owns; ``UsageError`` unless that is the same for all."""
        rows, rest = divmod(self.shape.m, self.n)
        if rest:
            nearest = rows * self.n if rows and 2 * rest <= self.n else (rows + 1) * self.n
            message = f"{self.n} GPUs cannot own as many of {self.shape.m} rows each; {nearest} can be shared"
            raise UsageError(f"workload: {message}")
        return rows

    @property
    def parts(self) -> TileTrace | None:
        """Return ``owned`` if tiles are cut into parts, as ``Gemm.parts``; None: none is."""
        return None if self.owned is self.tiles else self.owned

    def with_equal_rows(self) -> Operator:
        """Return the same operator with rows of zeros after the others, until all ranks own equally many.

        PyTorch's reduce-scatters and Flux take no other numbers of rows; vLLM adds tokens like this when it runs with
        sequence parallelism. Itself, if they do so already, or if it is one collective.
        """
        if self.trace is None or self.shape.m % self.n == 0:
            return self
        self._refuse_transposed()
        trace = self.tiles_of(rows=-(-self.shape.m // self.n) * self.n, n_chunks=self.n)
        given = None if self.given is None else self.given.with_equal_rows()
        return replace(self, trace=trace, given=given)

    def _refuse_transposed(self) -> None:
        """Raise ``UsageError`` if rows of the output are not rows of its array: some of them could not be owned."""
        if self.tiles.is_transposed:
            message = "here GPUs own rows of the output, which are not together in arrays stored by columns"
            raise UsageError(f"tiling.column_major: {message}; take a kernel without it, like `gemm-256x128`")

    def order(self, rank: int, *, by_owner: bool = False) -> Ints:
        """Return the order in which *rank* dispatches its workgroups: chunk by chunk, from the first or chunk 0 on.

        *by_owner*: not staggered it is from the tile on that has row 0 of the output.
        """
        tiles, positions = self.tiles.workgroups, self.chunk_order(rank)
        if self.staggered:
            return np.arange(len(tiles))
        if not by_owner or self.parts is None:
            return np.concatenate([np.arange(*self.tiles.chunk_ranges[position]) for position in positions])
        rows = self.owned_rows()
        if self.ranks.n_nodes > 1:
            return np.argsort(np.argsort(positions)[tiles["row"] // rows], kind="stable")
        row = positions[0] * rows
        return np.roll(
            np.arange(len(tiles)), -int(np.argmax((tiles["row"] <= row) & (row < tiles["row"] + tiles["n_rows"])))
        )

    def order_of(self, parts: Ints, *, by_last: bool = False) -> Ints:
        """Return the order of the workgroups of *parts* of ``owned``: by the first part of each or *by_last*."""
        makers = parts if self.parts is None else self.tiles.makers(self.owned)[parts]
        step = -1 if by_last else 1
        found, first = np.unique(makers[::step], return_index=True)
        return np.asarray(found[np.argsort(first)], np.int64)[::step]

    def tiles_of(
        self,
        *,
        rows: int | None = None,
        columns: int | None = None,
        n_chunks: int = 1,
        n_compute_units: int | None = None,
    ) -> TileTrace:
        """Return the tiles of a GEMM of *rows* and *columns* of the output (None: all), in *n_chunks* chunks.

        The kernel is chosen for this shape, as for a whole GEMM, and for *n_compute_units* (None: all).
        Raises ``UsageError`` if the GEMM cannot be divided this way.
        """
        if rows is not None or columns is not None:
            self._refuse_transposed()
        given = {"m": rows, "n": columns}
        shape = self.shape.model_copy(update={name: value for name, value in given.items() if value is not None})
        kernels = self.tiles.tiling if self.kernels is None else self.kernels
        tiling = tiling_of(kernels, shape, n_compute_units or self.machine.gpu.n_compute_units)
        try:
            return make_tile_trace(shape, tiling, n_chunks)
        except ValueError as error:
            raise UsageError(f"workload: a GEMM of m {shape.m}, n {shape.n}, k {shape.k}: {error}") from None

    def in_whole_rows(self, n_compute_units: int | None = None) -> Operator:
        """Return the same operator with a kernel of its library whose tiles end where the rows of each rank do.

        The kernel is chosen for *n_compute_units*; None: for all, and the present kernel is kept if it qualifies.
        Returns *self* without a library, or if the library has no such kernel.
        """
        is_one = n_compute_units is None and self.has_like_chunks()
        fitting = self if is_one else self.of_whole_rows()
        if fitting is self:
            return self
        return replace(self, trace=fitting.tiles_of(n_chunks=self.n, n_compute_units=n_compute_units))

    def of_whole_rows(self) -> Operator:
        """Return the same operator with those kernels of its library whose tiles end where the rows of each rank do.

        Itself, if it has no library, or if that has no such kernel.
        """
        rows, rest = divmod(self.shape.m, self.n)
        if rest or not isinstance(self.kernels, KernelLibrarySpec):
            return self
        kernels = {name: one for name, one in self.kernels.kernels.items() if rows % one.workgroup_tile[0] == 0}
        return replace(self, kernels=self.kernels.model_copy(update={"kernels": kernels})) if kernels else self

    def unsplit(self, strategy: str) -> Operator:
        """Return the same operator with a kernel that does not split k: *strategy* needs each tile in one piece.

        Chosen from its library; ``UsageError`` if its one kernel splits.
        """
        found = self._unsplit
        if found.trace is not None and found.trace.tiling.split_k > 1:
            raise UsageError(f"tiling.split_k: {needs_whole_tiles(strategy, found.trace.tiling.split_k)}")
        return found

    @cached_property
    def _unsplit(self) -> Operator:
        """The same operator with a library that does not split k, if it has one that does."""
        kernels = None if self.kernels is None else without_split(self.kernels)
        if self.trace is None or kernels is self.kernels:
            return self
        whole = replace(self, kernels=kernels, given=self)
        return whole if self.trace.tiling.split_k == 1 else replace(whole, trace=whole.tiles_of(n_chunks=self.n))

    def unstaggered(self) -> Operator:
        """Return the same operator of ranks that all begin with chunk 0."""
        given = None if self.given is None else self.given.unstaggered()
        return replace(self, staggered=False, given=given)

    def memory(self) -> Memory:
        """Return a memory to place buffers in."""
        spec = self.machine.memory
        return Memory(spec.channel_interleave // spec.access * spec.n_channels)

    def has_like_chunks(self) -> bool:
        """Return whether all chunks have the same tiles at the same places within their rows."""
        if self.tiles.n_workgroups % self.n:
            return False
        by_chunk = self.tiles.workgroups.reshape(self.n, -1)
        rows = by_chunk["row"] - by_chunk["row"][:, :1]
        names = ("column", "n_rows", "n_columns")
        return bool((rows == rows[0]).all() and all((by_chunk[name] == by_chunk[name][0]).all() for name in names))

    @property
    def shape(self) -> GemmShape:
        """Return the shape of the GEMM."""
        return self.tiles.gemm


def needs_whole_tiles(strategy: str, split_k: int) -> str:
    """Say why *strategy* cannot run a kernel that splits k into that many panels."""
    return (
        f"is {split_k}, but {strategy} stores, counts or sends each tile when one workgroup has made all of it; take 1"
    )
