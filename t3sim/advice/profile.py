"""Simulated times of GEMMs and collectives as a profile that ``torch.compile`` estimates operators from.

The file has the form of a trace of ``torch.profiler``: for a GEMM an operator of the host with its shapes and a kernel
of the same external id, for a collective a kernel with its process group and sizes.  PyTorch reads it where
``torch._inductor.config.aten_distributed_optimizations.profile_guided_estimations_profile_path`` names it.  All times
are of operations alone: what to overlap is for the scheduler that reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from t3sim.advice.search import Case
from t3sim.config.element_types import ELEMENT_TYPES
from t3sim.config.experiment import CollectiveSpec, RunSpec, WorkloadSpec
from t3sim.system.simulate import SimulationResult
from t3sim.workload.kernel_choice import tiling_of
from t3sim.workload.tiling import moved_bytes

GROUP = "tp"
DTYPE, DTYPE_OF_COLLECTIVES = "c10::BFloat16", "BFloat16"
SMALL_ROWS = (16, 128)
SMALL_BYTES = tuple(1 << n for n in (14, 17, 20, 23))  # 16 KiB to 8 MiB
COLLECTIVES = {"reduce_scatter": "_reduce_scatter_base", "all_gather": "_allgather_base"}


def small_runs(cases: Sequence[Case]) -> list[RunSpec]:
    """Return runs of GEMMs of few rows and of small collectives, alone, for shapes and groups of *cases*.

    PyTorch scales what it finds in the profile in proportion to sizes that are not in it; small ones take longer.
    """
    found: dict[str, RunSpec] = {}
    for case in cases:
        run = case.run.model_copy(update={"arbitration": None, "strategy_params": {}})
        workload = run.workload
        assert workload.gemm is not None
        kernels = workload.tiling if workload.kernels is None else workload.kernels
        for m in (m for m in SMALL_ROWS if m < workload.gemm.m):
            gemm = workload.gemm.model_copy(update={"m": m})
            tiling = tiling_of(kernels, gemm, run.machine.gpu.n_compute_units)
            update = {"gemm": gemm, "tiling": tiling, "tp": 1, "operator": "gemm-rs", "model": None, "sublayer": None}
            one = run.model_copy(update={"workload": workload.model_copy(update=update)})
            found.setdefault(f"{gemm}", one)
        ops: tuple[Literal["reduce-scatter", "all-gather"], ...] = ("reduce-scatter", "all-gather")
        for size in (size for size in SMALL_BYTES if size < moved_bytes(workload.gemm, workload.operator)):
            for op in ops:
                collective = CollectiveSpec.model_validate({"op": op, "size": f"{size} B", "gpus": workload.tp})
                alone = WorkloadSpec(tp=workload.tp, collective=collective, tiling=workload.tiling)
                found.setdefault(f"{collective}", run.model_copy(update={"workload": alone}))
    return list(found.values())


def profile_bytes(results: Sequence[SimulationResult]) -> bytes:
    """Return the profile of all GEMMs and collectives of *results*, each shape once; elements have two bytes."""
    events: list[dict[str, Any]] = []
    groups: dict[str, list[int]] = {}
    seen = set()
    for result in results:
        workload = result.run.workload
        tp = workload.tp if workload.collective is None else workload.collective.gpus
        name = f"{GROUP}{tp}"
        if tp > 1:
            groups[name] = list(range(tp))
        for key, one in _events(result, name, tp):
            if key not in seen:  # at a time of its own, tied by an external id
                seen.add(key)
                place = {"pid": 0, "tid": 0, "ts": float(len(seen))}
                events += [{**event, **place, "args": {**event["args"], "External id": len(seen)}} for event in one]
    configuration = [{"pg_name": name, "ranks": ranks} for name, ranks in groups.items()]
    world = max(map(len, groups.values()), default=1)
    content = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": 0, "world_size": world, "pg_config": configuration},
        "traceEvents": events,
    }
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def _gemm_events(
    shape: tuple[int, int, int], strides: tuple[int, int], us: float
) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """Yield a GEMM without and with a bias, which its epilogue adds: a product takes as long."""
    m, n, k = shape
    dims, of_b = [[m, k], [k, n]], [*strides]
    product = {"Input Dims": dims, "Input Strides": [[k, 1], of_b], "Input type": [DTYPE] * 2}
    with_bias = {
        "Input Dims": [[n], *dims, [], []], "Input Strides": [[1], [k, 1], of_b, [], []],
        "Input type": [DTYPE] * 3 + ["Scalar"] * 2, "Concrete Inputs": ["", "", "", "1", "1"],
    }  # fmt: skip
    for name, args in (("aten::mm", product), ("aten::addmm", with_bias)):
        host = {"ph": "X", "cat": "cpu_op", "name": name, "dur": 1.0, "args": args}
        yield (name, shape, strides), [host, {"ph": "X", "cat": "kernel", "name": "gemm", "dur": us, "args": {}}]


def _events(result: SimulationResult, group: str, tp: int) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """Yield a key and the events of each operation that was simulated alone."""
    workload, phases = result.run.workload, result.sublayers[0].by_role
    alone = workload.collective
    elements = 0 if alone is None else ELEMENT_TYPES[alone.element].n_elements(alone.size)
    if workload.gemm is not None:
        m, n, k = workload.gemm.m, workload.gemm.n, workload.gemm.k
        elements = m * (k if workload.operator == "ag-gemm" else n)
        gemm_us = result.ticks.to_us(phases["gemm"].ticks)
        for strides in ((n, 1), (1, k)):  # of B as it is, and of a weight that is transposed
            yield from _gemm_events((m, n, k), strides, gemm_us)
    for role, name in COLLECTIVES.items():
        if role not in phases:
            continue
        whole, part = elements, elements // tp
        sizes = (whole, part) if role == "reduce_scatter" else (part, whole)
        args = {
            "Collective name": name, "Process Group Name": group, "Process Group Ranks": str(list(range(tp))),
            "Group size": tp, "In msg nelems": sizes[0], "Out msg nelems": sizes[1], "dtype": DTYPE_OF_COLLECTIVES,
        }  # fmt: skip
        us = result.ticks.to_us(phases[role].ticks)
        yield (role, tp, whole), [{"ph": "X", "cat": "kernel", "name": f"nccl {role}", "dur": us, "args": args}]
