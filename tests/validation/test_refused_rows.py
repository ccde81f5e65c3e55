"""A legal row that the simulator refuses has points with a reason, and takes no other with it, whatever its kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from t3lab.measurements.floors import ring_bytes
from t3lab.measurements.reading import read_measurements
from t3lab.validation.kinds import COMPARED, WITHOUT_SIMULATION
from t3lab.validation.points import NOT_SIMULATED, Points, compared
from tests.faults.refusals import t3sim_here
from tests.harness.measured import CHANNELS, ROWS, SHAPE, SUBLAYER, collective, spread, tile, tiling, tiny, write_folder

MOST_GPUS = "machine.link.max_gpus=8"
ENGINES = "machine.gpu.copy_engines={number: 2, startup: 1 us, bandwidth: 4 GB/s, max_outstanding_lines: 64}"
FINE = collective("all_gather", 16384, 20.0)
VAST = {"m": 1 << 30, "n": 64, "k": 1 << 20}  # an operand of 2^51 bytes
LONG = 1e13
ROUTED = {"gpus": 16, "tokens_per_gpu": 8, "hidden": 128, "top_k": 2, "experts": 32, "routing": "balanced"}
MANY = {**SUBLAYER, "gpus": 16, **SHAPE}
FUSED = {**SUBLAYER, "gpus": 4, **SHAPE, "m": 1024}  # 16 rows of tiles make no groups of eight for each of four GPUs


def scattered_tile(wg: int, row: int, column: int) -> dict[str, Any]:
    return tile(wg, row, column, kernel="scatter") | {"m": 1024}


TILES = [scattered_tile(wg, *at) for wg, at in enumerate(((0, 0), (0, 1), (1, 0), (1, 1)))]
FUSED_TIMES = dict.fromkeys(
    ("gemm_cublas_us", "gemm_triton_us", "seq_us", "flux_us", "flux_noswz_us", "scatter_only_us",
     "scatter_only_noswz_us", "reduce_us"), 90.0,
)  # fmt: skip
BESIDE_TIMES = {"gemm_alone_us": 30.0, "rs_alone_us": 8.0, "gemm_with_rs_us": 33.0, "rs_with_gemm_us": 10.0}
REFUSED: dict[str, dict[str, list[dict[str, Any]]]] = {
    "collectives": {
        "collectives": [FINE | {"gpus": 16, "busbw_gbps": round(ring_bytes("all_gather", 16, 16384) / 20e3, 4)}]
    },
    "gemm": {"gemm": [{**SUBLAYER, **VAST, **spread(LONG), "tflops": round(2 * 2.0**56 / LONG / 1e6, 4)}]},
    "gemm_gaps": {"gemm_gaps": [{**SUBLAYER, **VAST, "gap_us": 500, **spread(LONG)}]},
    "gemm_sm_split": {"gemm_sm_split": [{**SUBLAYER, **VAST, "sms": 2, "time_us": LONG}]},
    "sequential": {"sequential": [{**MANY, "gemm_us": 30.0, "rs_us": 8.0, "gemm_rs_us": 38.0, "gemm_rs_ag_us": 46.0}]},
    "operators": {"operators": [{"op": "gemm-rs", **SHAPE, "tp": 16, "time_us": 50.0}]},
    "contention": {"contention": [{**MANY, "nccl_channels": "auto", **BESIDE_TIMES}]},
    "contention_sm_split": {"contention_sm_split": [{**MANY, "nccl_channels": "auto", "sms": 2, **BESIDE_TIMES}]},
    "tile_timelines": {"tile_timelines": TILES, "fused_scatter": [FUSED | FUSED_TIMES]},
    "fused_scatter": {"tile_timelines": TILES, "fused_scatter": [FUSED | FUSED_TIMES]},
    "peer_copy": {"peer_copy": [{"pattern": "uni", "bytes": 1 << 45, "time_us": 1e9, "gbps_per_direction": 35.1844}]},
    "transfers": {
        "transfers": [ROWS["transfers"][0] | {"bytes": 1 << 45, "time_us": 1e10, "gbps": 2 * 2.0**45 / 1e13}]
    },
    "async_tp": {"async_tp": [MANY | {"mm_rs_us": 300.0, "ag_mm_us": 200.0, "ag_then_mm_us": 250.0}]},
    "grouped_gemm": {
        "grouped_gemm": [
            {"tokens": 1 << 22, "experts": 4, "n": 64, "k": 1 << 20, "routing": "balanced", "time_us": LONG}
        ]
    },
    "dispatch_combine": {
        "dispatch_combine": [{**ROUTED, "exchange": "dispatch", "kernel": "deepep_normal", "time_us": 90.0}]
    },
    "moe": {"moe": [{**ROUTED, "intermediate": 64, "kernel": "moe-low-latency", "time_us": 90.0}]},
    "memory_contention": {
        "memory_contention": [
            {"probe": "copy", "probe_sms": 1, "bytes": 1 << 45, "beside": "nothing", "beside_sms": 0, **spread(1e10),
             "beside_gbps": 0}
        ]
    },
}  # fmt: skip


def test_every_kind_that_is_simulated_is_here() -> None:
    assert set(REFUSED) == set(COMPARED) - set(WITHOUT_SIMULATION)


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refused_row_says_why_and_the_others_stay(kind: str, tmp_path: Path) -> None:
    tables = REFUSED[kind]
    write_folder(tmp_path, {**tables, "collectives": [*tables.get("collectives", []), FINE]})
    found = read_measurements(tmp_path)
    assert found.refused == ()  # the row is legal
    points = Points(tiny(MOST_GPUS, ENGINES, *SWITCH), tiling()).of(found)
    refused = [point for point in points if point.row.kind == kind and not point.terms]
    assert refused
    reasons = (
        "`machine.link.max_gpus`",
        "has more than 1 TiB",
        "at most 1 TiB",
        "no whole groups",
        "main loop",
        "all compute units",
    )
    assert all(any(word in point.reason for word in reasons) for point in refused)
    assert {one.status for one in compared(refused, {})} == {NOT_SIMULATED}
    fine = [point for point in points if point.kind == "collectives" and point.row["gpus"] == 2]
    assert [bool(point.terms) for point in fine] == [True]


SWITCH = ("machine.link.topology=switch", "machine.link.ingress_buffer=64 KiB")


def test_a_folder_of_refused_rows_ends_well(tmp_path: Path) -> None:
    """Through the command: each row has its line in the table, and the exit code says that nothing failed."""
    tables = {name: rows for one in REFUSED.values() for name, rows in one.items()}
    write_folder(tmp_path / "x", tables | {"collectives": [*tables["collectives"], FINE]})
    changes = [part for change in (*CHANNELS, *SWITCH, MOST_GPUS, ENGINES) for part in ("-s", change)]
    fixed = ("--machine", "t3-tiny", "--tiling", "gemm-64x64", "-j", "1", "-o", str(tmp_path / "out"))
    kinds = ("--kinds", "collectives,tile_timelines,gemm,peer_copy,transfers,memory_contention,gemm_gaps")
    answer = t3sim_here("validate", str(tmp_path / "x"), *fixed, *kinds, *changes)
    assert answer.code == 0, answer.errors
    lines = (tmp_path / "out" / "validation.csv").read_text().splitlines()[1:]
    assert sum(",simulated," in line for line in lines) == 1
    assert all(",not simulated," in line for line in lines if ",simulated," not in line)
