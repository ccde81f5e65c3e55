"""Figures of rings with one GPU or link that differs, and of the order of dispatch: numbers, labels, refusals."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t3sim.analysis.bar_figures import fused_runs
from t3sim.analysis.figures import draw_figure
from t3sim.analysis.folder import Results, read_folder
from t3sim.analysis.heterogeneous import SLOW_LINK, START_SKEW, STRAGGLER, Effects, effects_of
from t3sim.experiment.planning.plan import load_experiment
from t3sim.observe.waits import Wait
from t3sim.results.csv_table import table_bytes
from t3sim.results.record import RunRecord
from t3sim.results.waits import SCHEMA, WAITS_CSV, waits_rows
from tests.analysis.folders import MACHINE, SEQUENTIAL, T3, phase_of_point, point_of, write_folder
from tests.conftest import REPOSITORY

CLOCK, BANDWIDTH, SKEW = "machine.gpu[3].compute_clock", "machine.link[3].bandwidth", "machine.start_skew.gpu[3]"
IDENTICAL: Mapping[str, Any] = {"own_gpus": [], "own_links": [], "start_skew": []}
HETEROGENEOUS: Mapping[str, Any] = {**IDENTICAL, "own_gpus": [{"number": 3}]}
WORKLOAD = "T-NLG FC-2, TP 8"


def ring_of(folder: Path, key: str, points: Sequence[tuple[str, RunRecord]], usual: str, **about: Any) -> Results:
    """Results of explicit *points*, each with its value of the axis *key*; rings with *usual* are of identical GPUs."""
    records = [dataclasses.replace(r, mode="explicit", machine=f"t3-150+{text}".replace(" ", "")) for text, r in points]
    resolved = [
        point_of(record, {**MACHINE, **(IDENTICAL if text == usual else HETEROGENEOUS)})
        for (text, _), record in zip(points, records, strict=True)
    ]
    write_folder(folder, records, {key: [text for text, _ in points]}, resolved, **about)
    return read_folder(folder)


def slower(record: RunRecord, added_us: float, **values: Any) -> RunRecord:
    return dataclasses.replace(record, time_us=(record.time_us or 0) + added_us, **values)


def straggler(folder: Path) -> Results:
    """Sequential execution adds what the GEMM loses, 200 us; t3 twice that."""
    points = [
        ("1120 MHz", slower(SEQUENTIAL, 200.0, gemm_us=1000.0)),
        ("1120 MHz", slower(T3, 400.0, gemm_us=1000.0)),
        ("1.4 GHz", SEQUENTIAL),
        ("1.4 GHz", T3),
    ]
    return ring_of(folder, CLOCK, points, "1.4 GHz")


def slow_link(folder: Path) -> Results:
    """A megabyte takes 1 / 0.15 us, and twice that on the slow link; a quarter of what it adds is left."""
    sent = dataclasses.replace(SEQUENTIAL, link_bytes=150_000_000)
    return ring_of(folder, BANDWIDTH, [("150 GB/s", sent), ("75 GB/s", slower(sent, 250.0))], "150 GB/s")


def skew(folder: Path) -> Results:
    points = [("0 us", T3), ("100 us", slower(T3, 50.0)), ("1 us", slower(T3, 2.0))]
    return ring_of(folder, SKEW, points, "0 us")


def staggering(folder: Path) -> Results:
    """Without staggering the ports of two GPUs are idle half of the time, and gpu[1] is later."""
    even, idle = 900, 450
    of_point = [
        [Wait(f"gpu[{gpu}]", "link port", 1, "working", even) for gpu in (0, 1)],
        [
            Wait("gpu[0]", "link port", 1, "dependency", idle), Wait("gpu[0]", "link port", 1, "working", even),
            Wait("gpu[1]", "link port", 1, "dependency", 3 * idle), Wait("gpu[1]", "link port", 1, "working", even),
        ],
    ]  # fmt: skip
    records = [dataclasses.replace(T3, mode="explicit"), dataclasses.replace(T3, mode="explicit", time_us=2000.0)]
    write_folder(folder, records, {"staggered": ["true", "false"]})
    phases = [
        phase_of_point(point, name, waits, "explicit")
        for point, waits in enumerate(of_point, start=1)
        for name in ("gemm", "fused, round_robin")
    ]
    (folder / WAITS_CSV).write_bytes(table_bytes(SCHEMA.names, (row for phase in phases for row in waits_rows(phase))))
    rows = ["row,phase,gpu,end_us", "1,gemm,0,1", "1,gemm,1,5"]
    for row, ends in ((1, (900, 900)), (2, (1350, 2250))):
        rows += [f'{row},"fused, round_robin",{gpu},{end}' for gpu, end in enumerate(ends)]
    (folder / "gpus.csv").write_text("\n".join(rows) + "\n")
    return read_folder(folder)


RINGS = {"straggler": straggler, "slow_link": slow_link, "start_skew": skew, "staggering": staggering}


def numbers_of(effects: Effects, strategy: str) -> list[tuple[Any, ...]]:
    return [
        (effect.text, effect.cause, effect.slowdown_percent, effect.share) for effect in effects[WORKLOAD][strategy]
    ]


def test_a_straggler_is_measured_by_its_cycle_and_by_its_gemm(tmp_path: Path) -> None:
    effects = effects_of(straggler(tmp_path), STRAGGLER)
    assert numbers_of(effects, "sequential") == [
        ("1.4 GHz", 0.0, 0.0, None), ("1120 MHz", pytest.approx(25.0), pytest.approx(12.5), pytest.approx(1.0)),
    ]  # fmt: skip
    assert numbers_of(effects, "t3")[1][2:] == (pytest.approx(100 * 400 / 1300), pytest.approx(2.0))


def test_a_slow_link_is_measured_by_a_byte_and_by_all_its_bytes(tmp_path: Path) -> None:
    (_, slow) = numbers_of(effects_of(slow_link(tmp_path), SLOW_LINK), "sequential")
    assert slow == ("75 GB/s", pytest.approx(100.0), pytest.approx(100 * 250 / 1600), pytest.approx(0.25))


def test_a_skew_is_measured_by_itself_and_drawn_from_the_smallest(tmp_path: Path) -> None:
    effects = effects_of(skew(tmp_path), START_SKEW)[WORKLOAD]["t3"]
    assert [(effect.text, effect.added_us, effect.share) for effect in effects] == [
        ("0 us", 0.0, None), ("1 us", 2.0, pytest.approx(2.0)), ("100 us", 50.0, pytest.approx(0.5)),
    ]  # fmt: skip


def test_without_staggering_ports_are_idle_and_one_gpu_is_last(tmp_path: Path) -> None:
    runs = fused_runs(staggering(tmp_path))
    assert runs[1].port_percent == {"working": 100.0}
    assert runs[2].port_percent == {"working": 50.0, "dependency": 50.0}
    assert (runs[1].after_first_us, runs[2].after_first_us) == ({"0": 0.0, "1": 0.0}, {"0": 0.0, "1": 900.0})
    (drawing,) = draw_figure("staggering", read_folder(tmp_path))
    _, _, ends, *_ = [axes for axes in drawing.figure.axes if axes.get_ylabel()]
    assert [text.get_text() for text in ends.texts] == ["0", "1"]
    assert [np.asarray(line.get_ydata()).tolist() for line in ends.lines] == [[0.0, 0.0], [0.0, 900.0]]


@pytest.mark.parametrize("name", RINGS)
def test_the_study_of_a_figure_sweeps_what_it_shows(name: str) -> None:
    """Every study holds the ring of identical GPUs that its points are compared with, and runs in explicit mode."""
    experiment = load_experiment(REPOSITORY / "experiments" / f"ring-{name.replace('_', '-')}" / "experiment.yaml")
    assert list(experiment.figures) == [name]
    assert {point.mode for point in experiment.points} == {"explicit"}
    assert any(point.machine.is_uniform and point.staggered for point in experiment.points)
