"""Traces of PyTorch's profiler (Kineto) as rows of the kinds ``gemm`` and ``collectives``.

A trace is an object of JSON with ``traceEvents``.  An event of the category ``kernel`` has ``ts`` and ``dur`` in
microseconds, and among its ``args`` ``device``, ``stream`` and the ``External id`` of the operator (``cpu_op``) that
launched it.  Of NCCL's kernels, ``args`` of the kernel or of its operator ``record_param_comms`` has ``Collective
name``, ``In msg nelems``, ``Out msg nelems``, ``Group size`` and ``dtype``; operators recorded with ``record_shapes``
have ``Input Dims`` and ``Input type``.  The names stand in libkineto/src/output_json.cpp and in
torch/csrc/profiler/util.h.  Pinned by ``tests/measurements/test_kineto.py``.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from t3sim.measurements.foreign import Found, number_in
from t3sim.measurements.kinds import LARGEST, Value

COLLECTIVE_NAMES = {
    "allreduce": "all_reduce", "all_reduce": "all_reduce",
    "allgather": "all_gather", "_allgather_base": "all_gather", "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter", "_reduce_scatter_base": "reduce_scatter",
}  # fmt: skip
ELEMENT_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8, "Double": 8,
}  # fmt: skip
FACTORS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0}  # operators, with the place of the first factor
HALF = ("c10::Half", "c10::BFloat16")
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


class _Kernel(NamedTuple):
    """A kernel, or a copy, on a device."""

    place: int  # among the events, from 1
    start: float
    us: float
    args: Mapping[str, Any]
    is_alone: bool = True

    @property
    def operator(self) -> Any:
        return _external_id(self.args)


def of_trace(trace: Mapping[str, Any]) -> Found:
    """Return the GEMMs and collectives of a trace that ran beside nothing else; raises ``ValueError`` if it is none.

    Of calls with the same shape, the median counts of a GEMM and the shortest of a collective, whose kernel also waits
    until the last GPU has called it.
    """
    events = trace.get("traceEvents")
    if not isinstance(events, list):
        raise ValueError("not a trace: `traceEvents` must be a list")
    operators: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    kernels: dict[Any, list[_Kernel]] = defaultdict(list)
    read = Found()
    left_out: Counter[str] = Counter()
    for place, event in enumerate(events, start=1):
        if not isinstance(event, dict) or not isinstance(event.get("args"), dict):
            continue
        category, args = event.get("cat"), event["args"]
        if category == "cpu_op":
            operators[_external_id(args)].append(event)
        elif category in ON_DEVICE:
            start: Any = event.get("ts")
            us: Any = event.get("dur")
            if not all(isinstance(value, int | float) and 0 <= value < LARGEST for value in (start, us)):
                read.problems.append(f"event {place}: `ts` and `dur` must be microseconds, found {start!r} and {us!r}")
                continue
            kernels[str(args.get("device", event.get("pid")))].append(_Kernel(place, start, us, args))
    calls: dict[Any, list[_Kernel]] = defaultdict(list)
    for device, on_device in kernels.items():
        for kernel in _alone(on_device):
            calls[device, kernel.operator, kernel.place if kernel.operator is None else 0].append(kernel)
    times: dict[tuple[str, tuple[Value, ...]], list[tuple[int, float]]] = defaultdict(list)
    for parts in calls.values():
        ops = operators.get(parts[0].operator, []) if parts[0].operator is not None else []
        what = _collective(parts, ops) or _gemm(ops) or "no GEMM or collective that is known"
        if not isinstance(what, str) and not all(kernel.is_alone for kernel in parts):
            what = "beside another kernel or copy"
        if not isinstance(what, str) and not all(kernel.us for kernel in parts):
            what = "of no duration"
        if isinstance(what, str):
            left_out[what] += len(parts)
        else:
            times[what].append((parts[0].place, sum(kernel.us for kernel in parts)))
    for (kind, key), found in times.items():
        read.rows.append((found[0][0], kind, _row(kind, key, [us for _, us in found])))
    for why, n in left_out.most_common():
        read.assumed.append(f"left out: {n} {'kernels or copies' if n > 1 else 'kernel or copy'}: {why}")
    if times:
        read.assumed.append(
            "each kernel has the device to itself; what counts is the median of a GEMM's calls, and of a collective's "
            "the shortest, since it waits for the last GPU"
        )
    return read


def _external_id(args: Mapping[str, Any]) -> Any:
    found = args.get("External id", args.get("external id"))
    return found if isinstance(found, int | str) else None


def _alone(kernels: Sequence[_Kernel]) -> Iterator[_Kernel]:
    """Yield the kernels of a device, each with whether no other one ran at the same time."""
    in_order = sorted(kernels, key=lambda kernel: kernel.start)
    end = float("-inf")
    for i, kernel in enumerate(in_order):
        own_end = kernel.start + kernel.us
        rounding = 0.001 + 2 * math.ulp(own_end)  # microseconds since 1970 have steps of a quarter
        is_followed = i + 1 < len(in_order) and in_order[i + 1].start < own_end - rounding
        yield kernel._replace(is_alone=kernel.start >= end - rounding and not is_followed)
        end = max(end, own_end)


def _collective(
    parts: Sequence[_Kernel], operators: Sequence[Mapping[str, Any]]
) -> tuple[str, tuple[Value, ...]] | str | None:
    """Return kind and key of a collective, why it is left out, or None if it is none."""
    described = [args for args in (parts[0].args, *(op["args"] for op in operators)) if "Collective name" in args]
    if not described:
        return None
    args = described[0]
    name = str(args["Collective name"])
    collective, size = COLLECTIVE_NAMES.get(name), ELEMENT_BYTES.get(str(args.get("dtype")))
    if collective is None:
        return f"collective {name[:60]}"
    if size is None:
        return f"{name} of elements of type {str(args.get('dtype'))[:60]}"
    try:
        sent, received, gpus = (int(number_in(args, key)) for key in ("In msg nelems", "Out msg nelems", "Group size"))
    except ValueError as error:
        return f"{name}: {error}"
    grown = {"all_reduce": (1, 1), "all_gather": (gpus, 1), "reduce_scatter": (1, gpus)}[collective]
    if len(parts) != 1 or gpus < 2 or sent * grown[0] != received * grown[1]:
        return f"{name} of several arrays, of uneven parts or on one GPU"
    return "collectives", (collective, gpus, max(sent, received) * size)


def _gemm(operators: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[Value, ...]] | str | None:
    """Return kind and key of a GEMM, why it is left out, or None if it is none."""
    for op in operators:
        first = FACTORS.get(str(op.get("name")))
        if first is None:
            continue
        shapes, types = (op["args"].get(name) for name in ("Input Dims", "Input type"))
        if not isinstance(shapes, list) or not isinstance(types, list):
            return "GEMM without `Input Dims` and `Input type`: record the trace with record_shapes=True"
        factors, kinds = shapes[first : first + 2], types[first : first + 2]
        if op["name"] == "aten::bmm":
            factors = [shape[1:] if isinstance(shape, list) and shape[:1] == [1] else None for shape in factors]
        if not set(map(str, kinds)) <= set(HALF):
            return f"GEMM of {' and '.join(sorted(set(map(str, kinds))))[:60]}, not of FP16 or BF16"
        if not all(isinstance(shape, list) and len(shape) == 2 for shape in factors) or len(factors) != 2:
            return "GEMM of a batch"
        (m, k), (inner, n) = factors
        if k != inner or not all(isinstance(size, int) and 0 < size < 10**9 for size in (m, n, k)):
            return "GEMM whose shapes do not fit"
        return "gemm", (m, n, k)
    return None


def _row(kind: str, key: Sequence[Value], times: Sequence[float]) -> dict[str, Value]:
    names, pick = (("m", "n", "k"), statistics.median) if kind == "gemm" else (("collective", "gpus", "bytes"), min)
    edges: dict[str, Value] = {"time_us": pick(times), "min_us": min(times), "max_us": max(times)}
    return dict(zip(names, key, strict=True)) | edges
