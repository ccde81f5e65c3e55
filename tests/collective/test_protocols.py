"""Which protocol do channels take: the one that NCCL's own log and times show, for every collective and size?"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from t3lab.cli.validate import machine_of
from t3sim.collective.choice import protocol_of, ring_schedule
from t3sim.collective.schedule import TO_LOCAL, Op, sent_granules
from t3sim.config.collective_kernel import CollectiveKernelSpec
from t3sim.config.machine import MachineSpec

KIB, MIB = 1 << 10, 1 << 20
CHOICE = re.compile(r"(\w+): (\d+) Bytes -> Algo RING proto (\w+)")
OPS = {
    "ReduceScatter": "reduce-scatter", "AllGather": "all-gather", "AllReduce": "all-reduce", "Broadcast": "broadcast"
}  # fmt: skip
NAMES = {"LL": "low_latency", "LL128": "low_latency_128", "SIMPLE": "simple"}


@pytest.fixture(scope="module")
def h200() -> MachineSpec:
    return machine_of("h200", ())


def choices_in(folder: Path) -> list[tuple[str, int, str]]:
    """NCCL's account of its choices on two GPUs: collective, bytes of the whole array, protocol."""
    found = []
    for line in json.loads((folder / "provenance.json").read_text())["nccl_choices"]:
        match = CHOICE.match(line)
        assert match is not None, line
        op = OPS[match[1]]
        found.append((op, int(match[2]) * (2 if op in ("reduce-scatter", "all-gather") else 1), NAMES[match[3]]))
    return found


def differences(kernel: CollectiveKernelSpec, choices: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    return [one for one in choices if protocol_of(kernel, one[0], 2, one[1]) != one[2]]


@pytest.mark.parametrize("folder", ["h200/two-gpus", "h200-sent-collectives"])
def test_the_choice_is_the_one_that_nccl_logs(folder: str, h200: MachineSpec, repository: Path) -> None:
    """On two GPUs LL ends between 2 and 4 MiB of RS and AG, and between 1 and 2 MiB of AR and broadcast."""
    choices = choices_in(repository / "validation" / folder)
    assert {protocol for _, _, protocol in choices} == {"low_latency", "simple"}
    assert differences(h200.gpu.collective_kernel, choices) == []


@pytest.mark.parametrize(
    ("op", "size", "protocol"),
    [("reduce-scatter", MIB, "low_latency"), ("reduce-scatter", 4 * MIB, "simple"), ("all-gather", 4 * MIB, "simple"),
     ("all-reduce", MIB, "low_latency"), ("all-reduce", 4 * MIB, "low_latency_128"),
     ("all-reduce", 6 * MIB, "low_latency_128"), ("all-reduce", 12 * MIB, "simple")],
)  # fmt: skip
def test_four_gpus_take_what_their_times_show(op: Op, size: int, protocol: str, h200: MachineSpec) -> None:
    """Times of auto and of Simple differ for AR of 4 and 6 MiB (41 and 55 us, 48 and 77 us), not for the others."""
    assert protocol_of(h200.gpu.collective_kernel, op, 4, size) == protocol


def test_without_expected_times_nothing_is_chosen(h200: MachineSpec) -> None:
    """Does a machine without a table, or without other protocols, run the plain one?"""
    kernel = h200.gpu.collective_kernel
    for update in ({"expected": None}, {"low_latency": None, "low_latency_128": None}):
        assert protocol_of(kernel.model_copy(update=update), "reduce-scatter", 2, KIB) == "simple"


@pytest.mark.parametrize(
    ("protocol", "sent"), [("simple", 1), ("low_latency", 2), ("low_latency_128", 16 / 15)]
)  # fmt: skip
def test_what_is_sent_holds_the_flags(protocol: str, sent: float, h200: MachineSpec) -> None:
    """Granules over the link for each of data: 1, 2, 16/15 (and one more at the end of a slice, at most)."""
    kernel = h200.gpu.collective_kernel
    others = {name: None for name in ("low_latency", "low_latency_128") if name != protocol}
    far = kernel.expected.model_copy(update={"start": 10**9}) if protocol != "simple" and kernel.expected else None
    only = kernel.model_copy(update={**others, "expected": far})
    machine = h200.model_copy(update={"gpu": h200.gpu.model_copy(update={"collective_kernel": only})})
    chunk = 24 * 480
    program = ring_schedule(machine, "all-reduce", 4, chunk)
    assert program.protocol == protocol
    sizes = [step.n_granules for step in program.steps if step.n_granules and step.send_to != TO_LOCAL]
    all_sent = sum(sent_granules(size, program.flags) for size in sizes)
    assert 6 * chunk * sent <= all_sent <= 6 * chunk * sent + len(sizes)
    waited = sum(step.wait_received for step in program.steps)
    assert waited == all_sent
