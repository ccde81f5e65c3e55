"""Two levels: nodes of GPUs behind a switch, or in a mesh, and a network interface of each GPU.

The network interface of a GPU leads to all GPUs of the other nodes; collectives use those of the same number, its rail.
Leaves out: switches of the network as a limit, so each pair of GPUs has the whole rate of the interface; traffic from
a GPU through the network interface of another one.
"""

from collections.abc import Iterator

from t3sim.config.link import LinkSpec
from t3sim.fabric.interface import Finding, fabric, ranks_of
from t3sim.fabric.mesh import findings as findings_of_mesh
from t3sim.gpu.core import Wires


def findings(link: LinkSpec, n: int) -> Iterator[Finding]:
    """Yield what keeps the nodes from being alike, or connected."""
    per_node = link.gpus_per_node
    if per_node is None:
        yield "machine.link.topology", "is two-level, which needs `link.gpus_per_node`: the GPUs of a node"
        return
    if link.ports > 1:
        yield from findings_of_mesh(link, min(n, per_node))
    if link.nodes is not None and link.nodes * per_node != n:
        message = f"is {link.nodes}: nodes of {per_node} GPUs (`link.gpus_per_node`) are {link.nodes * per_node} GPUs"
        yield "machine.link.nodes", f"{message}, and the workload has {n}; take as many GPUs, or leave `nodes` out"
    elif n > per_node and n % per_node:
        message = f"is {per_node}, and {n} GPUs do not fill nodes of as many: rails would be unequal"
        yield "machine.link.gpus_per_node", f"{message}; take a multiple of {per_node} GPUs"
    if n > per_node and link.nic is None:
        message = f"is two-level, and {n} GPUs are more than a node of {per_node}, but GPUs have no network interface"
        yield "machine.link.topology", f"{message}; give `link.nic`"


@fabric("two-level", meaning="nodes of GPUs, and a network interface of each GPU", findings=findings, has_nodes=True)
def two_level(link: LinkSpec, n: int, rank: int) -> tuple[Wires, ...]:  # noqa: ARG001 - all are alike
    """Return the port, or ports, to the GPUs of the node, and the one to the network."""
    per_node = ranks_of(link, n).per_node
    inside = tuple(range(1, per_node))
    ports = [Wires((d,), link.latency) for d in inside] if link.ports > 1 else [Wires(inside, link.latency)]
    if n > per_node and link.nic is not None:
        ports.append(Wires(tuple(range(per_node, n)), link.nic.latency, link.nic))
    return tuple(ports)
