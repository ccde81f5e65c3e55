"""Result folders made of records, as a run would leave them: tables, resolved points, time series."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from t3sim.analysis.strategies import Strategy, strategies_of
from t3sim.observe.timeline import Timeline
from t3sim.observe.waits import Wait
from t3sim.results.derive import derive
from t3sim.results.record import COLUMNS, RunRecord
from t3sim.results.waits import PointPhase
from t3sim.results.writer import write_results
from t3sim.strategies import Phase, baselines, in_order

SEQUENTIAL = RunRecord(
    model="T-NLG", sublayer="FC-2", tp=8, m=8192, n=4256, k=2128, machine="t3-150", strategy="sequential",
    mode="mirrored", time_us=1600.0, gemm_us=800.0, rs_us=420.0, ag_us=380.0,
    dram_gemm_read_bytes=500_000_000, dram_gemm_write_bytes=70_000_000, dram_rs_read_bytes=130_000_000,
)  # fmt: skip
T3 = dataclasses.replace(
    SEQUENTIAL, strategy="t3", arbitration="round_robin", time_us=1300.0, rs_us=None, fused_us=920.0,
    dram_rs_read_bytes=50_000_000,
)  # fmt: skip
DECLARED = {entry.name: entry.label for entry in in_order() if entry.order is not None}
N_STRATEGIES = 9  # as many as fit a figure of one column
STRATEGIES = tuple(name for name in DECLARED if "cu-split" not in name)[:N_STRATEGIES]
MACHINE = {
    "name": "t3-150",
    "gpu": {"n_compute_units": 80, "compute_clock": 1_400_000_000},
    "memory": {"n_channels": 32, "clock": 1_000_000_000, "access": 64, "timing": {"nCCDS": 2}},
    "link": {"bandwidth": 150_000_000_000, "latency": 500_000},
}


def point_of(record: RunRecord, machine: Mapping[str, Any] = MACHINE) -> dict[str, Any]:
    """Return what resolved.json says about the point of *record*."""
    gemm = {"m": record.m, "n": record.n, "k": record.k}
    workload = {"model": record.model, "sublayer": record.sublayer, "tp": record.tp, "gemm": gemm, "collective": None}
    return {
        "machine": {**machine, "name": record.machine}, "workload": workload, "strategy": record.strategy,
        "mode": record.mode,
    }  # fmt: skip


def row_of(record: RunRecord) -> dict[str, Any]:
    """Return the row that represents *record* in the table."""
    return {**{name: getattr(record, name) for name in COLUMNS}, "strategy": declared(record.strategy)}


def declared(strategy: str) -> Strategy:
    """Return the name *strategy* with what it declares."""
    return strategies_of([{"strategy": strategy}], DECLARED)[strategy]


def phase_of_point(
    point: int, name: str, waits: Sequence[Wait], mode: str = "mirrored", sublayer: str = "FC-2"
) -> PointPhase:
    """Return a phase in which units waited for *waits*, a microsecond for each tick."""
    phase = Phase(name, 0, {}, Timeline(), waits=tuple(waits))
    return PointPhase(point, "T-NLG", sublayer, 8, "t3-150", "t3", mode, 1.0, phase)


def write_folder(
    folder: Path,
    records: Sequence[RunRecord],
    axes: Mapping[str, Sequence[str]] | None = None,
    points: Sequence[Mapping[str, Any]] | None = None,
    **about: Any,
) -> Path:
    """Write *records*, compared with each other, the columns of swept *axes* and what resolved.json says."""
    folder.mkdir(parents=True, exist_ok=True)
    machines = list(zip(*axes.values(), strict=True)) if axes else None
    csv, _ = write_results(folder, derive(records, baselines(), machines))
    if axes:
        frame = pd.read_csv(csv, dtype=str, keep_default_na=False)
        frame.assign(**axes).to_csv(csv, index=False, lineterminator="\n")
    points = points or [point_of(record) for record in records]
    resolved = {"name": folder.name, "strategies": DECLARED, **about, "points": points}
    (folder / "resolved.json").write_text(json.dumps(resolved), encoding="utf-8")
    return folder


def study(n_cases: int, strategies: Sequence[str] = STRATEGIES) -> list[RunRecord]:
    """Return the first *n_cases* of the 16 sublayers of the T3 study under all strategies."""
    names = [("Mega-GPT-2", 8), ("Mega-GPT-2", 16), ("T-NLG", 8), ("T-NLG", 16)]
    cases = [(model, tp, sublayer) for model, tp in names for sublayer in ("OP", "FC-2", "FC-1", "IP")][:n_cases]
    return [
        dataclasses.replace(record, model=model, tp=tp, sublayer=sublayer, strategy=strategy)
        for model, tp, sublayer in cases
        for strategy in strategies
        for record in [SEQUENTIAL if strategy == "sequential" else T3]
    ]


def link_sweep(folder: Path, **about: Any) -> Path:
    """A sweep over the link bandwidth in which t3-mca overtakes t3 between 50 and 100 GB/s."""
    values = ["50 GB/s", "100 GB/s", "200 GB/s"]
    speedups = {"sequential": [1.0, 1.0, 1.0], "t3": [1.4, 1.2, 1.1], "t3-mca": [1.2, 1.3, 1.3]}
    records, axis = [], []
    for i, value in enumerate(values):
        for strategy, line in speedups.items():
            record = SEQUENTIAL if strategy == "sequential" else T3
            machine = f"t3-150+link.bandwidth={value.replace(' ', '')}"
            records.append(
                dataclasses.replace(record, strategy=strategy, machine=machine, time_us=1600.0 / line[i], fused_us=None)
            )
            axis.append(value)
    return write_folder(folder, records, {"machine.link.bandwidth": axis}, **about)


def time_series(folder: Path, *, has_waiting: bool = True) -> Path:
    """Add a time series to *folder*: a GEMM that reads, then writes; fused runs with communication."""
    frames = []
    for phase in ("gemm", "reduce-scatter", "fused, round_robin", "fused, mca"):
        is_fused = phase.startswith("fused")
        times = [float(t) for t in range(80)]
        is_burst = [t % 20 >= 16 for t in range(80)]
        frame = pd.DataFrame(
            {
                "model": "T-NLG", "sublayer": "FC-2", "tp": 8, "machine": "t3-150", "phase": phase, "time_us": times,
                "compute_read_gbps": [0.0 if burst else 400.0 for burst in is_burst],
                "compute_write_gbps": [800.0 if burst else 0.0 for burst in is_burst],
                "comm_read_gbps": 50.0 if is_fused else 0.0,
                "comm_write_gbps": 60.0 if is_fused else 0.0,
                "waiting_compute_units": 12.0 if is_fused else 2.0,
            }
        )  # fmt: skip
        frames.append(frame if has_waiting else frame.drop(columns="waiting_compute_units"))
    pd.concat(frames).to_parquet(folder / "timeseries.parquet")
    return folder
