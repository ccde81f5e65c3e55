"""From which size which all-reduce is the fastest, as the tables that vLLM and PyTorch keep for each kind of GPU.

Every kernel of ``collective.direct`` and NCCL's choice are simulated alone at powers of two; a kernel that is far
slower at one size is not simulated at larger ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t3sim.advice.search import Case, Refusal, Simulate
from t3sim.collective.direct import KERNELS, NCCL, OF_TRTLLM
from t3sim.config.experiment import CollectiveSpec, RunSpec, WorkloadSpec
from t3sim.workload.outputs import output_bytes

SMALLEST, LARGEST = 1 << 10, 1 << 26
FAR_BEHIND = 2.0  # times as long as the fastest
BATCH = 4  # sizes that are simulated together
COLUMNS = ("machine", "gpus", "bytes", "algorithm", "time_us")
ONE_STAGE, TWO_STAGE = "vllm-one-stage", "vllm-two-stage"
ONE_SHOT, TWO_SHOT = "pytorch-one-shot", "pytorch-two-shot"
MULTIMEM, WITH_COPIES = "pytorch-multimem", "vllm-multimem"  # where switches reduce
COMPARISONS = {  # by library and table: the best of the first is faster than the best of the second below a size
    ("vllm", "CUSTOM_ALL_REDUCE_MAX_SIZES"): ([ONE_STAGE, TWO_STAGE], [NCCL, WITH_COPIES]),
    ("vllm", "one_stage_below"): ([ONE_STAGE], [TWO_STAGE]),
    ("vllm", "SYMM_MEM_ALL_REDUCE_MAX_SIZES"): ([WITH_COPIES, TWO_SHOT], [NCCL]),
    ("pytorch", "one_shot_below"): ([ONE_SHOT], [TWO_SHOT]),
    ("pytorch", "symm_mem_below"): ([ONE_SHOT, TWO_SHOT, MULTIMEM], [NCCL]),
}


@dataclass(frozen=True)
class AllReduce:
    """The simulated time of one all-reduce of an array of ``n_bytes``, in microseconds."""

    gpus: int
    n_bytes: int
    algorithm: str
    us: float


def simulated(cases: Sequence[Case], simulate: Simulate) -> list[AllReduce]:
    """Return all-reduces on the numbers of GPUs of *cases* with one, up to the largest output of their GEMMs.

    First at every second power of two, then between two sizes where a comparison of the tables turns.
    """
    largest: dict[int, int] = {}
    for run in (case.run for case in cases if case.run.workload.operator == "gemm-ar"):
        gemm, tp = run.workload.gemm, run.workload.tp
        assert gemm is not None
        largest[tp] = min(max(largest.get(tp, 0), output_bytes(gemm)), LARGEST)
    found: list[AllReduce] = []
    names = {n: [NCCL, *(name for name in KERNELS if name not in OF_TRTLLM)] for n in largest}

    def ask(asked: Sequence[tuple[int, int, str]]) -> None:
        results = simulate([_run(cases[0].run, *one) for one in asked])
        found.extend(
            AllReduce(*one, result.ticks.to_us(result.total))
            for one, result in zip(asked, results, strict=True)
            if not isinstance(result, Refusal)
        )

    sizes = {n: [1 << i for i in range(64) if SMALLEST <= 1 << i <= most] for n, most in largest.items()}
    coarse = {n: sorted({*own[::2], *own[-1:]}) for n, own in sizes.items()}
    for start in range(0, max(map(len, coarse.values()), default=0), BATCH):
        batch = {n: own[start : start + BATCH] for n, own in coarse.items()}
        ask([(n, size, name) for n, own in batch.items() for size in own for name in names[n]])
        for n, own in batch.items():
            last = _times(found, n, own[-1]) if own else {}
            best = min(last.values(), default=0.0)
            names[n] = [name for name in names[n] if name == NCCL or last.get(name, best) <= FAR_BEHIND * best]
    for n, own in sizes.items():
        for low, size, high in zip(own, own[1:], own[2:], strict=False):
            before, after = _times(found, n, low), _times(found, n, high)
            if size not in coarse[n] and _turns(before, after):
                ask([(n, size, name) for name in before])
    return sorted(found, key=lambda one: (one.gpus, one.n_bytes))


def _times(found: Sequence[AllReduce], n: int, size: int) -> dict[str, float]:
    """Return the times of what was simulated at one *size*, by kernel."""
    return {one.algorithm: one.us for one in found if (one.gpus, one.n_bytes) == (n, size)}


def _turns(times: Mapping[str, float], others: Mapping[str, float]) -> bool:
    """Return whether a comparison of the tables comes out differently at two sizes."""
    return any(_is_faster(times, *pair) != _is_faster(others, *pair) for pair in COMPARISONS.values())


def _is_faster(times: Mapping[str, float], first: Sequence[str], second: Sequence[str]) -> bool:
    """Return whether the best of *first* is faster than the best of *second*; a missing kernel was much slower."""
    best, other = (min((times[name] for name in one if name in times), default=float("inf")) for one in (first, second))
    return best < other


def _run(run: RunSpec, n: int, size: int, algorithm: str) -> RunSpec:
    given = {"op": "all-reduce", "size": f"{size} B", "gpus": n, "algorithm": algorithm}
    collective = CollectiveSpec.model_validate(given)
    workload = WorkloadSpec(tp=n, collective=collective, tiling=run.workload.tiling)
    return run.model_copy(update={"workload": workload, "strategy_params": {}, "arbitration": None})


def rows(machine: str, found: Sequence[AllReduce]) -> list[list[object]]:
    """Return the rows of ``all_reduces.csv``."""
    return [[machine, one.gpus, one.n_bytes, one.algorithm, one.us] for one in found]


def tables_bytes(machine: str, capability: str | None, found: Sequence[AllReduce]) -> bytes:
    """Return the tables as JSON.  Sizes in bytes by number of GPUs; a kernel is taken below its size, 0: never.

    ``CUSTOM_ALL_REDUCE_MAX_SIZES`` and ``SYMM_MEM_ALL_REDUCE_MAX_SIZES`` are called as in vLLM's
    ``all_reduce_utils.py``: below them its own kernels, or PyTorch's with copies, are faster than the others.
    """
    gpus = list(dict.fromkeys(one.gpus for one in found))

    def below(first: Sequence[str], second: Sequence[str]) -> dict[int, int]:
        return {n: threshold([one for one in found if one.gpus == n], first, second) for n in gpus}

    tables: dict[str, dict[str, Any]] = {"vllm": {}, "pytorch": {}}
    for (library, name), pair in COMPARISONS.items():
        tables[library][name] = {capability or machine: below(*pair)}
    content = {
        "machine": machine,
        "simulated": {"from_bytes": SMALLEST, "to_bytes": max((one.n_bytes for one in found), default=0)},
        **tables,
    }
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def threshold(found: Sequence[AllReduce], first: Sequence[str], second: Sequence[str]) -> int:
    """Return twice the largest simulated size at which the best of *first* is faster than the best of *second*.

    0: it never is.  A kernel that is missing at a size was much slower.
    """
    times: dict[int, dict[str, float]] = {}
    for one in found:
        times.setdefault(one.n_bytes, {})[one.algorithm] = one.us

    return 2 * max((size for size, one in times.items() if _is_faster(one, first, second)), default=0)
