"""From which size which all-reduce is the fastest, as the tables that vLLM and PyTorch keep for each kind of GPU.

Every kernel of ``collective.direct`` and NCCL's choice are simulated alone at powers of two; a kernel that is far
behind at one size is not simulated at larger ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from t3sim.advice.search import Case, Refusal, Simulate
from t3sim.collective.direct import KERNELS, NCCL
from t3sim.config.experiment import CollectiveSpec, RunSpec, WorkloadSpec
from t3sim.workload.tiling import ELEMENT_BYTES

SMALLEST, LARGEST = 1 << 10, 1 << 26
FAR_BEHIND = 2.0  # times as long as the fastest
BATCH = 4  # sizes that are simulated together
COLUMNS = ("machine", "gpus", "bytes", "algorithm", "time_us")
ONE_STAGE, TWO_STAGE = "vllm-one-stage", "vllm-two-stage"
ONE_SHOT, TWO_SHOT = "pytorch-one-shot", "pytorch-two-shot"
MULTIMEM, WITH_COPIES = "pytorch-multimem", "vllm-multimem"  # where switches reduce


@dataclass(frozen=True)
class AllReduce:
    """The simulated time of one all-reduce of an array of ``n_bytes``, in microseconds."""

    gpus: int
    n_bytes: int
    algorithm: str
    us: float


def simulated(cases: Sequence[Case], simulate: Simulate) -> list[AllReduce]:
    """Return all-reduces on the numbers of GPUs of *cases* with one, up to the largest output of their GEMMs."""
    largest: dict[int, int] = {}
    for run in (case.run for case in cases if case.run.workload.operator == "gemm-ar"):
        gemm, tp = run.workload.gemm, run.workload.tp
        assert gemm is not None
        largest[tp] = min(max(largest.get(tp, 0), ELEMENT_BYTES * gemm.m * gemm.n), LARGEST)
    found: list[AllReduce] = []
    names = {n: [NCCL, *KERNELS] for n in largest}
    sizes = [1 << i for i in range(64) if SMALLEST <= 1 << i <= max(largest.values(), default=0)]
    for batch in (sizes[i : i + BATCH] for i in range(0, len(sizes), BATCH)):
        asked = [(n, size, name) for n in largest for size in batch if size <= largest[n] for name in names[n]]
        results = simulate([_run(cases[0].run, *one) for one in asked])
        times = {
            one: result.ticks.to_us(result.total)
            for one, result in zip(asked, results, strict=True)
            if not isinstance(result, Refusal)
        }
        found += [AllReduce(*one, us) for one, us in times.items()]
        for n, own in names.items():
            last = {name: us for (gpus, size, name), us in times.items() if (gpus, size) == (n, batch[-1])}
            best = min(last.values(), default=0.0)
            own[:] = [name for name in own if name == NCCL or last.get(name, best) <= FAR_BEHIND * best]
    return found


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

    name = capability or machine
    content = {
        "machine": machine,
        "simulated": {"from_bytes": SMALLEST, "to_bytes": max((one.n_bytes for one in found), default=0)},
        "vllm": {
            "CUSTOM_ALL_REDUCE_MAX_SIZES": {name: below([ONE_STAGE, TWO_STAGE], [NCCL, WITH_COPIES])},
            "one_stage_below": {name: below([ONE_STAGE], [TWO_STAGE])},
            "SYMM_MEM_ALL_REDUCE_MAX_SIZES": {name: below([WITH_COPIES, TWO_SHOT], [NCCL])},
        },
        "pytorch": {
            "one_shot_below": {name: below([ONE_SHOT], [TWO_SHOT])},
            "symm_mem_below": {name: below([ONE_SHOT, TWO_SHOT, MULTIMEM], [NCCL])},
        },
    }
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def threshold(found: Sequence[AllReduce], first: Sequence[str], second: Sequence[str]) -> int:
    """Return twice the largest simulated size at which the best of *first* is faster than the best of *second*.

    0: it never is.  A kernel that is missing at a size was far behind.
    """
    times: dict[int, dict[str, float]] = {}
    for one in found:
        times.setdefault(one.n_bytes, {})[one.algorithm] = one.us

    def best(size: int, names: Sequence[str]) -> float:
        return min((times[size][name] for name in names if name in times[size]), default=float("inf"))

    return 2 * max((size for size in times if best(size, first) < best(size, second)), default=0)
