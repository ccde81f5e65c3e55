"""Published targets: each is computed from the results as it should be, and can be met, missed and not run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from t3sim.analysis.folder import Results, read_folder
from t3sim.config.yaml_loader import load_yaml
from t3sim.results.record import RunRecord
from t3sim.workload.models import named_model
from t3study.checks import CHECKS
from t3study.targets import MET, MISSED, NOT_RUN, Comparison, compare, read_targets
from tests.analysis.folders import MACHINE, point_of, time_series, write_folder
from tests.conftest import REPOSITORY
from tests.harness.machines import machine as shipped

FILE = REPOSITORY / "validation" / "targets.yaml"
TARGETS = read_targets(load_yaml(FILE).plain(), "targets.yaml")
NEVER_RUN = {"t3.track.threshold"}  # not in result files
TIMES = {
    "sequential": 100.0,
    "t3": 100 / 1.2,
    "t3-mca": 100 / 1.3,
    "published-overlap": 100 / 1.35,
    "published-rs-nmc": 100 / 1.4,
}
TILING = {"workgroup_tile": [256, 128], "wavefront_tile": [64, 64]}


def record_of(model: str, tp: int, sublayer: str, strategy: str, time_us: float, **changes: Any) -> RunRecord:
    """A sublayer with the counts that follow from the ring: in chunks, sequential and fused (docs/model.md)."""
    hidden, tokens = {"Mega-GPT-2": (3072, 16384), "T-NLG": (4256, 8192)}.get(model, (12288, 2048))
    chunk = 2 * hidden * tokens // tp
    is_fused = strategy.startswith("t3")
    link_us = (tp - 1) * (chunk / 150e3 + 0.5)
    rs_us = link_us * (1.005 if strategy == "published-rs-nmc" else 1.005 * (1.07 if tp == 8 else 1.03))
    values: dict[str, Any] = {
        "model": model, "sublayer": sublayer, "tp": tp, "m": tokens, "n": hidden, "k": 4 * hidden // tp,
        "machine": "t3-150", "strategy": strategy, "mode": "mirrored", "time_us": time_us, "gemm_us": 400.0,
        "rs_us": None if is_fused else rs_us, "ag_us": link_us, "mca_threshold": "30" if strategy == "t3-mca" else None,
        "dram_gemm_write_bytes": (tp - is_fused) * chunk,
        "dram_rs_read_bytes": (tp - 2 if is_fused else 2 * tp - 1) * chunk,
        "dram_rs_write_bytes": (tp - is_fused) * chunk, "dram_ag_read_bytes": (tp - 1) * chunk,
        "dram_ag_write_bytes": (tp - 1) * chunk, "link_bytes": 2 * (tp - 1) * chunk,
    }  # fmt: skip
    return RunRecord(**{**values, **changes})


def study_records(times: dict[str, float]) -> list[RunRecord]:
    return [
        record_of(model, tp, sublayer, strategy, time)
        for model in ("Mega-GPT-2", "T-NLG")
        for tp in (8, 16)
        for sublayer in ("OP", "FC-2", "FC-1", "IP")
        for strategy, time in times.items()
    ]


def write_study(folder: Path, records: list[RunRecord], machine: dict[str, Any] | None = None) -> Results:
    """Write the records with the shipped machine as resolved."""
    machine = machine or shipped("t3-150").model_dump(mode="json")
    points = [point_of(record, machine) for record in records]
    for point in points:
        point["workload"]["tiling"] = TILING
    return read_folder(write_folder(folder, records, points=points))


def rows_by_id(*folders: Results) -> dict[str, Comparison]:
    return {row.id: row for row in compare(folders, TARGETS)}


def test_the_file_and_the_code_know_the_same_targets() -> None:
    assert [target.id for target in TARGETS] == list(dict.fromkeys(target.id for target in TARGETS))
    assert {target.id for target in TARGETS} == set(CHECKS)


def test_bands_are_the_rounding_of_the_printed_number_or_say_why() -> None:
    checked = 0
    for target in TARGETS:
        printed = target.published.removesuffix(" %")
        if target.band is None or not printed.replace(".", "", 1).isdigit():
            continue
        unit = 0.01 if target.published.endswith("%") else 1.0
        value, (low, high) = float(printed) * unit, target.band
        value += low > 1 > value  # a gain of 7 % is a ratio of 1.07
        assert low <= value <= high, target.id
        half = 0.5 * unit * 10.0 ** -len(printed.partition(".")[2])
        is_count = low == high == value
        if not (target.because or is_count):
            assert (low, high) == (pytest.approx(value - half), pytest.approx(value + half)), target.id
            checked += 1
    assert checked >= 8


def test_without_results_of_the_study_nothing_is_met_and_nothing_is_hidden(tmp_path: Path) -> None:
    other = RunRecord(tp=4, machine="t3-tiny", strategy="sequential", mode="mirrored", time_us=1.0)
    rows = rows_by_id(read_folder(write_folder(tmp_path, [other], points=[{}])))
    assert list(rows) == [target.id for target in TARGETS]
    assert {row.verdict for row in rows.values()} == {NOT_RUN}
    assert rows["t3.t3.geomean"].ours == "0 of 16 sublayers with sequential and t3"


def test_counts_of_a_perfect_ring_meet_their_targets(tmp_path: Path) -> None:
    rows = rows_by_id(write_study(tmp_path, study_records(TIMES)))
    exact = [
        "t3.data.ag_constant", "t3.data.rs_reads_tp8", "t3.data.rs_reads_tp16", "t3.data.rs_reads_geomean",
        "t3.data.writes_tp8", "t3.data.writes_tp16", "t3.data.writes_geomean", "t3.rs.step_traffic", "t3.rs.steps",
        "t3.fused.dma_steps", "t3.nmc.rs_tp8", "t3.nmc.rs_tp16", "t3.nmc.final_step_only",
    ]  # fmt: skip
    assert {name: rows[name].verdict for name in exact} == dict.fromkeys(exact, MET)
    assert rows["t3.data.rs_reads_tp16"].ours == "2.214"
    assert rows["t3.rs.steps"].ours == "7.00 of 8, 15.00 of 16"


def test_speedups_are_ratios_of_the_times(tmp_path: Path) -> None:
    rows = rows_by_id(write_study(tmp_path, study_records(TIMES)))
    ours = {
        name: rows[name].ours
        for name in ("t3.t3.geomean", "t3.mca.geomean", "t3.mca_over_t3.geomean", "t3.mca.vs_ideal")
    }
    assert ours == {
        "t3.t3.geomean": "1.2", "t3.mca.geomean": "1.3", "t3.mca_over_t3.geomean": "1.083", "t3.mca.vs_ideal": "0.05",
    }  # fmt: skip
    assert rows["t3.order"].ours == "16 of 16"
    assert [rows[name].verdict for name in (*ours, "t3.order")] == [MET] * 5


def test_the_shipped_machine_and_models_are_those_of_the_tables(tmp_path: Path) -> None:
    records = study_records({"sequential": 100.0})
    for name in ("GPT-3", "PALM", "MT-NLG"):
        model = named_model(name).spec
        shape = {"m": model.tokens, "n": model.hidden}
        records.append(record_of(name, model.tensor_parallel[0], "OP", "sequential", 100.0, **shape))
    rows = rows_by_id(write_study(tmp_path, records))
    configuration = [name for name in rows if name.startswith(("t3.table", "t3.track.")) and name not in NEVER_RUN]
    configuration.append("t3.nmc.ccdwl")
    assert len(configuration) == 15
    assert {name: rows[name].verdict for name in configuration} == dict.fromkeys(configuration, MET)


LAYER_SPEEDUPS = {"training": {"t3": 1.07, "t3-mca": 1.1}, "prompt": {"t3": 1.09, "t3-mca": 1.12}}


def layer_records(kind: str, models: Mapping[str, tuple[int, ...]]) -> list[RunRecord]:
    """Whole layers of 100 us, 34 (43) of them in all-reduces, with the geometric means that the study prints."""
    ring = {"rs_us": {"training": 19.0, "prompt": 25.0}[kind], "ag_us": {"training": 15.0, "prompt": 18.0}[kind]}
    return [
        dataclasses.replace(
            record_of(model, tp, "OP", strategy, 100 / speedup, **ring), sublayer=None, k=None, layer=kind
        )
        for model, degrees in models.items()
        for tp in degrees
        for strategy, speedup in {"sequential": 1.0, **LAYER_SPEEDUPS[kind]}.items()
    ]


def write_layers(folder: Path, records: list[RunRecord], attention: str = "unfused") -> Results:
    points = [point_of(record, shipped("t3-150").model_dump(mode="json")) for record in records]
    for record, point in zip(records, points, strict=True):
        model = {"tokens": record.m, "hidden": record.n}
        point["workload"] |= {"gemm": None, "layer": {"kind": record.layer, "attention": attention, "model": model}}
    return read_folder(write_folder(folder, records, points=points))


SMALLER = {"Mega-GPT-2": (8, 16), "T-NLG": (8, 16)}


def all_layers() -> list[RunRecord]:
    return [record for kind in LAYER_SPEEDUPS for record in layer_records(kind, SMALLER)]


def layer_rows(results: Results) -> dict[str, Comparison]:
    return {name: row for name, row in rows_by_id(results).items() if name.startswith("t3.layer.")}


def test_layers_are_compared_with_the_iterations_of_the_study(tmp_path: Path) -> None:
    rows = layer_rows(write_layers(tmp_path / "study", all_layers()))
    met = [f"t3.layer.{name}" for name in ("t3_training", "t3_prompt", "mca_training", "mca_prompt")]
    met += ["t3.layer.communication_training", "t3.layer.communication_prompt"]
    assert {name: rows[name].verdict for name in met} == dict.fromkeys(met, MET)
    largest = rows["t3.layer.mca_training_max"]
    assert (largest.verdict, largest.ours) == (MISSED, "1.1 (Mega-GPT-2, TP 8)")
    large = layer_records("training", dict.fromkeys(("GPT-3", "PALM", "MT-NLG"), (32,)))
    large[5] = dataclasses.replace(large[5], time_us=100 / 1.12)
    rows = layer_rows(write_layers(tmp_path / "large", large))
    assert rows["t3.layer.mca_training_large"].ours == "1.12 (PALM, TP 32)"
    assert rows["t3.layer.mca_training_large"].verdict == MET
    assert rows["t3.layer.mca_prompt_large"].verdict == NOT_RUN


def split_records(factor: float = 1.0) -> list[RunRecord]:
    """OP of both models: a GEMM of 100 us and an all-reduce of 149.25, which split units slow down as published."""
    records = []
    for model in SMALLER:
        whole = {"gemm_us": 100.0, "rs_us": 80.0, "ag_us": 149.25 * factor - 80.0}
        records.append(record_of(model, 8, "OP", "sequential", 200.0, **whole))
        for n_units, gemm, ring in ((8, 1.1, 1.41), (16, 1.21, 1.07)):
            slower = {"gemm_us": 100 * gemm, "rs_us": 80 * ring, "ag_us": (149.25 * factor - 80) * ring}
            record = record_of(model, 8, "OP", "isolated-cu-split", 200.0, **slower)
            records.append(dataclasses.replace(record, communication_units=n_units))
    return records


def test_split_compute_units_are_compared_with_figure_6(tmp_path: Path) -> None:
    rows = rows_by_id(write_study(tmp_path / "study", split_records()))
    ours = {name.removeprefix("t3.cu."): row for name, row in rows.items() if name.startswith("t3.cu.")}
    met = ["ideal", "all_reduce_8", "potential_8", "all_reduce_16", "gemm_64"]
    assert {name: ours[name].verdict for name in met} == dict.fromkeys(met, MET)
    assert float(ours["potential_16"].ours) == pytest.approx(249.25 / (149.25 * 1.07), rel=1e-3)
    rows = rows_by_id(write_study(tmp_path / "longer", split_records(1.1)))
    assert rows["t3.cu.ideal"].verdict == rows["t3.cu.potential_8"].verdict == MISSED
    whole_units = [record for record in split_records() if record.communication_units != 8]
    assert rows_by_id(write_study(tmp_path / "none", whole_units))["t3.cu.all_reduce_8"].verdict == NOT_RUN


# Canaries: a defect in the results turns its target red.


def test_a_machine_of_other_values_misses_the_tables(tmp_path: Path) -> None:
    machine = shipped("t3-150").model_dump(mode="json")
    machine["gpu"]["l2"]["capacity"] //= 2
    machine["gpu"]["n_compute_units"] = 160
    machine["gpu"]["tracker"]["n_sets"] = 128
    machine["memory"]["timing"]["nCCDWL"] += 1
    machine["link"]["bandwidth"] //= 2
    rows = rows_by_id(write_study(tmp_path, study_records({"sequential": 100.0}), machine))
    wrong = ["t3.table1.l2", "t3.table1.cus", "t3.track.entries", "t3.track.size", "t3.nmc.ccdwl", "t3.table1.link"]
    assert {name: rows[name].verdict for name in wrong} == dict.fromkeys(wrong, MISSED)


def test_traffic_over_time_has_bursts_or_not(tmp_path: Path) -> None:
    results = write_study(tmp_path, study_records({"sequential": 100.0}))
    time_series(tmp_path)
    assert rows_by_id(results)["t3.fig17"].verdict == MET
    series = pd.read_parquet(tmp_path / "timeseries.parquet")
    series["compute_write_gbps"] = 100.0
    series.to_parquet(tmp_path / "timeseries.parquet")
    assert rows_by_id(results)["t3.fig17"].verdict == MISSED


def test_ring_error_needs_three_sizes(tmp_path: Path) -> None:
    sizes = [12, 48, 192]
    records, points = [], []
    for size in sizes:
        chunk = size * 1e6 / 4
        exact = 3 * (chunk / 150e3 + 0.5) + 3 * chunk / 1.024e6
        records.append(
            RunRecord(tp=4, machine="t3-150", strategy="sequential", mode="mirrored", time_us=exact, rs_us=exact * 1.03)
        )
        collective = {"op": "reduce-scatter", "size": size * 1_000_000, "gpus": 4}
        workload = {"model": None, "sublayer": None, "tp": 1, "gemm": None, "collective": collective}
        points.append({"machine": MACHINE, "workload": workload, "strategy": "sequential", "mode": "mirrored"})
    row = rows_by_id(read_folder(write_folder(tmp_path / "a", records, points=points)))["t3.fig14.error"]
    assert (row.verdict, row.ours) == (MET, "0.0300 over 3 sizes")
    slow = [dataclasses.replace(record, rs_us=(record.rs_us or 0) * 1.1) for record in records]
    assert (
        rows_by_id(read_folder(write_folder(tmp_path / "b", slow, points=points)))["t3.fig14.error"].verdict == MISSED
    )
    two = read_folder(write_folder(tmp_path / "c", records[:2], points=points[:2]))
    assert rows_by_id(two)["t3.fig14.error"].verdict == NOT_RUN


# reading the file
