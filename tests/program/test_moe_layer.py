"""Layers of experts: their programs are right on paper and in the simulated memories, mirrored and on every GPU."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from t3sim.checks.data import CarriedProgram
from t3sim.config.experts import ExpertsSpec, RoutingSpec
from t3sim.config.limits import FINEST_TICKS_HZ
from t3sim.config.machine import MachineSpec
from t3sim.config.resolve import resolve_machine
from t3sim.config.yaml_loader import load_yaml_text
from t3sim.errors import ProgramError, UsageError
from t3sim.experiment.planning.plan import load_experiment
from t3sim.experiment.running.runner import run
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.traffic import TrafficClasses
from t3sim.program.moe_operator import MoeOperator
from t3sim.program.operations import Gemm, Moves, Program
from t3sim.program.plan import Part, Plan, parts_of
from t3sim.program.row_steps import batched, by_one_warp, parted, steps
from t3sim.program.verify import check_programs, problems_of
from t3sim.selfcheck.data_cases import TILINGS
from t3sim.strategies import overlap_strategies
from t3sim.system.machine import MirroredMachine
from t3sim.system.ring import RingMachine
from t3sim.workload.routings import routing_of

STRATEGIES = {
    "moe-sequential": {"communication_units": 4}, "moe-low-latency": {"row_for": "expert"}, "moe-fused": {},
    "moe-low-latency, one-sided": {"row_for": "gpu"},
    "moe-two-batch": {"communication_units": 4},
    "moe-t3": {"dispatch": "engine", "combine": "direct", "blocks_in_flight": 3},
}  # fmt: skip
WAVEFRONTS = "collective_kernel: {wavefront_lines: 2, sum_rounds: 1, max_outstanding_lines: 16}"


def machine_of(more: str = "") -> MachineSpec:
    """Four GPUs behind a switch, for tests."""
    gpu = f"gpu: {{n_compute_units: 8, compute_unit: {{matrix_rates: {{fp8: 2}}}}{', ' + more if more else ''}}}"
    link = "link: {topology: switch, ingress_buffer: 64 KiB, bandwidth: 40 GB/s}"
    return resolve_machine(load_yaml_text(f"{{preset: t3-tiny, {link}, {gpu}}}", "machine")).spec


MACHINE = machine_of()


def operator(kind: str = "balanced", machine: MachineSpec = MACHINE, **changes: object) -> MoeOperator:
    """A small layer; balanced, all GPUs are alike."""
    given = {"n_experts": 8, "top_k": 2, "hidden": 128, "intermediate": 64, "tokens_per_gpu": 9, "ep": 4, **changes}
    spec = ExpertsSpec(**given, routing=RoutingSpec(kind=kind))  # type: ignore[arg-type]
    op = MoeOperator(machine, spec, routing_of(spec).placed(spec.n_shared), TILINGS[1])
    return op.turned() if kind == "balanced" else op


def plan_of(name: str, op: MoeOperator) -> Plan:
    """The plan of a strategy."""
    return overlap_strategies.get(name.partition(",")[0])(op, STRATEGIES[name])


def simulated(part: Part, machine: MachineSpec = MACHINE) -> tuple[list[int], list[str]]:
    """When each GPU ends, and what is wrong with the values in its memory."""
    policy, traffic = arbitration_policies.get("round_robin"), TrafficClasses(part.programs[0].classes)
    if part.difference is None:
        one = MirroredMachine(part.clocked(machine), policy, {}, n_gpus=part.n, traffic=traffic)
        one.load(part.programs[0])
        carried = CarriedProgram([one.core], 1)
        carried.follow(one.devices)
        return [one.run()], carried.check()
    ring = RingMachine(part.clocked(machine), policy, {}, part.n, n_threads=1, traffic=traffic)
    for d, program in enumerate(part.programs):
        ring.load(d, program, 0)
    ring.note_loaded()
    carried = CarriedProgram(ring.cores, 1)
    carried.follow(ring.devices)
    return ring.run(), carried.check()


CASES = {
    "balanced": {"kind": "balanced"},
    "two experts of a token on a GPU": {"kind": "uniform", "top_k": 4, "tokens_per_gpu": 11},
    "experts of two GPUs, shared experts": {
        "kind": "uniform",
        "ep": 2,
        "tp": 2,
        "top_k": 2,
        "shared_intermediate": 128,
        "intermediate": 128,
        "tokens_per_gpu": 5,
    },
    "FP8": {"kind": "uniform", "element": "fp8", "hidden": 256, "intermediate": 128},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", STRATEGIES)
def test_each_token_comes_back_as_the_sum_of_its_rows(name: str, case: str) -> None:
    """On paper, and in the simulated memories."""
    for part in parts_of(plan_of(name, operator(**CASES[case])).tree):
        check_programs(part.programs)
        assert simulated(part)[1] == []


@pytest.mark.parametrize(("row", "row_issue"), [(40, 1), (40, 100)])
def test_a_sum_takes_the_longer_of_one_warp_and_of_all_that_share_its_simd_unit(row: int, row_issue: int) -> None:
    """Nine tokens in two channels: at most five warps of a workgroup add up at once."""
    given = f"{{store: 100 cycles, row: {row} cycles, row_issue: {row_issue} cycles}}"
    machine = machine_of(f"collective_kernel: {{row_sum: {given}}}")
    op = operator(machine=machine)
    *_, part = parts_of(plan_of("moe-sequential", op).tree)
    combine = [one for one in part.programs[0].operations if isinstance(one, Moves) and one.instructions]
    rows = op.places_of_copies[0].count
    each = max(row, row_issue * -(-5 // machine.gpu.compute_unit.n_simds))
    cycles = 100 + rows[rows > 0].mean() * each
    assert {one.instructions for one in combine} == {round(cycles * FINEST_TICKS_HZ / machine.gpu.compute_clock)}


PADDED = ("moe-sequential", "moe-low-latency", "moe-low-latency, one-sided")


@pytest.mark.parametrize("name", PADDED)
def test_padding_of_groups_is_multiplied_and_stays_where_it_is(name: str) -> None:
    """Each expert has a multiple of 16 rows; the tokens come back as without."""
    op = operator("uniform", top_k=4, tokens_per_gpu=5)
    padded = replace(op, kernels=op.kernels.model_copy(update={"group_alignment": 16}))
    for part in parts_of(plan_of(name, padded).tree):
        check_programs(part.programs)
        assert simulated(part)[1] == []
        for one in (one for one in part.programs[0].operations if isinstance(one, Gemm)):
            rows = np.unique(one.trace.workgroups[["row", "n_rows"]])["n_rows"]
            assert rows.sum() == sum(-(-n // 16) * 16 for n in op.rows(0))


def test_kernels_of_a_whole_layer_take_no_padding() -> None:
    op = operator()
    padded = replace(op, kernels=op.kernels.model_copy(update={"group_alignment": 16}))
    with pytest.raises(UsageError, match=r"tiling\.group_alignment"):
        plan_of("moe-fused", padded)


def test_tokens_that_are_dropped_do_not_come_back() -> None:
    op = operator("uniform")
    experts = op.routing.experts.copy()
    experts[0, 3, :], experts[1, :, 1] = -1, -1
    dropped = replace(op, routing=replace(op.routing, experts=experts))
    for name in STRATEGIES:
        for part in parts_of(plan_of(name, dropped).tree):
            check_programs(part.programs)
            assert simulated(part)[1] == []


def test_a_gpu_without_rows_has_no_gemm() -> None:
    op = operator("uniform")
    first = np.broadcast_to(np.array([0, 1], np.int32), op.routing.experts.shape)
    every = replace(op, routing=replace(op.routing, experts=first))
    [fused] = parts_of(plan_of("moe-fused", every).tree)
    assert [any(isinstance(one, Gemm) for one in program.operations) for program in fused.programs] == [
        True, False, False, False,
    ]  # fmt: skip
    assert simulated(fused)[1] == []


@pytest.mark.parametrize("name", ["moe-sequential", "moe-low-latency"])
def test_a_gpu_without_rows_launches_kernels_with_nothing_to_do(name: str) -> None:
    """Also if these end in the cycle of the memory in which they are launched."""
    machine = machine_of("kernel_launch: 1001 ns")
    op = operator("uniform", machine=machine)
    first = np.broadcast_to(np.array([0, 1], np.int32), op.routing.experts.shape)
    for part in parts_of(plan_of(name, replace(op, routing=replace(op.routing, experts=first))).tree):
        check_programs(part.programs)
        ends, wrong = simulated(part, machine)
        assert wrong == []
        assert min(ends) > 0


def test_warps_make_the_steps_of_a_batch_concurrently() -> None:
    """A machine with warps takes less time for a batch than for one step after the other, and moves the same."""
    machine = machine_of(WAVEFRONTS)
    part = next(iter(parts_of(plan_of("moe-low-latency", operator(machine=machine)).tree)))
    ends, wrong = simulated(part, machine)
    assert wrong == []

    def alone(program: Program) -> Program:
        moves = (replace(one, steps=unbatched(one)) for one in program.operations if isinstance(one, Moves))
        return replace(program, operations=tuple(moves))

    slower = replace(part, programs=tuple(map(alone, part.programs)))
    assert simulated(slower, machine)[0] > ends


def unbatched(one: Moves) -> np.ndarray:
    """The steps of a kernel, one after the other."""
    steps = one.steps.copy()
    steps["n_batched"] = 0
    return steps


def test_one_gpu_stands_for_all_exactly() -> None:
    """A balanced layer takes the same time on one simulated GPU and on each of four."""
    for name in STRATEGIES:
        for part in parts_of(plan_of(name, operator()).tree):
            assert set(ring_of(part, part.n).run()) == set(simulated(part)[0])


@pytest.mark.parametrize("name", ["moe-low-latency", "moe-fused"])
def test_a_gpu_of_each_class_represents_its_class_exactly(name: str) -> None:
    """Two GPUs represent four, tick by tick, and their memories hold what they have to."""
    op = operator("uniform", top_k=3, tokens_per_gpu=7).in_classes(2)
    assert op.rows(0) != op.rows(1)  # canary: the classes differ
    for part in parts_of(plan_of(name, op).tree):
        every, few = (ring_of(part, n) for n in (4, 2))
        carried = CarriedProgram(few.cores, 1)
        carried.follow(few.devices)
        ends = few.run()
        assert every.run() == ends * 2
        assert carried.check() == []
        assert len(part.classes) == 2


def ring_of(part: Part, n_simulated: int, machine: MachineSpec = MACHINE) -> RingMachine:
    """So many GPUs, loaded with the programs of a part."""
    ring = RingMachine(
        part.clocked(machine), arbitration_policies.get("round_robin"), {}, n_simulated, n_threads=1,
        traffic=TrafficClasses(part.programs[0].classes), n_gpus=part.n,
    )  # fmt: skip
    for d, program in enumerate(part.programs[:n_simulated]):
        ring.load(d, program, 0)
    ring.note_loaded()
    return ring


def spoilt(part: Part, name: str, change: Callable[[Moves], Moves]) -> list[Program]:
    """The programs of a part with one operation changed on all ranks."""
    return [
        replace(p, operations=tuple(change(o) if o.name == name else o for o in p.operations))  # type: ignore[arg-type]
        for p in part.programs
    ]  # fmt: skip


def entry(field: str, by: int) -> Callable[[Moves], Moves]:
    """Change a field of the last step that moves something."""

    def change(one: Moves) -> Moves:
        steps = one.steps.copy()
        row, column = np.argwhere((steps["n_granules"] > 0) & (steps["kept_at"] >= 0))[-1]
        steps[field][row, column] += by
        return replace(one, steps=steps)

    return change


@pytest.mark.parametrize(
    ("stage", "operation", "field", "by", "word"),
    [
        ("combine", "low-latency combine, sum", "n_operands", -1, "lacks the contribution of expert 1 of the token"),
        ("combine", "low-latency combine, sum", "operand", -4, "is not inside one buffer"),
        ("dispatch", "low-latency dispatch, receive", "operand", -4, "is another element"),
    ],
)
def test_a_wrong_row_is_noticed(stage: str, operation: str, field: str, by: int, word: str) -> None:
    part = next(one for one in parts_of(plan_of("moe-low-latency", operator()).tree) if one.role == stage)
    found = problems_of(spoilt(part, operation, entry(field, by)))
    assert any(word in one.message for one in found), found


def test_a_batch_that_is_none_is_refused() -> None:
    part = next(iter(parts_of(plan_of("moe-low-latency", operator()).tree)))
    name = "low-latency dispatch, send"
    with pytest.raises(ProgramError, match="batched with 99 steps"):
        check_programs(spoilt(part, name, lambda one: replace(one, steps=with_batch(one))))


def with_batch(one: Moves) -> np.ndarray:
    """The steps of a kernel, of which the first is batched with more than there are."""
    steps = one.steps.copy()
    steps["n_batched"][0, 0] = 99
    return steps


@pytest.mark.parametrize(
    ("name", "params", "changes", "key"),
    [
        ("moe-sequential", {"communication_units": 99}, {}, "strategy.communication_units"),
        ("moe-two-batch", {"communication_units": 8}, {}, "strategy.communication_units"),
        ("moe-two-batch", {"communication_units": 4}, {"tokens_per_gpu": 1}, "tokens_per_gpu"),
        (
            "moe-sequential",
            {"communication_units": 4},
            {"dispatch_element": "fp8", "element": "bf16"},
            "dispatch_element",
        ),
    ],
)
def test_what_cannot_run_is_refused_with_its_key(name: str, params: dict, changes: dict, key: str) -> None:
    with pytest.raises(UsageError, match=key):
        overlap_strategies.get(name)(operator(**changes), params)


def kernels_of(op: MoeOperator, role: str, **params: str) -> dict[str, Moves]:
    """The kernels of one part of moe-sequential on GPU 0."""
    plan = overlap_strategies.get("moe-sequential")(op, {"communication_units": 4, **params})
    [part] = [one for one in plan.parts() if one.role == role]
    return {one.name: one for one in part.programs[0].operations if isinstance(one, Moves)}


@pytest.mark.parametrize(("role", "chunk"), [("dispatch", 6), ("combine", 4)])
def test_each_chunk_of_a_queue_ends_with_flags(role: str, chunk: int) -> None:
    """A sender loads the head of a queue, copies at most a chunk for each GPU, has a fence, and stores a flag.

    A flag of combine is for one token, whose warp waits for it.
    """
    op = operator(tokens_per_gpu=37)
    senders = kernels_of(op, role)[f"{role}, senders"].steps
    for column in senders.T:
        asks = np.flatnonzero(column["wait_where"] == 1)
        away = column[column["distance"] != 0]
        chunks = []
        for distance in range(1, 4):
            rows, flags = (np.sum(away["distance"][away["n_operands"] == n] == distance) for n in (1, 0))
            chunks.append(-(-rows // chunk))
            assert flags == (rows if role == "combine" else chunks[-1])
        assert len(asks) == 2 * max(chunks)


def test_receivers_of_combine_wait_token_by_token() -> None:
    """In one batch, whatever the number of rows of a token, so that a warp waits for no other token."""
    op = operator("uniform", tokens_per_gpu=16, top_k=3)
    receivers = kernels_of(op, "combine")["combine, receivers"].steps
    for column in receivers.T:
        sums = column[column["wait_signal"] >= 0]
        assert len(np.unique(sums["wait_signal"])) == len(sums) == 1 + sums["n_batched"][0]
        assert len(np.unique(sums["n_operands"])) > 1


def test_a_one_sided_exchange_has_a_row_for_each_gpu_of_a_token() -> None:
    """Of 9 tokens with both experts on one of 2 GPUs each of these gets a row; DeepEP's form sends two."""
    op = operator("uniform", ep=2, top_k=4)
    sent = []
    for name in ("moe-low-latency", "moe-low-latency, one-sided"):
        part = next(one for one in plan_of(name, op).parts() if one.role == "dispatch")
        steps = [one.steps for one in part.programs[0].operations if isinstance(one, Moves)]
        sent.append(sum(int(((one["send"] >= 0) & (one["n_operands"] > 0)).sum()) for one in steps))
    rows, copies = (len(np.flatnonzero(one.distance)) for one in (op.sent(0), op.copies_sent(0)))
    assert sent == [rows, copies]
    assert copies < rows


def test_a_cached_layout_needs_no_counts() -> None:
    new, cached = (
        kernels_of(operator(), "dispatch", layout=layout)["notify dispatch"].steps.reshape(-1)
        for layout in ("new", "cached")
    )
    assert [len(np.unique(one["wait_signal"][one["wait_at_least"] > 0])) for one in (new, cached)] == [3, 2]


def test_a_step_that_is_alone_is_made_by_one_warp() -> None:
    """Cut into pieces; a batch is left as it is."""
    column = batched(steps(3, n_granules=10, operand=100, kept_at=200, post_signal=1), np.array([0, 1, 1]))
    found = by_one_warp(column, 4)
    assert found["n_granules"].tolist() == [4, 4, 2, 10, 10]
    assert found["operand"].tolist() == [100, 104, 108, 100, 100]
    assert found["kept_at"].tolist() == [200, 204, 208, 200, 200]


def test_the_rest_of_a_row_follows_its_data() -> None:
    data, scales = parted(steps(2, n_granules=10, operand=100, kept_at=200), 8)
    assert (data["n_granules"].tolist(), scales["n_granules"].tolist()) == ([8, 8], [2, 2])
    assert (scales["operand"].tolist(), scales["kept_at"].tolist()) == ([108, 108], [208, 208])
    assert len(parted(data, 8)) == 1


def test_results_have_the_traffic_of_all_kernels(tmp_path: Path) -> None:
    """Grouped GEMMs read the weights of all experts of the GPU; each token with experts elsewhere crosses the link."""
    experts = {"n_experts": 8, "top_k": 2, "hidden": 128, "intermediate": 64, "tokens_per_gpu": 16, "ep": 4}
    experiment = load_experiment({
        "schema_version": 1, "name": "experts", "strategy": {"name": "moe-sequential", "communication_units": 4},
        "machine": {"preset": "t3-tiny", "gpu": {"n_compute_units": 8},
                    "link": {"topology": "switch", "ingress_buffer": "64 KiB"}},
        "workload": {"operator": "moe", "experts": experts}, "tiling": "gemm-64x64",
    })  # fmt: skip
    [record] = run(experiment, tmp_path).records
    assert record.dram_gemm_read_bytes >= 2 * (128 * 128 + 64 * 128) * 2
    assert record.dram_gemm_write_bytes >= 16 * 2 * (128 + 128) * 2
    assert record.dram_rs_read_bytes >= 16 * 128 * 2
    assert record.link_bytes >= 2 * 16 * 3 / 4 * 128 * 2
