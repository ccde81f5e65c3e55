"""Grouped GEMMs of experts on one GPU, by PyTorch.

Calls are captured in one CUDA graph, with weights that rotate over more memory than the L2 has, so that no call finds
them there.  Needs PyTorch 2.9 or newer (``torch._grouped_mm``); a process of its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from queue import Empty
from typing import Any

from t3lab.measure.device import Lab, MissingHardware, Rows

KIND = "grouped_gemm"
LAYERS = ((8, 7168, 4096), (64, 4096, 7168), (32, 1536, 2048))  # experts, n, k
TOKENS, FEW_TOKENS = (64, 256, 1024, 4096, 8192), (1024,)
ROUTINGS = ("balanced", "zipf_1")
ROTATED_BYTES = 260 << 20
N_WARM, N_REPLAYS, MOST_CALLS, LEAST_CALLS = 2, 7, 60, 12
PATIENCE_S = 300.0


def rows_of_experts(routing: str, tokens: int, experts: int) -> list[int]:
    """Return the rows of each expert: as many for each, or proportional to 1 / rank with the rest to the first."""
    if routing == "balanced":
        return [tokens // experts + (expert < tokens % experts) for expert in range(experts)]
    whole = sum(1 / rank for rank in range(1, experts + 1))
    found = [int(tokens / rank / whole) for rank in range(1, experts + 1)]
    found[0] += tokens - sum(found)
    return found


def grouped_gemms(lab: Lab) -> Rows:
    """Yield the grouped GEMMs of each layer; raises ``MissingHardware`` without PyTorch."""
    try:
        processes = importlib.import_module("torch.multiprocessing").get_context("spawn")
    except ImportError as error:
        remedy = "install a PyTorch for the driver's CUDA"
        raise MissingHardware("grouped GEMMs need PyTorch", remedy) from error
    queue = processes.Queue()
    process = processes.Process(target=_measured, args=(lab.effort.quick, queue), daemon=True)
    process.start()
    try:
        yield from queue.get(timeout=PATIENCE_S)
    except Empty:
        missing = f"PyTorch's process gave no answer in {PATIENCE_S:.0f} s"
        raise MissingHardware(missing, "see what it prints") from None
    finally:
        process.join(timeout=10)
        process.kill()


def _measured(is_quick: bool, queue: Any) -> None:
    """Measure in a process of its own; put all rows into *queue* at once."""
    torch = importlib.import_module("torch")
    found = []
    for experts, n, k in LAYERS[-1:] if is_quick else LAYERS:
        copies = max(2, -(-ROTATED_BYTES // (2 * experts * n * k)))
        weights = [torch.randn(experts, k, n, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
        for tokens in FEW_TOKENS if is_quick else TOKENS:
            for routing in ROUTINGS:
                rows = rows_of_experts(routing, tokens, experts)
                shape = {"tokens": tokens, "experts": experts, "n": n, "k": k, "routing": routing}
                facts = {"largest": max(rows), "element": "bf16", "operands": "rotated", "kernel": "torch-grouped"}
                found.append({**shape, **facts, "time_samples_us": _timed(torch, weights, rows)})
        del weights
    queue.put(found)


def _timed(torch: Any, weights: Sequence[Any], rows: Sequence[int]) -> list[float]:
    """Return microseconds of a call, of each replay of a graph of many."""
    a = torch.randn(sum(rows), weights[0].shape[1], device="cuda", dtype=torch.bfloat16)
    ends = torch.tensor(rows, device="cuda").cumsum(0).to(torch.int32)

    def calls(count: int) -> None:
        for i in range(count):
            torch._grouped_mm(a, weights[i % len(weights)], offs=ends)  # noqa: SLF001 - has no public name yet

    calls(N_WARM)
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    calls(LEAST_CALLS)
    end.record()
    torch.cuda.synchronize()
    count = int(min(MOST_CALLS, max(LEAST_CALLS, 20 / (begin.elapsed_time(end) / LEAST_CALLS))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        calls(count)
    times = []
    for _ in range(N_WARM + N_REPLAYS):
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / count)
    return times[N_WARM:]
