"""Simulated times of GEMMs and collectives as a profile that ``torch.compile`` estimates operators from.

The file has the form of a trace of ``torch.profiler``: for a GEMM an operator of the host with its shapes and a kernel
of the same external id, for a collective a kernel with its process group and sizes.  PyTorch reads it where
``torch._inductor.config.aten_distributed_optimizations.profile_guided_estimations_profile_path`` names it.  All times
are of operations alone: what to overlap is for the scheduler that reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from t3sim.advice.search import Case

GROUP = "tp"
DTYPE, DTYPE_OF_COLLECTIVES = "c10::BFloat16", "BFloat16"
COLLECTIVES = {"reduce_scatter": "_reduce_scatter_base", "all_gather": "_allgather_base"}


def profile_bytes(cases: Sequence[Case]) -> bytes:
    """Return the profile of all GEMMs and collectives of *cases*, each shape once; elements have two bytes."""
    events: list[dict[str, Any]] = []
    groups: dict[str, list[int]] = {}
    seen = set()
    for case in cases:
        tp = case.run.workload.tp
        name = f"{GROUP}{tp}"
        groups[name] = list(range(tp))
        for key, one in _events(case, name, tp):
            if key not in seen:  # at a time of its own, tied by an external id
                seen.add(key)
                place = {"pid": 0, "tid": 0, "ts": float(len(seen))}
                events += [{**event, **place, "args": {**event["args"], "External id": len(seen)}} for event in one]
    configuration = [{"pg_name": name, "ranks": ranks} for name, ranks in groups.items()]
    content = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": 0, "world_size": max(map(len, groups.values())), "pg_config": configuration},
        "traceEvents": events,
    }
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def _events(case: Case, group: str, tp: int) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """Yield a key and the events of each operation of a case that was simulated alone."""
    result = case.reference.result
    assert result is not None
    shape = case.run.workload.gemm
    assert shape is not None
    phases = result.sublayers[0].by_role
    m, n, k = shape.m, shape.n, shape.k
    gemm_us = result.ticks.to_us(phases["gemm"].ticks)
    for strides in ((n, 1), (1, k)):  # of B as it is, and of a weight that is transposed
        args = {"Input Dims": [[m, k], [k, n]], "Input Strides": [[k, 1], list(strides)], "Input type": [DTYPE] * 2}
        host = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "dur": 1.0, "args": args}
        yield ("mm", m, n, k, strides), [host, {"ph": "X", "cat": "kernel", "name": "gemm", "dur": gemm_us, "args": {}}]
    width = k if case.run.workload.operator == "ag-gemm" else n
    for role, name in COLLECTIVES.items():
        if role not in phases:
            continue
        whole, part = m * width, m * width // tp
        sizes = (whole, part) if role == "reduce_scatter" else (part, whole)
        args = {
            "Collective name": name, "Process Group Name": group, "Process Group Ranks": str(list(range(tp))),
            "Group size": tp, "In msg nelems": sizes[0], "Out msg nelems": sizes[1], "dtype": DTYPE_OF_COLLECTIVES,
        }  # fmt: skip
        us = result.ticks.to_us(phases[role].ticks)
        yield (role, tp, whole), [{"ph": "X", "cat": "kernel", "name": f"nccl {role}", "dur": us, "args": args}]
