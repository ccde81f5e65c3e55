"""Switch: a port to, and one from, a switch that connects all GPUs and may multicast and reduce (`link.multicast`)."""

from t3sim.config.link import LinkSpec
from t3sim.fabric.interface import fabric
from t3sim.gpu.core import Wires


@fabric("switch", meaning="a port to a switch that connects all GPUs")
def switch(link: LinkSpec, n: int, rank: int) -> tuple[Wires, ...]:  # noqa: ARG001 - all are alike
    """Return the port to the switch."""
    return (Wires(tuple(range(1, n)), link.latency),)
