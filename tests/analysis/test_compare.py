"""``t3sim compare`` matches points by their inputs, says which differ, and pairs nothing else; ``t3sim list``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from t3sim.analysis.compare import compared
from t3sim.analysis.folder import read_folder
from t3sim.config.presets import preset_names
from t3sim.errors import InputDataError
from t3sim.experiment.planning.shipped import shipped_experiments
from t3sim.strategies import overlap_strategies
from tests.analysis.folders import MACHINE, SEQUENTIAL, T3, point_of, write_folder
from tests.harness.here import t3sim_here

SLOW_LINK: dict[str, Any] = {**MACHINE, "link": {"bandwidth": 75_000_000_000, "latency": 500_000}}
AT_16 = [dataclasses.replace(record, tp=16) for record in (SEQUENTIAL, T3)]


def slower(*records: Any) -> list[Any]:
    return [dataclasses.replace(record, time_us=2 * record.time_us) for record in records]


def test_points_are_matched_by_their_inputs_wherever_they_stand(tmp_path: Path) -> None:
    before = write_folder(tmp_path / "a", [SEQUENTIAL, T3, *AT_16])
    others = slower(AT_16[1], AT_16[0], SEQUENTIAL)
    after = write_folder(tmp_path / "b", others, points=[point_of(one, SLOW_LINK) for one in others])
    found = compared(read_folder(before), read_folder(after))
    assert found.pairs == [(0, 2), (2, 1), (3, 0)]
    assert found.only == ([1], [])
    assert found.differing == {"machine.link.bandwidth": ("150000000000", "75000000000")}
    printed = t3sim_here("compare", "a", "b", cwd=tmp_path).stdout
    assert "machine.link.bandwidth: 150 GB/s and 75 GB/s" in printed
    assert printed.count("+100.0") == 3
    assert "Only in A: 1 of 4 points: t3" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_an_input_that_varies_in_both_folders_has_to_be_equal(tmp_path: Path) -> None:
    """Canary: the same rows, but for the bandwidth of one point, which nothing in the folders holds constant."""
    records = [SEQUENTIAL, T3]
    swept = [point_of(SEQUENTIAL), point_of(T3, SLOW_LINK)]
    one = read_folder(write_folder(tmp_path / "a", records, points=swept))
    same = read_folder(write_folder(tmp_path / "same", records, points=swept))
    assert (compared(one, same).pairs, compared(one, same).differing) == ([(0, 0), (1, 1)], {})
    third: dict[str, Any] = {**MACHINE, "link": {"bandwidth": 1, "latency": 500_000}}
    both = [SEQUENTIAL, T3, T3]
    points = [point_of(SEQUENTIAL), point_of(T3, third), point_of(T3)]
    other = read_folder(write_folder(tmp_path / "b", both, points=points))
    assert compared(one, other).pairs == [(0, 0)]  # two rows of `t3`: neither is the one
    alone = read_folder(write_folder(tmp_path / "c", records, points=points[:2]))
    assert compared(one, alone).differing == {"machine.link.bandwidth": ("75000000000", "1")}


def test_equal_folders_and_folders_without_a_common_point(tmp_path: Path) -> None:
    write_folder(tmp_path / "a", [SEQUENTIAL, T3])
    write_folder(tmp_path / "b", [dataclasses.replace(record, model="GPT-3", strategy=f"x{i}") for i, record in
                                  enumerate([SEQUENTIAL, T3])])  # fmt: skip
    same = t3sim_here("compare", "a", "a", cwd=tmp_path).stdout
    assert "all inputs are the same" in same
    assert "All 2 points take exactly as long." in same
    with pytest.raises(InputDataError, match="no point in common"):
        compared(read_folder(tmp_path / "a"), read_folder(tmp_path / "b"))
    (tmp_path / "b" / "resolved.json").unlink()
    assert t3sim_here("compare", "a", "b", cwd=tmp_path).returncode == 3


def test_everything_that_has_a_name_is_listed(tmp_path: Path) -> None:
    done = t3sim_here("list", cwd=tmp_path)
    names = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ") and line[2] != " "]
    known = {*shipped_experiments(), *preset_names("machine"), *preset_names("model"), *overlap_strategies}
    assert known <= set(names)
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert t3sim_here("list", "policies", cwd=tmp_path).stdout.startswith("policies\n  compute_first  ")
    wrong = t3sim_here("list", "machin", cwd=tmp_path)
    assert (wrong.returncode, "did you mean `machine" in wrong.stderr) == (2, True)
