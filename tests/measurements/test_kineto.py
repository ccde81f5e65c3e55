"""Traces of PyTorch's profiler become GEMMs and collectives; what ran beside another kernel, or is none, is counted."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t3lab.measurements.foreign import Found
from t3lab.measurements.kineto import of_trace
from t3lab.measurements.reading import read_measurements
from tests.conftest import sample

HALF = ["c10::BFloat16", "c10::BFloat16"]
GATHER: dict[str, Any] = {"Collective name": "_allgather_base", "Group size": 4, "dtype": "BFloat16",
                          "In msg nelems": 1 << 18, "Out msg nelems": 1 << 20}  # fmt: skip


def operator(number: int, name: str, shapes: list[Any], types: list[str], **args: Any) -> dict[str, Any]:
    args = {"External id": number, "Input Dims": shapes, "Input type": types, **args}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 1, "dur": 5, "args": args}


def kernel(number: int, start: float, us: float, stream: int = 7, **args: Any) -> dict[str, Any]:
    args = {"External id": number, "device": 0, "stream": stream, **args}
    return {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": stream, "ts": start, "dur": us, "args": args}


def matmul(number: int, start: float, us: float) -> list[dict[str, Any]]:
    return [operator(number, "aten::mm", [[2048, 1024], [1024, 4096]], HALF), kernel(number, start, us)]


def read(*events: dict[str, Any]) -> Found:
    return of_trace({"schemaVersion": 1, "traceEvents": list(events)})


def test_calls_of_a_shape_are_one_row() -> None:
    """The median of a GEMM's, the shortest of a collective's; of an operator of two kernels their sum."""
    found = read(
        *matmul(1, 100, 40), *matmul(2, 200, 44), *matmul(3, 300, 30), kernel(3, 330, 12),
        kernel(4, 400, 30, 20, **GATHER), kernel(5, 500, 25, 20, **GATHER),
    )  # fmt: skip
    assert [(kind, values) for _, kind, values in found.rows] == [
        ("gemm", {"m": 2048, "n": 4096, "k": 1024, "time_us": 42, "min_us": 40, "max_us": 44}),
        ("collectives", {"collective": "all_gather", "gpus": 4, "bytes": 1 << 21,
                         "time_us": 25, "min_us": 25, "max_us": 30}),
    ]  # fmt: skip
    assert found.problems == []


@pytest.mark.parametrize(
    ("name", "shapes", "shape"),
    [
        ("aten::linear", [[4, 8, 16], [64, 16], [64]], (32, 64, 16)),  # the weight has a row for each output
        ("aten::matmul", [[4, 8, 16], [16, 64]], (32, 64, 16)),
        ("aten::baddbmm", [[1, 32, 64], [1, 32, 16], [1, 16, 64]], (32, 64, 16)),
        ("aten::_addmm_activation", [[64], [32, 16], [16, 64]], (32, 64, 16)),
    ],
)
def test_operators_that_multiply(name: str, shapes: list[list[int]], shape: tuple[int, ...]) -> None:
    found = read(operator(1, name, shapes, HALF[:1] * len(shapes)), kernel(1, 10, 5))
    assert [tuple(values[key] for key in "mnk") for _, _, values in found.rows] == [shape]


def test_a_kernel_that_says_tree_was_no_ring() -> None:
    tree = kernel(1, 10, 5, **{**GATHER, "Collective name": "allreduce", "Out msg nelems": 1 << 18})
    tree["name"] = "ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(ncclDevKernelArgsStorage<4096ul>)"
    [(_, _, values)] = read(tree).rows
    assert values["nccl_algo"] == "Tree"


def test_what_a_collective_was_may_stand_with_its_operator() -> None:
    args = {**GATHER, "Collective name": "allreduce", "Out msg nelems": 1 << 18, "dtype": "Float"}
    found = read(operator(1, "record_param_comms", [], [], **args), kernel(1, 10, 5))
    [(_, _, values)] = found.rows
    assert (values["collective"], values["bytes"]) == ("all_reduce", 1 << 20)


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([*matmul(1, 100, 40), kernel(2, 120, 5, 20)], "concurrent with another kernel or copy"),
        ([operator(1, "aten::mm", [[4, 4], [4, 4]], ["float"] * 2), kernel(1, 1, 1)], "not of FP16 or BF16"),
        ([operator(1, "aten::bmm", [[2, 4, 4], [2, 4, 4]], HALF), kernel(1, 1, 1)], "GEMM of a batch"),
        ([operator(1, "aten::mm", None, None), kernel(1, 1, 1)], "record_shapes=True"),  # type: ignore[arg-type]
        ([operator(1, "aten::mm", [[4, 5], [4, 4]], HALF), kernel(1, 1, 1)], "shapes do not fit"),
        ([operator(1, "aten::add", [[4]], HALF), kernel(1, 1, 1)], "no GEMM or collective that is known"),
        ([kernel(1, 1, 1, **{**GATHER, "Collective name": "all_to_all"})], "collective all_to_all"),
        ([kernel(1, 1, 1, **{**GATHER, "Out msg nelems": 5})], "of uneven parts"),
        ([kernel(1, 1, 1, **{**GATHER, "dtype": "Quant"})], "elements of type Quant"),
        ([kernel(1, 1, 1, **{**GATHER, "Group size": None})], "`Group size` must be a number above 0"),
        ([*matmul(1, 100, 0)], "of no duration"),
        (
            [operator(1, "aten::_grouped_mm", [[8, 4], [2, 4, 4]], HALF), kernel(1, 1, 1)],
            "grouped GEMM (aten::_grouped",
        ),
        ([operator(1, "aten::mm", [[4, 4]] * 2, ["c10::Float8_e4m3fn"] * 2), kernel(1, 1, 1)], "GEMM of FP8"),
        ([*matmul(1, 1, 1)[:1], kernel(1, 1, 1, **{"graph node id": 7})], "launched by a CUDA graph"),
        ([{**kernel(1, 1, 1), "name": "ncclDevKernel_AllGather_RING_LL"}], "of NCCL, without `Collective name`"),
        ([operator(1, "aten::mm", [[4, 4]] * 2, HALF)], "no kernel ran on a GPU"),
        ([kernel(1, 1, 1), kernel(2, 3, 1)], "left out: 2 kernels: no GEMM or collective that is known: k (2)"),
    ],
)
def test_what_is_left_out_is_counted(events: list[dict[str, Any]], why: str) -> None:
    found = read(*events)
    assert found.rows == []
    assert any(why in sentence for sentence in found.assumed)


def test_a_trace_is_a_file_of_measurements(tmp_path: Path) -> None:
    path = tmp_path / "rank0.pt.trace.json.gz"
    trace = {"traceEvents": [*matmul(1, 100, 40), {"ph": "M", "name": "process_name"}, kernel(2, -5, 2)]}
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    found = read_measurements(path)
    [row] = found.rows
    assert (row.kind, row["tflops"], row.place) == ("gemm", 2 * 2048 * 4096 * 1024 / 40e6, f"{path}:2")
    assert found.refused == (f"{path}: event 4: `ts` and `dur` must be microseconds, found -5 and 2",)


EVENTS = [*matmul(1, 100, 40), kernel(5, 500, 25, 20, **GATHER)]
ODD = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.just([]), st.just({}))


@settings(max_examples=sample(200, 40))
@given(st.integers(0, 2), st.sampled_from([*EVENTS[0], *EVENTS[0]["args"], *GATHER, "device"]), ODD)
def test_any_other_value_is_read_or_left_out(number: int, name: str, value: Any) -> None:
    events = copy.deepcopy(EVENTS)
    for holder in (events[number], events[number]["args"]):
        if isinstance(holder, dict) and name in holder:
            holder[name] = value
    assert len(read(*events).rows) <= 2
