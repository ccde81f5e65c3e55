"""What is wrong with a ring is refused at its line, before anything is simulated: one golden message for each fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from t3sim.config.machine import MachineSpec
from t3sim.errors import ConfigError, UsageError
from t3sim.experiment.planning.plan import load_experiment
from t3sim.system.simulate import simulate
from tests.faults.refusals import Case, case, check_refused
from tests.harness.sublayers import point

BASE = """\
name: e
machine:
  preset: t3-tiny
  {own}
workload: {{gemm: {{m: 256, n: 256, k: 64}}, tp: 4}}
tiling: gemm-64x64
strategy: t3
mode: {mode}
"""
ALONE = "mirrored mode simulates one GPU for all, but {0}; use `mode: explicit`"


def ring(own: str, mode: str = "explicit") -> str:
    """An experiment whose machine has *own* values."""
    return BASE.format(own=own, mode=mode)


CASES = [
    case("a GPU that is not there", ring("gpu[4]: {compute_clock: 1386 MHz}"), "e.yaml:4:3: machine.gpu[4]: 4"),
    case("memory of a GPU that is not there", ring("memory[9]: {clock: 990 MHz}"), "e.yaml:4:3: machine.memory[9]: 9"),
    case("a link that is not there", ring("link[4]: {bandwidth: 4 GB/s}"), "e.yaml:4:3: machine.link[4]: 4"),
    case(
        "skew of a GPU that is not there",
        ring('start_skew: {"gpu[7]": 1 us}'),
        "e.yaml:4:16: machine.start_skew.gpu[7]: 7",
    ),
    case(
        "skew of something else",
        ring('start_skew: {"link[1]": 1 us}'),
        "e.yaml:4:16: machine.start_skew.link[1]: `link[1]`",
    ),
    case("skew without a unit", ring('start_skew: {"gpu[1]": 1}'), "e.yaml:4:26: machine.start_skew.gpu[1]: `1 ns`"),
    case("a name that is none", ring("gpu[x]: {compute_clock: 1386 MHz}"), "e.yaml:4:3: machine.gpu[x]: `gpu[x]`"),
    case(
        "an unknown value of a GPU",
        ring("gpu[1]: {compute_klock: 1386 MHz}"),
        "e.yaml:4:12: machine.gpu[1].compute_klock: `compute_klock`",
    ),
    case("an unknown preset of a link", ring("link[1]: {preset: ring-80}"), "e.yaml:4:21: machine.link[1]: `ring-80`"),
    case("a link that is down", ring("link[2]: down"), "e.yaml:4:12: machine.link[2]: 2"),
    case("a link without bandwidth", ring("link[2]: {bandwidth: 0 GB/s}"), "e.yaml:4:24: machine.link[2].bandwidth: 2"),
    case("lines of another length", ring("gpu[1]: {l2: {line: 64 B}}"), "e.yaml:4:23: machine.gpu[1].l2.line: 64"),
    case(
        "a tracker of another size",
        ring("gpu[1]: {tracker: {n_sets: 32}}"),
        "e.yaml:4:30: machine.gpu[1].tracker.n_sets: 32",
    ),
    case(
        "a GPU that does not fit itself",
        ring("gpu[1]: {l2: {hit_latency: 15 cycles}}"),
        "e.yaml:4:30: machine.gpu[1].l2.hit_latency: `gpu.issue_slot`",
    ),
    case(
        "a memory that does not fit its GPU",
        ring("memory[1]: {n_channels: 8}"),
        "e.yaml:4:14: machine.memory[1]: `gpu.l2.n_banks`",
    ),
    case(
        "clocks that meet too rarely",
        ring("gpu[1]: {compute_clock: 1399 MHz}"),
        "e.yaml:4:27: machine.gpu[1].compute_clock: 1",
    ),
    case(
        "one GPU is no ring",
        ring("gpu[0]: {compute_clock: 1386 MHz}"),
        "e.yaml:8:7: mode: `workload.tp`",
        options=("-s", "workload.tp=1"),
    ),
    case(
        "mirrored mode, a GPU",
        ring("gpu[3]: {compute_clock: 1386 MHz, n_compute_units: 2}", "mirrored"),
        "e.yaml:4:3: machine.gpu[3]: " + ALONE.format("gpu[3] differs in `n_compute_units`, `compute_clock`"),
    ),
    case(
        "mirrored mode, a link",
        ring("link[0]: {preset: ring-75}", "mirrored"),
        "e.yaml:4:3: machine.link[0]: " + ALONE.format("link[0] differs in `bandwidth`, `egress_buffer`"),
    ),
    case(
        "mirrored mode, skew",
        ring('start_skew: {"gpu[1]": 1 us}', "mirrored"),
        "e.yaml:4:16: machine.start_skew.gpu[1]: " + ALONE.format("gpu[1] starts later than others"),
    ),
    case(
        "mirrored mode, not staggered",
        ring("name: x", "mirrored\nstaggered: false"),
        "e.yaml:9:12: staggered: `mode: explicit`",
    ),
    case(
        "a quantum above the shortest latency",
        ring("link[1]: {latency: 100 ns}", "explicit\nquantum: 200 ns"),
        "e.yaml:9:10: quantum: 200",
    ),
    case("a link shorter than a slot", ring("link[1]: {latency: 5 ns}"), "e.yaml:3:3: machine: `gpu.issue_slot`"),
    case(
        "a GPU without units for the GEMM",
        ring("gpu[1]: {n_compute_units: 2}"),
        "-s strategy.communication_units=2: strategy.communication_units: `machine.gpu.n_compute_units`",
        options=("-s", "strategy=cu-split", "-s", "strategy.communication_units=2"),
    ),
    case(
        "a GPU too small for the tile",
        ring("gpu[1]: {compute_unit: {max_threads: 64}}"),
        "e.yaml:6:9: tiling.workgroup_tile: `machine.gpu.compute_unit.max_threads`",
    ),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("fault", CASES, ids=[fault.id for fault in CASES])
def test_refused_with_this_message(fault: Case, folder: Path) -> None:
    fault.write(folder / "e.yaml")
    check_refused(folder, ["run", "e.yaml", "-o", "out", *fault.options], 2, fault.lines)


def test_a_name_that_a_point_does_not_have_refuses_that_point_only(folder: Path) -> None:
    (folder / "e.yaml").write_text(ring("gpu[3]: {compute_clock: 1386 MHz}"))
    refused = load_experiment(folder / "e.yaml", ["sweep.grid.workload.tp=[4, 2]"]).refused
    assert list(refused) == [1]
    assert refused[1].startswith("machine.gpu[3]: ")
    with pytest.raises(ConfigError, match=r"machine.gpu\[3\]: .* 2 GPUs"):
        load_experiment(folder / "e.yaml", ["sweep.grid.workload.tp=[1, 2]"])


def test_the_simulator_itself_refuses_what_a_mode_cannot_do() -> None:
    """Specs can be made by hand, past the checks of a file."""
    run = point("t3", "mode=explicit", "machine.gpu[1].compute_clock=1386 MHz")
    with pytest.raises(UsageError, match="these differ; use `explicit`"):
        simulate(run.model_copy(update={"mode": "mirrored"}))
    with pytest.raises(UsageError, match="a plain GEMM; use `mirrored`"):
        simulate(point("t3", tp=1).model_copy(update={"mode": "explicit"}))


def test_each_gpu_and_link_has_the_values_of_its_own() -> None:
    def spec(*overrides: str) -> MachineSpec:
        return point("t3", "mode=explicit", *overrides).machine

    machine = spec(
        "machine.gpu[1]={compute_clock: 1386 MHz, l2: {capacity: 32 KiB}}",
        "machine.memory[1].clock=990 MHz",
        "machine.memory[2].preset=hbm2-2ch",
        "machine.link[3].latency=600 ns",
    )
    even = spec()
    assert [own.number for own in machine.own_gpus] == [1]
    assert machine.of_gpu(0) == even.of_gpu(0).model_copy(update={"name": machine.name})
    one = machine.of_gpu(1)
    assert (one.gpu.compute_clock, one.gpu.l2.capacity, one.memory.clock) == (1386 * 10**6, 32 << 10, 990 * 10**6)
    assert one.gpu.model_copy(update={"compute_clock": 1400 * 10**6, "l2": even.gpu.l2}) == even.gpu
    assert one.link == even.link
    assert machine.of_gpu(3).link == even.link.model_copy(update={"latency": 600_000})
