"""A layer of routed experts: what strategies of operator ``moe`` have to compute, and which row of a token goes where.

Every GPU has tokens, and experts in its memory.  *Dispatch* carries each token to its experts, a grouped GEMM, an
activation and another grouped GEMM compute a row for each expert of it, and *combine* carries the rows back, where
their weighted sum is the new token.

A *row* is one token at one expert.  At an expert's GPU the rows lie expert by expert, each from the nearest source GPU
on (its own first), in the order of their tokens there.  Tokens of a GPU are numbered so that those with as many
experts, and as many GPUs of these, follow each other: the time does not depend on their numbers.
All distances count from the GPU that is asked for, so that equal loads have equal programs.
In mirrored mode GPUs are made alike (``MoeOperator.repeated``): loads of experts are kept, not which expert has which.
Experts that several GPUs share, and shared experts, are experts of one GPU each (``Routing.placed``).
Pinned by ``tests/program/test_moe_operator.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from t3sim.collective.ranks import Ranks
from t3sim.config.element_types import ELEMENT_TYPES
from t3sim.config.experiment import GemmShape, KernelLibrarySpec, Kernels, OperatorKind
from t3sim.config.experts import ExpertsSpec
from t3sim.config.machine import MachineSpec
from t3sim.errors import ModelError, UsageError
from t3sim.program.moe_rows import (
    Forwards,
    HeldRows,
    Places,
    SentRows,
    TokenCopies,
    places_in_classes,
    places_of,
    position_in,
)
from t3sim.program.operations import Ints, Memory
from t3sim.program.operator import Operator
from t3sim.workload.grouped import grouped_tiling, grouped_trace
from t3sim.workload.routing import DROPPED, Routing
from t3sim.workload.tiling import TileTrace

BITS_OF_BYTE = 8


@dataclass(frozen=True, eq=False)
class MoeOperator:
    """A layer of experts on all GPUs; GPU r is like GPU r mod ``period``, seen from itself, 0: perhaps like none."""

    machine: MachineSpec
    experts: ExpertsSpec
    routing: Routing
    kernels: Kernels

    kind: OperatorKind = "moe"
    period: int = 0

    def __post_init__(self) -> None:
        if self.routing.gpus_of_a_group > 1:
            raise ModelError(f"experts of {self.routing.gpus_of_a_group} GPUs each: `Routing.placed` makes them of one")

    @property
    def n(self) -> int:
        """Return the number of GPUs."""
        return self.routing.n_gpus

    @property
    def element(self) -> str:
        """Return the element type of the outputs of GEMMs, and of rows on their way back."""
        return self.experts.combine_element

    @cached_property
    def ranks(self) -> Ranks:
        """The GPUs, and what distances between them mean."""
        return Ranks.of(self.n, self.machine.link.gpus_per_node)

    @property
    def representatives(self) -> range:
        """Return the GPUs that may differ."""
        return range(self.period or self.n)

    @property
    def granule(self) -> int:
        """Return bytes of a DRAM access."""
        return self.machine.memory.access

    @property
    def line(self) -> int:
        """Return granules of a cache line."""
        return self.machine.gpu.l2.line // self.granule

    @property
    def n_tokens(self) -> int:
        """Return tokens of a GPU."""
        return self.routing.tokens_per_gpu

    def memory(self) -> Memory:
        """Return a memory to place buffers in."""
        spec = self.machine.memory
        return Memory(spec.channel_interleave // spec.access * spec.n_channels)

    def with_tokens(self, first: int, stop: int) -> MoeOperator:
        """Return the same layer for some of the tokens of each GPU."""
        weights = self.routing.weights
        some = replace(
            self.routing, experts=self.routing.experts[:, first:stop],
            weights=None if weights is None else weights[:, first:stop],
        )  # fmt: skip
        return replace(self, routing=some)

    def of_routed_experts(self) -> MoeOperator:
        """Return the same layer without the rows of shared experts, which are the last choices of each token."""
        weights, n = self.routing.weights, self.routing.top_k - self.experts.n_shared
        routing = replace(
            self.routing, experts=self.routing.experts[..., :n], weights=None if weights is None else weights[..., :n]
        )
        return replace(self, routing=routing)

    def of_shared_experts(self) -> MoeOperator:
        """Return the shared experts as a layer: one expert on each GPU, as wide as all, for the tokens of the GPU."""
        shape = self.n, self.n_tokens, 1
        home = np.broadcast_to(np.arange(self.n, dtype=np.int32)[:, None, None], shape)
        width = self.experts.n_shared * self.experts.local_intermediate
        of_one = {"n_experts": self.n, "top_k": 1, "ep": self.n, "tp": 1, "shared_intermediate": None}
        experts = self.experts.model_copy(update={**of_one, "intermediate": width})
        return replace(self, experts=experts, routing=Routing(home, self.n))

    def turned(self) -> MoeOperator:
        """Return the operator in which every GPU routes its tokens as GPU 0 does, seen from itself: all are alike."""
        return self.repeated(1)

    def repeated(self, period: int) -> MoeOperator:
        """Return the operator in which GPU r routes its tokens as GPU r mod *period* does, seen from itself.

        A GPU receives the mean of what all those receive that are a multiple of *period* away.  The experts of a GPU
        are numbered anew for each source, so that they have about the loads of before: else the tokens of all sources
        would meet at the same few experts, and the weights of the others would not be read.
        """
        routing, each = self.routing, self.routing.experts_per_gpu
        rank = np.arange(self.n)
        first = routing.experts[rank % period].astype(np.int64)
        home, local = np.divmod(first, each)
        distance = self.ranks.distance((rank % period)[:, None, None], home)
        numbers = self._numbers_of_experts(period)[(rank % period)[:, None, None], distance, local]
        home = self.ranks.at(rank[:, None, None], distance)
        every = np.where(first == DROPPED, DROPPED, home * each + numbers).astype(np.int32)
        weights = None if routing.weights is None else routing.weights[rank % period]
        return replace(self, routing=replace(routing, experts=every, weights=weights), period=period)

    def _numbers_of_experts(self, period: int) -> Ints:
        """Return the new number of each expert, by class of the source GPU and distance from it.

        The old numbers if these have the loads of before.  Else the experts that lack most rows have those of the
        next source, the one with most rows first.
        """
        n, each = self.n, self.routing.experts_per_gpu
        rows = self.routing.rows().reshape(n, n, each)
        loads = self.routing.loads()
        numbers = np.broadcast_to(np.arange(each), (period, n, each)).copy()
        distances = np.arange(n)
        sources = [self.ranks.at(gpu, self.ranks.back(distances)) % period for gpu in range(period)]
        sent = [rows[source, self.ranks.at(source, distances)] for source in sources]
        if all(np.array_equal(np.sort(one.sum(axis=0)), np.sort(loads[gpu])) for gpu, one in enumerate(sent)):
            return numbers
        for gpu, of_sources in enumerate(sent):
            lacks = loads[gpu].astype(np.float64) * (of_sources.sum() / max(int(loads[gpu].sum()), 1))
            for distance, of_source in enumerate(of_sources):
                by_rows, by_lack = np.argsort(-of_source, kind="stable"), np.argsort(-lacks, kind="stable")
                numbers[sources[gpu][distance], distance, by_rows] = by_lack
                lacks[by_lack] -= of_source[by_rows]
        return numbers

    def in_classes(self, n_classes: int) -> MoeOperator:
        """Return the operator of GPUs in as many classes, equally large, of like loads: those of a class are alike.

        GPUs are numbered anew, class by class in turn; class 0 has most rows.  Each class has the mean load of its
        GPUs; exact if their loads are equal.  Nodes stay together: their GPUs are numbered anew in each node, and
        there are several classes of nodes if there are more classes than GPUs of a node.  *n_classes* is one of
        ``numbers_of_classes``.
        """
        routing, each = self.routing, self.routing.experts_per_gpu
        (n_nodes, n_gpus), loads = (self.ranks.n_nodes, self.ranks.per_node), routing.loads().sum(axis=1)
        of_node, by_node = min(n_classes, n_gpus), loads.reshape(n_nodes, n_gpus)
        node = places_in_classes(-by_node.max(axis=1), max(n_classes // n_gpus, 1))
        gpu = np.stack([places_in_classes(-one, of_node) for one in by_node])
        number = (node[:, None] * n_gpus + gpu).reshape(-1)
        experts = routing.experts.astype(np.int64)
        moved = np.where(experts == DROPPED, DROPPED, number[experts // each] * each + experts % each)
        order = np.argsort(number)
        weights = None if routing.weights is None else routing.weights[order]
        renamed = replace(routing, experts=moved[order].astype(np.int32), weights=weights)
        return replace(self, routing=renamed).repeated(n_classes)

    def numbers_of_classes(self) -> list[int]:
        """Return into how many classes GPUs may be divided: some of each node, or all GPUs of some nodes."""
        gpus, nodes = self.ranks.per_node, self.ranks.n_nodes
        return sorted({p for p in range(1, gpus + 1) if gpus % p == 0} | {
            p * gpus for p in range(1, nodes + 1) if nodes % p == 0
        })  # fmt: skip

    def classes_of_load(self, tolerance: float) -> MoeOperator | None:
        """Return the operator in the fewest classes whose most loaded GPU has that share less rows at most; or None."""
        most = int(self.routing.loads().sum(axis=1).max())
        for n_classes in self.numbers_of_classes()[:-1]:
            found = self.in_classes(n_classes)
            if int(found.routing.loads().sum(axis=1).max()) >= most * (1 - tolerance):
                return found
        return None

    # --- rows ------------------------------------------------------------------------------------------

    @cached_property
    def _every(self) -> dict[str, Ints]:
        """Every row of the layer, source by source and token by token."""
        routing, n, k = self.routing, self.n, self.routing.top_k
        each, n_tokens = routing.experts_per_gpu, routing.tokens_per_gpu
        experts = routing.experts.astype(np.int64)
        is_there = experts != DROPPED
        gpu = np.where(is_there, experts // each, 0)
        distance = self.ranks.distance(np.arange(n)[:, None, None], gpu)
        goes = np.zeros((n, n_tokens, n), bool)
        source, token, choice = np.nonzero(is_there)
        goes[source, token, distance[is_there]] = True
        # By number of experts, of nodes and of GPUs, the most first; then by the set of nodes and that of GPUs, so that
        # tokens with the same destinations follow each other.
        by_gpu = np.moveaxis(goes, 2, 0)
        by_node = by_gpu.reshape(self.ranks.n_nodes, self.ranks.per_node, n, n_tokens).max(axis=1)
        keys = [*by_gpu, -by_gpu.sum(axis=0), *by_node, -by_node.sum(axis=0), -is_there.sum(axis=2)]
        order = np.stack([np.lexsort([key[g] for key in keys]) for g in range(n)])
        number = np.empty_like(order)
        np.put_along_axis(number, order, np.broadcast_to(np.arange(n_tokens), order.shape), axis=1)
        found = {
            "source": source, "token": number[source, token], "choice": choice % k, "gpu": gpu[is_there],
            "distance": distance[is_there], "expert": experts[is_there] % each,
        }  # fmt: skip
        in_order = np.lexsort((found["choice"], found["token"], found["source"]))
        found = {name: values[in_order] for name, values in found.items()}
        return {**found, "index": position_in(found["source"] * n_tokens + found["token"])}

    @cached_property
    def _by_expert(self) -> Ints:
        """Numbers of all rows in the order in which they lie at their experts, GPU by GPU."""
        every = self._every
        return np.lexsort((every["token"], self.ranks.back(every["distance"]), every["expert"], every["gpu"]))

    @cached_property
    def _row(self) -> Ints:
        """Number of each row at its expert's GPU."""
        every, by = self._every, self._by_expert
        expert = every["gpu"][by] * self.routing.experts_per_gpu + every["expert"][by]
        padded = self._padded
        first = (np.cumsum(padded, axis=1) - padded).reshape(-1)
        found = np.empty(len(by), np.int64)
        found[by] = first[expert] + position_in(expert)
        return found

    @cached_property
    def alignment(self) -> int:
        """Return the multiple of rows that groups begin at (``tiling.group_alignment``)."""
        kernels = self.kernels
        every = kernels.kernels.values() if isinstance(kernels, KernelLibrarySpec) else (kernels,)
        return max(one.group_alignment for one in every)

    @cached_property
    def _padded(self) -> Ints:
        """Rows of each expert with their padding, [GPU, expert]."""
        return -(-self._n_rows // self.alignment) * self.alignment

    def padded(self, rank: int) -> int:
        """Return the rows of the experts of *rank* with their padding."""
        return int(self._padded[rank].sum())

    @cached_property
    def _n_rows(self) -> Ints:
        """Rows of each expert, [GPU, expert]."""
        every, each = self._every, self.routing.experts_per_gpu
        numbers = every["gpu"] * each + every["expert"]
        return np.bincount(numbers, minlength=self.n * each).reshape(self.n, each)

    @property
    def most_rows(self) -> int:
        """Return the rows at the experts of the GPU that has most, with their padding."""
        return int(self._padded.sum(axis=1).max())

    def sent(self, rank: int) -> SentRows:
        """Return the rows of the tokens of *rank*."""
        every, of = self._every, self._of_source(rank)
        names = "token", "choice", "distance", "expert"
        token, choice, distance, expert = (every[name][of] for name in names)
        return SentRows(token, choice, distance, expert, self._row[of], every["index"][of])

    def held(self, rank: int) -> HeldRows:
        """Return the rows of the experts of *rank*."""
        every, n_rows = self._every, self._n_rows.sum(axis=1)
        first = int(n_rows[:rank].sum())
        of = self._by_expert[first : first + int(n_rows[rank])]
        token, choice, index = (every[name][of] for name in ("token", "choice", "index"))
        back = self.ranks.back(every["distance"][of])
        return HeldRows(every["expert"][of], back, token, choice, index, self._row[of])

    def rows(self, rank: int) -> list[int]:
        """Return the rows of each expert of *rank*."""
        return [int(n) for n in self._n_rows[rank]]

    @cached_property
    def _copies(self) -> dict[str, Ints]:
        """Every pair of a token and a GPU that has experts of it, source by source and token by token."""
        return self._distinct(self._every["distance"])

    @cached_property
    def _visits(self) -> dict[str, Ints]:
        """Every pair of a token and a node that has experts of it, at the GPU there on the rail of its source."""
        return self._distinct(self._rail(self._every["distance"]))

    def _rail(self, distance: Ints) -> Ints:
        """Return the distances of the GPUs on the rail of the own one, on the nodes of those at *distance*."""
        return distance // self.ranks.per_node * self.ranks.per_node

    def _distinct(self, distance: Ints) -> dict[str, Ints]:
        """Return every pair of a token and a GPU at *distance*, given for each row, source by source."""
        every = self._every
        keys = (every["source"] * self.n_tokens + every["token"]) * self.n + distance
        pairs, inverse = np.unique(keys, return_inverse=True)
        choices = np.zeros(len(pairs), np.int64)
        np.bitwise_or.at(choices, inverse.reshape(-1), np.int64(1) << every["choice"])
        found, distance = np.divmod(pairs, self.n)
        source, token = np.divmod(found, self.n_tokens)
        gpu = self.ranks.at(source, distance)
        order = np.lexsort((token, self.ranks.back(distance), gpu))
        copy = np.empty(len(order), np.int64)
        copy[order] = np.arange(len(order)) - np.searchsorted(gpu[order], gpu[order])
        return {
            "source": source, "token": token, "distance": distance, "gpu": gpu, "copy": copy, "choices": choices,
            "order": order, "held_by": gpu[order], "index": position_in(source * self.n_tokens + token), "key": pairs,
        }  # fmt: skip

    def copies_sent(self, rank: int) -> TokenCopies:
        """Return the copies of the tokens of *rank*, at the GPUs of their experts."""
        return self._sent_of(self._copies, rank)

    def copies_held(self, rank: int) -> TokenCopies:
        """Return the copies of tokens that *rank* has for its experts, in their order there."""
        return self._held_of(self._copies, rank)

    def visits_sent(self, rank: int) -> TokenCopies:
        """Return the copies of the tokens of *rank* at the GPUs of its rail: one for each node that has experts."""
        return self._sent_of(self._visits, rank)

    def visits_held(self, rank: int) -> TokenCopies:
        """Return the copies of tokens that *rank* has got over its rail for the GPUs of its node, in their order."""
        return self._held_of(self._visits, rank)

    @cached_property
    def _forwards(self) -> dict[str, Ints]:
        """Every copy and the visit that brings it to the node of its GPU, rank by rank as ``forwards`` has them."""
        copies, visits = self._copies, self._visits
        on_rail = copies["key"] - copies["distance"] + self._rail(copies["distance"])
        at = np.searchsorted(visits["key"], on_rail)
        found = {
            "gpu": visits["gpu"][at], "visit": visits["copy"][at], "distance": copies["distance"] % self.ranks.per_node,
            "copy": copies["copy"],
        }  # fmt: skip
        order = np.lexsort((found["distance"], found["visit"], found["gpu"]))
        return {name: values[order] for name, values in found.items()}

    def forwards(self, rank: int) -> Forwards:
        """Return what *rank* forwards of ``visits_held``, visit by visit, the nearest GPU of the node first."""
        of = slice(*np.searchsorted(self._forwards["gpu"], (rank, rank + 1)))
        return Forwards(*(self._forwards[name][of] for name in ("visit", "distance", "copy")))

    def _sent_of(self, found: dict[str, Ints], rank: int) -> TokenCopies:
        of = slice(*np.searchsorted(found["source"], (rank, rank + 1)))
        return TokenCopies(*(found[name][of] for name in ("token", "distance", "copy", "choices", "index")))

    def _held_of(self, found: dict[str, Ints], rank: int) -> TokenCopies:
        of = found["order"][slice(*np.searchsorted(found["held_by"], (rank, rank + 1)))]
        back = self.ranks.back(found["distance"][of])
        return TokenCopies(found["token"][of], back, *(found[name][of] for name in ("copy", "choices", "index")))

    @cached_property
    def places_of_rows(self) -> list[Places]:
        """Where the rows of the tokens of each GPU that may differ come back, one for each expert."""
        return self._places(self.sent)

    @cached_property
    def places_of_copies(self) -> list[Places]:
        """Where the rows of the tokens of each GPU that may differ come back, one for each GPU."""
        return self._places(self.copies_sent)

    @cached_property
    def places_of_visits(self) -> list[Places]:
        """Where the rows of the tokens of each GPU that may differ come back, one for each node."""
        return self._places(self.visits_sent)

    def _places(self, sent: Callable[[int], SentRows | TokenCopies]) -> list[Places]:
        """Return the places for what each GPU that may differ has *sent*."""
        return [places_of(np.bincount(sent(rank).token, minlength=self.n_tokens)) for rank in self.representatives]

    def _of_source(self, rank: int) -> slice:
        return slice(*np.searchsorted(self._every["source"], (rank, rank + 1)))

    # --- sizes -----------------------------------------------------------------------------------------

    def lines_of(self, element: str, n_elements: int) -> int:
        """Return the cache lines of a row of so many elements with their scales, as GEMMs stage it."""
        each = int(self.machine.gpu.l2.line * BITS_OF_BYTE / ELEMENT_TYPES[element].stored_bits)
        return -(-n_elements // each)

    def lines_of_data(self, element: str, n_elements: int) -> int:
        """Return the cache lines of a row of so many elements without their scales."""
        return -(-n_elements * ELEMENT_TYPES[element].bits // (self.machine.gpu.l2.line * BITS_OF_BYTE))

    @property
    def sent_row(self) -> int:
        """Return granules of a token as it is dispatched."""
        return self.lines_of(self.experts.sent_element, self.experts.hidden) * self.line

    @property
    def returned_row(self) -> int:
        """Return granules of a row as it is combined."""
        return self.lines_of(self.experts.combine_element, self.experts.hidden) * self.line

    # --- GEMMs -----------------------------------------------------------------------------------------

    def shapes(self) -> tuple[GemmShape, GemmShape]:
        """Return n and k of both GEMMs of an expert, of one row."""
        one = self.experts
        width, types = one.local_intermediate, {"element": one.element, "weights": one.weights}
        first = GemmShape(m=1, n=width * (1 + one.gated), k=one.hidden, **types)
        return first, GemmShape(m=1, n=one.hidden, k=width, **types)

    def trace(self, rank: int, shape: GemmShape) -> TileTrace | None:
        """Return the tiles of the grouped GEMM of *shape* on *rank*; None if no expert there has a row."""
        key = rank % len(self.representatives), shape
        if key not in self._traces:
            rows = self.rows(rank)
            try:
                tiling = grouped_tiling(self.kernels, rows, shape, self.machine.gpu.n_compute_units)
                self._traces[key] = grouped_trace(rows, shape, tiling) if any(rows) else None
            except ValueError as error:
                raise UsageError(f"workload: {error}") from None
        return self._traces[key]

    @cached_property
    def _traces(self) -> dict[tuple[int, GemmShape], TileTrace | None]:
        """Tiles that have been made: by rank and shape."""
        return {}


AnyOperator = Operator | MoeOperator
