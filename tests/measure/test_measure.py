"""Measuring without a GPU: what is missing is said in one line, and on a stand-in for CuPy the books are kept.

The stand-in (``fake/cupy``) has arrays without elements and kernels of fixed cost, so nothing here says how fast
anything is; it shows that all programs run to their end, that times are read off the right events, that what is
measured is written, and that wrong results or impossible times are not.
"""

from __future__ import annotations

import ast
import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from t3lab.measure import async_tp, scatters
from t3lab.measure import gemm as measure_gemm
from t3lab.measure.program import MEASURABLE, OF_PYTORCH, QUICK_CHANNELS
from t3lab.measure.rings import CollectiveArrays
from t3lab.measurements.meshes import Lane, meshes
from t3lab.measurements.reading import read_measurements
from t3lab.measurements.words import ACCESS_PATTERNS, ACCESSES, MEMORIES, SIGNALS
from t3lab.validation.bench import OPS
from tests.conftest import REPOSITORY

PROGRAMS = REPOSITORY / "t3lab" / "measure"
# Of t3sim, what needs the standard library only.
LIGHT = ("t3lab.measure", "t3lab.measurements", "t3sim.errors", "t3sim.files")
FAKE = Path(__file__).with_name("fake")
HANG_S = 120

ELSE = "everything else in t3sim works without it"
NO_CUPY = (
    f"cannot measure: CuPy is not installed; install t3sim[cuda13] or t3sim[cuda12], whichever the driver has; {ELSE}"
)


def run(
    *arguments: str | Path, cwd: Path, fake: bool = True, faults: str = "", module: str = "t3lab.measure"
) -> subprocess.CompletedProcess[str]:
    """Run the command of a bare node, on the stand-in or (where CuPy is not installed) on nothing."""
    path = [str(FAKE)] if fake else []
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*path, str(REPOSITORY)]), "FAKE_CUPY": faults},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything measured on the stand-in."""
    folder = tmp_path_factory.mktemp("measured")
    done = run("--quick", "-o", "out", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_all_kinds_are_measured_and_read(measured: Path) -> None:
    found = read_measurements(measured)
    assert {row.kind for row in found.rows} == set(MEASURABLE) - set(OF_PYTORCH)
    (facts,) = found.provenance.values()
    assert (facts["device"], facts["gpus"], facts["nccl"]) == ("Fake GPU", 2, "2.28.9")
    assert facts["date"].endswith("Z")


def test_times_are_those_of_one_repetition(measured: Path) -> None:
    # A kernel of the stand-in takes 50 ms, whatever it does.
    found = read_measurements(measured)
    assert {row["time_us"] for row in found.of_kind("gemm")} == {50_000}
    assert {row["time_us"] for row in found.of_kind("gemm_gaps")} == {50_000}
    engine = {str(row["collective"]): row["time_us"] for row in found.of_kind("copy_engine_collectives")}
    assert engine["reduce_scatter"] == 100_000  # one transfer, one addition
    (layer,) = found.of_kind("sequential")
    times = [layer[name] for name in ("gemm_us", "rs_us", "gemm_rs_us", "gemm_rs_ag_us")]
    assert times == [50_000, 50_000, 100_000, 150_000]


def test_a_peer_is_reached_in_every_way_as_the_own_memory_is(measured: Path) -> None:
    found = read_measurements(measured)
    ways: dict[str, list[tuple[str, ...]]] = {memory: [] for memory in MEMORIES}
    for row in found.of_kind("peer_access"):
        ways[str(row["memory"])].append(tuple(str(row[name]) for name in ("access", "pattern", "access_bytes")))
    assert ways["peer"] == ways["local"]
    assert len(set(ways["peer"])) == len(ways["peer"])
    assert {access for access, _, _ in ways["peer"]} == set(ACCESSES)
    assert {pattern for _, pattern, _ in ways["peer"]} == set(ACCESS_PATTERNS)
    for row in found.of_kind("store_bursts"):  # a turn of the stand-in takes 0.1 s, half of it to issue
        assert (row["issued_ns"], row["all_issued_ns"], row["time_ns"]) == (5e7, 5e7, 1e8)
    one_way = {str(row["pattern"]): row["time_ns"] for row in found.of_kind("latency")}
    assert [one_way[name] for name in SIGNALS] == [1000, 1000, 3000, 3000]


def test_each_lane_of_transfers_has_a_time_and_all_have_that_of_the_slowest(measured: Path) -> None:
    """A transfer takes 50 ms on the stand-in: of two GPUs, each to the other, at the same time."""
    rows = [row for row in read_measurements(measured).of_kind("transfers") if row["means"] == "copy"]
    two_ways = [(row["lane"], row["transfers"], row["time_us"]) for row in rows if row["pattern"] == "all_to_all_ring"]
    assert two_ways == [("all", 2, 50_000), ("0", 1, 50_000), ("1", 1, 50_000)]
    assert {row["lane"] for row in rows if row["pattern"] == "incast" and row["ways"] == "one"} == {"all"}


def test_patterns_of_transfers() -> None:
    """In a step of an exchange every GPU gets one transfer; in XOR order it gives it back."""
    assert [mesh.pattern for mesh in meshes(2)].count("incast") == 2
    assert "pulls_two_peers" not in {mesh.pattern for mesh in meshes(2)}
    assert "all_to_all_xor" not in {mesh.pattern for mesh in meshes(3)}
    of_four = {(mesh.pattern, mesh.gpus, mesh.ways): mesh.lanes for mesh in meshes(4)}
    assert [lane.transfers for lane in of_four["incast", 4, "one"]] == [((1, 0),), ((2, 0),), ((3, 0),)]
    assert of_four["incast", 3, "both"][2:] == (Lane(0, ((0, 1),)), Lane(0, ((0, 2),)))
    assert of_four["pulls_two_peers", 3, "both"][2:] == (Lane(1, ((0, 1),)), Lane(2, ((0, 2),)))
    for pattern in ("all_to_all_ring", "all_to_all_xor"):
        steps = list(zip(*(lane.transfers for lane in of_four[pattern, 4, "both"]), strict=True))
        assert [sorted(target for _, target in step) for step in steps] == 3 * [[0, 1, 2, 3]]
        assert all(((b, a) in step) == (pattern == "all_to_all_xor") for step in steps[:1] for a, b in step)


@pytest.mark.parametrize(
    ("order", "first", "last"), [("next", 2, 1), ("own_first", 1, 0), ("xor", 0, 1), ("naive", 0, 3)]
)
def test_a_scatter_computes_each_tile_once(order: str, first: int, last: int) -> None:
    """GPU 1 of 4, whose rows of tiles are 16 for each owner."""
    shape = measure_gemm.sublayer("T-NLG", "OP", 8)
    places = scatters.places_of(shape, 4, 1, order)
    assert sorted(places) == [(row, column) for row in range(64) for column in range(17)]
    owners = [row // 16 for row, _ in places]
    assert (owners[0], owners[-1]) == (first, last)
    assert all(owners[i] == owners[i - i % 272] for i in range(len(owners)))
    assert places[:9] == [*((16 * first + row, 0) for row in range(8)), (16 * first, 1)]


def test_operations_of_pytorch_are_read_off_its_profiler() -> None:
    """In the order of their starts, streams in the order of their first; of what the host does, launches only."""
    copy = {
        "cat": "gpu_memcpy",
        "name": "Memcpy PtoP (Device -> Device)",
        "ts": 30.5,
        "dur": 2.25,
        "args": {"stream": 21},
    }
    gemm = {"cat": "kernel", "name": "nvjet_sm90_hsh_256x128", "ts": 10.0, "dur": 20.0, "args": {"stream": 7}}
    wait = {"cat": "kernel", "name": "c10d::barrier_kernel(int**)", "ts": 9.5, "dur": 3, "args": {"stream": 21}}
    host = {"cat": "cpu_op", "name": "aten::mm", "ts": 1.0, "dur": 1.0, "args": {}}
    launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 4.5, "dur": 6.0, "tid": 21, "args": {}}
    event = {**launch, "name": "cudaEventRecord"}
    found = [tuple(row.values()) for row in async_tp.rows_of([copy, gemm, host, wait, launch, event])]
    assert found == [
        (0, "launch", 0, 0, 6000, "cudaLaunchKernel"),
        (1, "barrier", 1, 5000, 8000, "c10d::barrier_kernel"),
        (2, "gemm", 2, 5500, 25500, "nvjet_sm90_hsh_256x128"),
        (3, "copy", 1, 26000, 28250, "Memcpy PtoP"),
    ]


def test_without_pytorch_its_operations_cannot_be_measured(tmp_path: Path) -> None:
    done = run(async_tp.KIND, "-o", "out", cwd=tmp_path)
    assert done.returncode == 5
    assert "async tensor parallelism needs PyTorch; install a PyTorch for the driver's CUDA" in done.stderr


def test_an_old_device_has_no_bulk_copies(tmp_path: Path) -> None:
    done = run("peer_access", "--quick", "-o", "out", cwd=tmp_path, faults="old")
    assert done.returncode == 0, done.stderr
    assert {row["access"] for row in read_measurements(tmp_path / "out").rows} == {"store", "load"}


def test_each_number_of_channels_is_measured_in_a_process_of_its_own(measured: Path) -> None:
    rows = read_measurements(measured).of_kind("collectives")
    channels = [str(row["nccl_channels"]) for row in rows]
    assert tuple(dict.fromkeys(channels)) == QUICK_CHANNELS
    assert channels.count("auto") == channels.count("4")


def test_collectives_are_all_that_nccl_has_and_a_simulation(measured: Path) -> None:
    rows = read_measurements(measured).of_kind("collectives")
    assert {str(row["collective"]) for row in rows} == set(OPS)


def test_what_each_collective_must_have_brought() -> None:
    """GPU 1 of two, which send 0 to 3 and 10 to 13."""
    sent = [np.arange(4), np.arange(10, 14)]
    expected = {
        "all_to_all": [2, 3, 12, 13], "send_recv": [0, 1, 2, 3], "broadcast": [0, 1, 2, 3],
        "reduce_scatter": [14, 16], "all_reduce": [10, 12, 14, 16], "all_gather": [0, 1, 2, 3, 10, 11, 12, 13],
    }  # fmt: skip
    for collective, values in expected.items():
        arrays = CollectiveArrays.__new__(CollectiveArrays)
        arrays.__dict__.update(_lab=SimpleNamespace(cp=np, n_gpus=2), _collective=collective, n_sent=4)
        assert arrays._expected(sent, 1).tolist() == values


def test_samples_of_several_sessions_are_kept_together(measured: Path, tmp_path: Path) -> None:
    """Does each pair keep one row, with the samples of three processes?"""
    channels = ",".join(QUICK_CHANNELS)
    done = run("contention", "--quick", "--sessions", "3", "--channels", channels, "-o", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    once, thrice = (read_measurements(folder).of_kind("contention") for folder in (measured, tmp_path / "out"))
    assert [row["nccl_channels"] for row in once] == [row["nccl_channels"] for row in thrice]
    for one, all_three in zip(once, thrice, strict=True):
        assert len(one.samples) == 4
        for name, samples in one.samples.items():
            assert len(all_three.samples[name]) == 3 * len(samples)


def test_what_is_measured_says_that_the_gpus_rested(measured: Path) -> None:
    found = read_measurements(measured)
    assert [found.are_rested(row) for row in found.of_kind("contention")] == [True] * 2


def test_columns_are_those_of_the_shipped_files(measured: Path) -> None:
    for name in ("gemm", "collectives", "sequential", "contention", "peer_copy", "memory", "gemm_sm_split"):
        with (REPOSITORY / "validation" / "h200" / f"{name}.csv").open(encoding="utf-8") as file:
            shipped = next(csv.reader(file))
        with (measured / f"{name}.csv").open(encoding="utf-8") as file:
            assert next(csv.reader(file))[: len(shipped)] == shipped


def test_one_gpu_measures_what_one_gpu_can(tmp_path: Path) -> None:
    done = run("latency", "launch", "--gpus", "1", "--quick", "-o", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {row["pattern"] for row in read_measurements(tmp_path / "out").of_kind("latency")} == {"device_memory"}


NO_GPU = (
    "no GPU answers (cudaErrorNoDevice: no CUDA-capable device is detected);"
    " install NVIDIA's driver, or go to a GPU node"
)
NO_PEER = "GPU 0 has no peer access to GPU 1; take GPUs that are linked, or leave out what needs two GPUs"
NO_NCCL = "CuPy finds no NCCL; install nvidia-nccl-cu13 or nvidia-nccl-cu12"
TOO_FEW = "3 GPUs were asked for and 2 are there; lower --gpus"
NO_OTHER = "one GPU has no peer; give --gpus 2 or more"
OF_COLLECTIVES = " (not measured: collectives with auto channels)"


@pytest.mark.parametrize(
    ("faults", "arguments", "missing", "lost"),
    [
        ("no-gpu", ["gemm"], NO_GPU, ""),
        ("no-peer", ["peer_copy"], NO_PEER, " (not measured: peer_copy)"),
        ("no-peer", ["peer_access"], NO_PEER, " (not measured: peer_access)"),
        ("", ["store_bursts", "--gpus", "1"], NO_OTHER, " (not measured: store_bursts)"),
        ("", ["transfers", "--gpus", "1"], NO_OTHER, " (not measured: transfers)"),
        ("", ["scatter_orders", "--gpus", "1"], NO_OTHER, " (not measured: scatter_orders)"),
        ("no-nccl", ["collectives", "--channels", "auto"], NO_NCCL, OF_COLLECTIVES),
        ("", ["gemm", "--gpus", "3"], TOO_FEW, ""),
        ("", ["collectives", "--gpus", "1", "--channels", "auto"], NO_OTHER, OF_COLLECTIVES),
    ],
)
def test_what_is_missing_is_one_line(
    faults: str, arguments: list[str], missing: str, lost: str, tmp_path: Path
) -> None:
    done = run(*arguments, "--quick", "-o", "out", cwd=tmp_path, faults=faults)
    assert (done.returncode, done.stderr) == (5, f"cannot measure: {missing}; {ELSE}{lost}\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("module", ["t3sim", "t3lab.measure"])
def test_without_cupy(module: str, tmp_path: Path) -> None:
    arguments = ["measure"] if module == "t3sim" else []
    # A folder named cupy without a module in it hides an installed CuPy.
    (tmp_path / "cupy.py").write_text("raise ImportError('not here')\n", encoding="utf-8")
    done = run(*arguments, "-o", "out", cwd=tmp_path, fake=False, module=module)
    assert done.returncode == 5
    assert done.stderr.removeprefix("t3sim: ") == NO_CUPY + "\n"
    assert not (tmp_path / "out").exists()


def test_a_wrong_result_is_not_measured(tmp_path: Path) -> None:
    kinds = ("gemm", "launch", "copy_engine_collectives", "peer_access", "store_bursts", "latency", "transfers")
    done = run(*kinds, "--quick", "-o", "out", cwd=tmp_path, faults="wrong")
    assert done.returncode == 5
    assert "relative error 1 against FP32 sums (not measured: gemm)" in done.stderr
    assert "GPU 0 has wrong values (not measured: copy_engine_collectives)" in done.stderr
    assert "wrong values in memory of GPU 1: store, contiguous, 4 bytes (not measured: peer_access)" in done.stderr
    assert "bursts of 65536 bytes in memory of GPU 1 (not measured: store_bursts)" in done.stderr
    assert "wrong values at GPU 0: incast by copy of 1048576 bytes (not measured: transfers)" in done.stderr
    assert "128 bytes before a flag arrived wrong at GPU 0 (not measured: latency)" in done.stderr
    kept = read_measurements(tmp_path / "out")
    assert {row.kind for row in kept.rows} == {"launch", "latency"}
    assert "peer_signal" not in {row["pattern"] for row in kept.of_kind("latency")}


def test_times_that_cannot_be_are_kept_out_of_the_measurements(tmp_path: Path) -> None:
    done = run("gemm", "latency", "--quick", "-o", "out", cwd=tmp_path, faults="instant")
    assert done.returncode == 5
    assert "gemm.csv:2: time_us is 0.001, faster than peak" in done.stderr
    assert {row.kind for row in read_measurements(tmp_path / "out").rows} == {"latency"}
    refused = (tmp_path / "out" / "gemm.refused.txt").read_text(encoding="utf-8").splitlines()
    assert json.loads(refused[0])["sublayer"] == "OP"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gemn"], "unknown kind `gemn` (known: memory, latency,"),
        (["gemm", "--channels", "few"], "--channels: `few` is neither a whole number nor auto"),
        (["contention", "--sessions", "0"], "--sessions: is 0, must be at least 1"),
    ],
)
def test_usage(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(message)


def imports_of(path: Path) -> Iterator[str]:
    """Yield the names of the modules that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def outside(module: str) -> bool:
    """Whether a program that measures may not import *module*."""
    top = module.partition(".")[0]
    allowed = top in sys.stdlib_module_names or top == "numpy"
    return not allowed and ".".join(module.split(".")[:2]) not in LIGHT


def test_programs_that_measure_import_little() -> None:
    programs = sorted(PROGRAMS.glob("*.py"))
    assert len(programs) > 5
    assert [(path.name, module) for path in programs for module in imports_of(path) if outside(module)] == []
    assert outside("pydantic")
    assert outside("t3sim.config.presets")


def test_measuring_loads_no_library_but_numpy(tmp_path: Path) -> None:
    program = (
        "import sys; before = set(sys.modules); import t3lab.measure.program;"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    loaded = {name for name in done.stdout.split() if name not in sys.stdlib_module_names}
    assert {"numpy", "t3sim", "t3lab"} <= loaded
    assert not loaded & {"pydantic", "click", "yaml", "numba", "pandas", "pyarrow", "simpy", "cupy", "rich", "dask"}
