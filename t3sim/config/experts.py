"""Specs of a mixture-of-experts layer as a workload: its experts, where they are, and how tokens are routed to them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from t3sim.config.element_types import ELEMENT_TYPES, ElementName
from t3sim.config.spec import Count, CountOrZero, Spec, Unit

Elements = Annotated[Count, Unit("elements")]
RoutingKind = Literal["balanced", "uniform", "power-law", "power-law-sampled", "zipf", "recorded"]
WITH_EXPONENT: tuple[RoutingKind, ...] = ("power-law", "power-law-sampled", "zipf")
ALIKE: tuple[RoutingKind, ...] = ("balanced", "uniform")  # one GPU may represent all
WITH_SEED: tuple[RoutingKind, ...] = ("uniform", "power-law", "power-law-sampled", "zipf")
MAX_CHOICES = 1 << 26  # of all tokens together: a routing is held in memory
Finding = tuple[str, str]  # dotted key, message


class RoutingSpec(Spec):
    """How tokens choose their experts (``t3sim.workload.routing``)."""

    kind: RoutingKind = Field(
        "balanced",
        description="Law of the routing: `balanced` (even, nothing random), `uniform` (every expert equally likely), "
        "`power-law` (loads of experts from a power law), `power-law-sampled` (weights of experts from a power law, "
        "each token draws by them), `zipf` (loads proportional to 1 / rank^exponent) or `recorded` (from `file`).",
    )
    exponent: Annotated[float, Field(ge=0, le=20, strict=True)] | None = Field(
        None, description="Exponent of a power law or of `zipf`; 0 is uniform."
    )
    seed: CountOrZero = Field(0, description="Seed of the random numbers; another one is another draw of the same law.")
    file: str | None = Field(
        None, description="Path of a recorded routing: CSV or `.npz` (docs/users/workloads.md has the formats)."
    )
    digest: str = Field("", description="SHA-256 of the recorded routing; filled in when the file is read.")
    capacity_factor: Annotated[float, Field(gt=0, le=1024)] | None = Field(
        None,
        description="Capacity of an expert for one GPU's rows, relative to an even share; rows beyond it are dropped. "
        "If omitted, no token is dropped.",
    )

    @property
    def text(self) -> str:
        """The law and its exponent in one word, like ``power_law_1.2``; of a recorded routing ``recorded``."""
        word = self.kind.replace("-", "_")
        return word if self.exponent is None else f"{word}_{self.exponent:g}"


def routing_called(text: str) -> RoutingSpec:
    """Return the routing that a text such as ``power_law_1.2`` calls; raises ``ValueError`` if there is none."""
    word, _, exponent = text.replace("-", "_").rpartition("_")
    name = (word if word and exponent[:1].isdecimal() else text).replace("_", "-")
    kind = next((one for one in get_args(RoutingKind) if one == name and one != "recorded"), None)
    if kind is None:
        known = "balanced, uniform, zipf_1, power_law_1.2, power_law_sampled_1.9"
        raise ValueError(f"routing {text[:40]!r} is not known; others are like {known}")
    try:
        number = float(exponent) if name != text.replace("_", "-") else None
        routing = RoutingSpec(kind=kind, exponent=number)
    except ValueError:
        raise ValueError(f"routing {text[:40]!r}: {exponent!r} is no exponent from 0 to 20") from None
    for _, message in _of_routing(routing):
        raise ValueError(f"routing {text[:40]!r}: {message}")
    return routing


class ExpertsFields(Spec):
    """A mixture-of-experts layer on ``ep`` x ``tp`` GPUs: dispatch, two grouped GEMMs, combine.

    Experts are placed in blocks: expert e is in group e // (n_experts / ep) of ``tp`` GPUs, which share its
    intermediate size.  Every GPU has as many tokens.
    """

    n_experts: Count = Field(description="Number of routed experts.")
    top_k: Count = Field(description="Experts of a token.")
    hidden: Elements = Field(description="Hidden size: elements of a token.")
    intermediate: Elements = Field(description="Intermediate size of an expert.")
    tokens_per_gpu: Annotated[Count, Unit("tokens")] = Field(description="Tokens of each GPU before dispatch.")
    ep: Count = Field(description="Expert-parallel degree: groups of GPUs that share the experts.")
    tp: Count = Field(1, description="Tensor-parallel degree of an expert: GPUs that share its intermediate size.")
    gated: bool = Field(True, description="Gated experts: the first GEMM makes gate and up projection together.")
    shared_intermediate: Elements | None = Field(
        None,
        description="Intermediate size of all shared experts together, which every GPU computes for its own tokens, as "
        "rows of the grouped GEMMs: a multiple of `intermediate` / `tp`. "
        "If omitted, there is no shared expert.",
    )
    groups: Count | None = Field(None, description="Groups of experts for group-limited routing. If omitted, one.")
    top_groups: Count | None = Field(None, description="Groups that the experts of a token may come from.")
    element: ElementName = Field("fp16", description="Element type of the rows that the grouped GEMMs multiply.")
    weights: ElementName | None = Field(
        None, description="Element type of the experts' weights, if narrower than `element`."
    )
    dispatch_element: ElementName | None = Field(
        None, description="Element type of a row during dispatch. If omitted, `element`."
    )
    combine_element: ElementName = Field("bf16", description="Element type of a row during combine.")
    routing: RoutingSpec = Field(default_factory=RoutingSpec, description="How tokens choose their experts.")

    @property
    def gpus(self) -> int:
        """GPUs of the layer."""
        return self.ep * self.tp

    @property
    def experts_per_gpu(self) -> int:
        """Experts in the memory of one GPU."""
        return self.n_experts // self.ep

    @property
    def sent_element(self) -> ElementName:
        """Element type of a row during dispatch."""
        return self.dispatch_element or self.element

    @property
    def local_intermediate(self) -> int:
        """Intermediate size of an expert on one GPU."""
        return self.intermediate // self.tp

    @property
    def n_shared(self) -> int:
        """Experts of the size of a routed one's part on a GPU that all shared experts together are."""
        return (self.shared_intermediate or 0) // self.local_intermediate


class ExpertsSpec(ExpertsFields):
    """The same, of values that fit together; raises ``ValueError`` if they do not."""

    @model_validator(mode="after")
    def _fits(self) -> ExpertsSpec:
        for key, message in experts_findings(self):
            raise ValueError(f"`{key}` {message}")
        return self


def experts_spec(**fields: Any) -> ExpertsSpec:
    """Return the layer with these *fields*; raises ``ValueError`` with one sentence if they do not fit together."""
    for key, message in experts_findings(ExpertsFields(**fields)):
        raise ValueError(f"{key} {message}")
    return ExpertsSpec(**fields)


def experts_findings(experts: ExpertsFields) -> Iterator[Finding]:
    """Yield what does not fit together: dotted key and message."""
    if experts.top_k > experts.n_experts:
        yield "top_k", f"is {experts.top_k}, but there are {experts.n_experts} experts"
    if experts.n_experts % experts.ep:
        common = math.gcd(experts.n_experts, experts.ep)
        slices = experts.tp * experts.ep // common  # on as many GPUs
        hint = "" if experts.intermediate % slices else f"; take `ep: {common}` and `tp: {slices}`, slices of experts"
        yield "ep", f"is {experts.ep}, which does not divide n_experts ({experts.n_experts}){hint}"
    if experts.intermediate % experts.tp:
        yield "tp", f"is {experts.tp}, which does not divide intermediate ({experts.intermediate})"
    yield from _of_groups(experts)
    yield from ((f"routing.{key}", message) for key, message in _of_routing(experts.routing))
    if ELEMENT_TYPES[experts.element].is_for_weights:
        yield "element", f"is {experts.element}, a type of weights; give `element: bf16`, `weights: {experts.element}`"
    if experts.weights is not None and ELEMENT_TYPES[experts.weights].bits > ELEMENT_TYPES[experts.element].bits:
        yield "weights", f"is {experts.weights}, wider than element ({experts.element})"
    choices = experts.gpus * experts.tokens_per_gpu * experts.top_k
    if choices > MAX_CHOICES:
        yield "tokens_per_gpu", f"is {experts.tokens_per_gpu}: {choices} choices of all tokens, at most {MAX_CHOICES}"
    if experts.groups is not None and experts.routing.kind in ("power-law", "zipf"):
        instead = "`power-law-sampled` and `uniform` do"
        yield "routing.kind", f"is `{experts.routing.kind}`, which fixes loads and takes no `groups`; {instead}"


def _of_routing(routing: RoutingSpec) -> Iterator[Finding]:
    if routing.kind in WITH_EXPONENT and routing.exponent is None:
        yield "kind", f"is `{routing.kind}`, which needs `exponent`"
    if routing.kind not in WITH_EXPONENT and routing.exponent is not None:
        yield "exponent", f"is of no effect with `kind: {routing.kind}`; remove it"
    if routing.kind == "recorded" and routing.file is None:
        yield "kind", "is `recorded`, which needs `file`"
    if routing.kind != "recorded" and routing.file is not None:
        yield "file", f"is of no effect with `kind: {routing.kind}`; write `kind: recorded`"
    if routing.kind not in WITH_SEED and routing.seed:
        yield "seed", f"is of no effect with `kind: {routing.kind}`; remove it"


def _of_groups(experts: ExpertsFields) -> Iterator[Finding]:
    groups, top_groups = experts.groups, experts.top_groups
    if groups is None:
        if top_groups is not None:
            yield "top_groups", "needs `groups`"
        return
    if experts.n_experts % groups:
        yield "groups", f"is {groups}, which does not divide n_experts ({experts.n_experts})"
    elif top_groups is None:
        yield "groups", "needs `top_groups`"
    elif top_groups > groups:
        yield "top_groups", f"is {top_groups}, but there are {groups} groups"
    elif -(-experts.top_k // top_groups) > experts.n_experts // groups:
        yield "top_groups", f"is {top_groups}: {top_groups} groups have too few experts for top_k ({experts.top_k})"
