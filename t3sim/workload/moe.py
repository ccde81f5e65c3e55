"""The mixture-of-experts sublayer of a model: dispatch, two grouped GEMMs, combine, as fields of ``ExpertsSpec``."""

from typing import Any

import numpy as np

from t3sim.config.experiment import GemmShape, ModelSpec
from t3sim.config.experts import ExpertsSpec, experts_spec
from t3sim.workload.operands import bytes_of_a, bytes_of_b
from t3sim.workload.routing import Routing
from t3sim.workload.simulated_types import simulated_types
from t3sim.workload.sublayers import EXPERTS


def experts_of(model: ModelSpec) -> dict[str, Any]:
    """Return the fields of ``ExpertsSpec`` that *model* states; raises ``ValueError`` if it has no routed experts."""
    moe = model.moe
    if moe is None:
        raise ValueError(f"{model.name} {EXPERTS}: these layers have no routed experts")
    stated = {
        "n_experts": moe.experts, "top_k": moe.top_k, "hidden": model.hidden,
        "intermediate": moe.intermediate, "gated": model.gated, "shared_intermediate": moe.shared_intermediate,
    }  # fmt: skip
    if moe.groups is not None and moe.top_groups is not None and moe.groups > 1:
        stated |= {"groups": moe.groups, "top_groups": moe.top_groups}
    if model.elements is not None:
        stated |= simulated_types(model.elements.experts)
    return {name: value for name, value in stated.items() if value is not None}


def experts_on(model: ModelSpec, gpus: int, **given: Any) -> ExpertsSpec:
    """Return the experts of *model* on *gpus* GPUs, each with its share of the model's tokens, rounded up.

    *given* has values that replace or add to those of the model.  Raises ``ValueError`` if they cannot be placed so.
    """
    fields = {"ep": gpus, "tokens_per_gpu": tokens_of_a_gpu(model.tokens, gpus), **experts_of(model), **given}
    if "top_k" not in fields:
        raise ValueError(f"{model.name} {EXPERTS}: the model does not say how many experts a token has")
    try:
        return experts_spec(**fields)
    except ValueError as error:
        raise ValueError(f"{model.name} {EXPERTS}: {error}") from None


def tokens_of_a_gpu(tokens: int, gpus: int) -> int:
    """Return the tokens of each of *gpus* GPUs that share *tokens*; some may be padding."""
    return -(-tokens // gpus)


def mean_rows(experts: ExpertsSpec) -> int:
    """Return the rows of an expert in an even routing, at least one."""
    return max(experts.gpus * experts.tokens_per_gpu * experts.top_k // experts.n_experts, 1)


def gemms_of(experts: ExpertsSpec, rows: int) -> tuple[GemmShape, GemmShape]:
    """Return the two GEMMs that one GPU computes for *rows* rows of an expert: to its intermediate size, and back.

    Of gated experts, the first makes the gate and the up projection.  With tensor parallelism a GPU has columns of the
    first and sums of a part of k of the second.
    """
    return _gemms(experts, rows, experts.local_intermediate)


def shared_gemms_of(experts: ExpertsSpec) -> tuple[GemmShape, ...]:
    """Return the GEMMs of the shared experts for the tokens of one GPU; none without shared experts."""
    if experts.shared_intermediate is None:
        return ()
    return _gemms(experts, experts.tokens_per_gpu, experts.shared_intermediate)


def _gemms(experts: ExpertsSpec, rows: int, width: int) -> tuple[GemmShape, GemmShape]:
    types: dict[str, Any] = {"element": experts.element, "weights": experts.weights}
    first = GemmShape(m=rows, n=width * (2 if experts.gated else 1), k=experts.hidden, **types)
    return first, GemmShape(m=rows, n=experts.hidden, k=width, **types)


def weight_bytes(experts: ExpertsSpec) -> int:
    """Return the bytes of the weights of all routed and shared experts of the layer on one GPU."""
    gemms = [*experts.experts_per_gpu * gemms_of(experts, 1), *shared_gemms_of(experts)]
    return sum(bytes_of_b(gemm, gemm.n * gemm.k) for gemm in gemms)


def exchanged_bytes(experts: ExpertsSpec, routing: Routing) -> tuple[int, int]:
    """Return the most bytes that leave a GPU in dispatch and in combine if a token goes to a GPU once."""
    tokens = routing.tokens_between()
    others = tokens - np.diag(np.diag(tokens))
    sent, returned = (
        GemmShape(m=1, n=1, k=1, element=element) for element in (experts.sent_element, experts.combine_element)
    )
    rows = int(others.sum(axis=1).max()), int(others.sum(axis=0).max())
    return bytes_of_a(sent, rows[0] * experts.hidden), bytes_of_a(returned, rows[1] * experts.hidden)
