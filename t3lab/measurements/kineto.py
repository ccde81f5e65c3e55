"""Traces of PyTorch's profiler (Kineto) as rows of the kinds ``gemm`` and ``collectives``.

A trace is an object of JSON with ``traceEvents``.  An event of the category ``kernel`` has ``ts`` and ``dur`` in
microseconds, and among its ``args`` ``device``, ``stream`` and the ``External id`` of the operator (``cpu_op``) that
launched it.  Of NCCL's kernels, ``args`` of the kernel or of its operator ``record_param_comms`` has ``Collective
name``, ``In msg nelems``, ``Out msg nelems``, ``Group size`` and ``dtype``; operators recorded with ``record_shapes``
have ``Input Dims`` and ``Input type``.  The names stand in libkineto/src/output_json.cpp and in
torch/csrc/profiler/util.h; PyTorch 1.8 to 1.11 began categories with a capital (``Kernel``, ``Operator``).  Each kernel
that is no row is counted, with its name and the reason.  Pinned by ``tests/measurements/test_kineto.py``.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from t3lab.measurements.columns import LARGEST, Value
from t3lab.measurements.foreign import LEFT_OUT, Found, counted, listed, number_in

COLLECTIVE_NAMES = {
    "allreduce": "all_reduce", "all_reduce": "all_reduce",
    "allgather": "all_gather", "_allgather_base": "all_gather", "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter", "_reduce_scatter_base": "reduce_scatter",
    "alltoall": "all_to_all", "alltoall_base": "all_to_all",
}  # fmt: skip
ELEMENT_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8, "Double": 8,
}  # fmt: skip
# Operators, with the place of the first factor.
FACTORS = {
    "aten::mm": 0, "aten::addmm": 1, "aten::_addmm_activation": 1, "aten::linear": 0, "aten::matmul": 0, "aten::bmm": 0,
    "aten::baddbmm": 1,
}  # fmt: skip
BATCHED = ("aten::bmm", "aten::baddbmm")
OTHER_GEMMS = {
    "_scaled_mm": "GEMM of FP8", "_scaled_grouped_mm": "grouped GEMM of FP8", "_grouped_mm": "grouped GEMM",
    "_int_mm": "GEMM of int8",
}  # fmt: skip
HALF = ("c10::Half", "c10::BFloat16")
CATEGORIES = {"operator": "cpu_op", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}  # older names, without capitals
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
# Entry points of NCCL are named RING whatever algorithm runs, but for this one (src/device/generate.py of NCCL).
TREE = "_TREE_"


class _Kernel(NamedTuple):
    """A kernel, or a copy, on a device."""

    place: int  # among the events, from 1
    start: float
    us: float
    name: str
    args: Mapping[str, Any]
    is_alone: bool = True

    @property
    def operator(self) -> Any:
        """The operator that launched it; a graph launches many kernels, and none of them has one of its own."""
        return None if self.args.get("graph node id") else _external_id(self.args)


def of_trace(trace: Mapping[str, Any]) -> Found:
    """Return the GEMMs and collectives of a trace that ran alone; raises ``ValueError`` if it is none.

    Of calls with the same shape, the median counts of a GEMM and the shortest of a collective, whose kernel also waits
    until the last GPU has called it.
    """
    events, facts = trace.get("traceEvents"), trace.get("deviceProperties")
    if not isinstance(events, list):
        raise ValueError("not a trace: `traceEvents` must be a list")
    operators: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    kernels: dict[Any, list[_Kernel]] = defaultdict(list)
    read = Found()
    devices = [one.get("name") for one in facts if isinstance(one, dict)] if isinstance(facts, list) else []
    read.devices = tuple(dict.fromkeys(name for name in devices if isinstance(name, str)))
    left_out: dict[str, list[str]] = defaultdict(list)  # by reason: the names of kernels
    for place, event in enumerate(events, start=1):
        if not isinstance(event, dict) or not isinstance(event.get("args"), dict):
            continue
        named, args = str(event.get("cat")).lower(), event["args"]
        category = CATEGORIES.get(named, named)
        if category == "cpu_op":
            operators[_external_id(args)].append(event)
        elif category in ON_DEVICE:
            start: Any = event.get("ts")
            us: Any = event.get("dur")
            if not all(isinstance(value, int | float) and 0 <= value < LARGEST for value in (start, us)):
                read.problems.append(f"event {place}: `ts` and `dur` must be microseconds, found {start!r} and {us!r}")
                continue
            kernels[str(args.get("device", event.get("pid")))].append(
                _Kernel(place, start, us, str(event.get("name")), args)
            )
    calls: dict[Any, list[_Kernel]] = defaultdict(list)
    for device, on_device in kernels.items():
        for kernel in _alone(on_device):
            calls[device, kernel.operator, kernel.place if kernel.operator is None else 0].append(kernel)
    times: dict[tuple[str, tuple[Value, ...]], list[tuple[int, float]]] = defaultdict(list)
    for parts in calls.values():
        ops = operators.get(parts[0].operator, []) if parts[0].operator is not None else []
        what = _collective(parts, ops) or _gemm(ops) or _unknown(parts[0])
        if not isinstance(what, str) and not all(kernel.is_alone for kernel in parts):
            what = "concurrent with another kernel or copy"
        if not isinstance(what, str) and not all(kernel.us for kernel in parts):
            what = "of no duration"
        if isinstance(what, str):
            left_out[what] += [kernel.name for kernel in parts]
        else:
            times[what].append((parts[0].place, sum(kernel.us for kernel in parts)))
    for (kind, key), found in times.items():
        read.rows.append((found[0][0], kind, _row(kind, key, [us for _, us in found])))
    for why, names in sorted(left_out.items(), key=lambda item: -len(item[1])):
        read.assumed.append(f"{LEFT_OUT}{counted(len(names), 'kernel')}: {why}: {listed(names)}")
    if not kernels and not read.problems:
        read.assumed.append(f"{LEFT_OUT}everything: no kernel ran on a GPU: profile with ProfilerActivity.CUDA")
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
    algorithm = ("Tree",) if any(TREE in kernel.name for kernel in parts) else ()
    collective, size = COLLECTIVE_NAMES.get(name), ELEMENT_BYTES.get(str(args.get("dtype")))
    if collective is None:
        return f"collective {name[:60]}"
    if size is None:
        return f"{name} of elements of type {str(args.get('dtype'))[:60]}"
    try:
        sent, received, gpus = (int(number_in(args, key)) for key in ("In msg nelems", "Out msg nelems", "Group size"))
    except ValueError as error:
        return f"{name}: {error}"
    grown = {"all_gather": (gpus, 1), "reduce_scatter": (1, gpus)}.get(collective, (1, 1))
    if len(parts) != 1 or gpus < 2 or sent * grown[0] != received * grown[1]:
        return f"{name} of several arrays, of uneven parts or on one GPU"
    return "collectives", (collective, gpus, max(sent, received) * size, *algorithm)


def _gemm(operators: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[Value, ...]] | str | None:
    """Return kind and key of a GEMM, why it is left out, or None if it is none."""
    for op in operators:
        name = str(op.get("name"))
        other = OTHER_GEMMS.get(name.partition("::")[2].partition(".")[0])
        if other is not None:
            return f"{other} ({name[:60]})"
        first = FACTORS.get(name)
        if first is None:
            continue
        shapes, types = (op["args"].get(key) for key in ("Input Dims", "Input type"))
        if not isinstance(shapes, list) or not isinstance(types, list):
            return "GEMM without `Input Dims` and `Input type`: record the trace with record_shapes=True"
        factors, kinds = shapes[first : first + 2], set(map(str, types[first : first + 2]))
        if not kinds <= set(HALF):
            what = "FP8" if any("Float8" in kind for kind in kinds) else " and ".join(sorted(kinds))[:60]
            return f"GEMM of {what}, not of FP16 or BF16"
        if not all(isinstance(shape, list) and all(_is_size(size) for size in shape) for shape in factors):
            return "GEMM whose shapes do not fit"
        if len(factors) != 2 or min(map(len, factors)) < 2:
            return "GEMM of a vector"
        return _shape(name, *factors)
    return None


def _shape(name: str, left: list[int], right: list[int]) -> tuple[str, tuple[Value, ...]] | str:
    """Return kind and key of a GEMM of *left* and *right*, all of whose leading dimensions are rows if they can be."""
    if name == "aten::linear":  # its weight has a row for each output
        right = [*right[:-2], right[-1], right[-2]]
    if math.prod(right[:-2]) > 1 or (name in BATCHED and math.prod(left[:-2]) > 1):
        return "GEMM of a batch"
    m, k, (inner, n) = math.prod(left[:-1]), left[-1], right[-2:]
    if k != inner:
        return "GEMM whose shapes do not fit"
    return "gemm", (m, n, k)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9


def _unknown(kernel: _Kernel) -> str:
    """Say why a kernel is no GEMM or collective that can be read."""
    if kernel.name.lower().startswith("nccl"):
        return "of NCCL, without `Collective name`: PyTorch records it from 2.3 on"
    if kernel.args.get("graph node id"):
        return "names no operator: launched by a CUDA graph, which has no shapes; record the run without graphs"
    if kernel.operator is None:
        return "names no operator (kernels of CUDA graphs have none)"
    return "no GEMM or collective that is known"


COLLECTIVE_KEY = ("collective", "gpus", "bytes", "nccl_algo")


def _row(kind: str, key: Sequence[Value], times: Sequence[float]) -> dict[str, Value]:
    names, pick = (("m", "n", "k"), statistics.median) if kind == "gemm" else (COLLECTIVE_KEY[: len(key)], min)
    edges: dict[str, Value] = {"time_us": pick(times), "min_us": min(times), "max_us": max(times)}
    return dict(zip(names, key, strict=True)) | edges
