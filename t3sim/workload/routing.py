"""Which experts each token of a mixture-of-experts layer goes to, as data.

A ``Routing`` holds the choices of every token of every GPU.  Experts are placed in blocks: with ``ep`` groups of GPUs,
expert *e* lives on group *e* // (n_experts // ep).  ``routings.routing_of`` makes the routing of a layer: by
a law (``routing_laws``), or from a file (``routing_file``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

DROPPED = -1
TOKENS_AT_A_TIME = 4096  # that are counted together: bounds the memory needed

Ints = npt.NDArray[np.int64]


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
        """Experts that a token chooses."""
        return int(self.experts.shape[2])

    @property
    def experts_per_gpu(self) -> int:
        """Experts in the memory of one GPU."""
        return self.n_experts // self.ep

    @property
    def gpus_of_a_group(self) -> int:
        """GPUs that share the experts of a block (tensor parallelism of the experts)."""
        return self.n_gpus // self.ep

    def placed(self, n_shared: int = 0) -> Routing:
        """Return the routing to what one GPU has of an expert: a slice of each expert of its group, and shared experts.

        A slice, and each of *n_shared* shared experts, counts as an expert of one GPU.  A token goes to all slices of
        its experts, whose rows are added up, and to the shared experts of its own GPU.
        """
        tp, each = self.gpus_of_a_group, self.experts_per_gpu
        group, local = np.divmod(self.experts.astype(np.int64), each)
        slices = (group[..., None] * tp + np.arange(tp)) * (each + n_shared) + local[..., None]
        slices = np.where(self.experts[..., None] == DROPPED, DROPPED, slices)
        shape = (self.n_gpus, self.tokens_per_gpu)
        first = np.arange(self.n_gpus)[:, None, None] * (each + n_shared) + each
        shared = np.broadcast_to(first + np.arange(n_shared), (*shape, n_shared))
        every = np.concatenate([slices.reshape(*shape, -1), shared], axis=2).astype(np.int32)
        weights = self.weights
        if weights is not None:
            weights = np.concatenate([np.repeat(weights, tp, axis=2), np.ones(shared.shape)], axis=2)
        return Routing(every, self.n_gpus * (each + n_shared), weights=weights)

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
