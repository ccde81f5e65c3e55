"""Every strategy on every fabric: it runs, checked, or is refused with exit code 2 and the place of the key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from t3sim.strategies import overlap_strategies
from tests.harness.here import t3sim_here

ROOM = "ingress_buffer: 64 KiB"
NIC = "nic: {bandwidth: 8 GB/s, latency: 1 us, message_rate: 2000000}"
FABRICS = {
    "ring": "topology: ring",
    "switch": f"topology: switch, {ROOM}",
    "switch that reduces": f"topology: switch, {ROOM}, multicast: {{reduction_bandwidth: 150 GB/s, table: 16 KiB}}",
    "mesh": f"topology: mesh, ports: 3, {ROOM}",
    "two nodes": f"topology: two-level, gpus_per_node: 2, {ROOM}, {NIC}",
}
ENGINES = "copy_engines: {number: 1, startup: 1 us, bandwidth: 20 GB/s, max_outstanding_lines: 16}"
SHAPE = "gemm: {m: 256, n: 128, k: 64}, tp: 4"
OF_EXPERTS = (
    "experts: {n_experts: 8, top_k: 2, hidden: 256, intermediate: 128, tokens_per_gpu: 16, ep: 4}, operator: moe"
)
CHECKED = ("--no-figures", "--check", "--data")
PLACE = re.compile(r"experiment\.yaml:\d+:\d+: [a-z]+(\.[a-z_]+)*: ")
# Rings and switches are simulated by the goldens and by `t3sim selfcheck`.
SIMULATED = ("mesh", "two nodes")
EVERYWHERE = {"sequential", "ideal-overlap", "ideal-rs-nmc", "published-overlap", "published-rs-nmc"}
LINKED_IN_A_RING = {
    *EVERYWHERE,
    "ace",
    "cu-split",
    "isolated-cu-split",
    "t3",
    "t3-mca",
    "te-pipelined-rs",
    "wave-groups",
}
WITH_MULTICAST = {"multimem-ag", "multimem-ar", "multimem-rs", "t3-nvls"}
# Those that do not declare that they need one node, nor multicast: what leaves a node is sent by network interfaces.
ON_TWO_NODES = {name for name in overlap_strategies if not overlap_strategies.get(name).one_node}


def experiment_of(name: str, operator: str, link: str) -> str:
    """Return a point of strategy *name* on four GPUs of 24 compute units, with a copy engine."""
    found = overlap_strategies.get(name)
    params = "".join(f", {one}: 4" for one in found.parameters if one == "communication_units")
    workload = OF_EXPERTS if operator == "moe" else f"{SHAPE}, operator: {operator}"
    return (
        f"name: matrix\nmachine: {{preset: t3-tiny, gpu: {{n_compute_units: 24, {ENGINES}}}, link: {{{link}}}}}\n"
        f"workload: {{{workload}}}\ntiling: gemm-64x64\nstrategy: {{name: {name}{params}}}\n"
    )


@pytest.mark.parametrize("fabric", FABRICS)
def test_every_strategy_runs_or_is_refused_with_a_place(fabric: str, tmp_path: Path) -> None:
    """What runs is simulated and checked, values included, with the first operator of each strategy."""
    ran, wrong = set(), []
    for name in overlap_strategies:
        for i, operator in enumerate(overlap_strategies.get(name).operators):
            experiment = tmp_path / "experiment.yaml"
            experiment.write_text(experiment_of(name, operator, FABRICS[fabric]), encoding="utf-8")
            is_run = fabric in SIMULATED and i == 0
            run = ("run", experiment, "-o", tmp_path / name, "--phases", tmp_path / "phases", *CHECKED)
            done = t3sim_here(*(run if is_run else ("config", "check", experiment)), cwd=tmp_path)
            said = done.stdout + done.stderr
            if done.returncode == 0:
                ran.add(name)
            elif done.returncode != 2 or PLACE.search(said) is None:
                wrong.append((name, operator, done.returncode, said[-300:]))
    assert wrong == []
    shipped = set(overlap_strategies)
    expected = {"ring": LINKED_IN_A_RING, "two nodes": ON_TWO_NODES, "switch that reduces": shipped}
    assert expected.get(fabric, shipped - WITH_MULTICAST) <= ran
