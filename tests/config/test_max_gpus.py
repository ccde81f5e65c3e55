"""A machine states how many GPUs its links connect; what asks for more is refused, and rows of more are listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from t3lab.measurements.reading import read_measurements
from t3lab.validation.points import Points
from t3sim.config.presets import preset_names
from t3sim.config.resolve import resolve_machine
from t3sim.config.yaml_loader import Node, Position
from tests.faults.refusals import t3sim_here
from tests.harness.measured import collective, tiling, tiny, write_folder

EXPERIMENT = "name: e\nmachine: {machine}\nstrategy: sequential\nworkload: {workload}\n"
GEMM = "{gemm: {m: 65536, n: 8192, k: 512}, tp: %d}"
RING = "{collective: {op: all-gather, size: 64 MiB, gpus: %d}}"


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "e.yaml"


@pytest.mark.parametrize("machine", preset_names("machine"))
def test_presets_of_products_have_eight_gpus_and_those_of_the_study_any_number(machine: str) -> None:
    most = resolve_machine(Node(machine, Position("here"))).spec.link.max_gpus
    assert most == (None if machine.startswith("t3-") else 72 if machine.startswith("gb") else 8)


@pytest.mark.parametrize(("workload", "key"), [(GEMM, "4:51: workload.tp"), (RING, "4:61: workload.collective.gpus")])
@pytest.mark.parametrize("command", [("config", "check"), ("run",)])
def test_more_gpus_than_the_links_connect_are_refused(
    experiment: Path, command: tuple[str, ...], workload: str, key: str
) -> None:
    experiment.write_text(EXPERIMENT.format(machine="h100", workload=workload % 16))
    answer = t3sim_here(*command, "e.yaml")
    assert answer.code == 2
    assert answer.errors.startswith(f"e.yaml:{key}: is 16, ")
    assert "(`machine.link.max_gpus`)" in answer.errors
    assert "machine: {preset: h100, link: {max_gpus: 16}}" in answer.errors  # what to do


@pytest.mark.parametrize("experts", ["ep: 16", "ep: 4, tp: 4"])
def test_of_experts_the_key_is_theirs(experiment: Path, experts: str) -> None:
    sizes = "n_experts: 32, top_k: 2, hidden: 512, intermediate: 512, tokens_per_gpu: 2"
    workload = f"{{experts: {{{experts}, {sizes}}}}}"
    text = EXPERIMENT.format(machine="h100", workload=workload).replace(
        "strategy: sequential", "strategy: moe-sequential"
    )
    experiment.write_text(text)
    answer = t3sim_here("config", "check", "e.yaml")
    assert answer.code == 2
    assert answer.errors.startswith("e.yaml:")
    assert ": workload.experts.ep: " in answer.errors
    assert "is 16, " in answer.errors


@pytest.mark.parametrize("machine", ["h100", "{preset: h100, link: {max_gpus: 16}}", "t3-150"])
def test_as_many_as_they_connect_are_not(experiment: Path, machine: str) -> None:
    n = 8 if machine == "h100" else 16
    experiment.write_text(EXPERIMENT.format(machine=machine, workload=GEMM % n))
    assert t3sim_here("config", "check", "e.yaml").code == 0


def test_advise_names_its_option(experiment: Path) -> None:
    answer = t3sim_here("advise", "T-NLG", "--machine", "h100", "--tp", "16", "--tokens", "4096")
    assert answer.code == 2
    assert "--tp: is 16, " in answer.errors


def test_rows_of_more_gpus_are_not_simulated_and_take_no_other_with_them(tmp_path: Path) -> None:
    two = collective("all_gather", 16384, 20.0)
    eight = two | {"gpus": 8, "busbw_gbps": round(two["busbw_gbps"] / (1 / 2) * (7 / 8), 4)}
    write_folder(tmp_path, {"collectives": [two, eight]})
    points = Points(tiny("machine.link.max_gpus=4"), tiling()).of(read_measurements(tmp_path))
    assert [(bool(point.terms), "`machine.link.max_gpus`" in point.reason) for point in points] == [
        (True, False), (False, True),
    ]  # fmt: skip
