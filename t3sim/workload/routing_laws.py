"""Laws by which tokens choose their experts.

- ``balanced``: choices are dealt round-robin over GPUs and, on each GPU, over its experts.  Loads of experts, and of
  pairs of GPUs, differ by at most one row; nothing is random.
- ``uniform``: each token draws ``top_k`` different experts, all equally likely.  In mirrored mode all GPUs have the
  draw of GPU 0, seen from themselves.
- ``power-law``: loads of the experts are drawn from a power law between 1 and 0.8 x tokens (0.01 and 2 if there are
  fewer rows than experts), scaled to the number of rows and rounded; whole tokens are dealt to GPUs in random order.
- ``power-law-sampled``: weights of the experts are drawn from a power law between 1 and 1024, and each token draws
  ``top_k`` different experts by these weights.
- ``zipf``: loads of the experts are proportional to 1 / rank ** exponent, rounded down; the first expert has the rest.

The two power laws are those of ``power_law_*`` and ``power_law_sampled_*`` in the tables of NVIDIA aiconfigurator
(``collector/helper.py``, ``collector/sglang/dsv4_megamoe_workload.py``), where the block with the largest load is
exchanged with the first.  Draws are of NumPy's generator: the law is the same, the numbers are not.
"""

import math

import numpy as np
import numpy.typing as npt

from t3sim.config.experts import ExpertsSpec
from t3sim.workload.routing import Ints, choices_from_rows

POWER_LAW_SAMPLED_MAX = 1024.0
TOKENS_AT_A_TIME = 4096  # that draw their experts together: bounds the memory of one draw


def generated(spec: ExpertsSpec) -> npt.NDArray[np.int32]:
    """Return the choices of the tokens of *spec*, of shape (GPUs, tokens of a GPU, top_k), by the law that it names."""
    law = spec.routing
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
