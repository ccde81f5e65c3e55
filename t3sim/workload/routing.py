"""Which experts each token of a mixture-of-experts layer goes to, as data.

A ``Routing`` holds the choices of every token of every GPU.  Experts are placed in blocks: with ``ep`` groups of GPUs,
expert *e* lives on group *e* // (n_experts // ep).  Routings are generated (``routing_of``) from the kinds below, or
read from a file (``t3sim.workload.routing_file``).

- ``balanced``: choices are dealt round-robin over GPUs and, on each GPU, over its experts.  Loads of experts, and of
  pairs of GPUs, differ by at most one row; nothing is random.
- ``uniform``: each token draws ``top_k`` different experts, all equally likely.
- ``power-law``: loads of the experts are drawn from a power law between 1 and 0.8 x tokens (0.01 and 2 if there are
  fewer rows than experts), scaled to the number of rows and rounded; whole tokens are dealt to GPUs in random order.
- ``power-law-sampled``: weights of the experts are drawn from a power law between 1 and 1024, and each token draws
  ``top_k`` different experts by these weights.
- ``zipf``: loads of the experts are proportional to 1 / rank ** exponent, rounded down; the first expert has the rest.

The two power laws are those of ``power_law_*`` and ``power_law_sampled_*`` in the tables of NVIDIA aiconfigurator
(``collector/helper.py``, ``collector/sglang/dsv4_megamoe_workload.py``), where the block with the largest load is
exchanged with the first.  Draws are of NumPy's generator: the law is the same, the numbers are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from t3sim.config.experts import ExpertsSpec, RoutingSpec

DROPPED = -1
POWER_LAW_SAMPLED_MAX = 1024.0
TOKENS_AT_A_TIME = 4096  # that draw their experts together: bounds the memory of one draw

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LoadClass:
    """GPUs with about the same load, and the one that is simulated for them: the most loaded of the class."""

    gpus: tuple[int, ...]
    representative: int


@dataclass(frozen=True, eq=False)
class Routing:
    """The experts of each token: ``experts[g, t, j]`` is the j-th choice of token t of GPU g, or ``DROPPED``.

    ``weights`` has the same shape; None means equal weights.  Raises ``ValueError`` if a choice is no expert, a token
    chooses an expert twice, or experts cannot be placed in equal blocks.
    """

    experts: npt.NDArray[np.int32]
    n_experts: int
    ep: int = 0  # groups of GPUs over which the experts are distributed; 0: one for each GPU
    weights: npt.NDArray[np.float64] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.experts.ndim != 3:
            raise ValueError("choices have the shape (GPUs, tokens of a GPU, top_k)")
        if self.ep == 0:
            object.__setattr__(self, "ep", self.n_gpus)
        if self.n_experts % self.ep:
            raise ValueError(f"{self.n_experts} experts are not divisible by ep ({self.ep})")
        if self.n_gpus % self.ep:
            raise ValueError(f"{self.n_gpus} GPUs are not divisible by ep ({self.ep})")
        if self.weights is not None and self.weights.shape != self.experts.shape:
            raise ValueError(f"weights have the shape {self.weights.shape}, choices {self.experts.shape}")
        for gpu, token, what in faults(self.experts, self.n_experts):
            raise ValueError(f"GPU {gpu}, token {token}: {what}")

    @property
    def n_gpus(self) -> int:
        """GPUs that tokens come from."""
        return int(self.experts.shape[0])

    @property
    def tokens_per_gpu(self) -> int:
        """Tokens of each GPU."""
        return int(self.experts.shape[1])

    @property
    def top_k(self) -> int:
        """Experts that a token asks for."""
        return int(self.experts.shape[2])

    @property
    def experts_per_gpu(self) -> int:
        """Experts in the memory of one GPU."""
        return self.n_experts // self.ep

    @property
    def gpus_of_a_group(self) -> int:
        """GPUs that share the experts of a block (tensor parallelism of the experts)."""
        return self.n_gpus // self.ep

    @property
    def n_dropped(self) -> int:
        """Choices that are not computed."""
        return int((self.experts == DROPPED).sum())

    def rows(self) -> Ints:
        """Return the rows from each source GPU for each expert, of shape (n_gpus, n_experts)."""
        found = np.zeros((self.n_gpus, self.n_experts + 1), np.int64)
        for gpu in range(self.n_gpus):
            found[gpu] = np.bincount(self.experts[gpu].ravel() + 1, minlength=self.n_experts + 1)
        return found[:, 1:]

    def rows_between(self) -> Ints:
        """Return the rows from each source GPU for all experts of each destination GPU, of shape (n_gpus, n_gpus)."""
        blocks = self.rows().reshape(self.n_gpus, self.ep, self.experts_per_gpu).sum(axis=2)
        return np.repeat(blocks, self.gpus_of_a_group, axis=1)

    def tokens_between(self) -> Ints:
        """Return the different tokens from each source to each destination GPU, of shape (n_gpus, n_gpus).

        A token with several experts on one GPU counts once; a GPU's tokens for its own experts are on the diagonal.
        """
        found = np.zeros((self.n_gpus, self.ep), np.int64)
        for gpu in range(self.n_gpus):
            for start in range(0, self.tokens_per_gpu, TOKENS_AT_A_TIME):
                part = self.experts[gpu, start : start + TOKENS_AT_A_TIME]
                hit = np.zeros((part.shape[0], self.ep + 1), bool)
                home = np.where(part == DROPPED, self.ep, part // self.experts_per_gpu)
                np.put_along_axis(hit, home, True, axis=1)
                found[gpu] += hit[:, : self.ep].sum(axis=0)
        return np.repeat(found, self.gpus_of_a_group, axis=1)

    def loads(self) -> Ints:
        """Return the rows that each GPU computes for each of its experts, of shape (n_gpus, experts_per_gpu)."""
        blocks = self.rows().sum(axis=0).reshape(self.ep, self.experts_per_gpu)
        return np.repeat(blocks, self.gpus_of_a_group, axis=0)

    def imbalance(self) -> float:
        """Return the rows of the most loaded GPU over the mean of all GPUs; 1 if nothing is routed."""
        loads = self.loads().sum(axis=1)
        mean = float(loads.mean())
        return float(loads.max()) / mean if mean else 1.0

    def load_classes(self, tolerance: float = 0.0) -> tuple[LoadClass, ...]:
        """Return the GPUs in classes of equal load, the most loaded class first.

        Without *tolerance*, GPUs of a class compute the same rows for each of their experts, and send and receive the
        same numbers of tokens at each distance: one of them stands for all.  With it, GPUs whose rows differ by at
        most that share from the most loaded of their class are one class.
        """
        loads = self.loads()
        total = loads.sum(axis=1)
        if tolerance == 0.0:
            tokens = self.tokens_between()
            around = (np.arange(self.n_gpus)[:, None] + np.arange(self.n_gpus)) % self.n_gpus
            sent = np.take_along_axis(tokens, around, axis=1)
            received = np.take_along_axis(tokens.T, around, axis=1)
            members: dict[bytes, list[int]] = {}
            for gpu in range(self.n_gpus):
                key = np.concatenate((loads[gpu], sent[gpu], received[gpu])).tobytes()
                members.setdefault(key, []).append(gpu)
            found = [LoadClass(tuple(gpus), gpus[0]) for gpus in members.values()]
            return tuple(sorted(found, key=lambda one: (-total[one.representative], one.representative)))
        classes: list[list[int]] = []
        for gpu in sorted(range(self.n_gpus), key=lambda gpu: (-total[gpu], gpu)):
            if classes and total[gpu] >= total[classes[-1][0]] * (1.0 - tolerance):
                classes[-1].append(gpu)
            else:
                classes.append([gpu])
        return tuple(LoadClass(tuple(sorted(gpus)), gpus[0]) for gpus in classes)


def faults(experts: npt.NDArray[np.int32], n_experts: int) -> Iterator[tuple[int, int, str]]:
    """Yield GPU, token and fault of each token whose choices are impossible."""
    strange = (experts < DROPPED) | (experts >= n_experts)
    ordered = np.sort(experts, axis=2)
    twice = ((ordered[:, :, 1:] == ordered[:, :, :-1]) & (ordered[:, :, 1:] != DROPPED)).any(axis=2)
    for gpu, token in np.argwhere(strange.any(axis=2) | twice).tolist():
        choices = experts[gpu, token]
        bad = [int(one) for one in choices if one < DROPPED or one >= n_experts]
        if bad:
            yield gpu, token, f"expert {bad[0]} has no GPU: experts are numbered 0 to {n_experts - 1}"
        else:
            kept = np.sort(choices[choices != DROPPED])
            yield gpu, token, f"expert {int(kept[:-1][kept[1:] == kept[:-1]][0])} is chosen twice"


def routing_of(spec: ExpertsSpec) -> Routing:
    """Return the routing that *spec* asks for; a recorded one is read from its file.

    Raises ``ValueError`` if it cannot be, and ``InputDataError`` for a file that holds none.
    """
    law = spec.routing
    if law.kind == "recorded":
        from t3sim.workload.routing_file import read_routing

        assert law.file is not None  # RoutingSpec
        found = read_routing(law.file, spec)
    else:
        found = Routing(_generated(spec, law), spec.n_experts, spec.ep)
    if law.capacity_factor is None:
        return found
    kept = with_capacity(found.experts, spec.n_experts, law.capacity_factor)
    return Routing(kept, spec.n_experts, spec.ep, found.weights)


def with_capacity(experts: npt.NDArray[np.int32], n_experts: int, factor: float) -> npt.NDArray[np.int32]:
    """Return *experts* where each GPU sends an expert at most ``ceil(factor x rows of the GPU / n_experts)`` rows.

    The capacity is that of Megatron-Core (``moe_expert_capacity_factor``): later tokens of a GPU are dropped first.
    """
    n_gpus, tokens, top_k = experts.shape
    capacity = int(np.ceil(factor * tokens * top_k / n_experts))
    kept = experts.copy()
    for gpu in range(n_gpus):
        flat = kept[gpu].reshape(-1)
        order = np.argsort(flat, kind="stable")
        chosen = flat[order]
        first = np.searchsorted(chosen, chosen)
        flat[order[np.arange(len(flat)) - first >= capacity]] = DROPPED
    return kept


def choices_from_rows(rows: Ints, tokens: int, top_k: int) -> npt.NDArray[np.int32]:
    """Return choices of shape (tokens, top_k) with ``rows[e]`` choices of expert e, each by another token.

    Experts are laid out one after the other, the most loaded first, over the tokens' first choices, then the second
    ones, and so on.  What is left over is ``DROPPED``.  Raises ``ValueError`` if it cannot be done.
    """
    if int(rows.sum()) > tokens * top_k:
        raise ValueError(
            f"sums to {int(rows.sum())} rows, but {tokens} tokens with {top_k} experts each are {tokens * top_k}"
        )
    if int(rows.max(initial=0)) > tokens:
        raise ValueError(f"expert {int(rows.argmax())} has {int(rows.max())} rows, but there are {tokens} tokens")
    order = np.argsort(-rows, kind="stable")
    laid = np.full(tokens * top_k, DROPPED, np.int32)
    laid[: int(rows.sum())] = np.repeat(order, rows[order])
    return laid.reshape(top_k, tokens).T.copy()


def _generated(spec: ExpertsSpec, law: RoutingSpec) -> npt.NDArray[np.int32]:
    n_gpus, tokens, top_k, n_experts = spec.gpus, spec.tokens_per_gpu, spec.top_k, spec.n_experts
    shape = (n_gpus, tokens, top_k)
    if law.kind == "balanced":
        return _balanced(spec).reshape(shape)
    random = np.random.default_rng(law.seed)
    if law.kind in ("power-law", "zipf"):
        loads = _power_law_loads if law.kind == "power-law" else _zipf_loads
        choices = choices_from_rows(loads(spec, law.exponent or 0.0, random), n_gpus * tokens, top_k)
        return _largest_block_first(random.permutation(choices), spec).reshape(shape)
    if law.kind == "uniform":
        return _drawn(np.zeros(n_experts), spec, random).reshape(shape)
    weights = _inverse_power_law(random, n_experts, law.exponent or 0.0, 1.0, POWER_LAW_SAMPLED_MAX)
    return _largest_block_first(_drawn(np.log(weights), spec, random), spec).reshape(shape)


def _balanced(spec: ExpertsSpec) -> npt.NDArray[np.int32]:
    """Deal choices round-robin: over the groups a token may use, then over GPUs, then over the experts of each."""
    n_rows = spec.gpus * spec.tokens_per_gpu * spec.top_k
    if spec.groups is None or spec.top_groups is None or spec.top_groups >= spec.groups:
        position = np.arange(n_rows, dtype=np.int64) % spec.n_experts
        per_block = spec.n_experts // spec.ep
        return ((position % spec.ep) * per_block + position // spec.ep).astype(np.int32)
    n_tokens = spec.gpus * spec.tokens_per_gpu
    token = np.arange(n_tokens, dtype=np.int64)[:, None]
    choice = np.arange(spec.top_k, dtype=np.int64)[None, :]
    cycle = spec.groups // math.gcd(spec.groups, spec.top_groups)  # tokens after which the same groups come again
    chosen = (choice + token // cycle * spec.top_k) % spec.top_groups
    group = ((token * spec.top_groups + chosen) % spec.groups).ravel()
    order = np.argsort(group, kind="stable")
    before = np.empty(n_rows, np.int64)  # choices of the same group before each
    before[order] = np.arange(n_rows) - np.searchsorted(group[order], group[order])
    per_group = spec.n_experts // spec.groups
    return (group * per_group + before % per_group).astype(np.int32)


def _drawn(
    log_weights: npt.NDArray[np.float64], spec: ExpertsSpec, random: np.random.Generator
) -> npt.NDArray[np.int32]:
    """Draw the experts of every token without replacement by weight: the largest of log weight + Gumbel noise.

    With groups, a token first takes the groups with the largest sums of their two best scores (DeepSeek-V3).
    """
    n_tokens = spec.gpus * spec.tokens_per_gpu
    found = np.empty((n_tokens, spec.top_k), np.int32)
    for start in range(0, n_tokens, TOKENS_AT_A_TIME):
        n = min(TOKENS_AT_A_TIME, n_tokens - start)
        score = log_weights - np.log(-np.log(random.random((n, spec.n_experts))))
        if spec.groups is not None and spec.top_groups is not None and spec.top_groups < spec.groups:
            of_groups = score.reshape(n, spec.groups, -1)
            best = np.sort(of_groups, axis=2)[:, :, -2:].sum(axis=2)
            left_out = np.argsort(-best, axis=1, kind="stable")[:, spec.top_groups :]
            np.put_along_axis(of_groups, left_out[:, :, None], -np.inf, axis=1)
        found[start : start + n] = np.argsort(-score, axis=1, kind="stable")[:, : spec.top_k]
    return found


def _power_law_loads(spec: ExpertsSpec, exponent: float, random: np.random.Generator) -> Ints:
    n_tokens = spec.gpus * spec.tokens_per_gpu
    n_rows = n_tokens * spec.top_k
    least, most = (1.0, n_tokens * 0.8) if n_rows > spec.n_experts else (0.01, 2.0)
    drawn = _inverse_power_law(random, spec.n_experts, exponent, least, max(most, least))
    loads = np.rint(drawn / drawn.sum() * n_rows).astype(np.int64)
    return _summing_to(n_rows, np.minimum(loads, n_tokens), n_tokens)


def _zipf_loads(spec: ExpertsSpec, exponent: float, random: np.random.Generator) -> Ints:
    del random  # the law says it all
    n_tokens = spec.gpus * spec.tokens_per_gpu
    share = 1.0 / np.arange(1, spec.n_experts + 1) ** exponent
    loads = np.floor(share / share.sum() * n_tokens * spec.top_k).astype(np.int64)
    loads[0] += n_tokens * spec.top_k - int(loads.sum())
    return _summing_to(n_tokens * spec.top_k, np.minimum(loads, n_tokens), n_tokens)


def _summing_to(n_rows: int, loads: Ints, most: int) -> Ints:
    """Return *loads* that sum to *n_rows*, none above *most*: the largest are raised first, the smallest lowered."""
    loads = loads.copy()
    order = np.argsort(-loads, kind="stable")
    while (missing := n_rows - int(loads.sum())) != 0:
        able = order[loads[order] < most] if missing > 0 else order[::-1][loads[order[::-1]] > 0]
        loads[able[: abs(missing)]] += 1 if missing > 0 else -1
    return loads


def _inverse_power_law(
    random: np.random.Generator, n: int, exponent: float, least: float, most: float
) -> npt.NDArray[np.float64]:
    """Draw *n* values between *least* and *most* with a density proportional to x ** -exponent."""
    share = random.random(n)
    if exponent == 1.0:
        return least * (most / least) ** share
    power = 1.0 - exponent
    return np.asarray(((most**power - least**power) * share + least**power) ** (1.0 / power), np.float64)


def _largest_block_first(choices: npt.NDArray[np.int32], spec: ExpertsSpec) -> npt.NDArray[np.int32]:
    """Exchange the block of experts with the largest load and the first, so that GPU 0 is the most loaded."""
    per_block = spec.n_experts // spec.ep
    block = choices // per_block
    largest = int(np.bincount(block.ravel(), minlength=spec.ep).argmax())
    shift = largest * per_block
    return np.where(block == 0, choices + shift, np.where(block == largest, choices - shift, choices)).astype(np.int32)
