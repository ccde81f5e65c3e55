"""Rows about routed experts: which layer and strategy they represent, what cannot be, and what is simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from t3lab.measure.experts import rows_of_experts
from t3lab.measurements.reading import read_measurements
from t3lab.validation.kinds.grouped_gemm import rows_of
from t3lab.validation.points import Points
from t3lab.validation.simulations.experts import GroupedGemm, RoutedExperts
from t3sim.errors import InputDataError
from t3sim.system.parts import PhaseStore
from tests.harness.measured import tiling, tiny, write_folder

SWITCH = ("machine.link.topology=switch", "machine.link.ingress_buffer=64 KiB", "machine.link.max_gpus=8")
ROUTED = {"gpus": 4, "tokens_per_gpu": 8, "hidden": 128, "top_k": 2, "experts": 16, "routing": "balanced"}
GROUPED = {"tokens": 64, "experts": 8, "n": 64, "k": 64, "routing": "zipf_1", "time_us": 20.0}
EXCHANGE = {**ROUTED, "exchange": "combine", "kernel": "deepep_normal", "sms": 4, "element": "bf16", "time_us": 30.0}
LAYER = {**ROUTED, "intermediate": 64, "kernel": "mega_moe", "element": "fp16", "time_us": 90.0}


NIC = "{bandwidth: 1 GB/s, latency: 5 us, message_rate: 200000000}"
NODES = (*SWITCH, "machine.link.topology=two-level", "machine.link.gpus_per_node=2", f"machine.link.nic={NIC}")


def points_of(folder: Path, *machine: str, **tables: list[dict[str, Any]]) -> list[Any]:
    found = read_measurements(write_folder(folder, tables))
    return Points(tiny(*(machine or SWITCH)), tiling()).of(found)


def test_a_grouped_gemm_has_the_rows_of_its_routing(tmp_path: Path) -> None:
    [point] = points_of(tmp_path, grouped_gemm=[GROUPED])
    simulation = point.terms[0].simulation
    assert isinstance(simulation, GroupedGemm)
    assert (simulation.rows, simulation.gemm.n) == ((29, 11, 7, 5, 4, 3, 3, 2), 64)


@pytest.mark.parametrize("routing", ["balanced", "zipf_1"])
@pytest.mark.parametrize(("tokens", "experts"), [(64, 8), (64, 64), (100, 32), (8192, 64)])
def test_what_is_measured_has_the_rows_that_are_simulated(
    routing: str, tokens: int, experts: int, tmp_path: Path
) -> None:
    row = {**GROUPED, "tokens": tokens, "experts": experts, "routing": routing, "time_us": 1e4}
    [found] = read_measurements(write_folder(tmp_path, {"grouped_gemm": [row]})).rows
    assert list(rows_of(found)) == rows_of_experts(routing, tokens, experts)


def test_dispatch_and_combine_are_one_part_of_the_form_of_their_kernel(tmp_path: Path) -> None:
    [point] = points_of(tmp_path, dispatch_combine=[EXCHANGE])
    simulation = point.terms[0].simulation
    assert isinstance(simulation, RoutedExperts)
    assert (point.kind, simulation.role, simulation.strategy) == ("combine", "combine", "moe-sequential")
    assert simulation.params == (("layout", "cached"), ("communication_units", 4))  # as DeepEP's tests time it
    assert simulation.experts.combine_element == "bf16"


def test_a_layer_is_simulated_by_the_strategy_with_the_form_of_its_kernel(tmp_path: Path) -> None:
    """Also by the name of a strategy; loads that differ with every GPU."""
    skewed = {**LAYER, "kernel": "moe-low-latency", "routing": "power_law_1.2"}
    simulations = [point.terms[0].simulation for point in points_of(tmp_path, moe=[LAYER, skewed])]
    assert [one.strategy for one in simulations] == ["moe-fused", "moe-low-latency"]
    assert [one.run.mode for one in simulations] == ["mirrored", "explicit"]


@pytest.mark.parametrize(("change", "word"), [
    ({"hosts": 2}, "gpus_per_node: 2"), ({"hosts": 3}, "equal"),
    ({"kernel": "deepep_norm"}, "deepep_normal"), ({"routing": "even"}, "balanced"),
])  # fmt: skip
def test_rows_without_a_counterpart_say_why(change: dict[str, Any], word: str, tmp_path: Path) -> None:
    [point] = points_of(tmp_path, dispatch_combine=[EXCHANGE | change])
    assert not point.terms
    assert word in point.reason


@pytest.mark.parametrize("kernel", ["deepep_normal", "deepep_low_latency"])
def test_gpus_of_several_hosts_are_those_of_nodes(kernel: str, tmp_path: Path) -> None:
    """And the network interface is slower than the switch."""
    row = EXCHANGE | {"kernel": kernel, "routing": "uniform", "groups": 2, "top_groups": 1}
    times = []
    for n_hosts, machine in ((1, SWITCH), (2, NODES)):
        [point] = points_of(tmp_path / str(n_hosts), *machine, dispatch_combine=[row | {"hosts": n_hosts}])
        one = point.terms[0].simulation
        assert (one.experts.groups, one.experts.top_groups) == (2, 1)
        times.append(one.outcome(one.result(PhaseStore())).times["time"])
    assert times[1] > times[0]


@pytest.mark.parametrize("change", [{}, {"hosts": 4}])
def test_one_host_is_no_more_than_a_node_nor_several_less(change: dict[str, Any], tmp_path: Path) -> None:
    [point] = points_of(tmp_path, *NODES, dispatch_combine=[EXCHANGE | change])
    assert not point.terms
    assert "nodes of 2" in point.reason


def test_rates_count_copies_as_deepep_does(tmp_path: Path) -> None:
    """8 tokens of 256 B with 2 experts: 4 KiB of rows; all of one host, which is one of two groups, so 2 KiB."""
    limited = EXCHANGE | {"hosts": 2, "routing": "uniform", "groups": 2, "top_groups": 1, "time_us": 2.0}
    right = {"row_gbps": 2.048, "host_gbps": 1.024}
    wrong = right | {"host_gbps": 2.048}
    read_measurements(write_folder(tmp_path / "right", {"dispatch_combine": [limited | right]}))
    with pytest.raises(InputDataError, match="host_gbps"):
        read_measurements(write_folder(tmp_path / "wrong", {"dispatch_combine": [limited | wrong]}))


@pytest.mark.parametrize(("kind", "row", "word"), [
    ("moe", LAYER | {"top_k": 17}, "16 experts"), ("moe", LAYER | {"gpus": 3}, "divide"),
    ("dispatch_combine", EXCHANGE | {"exchange": "send"}, "dispatch"),
    ("grouped_gemm", GROUPED | {"largest": 2}, "largest"),
    ("grouped_gemm", GROUPED | {"tokens": 1 << 20, "n": 1 << 14, "k": 1 << 14}, "faster than"),
    ("moe", LAYER | {"tokens_per_gpu": 1 << 20, "hidden": 1 << 14, "intermediate": 1 << 14}, "faster than"),
    ("dispatch_combine", EXCHANGE | {"tokens_per_gpu": 1 << 20, "hidden": 1 << 14}, "faster than"),
])  # fmt: skip
def test_impossible_rows_are_refused(kind: str, row: dict[str, Any], word: str, tmp_path: Path) -> None:
    with pytest.raises(InputDataError) as error:
        read_measurements(write_folder(tmp_path, {kind: [row]}))
    assert word in str(error.value)
