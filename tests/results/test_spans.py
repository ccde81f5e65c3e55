"""Does the table of operations say when each ran and what it moved, on one clock, as closed forms and counters do?"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from t3sim.experiment.planning.plan import load_experiment
from t3sim.experiment.running.runner import Outcome, run
from t3sim.program.side_by_side import side_by_side_part
from t3sim.results.spans import SCHEMA, SPANS_CSV
from t3sim.strategies import Phase
from t3sim.system.parts import MirroredParts, PhaseStore
from t3sim.system.simulate import operator_of
from tests.conftest import cases

N = 4
CHUNK = 256 * 256 * 2 // N  # bytes
TEXT = """\
name: operations
machine: {preset: t3-tiny, gpu: {kernel_launch: 2 us}, link: {topology: switch, ingress_buffer: 64 KiB}}
workload: {gemm: {m: 256, n: 256, k: 128}, tp: 4}
tiling: gemm-64x64
strategy: sequential
sweep: {grid: {strategy: [sequential, t3, t3-mca, flux-push, ideal-overlap, published-overlap]}}
"""
Row = dict[str, Any]


def ran(folder: Path, *overrides: str) -> Outcome:
    (folder / "e.yaml").write_text(TEXT, encoding="utf-8")
    return run(load_experiment(folder / "e.yaml", overrides), folder / "results", timeline=False)


LATE = ('machine.start_skew={"gpu[1]": 3 us}', "machine.gpu[3].compute_clock=1.26 GHz")
CASES = {"mirrored": (), "explicit": ("mode=explicit",), "GPUs apart": ("mode=explicit", *LATE)}


@pytest.fixture(scope="module", params=cases(CASES, "mirrored", "GPUs apart"))
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return ran(tmp_path_factory.mktemp("spans"), *CASES[request.param])


def rows_in(outcome: Outcome) -> list[Row]:
    numbers = {
        field.name: int if str(field.type) == "int64" else float for field in SCHEMA if str(field.type) != "string"
    }
    rows = csv.DictReader(io.StringIO(outcome.files[SPANS_CSV].read_text(encoding="utf-8")))
    return [
        {name: numbers[name](value) if name in numbers and value else value for name, value in row.items()}
        for row in rows
    ]


def complaints(rows: list[Row], outcome: Outcome) -> list[str]:
    """Return what is wrong with the rows of an experiment."""
    return [*wrong_times(rows, outcome), *wrong_bytes(rows, outcome)]


def wrong_times(rows: list[Row], outcome: Outcome) -> Iterator[str]:
    for number, record in enumerate(outcome.records, start=1):
        counted = [row for row in rows if row["point"] == number and row["counts"]]
        if max(row["end_us"] for row in counted) != pytest.approx(record.time_us, rel=1e-12):
            yield f"point {number}: the last end is not {record.time_us}"
        parts: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in rows:
            if row["point"] == number:
                parts[row["gpu"], row["phase"]].append(row)
            if not 0 <= row["start_us"] <= row["end_us"]:
                yield f"{row}: ends before it starts"
        for of_stream in parts.values():
            for one, other in pairwise(of_stream):
                if one["end_us"] > other["start_us"] + 1e-9:
                    yield f"{other}: starts before the end of the one before it"
        if record.strategy in ("published-overlap", "ideal-overlap"):
            continue  # two parts at a time, or none that counts
        for gpu in {row["gpu"] for row in counted}:
            for one, other in pairwise(row for row in counted if row["gpu"] == gpu):
                if one["end_us"] > other["start_us"] + 1e-9:
                    yield f"{other}: starts before the part before it has ended"


def wrong_bytes(rows: list[Row], outcome: Outcome) -> Iterator[str]:
    for number, result in enumerate(outcome.results, start=1):
        for phase in result.phases:
            counters = [gpu.counters for gpu in phase.gpus] or [phase.counters]
            for d, one in enumerate(counters):
                mine = [
                    row for row in rows
                    if (row["point"], row["phase"], row["gpu"]) == (number, phase.name, f"gpu[{d}]")
                ]  # fmt: skip
                found = tuple(sum(row[name] for row in mine) for name in ("read_bytes", "written_bytes", "sent_bytes"))
                read = one["operand_read_bytes"] + one["comm_read_bytes"]
                written = one["output_write_bytes"] + one["comm_write_bytes"] - one["incoming_bytes"]
                if found != (read, written, one["link_bytes"]):
                    yield f"point {number}, {phase.name}, gpu[{d}]: {found}, not {read, written, one['link_bytes']}"


def test_times_and_bytes_add_up(outcome: Outcome) -> None:
    assert complaints(rows_in(outcome), outcome) == []


def test_bytes_are_those_of_closed_forms(outcome: Outcome) -> None:
    """In chunks, of a GPU of four: rings send three, a reduce-scatter reads its own and what it has received."""
    expected = {
        ("gemm", "gemm"): (None, 4, 0),
        ("reduce_scatter", "reduce-scatter"): (7, 1, 3),
        ("all_gather", "all-gather"): (3, 0, 3),
        ("fused", "gemm"): (None, 3, 3),
        ("fused", "all added up"): (0, 0, 0),
        ("fused", "all stored"): (0, 0, 0),
        ("fused", "sum"): (4, 1, 0),
    }
    for row in rows_in(outcome):
        read, written, sent = expected[row["role"], row["operation"]]
        if row["strategy"] == "flux-push" and (row["role"], row["operation"]) == ("fused", "gemm"):
            written = 1  # its own chunk; T3 keeps what it forwards, too
        assert (row["written_bytes"], row["sent_bytes"]) == (written * CHUNK, sent * CHUNK)
        assert read is None or row["read_bytes"] == read * CHUNK
    stored = {row["operation"] for row in rows_in(outcome) if row["strategy"] == "flux-push" and row["role"] == "fused"}
    assert stored == {"all added up", "gemm", "all stored", "sum"}


def test_operations_begin_when_their_launch_is_over(outcome: Outcome) -> None:
    gpus = {row["gpu"]: row["start_us"] for row in reversed(rows_in(outcome)) if row["strategy"] == "sequential"}
    late = (
        {"gpu[1]": 3.0}
        if "start_skew" in str(outcome.results[0].run) and outcome.results[0].run.machine.start_skew
        else {}
    )
    assert gpus == {gpu: pytest.approx(2.0 + late.get(gpu, 0.0)) for gpu in gpus}


def test_what_two_gemms_read_through_one_l2_is_not_told_apart() -> None:
    workload = "workload={gemm: {m: 128, n: 128, k: 64}, tp: 2}"
    chosen = ["machine=t3-tiny", "tiling=gemm-64x64", workload, "strategy=t3"]
    two_gemms = load_experiment("experiments/t3-tnlg-fc2/experiment.yaml", chosen).points[0]
    part = side_by_side_part(operator_of(two_gemms), "reduce-scatter", 2, 2)
    phase: Phase = MirroredParts(two_gemms, PhaseStore()).phase(part)
    found = {(span.kind, span.read_bytes is None, span.written_bytes is None) for span in phase.spans}
    assert found == {("gemm", True, True), ("moves", False, False)}
