"""Strategies on several nodes: what is sent over the rails, and when; programs are sound; one GPU represents all."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from t3sim.checks.audit import Audit
from t3sim.config.experiment import GemmShape
from t3sim.config.link import NicSpec
from t3sim.errors import UsageError
from t3sim.gpu.ticks import TickBase
from t3sim.program.compare import difference
from t3sim.program.exchange import exchange_program
from t3sim.program.operations import Gemm, Moves, Program, is_on_network
from t3sim.program.operator import Operator
from t3sim.program.verify import problems_of
from t3sim.strategies.copy_engine_scatter import BY_CHUNK, scatter_program
from t3sim.strategies.flux import flux_push_program
from t3sim.strategies.flux_ag import flux_ag_program
from t3sim.strategies.t3 import fused_program
from t3sim.strategies.t3_direct import TRIGGERED, direct_program
from t3sim.strategies.wave_groups import wave_groups_program
from t3sim.system.simulate import simulate
from tests.harness.machines import machine
from tests.harness.sublayers import point
from tests.program.strategies import operator_of

# Each with the chunks that a GPU sends over its rail for each other node.
FORMS = {
    "t3": (fused_program, 1),
    "t3-direct": (direct_program, 1),
    "t3-direct, triggered all-gather": (partial(direct_program, all_gather=TRIGGERED, blocks=3), 2),
    "flux-push": (partial(flux_push_program, chunks=2), 1),
    "flux-push on reserved units": (partial(flux_push_program, chunks=0, units=1), 1),
    "flux-ag": (partial(flux_ag_program, chunks=2), 1),
    "copy-engine-scatter": (partial(scatter_program, chunks=2), 1),
    "copy-engine-scatter by chunk": (partial(scatter_program, chunks=0, order=BY_CHUNK), 1),
    "wave-groups": (partial(wave_groups_program, waves=1, units=3), 1),
}
EXCHANGES = {"direct": partial(exchange_program, blocks=None), "triggered": partial(exchange_program, blocks=3)}
NIC = "machine.link.nic={{bandwidth: {} MB/s, latency: {} us, message_rate: 1000000}}"
ENGINES = "machine.gpu.copy_engines={number: 1, startup: 1 us, bandwidth: 20 GB/s, max_outstanding_lines: 16}"


def on_nodes(n: int, per_node: int, *, staggered: bool = True, m: int | None = None) -> Operator:
    """An operator of *n* GPUs in nodes of *per_node*, two rows of tiles for each GPU."""
    op = operator_of(GemmShape(m=m or 128 * n, n=128, k=128), n, staggered=staggered)
    nic = NicSpec.model_construct(
        bandwidth=10**9, latency=10**6, message_rate=10**6, queue_pairs=4, max_outstanding_lines=256
    )
    link = op.machine.link.model_copy(
        update={"topology": "two-level", "gpus_per_node": per_node, "ingress_buffer": 64 << 10, "nic": nic}
    )
    return replace(op, machine=op.machine.model_copy(update={"link": link}))


def programs(name: str, op: Operator) -> list[Program]:
    op = replace(op, kind="ag-gemm") if name == "flux-ag" else op
    form = EXCHANGES[name] if name in EXCHANGES else FORMS[name][0]
    return [form(op, rank) for rank in range(op.n)]


def messages(program: Program) -> np.ndarray:
    """The steps of the network interface."""
    found = [one.steps.reshape(-1) for one in program.operations if isinstance(one, Moves) and is_on_network(one)]
    steps = np.concatenate(found)
    return steps[steps["n_granules"] > 0]


@pytest.mark.parametrize("name", [*FORMS, *EXCHANGES])
@pytest.mark.parametrize(("n", "per_node"), [(4, 2), (4, 1), (6, 3), (6, 2)])
def test_programs_are_sound_and_one_gpu_represents_all(name: str, n: int, per_node: int) -> None:
    found = programs(name, on_nodes(n, per_node))
    assert problems_of(found) == []
    assert difference(found) is None


@pytest.mark.parametrize("name", ["t3", "t3-direct", "flux-push", "flux-ag", "triggered"])
def test_ranks_that_begin_with_chunk_0_are_sound(name: str) -> None:
    assert problems_of(programs(name, on_nodes(4, 2, staggered=False))) == []


@pytest.mark.parametrize("name", ["flux-push", "flux-ag", "copy-engine-scatter"])
def test_tiles_of_two_owners_are_sound(name: str) -> None:
    op = on_nodes(4, 2, m=4 * 96)
    assert op.parts is not None
    assert problems_of(programs(name, op)) == []


@pytest.mark.parametrize("name", ["t3", "t3-direct, triggered all-gather", "triggered"])
@pytest.mark.parametrize(("n", "m"), [(2, 217), (4, 320)])
def test_unlike_tiles_are_refused(name: str, n: int, m: int) -> None:
    """As many of other sizes; unequally many."""
    with pytest.raises(UsageError, match=r"^workload: "):
        programs(name, on_nodes(n, 1, m=m))


@pytest.mark.parametrize("name", [*FORMS, *EXCHANGES])
def test_messages_that_wait_for_nothing_are_a_race(name: str) -> None:
    spoilt = programs(name, on_nodes(4, 2))
    for one in (one for program in spoilt for one in program.operations):
        if isinstance(one, Moves) and is_on_network(one):
            one.steps["wait_signal"] = -1
    if name == "flux-ag":  # the shard is there from the start
        assert problems_of(spoilt) == []
    else:
        assert {problem.check for problem in problems_of(spoilt)} <= {"races", "sums"}
        assert problems_of(spoilt)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(("n", "per_node"), [(4, 2), (6, 2), (6, 3)])
def test_bytes_over_a_rail(name: str, n: int, per_node: int) -> None:
    """For each other node, a chunk of the sums of the node; gathered, the own chunk; only to the GPU of the rail."""
    op = on_nodes(n, per_node)
    program, nodes = programs(name, op)[0], n // per_node
    sent = messages(program)
    each = op.shape.k if name == "flux-ag" else op.shape.n
    chunk = op.owned_rows() * each * 2 // op.granule
    assert int(sent["n_granules"].sum()) == (nodes - 1) * chunk * FORMS[name][1]
    assert set((sent["distance"] % per_node).tolist()) == {0}
    assert set((sent["distance"] // per_node).tolist()) == set(range(1, nodes))


@pytest.mark.parametrize("name", EXCHANGES)
def test_bytes_of_an_exchange_over_the_network(name: str) -> None:
    """A chunk to each GPU of the other nodes, without a detour."""
    op = on_nodes(6, 2)
    sent = messages(programs(name, op)[0])
    chunk = op.owned_rows() * op.shape.n * 2 // op.granule
    assert {
        d: int(sent["n_granules"][sent["distance"] == d].sum()) for d in range(6) if (sent["distance"] == d).any()
    } == dict.fromkeys(range(2, 6), chunk)


def test_tiles_of_the_next_node_come_first_and_own_ones_last() -> None:
    for form in (fused_program, direct_program):
        op = on_nodes(6, 2)
        (kernel,) = (one for one in form(op, 0).operations if isinstance(one, Gemm))
        owner = op.owner(op.tiles.workgroups["chunk"][kernel.order])
        node = owner // 2
        assert node.tolist() == sorted(node.tolist(), key=[1, 2, 0].index)
        assert owner[-1] == 0


def run(
    strategy: str, operator: str, *overrides: str, nic: tuple[float, float] = (8000, 1), tp: int = 4, role: str = ""
) -> int:
    """Ticks of a point on two nodes, or of its part of a *role*, with values and all checks."""
    link = ("machine.link.topology=two-level", "machine.link.ingress_buffer=64 KiB", NIC.format(*nic))
    point_of = (*link, ENGINES, f"machine.link.gpus_per_node={tp // 2}", f"workload.operator={operator}", *overrides)
    audit = Audit(has_checks=True, has_data=True)
    result = simulate(point(strategy, *point_of, shape=(64 * tp, 64, 64), tp=tp), audit=audit)
    assert audit.n_values > 0
    return next(phase.ticks for phase in result.phases if phase.role == role) if role else result.total


@pytest.mark.parametrize(
    ("strategy", "operator", "tp", "params"),
    [
        ("t3", "gemm-rs", 6, ()),
        ("t3-direct", "gemm-ar", 4, ("strategy.all_gather=triggered",)),
        ("t3", "gemm-a2a", 4, ()),
        ("flux-push", "gemm-rs", 4, ()),
        ("flux-ag", "ag-gemm", 4, ()),
        ("copy-engine-scatter", "gemm-rs", 4, ("strategy.communication_units=1",)),
        ("published-rs-nmc", "gemm-rs", 4, ()),
    ],
)
def test_one_gpu_takes_as_long_as_all(strategy: str, operator: str, tp: int, params: tuple[str, ...]) -> None:
    mirrored, explicit = (run(strategy, operator, f"mode={mode}", *params, tp=tp) for mode in ("mirrored", "explicit"))
    assert mirrored == explicit > 0


def test_a_slow_network_is_busy_from_the_first_complete_tile_on() -> None:
    """Half its rate: longer by the bytes of the rail over the rate; latency: by itself, once."""
    ticks_per_us = TickBase.of(machine("t3-tiny")).hz / 1e6
    at, slower, later = (run("t3-direct", "gemm-rs", nic=nic, role="fused") for nic in ((100, 1), (50, 1), (100, 11)))
    n_bytes = 64 * 64 * 2  # a chunk of the output
    assert slower - at == pytest.approx(n_bytes / 100 * ticks_per_us, rel=0.02)
    assert later - at == pytest.approx(10 * ticks_per_us, rel=0.02)
