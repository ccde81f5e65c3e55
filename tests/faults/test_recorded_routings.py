"""Recorded routings and sections `workload.experts` that cannot be: refused with their place."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from t3sim.cli import main
from t3sim.config.experts import ExpertsSpec, RoutingSpec
from t3sim.workload.routing_file import read_routing

EXPERIMENT = """\
name: e
machine: h200
workload:
  experts: {n_experts: 4, top_k: 2, hidden: 256, intermediate: 256, tokens_per_gpu: 3, ep: 2,
            routing: {kind: recorded, file: FILE}}
strategy: sequential
"""
CHOICES = [
    ["gpu", "token", "choice_0", "choice_1"],
    [0, 0, 0, 1], [0, 1, 0, 2], [0, 2, 3, -1], [1, 0, 2, 3], [1, 1, 1, 0], [1, 2, 2, 1],
]  # fmt: skip
ROWS = [["gpu", 0, 1, 2, 3], [0, 2, 2, 1, 1], [1, 1, 2, 2, 1]]
LAYER = ExpertsSpec(n_experts=4, top_k=2, hidden=256, intermediate=256, tokens_per_gpu=3, ep=2)


def written(path: Path, table: list[list[Any]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(table)
    return path


def changed(table: list[list[Any]], line: int, values: list[Any]) -> list[list[Any]]:
    """Return *table* with another *line*, which counts from 1 as in a file."""
    return [values if number == line else row for number, row in enumerate(table, start=1)]


def shown(folder: Path, *changes: str) -> Result:
    path = folder / "e.yaml"
    path.write_text(EXPERIMENT.replace("FILE", "r.csv"), encoding="utf-8")
    options = [word for change in changes for word in ("-s", change)]
    return CliRunner().invoke(main, ["config", "show", str(path), *options])


def test_choices_are_read_with_dropped_tokens_and_weights(tmp_path: Path) -> None:
    weights = [[*row, *(["weight_0", "weight_1"] if i == 0 else [0.75, 0.25])] for i, row in enumerate(CHOICES)]
    for table in (CHOICES, weights):
        found = read_routing(written(tmp_path / "r.csv", table), LAYER)
        assert found.experts.tolist() == [[[0, 1], [0, 2], [3, -1]], [[2, 3], [1, 0], [2, 1]]]
        assert (found.weights is None) == (table is CHOICES)


def test_rows_of_experts_are_read(tmp_path: Path) -> None:
    written(tmp_path / "r.csv", ROWS)
    np.savez(tmp_path / "r.npz", rows=np.array([row[1:] for row in ROWS[1:]]))
    for name in ("r.csv", "r.npz"):
        assert read_routing(tmp_path / name, LAYER).rows().tolist() == [row[1:] for row in ROWS[1:]]


def test_arrays_of_choices_are_read(tmp_path: Path) -> None:
    experts = read_routing(written(tmp_path / "r.csv", CHOICES), LAYER).experts
    np.savez(tmp_path / "r.npz", experts=experts.astype(np.int64), weights=np.ones(experts.shape))
    assert (read_routing(tmp_path / "r.npz", LAYER).experts == experts).all()


@pytest.mark.parametrize(("table", "place", "word"), [
    (changed(CHOICES, 4, [0, 2, 4, -1]), "r.csv:4", "choice_0: 4"),  # an expert without a home
    (changed(CHOICES, 4, [0, 2, 3, 3]), "r.csv:4", "twice"),
    (changed(CHOICES, 7, [1, 1, 2, 1]), "r.csv:7", "line 6"),
    (changed(CHOICES, 7, [1, 3, 2, 1]), "r.csv:7", "token"),
    (changed(CHOICES, 7, [2, 2, 2, 1]), "r.csv:7", "gpu"),
    (changed(CHOICES, 7, [1, 2, "x", 1]), "r.csv:7", "`x`"),
    (changed(CHOICES, 7, [1, 2, 2]), "r.csv:7", "columns"),
    (CHOICES[:-1], "r.csv", "GPU 1, token 2"),
    (changed(CHOICES, 1, ["gpu", "token", "choice_0", "choice_2"]), "r.csv:1", "choice_1"),
    (changed(ROWS, 2, [0, 2, 2, 1, 2]), "r.csv:2", "7 rows"),  # rows that do not sum
    (changed(ROWS, 3, [1, 4, 0, 1, 1]), "r.csv:3", "expert 0"),  # more rows of an expert than tokens
    (changed(ROWS, 3, [1, -1, 3, 3, 1]), "r.csv:3", "expert 0"),
    (changed(ROWS, 3, [0, 1, 2, 2, 1]), "r.csv:3", "line 2"),
    (changed(ROWS, 1, ["gpu", 0, 1, 2, 4]), "r.csv:1", "0 to 3"),
    (ROWS[:2], "r.csv", "GPU 1"),
    ([["expert", "rows"]], "r.csv:1", "gpu"),
    ([], "r.csv:1", "header"),
])  # fmt: skip
def test_a_routing_that_is_none_of_this_layer(tmp_path: Path, table: list[list[Any]], place: str, word: str) -> None:
    written(tmp_path / "r.csv", table)
    result = shown(tmp_path, "strategy=sequential")
    assert result.exit_code in (2, 3)
    assert f"{place}: " in result.output.replace("\n", " ")
    assert word in " ".join(result.output.split())


def test_a_file_that_is_not_there_or_no_archive(tmp_path: Path) -> None:
    assert "r.csv: no such file" in shown(tmp_path).output
    (tmp_path / "r.npz").write_bytes(b"PK\x03\x04 nothing")
    result = shown(tmp_path, "workload.experts.routing.file=r.npz")
    assert "r.npz: not a NumPy archive" in result.output


@pytest.mark.parametrize(("change", "key", "word"), [
    ("workload.experts.ep=3", "workload.experts.ep", "divide"),
    ("workload.experts.top_k=5", "workload.experts.top_k", "4 experts"),
    ("workload.experts.tp=3", "workload.experts.tp", "divide"),
    ("workload.experts.groups=2", "workload.experts.groups", "`top_groups`"),
    ("workload.experts.top_groups=2", "workload.experts.top_groups", "`groups`"),
    ("workload.experts.routing.seed=1", "workload.experts.routing.seed", "remove"),
    ("workload.experts.routing={kind: zipf}", "workload.experts.routing.kind", "`exponent`"),
    ("workload.experts.routing={kind: balanced, file: r.csv}", "workload.experts.routing.file", "recorded"),
    ("workload.experts.element=int4", "workload.experts.element", "weights"),
    ("workload.experts.weights=fp32", "workload.experts.weights", "wider"),
    ("workload.experts.tokens_per_gpu=0", "workload.experts.tokens_per_gpu", "above"),
    ("workload.experts.tokens_per_gpu=100000000", "workload.experts.tokens_per_gpu", "at most"),
    ("workload.experts.hiden=1", "workload.experts.hiden", "`hidden`"),
    ("workload.tokens=64", "workload.tokens", "remove"),
    ("workload.tp=4", "workload.tp", "2 GPUs"),
    ("workload.operator=gemm-rs", "workload.operator", "moe"),
])  # fmt: skip
def test_sections_that_cannot_be(tmp_path: Path, change: str, key: str, word: str) -> None:
    written(tmp_path / "r.csv", CHOICES)
    result = shown(tmp_path, change)
    assert result.exit_code == 2
    assert f": {key}: " in result.output
    assert word in result.output


def test_weights_beyond_the_memory(tmp_path: Path) -> None:
    written(tmp_path / "r.csv", CHOICES)
    result = shown(tmp_path, "workload.experts.hidden=400000", "workload.experts.intermediate=40000")
    assert result.exit_code == 2
    assert "workload.experts.ep: " in result.output
    assert "machine.memory.capacity" in result.output


def test_experts_that_more_gpus_share_are_refused_as_a_spec_too() -> None:
    with pytest.raises(ValueError, match="`ep`"):
        ExpertsSpec(n_experts=4, top_k=1, hidden=8, intermediate=8, tokens_per_gpu=1, ep=3, routing=RoutingSpec())
