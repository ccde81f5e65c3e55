"""Small folders of measurements, a row for each way in which one can be treated, and a machine that is fast to run."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from t3lab.cli.validate import machine_of
from t3lab.measurements.floors import ring_bytes
from t3lab.measurements.kinds import KINDS
from t3lab.measurements.reading import read_measurements
from t3lab.measurements.samples import Measurements
from t3sim.config.experiment import TilingSpec
from t3sim.config.machine import MachineSpec
from t3sim.config.presets import load_tiling
from tests.conftest import REPOSITORY

SUBLAYER = {"model": "-", "sublayer": "-", "tp": 1}
SHAPE = {"m": 128, "n": 128, "k": 128}
# On two GPUs, flags inside the data are expected to be quicker up to 8 KiB: 2 us of start over 4 KiB at 2 GB/s more.
EXPECTED = "{start: 3 us, step: 0 us, bandwidth: 4 GB/s}"
LOW_LATENCY = (
    "{launch: 0 us, slice_overhead: 0 us, chunk: 4 KiB, slices: 2, least_slice: 1 KiB, data_per_line: 64 B, "
    "expected: {start: 1 us, step: 0 us, bandwidth: 1333 MB/s}}"
)
CHANNELS = (
    "machine.gpu.collective_kernel.kind=channels",
    "machine.gpu.collective_kernel.channels=2",
    "machine.gpu.collective_kernel.channel_chunk=4 KiB",
    f"machine.gpu.collective_kernel.expected={EXPECTED}",
    f"machine.gpu.collective_kernel.low_latency={LOW_LATENCY}",
)


@cache
def of_h200s() -> Measurements:
    """The shipped measurements of H200s, read once in a process; not to be changed."""
    return read_measurements(REPOSITORY / "validation" / "h200")


@cache
def tiny(*overrides: str) -> MachineSpec:
    """t3-tiny with collectives in channels."""
    return machine_of("t3-tiny", (*CHANNELS, *overrides))


@cache
def tiling() -> TilingSpec:
    return load_tiling("gemm-64x64")


def spread(us: float) -> dict[str, Any]:
    return {"time_us": us, "min_us": us, "max_us": us}


def gemm(us: float, **more: Any) -> dict[str, Any]:
    """A row of gemm.csv, without its spread if *more* has SMs."""
    n_flops = 2 * SHAPE["m"] * SHAPE["n"] * SHAPE["k"]
    return {**SUBLAYER, **SHAPE, **spread(us), "tflops": round(n_flops / us / 1e6, 4), **more}


def collective(name: str, n_bytes: int, us: float, channels: str = "auto", protocol: str = "auto") -> dict[str, Any]:
    bus = round(ring_bytes(name, 2, n_bytes) / us / 1e3, 4)
    return {"collective": name, "gpus": 2, "bytes": n_bytes, "nccl_channels": channels, "nccl_proto": protocol,
            **spread(us), "busbw_gbps": bus}  # fmt: skip


def tile(wg: int, row: int, column: int, kernel: str = "tiled") -> dict[str, Any]:
    """A tile of the GEMM on one of four SMs, 20 us long."""
    return {**SUBLAYER, **SHAPE, "kernel": kernel, "wg": wg, "tile_row": row, "tile_col": column, "sm": wg % 4,
            "start_ns": wg, "mainloop_end_ns": wg + 15000, "end_ns": wg + 20000,
            "tile_height": 64, "tile_width": 64}  # fmt: skip


def transfer(pattern: str, us: float, means: str = "copy", lane: str = "all", gpus: int = 3) -> dict[str, Any]:
    """A row of transfers.csv: one way, a transfer for each GPU but one, 64 KiB each."""
    n = gpus - 1 if lane == "all" else 1
    return {"pattern": pattern, "means": means, "ways": "one", "gpus": gpus, "lane": lane, "bytes": 1 << 16,
            "transfers": n, "time_us": us, "gbps": n * (1 << 16) / us / 1e3}  # fmt: skip


FOUR_TILES = ((0, 0), (0, 1), (1, 0), (1, 1))

ROWS: dict[str, list[dict[str, Any]]] = {
    "collectives": [
        collective("reduce_scatter", 16384, 6.0),
        collective("all_gather", 16384, 6.0),
        collective("all_reduce", 16384, 9.0),
        collective("reduce_scatter", 16384, 7.0, channels="1"),
        collective("reduce_scatter", 4096, 5.0, protocol="Simple"),
        collective("reduce_scatter", 4096, 4.0),
        collective("reduce_scatter", 4096, 3.0, protocol="LL128"),
    ],
    "gemm": [gemm(30.0, kernel="cublas"), gemm(90.0, kernel="tiled")],
    "gemm_gaps": [gemm(28.0, gap_us=500, kernel="cublas")],
    "gemm_sm_split": [
        {**SUBLAYER, **SHAPE, "sms": 4, "time_us": 31.0},
        {**SUBLAYER, **SHAPE, "sms": 2, "time_us": 52.0},
        {**SUBLAYER, **SHAPE, "sms": 5, "time_us": 29.0},
    ],
    "sequential": [
        {**SUBLAYER, "gpus": 2, **SHAPE, "gemm_us": 30.0, "rs_us": 8.0, "gemm_rs_us": 38.0, "gemm_rs_ag_us": 46.0}
    ],
    "contention": [
        {**SUBLAYER, "gpus": 2, **SHAPE, "nccl_channels": "auto", "gemm_alone_us": 30.0, "rs_alone_us": 8.0,
         "gemm_with_rs_us": 33.0, "rs_with_gemm_us": 10.0}
    ],
    "tile_timelines": [
        *(tile(wg, *at) for wg, at in enumerate(FOUR_TILES)),
        *(tile(wg, *at, kernel="scatter") for wg, at in enumerate(FOUR_TILES)),
    ],
    "memory": [{"pattern": "copy", "bytes": 1000000, "time_us": 10.0, "read_plus_write_gbps": 200.0}],
    "latency": [
        {"pattern": "l2_hit", "working_set_bytes": 4096, "time_ns": 300.0, "min_ns": 290.0, "max_ns": 310.0}
    ],
    "launch": [{"pattern": "host", **spread(2.0)}],
    "peer_access": [
        {"memory": "peer", "access_bytes": 16, "threads": 1024, "workgroups": 1, "access": "store",
         "pattern": "contiguous", "bytes": 100000, "time_us": 10.0, "gbps_per_direction": 10.0},
    ],
    "store_bursts": [
        {"memory": "peer", "access_bytes": 16, "threads": 256, "workgroups": 132, "burst_bytes": 65536,
         "issued_ns": 20000.0, "all_issued_ns": 21000.0, "time_ns": 25000.0, "min_ns": 24000.0, "max_ns": 26000.0},
    ],
    "transfers": [
        transfer("incast", 40.0),
        transfer("incast", 40.0, lane="1"),
        transfer("incast", 30.0, means="store"),
        transfer("incast", 30.0, lane="7"),
        transfer("pulls_two_peers", 50.0),
    ],
    "contention_sm_split": [
        {**SUBLAYER, "gpus": 2, **SHAPE, "nccl_channels": "auto", "sms": sms, "gemm_alone_us": 40.0, "rs_alone_us": 8.0,
         "gemm_with_rs_us": 43.0, "rs_with_gemm_us": 10.0} for sms in (2, 4)
    ],
    "memory_contention": [
        {"probe": probe, "probe_sms": 1, "bytes": n_bytes, "beside": beside, "beside_sms": n, **spread(us),
         "beside_gbps": 0}
        for probe, n_bytes, beside, n, us in (
            ("load", 2048, "nothing", 0, 6.0), ("load", 2048, "write", 3, 9.0), ("copy", 65536, "nothing", 0, 5.0),
            ("copy", 65536, "copy", 2, 7.0), ("read", 65536, "read", 4, 5.0),
        )
    ],
    "scatter_orders": [
        {**SUBLAYER, "gpus": 2, **SHAPE, "order": "next", "epilogue": "rows", **spread(90.0)},
    ],
    "scatter_timelines": [
        {**SUBLAYER, "gpus": 2, **SHAPE, "order": "next", "epilogue": "rows", "gpu": gpu, "wg": wg, "tile_row": row,
         "tile_col": column, "sm": wg, "start_ns": 0, "mainloop_end_ns": 15000, "end_ns": 20000 + wg}
        for gpu in (0, 1) for wg, (row, column) in enumerate(FOUR_TILES)
    ],
    "peer_copy": [{"pattern": "uni", "bytes": 100000, "time_us": 10.0, "gbps_per_direction": 10.0}],
}  # fmt: skip


def write_folder(folder: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]] | None = None) -> Path:
    """Write *tables* (default: ``ROWS``) as a folder of measurements with a short provenance; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"device": "NVIDIA H200", "driver": "1", "cuda": "13", "date": "2026-11-22"}
    (folder / "provenance.json").write_text(json.dumps(facts), encoding="utf-8")
    for kind, rows in (ROWS if tables is None else tables).items():
        known = [*KINDS[kind].names, *(column.name for column in KINDS[kind].optional)]
        header = [name for name in known if any(name in row for row in rows)]
        with (folder / f"{kind}.csv").open("w", newline="") as stream:
            writer = csv.DictWriter(stream, header, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return folder
