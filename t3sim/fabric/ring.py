"""Ring: one direction of a link to the neighbour, GPU d to GPU d - 1."""

from t3sim.config.link import LinkSpec
from t3sim.fabric.interface import fabric
from t3sim.gpu.core import Wires


@fabric("ring", meaning="a link to one neighbour", has_credits=False)
def ring(link: LinkSpec, n: int, rank: int) -> tuple[Wires, ...]:  # noqa: ARG001 - all are alike
    """Return the port to the GPU before; nothing else leads to that one, so no more arrives than its wire carries."""
    return (Wires((n - 1,) if n > 1 else (), link.latency),)
