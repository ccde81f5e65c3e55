"""Contents of granules: sums of the contributions of ranks to an element.

An *element* is a granule of what a program is about: of a chunk that its contents name, or of a tile of a GEMM.  It has
one name on all ranks.  Each rank has a *part* of it: random whole numbers, or what its GEMM makes there.

A granule holds these numbers twice.  The *exact* ones are the same in any order of sums, so who contributed tells them.
The *typed* ones are what the array's element type keeps of them: a part is rounded when it is first stored, a sum when
it is stored or put on a link; within a kernel, sums are FP32, in which sums of these numbers are exact.  They are whole
numbers too, as if a scale of the tensor kept them from overflow and underflow.

The numbers of a granule are followed by its contributors (four bits for each rank: how often) and the names of all that
was added up, as a sum.  So they are stored, sent and added as the numbers are.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.checks.data.places import Ints
from t3sim.checks.data.rounding import rounded
from t3sim.config.element_types import ELEMENT_TYPES
from t3sim.errors import UsageError
from t3sim.program.contents import Content, Rows, rectangles
from t3sim.program.operations import Gemm, Program, tile_granules
from t3sim.program.verify.places import contents_of
from t3sim.program.verify.tiles import output_granule, parts_of_granule, wide_parts

MAX_RANKS = 16  # contributors are kept in 64 bits
GIVERS, NAMES = -2, -1  # after the numbers of a granule
BITS = 4  # of a rank, in GIVERS
BAD = -99  # what a place that is none holds


class Made:
    """The granules that a GEMM stores: tile by tile in the order of the trace, each row by row.

    If it splits k these are partial sums: *parts* of a granule of the output, which all have its name.

    Workgroup w of rank r represents that workgroup of rank 0 which makes the same chunk of the output: r chunks on.
    Where chunks have different shapes (decision 10) it represents itself.  A GEMM of a single chunk makes one of n such
    chunks: on rank r number r + ``first_chunk``.
    """

    def __init__(self, gemm: Gemm, program: Program, first_name: int) -> None:
        """The names of the elements start at *first_name*."""
        trace, self.gemm, self.first_name, self.ranks = gemm.stored, gemm, first_name, program.ranks
        row, self.rows, column, self.width = tile_granules(trace, program.granule, is_stored=True)
        self.start: Ints = np.asarray(np.cumsum(self.rows * self.width) - self.rows * self.width, np.int64)
        self.which, self.inside, _ = rectangles(self.start, self.width, self.rows, self.width)
        self.n_granules = len(self.which)
        self.n_parts = parts_of_granule(gemm)
        self.n_wide = wide_parts(gemm)
        self.whole_width, column = self.width // self.n_wide, column // self.n_wide
        whole = trace.whole_tiles
        sizes = self.rows[whole] * self.whole_width[whole]
        self.across = int((column + self.whole_width).max())  # granules of a dense row of the output
        first, pitch = row * self.across + column, np.full(len(whole), self.across)
        self._dense = rectangles(first[whole], pitch, self.rows[whole], self.whole_width[whole])[2]
        self.n_outputs = len(self._dense)
        # Of each stored granule: its granule of the output, and which part of it.
        tile = (np.cumsum(trace.panel == 0) - 1)[trace.first_of_tile]
        self._tile_start = (np.cumsum(sizes) - sizes)[tile]  # in the output, of each workgroup
        inside, part = self.inside, np.zeros(self.n_granules, np.int64)
        if self.n_parts > 1:
            inside, part = output_granule(inside, self.width[self.which], program.line, self.n_wide)
        self.output, self.part = self._tile_start[self.which] + inside, self.n_wide * trace.panel[self.which] + part
        self._stored = np.zeros(self.n_outputs, np.int64)  # the stored granule with part 0 of each of the output
        self._stored[self.output[self.part == 0]] = np.flatnonzero(self.part == 0)
        self.n_copies = program.n if trace.n_chunks == 1 else 1
        self.n_names = self.n_copies * self.n_outputs
        shapes = trace.workgroups[["n_rows", "n_columns"]]
        each, rest = divmod(trace.n_workgroups, program.n)
        sizes = np.diff(trace.chunk_ranges)[:, 0]
        is_alike = not rest and bool((sizes == each).all() and (shapes == np.resize(shapes[:each], len(shapes))).all())
        self._each = each if is_alike else 0

    def names(self, rank: int) -> Ints:
        """Return the names of what *rank* makes."""
        if self.n_copies > 1:
            return np.asarray(self.first_of(rank) + self.output)
        workgroup = self.which
        if self._each:
            chunk, number = np.divmod(self.which, self._each)
            workgroup = self.ranks.at(chunk, rank) * self._each + number
        return np.asarray(self.first_name + self.output[self.start[workgroup] + self.inside])

    def output_names(self, rank: int, workgroups: Ints, inside: Ints) -> Ints:
        """Return the names of granules of the output, by their number *inside* tiles of *workgroups*."""
        return np.asarray(self.names(rank)[self._stored[self._tile_start[workgroups] + inside]])

    def first_of(self, rank: int) -> int:
        """Return the name of what a GEMM of the trace of *rank* makes first."""
        chunk = self.ranks.at(rank, self.gemm.first_chunk) if self.n_copies > 1 else 0
        return int(self.first_name + chunk * self.n_outputs)

    def turned(self, distance: int) -> Ints:
        """Return for all names the ones that they are in the frame of the GPU at *distance*."""
        if self.n_copies == 1:
            return self.names(distance)[self._stored]
        chunks = self.first_name + np.arange(self.n_names).reshape(self.n_copies, -1)
        return np.asarray(chunks[self.ranks.turned(distance)].reshape(-1))

    def granules(self, product: NDArray[np.float64], n_elements: int) -> Ints:
        """Return *product*, of a GEMM of rank 0, granule by granule of the output."""
        padded = np.zeros((product.shape[0], self.across * n_elements), np.int64)
        padded[:, : product.shape[1]] = product
        return np.asarray(padded.reshape(-1, n_elements)[self._dense])


class Elements:
    """The elements of the programs of one machine, and the parts of all ranks."""

    def __init__(self, programs: Sequence[Program], seed: int) -> None:
        """*programs* of all ranks, or one that represents all: all have the same GEMMs, but for those of rows."""
        program = programs[0]
        self._programs = {one.rank: one for one in programs}
        self.n, self.ranks = program.n, program.ranks
        self.n_elements, self._seed = ELEMENT_TYPES[program.element].n_elements(program.granule), seed
        self.exact, self.typed = slice(0, self.n_elements), slice(self.n_elements, 2 * self.n_elements)
        self.width = 2 * self.n_elements + 2
        self.significand = ELEMENT_TYPES[program.element].significand
        # One GPU that represents all has the typed values that others have in the places of its own.
        self._is_mirrored = len(programs) < self.n
        contents = [content for one in programs for content in contents_of(one)]
        self.stride = max((int(np.max(one.offset, initial=0)) + one.n_granules for one in contents), default=0)
        rows = [one for one in contents if isinstance(one, Rows)]
        # Tokens are sums of the rows of their experts, which have the places of ranks in ``GIVERS``.
        self.n_choices = max((int(one.choices.max(initial=0)).bit_length() for one in rows), default=0)
        self.n_givers = max(self.n, self.n_choices)
        if self.n_givers > MAX_RANKS:
            raise UsageError(f"real values are carried for at most {MAX_RANKS} experts of a token, not {self.n_givers}")
        n_names, self.made = self.n * self.stride, list[Made]()
        self._arrays: dict[tuple[bytes, int, int], Made] = {}  # the first GEMM of each array that GEMMs make chunks of
        made_before: Counter[tuple[bytes, int, int]] = Counter()
        # Those that make rows of tokens, which have names, may differ from rank to rank.
        gemms = [one for one in program.operations if isinstance(one, Gemm) and one.makes is None]
        for number, gemm in enumerate(gemms):
            what = gemm.stored.workgroups.tobytes(), gemm.first_tile
            made_before[*what, gemm.first_chunk] += 1
            array = *what, made_before[*what, gemm.first_chunk] if gemm.stored.n_chunks == 1 else -number
            first = self._arrays.get(array)
            self.made.append(Made(gemm, program, n_names if first is None else first.first_name))
            if first is None:
                self._arrays[array] = self.made[-1]
                n_names += self.made[-1].n_names
        self.parts = np.zeros((self.n_givers, n_names, self.n_elements), np.int64)
        shape = (self.n_givers, self.n * self.stride, self.n_elements)
        self.parts[:, : shape[1]] = np.random.default_rng(seed).integers(-1000, 1000, shape)
        for number, made in enumerate(self.made):
            for rank in range(self.n):
                names = slice(made.first_of(rank), made.first_of(rank) + made.n_outputs)
                # Products of doubles are exact here: |sum| is at most 9 k, far below 2^53.
                a, b = self._operands(number, rank)
                self.parts[rank, names] = made.granules(a @ b, self.n_elements)
        self.turned_names = cache(self._turned_names)
        self.typed_parts = self._typed_parts([one for one in program.operations if isinstance(one, Gemm)])

    def _typed_parts(self, gemms: Sequence[Gemm]) -> Ints:
        """Return the parts as they are first stored: operands of GEMMs in their type, all others in that of outputs."""
        n_given = self.n * self.stride
        given = [ELEMENT_TYPES[one.trace.gemm.element].significand for one in gemms if one.a_content]
        parts = rounded(self.parts[:, :n_given], min(given, default=self.significand))
        return np.concatenate([parts, rounded(self.parts[:, n_given:], self.significand)], axis=1)

    def _typed_part(self, rank: int, names: Ints) -> Ints:
        """Return what *rank*, or the expert of that number, has of the elements *names*, typed."""
        if not self._is_mirrored:
            return np.asarray(self.typed_parts[rank, names])
        if self.n_choices:
            return np.asarray(self.typed_parts[rank, names % self.stride])
        own = next(iter(self._programs))  # of the GPU that represents all
        distance = next(d for d in range(self.n) if self.ranks.at(rank, d) == own)
        return np.asarray(self.typed_parts[own, self.turned_names(distance)[names]])

    def error_bounds(self, givers: Ints, names: Ints) -> Ints:
        """Return by how much typed sums may be off: each part is rounded when it is sent, and when it is stored."""
        total = sum(
            count[:, None] * np.abs(self._typed_part(rank, names))
            for rank, count in enumerate(self.counts(givers)) if count.any()
        )  # fmt: skip
        n_roundings = 2 * self.counts(givers).sum(axis=0)[:, None]
        return np.asarray((total * n_roundings) // 2**self.significand + 1)

    def _operands(self, number: int, rank: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the operands of a GEMM on *rank*."""
        shape, rng = self.made[number].gemm.trace.gemm, np.random.default_rng([self._seed, number, rank])
        return rng.integers(-3, 4, (shape.m, shape.k)) * 1.0, rng.integers(-3, 4, (shape.k, shape.n)) * 1.0

    def made_names(self, rank: int) -> list[Ints]:
        """Return the names of what each GEMM makes on *rank*, tile by tile."""
        return [
            one.names(rank) if one.gemm.makes is None else self._rows_made(one, one.gemm.makes, rank)[1]
            for one in self.made_by(rank)
        ]

    @cache  # noqa: B019 - as long as the run
    def made_by(self, rank: int) -> list[Made]:
        """Return what each GEMM of *rank* makes."""
        like, program = iter(self.made), self._programs[rank]
        gemms = (one for one in program.operations if isinstance(one, Gemm))
        return [next(like) if one.makes is None else Made(one, program, 0) for one in gemms]

    def produced(self, rank: int) -> Ints:
        """Return what the GEMMs of *rank* make, tile by tile, in its own order, and at the end what is none."""
        found = [np.full((1, self.width), BAD)]
        numbers = itertools.count()
        for made in self.made_by(rank):
            if made.gemm.makes is not None:
                found.append(self.sums(*self._rows_made(made, made.gemm.makes, rank)))
                continue
            a, b = self._operands(next(numbers), rank)
            trace, names = made.gemm.stored, made.names(rank)
            products = np.zeros((trace.tiling.split_k, a.shape[0], b.shape[1]))
            for tile, panel, first, n in zip(trace.workgroups, trace.panel, *trace.panels, strict=True):
                rows = slice(tile["row"], tile["row"] + tile["n_rows"])
                columns = slice(tile["column"], tile["column"] + tile["n_columns"])
                k = slice(first * trace.k_slice, (first + n) * trace.k_slice)
                products[panel, rows, columns] += a[rows, k] @ b[k, columns]
            by_panel = np.stack([made.granules(product, self.n_elements) for product in products])
            values = np.empty((len(names), self.width), np.int64)
            panel, part = made.part // made.n_wide, made.part % made.n_wide
            values[:, self.exact] = by_panel[panel, names - made.first_of(rank)]
            if made.n_parts > 1:  # of its own share of the elements, and who gives is in one of the parts
                values[:, self.exact] *= np.arange(self.n_elements) * made.n_wide // self.n_elements == part[:, None]
                values[:, self.typed] = values[:, self.exact]  # partial sums are FP32
            else:
                values[:, self.typed] = rounded(values[:, self.exact], self.significand)
            values[:, GIVERS], values[:, NAMES] = one_of(rank), names
            values[made.part > 0, GIVERS:] = 0
            found.append(values)
        return np.concatenate([*found[1:], found[0]])

    def _rows_made(self, made: Made, rows: Rows, rank: int) -> tuple[Ints, Ints]:
        """Return the givers and the names of what a GEMM makes of rows of tokens on *rank*, tile by tile."""
        stores, workgroups = made.gemm.stores, made.gemm.stored.workgroups
        granules = rectangles(stores.first, stores.pitch, made.rows, made.width)[2]
        row = workgroups["row"][made.which] + made.inside // made.width[made.which]
        names = self.ranks.at(rank, rows.chunk[row]) * self.stride + rows.offset[row] + granules - rows.first[row]
        return choice_givers(rows.choices[row]), names

    def named(self, content: Content | Rows, rank: int) -> tuple[Ints, Ints]:
        """Return the names and the givers of the granules of *content* on *rank*."""
        if isinstance(content, Rows):
            first = self.ranks.at(rank, content.chunk) * self.stride + content.offset
            names = (first[:, None] + np.arange(content.n_granules)).reshape(-1)
            return names, np.repeat(choice_givers(content.choices), content.n_granules)
        offset = content.offset + np.arange(content.n_granules)
        return self.ranks.at(rank, content.chunk) * self.stride + offset, self.givers(content.of, rank, len(offset))

    def givers(self, of: int | None, rank: int, n: int) -> Ints:
        """Return *n* times the rank at distance *of* of *rank*; None: all ranks."""
        every = one_of(np.arange(self.n)).sum()
        return np.full(n, every if of is None else one_of(self.ranks.at(rank, of)))

    def sums(self, givers: Ints, names: Ints) -> Ints:
        """Return the granules that hold the parts of *givers* of the elements *names*, sums unrounded."""
        values = np.zeros((len(names), self.width), np.int64)
        for rank, count in enumerate(self.counts(givers)):
            if count.any():
                values[:, self.exact] += count[:, None] * self.parts[rank, names]
                values[:, self.typed] += count[:, None] * self._typed_part(rank, names)
                values[:, NAMES] += count * names
        values[:, GIVERS] = givers
        return values

    def counts(self, givers: Ints) -> Ints:
        """Return how often each rank has given, [rank, granule]."""
        return np.stack([givers >> BITS * rank & (1 << BITS) - 1 for rank in range(self.n_givers)])

    def names_of(self, values: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Return which elements granules are, and whether they are right sums of these; -1: none was set."""
        n_given = self.counts(values[:, GIVERS]).sum(axis=0)
        names = (values[:, NAMES] // n_given.clip(1)).clip(0, max(self.parts.shape[1] - 1, 0))
        is_given = n_given > 0
        is_right = ~is_given
        differs = self.sums(values[is_given, GIVERS], names[is_given]) != values[is_given]
        is_right[is_given] = ~(differs[:, self.exact].any(axis=1) | differs[:, GIVERS:].any(axis=1))
        return np.where(is_given, names, -1), is_right

    def turned(self, values: Ints, distance: int) -> Ints:
        """Return the values that the GPU at *distance* has in the place of *values*; unset and typed ones stay."""
        names, _ = self.names_of(values)
        found, is_given = values.copy(), names >= 0
        givers = self.turned_givers(values[is_given, GIVERS], distance)
        found[is_given] = self.sums(givers, self.turned_names(distance)[names[is_given]])
        found[:, self.typed] = values[:, self.typed]
        return found

    def turned_givers(self, givers: Ints, distance: int) -> Ints:
        """Return the ranks at *distance* of those that have given; an expert of a token is the same for all."""
        if self.n_choices:
            return givers
        counts = self.counts(givers)[self.ranks.turned(self.ranks.back(distance))]
        return np.asarray(sum(count << BITS * rank for rank, count in enumerate(counts)))

    def _turned_names(self, distance: int) -> Ints:
        """Return for each element the one that it is in the frame of the GPU at *distance*."""
        chunks = np.arange(self.n * self.stride).reshape(self.n, -1)[self.ranks.turned(distance)]
        return np.concatenate([chunks.reshape(-1), *(made.turned(distance) for made in self._arrays.values())])


def choice_givers(choices: Ints) -> Ints:
    """Return one contribution of each of the *choices*, which have a bit each."""
    every = range(int(np.max(choices, initial=0)).bit_length())
    return np.sum([(choices >> j & 1) << BITS * j for j in every], axis=0, dtype=np.int64) + np.zeros_like(choices)


def one_of(ranks: Any) -> Ints:
    """Return one contribution of each of *ranks*: a one in its four bits."""
    return np.int64(1) << np.asarray(BITS * ranks)
