"""The record of a machine against its specification: any value that is not what was asked for is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from t3sim.checks.invariants import broken
from t3sim.checks.specification import specification_claims
from t3sim.gpu.core import GpuCore
from tests.harness.tiny_runs import machine_for, quanta

FIELDS = {
    "compute_ticks": "compute clock",
    "memory_ticks": "memory clock",
    "slot_ticks": "issue slot",
    "n_compute_units": "compute units",
    "n_channels": "channels",
    "granule_bytes": "bytes of an access",
    "n_classes": "traffic classes",
    "max_outstanding_lines": "loads in flight",
    "workgroup_launch_ticks": "launch of a workgroup",
    "l2.associativity": "capacity",
    "l2.sets_per_bank": "capacity",
    "l2.n_partitions": "partitions",
    "l2.partition_bits": "channels of a partition",
    "l2.request_ticks": "hit latency",
    "l2.return_ticks": "hit latency",
    "l2.miss_ticks": "miss latency",
    "l2.crossing_ticks": "crossing and back",
    "l2.bank_ticks": "line through a bank",
    "l2.retained_granules": "retention",
    "ports.granule_cost": "rate",
    "ports.scale": "rate",
    "ports.buffer_granules": "buffer",
    "dma.bytes_per_tick_num": "rate",
    "tracker.n_sets": "sets",
    "tracker.entries_per_set": "entries of a set",
    "operation.epilogue_ticks": "epilogue",
    "operation.slice_work": "operations of a tile",
    "operation.last_slice_work": "operations of a tile",
    "work_per_slot": "operations of a slot",
    "operation.last_slice_granules": "accesses of an operand row",
}


@pytest.fixture(scope="module")
def fused() -> GpuCore:
    """A finished fused run; whoever changes it changes it back."""
    *_, core = quanta(machine_for("fused"))
    assert broken(core) == []
    return core


def change(core: GpuCore, path: str, by: int = 1) -> None:
    """Add to a field of the record, or of the first operation."""
    *parts, name = path.split(".")
    record: Any = core.gpu
    if parts[:1] == ["ports"]:
        record, parts = record.ports[0], parts[1:]
    for part in parts:
        record = core.tables.operations[0] if part == "operation" else record[part]
    record[name] += by


@pytest.mark.parametrize("path", FIELDS)
def test_a_value_that_was_not_asked_for_is_named(path: str, fused: GpuCore) -> None:
    change(fused, path)
    lines = [line for claim in specification_claims(fused) for line in claim.breaches()]
    change(fused, path, -1)
    assert any(line.startswith("S1 broken") and FIELDS[path] in line for line in lines)


@pytest.mark.parametrize(
    "name",
    [
        "nRCDRD",
        "nCCDWL",
        "nFAW",
        "queue_capacity",
        "stream_capacity",
        "banks_per_group",
        "n_classes",
        "read_age",
        "turnaround_to_writes",
    ],
)
def test_a_value_of_one_channel_is_named(name: str, fused: GpuCore) -> None:
    fused.gpu.channels[1][name] += 1
    lines = [line for claim in specification_claims(fused) for line in claim.breaches()]
    fused.gpu.channels[1][name] -= 1
    assert [line.partition(":")[0] for line in lines] == ["S1 broken"]
    assert lines[0].startswith(f"S1 broken: channel[1]: {name}, kept against stated")


END: dict[str, Callable[[GpuCore], None]] = {
    "gemm": lambda core: change(core, "compute_done_at", 10**6),
    "fused": lambda core: change(core, "last_done_at", 10**6),
    "reduce-scatter": lambda core: change(core, "compute_done_at", 10**6),
}


@pytest.mark.parametrize("kind", END)
def test_an_end_that_nothing_explains_is_named(kind: str) -> None:
    *_, core = quanta(machine_for(kind))
    assert broken(core) == []
    END[kind](core)
    assert any(line.startswith("S2 broken: gpu: end of the kernel") for line in broken(core))
