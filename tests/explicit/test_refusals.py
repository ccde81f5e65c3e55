"""What is wrong with a ring is refused at its line, before anything is simulated: one golden message for each fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from t3sim.config.machine import MachineSpec
from t3sim.errors import ConfigError, UsageError
from t3sim.experiment.plan import load_experiment
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
    case(
        "a GPU that is not there",
        ring("gpu[4]: {compute_clock: 1386 MHz}"),
        "e.yaml:4:3: machine.gpu[4]: there is no gpu[4]: the ring has 4 GPUs, gpu[0] to gpu[3]",
    ),
    case(
        "memory of a GPU that is not there",
        ring("memory[9]: {clock: 990 MHz}"),
        "e.yaml:4:3: machine.memory[9]: there is no memory[9]: the ring has 4 GPUs, gpu[0] to gpu[3]",
    ),
    case(
        "a link that is not there",
        ring("link[4]: {bandwidth: 4 GB/s}"),
        "e.yaml:4:3: machine.link[4]: there is no link[4]: the ring has 4 links, link[0] to link[3]",
    ),
    case(
        "skew of a GPU that is not there",
        ring('start_skew: {"gpu[7]": 1 us}'),
        "e.yaml:4:16: machine.start_skew.gpu[7]: there is no gpu[7]: the ring has 4 GPUs, gpu[0] to gpu[3]",
    ),
    case(
        "skew of something else",
        ring('start_skew: {"link[1]": 1 us}'),
        "e.yaml:4:16: machine.start_skew.link[1]: unknown GPU `link[1]`; a GPU is called like `gpu[3]`",
    ),
    case(
        "skew without a unit",
        ring('start_skew: {"gpu[1]": 1}'),
        "e.yaml:4:26: machine.start_skew.gpu[1]: 1 has no unit; did you mean `1 ns`?",
    ),
    case(
        "a name that is none",
        ring("gpu[x]: {compute_clock: 1386 MHz}"),
        "e.yaml:4:3: machine.gpu[x]: unknown key `gpu[x]`; did you mean `gpu`?",
    ),
    case(
        "an unknown value of a GPU",
        ring("gpu[1]: {compute_klock: 1386 MHz}"),
        "e.yaml:4:12: machine.gpu[1].compute_klock: unknown key `compute_klock`; did you mean `compute_clock`?",
    ),
    case(
        "an unknown preset of a link",
        ring("link[1]: {preset: ring-80}"),
        "e.yaml:4:21: machine.link[1]: unknown link `ring-80`; did you mean `ring-150`? "
        "(known: nvlink4-switch, ring-150, ring-75, ring-tiny)",
    ),
    case(
        "a link that is down",
        ring("link[2]: down"),
        "e.yaml:4:12: machine.link[2]: the ring has no way round: the link by which gpu[2] sends is down",
    ),
    case(
        "a link without bandwidth",
        ring("link[2]: {bandwidth: 0 GB/s}"),
        "e.yaml:4:24: machine.link[2].bandwidth: the ring has no way round: the link by which gpu[2] sends has no "
        "bandwidth",
    ),
    case(
        "jitter without a seed",
        ring("start_jitter: {limit: 1 us}"),
        "e.yaml:4:3: machine.start_jitter.seed: is missing; jitter without a seed could not be repeated",
    ),
    case(
        "jitter without a limit",
        ring("start_jitter: {seed: 1}"),
        "e.yaml:4:3: machine.start_jitter.limit: is missing",
    ),
    case(
        "lines of another length",
        ring("gpu[1]: {l2: {line: 64 B}}"),
        "e.yaml:4:23: machine.gpu[1].l2.line: is 64, all GPUs must have the same, 128",
    ),
    case(
        "a tracker of another size",
        ring("gpu[1]: {tracker: {n_sets: 32}}"),
        "e.yaml:4:30: machine.gpu[1].tracker.n_sets: is 32, all GPUs must have the same, 16",
    ),
    case(
        "a GPU that does not fit itself",
        ring("gpu[1]: {l2: {hit_latency: 15 cycles}}"),
        "e.yaml:4:30: machine.gpu[1].l2.hit_latency: is 15 cycles, must be at least twice `gpu.issue_slot`, 8 cycles",
    ),
    case(
        "a memory that does not fit its GPU",
        ring("memory[1]: {n_channels: 8}"),
        "e.yaml:4:14: machine.memory[1]: on gpu[1], `gpu.l2.n_banks` is 4, must be a multiple of "
        "`memory.n_channels`, 8",
    ),
    case(
        "clocks that meet too rarely",
        ring("gpu[1]: {compute_clock: 1399 MHz}"),
        "e.yaml:4:27: machine.gpu[1].compute_clock: the clocks of the ring (1 GHz, 1399 MHz, 1.4 GHz) meet only in "
        "ticks of 9793 GHz; at most 1 THz: choose clocks with a larger common divisor",
    ),
    case(
        "one GPU is no ring",
        ring("gpu[0]: {compute_clock: 1386 MHz}"),
        "e.yaml:8:7: mode: explicit mode simulates a ring; one GPU (`workload.tp` is 1) is a plain GEMM: use "
        "`mirrored`",
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
        "mirrored mode, jitter",
        ring("start_jitter: {limit: 1 us, seed: 1}", "mirrored"),
        "e.yaml:4:3: machine.start_jitter: " + ALONE.format("kernels start after random delays"),
    ),
    case(
        "mirrored mode, not staggered",
        ring("name: x", "mirrored\nstaggered: false"),
        "e.yaml:9:12: staggered: is false: every GPU begins with chunk 0, so none stands for all; use `mode: explicit`",
    ),
    case(
        "a quantum above the shortest latency",
        ring("link[1]: {latency: 100 ns}", "explicit\nquantum: 200 ns"),
        "e.yaml:9:10: quantum: is 200 ns, cannot be longer than the shortest link latency, 100 ns",
    ),
    case(
        "a link shorter than a slot",
        ring("link[1]: {latency: 5 ns}"),
        "e.yaml:3:3: machine: the shortest link latency, 5 ns, is below the longest issue slot (`gpu.issue_slot`), "
        "5715 ps",
    ),
    case(
        "a GPU without units for the GEMM",
        ring("gpu[1]: {n_compute_units: 2}"),
        "-s strategy.collective_compute_units=2: strategy.collective_compute_units: on gpu[1]: is 2, must be below "
        "`machine.gpu.n_compute_units`, 2",
        options=("-s", "strategy=cu-split", "-s", "strategy.collective_compute_units=2"),
    ),
    case(
        "a GPU too small for the tile",
        ring("gpu[1]: {compute_unit: {max_threads: 64}}"),
        "e.yaml:6:9: tiling.workgroup_tile: on gpu[1]: [64, 64] runs 128 threads; "
        "`machine.gpu.compute_unit.max_threads` is 64",
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


@pytest.mark.parametrize("mode", ["explicit", "mirrored"])
def test_canary_a_ring_of_alike_gpus_is_taken(mode: str, folder: Path) -> None:
    (folder / "e.yaml").write_text(ring("gpu[3]: {compute_clock: 1.4 GHz}", mode))
    assert load_experiment(folder / "e.yaml").points[0].machine.is_uniform


def test_a_name_that_no_point_has_is_refused_although_others_have_it(folder: Path) -> None:
    (folder / "e.yaml").write_text(ring("gpu[3]: {compute_clock: 1386 MHz}"))
    with pytest.raises(ConfigError, match=r"there is no gpu\[3\]: the ring has 2 GPUs"):
        load_experiment(folder / "e.yaml", ["sweep.grid.workload.tp=[4, 2]"])


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
