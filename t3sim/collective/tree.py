"""NCCL's double binary trees over nodes, and when it takes them for an all-reduce.

Each of the two trees carries half of the array; a node that has children in one is a leaf of the other where possible.

Source: NCCL 2.28, ``src/graph/trees.cc`` (``ncclGetBtree``, ``ncclGetDtree``), ``src/graph/tuning.cc`` (latency and
bandwidth; the factors by size correct the bandwidth of trees).  Pinned by ``tests/collective/test_tree.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from t3sim.collective.choice import expected_time
from t3sim.collective.nvls import expected_in_switch
from t3sim.collective.ranks import Ranks
from t3sim.config.collective_kernel import CollectiveKernelSpec, Protocol
from t3sim.config.machine import MachineSpec

# Percent of the bandwidth of a tree, for arrays of 64 B, 128 B, ... up to 256 MiB (``treeCorrectionFactor``).
PERCENT: dict[Protocol, tuple[int, ...]] = {
    "low_latency": (
        100, 100, 100, 100, 90, 80, 70, 70, 70, 70, 60, 50, 40, 40, 50, 60, 70, 80, 90, 100, 100, 100, 100
    ),
    "low_latency_128": (
        100, 100, 100, 100, 100, 90, 80, 80, 80, 70, 60, 60, 60, 60, 60, 60, 80, 90, 90, 90, 90, 100, 100
    ),
    "simple": (90, 90, 90, 90, 90, 90, 90, 80, 70, 60, 60, 50, 50, 50, 50, 60, 70, 80, 70, 70, 80, 90, 90),
}  # fmt: skip

NETWORK_OVERHEAD = 1_000_000  # ps that each step of a ring over nodes costs the host at least, three times of Simple
PLATEAU = 64  # bytes of a chunk of a channel from which on Simple's rings over nodes take 1.4 times their latency


@dataclass(frozen=True)
class Place:
    """What a node is in a tree: the nodes of its parent and of its children; None: it has none."""

    parent: int | None
    children: tuple[int | None, int | None]


def place_in(tree: int, n_nodes: int, node: int) -> Place:
    """Return the place of *node* in the first or the second *tree* of *n_nodes*.

    The second one is the first, mirrored (an even number of nodes) or shifted by a node (an odd one).
    """
    if tree == 0:
        return _binary(n_nodes, node)
    if n_nodes % 2:
        shifted = _binary(n_nodes, (node - 1) % n_nodes)
        return _renamed(shifted, lambda other: (other + 1) % n_nodes)
    return _renamed(_binary(n_nodes, n_nodes - 1 - node), lambda other: n_nodes - 1 - other)


def _renamed(place: Place, name_of: Callable[[int], int]) -> Place:
    first, second = (None if one is None else name_of(one) for one in place.children)
    return Place(None if place.parent is None else name_of(place.parent), (first, second))


def _binary(n: int, rank: int) -> Place:
    """Return the place of *rank* in the tree with root 0 in which ranks with the same lowest bit are on one level."""
    bit = 1
    while bit < n and not bit & rank:
        bit <<= 1
    if rank == 0:
        return Place(None, (None, bit >> 1 if n > 1 else None))
    parent = (rank ^ bit) | (bit << 1)
    if parent >= n:
        parent = rank ^ bit
    low = bit >> 1
    if not low:
        return Place(parent, (None, None))
    second: int | None = rank + low
    while second is not None and second >= n:
        low >>= 1
        second = rank + low if low else None
    return Place(parent, (rank - (bit >> 1), second))


def tree_protocol(spec: CollectiveKernelSpec, ranks: Ranks, size: int, nic: int | None = None) -> Protocol:
    """Return the protocol that trees use for an array of *size* bytes; *nic*: bytes a second of an interface."""
    found = expected_trees(spec, ranks, size, nic)
    return min(found, key=lambda one: found[one]) if found else "simple"


def expected_trees(spec: CollectiveKernelSpec, ranks: Ranks, size: int, nic: int | None) -> dict[Protocol, Fraction]:
    """Return what NCCL expects of trees (ps), by protocol."""
    logarithm, found = (size >> 6).bit_length() - 1, {}
    for protocol, one in spec.trees.items():
        levels = ranks.n_nodes.bit_length() - 1
        rate = Fraction(one.bandwidth if levels == 0 else _over_nodes(one.network_bandwidth, ranks, nic))
        if 0 <= logarithm < len(PERCENT[protocol]):
            rate *= Fraction(PERCENT[protocol][logarithm], 100)
        steps = 2 * ((ranks.per_node - 1) * one.step + levels * one.network_step)
        found[protocol] = one.start + steps + 2 * size * 10**12 / rate
    return found


def expected_rings(spec: CollectiveKernelSpec, ranks: Ranks, size: int, nic: int | None) -> dict[Protocol, Fraction]:
    """Return what NCCL expects of the rings of an all-reduce over several nodes (ps), of protocols that state it."""
    every, found = {"simple": spec.expected, **{name: one.expected for name, one in spec.flagged.items()}}, {}
    n_steps, n_far = 2 * (ranks.n - 1), 2 * (ranks.n_nodes - 1)
    for protocol, one in every.items():
        if one is None or one.network_step is None or one.network_bandwidth is None:
            continue
        is_simple = protocol == "simple"
        near = max(one.step, NETWORK_OVERHEAD * (3 if is_simple else 1))
        latency = Fraction(one.start + (n_steps - n_far) * near + n_far * one.network_step)
        if is_simple and size >= PLATEAU * spec.channels * ranks.n:
            latency *= Fraction(14, 10)
        rate = _over_nodes(one.network_bandwidth, ranks, nic)
        found[protocol] = latency + Fraction(n_steps * size * 10**12, ranks.n * rate)
    return found


def takes_tree(machine: MachineSpec, op: str, n_gpus: int, size: int) -> bool:
    """Return whether NCCL expects an all-reduce of *size* bytes by trees to be faster than by rings and in the switch.

    On several nodes what is in the switch (NVLSTree) and rings are both simulated as hierarchical; a machine whose
    rings state no cost there takes no trees.
    """
    spec, link = machine.gpu.collective_kernel, machine.link
    ranks, nic = Ranks.of(n_gpus, link.gpus_per_node), None if link.nic is None else link.nic.bandwidth
    is_ring = link.ports == 1 and link.topology == "ring" and n_gpus > 2
    if op != "all-reduce" or is_ring or 2 * ranks.per_node > machine.gpu.n_compute_units:
        return False
    trees = expected_trees(spec, ranks, size, nic)
    if not trees or spec.expected is None:
        return False
    if ranks.n_nodes > 1:
        others = list(expected_rings(spec, ranks, size, nic).values())
        in_switch = expected_switch_trees(machine, ranks, size, nic) if others else None
    else:
        others, in_switch = [expected_time(spec, op, n_gpus, size)[1]], expected_in_switch(machine, n_gpus, size)
    others += [] if in_switch is None else [in_switch]
    return bool(others) and min(trees.values()) < min(others)


def expected_switch_trees(machine: MachineSpec, ranks: Ranks, size: int, nic: int | None) -> Fraction | None:
    """Return what NCCL expects of NVLSTree on several nodes (ps): in the switch of each, and trees between these."""
    nvls = machine.gpu.collective_kernel.nvls
    if nvls is None or nvls.expected.network_step is None or machine.link.multicast is None:
        return None
    rate, levels = nvls.expected.bandwidth, ranks.n_nodes.bit_length() - 1
    if nic is not None:
        rate = min(rate, 5 * ranks.per_node * nic // (6 if ranks.n_nodes == 2 else 12))  # 5/6, half of it on more nodes
    return nvls.expected.start + 2 * levels * nvls.expected.network_step + Fraction(size * 10**12, rate)


def _over_nodes(bandwidth: int, ranks: Ranks, nic: int | None) -> int:
    return bandwidth if nic is None else min(bandwidth, ranks.per_node * nic)
