"""Trees: NCCL's double trees and its choice, sums, both modes, latency by depth, bytes by closed form, refusals."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from t3lab.cli.validate import machine_of
from t3lab.validation.simulations.alone import CollectiveAlone
from t3sim.collective.ranks import Ranks
from t3sim.collective.tree import expected_rings, expected_trees, place_in, takes_tree
from t3sim.config.machine import MachineSpec
from t3sim.config.presets import load_tiling
from t3sim.program.operator import Operator
from t3sim.program.parts import all_reduce_parts
from t3sim.program.tree import tree_program
from t3sim.program.verify import problems_of
from t3sim.results.record import RunRecord
from t3sim.results.writer import read_results
from t3sim.system.parts import PhaseStore
from tests.harness.here import t3sim_here
from tests.smoke.command_line import simulated

KIB, MIB = 1 << 10, 1 << 20
NIC = "{bandwidth: 2 GB/s, latency: LATENCY, message_rate: 2000000}"
EXPERIMENT = f"""
name: tree
machine:
  preset: t3-tiny
  link: {{topology: two-level, gpus_per_node: EACH, nic: {NIC}, ingress_buffer: 512 KiB, latency: 500 ns}}
  gpu: {{n_compute_units: 8}}
workload: {{collective: {{op: all-reduce, size: SIZE, gpus: ALL, algorithm: nccl-tree}}}}
strategy: sequential
sweep: {{grid: {{mode: [MODES]}}}}
"""


def text_of(each: int, n: int, size: str, modes: str = "mirrored", latency: str = "1 us") -> str:
    found = EXPERIMENT
    values = {"EACH": each, "ALL": n, "SIZE": size, "MODES": modes, "LATENCY": latency}
    for name, value in values.items():
        found = found.replace(name, str(value))
    return found


def row_of(tmp_path: Path, *of: object) -> RunRecord:
    (row,) = read_results(simulated(text_of(*of), tmp_path) / "results.csv")  # type: ignore[arg-type]
    return row


def on_nodes(name: str, each: int) -> MachineSpec:
    nic = "{bandwidth: 46 GB/s, latency: 3 us, message_rate: 10000000}"
    changes = ("topology=two-level", f"gpus_per_node={each}", f"nic={nic}", "max_gpus=null")
    return machine_of(name, tuple(f"machine.link.{change}" for change in changes))


@pytest.mark.parametrize("n", range(2, 20))
def test_the_two_trees_span_the_nodes(n: int) -> None:
    """Each parent knows its children, all hang together, and of an even number none has children in both trees."""
    for tree in (0, 1):
        places = [place_in(tree, n, node) for node in range(n)]
        (root,) = (node for node, place in enumerate(places) if place.parent is None)
        for node, place in enumerate(places):
            kids = [kid for kid in place.children if kid is not None]
            assert all(places[kid].parent == node for kid in kids)
            above = node
            for _ in range(n.bit_length()):
                parent = places[above].parent
                above = root if parent is None else parent
            assert above == root
    if n % 2 == 0:
        inner = [{node for node in range(n) if place_in(tree, n, node).children != (None, None)} for tree in (0, 1)]
        assert not (inner[0] & inner[1]) or n == 2


def test_the_trees_of_six_nodes_are_those_of_ncclGetDtree() -> None:
    first = [(place_in(0, 6, node).parent, place_in(0, 6, node).children) for node in range(6)]
    assert first == [
        (None, (None, 4)), (2, (None, None)), (4, (1, 3)), (2, (None, None)), (0, (2, 5)), (4, (None, None))
    ]  # fmt: skip
    assert place_in(1, 6, 5).parent is None
    assert place_in(1, 6, 1).children == (3, 0)
    assert place_in(1, 5, 1).parent is None  # an odd number: shifted by a node


@pytest.mark.parametrize(("each", "n"), [(2, 2), (5, 5), (1, 3), (2, 4), (2, 6), (3, 12)])
@pytest.mark.parametrize("size", [4 * KIB, 70_000, 2 * MIB])
def test_programs_are_sound(each: int, n: int, size: int) -> None:
    """LL, LL128 and Simple, ragged sizes; one GPU represents all on one and two nodes, one of each node on more."""
    op = Operator(on_nodes("h200", each), n, None, "all-reduce", size, "nccl-tree")
    assert problems_of([tree_program(op, rank) for rank in range(n)]) == []
    (part,) = all_reduce_parts(op, "nccl-tree")
    assert part is not None
    assert len(part.classes) == (n // each if n // each > 2 else 1)


@pytest.mark.parametrize(("each", "n"), [(2, 6), (4, 4)])
def test_values_and_times_in_both_modes(each: int, n: int, tmp_path: Path) -> None:
    folder = simulated(text_of(each, n, "12 KiB", "mirrored, explicit"), tmp_path, "--check", "--data")
    one, all_of_them = read_results(folder / "results.csv")
    assert one.time_us == all_of_them.time_us > 0


@pytest.mark.parametrize(("each", "n", "depth"), [(2, 2, 0), (2, 4, 1), (2, 8, 2), (1, 4, 2)])
def test_latency_by_depth(each: int, n: int, depth: int, tmp_path: Path) -> None:
    """A small array crosses the network once for each level, up and down: so 2 us more each way take 4 us a level."""
    mode = "explicit" if each == 1 else "mirrored"
    near, far = (row_of(tmp_path / one, each, n, "4 KiB", mode, one).time_us for one in ("1 us", "3 us"))
    assert far - near == pytest.approx(4 * depth, abs=0.05)


@pytest.mark.parametrize(("each", "n"), [(4, 4), (2, 4)])
def test_bytes_by_closed_form(each: int, n: int, tmp_path: Path) -> None:
    """On each node the whole array goes over all but one GPU of a chain twice, and twice over each edge of the tree."""
    size, nodes = 64 * KIB, n // each
    row, far = row_of(tmp_path, each, n, "64 KiB"), Fraction(2 * size * (nodes - 1), n)
    assert row.link_bytes == far + Fraction(2 * size * nodes * (each - 1), n)
    assert row.nic_bytes == (far if nodes > 1 else None)


def test_nccl_takes_trees_for_small_arrays_of_several_nodes() -> None:
    """On one node its log shows rings; on two of eight GPUs LL128 of trees is expected to take 14 +
    2 x (7 x 1.25 + 8.5) us, and twice 256 KiB at 60 % of 310.5 GB/s.
    """
    h200 = machine_of("h200", ())
    assert not any(takes_tree(h200, "all-reduce", n, 1 << i) for n in (2, 4, 8) for i in range(8, 31))
    nodes = on_nodes("h200", 8)
    chosen = [takes_tree(nodes, "all-reduce", 16, 1 << i) for i in (12, 16, 18, 20, 24, 28)]
    assert chosen == [True, True, True, False, False, False]
    assert takes_tree(nodes, "all-reduce", 64, MIB)
    assert not takes_tree(nodes, "all-gather", 16, 64 * KIB)
    kernel, ranks = nodes.gpu.collective_kernel, Ranks.of(16, 8)
    found = expected_trees(kernel, ranks, 256 * KIB, 46 * 10**9)["low_latency_128"]
    assert float(found) == pytest.approx((14 + 2 * (7 * 1.25 + 8.5)) * 1e6 + 512 * KIB * 1e12 / (0.6 * 310.5e9))
    rings = expected_rings(kernel, ranks, 256 * KIB, 46 * 10**9)["low_latency"]
    assert float(rings) == pytest.approx((6.6 + 28 * 1 + 2 * 2.7) * 1e6 + 30 * 256 * KIB * 1e12 / (16 * 39e9))


@pytest.mark.parametrize(("size", "off"), [(64 * KIB, 0.1), (4 * MIB, 0.1)])
def test_simulated_times_are_near_the_cost_model_of_nccl(size: int, off: float) -> None:
    """Two nodes of eight GPUs: its constants come from measurements of NCCL's authors; nothing is fitted to them."""
    machine = on_nodes("h200", 8).at_operating_point("boost")
    simulation = CollectiveAlone(machine, load_tiling("gemm-128x256"), "all-reduce", size, 16, None, "nccl-tree")
    simulated_us = simulation.outcome(simulation.result(PhaseStore())).times["time"]
    expected = min(expected_trees(machine.gpu.collective_kernel, Ranks.of(16, 8), size, 46 * 10**9).values())
    assert simulated_us == pytest.approx(float(expected) / 1e6, rel=off)


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("topology: two-level, gpus_per_node: 4,", "topology: ring,", "machine.link.topology"),
        ("n_compute_units: 8", "n_compute_units: 4", "machine.gpu.n_compute_units"),
        ("op: all-reduce", "op: all-gather", "workload.collective.algorithm"),
    ],
)
def test_what_cannot_carry_a_tree_is_refused(old: str, new: str, place: str, tmp_path: Path) -> None:
    experiment = tmp_path / "experiment.yaml"
    experiment.write_text(text_of(4, 4, "12 KiB").replace(old, new), encoding="utf-8")
    given = ("-s", "machine.link.nic=null")
    done = t3sim_here("run", experiment, "-o", tmp_path / "results", *given, cwd=tmp_path)
    assert done.returncode == 2
    assert place in done.stdout + done.stderr
