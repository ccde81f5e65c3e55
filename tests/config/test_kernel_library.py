"""A library of kernels in place of one: what a point gets, what is said about it, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from t3sim.cli import main
from t3sim.config.experiment import KernelLibrarySpec, WorkloadSpec
from t3sim.config.presets import load_kernels
from t3sim.config.resolve import resolve_kernels, resolve_machine
from t3sim.config.yaml_loader import Node, Position, load_yaml_text
from t3sim.errors import ConfigError
from t3sim.experiment.planning.checks import tiling_findings
from t3sim.experiment.planning.plan import Experiment, load_experiment
from t3sim.workload.kernel_choice import fitting_kernels, tiling_of
from t3sim.workload.layer import sublayer_workloads
from t3sim.workload.tiling_rules import check_tiling

BASE = """name: base
machine: h200
workload: {model: T-NLG, sublayer: FC-2, tp: 8}
tiling: cublas-hopper
strategy: sequential
"""
OWN = """operand_cost: 16
kernels:
  wide: {workgroup_tile: [64, 128], wavefront_tile: [64, 64], k_slice: 64, prefetch_depth: 1}
  small: {workgroup_tile: [64, 64], wavefront_tile: [64, 64], k_slice: 64, prefetch_depth: 3}
"""
SMALL = "workload={gemm: {m: 512, n: 512, k: 64}, tp: 2}"
LARGE = "workload={gemm: {m: 4096, n: 4096, k: 64}, tp: 2}"
H200 = resolve_machine(Node("h200", Position("test.yaml"))).spec


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "e.yaml").write_text(BASE)
    (tmp_path / "own.yaml").write_text(OWN)
    return tmp_path / "e.yaml"


def tiles(experiment: Experiment) -> list[tuple[int, int]]:
    return [point.workload.tiling.workgroup_tile for point in experiment.points]


def test_a_point_has_the_kernel_of_its_shape(file: Path) -> None:
    assert tiles(load_experiment(file)) == [(160, 256)]
    assert tiles(load_experiment(file, (SMALL,))) == [(32, 64)]
    assert tiles(load_experiment(file, (LARGE,))) == [(128, 256)]


def test_the_machine_decides_too(file: Path) -> None:
    """On 16 compute units, a GEMM that was small for 132 is large enough for larger tiles."""
    sixteen = (SMALL, "machine.gpu.n_compute_units=16")
    assert tiles(load_experiment(file, sixteen)) != tiles(load_experiment(file, (SMALL,)))


def test_kernels_have_no_more_stages_than_a_compute_unit_holds(file: Path) -> None:
    """32 x 64 in 16 stages needs 192 KiB; an A100 has 164.  Canary: named, a kernel that needs more is refused."""
    found = {}
    for name in ("h200", "a100"):
        experiment = load_experiment(file, (SMALL, f"machine={name}"))
        tiling, leaf = experiment.points[0].workload.tiling, experiment.provenance[0]["tiling.prefetch_depth"]
        assert leaf.value == tiling.prefetch_depth
        found[name] = tiling.workgroup_tile, tiling.prefetch_depth, leaf.origin
    assert found == {"h200": ((32, 64), 15, "measured"), "a100": ((64, 64), 9, "derived")}
    with pytest.raises(ConfigError, match=r"\[128, 256\] needs 192 KiB for operand slices"):
        load_experiment(file, ("machine=a100", "tiling=gemm-128x256"))


@pytest.mark.parametrize(("override", "expected"), [
    ("tiling.every.cluster=1", {"64x64": (1, 2), "128x128": (1, 2)}),
    ("tiling.kernels.64x64.cluster=1", {"64x64": (1, 2), "128x128": (2, 2)}),
])  # fmt: skip
def test_what_every_kernel_has_is_said_once_and_a_kernel_may_say_otherwise(
    file: Path, override: str, expected: dict[str, tuple[int, int]]
) -> None:
    [point] = load_experiment(file, (override,)).points
    library = point.workload.kernels
    assert library is not None
    assert {n: (library.kernels[n].cluster, library.kernels[n].own_tiles) for n in expected} == expected


def test_a_kernel_named_and_the_same_one_chosen_are_two_points(file: Path) -> None:
    """The library is at hand for the GEMMs that a strategy makes of parts of this one."""
    own = "{preset: gemm-128x256, wavefront_tile: [64, 64]}"
    experiment = load_experiment(file, (LARGE, f"sweep.grid.tiling=[cublas-hopper, {own}]"))
    chosen, named = (point.workload for point in experiment.points)
    assert chosen.model_copy(update={"kernels": None}) == named != chosen


def test_all_sublayers_of_a_layer_have_the_kernel_that_each_would_have(file: Path) -> None:
    """A layer has one tiling, since its sublayers have outputs of one size."""
    [layer] = load_experiment(file, ("workload={model: T-NLG, layer: training, tp: 8}",)).points

    def alone(part: WorkloadSpec) -> tuple[int, int]:
        [tile] = tiles(load_experiment(file, (f"workload={{model: T-NLG, sublayer: {part.sublayer}, tp: 8}}",)))
        return tile

    parts = sublayer_workloads(layer.workload)
    assert len(parts) == 4
    assert [part.tiling.workgroup_tile for part in parts] == [alone(part) for part in parts]


def test_show_says_which_kernel_and_where_its_numbers_are_from(file: Path) -> None:
    shown = CliRunner().invoke(main, ["config", "show", str(file)])
    lines = [line.split(maxsplit=3) for line in shown.output.splitlines() if line.startswith("tiling.")]
    kernel, tile = lines[0], next(line for line in shown.output.splitlines() if "tiling.workgroup_tile" in line)
    assert kernel[:3] == ["tiling.kernel", "160x256", "derived"]
    assert kernel[3].startswith("the shortest schedule on 132 compute units (configs/kernel/cublas-hopper.yaml:")
    assert "[160, 256]" in tile
    assert "turned around" in tile
    assert not any("128x256" in line for line in shown.output.splitlines())


def test_values_of_one_kernel_can_be_replaced(file: Path) -> None:
    [point] = load_experiment(file, ("tiling.kernels.160x256.prefetch_depth=1",)).points
    assert point.workload.tiling.prefetch_depth == 1
    [other] = load_experiment(file, ("tiling.kernels.128x256.prefetch_depth=1",)).points
    assert other.workload.tiling.prefetch_depth == 2


def test_a_library_of_the_user(file: Path) -> None:
    assert tiles(load_experiment(file, ("tiling=own.yaml", SMALL))) == [(64, 64)]
    assert tiles(load_experiment(file, ("tiling=own.yaml", LARGE))) == [(64, 128)]
    inline = "{kernels: {only: {workgroup_tile: [64, 64], wavefront_tile: [64, 64], k_slice: 64, prefetch_depth: 1}}}"
    assert tiles(load_experiment(file, (f"tiling={inline}", "tiling.operand_cost=1", LARGE))) == [(64, 64)]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "tiling.prefetch_depth=2",
            "unknown key `prefetch_depth`; known: rules, operand_cost, load_cost, partial_sums, kernels",
        ),
        ("tiling={kernels: {}, operand_cost: 1}", "tiling.kernels: found 0 values, 1 are needed"),
        ("tiling={kernels: {}, k_slice: 64}", "tiling.k_slice: unknown key `k_slice`"),
        ("tiling={kernels: {}}", "tiling.operand_cost: is missing"),
        ("tiling.operand_cost=0", "found `0`, must be above 0"),
        ("tiling.kernels.160x256.k_slice=0", "tiling.kernels.160x256.k_slice: found `0`, must be above 0"),
        ("tiling.kernels.new={k_slice: 64}", "tiling.kernels.new.workgroup_tile: is missing"),
        ("tiling.kernels.64x64.clusters=1", "unknown key `clusters` under `kernels.64x64`; did you mean `cluster`?"),
        ("tiling.every.clusters=1", "tiling.every.clusters: unknown key `clusters`; did you mean `cluster`?"),
        ("tiling.every=5", "tiling.every: found `5`, a mapping is needed with the keys workgroup_tile, "),
        ("machine.gpu.compute_unit.lds=16 KiB", "`machine.gpu.compute_unit.lds` is 16 KiB"),
    ],
)
def test_what_is_refused(file: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_experiment(file, (override,))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "machine", "n_kernels"), [("cublas-hopper", "h200", 26), ("cublas-ampere", "a100", 7)]
)
def test_every_kernel_of_a_shipped_library_runs_on_its_machine(name: str, machine: str, n_kernels: int) -> None:
    library, spec = load_kernels(name), resolve_machine(Node(machine, Position("test.yaml"))).spec
    assert isinstance(library, KernelLibrarySpec)
    assert len(library.kernels) == n_kernels
    for tiling in library.kernels.values():
        check_tiling(tiling)
        assert tiling_findings(tiling, spec) == []


@pytest.mark.parametrize(
    ("machine", "library"),
    [
        ("h200", "cublas-hopper"), ("h100", "cublas-hopper"), ("mi355x", "cublas-hopper"), ("b200", "cublas-blackwell"),
        ("gb300", "cublas-blackwell"), ("h20", "cublas-hopper"), ("l40s", "cublas-ampere"), ("a100", "cublas-ampere"),
        ("a100-40g", "cublas-ampere"), ("t3-150", None),
    ],
)  # fmt: skip
def test_a_machine_names_its_library(machine: str, library: str | None) -> None:
    """Also one made from another machine; one that names none has the default kernel."""
    derived = load_yaml_text(f"{{preset: {machine}, link: {{latency: 700 ns}}}}", "e.yaml")
    for node in (Node(machine, Position("")), derived):
        found = resolve_machine(node).library
        assert (None if found is None else found.value) == library
        kernels, name = resolve_kernels(None, resolve_machine(node))
        assert (kernels, name) == (load_kernels(library or "gemm-256x128"), library or "gemm-256x128")


@pytest.mark.parametrize(
    ("machine", "tiling", "chosen"),
    [
        ("h200", "", "cublas-hopper"), ("{preset: h200, link: {latency: 1 us}}", "", "cublas-hopper"),
        ("h200", "tiling: gemm-128x128", "gemm-128x128"), ("t3-150", "", "gemm-256x128"),
        ("a100", "", "cublas-ampere"),
    ],
)  # fmt: skip
def test_run_takes_the_library_of_the_machine_unless_the_file_says_otherwise(
    tmp_path: Path, machine: str, tiling: str, chosen: str
) -> None:
    file = tmp_path / "e.yaml"
    work = "workload: {gemm: {m: 64, n: 8192, k: 3584}, tp: 2}\nstrategy: sequential\n"
    file.write_text(f"name: e\nmachine: {machine}\n{tiling}\n{work}")
    [run] = load_experiment(file).points
    expected = fitting_kernels(load_kernels(chosen), run.machine)
    assert run.workload.tiling == tiling_of(expected, run.workload.gemm, run.machine.gpu.n_compute_units)
    assert (run.workload.kernels is not None) == chosen.startswith("cublas")


def test_values_of_a_kernel_need_a_preset_on_a_machine_with_a_library(tmp_path: Path) -> None:
    """The study's kernel is never taken in silence."""
    file = tmp_path / "e.yaml"
    work = "workload: {gemm: {m: 64, n: 8192, k: 3584}, tp: 2}\nstrategy: sequential\n"
    file.write_text(f"name: e\nmachine: h200\ntiling: {{prefetch_depth: 2}}\n{work}")
    with pytest.raises(ConfigError, match=r"e.yaml:3:9: tiling: has no `preset:`.*cublas-hopper"):
        load_experiment(file)


def test_a_machine_of_the_user_may_name_a_file_beside_it(file: Path) -> None:
    """Found from wherever the command is called, and no part of what the hardware is."""
    own = file.with_name("machine.yaml")
    own.write_text("preset: h200\nkernels: own.yaml\n")
    machine = resolve_machine(Node(str(own), Position("")), Path())
    kernels, _ = resolve_kernels(None, machine)
    assert isinstance(kernels, KernelLibrarySpec)
    assert kernels != load_kernels("cublas-hopper")
    spec = machine.spec
    assert (spec.gpu, spec.memory, spec.link) == (H200.gpu, H200.memory, H200.link)


@pytest.mark.parametrize(
    ("named", "message"), [("cublas-hoper", "did you mean `cublas-hopper`"), ("7", "the name of a library is needed")]
)
def test_a_machine_that_names_no_library_is_refused(named: str, message: str, file: Path) -> None:
    own = file.with_name("machine.yaml")
    own.write_text(f"preset: h200\nkernels: {named}\n")
    with pytest.raises(ConfigError, match=message) as refused:
        resolve_machine(Node(str(own), Position("")), Path())
    assert "machine.yaml:2:10" in str(refused.value)
