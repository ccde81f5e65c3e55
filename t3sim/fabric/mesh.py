"""Full mesh: a link of its own to each other GPU (AMD's Infinity Fabric between eight GPUs)."""

from collections.abc import Iterator

from t3sim.config.link import LinkSpec
from t3sim.fabric.interface import Finding, fabric
from t3sim.gpu.core import Wires


def findings(link: LinkSpec, n: int) -> Iterator[Finding]:
    """Yield that the mesh falls into parts: GPUs have fewer links than there are other GPUs."""
    if n - 1 > link.ports:
        joined = f"{link.ports} link{'s' if link.ports > 1 else ''} of a GPU connect {link.ports + 1} GPUs directly"
        message = f"is {link.ports}, and a mesh of {n} GPUs needs {n - 1}: {joined}, and nothing forwards"
        yield "machine.link.ports", f"{message}; take fewer GPUs, or `link.topology: switch`"


@fabric("mesh", meaning="a link to each other GPU", findings=findings)
def mesh(link: LinkSpec, n: int, rank: int) -> tuple[Wires, ...]:  # noqa: ARG001 - all are alike
    """Return a port for each other GPU."""
    return tuple(Wires((distance,), link.latency) for distance in range(1, n))
