"""Defects that leave every conservation law intact: does a golden result notice each, and does `t3sim selfcheck`?

A mutant changes values of records, or a function of Python, on the compiled kernel; it costs what its case costs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import pytest

from t3sim.config.experiment import GemmShape
from t3sim.errors import ModelError
from t3sim.gpu import core
from t3sim.gpu.arbitration import mca
from t3sim.gpu.core import GpuCore
from t3sim.gpu.tables import Tables
from t3sim.program.operator import Operator
from t3sim.program.parts import gemm_part
from t3sim.selfcheck.data_cases import TILINGS, machine_from
from t3sim.selfcheck.known import known_runs
from t3sim.selfcheck.preset_cases import digest_of
from t3sim.selfcheck.properties import KNOWN_RESULTS, in_plain_python
from t3sim.system import parts
from t3sim.workload.tiling import make_tile_trace
from tests.golden.cases import CASES
from tests.golden.record import result_of
from tests.golden.store import stored

Patch = pytest.MonkeyPatch
SIMULATE = import_module("t3sim.system.simulate")  # a function has its name in the package


def behind(method: str, change: Callable[[GpuCore], None], patch: Patch) -> None:
    """Let *change* follow each call of *method* of a GPU."""
    original = getattr(GpuCore, method)

    def changed(self: GpuCore, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        change(self)

    patch.setattr(GpuCore, method, changed)


def in_record(change: Callable[[Any], None]) -> Callable[[Patch], None]:
    """Return the mutant that applies *change* to the record of each GPU when it is built."""
    return partial(behind, "__init__", lambda gpu: change(gpu.gpu))


def in_tables(change: Callable[[Tables], None]) -> Callable[[Patch], None]:
    """Return the mutant that applies *change* to the tables of each program."""
    original = core.tables_of

    def changed(*arguments: Any) -> Tables:
        tables = original(*arguments)
        change(tables)
        return tables

    return lambda patch: patch.setattr(core, "tables_of", changed)


def retain_half(gpu: Any) -> None:
    gpu.l2.retained_granules //= 2


def raise_threshold(gpu: Any) -> None:
    gpu.channels["policy_params"][:, mca.THRESHOLD] += 1


def double_starvation_limit(gpu: Any) -> None:
    gpu.channels["policy_params"][:, mca.STARVATION_LIMIT] *= 2


def lower_watermark(gpu: Any) -> None:
    gpu.channels["write_high_watermark"] -= 1


def send_no_headers(gpu: GpuCore) -> None:
    gpu.wire["header_cost"] = 0
    for port in gpu.ports:
        port.header_cost = 0


def store_no_headers(gpu: Any) -> None:
    gpu.store_header_ticks = 0


def cross_for_nothing(gpu: Any) -> None:
    gpu.l2.crossing_ticks = 0


def one_credit_more(gpu: GpuCore) -> None:
    gpu.peers["credits"] += 1


def signal_is_early(tables: Tables) -> None:
    """A tile or an operation starts one signal before what it waits for is complete."""
    tables.waits["at_least"] -= tables.waits["at_least"] > 0
    tables.tiles["wait_at_least"] -= tables.tiles["wait_at_least"] > 0


def pull_is_early(tables: Tables) -> None:
    tables.steps["wait_at_least"] -= tables.steps["wait_at_least"] > 0


def forget_kernel_launch(tables: Tables) -> None:
    tables.operations["start_at"] -= tables.operations["launch_ticks"] * (tables.operations["start_at"] < 1 << 60)
    tables.operations["launch_ticks"] = 0


def forget_host(patch: Patch) -> None:
    patch.setattr(import_module("t3sim.strategies.async_tp"), "run_by", lambda _, operations, *__: list(operations))


def forget_engine_launch(tables: Tables) -> None:
    """A copy engine starts up in no time."""
    for name in ("startup_ticks", "wake_ticks"):
        tables.operations[name] = 0


def forget_slice_overhead(tables: Tables) -> None:
    tables.operations["slice_overhead_ticks"] = 0


def load_wide_at_once(tables: Tables) -> None:
    tables.operations["wide_load_ticks"] = 0


def forget_epilogue(tables: Tables) -> None:
    tables.operations["epilogue_ticks"] = 0


def count_link_twice(patch: Patch) -> None:
    original = parts.counters_in
    patch.setattr(parts, "counters_in", lambda *a: (found := original(*a)) | {"link_bytes": 2 * found["link_bytes"]})


def count_all_gather_twice(patch: Patch) -> None:
    original = SIMULATE.result_of

    def twice(*arguments: Any) -> Any:
        result = original(*arguments)
        gather = result.by_role.get("all_gather")
        return replace(result, total=result.total + (gather.ticks if gather else 0))

    patch.setattr(SIMULATE, "result_of", twice)


@dataclass(frozen=True)
class Mutant:
    """A defect, the golden case that notices it, and the known result of selfcheck that does; none: it does not."""

    make: Callable[[Patch], None]
    case: str
    known: str | None


MUTANTS = {
    "retention of half the bytes": Mutant(in_record(retain_half), "h200 reduce-scatter short retention", None),
    "threshold of MCA one higher": Mutant(
        in_record(raise_threshold), "t3-tiny ring t3 crowded mca 5", "t3-mca on a crowded t3-tiny"
    ),
    "starvation limit doubled": Mutant(
        in_record(double_starvation_limit), "t3-tiny ring t3 crowded mca 5 20 cycles", "t3-mca on a crowded t3-tiny"
    ),
    "write watermark one lower": Mutant(
        in_record(lower_watermark), "t3-tiny ring t3 split queue", "copy-engine-scatter on a small h200"
    ),
    "headers of packets forgotten": Mutant(
        partial(behind, "wire_to", send_no_headers), "h200 switch flux-push", "flux-push on a small h200"
    ),
    "headers of stores forgotten": Mutant(
        in_record(store_no_headers), "h200 switch flux-push", "flux-push on a small h200"
    ),
    "crossing of partitions free": Mutant(
        in_record(cross_for_nothing), "t3-tiny ring t3 partitions", "sequential on a small h200"
    ),
    "ingress credit too many": Mutant(
        partial(behind, "give_room", one_credit_more), "t3-tiny switch flux-push naive", None
    ),
    "signal one early": Mutant(in_tables(signal_is_early), "h200 switch ag-gemm flux-ag", "flux-ag on a small h200"),
    "pull before the data are made": Mutant(
        in_tables(pull_is_early), "h200 switch flux-pull", "flux-pull on a small h200"
    ),
    "kernel launch forgotten": Mutant(
        in_tables(forget_kernel_launch), "h200 switch sequential", "sequential on a small h200"
    ),
    "host forgotten": Mutant(forget_host, "h200 switch async-tp", "async-tp on a small h200"),
    "launch of an engine forgotten": Mutant(
        in_tables(forget_engine_launch), "h200 switch copy-engine-scatter", "copy-engine-scatter on a small h200"
    ),
    "slice overhead forgotten": Mutant(
        in_tables(forget_slice_overhead), "h200 reduce-scatter simple 1 channels", "sequential on a small h200"
    ),
    "wide loads as quick as others": Mutant(
        in_tables(load_wide_at_once), "h200 reduce-scatter simple 1 channels", "copy-engine-scatter on a small h200"
    ),
    "epilogue forgotten": Mutant(in_tables(forget_epilogue), "h200 Triton epilogue", None),
    "bytes of a link counted twice": Mutant(count_link_twice, "t3-tiny ring t3", "t3 on a crowded t3-tiny"),
    "all-gather counted twice": Mutant(count_all_gather_twice, "t3-tiny ring t3", "t3 on a crowded t3-tiny"),
}
KNOWN = json.loads(KNOWN_RESULTS.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def no_part_is_shared() -> Iterator[None]:
    """Operators keep their parts, so a mutant would meet those of the program as it is, or leave its own behind."""
    SIMULATE._operator.cache_clear()
    yield
    SIMULATE._operator.cache_clear()


def notices(run: Callable[[], Any], expected: Any) -> bool:
    """Return whether *run* does not come to what is *expected*; a broken rule of the model counts."""
    try:
        return bool(run() != expected)
    except ModelError:
        return True


@pytest.mark.parametrize("name", MUTANTS)
def test_a_golden_result_notices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    mutant.make(monkeypatch)
    assert notices(lambda: json.loads(json.dumps(result_of(CASES[mutant.case]))), stored()[mutant.case])


@pytest.mark.parametrize("name", [name for name, mutant in MUTANTS.items() if mutant.known])
def test_selfcheck_notices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    mutant.make(monkeypatch)
    assert notices(dict(known_runs())[str(mutant.known)], KNOWN[mutant.known])


def test_selfcheck_notices_at_least_half() -> None:
    assert 2 * sum(mutant.known is not None for mutant in MUTANTS.values()) >= len(MUTANTS)


REPLACEMENT = """\
from t3sim.gpu.units.l2 import l2_slice
from tests.golden.test_mutants import first_in_first_out_in_one_partition, l2_digest
print(l2_digest())
l2_slice.move_to_front.__code__ = first_in_first_out_in_one_partition.__code__
print(l2_digest())
"""


def first_in_first_out_in_one_partition(l2: Any, set_index: int, way: int, tag: int) -> None:
    """Take the place of ``l2_slice.move_to_front``: lines of the second half of the sets stay where they are."""
    is_second = set_index >= l2.n_banks * l2.sets_per_bank // 2
    is_hit = l2.tags[set_index, way] >> KEY_SHIFT == tag >> KEY_SHIFT  # noqa: F821 - of the module that it is put into
    if not (is_second and is_hit):
        for one in range(way, 0, -1):
            l2.tags[set_index, one] = l2.tags[set_index, one - 1]
        way = 0
    l2.tags[set_index, way] = tag


def l2_digest() -> str:
    """Return the digest of a GEMM whose operands do not fit into an L2 of two partitions."""
    machine = machine_from("{preset: t3-tiny, gpu: {l2: {capacity: 4 KiB, n_partitions: 2}}}")
    trace = make_tile_trace(GemmShape(m=256, n=64, k=64), TILINGS[0], 1)
    return digest_of(gemm_part(Operator(machine, 1, trace)), machine, is_mirrored=True)


def test_replacement_in_one_partition_is_noticed() -> None:
    """In plain Python, where a function of the kernel can be exchanged; without that it is the compiled result."""
    unchanged, mutated = in_plain_python(REPLACEMENT).split()
    assert unchanged == l2_digest() != mutated
