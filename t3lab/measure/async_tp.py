"""Operations of PyTorch's async tensor parallelism, from its profiler on every GPU.

Whole calls say how long it takes; barriers, copies, GEMMs and the sum are only known apart from a trace.  Needs
PyTorch with symmetric memory (2.5 or newer) and its NCCL; one process for each GPU.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Empty
from typing import Any

from t3lab.measure.device import Lab, MissingHardware, Rows
from t3lab.measure.gemm import FEW, QUICK_SHAPES, Shape, sublayer, sublayers

KIND = "async_tp_trace"
SHAPES = (*FEW, *sublayers(("Mega-GPT-2",), ("OP", "FC-2"), (4,)), sublayer("T-NLG", "OP", 4))
N_WARM, N_CALLS = 5, 4
PATIENCE_S = 240.0
ON_GPU, BY_HOST = ("kernel", "gpu_memcpy", "gpu_memset"), ("cuda_runtime", "cuda_driver")
LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaMemcpy", "cudaMemset", "cuMemcpy", "cuMemset")  # first words of such calls
# The first whose word is in the name of a kernel or copy says what it is.
OPERATIONS = (
    ("barrier", "barrier_kernel"),
    ("order", "spin_kernel"),  # a short wait that makes both streams start in the same order on every GPU
    ("copy", "Memcpy"),
    ("zero", "Memset"),
    ("sum", "reduce"),
    ("gemm", ""),
)


def rows_of(events: Sequence[Mapping[str, Any]]) -> Rows:
    """Yield the operations of one call, in the order of their starts, from the profiler's *events* of one GPU.

    Times count from the first start, in ns; streams, and threads of the host that launch, are numbered in the order in
    which they are first seen.
    """

    def is_launch(event: Mapping[str, Any]) -> bool:
        return event.get("cat") in BY_HOST and event["name"].startswith(LAUNCHES)

    found = [event for event in events if event.get("cat") in ON_GPU or is_launch(event)]
    found.sort(key=lambda event: event["ts"])
    streams: dict[tuple[bool, int], int] = {}
    for number, event in enumerate(found):
        start, by_host = event["ts"] - found[0]["ts"], is_launch(event)
        stream = streams.setdefault((by_host, event["tid"] if by_host else event["args"]["stream"]), len(streams))
        operation = next(operation for operation, word in OPERATIONS if word in event["name"])
        operation = "launch" if by_host else operation
        yield {
            "number": number, "operation": operation, "stream": stream,
            "start_ns": round(1e3 * start), "end_ns": round(1e3 * (start + event["dur"])),
            "kernel": event["name"].split("(")[0].strip()[:60],
        }  # fmt: skip


def traces(lab: Lab) -> Rows:
    """Yield every operation of a few calls of each shape; raises ``MissingHardware`` without PyTorch."""
    if lab.n_gpus < 2:
        raise MissingHardware("1 GPU", "async tensor parallelism needs two")
    try:
        processes = importlib.import_module("torch.multiprocessing").get_context("spawn")
    except ImportError as error:
        remedy = "install a PyTorch for the driver's CUDA"
        raise MissingHardware("async tensor parallelism needs PyTorch", remedy) from error
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    queue = processes.Queue()
    arguments = [(rank, lab.n_gpus, port, lab.effort.quick, queue) for rank in range(lab.n_gpus)]
    started = [processes.Process(target=_rank, args=one, daemon=True) for one in arguments]
    for process in started:
        process.start()
    try:
        for _ in started:
            yield from queue.get(timeout=PATIENCE_S)
    except Empty:
        missing = f"PyTorch's processes gave no answer in {PATIENCE_S:.0f} s"
        raise MissingHardware(missing, "see what they print") from None
    finally:
        for process in started:
            process.join(timeout=10)
            process.kill()


def _rank(rank: int, n: int, port: int, is_quick: bool, queue: Any) -> None:
    """Measure as one of *n* processes; put its rows into *queue*, all at once."""
    torch = importlib.import_module("torch")
    dist = importlib.import_module("torch.distributed")
    importlib.import_module("torch.distributed._symmetric_memory")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(n))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    rows = []
    for shape in QUICK_SHAPES[:1] if is_quick else SHAPES:
        for name, call in _calls(torch, dist.group.WORLD.group_name, shape, n).items():
            for repeat, events in enumerate(_profiled(torch, dist, call)):
                where = {"gpus": n, "call": name, "gpu": rank, "repeat": repeat}
                rows += [{**shape._asdict(), **where, **row} for row in rows_of(events)]
    dist.barrier()
    dist.destroy_process_group()
    queue.put(rows)


def _calls(torch: Any, group: str, shape: Shape, n: int) -> dict[str, Callable[[], object]]:
    """Return both calls of async tensor parallelism on random data: they need as many rows for each GPU."""
    random = {"device": "cuda", "dtype": torch.float16}
    a, b = torch.randn(shape.m, shape.k, **random), torch.randn(shape.k, shape.n, **random)
    shard = torch.randn(shape.m // n, shape.k, **random)
    operations = torch.ops.symm_mem
    return {
        "mm_rs": lambda: operations.fused_matmul_reduce_scatter(a, b, "sum", 0, group),
        "ag_mm": lambda: operations.fused_all_gather_matmul(shard, [b], 0, group),
    }


def _profiled(torch: Any, dist: Any, call: Callable[[], object]) -> Iterator[list[dict[str, Any]]]:
    """Yield the profiler's events of one call after another, all ranks beginning together."""
    for _ in range(N_WARM):
        call()
    for number in range(1 + N_CALLS):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            call()
            torch.cuda.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.json")
            profile.export_chrome_trace(str(path))
            events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        if number:  # the profiler starts up in the first: ranks wait for each other for longer than the call takes
            yield events
