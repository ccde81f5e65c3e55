"""Of many numbers of tokens few are searched: are the thresholds and the estimates between them those of all?"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from t3sim.advice import search, thresholds
from t3sim.advice.search import Case, Simulate, candidates
from t3sim.cli import main
from t3sim.cli._errors import INTERRUPTED

FEW = ("sequential", "copy-engine-scatter")
ROWS = (1, 4, 16, 64, 256)
TEXT = f"""
name: sizes
machine:
  preset: h200
  gpu: {{n_compute_units: 16, l2: {{n_banks: 16, capacity: 7.5 MiB}}, collective_kernel: {{channels: 3}}}}
  memory: {{n_channels: 8}}
tiling: gemm-128x128
workload: {{gemm: {{m: 1, n: 512, k: 256}}, tp: 4, operator: gemm-ar}}
strategy: sequential
sweep: {{grid: {{workload.gemm.m: [{", ".join(map(str, ROWS))}]}}}}
"""


def advised(folder: Path, *options: str) -> Result:
    """Run the command in this process."""
    (folder / "sizes.yaml").write_text(TEXT)
    arguments = ["advise", str(folder / "sizes.yaml"), "--only-today", "--no-figures", "-o", str(folder / "out")]
    return CliRunner().invoke(main, [*arguments, *options])


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(autouse=True)
def _few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "candidates", lambda *given: [c for c in candidates(*given) if c.strategy in FEW])


def best_times(folder: Path, status: str) -> dict[int, dict[str, float]]:
    """Return by rows the shortest time of each scheme that is *status*."""
    found: dict[int, dict[str, float]] = {}
    for row in table(folder / "candidates.csv"):
        if row["status"] != status:
            continue
        us = float(row["time_us"] or row["outline_us"])
        own = found.setdefault(int(row["m"]), {})
        own[row["scheme"]] = min(us, own.get(row["scheme"], us))
    return found


def test_what_is_estimated_is_near_what_all_simulated_would_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, all_of_it = tmp_path / "few", tmp_path / "all"
    few.mkdir()
    all_of_it.mkdir()
    result = advised(few)
    assert result.exit_code == 0, result.output
    monkeypatch.setattr(thresholds, "LEAST_COARSE", len(ROWS) + 1)
    every_one = advised(all_of_it, "--phases", str(few / "out" / "phases"))
    assert every_one.exit_code == 0, every_one.output
    estimated = {int(row["m"]) for row in table(few / "out" / "candidates.csv") if row["status"] == "estimated"}
    assert estimated
    assert estimated <= {4, 64}
    assert {int(row["m"]) for row in table(few / "out" / "advice.csv")} == {*ROWS} - estimated
    own, every = best_times(few / "out", "estimated"), best_times(all_of_it / "out", "simulated")
    for m in estimated:
        assert {name: own[m][name] for name in every[m]} == pytest.approx(every[m], rel=0.1)
        assert len(every[m]) > 1
        assert f"{m:>7}" in result.output
    ends = [(row["from_m"], row["to_m"], row["scheme"]) for row in table(few / "out" / "thresholds.csv")]
    assert ends == [(row["from_m"], row["to_m"], row["scheme"]) for row in table(all_of_it / "out" / "thresholds.csv")]


@pytest.mark.parametrize("n_before", [0, 1])
def test_an_interrupted_search_answers_what_is_known(
    n_before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Canary: before the first answer there is nothing to write."""
    settled: list[Case] = []
    real = thresholds.settle

    def settle(cases: Sequence[Case], simulate: Simulate) -> None:
        if len(settled) == n_before:
            raise KeyboardInterrupt
        settled.extend(cases)
        real(cases, simulate)

    monkeypatch.setattr(thresholds, "settle", settle)
    result = advised(tmp_path)
    assert result.exit_code == INTERRUPTED
    assert (tmp_path / "out" / "advice.csv").exists() == bool(n_before)
    if n_before:
        assert [row["m"] for row in table(tmp_path / "out" / "advice.csv")] == ["1"]
        assert "1 of 5 GEMMs" in result.output
