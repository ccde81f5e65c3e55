"""Layers of experts on several nodes: tokens are summed, bytes are those of the routing, one GPU represents all."""

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from t3sim.config.experts import ExpertsSpec, RoutingSpec
from t3sim.config.machine import MachineSpec
from t3sim.config.resolve import resolve_machine
from t3sim.config.yaml_loader import load_yaml_text
from t3sim.errors import UsageError
from t3sim.program.moe_operator import MoeOperator
from t3sim.program.operations import NIC, Moves
from t3sim.program.plan import parts_of
from t3sim.program.verify import check_programs
from t3sim.selfcheck.data_cases import TILINGS
from t3sim.workload.routings import routing_of
from tests.program.test_moe_layer import operator, plan_of, ring_of, simulated

NAMES = ("moe-sequential", "moe-low-latency", "moe-two-batch")


def nodes_of(per_node: int) -> MachineSpec:
    """Nodes of so many GPUs, for tests."""
    nic = "nic: {bandwidth: 10 GB/s, latency: 1 us, message_rate: 2000000, queue_pairs: 3}"
    link = (
        f"link: {{topology: two-level, gpus_per_node: {per_node}, ingress_buffer: 64 KiB, bandwidth: 40 GB/s, {nic}}}"
    )
    gpu = "gpu: {n_compute_units: 8, compute_unit: {matrix_rates: {fp8: 2}}}"
    return resolve_machine(load_yaml_text(f"{{preset: t3-tiny, {link}, {gpu}}}", "machine")).spec


PAIRS, ALONE = nodes_of(2), nodes_of(1)
CASES = {
    "uniform": ("uniform", PAIRS, {"ep": 6, "n_experts": 12, "top_k": 4, "tokens_per_gpu": 6}),
    "GPUs that are nodes": ("uniform", ALONE, {"ep": 3, "n_experts": 6, "top_k": 3}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", NAMES)
def test_each_token_comes_back_as_the_sum_of_its_rows(name: str, case: str) -> None:
    """On paper, and in the simulated memories."""
    kind, machine, changes = CASES[case]
    for part in parts_of(plan_of(name, operator(kind, machine, **changes)).tree):
        check_programs(part.programs)
        assert simulated(part, machine)[1] == []


@pytest.mark.parametrize("name", NAMES)
def test_one_gpu_stands_for_all_exactly(name: str) -> None:
    op = operator("balanced", PAIRS, top_k=4, tokens_per_gpu=5)
    for part in parts_of(plan_of(name, op).tree):
        assert len(part.classes) == 1
        assert set(ring_of(part, part.n, PAIRS).run()) == set(simulated(part, PAIRS)[0])


@pytest.mark.parametrize(("name", "n_classes"), [("moe-sequential", 2), ("moe-sequential", 4), ("moe-low-latency", 4)])
def test_a_gpu_of_each_class_represents_its_class_exactly(name: str, n_classes: int) -> None:
    """One for each place in a node; all GPUs of each second node."""
    op = operator("uniform", PAIRS, ep=8, n_experts=16, top_k=3, tokens_per_gpu=5).in_classes(n_classes)
    assert len({tuple(op.rows(rank)) for rank in range(n_classes)}) == n_classes  # canary: the classes differ
    for part in parts_of(plan_of(name, op).tree):
        ends = ring_of(part, n_classes, PAIRS).run()
        assert ring_of(part, part.n, PAIRS).run() == ends * (part.n // n_classes)


def test_classes_keep_nodes_together() -> None:
    """A token goes to as many nodes as before if GPUs are but numbered anew."""
    op = operator("uniform", PAIRS, ep=8, n_experts=16, top_k=3, tokens_per_gpu=7)
    assert op.numbers_of_classes() == [1, 2, 4, 8]
    anew = op.in_classes(8)
    n_visits = [sorted(len(one.visits_sent(rank).token) for rank in range(8)) for one in (op, anew)]
    assert n_visits[0] == n_visits[1]
    assert [op.routing.experts.tolist()] != [anew.routing.experts.tolist()]  # canary: they are


def recorded(folder: Path, tokens: list[list[list[int]]], n_experts: int, machine: MachineSpec) -> MoeOperator:
    """A layer with a recorded routing: tokens of each GPU with their experts."""
    path, top_k = folder / "routing.csv", len(tokens[0][0])
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["gpu", "token", *(f"choice_{j}" for j in range(top_k))])
        lines.writerows([gpu, t, *choices] for gpu, every in enumerate(tokens) for t, choices in enumerate(every))
    spec = ExpertsSpec(
        n_experts=n_experts, top_k=top_k, hidden=128, intermediate=64, tokens_per_gpu=len(tokens[0]), ep=len(tokens),
        routing=RoutingSpec(kind="recorded", file=str(path)),
    )  # fmt: skip
    return MoeOperator(machine, spec, routing_of(spec), TILINGS[1])


# Nodes of two GPUs, two experts each: experts 0 to 3 are on node 0, 4 to 7 on node 1.
TOKENS = [
    [[0, 1, 2], [0, 4, 6], [4, 5, 6]],
    [[4, 5, 7], [2, 3, 0], [1, 2, -1]],
    [[0, 2, 4], [6, 7, 5], [1, -1, -1]],
    [[0, 1, 2], [1, 2, 3], [3, 6, 7]],
]


def sent_bytes(op: MoeOperator, name: str, role: str, rank: int) -> Counter[str]:
    """The bytes of rows that a GPU sends: over its network interface, to other GPUs of its node; and messages."""
    [part] = [one for one in parts_of(plan_of(name, op).tree) if one.role == role]
    found: Counter[str] = Counter()
    for one in part.programs[rank].operations:
        if isinstance(one, Moves) and "notify" not in one.name:
            sends = one.steps[one.steps["send"] >= 0]
            way = "network" if one.engine == NIC else "node"
            assert ((sends["distance"] >= op.ranks.per_node) == (way == "network")).all()
            found[way] += int(sends["n_granules"].sum()) * op.granule
            found[f"sends, {way}"] += len(sends)
    return found


@pytest.mark.parametrize("rank", range(4))
def test_bytes_are_those_of_the_recorded_routing(rank: int, tmp_path: Path) -> None:
    """By hand: a token once to each other node, and there once to each GPU but the one on the rail; rows back alike."""
    op, row = recorded(tmp_path, TOKENS, 8, PAIRS), 128 * 2
    node, place = divmod(rank, 2)
    gpus = [[{e // 2 for e in choices if e >= 0} for choices in every] for every in TOKENS]
    to_other = sum(any(gpu // 2 != node for gpu in one) for one in gpus[rank])
    rail = 2 * (1 - node) + place
    # What it forwards: its own tokens and those of the GPU on its rail, to the other GPU of its node.
    neighbour = 2 * node + 1 - place
    forwarded = sum(neighbour in one for source in (rank, rail) for one in gpus[source])
    assert sent_bytes(op, "moe-sequential", "dispatch", rank)["network"] == to_other * row
    assert sent_bytes(op, "moe-sequential", "dispatch", rank)["node"] == forwarded * row
    # Combine: a sum for each token of the GPU on its rail that has experts here; rows for the rail of the neighbour.
    summed = sum(any(gpu // 2 == node for gpu in one) for one in gpus[rail])
    to_neighbour = sum(rank in one for source in (neighbour, 2 * (1 - node) + 1 - place) for one in gpus[source])
    assert sent_bytes(op, "moe-sequential", "combine", rank)["network"] == summed * row
    assert sent_bytes(op, "moe-sequential", "combine", rank)["node"] == to_neighbour * row


@pytest.mark.parametrize("rank", range(4))
def test_each_row_that_leaves_its_node_is_a_message(rank: int, tmp_path: Path) -> None:
    op, row = recorded(tmp_path, TOKENS, 8, PAIRS), 128 * 2
    away = sum(e >= 0 and e // 4 != rank // 2 for choices in TOKENS[rank] for e in choices)
    near = sum(e >= 0 and e // 4 == rank // 2 and e // 2 != rank for choices in TOKENS[rank] for e in choices)
    found = sent_bytes(op, "moe-low-latency", "dispatch", rank)
    flags = 2 * op.granule  # one for each expert of the other GPU of the node
    assert (found["network"], found["sends, network"], found["node"]) == (away * row, away, near * row + flags)
    held = [e // 2 == rank and g // 2 != rank // 2 for g, every in enumerate(TOKENS) for one in every for e in one]
    found = sent_bytes(op, "moe-low-latency", "combine", rank)
    assert (found["network"], found["sends, network"]) == (sum(held) * row, sum(held))


def test_messages_of_the_normal_form_carry_several_tokens() -> None:
    """Eight at most beyond 16 GPUs, and fewer if there are fewer than channels take; the low-latency form one each."""
    op = operator("balanced", PAIRS, ep=4, n_experts=4, top_k=4, tokens_per_gpu=30)
    row, found = 128 * 2, sent_bytes(op, "moe-sequential", "dispatch", 0)
    assert found["network"] == 30 * row
    assert found["sends, network"] == 2  # two channels with 15 tokens each
    assert sent_bytes(op, "moe-low-latency", "dispatch", 0)["sends, network"] == 60


def test_a_message_rate_limits_the_low_latency_form_only() -> None:
    nic = PAIRS.link.nic
    assert nic is not None
    slow_nic = nic.model_copy(update={"message_rate": 100_000})
    slow = PAIRS.model_copy(update={"link": PAIRS.link.model_copy(update={"nic": slow_nic})})
    ends = {}
    for name in ("moe-sequential", "moe-low-latency"):
        for machine in (PAIRS, slow):
            op = operator("balanced", machine, ep=4, n_experts=4, top_k=4, tokens_per_gpu=30)
            part = next(iter(parts_of(plan_of(name, op).tree)))
            ends[name, machine is slow] = simulated(part, machine)[0][0] * 1e6 / part.clocked(machine).ticks_hz
    assert ends["moe-low-latency", True] > 590 > ends["moe-low-latency", False]  # us: 60 messages of 10 us
    assert ends["moe-sequential", True] - ends["moe-sequential", False] < 200


def test_what_stores_from_compute_units_stays_on_a_node() -> None:
    with pytest.raises(UsageError, match=r"gpus_per_node.*moe-low-latency"):
        plan_of("moe-fused", operator("balanced", PAIRS))


def test_tokens_are_dropped(tmp_path: Path) -> None:
    """Those of one GPU altogether."""
    nothing = [[[-1, -1, -1]] * 3, *TOKENS[1:]]
    op = recorded(tmp_path, nothing, 8, PAIRS)
    for name in ("moe-sequential", "moe-low-latency"):
        for part in parts_of(plan_of(name, op).tree):
            check_programs(part.programs)
            assert simulated(part, PAIRS)[1] == []
    assert np.array_equal(op.routing.experts[0], np.full((3, 3), -1))


def test_queue_pairs_share_the_rate_of_the_network_interface() -> None:
    """All of them end about at the same time; one after the other, the first would end after a third of it."""
    op = operator("balanced", PAIRS, ep=4, n_experts=4, top_k=4, tokens_per_gpu=30)
    part = next(iter(parts_of(plan_of("moe-low-latency", op).tree)))
    ring = ring_of(part, 1, PAIRS)
    ring.run()
    [[number, messages]] = [
        (i, one) for i, one in enumerate(part.programs[0].operations) if isinstance(one, Moves) and one.engine == NIC
    ]
    given = next(one for i, one in enumerate(ring.cores[0].operations) if i == number)
    table = ring.cores[0].tables.steps[given.first_step : given.first_step + messages.steps.size]
    ends = table["end_at"].reshape(messages.steps.shape).max(axis=0) - given.start_at
    assert len(ends) == 3
    assert ends.min() > 0.9 * ends.max()
