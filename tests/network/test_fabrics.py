"""Fabrics: one GPU may represent all in each symmetric one; what a mesh and a network interface can carry."""

from __future__ import annotations

from pathlib import Path

import pytest

from t3sim.config.experiment import RunSpec
from t3sim.fabric import fabrics
from t3sim.system.simulate import simulate
from tests.harness.here import t3sim_here
from tests.harness.rings import differences, explicit
from tests.harness.sublayers import collective_point

BUFFER = "machine.link.ingress_buffer=16 KiB"
NIC = "machine.link.nic={bandwidth: 2 GB/s, latency: 1 us, message_rate: 2000000}"
SWITCH = ("machine.link.topology=switch", BUFFER)
MESH = ("machine.link.topology=mesh", "machine.link.ports=7", BUFFER)
NODES = ("machine.link.topology=two-level", "machine.link.gpus_per_node=2", NIC, BUFFER)
NODES_OF_MESHES = (
    "machine.link.topology=two-level",
    "machine.link.ports=2",
    "machine.link.gpus_per_node=3",
    NIC,
    BUFFER,
)
FABRICS = {"switch": (SWITCH, 4), "mesh": (MESH, 4), "two-level": (NODES, 6), "nodes of meshes": (NODES_OF_MESHES, 6)}
BALANCED = ("reduce-scatter", "all-gather", "all-reduce", "all-to-all", "send-receive")


def of(op: str, fabric: tuple[str, ...], gpus: int, *more: str, size: str = "24 KiB") -> RunSpec:
    return collective_point(op, size, gpus, *fabric, *more)


def time_us(op: str, fabric: tuple[str, ...], gpus: int, *more: str, size: str = "24 KiB") -> float:
    result = simulate(of(op, fabric, gpus, *more, size=size))
    return float(result.ticks.to_us(result.total))


@pytest.mark.parametrize("op", BALANCED)
@pytest.mark.parametrize("fabric", FABRICS)
def test_one_gpu_represents_all_of_a_symmetric_fabric(fabric: str, op: str) -> None:
    """Are times, counters and DRAM commands of every simulated GPU those of the one that represents all?"""
    keys, gpus = FABRICS[fabric]
    run = of(op, keys, gpus)
    assert fabrics.get(run.machine.link.topology).is_symmetric
    assert differences(run, explicit(run)) == []


def test_links_of_a_mesh_carry_at_the_same_time() -> None:
    """Three links of 2 GB/s: an all-gather takes as long as one chunk on one of them, a ring three times as long."""
    alone = 64 / 2 * 1.024  # us for a chunk of 64 KiB
    slow = "machine.link.bandwidth=2 GB/s"
    direct = time_us("all-gather", MESH, 4, slow, size="256 KiB")
    ring = time_us("all-gather", MESH, 4, slow, "workload.collective.algorithm=nccl-ring", size="256 KiB")
    assert alone < direct < 1.3 * alone
    assert ring > 2.5 * direct


def test_a_network_interface_has_a_rate_a_latency_and_a_message_rate() -> None:
    """64 KiB at 2 GB/s to the next node; each message of the slow one waits for its turn."""
    size, carried, room = "64 KiB", 64 / 2 * 1.024, "machine.link.ingress_buffer=256 KiB"
    fast = time_us("send-receive", NODES, 4, room, size=size)
    assert carried + 1 < fast < 1.3 * carried
    later = time_us("send-receive", NODES, 4, room, "machine.link.nic.latency=5 us", size=size)
    assert later - fast == pytest.approx(4, abs=0.1)
    slow = time_us("send-receive", NODES, 4, room, "machine.link.nic.message_rate=100000", size=size)
    assert slow > 100 + fast  # 16 messages, 10 us for each


def test_what_leaves_a_node_is_sent_by_the_network_interface(tmp_path: Path) -> None:
    """A strategy whose compute units store at the next GPU of a ring cannot leave the node."""
    done = t3sim_here("run", experiment(tmp_path, "sequential"), "-o", tmp_path / "out", "-s",
                      "workload.collective.algorithm=nccl-ring", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 2
    assert "machine.link.gpus_per_node" in done.stdout + done.stderr


REFUSED = {
    "partitioned mesh": (("machine.link.topology=mesh", "machine.link.gpus_per_node=null"), "machine.link.ports"),
    "unequal rails": (("workload.collective.gpus=5",), "machine.link.gpus_per_node"),
    "nodes that are not there": (("machine.link.nodes=3",), "machine.link.nodes"),
    "nodes of a switch": (("machine.link.topology=switch",), "two-level"),
    "number of nodes of a switch": (
        ("machine.link.topology=switch", "machine.link.gpus_per_node=null", "machine.link.nodes=2"),
        ": machine.link.nodes: ",
    ),
    "no network": (("machine.link.nic=null",), "machine.link.topology"),
    "no buffer": (("machine.link.ingress_buffer=null",), "machine.link.topology"),
    "unknown fabric": (("machine.link.topology=two-levels",), "did you mean `two-level`"),
    "broadcast by one GPU": (("workload.collective.op=broadcast",), "explicit"),
    "reduction in a switch of several nodes": (("workload.collective.algorithm=nccl-nvls",), "nvls"),
    "kernels of one node": (
        ("workload.collective.op=all-reduce", "workload.collective.algorithm=vllm-one-stage"),
        ": machine.link.gpus_per_node: ",
    ),
    "multicast without a switch": (
        ("machine.link.topology=ring", "machine.link.multicast={reduction_bandwidth: 1 GB/s, table: 4 KiB}"),
        "machine.link.multicast",
    ),
}  # fmt: skip


def experiment(folder: Path, strategy: str = "sequential") -> Path:
    path = folder / "experiment.yaml"
    link = "{topology: two-level, gpus_per_node: 2, ingress_buffer: 16 KiB, nic: {bandwidth: 2 GB/s, latency: 1 us,"
    machine = f"{{preset: t3-tiny, link: {link} message_rate: 2000000}}}}}}"
    workload = "{collective: {op: all-gather, size: 24 KiB, gpus: 4}}"
    path.write_text(f"name: nodes\nmachine: {machine}\nworkload: {workload}\nstrategy: {strategy}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_fabric_cannot_do_is_refused_with_its_key(what: str, tmp_path: Path) -> None:
    changes, word = REFUSED[what]
    settings = [one for change in changes for one in ("-s", change)]
    done = t3sim_here("run", experiment(tmp_path), "-o", tmp_path / "out", *settings, cwd=tmp_path)
    assert done.returncode == 2
    assert word.lower() in (done.stdout + done.stderr).lower()


TORUS = """
from t3sim.plugins import Wires, fabric


@fabric("torus", meaning="links to both neighbours")
def torus(link, n, rank):
    return tuple(Wires((distance,), link.latency) for distance in sorted({1, n - 1}))
"""


def test_a_plugin_adds_a_fabric(tmp_path: Path) -> None:
    (tmp_path / "torus.py").write_text(TORUS, encoding="utf-8")
    settings = ("plugins=[torus.py]", "machine.link.topology=torus", "machine.link.ports=2", "machine.link.nic=null",
                "machine.link.gpus_per_node=null", "workload.collective.algorithm=nccl-ring")  # fmt: skip
    given = [one for setting in settings for one in ("-s", setting)]
    done = t3sim_here("run", experiment(tmp_path), "-o", tmp_path / "out", "--check", "--data", *given, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("fabric", [(), SWITCH, MESH])
def test_a_network_interface_that_nothing_uses_is_refused(fabric: tuple[str, ...], tmp_path: Path) -> None:
    """With its place: on one node it would be ignored."""
    experiment = tmp_path / "e.yaml"
    collective = "{op: all-reduce, size: 24 KiB, gpus: 4}"
    experiment.write_text(f"name: x\nmachine: t3-tiny\nworkload: {{collective: {collective}}}\nstrategy: sequential\n")
    overrides = [word for key in (*fabric, NIC) for word in ("-s", key)]
    done = t3sim_here("config", "check", experiment, *overrides, cwd=tmp_path)
    assert done.returncode == 2
    assert "machine.link.nic" in done.stderr
    assert "two-level" in done.stderr
