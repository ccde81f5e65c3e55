"""A plan: the composition of the time of a strategy from parts.

A part is a program for every rank, simulated on a fresh machine.  Equal parts of different strategies have one key and
are simulated once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import overload

from t3sim.config.machine import MachineSpec
from t3sim.program.compare import difference, digest
from t3sim.program.operations import Gemm, Program
from t3sim.workload.matrix_cycles import matrix_cycles


class Ranks(Sequence[Program]):
    """The programs of all ranks, each made when it is first asked for: an outline needs that of rank 0 only."""

    def __init__(self, program_of: Callable[[int], Program], n: int) -> None:
        """Of *n* ranks, each runs ``program_of(rank)``."""
        self._program_of = program_of
        self._made: list[Program | None] = [None] * n

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, rank: int) -> Program: ...
    @overload
    def __getitem__(self, rank: slice) -> tuple[Program, ...]: ...
    def __getitem__(self, rank: int | slice) -> Program | tuple[Program, ...]:
        if isinstance(rank, slice):
            return tuple(self[one] for one in range(*rank.indices(len(self))))
        found = self._made[rank]
        if found is None:
            found = self._made[rank] = self._program_of(rank % len(self))
        return found


@dataclass(frozen=True, eq=False)
class Part:
    """Programs that run together on a fresh machine, and the name of the result column that their time goes to."""

    role: str  # 'gemm', 'reduce_scatter', 'all_gather', 'all_reduce', 'fused', or a name of the strategy's own
    name: str  # for people: of timelines and messages
    programs: Sequence[Program]  # by rank
    is_arbitrated: bool = False  # by the policy of the experiment, else the strategy's; False: round robin

    @classmethod
    def of(
        cls, role: str, name: str, program_of: Callable[[int], Program], n: int, *, is_arbitrated: bool = False
    ) -> Part:
        """Return the part in which each of *n* ranks runs ``program_of(rank)``."""
        return cls(role, name, Ranks(program_of, n), is_arbitrated)

    @classmethod
    def alike(cls, role: str, name: str, program: Program, *, is_arbitrated: bool = False) -> Part:
        """Return the part in which all ranks run *program*; distances count from each rank on."""
        return cls.of(role, name, lambda rank: replace(program, rank=rank), program.n, is_arbitrated=is_arbitrated)

    @classmethod
    def repeated(
        cls,
        role: str,
        name: str,
        program_of: Callable[[int], Program],
        n: int,
        period: int,
        *,
        is_arbitrated: bool = False,
    ) -> Part:
        """Return the part in which rank r runs the program of rank r mod *period*, seen from itself."""
        first = [program_of(rank) for rank in range(period)]
        return cls.of(role, name, lambda rank: replace(first[rank % period], rank=rank), n, is_arbitrated=is_arbitrated)

    @property
    def n(self) -> int:
        """Return the number of ranks."""
        return len(self.programs)

    @cached_property
    def classes(self) -> range:
        """The ranks whose GPUs represent all, as few as possible; rank r by ``classes[r // step % len(classes)]``.

        Programs repeat after a number of ranks (step 1), or those of a node are equal (step: its GPUs).
        """
        known: dict[int, str] = {}  # digests by operations: ranks that run one program share these
        for one in self.programs:
            if id(one.operations) not in known:
                known[id(one.operations)] = digest(one)
        names, ranks = [known[id(one.operations)] for one in self.programs], self.programs[0].ranks
        each, n_nodes = ranks.per_node, ranks.n_nodes
        found = [range(p) for p in _divisors(self.n) if each % p == 0 or p % each == 0]
        found += [range(0, nodes * each, each) for nodes in _divisors(n_nodes)]
        return next(
            one
            for one in sorted(found, key=len)
            if all(name == names[one[rank // one.step % len(one)]] for rank, name in enumerate(names))
        )

    @cached_property
    def difference(self) -> str | None:
        """Say where the ranks' programs differ; None: nowhere, and one GPU may represent all."""
        return difference(self.programs)

    @property
    def representatives(self) -> list[Program]:
        """Return the programs of ``classes``."""
        return [self.programs[rank] for rank in self.classes] if self.difference is not None else [self.programs[0]]

    def clocked(self, machine: MachineSpec, ticks_hz: int | None = None) -> MachineSpec:
        """Return *machine* at the clock of this part: the more of its matrix peak the GEMMs use, the lower.

        Equal GPUs have one clock, by the rank that uses most. *ticks_hz* is the time of a larger ring.
        """
        if not machine.clock_falls:
            return machine
        own = {one.number for one in machine.own_gpus}
        if not own:
            programs = self.representatives
            return machine.at_matrix_share(max(matrix_share(one, machine) for one in programs), None, ticks_hz)
        shares = {d: matrix_share(program, machine.of_gpu(d)) for d, program in enumerate(self.programs)}
        alike = max((share for d, share in shares.items() if d not in own), default=0.0)
        return machine.at_matrix_share(alike, shares, ticks_hz)

    @cached_property
    def key(self) -> str:
        """Return a name that equal parts share, whatever strategy they belong to; their roles may differ."""
        names = [digest(program) for program in self.representatives]
        return sha256(f"{self.n} {self.is_arbitrated} {' '.join(names)}".encode()).hexdigest()


def _divisors(n: int) -> list[int]:
    return [p for p in range(1, n + 1) if n % p == 0]


def matrix_share(program: Program, machine: MachineSpec) -> float:
    """Return the share of the matrix peak that *program* uses while its GEMMs run, if these never wait.

    GEMMs of one stream follow each other, those of others take what their last rounds leave.  Where the clock falls
    with the units that multiply: the largest share of these that a GEMM may use.
    """
    used = least = most = 0.0
    by_stream: defaultdict[int, float] = defaultdict(float)
    every = machine.gpu.n_compute_units
    for gemm in (one for one in program.operations if isinstance(one, Gemm)):
        n_units = every if gemm.units is None else len(range(*gemm.units))
        most = max(most, n_units / every)
        tiles = gemm.stored.workgroups[gemm.stores.distance != 0]
        n_sent = gemm.trace.element.n_bytes(int((tiles["n_rows"] * tiles["n_columns"]).sum()))
        cycles = matrix_cycles(machine, gemm.trace, n_units, n_sent)
        used += cycles.used
        least += cycles.least
        by_stream[gemm.stream] += cycles.whole
    if machine.gpu.clock_scales_with_units:
        return most
    return used / max(least, *by_stream.values()) if by_stream else 0.0


@dataclass(frozen=True)
class InOrder:
    """One after the other: a GPU begins one when it has ended the one before, and its links have carried it."""

    of: tuple[Tree, ...]


@dataclass(frozen=True)
class Longest:
    """All begin together, each as if alone on a machine of its own; over when the last one is."""

    of: tuple[Tree, ...]


@dataclass(frozen=True)
class Bound:
    """A time in ticks of the machine that represents *of*, which is simulated for what follows and its columns."""

    ticks: int
    of: Tree


Tree = Part | InOrder | Longest | Bound


@dataclass(frozen=True)
class Plan:
    """What a strategy does with an operator: *tree* says how long it takes, *also* is simulated for its column only."""

    tree: Tree
    also: tuple[Part, ...] = ()

    @property
    def all_gather_behind(self) -> bool:
        """Return whether its last part is the all-gather, after all else."""
        last = self.tree.of[-1] if isinstance(self.tree, InOrder) and self.tree.of else self.tree
        return isinstance(last, Part) and last.role == "all_gather"

    def counted(self, *, with_gather: bool) -> Plan:
        """Return what its time is: nothing for a column only, and *with_gather* an all-gather after all else."""
        if with_gather or not self.all_gather_behind or not isinstance(self.tree, InOrder):
            return Plan(self.tree)
        return Plan(InOrder(self.tree.of[:-1]))

    def parts(self) -> list[Part]:
        """Return all parts, each key once, in the order in which they are named."""
        return list({part.key: part for part in (*parts_of(self.tree), *self.also)}.values())


def parts_of(tree: Tree) -> Iterator[Part]:
    """Yield the parts of *tree* in order."""
    if isinstance(tree, Part):
        yield tree
    elif isinstance(tree, Bound):
        yield from parts_of(tree.of)
    else:
        for one in tree.of:
            yield from parts_of(one)


def in_order(*trees: Tree | None) -> InOrder:
    """Return those of *trees* that there are, one after the other."""
    return InOrder(tuple(tree for tree in trees if tree is not None))


def longest(*trees: Tree | None) -> Longest:
    """Return those of *trees* that there are, side by side."""
    return Longest(tuple(tree for tree in trees if tree is not None))
