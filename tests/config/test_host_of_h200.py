"""What `h200` says of PyTorch's software follows from the trace of its calls on two GPUs."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest

from tests.harness.machines import machine

Row = dict[str, str]
BUSY = {("16384", "3072"), ("8192", "2128")}  # m and k of calls that the GPUs take longer for than the host
WARM = 9  # operations of a stream until all calls are alike


@pytest.fixture(scope="module")
def rows(repository: Path) -> list[Row]:
    with (repository / "validation" / "async-tp-trace.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def gaps(rows: list[Row], first: str, then: str) -> float:
    """The median time from the end of an operation to the start of the next of its stream."""
    streams = defaultdict(list)
    for row in rows:
        if (row["m"], row["k"]) in BUSY:
            streams[row["m"], row["k"], row["gpu"], row["stream"]].append(row)
    return median(
        float(b["start_us"]) - float(a["start_us"]) - float(a["duration_us"])
        for stream in streams.values()
        for a, b in zip(stream[WARM - 1 :], stream[WARM:], strict=False)
        if (a["operation"], b["operation"]) == (first, then)
    )


def lengths(rows: list[Row], operation: str, gpu: str, *, m: str = "16384") -> list[float]:
    """Of all operations of a kind in the calls of m rows, in order."""
    return [
        float(row["duration_us"])
        for stream in ("7", "21")
        for row in rows
        if (row["operation"], row["gpu"], row["m"], row["stream"]) == (operation, gpu, m, stream)
    ]


def test_launches(rows: list[Row]) -> None:
    host, engines = machine("h200").gpu.host, machine("h200").gpu.copy_engines
    assert host is not None
    assert engines is not None
    assert host.launch == pytest.approx(gaps(rows, "barrier", "sum") * 1e6, rel=0.02)
    both_ways = gaps(rows, "barrier", "copy") + gaps(rows, "copy", "barrier")
    assert engines.handover == pytest.approx(both_ways / 2 * 1e6 - host.launch, rel=0.02)
    clear = median(float(row["duration_us"]) for row in rows if row["operation"] == "clear")
    assert host.gemm_setup == pytest.approx(clear * 1e6 + host.launch, rel=0.03)


def test_barriers(rows: list[Row]) -> None:
    pairs = zip(lengths(rows, "barrier", "0"), lengths(rows, "barrier", "1"), strict=True)
    h200 = machine("h200")
    assert h200.gpu.host is not None
    assert h200.gpu.host.barrier + h200.link.latency == pytest.approx(median(map(min, pairs)) * 1e6, rel=0.02)


def test_copies(rows: list[Row]) -> None:
    host = machine("h200").gpu.host
    assert host is not None
    found = [8192 * 3072 * 2 / us / 1e3 for gpu in "01" for us in lengths(rows, "copy", gpu)]  # GB/s
    assert host.copy_bandwidth == pytest.approx(median(found) * 1e9, rel=0.02)
