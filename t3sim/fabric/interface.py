"""What a fabric is: which ports a GPU has and which GPUs each of them leads to.

One file for each fabric, which registers a function from link, number of GPUs and rank to the ports of that GPU.  All
that ports have in common (rate, buffers, credits, packets, multicast, reduction units) is in the link of the machine
and in the units of a GPU (``gpu.units.link``).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from t3sim.collective.ranks import Ranks
from t3sim.config.link import LinkSpec
from t3sim.config.machine import MachineSpec
from t3sim.errors import UsageError
from t3sim.gpu.core import Wires
from t3sim.program.operations import Gemm, Program, has_unlike_chunks
from t3sim.program.reach import reached_by, refuse_beyond_node
from t3sim.registry import Registry, nearest

Finding = tuple[str, str]  # key of the machine, message
PortsOf = Callable[[LinkSpec, int, int], tuple[Wires, ...]]
FindingsOf = Callable[[LinkSpec, int], Iterable[Finding]]


def nothing_wrong(link: LinkSpec, n: int) -> Iterable[Finding]:  # noqa: ARG001 - as others
    """Return no finding."""
    return ()


@dataclass(frozen=True)
class Fabric:
    """How GPUs are connected.

    ``ports`` (link, n, rank) are those of a GPU of *n*.  ``findings`` (link, n) say what keeps the link from connecting
    *n* GPUs so.  ``has_credits``: several GPUs may send to one, so what they may have on the way there is limited
    (``link.ingress_buffer``); False: a GPU hears of one other.  ``is_symmetric``: all GPUs have the same ports in their
    own frame, so that one may represent all (mirrored mode).  ``has_nodes``: GPUs of several nodes
    (``link.gpus_per_node``) are connected; False: all are on one.
    """

    name: str
    meaning: str
    ports: PortsOf
    findings: FindingsOf = nothing_wrong
    has_credits: bool = True
    is_symmetric: bool = True
    has_nodes: bool = False

    def reached(self, link: LinkSpec, n: int, rank: int = 0) -> tuple[int, ...]:
        """Return the distances of the GPUs that one of *n* can send to, in order."""
        return tuple(sorted(distance for port in self.ports(link, n, rank) for distance in port.distances))


fabrics: Registry[Fabric] = Registry("fabric", Fabric)


def fabric(
    name: str,
    *,
    meaning: str,
    findings: FindingsOf = nothing_wrong,
    has_credits: bool = True,
    is_symmetric: bool = True,
    has_nodes: bool = False,
) -> Callable[[PortsOf], PortsOf]:
    """Register the function below as the fabric *name*: it returns the ports (link, n, rank) of a GPU."""

    def add(ports: PortsOf) -> PortsOf:
        fabrics.register(name)(Fabric(name, meaning, ports, findings, has_credits, is_symmetric, has_nodes))
        return ports

    return add


def ranks_of(link: LinkSpec, n: int) -> Ranks:
    """Return *n* GPUs in the nodes of *link*."""
    return Ranks.of(n, link.gpus_per_node)


def findings_of(machine: MachineSpec, n: int) -> Iterator[Finding]:
    """Yield what keeps the links of *machine* from connecting *n* GPUs: key and message."""
    link = machine.link
    if link.topology not in fabrics:
        guess = nearest(link.topology, fabrics.names())
        hint = f"; did you mean `{guess}`?" if guess else f" (known: {', '.join(fabrics)})"
        yield "machine.link.topology", f"unknown fabric `{link.topology}`{hint}"
        return
    found = fabrics.get(link.topology)
    if found.has_credits and link.ingress_buffer is None:
        message = f"is {found.name}, which needs `link.ingress_buffer`: what one GPU may have on the way to another"
        yield "machine.link.topology", message
    per_node = link.gpus_per_node
    if per_node is not None and n > per_node and not found.has_nodes:
        message = f"is {per_node}, but {n} GPUs in `{found.name}` are on one node"
        yield "machine.link.gpus_per_node", f"{message}; take `link.topology: two-level`, or leave it out"
    elif not found.has_nodes and (link.nodes or 1) > 1:
        message = f"is {link.nodes}, but all GPUs in `{found.name}` are on one node"
        yield "machine.link.nodes", f"{message}; take `link.topology: two-level`, or leave it out"
    elif n > 1:
        yield from found.findings(link, n)
    if link.nic is not None and not found.has_nodes:
        message = f"is given, but all GPUs in `{found.name}` are on one node, and nothing is sent by it"
        yield "machine.link.nic", f"{message}; take `link.topology: two-level` and `gpus_per_node`, or leave it out"


def fabric_of(link: LinkSpec, n: int) -> Fabric:
    """Return the fabric of *link*; raise ``UsageError`` if it cannot connect *n* GPUs."""
    found = fabrics.get(link.topology)
    for key, message in found.findings(link, n) if n > 1 else ():
        raise UsageError(f"{key}: {message}")
    return found


def check_arrivals(link: LinkSpec, programs: Iterable[Program]) -> None:
    """Raise ``UsageError`` unless what arrives of *programs* is as many granules as are sent, where that is counted.

    With credits, each granule that is sent takes room at its receiver until it has arrived there.
    """
    gemms = [one for program in programs for one in program.operations if isinstance(one, Gemm)]
    if fabrics.get(link.topology).has_credits and any(map(has_unlike_chunks, gemms)):
        raise UsageError(
            f"machine.link.topology: in a fabric with credits ({link.topology}), a tile must be as large as the tile"
            " that it is sent to; take a shape whose chunks have the same tiles, or `ring`"
        )


def check_reach(link: LinkSpec, program: Program, rank: int = 0) -> None:
    """Raise ``UsageError`` unless GPU *rank* can send to all GPUs that *program* reaches."""
    refuse_beyond_node(program)
    reached = fabric_of(link, program.n).reached(link, program.n, rank)
    for distance in sorted(reached_by(program)):
        if distance not in reached:
            where = f"the GPU at distance {distance} of {program.n}"
            instead = "`switch`" if program.ranks.n_nodes == 1 else "`two-level`"
            message = f"is {link.topology}, which does not lead to {where}; take {instead}"
            raise UsageError(f"machine.link.topology: {message}")
