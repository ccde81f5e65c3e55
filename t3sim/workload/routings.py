"""The routing of a layer of routed experts, generated or recorded."""

from t3sim.config.experts import ExpertsSpec
from t3sim.workload.routing import Routing, with_capacity
from t3sim.workload.routing_file import read_routing
from t3sim.workload.routing_laws import generated


def routing_of(spec: ExpertsSpec) -> Routing:
    """Return the routing of *spec*; a recorded one is read from its file.

    Raises ``ValueError`` if it cannot be, and ``InputDataError`` for a file that holds none.
    """
    law = spec.routing
    if law.kind == "recorded":
        assert law.file is not None  # RoutingSpec
        found = read_routing(law.file, spec)
    else:
        found = Routing(generated(spec), spec.n_experts, spec.ep)
    if law.capacity_factor is None:
        return found
    kept = with_capacity(found.experts, spec.n_experts, law.capacity_factor)
    return Routing(kept, spec.n_experts, spec.ep, found.weights)
