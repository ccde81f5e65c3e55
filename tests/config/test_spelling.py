"""Names in any case, with ``-``, ``_`` or nothing between words, wherever a user gives one."""

from __future__ import annotations

from pathlib import Path

import pytest

from t3sim.spelling import spelled_as
from tests.faults.refusals import t3sim_here


@pytest.mark.parametrize("name", ["all-reduce", "all_reduce", "AllReduce", "ALL REDUCE", "allreduce"])
def test_spellings_of_one_name(name: str) -> None:
    assert spelled_as(name, ["all-reduce", "reduce", "all-gather"]) == "all-reduce"
    assert spelled_as(name, ["all_reduce"]) == "all_reduce"
    assert spelled_as(name, ["reduce"]) == name


def test_what_two_names_could_mean_stays_as_it_is() -> None:
    assert spelled_as("A_B", ["a-b", "ab"]) == "A_B"
    assert spelled_as("a-b", ["a-b", "ab"]) == "a-b"
    assert spelled_as(7, ["7"]) == 7


@pytest.mark.parametrize(
    ("workload", "strategy"),
    [
        ("{collective: {op: all_reduce, size: 64 KiB, gpus: 4}}", "Sequential"),
        ("{gemm: {m: 2048, n: 1024, k: 256}, tp: 4, operator: GEMM_AR}", "T3_MCA"),
        ("{model: t_nlg, sublayer: FC-2, tp: 8}", "t3mca"),
        ("{model: t_nlg, sublayer: FC2, tp: 8}", "t3"),
        ("{model: t_nlg, sublayer: qkv, tp: 8, operator: ag_gemm}", "sequential"),
    ],
)
@pytest.mark.parametrize("override", [True, False])
def test_experiments_take_any_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workload: str, strategy: str, *, override: bool
) -> None:
    """In a file and on the command line; canary: a name that is none is refused."""
    monkeypatch.chdir(tmp_path)
    base = f"name: e\nmachine: T3_Tiny\nworkload: {workload}\n"
    (tmp_path / "e.yaml").write_text(base + f"strategy: {'sequential' if override else strategy}\n")
    given = ("-s", f"strategy={strategy}") if override else ()
    answer = t3sim_here("config", "check", "e.yaml", *given)
    assert (answer.code, answer.errors) == (0, "")
    assert t3sim_here("config", "check", "e.yaml", "-s", f"strategy={strategy}q").code == 2
