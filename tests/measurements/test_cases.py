"""Logs and traces as people have them, through the command line: exit code, rows, times, and what is said of the rest.

The files of ``data/cases`` were made for this project: real layouts, invented numbers and hosts. What is simulated is
not the question here, so each simulation takes 100 us.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from t3lab.report import validation_report
from t3lab.validation import simulation
from t3lab.validation.simulation import Outcome
from t3sim.cli import main
from t3sim.experiment.running.phase_runner import PhaseRunner

CASES = Path(__file__).with_name("data") / "cases"


@dataclass
class Answer:
    """What the command answered; ``points`` are lines of validation.csv."""

    code: int
    said: str
    points: list[dict[str, str]] = field(default_factory=list)

    @property
    def measured(self) -> list[tuple[str, str, str, str, str]]:
        names = ("collective", "gpus", "bytes", "measured", "status")
        return [tuple(point[name] for name in names) for point in self.points]  # type: ignore[misc]

    def has(self, *parts: str) -> bool:
        return all(part in self.said for part in parts)


Validate = Callable[..., Answer]


@pytest.fixture
def validate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Validate:
    """Call the command with files; return what it answers."""
    monkeypatch.setattr(validation_report, "plots_of", lambda _: [])
    monkeypatch.setattr(PhaseRunner, "missing", property(lambda _: []))
    monkeypatch.setattr(
        simulation, "outcomes_of", lambda runner: {one: Outcome({"time": 100.0}) for one in runner.points}
    )

    def call(*files: Path, machine: str = "h100") -> Answer:
        output = tmp_path / "out"
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(["validate", *map(str, files), "--machine", machine, "-o", str(output)])
        said = capsys.readouterr()
        table = output / "validation.csv"
        points = list(csv.DictReader(table.read_text().splitlines())) if table.exists() else []
        table.unlink(missing_ok=True)
        return Answer(int(stop.value.code or 0), " ".join(f"{said.out} {said.err}".split()), points)

    return call


def case(name: str) -> Path:
    [found] = CASES.glob(f"*/{name}")
    return found


def log(tmp_path: Path, name: str, *changes: tuple[str, str], of: str = "all_reduce_all.txt") -> Path:
    """Return a log like that of a case, with texts replaced."""
    text = case(of).read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


MIB, LARGE = "1048576", "16777216"


@pytest.mark.parametrize(
    ("name", "points"),
    [
        ("all_gather_timestamps.txt", [("all_gather", "4", MIB, "27.38"), ("all_gather", "4", LARGE, "63.13")]),
        ("all_reduce_in_place_only.txt", [("all_reduce", "4", MIB, "29.47"), ("all_reduce", "4", LARGE, "100.25")]),
        ("all_reduce_header_of_one_side.txt",
         [("all_reduce", "4", MIB, "29.77"), ("all_reduce", "4", LARGE, "101.26")]),
        ("nccl_allgather.log", [("all_gather", "4", MIB, "27.38"), ("all_gather", "4", LARGE, "63.13")]),
        ("nccl_reducescatter.log", [("reduce_scatter", "4", MIB, "27.38"), ("reduce_scatter", "4", LARGE, "63.13")]),
        ("ansi2_all_reduce.txt", [("all_reduce", "8", MIB, "30.56"), ("all_reduce", "8", LARGE, "113.97"),
                                  ("all_reduce", "8", "268435456", "1448.52")]),
        ("all_reduce_all.txt", [("all_reduce", "4", LARGE, "101.26")]),
    ],
)  # fmt: skip
def test_a_log_is_read(validate: Validate, name: str, points: list[tuple[str, ...]]) -> None:
    answer = validate(case(name))
    assert answer.code == 0
    assert answer.measured == [(*point, "simulated") for point in points]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("all_reduce_cputime.txt", ["lines 14, 15: has no `time`; run without -C"]),
        ("all_reduce_perf_failed.txt", ["lines 12, 13: the run says: 4 out of bounds values"]),
        ("no_shapes.json", ["1 kernel: GEMM without", "record_shapes=True"]),
        ("overlapped.json", ["2 kernels: concurrent with another kernel", "gemm_kernel (2)"]),
        ("float.json", ["1 kernel: GEMM of float, not of FP16 or BF16"]),
        ("fp8.json", ["1 kernel: GEMM of FP8 (aten::_scaled_mm)"]),
        ("cuda_graph.json", ["1 kernel: names no operator"]),
        ("execution_trace.json", ["execution trace (Chakra)"]),
    ],
)
def test_a_file_of_which_nothing_can_be_used_says_why(validate: Validate, name: str, said: list[str]) -> None:
    answer = validate(case(name))
    assert answer.code == 3
    assert answer.has(name, *said), answer.said
    assert "nccl-tests" not in answer.said
    assert answer.points == []


def test_categories_of_older_traces(validate: Validate) -> None:
    [point] = validate(case("old_categories.json")).points
    assert [point[name] for name in ("m", "n", "k", "measured")] == ["4096", "4096", "4096", "210"]


def test_a_log_in_utf_16_is_read_and_one_without_a_row_says_so(validate: Validate, tmp_path: Path) -> None:
    """PowerShell redirects in UTF-16."""
    text = case("all_reduce_in_place_only.txt").read_text(encoding="utf-8")
    path = tmp_path / "all_reduce_perf.txt"
    path.write_bytes(text.encode("utf-16"))
    assert len(validate(path).points) == 2
    first = text.index("\n", text.index("(GB/s)"))
    path.write_text(text[:first], encoding="utf-8")
    answer = validate(path)
    assert (answer.code, answer.has("ends before its first result")) == (3, True)


def test_a_trace_may_be_a_list_of_events(validate: Validate, tmp_path: Path) -> None:
    """The array format of traces; canary: a list of something else holds no kernel."""
    events = json.loads(case("old_categories.json").read_text(encoding="utf-8"))["traceEvents"]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events), encoding="utf-8")
    assert [point["measured"] for point in validate(path).points] == ["210"]
    path.write_text("[1]", encoding="utf-8")
    assert validate(path).code == 3


def test_the_algorithm_that_nccl_was_held_to_is_simulated_or_named(validate: Validate, tmp_path: Path) -> None:
    """NVLS is simulated, and trees of an all-reduce; a reduce-scatter has none, nor is NVLSTree simulated."""
    switch = log(tmp_path, "nvls.txt", of="reduce_scatter_nvls.txt")
    assert [(one["nccl_algo"], one["status"]) for one in validate(switch).points] == [("NVLS", "simulated")] * 2
    for held in ("Tree", "NVLSTree"):
        tree = log(tmp_path, f"{held}.txt", ("NVLS", held), of="reduce_scatter_nvls.txt")
        for point in validate(tree).points:
            assert (point["status"], "tree" in point["reason"].lower()) == ("not simulated", True)


@pytest.mark.parametrize(
    ("name", "machine", "reasons"),
    [
        ("all_reduce_two_hosts.txt", "h100", ["2 hosts of 8", "2 hosts of 8"]),
        ("trace_64_gpus.json", "h200", ["max_gpus"]),
    ],
)
def test_rows_that_are_no_ring_of_one_host_are_listed_with_the_reason(
    validate: Validate, name: str, machine: str, reasons: list[str]
) -> None:
    answer = validate(case(name), machine=machine)
    assert answer.code == 0
    assert [point["status"] for point in answer.points] == ["not simulated" if one else "simulated" for one in reasons]
    for point, reason in zip(answer.points, reasons, strict=True):
        assert reason in point["reason"]
        assert not reason or answer.has("not simulated", reason)
        assert bool(point["error"]) == (not reason)


@pytest.mark.parametrize(("gpus_per_node", "status"), [(8, "simulated"), (4, "not simulated")])
def test_hosts_are_nodes_of_the_machine(validate: Validate, tmp_path: Path, gpus_per_node: int, status: str) -> None:
    nic = "{bandwidth: 50 GB/s, latency: 3 us, message_rate: 100000000}"
    machine = tmp_path / "nodes.yaml"
    link = f"{{topology: two-level, gpus_per_node: {gpus_per_node}, nic: {nic}}}"
    machine.write_text(f"{{preset: h100, name: nodes, link: {link}}}", encoding="utf-8")
    answer = validate(case("all_reduce_two_hosts.txt"), machine=str(machine))
    assert [point["status"] for point in answer.points] == [status, status]


@pytest.mark.parametrize(
    ("name", "machine", "says"),
    [
        ("reduce_scatter_other_gpu.txt", "h200", "is of AMD Instinct MI300X, the machine is h200"),
        ("all_reduce_all.txt", "h200", "is of NVIDIA H100 80GB HBM3, the machine is h200"),
        ("all_reduce_all.txt", "h100", ""),
    ],
)
def test_another_gpu_than_the_machine_is_said(validate: Validate, name: str, machine: str, says: str) -> None:
    answer = validate(case(name), machine=machine)
    assert answer.code == 0
    assert (", the machine is " in answer.said) == bool(says)
    assert says in answer.said


def test_a_trace_names_its_gpu(validate: Validate, tmp_path: Path) -> None:
    trace = json.loads(case("old_categories.json").read_text(encoding="utf-8"))
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({**trace, "deviceProperties": [{"name": "NVIDIA H20"}]}).encode()))
    assert validate(path).has("is of NVIDIA H20, the machine is h100")


def test_types_and_operations_that_do_not_count_are_said(validate: Validate) -> None:
    assert validate(case("all_reduce_all.txt")).has("left out: 5 rows of other types or operations than half sum")


def test_several_files_and_folders(validate: Validate, tmp_path: Path) -> None:
    """Those that can be read are; the others are refused, each with its reason."""
    good = log(tmp_path, "good.txt")
    (tmp_path / "inside").mkdir()
    for name in ("all_reduce_cputime.txt", "fp8.json", "execution_trace.json"):
        (tmp_path / "inside" / name).write_bytes(case(name).read_bytes())
    (tmp_path / "inside" / "mine.csv").write_text("M,N,K,us\n4096,4096,4096,250\n", encoding="utf-8")
    answer = validate(tmp_path / "inside", good)
    assert answer.code == 6
    assert [(point["file"], point["measured"]) for point in answer.points] == [
        ("inside/mine.csv", "250"), ("good.txt", "101.26"),
    ]  # fmt: skip
    assert answer.has("run without -C", "GEMM of FP8", "execution trace", "refused, see above: 2")


def test_a_damaged_provenance_takes_its_own_folder_only(validate: Validate, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "m" / name).mkdir(parents=True)
        log(tmp_path / "m" / name, "x.txt")
    (tmp_path / "m" / "a" / "provenance.json").write_text("{", encoding="utf-8")
    answer = validate(tmp_path / "m")
    assert answer.code == 6
    assert [point["file"] for point in answer.points] == ["b/x.txt"]
    assert answer.has("provenance.json: not valid JSON")


COLUMNS = [
    ("m,n,k,time_ms\n4096,4096,4096,0.25\n", "milliseconds"),
    ("M;N;K;time_us\n", ""),
    ("M, N, K, Time (us)\n4096,4096,4096,250\n", ""),
    ("collective,gpus,bytes,time_us\nall-reduce,4,1048576,250\n", ""),
    ("Collective,GPUs,Bytes,Time_us\nAllReduce,4,1048576,250\n", ""),
    ("op,m,n,k,tp,time_us,strategy\ngemm_rs,4096,4096,4096,4,250,Async_TP\n", ""),
]


@pytest.mark.parametrize(("text", "said"), COLUMNS)
def test_spellings_of_a_table(validate: Validate, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text, encoding="utf-8")
    answer = validate(path)
    if ";" in text:
        assert answer.code == 3
        assert answer.has("mine.csv:1: columns are separated by ';'; a comma")
        return
    assert answer.code == 0
    assert [(point["measured"], point["status"]) for point in answer.points] == [("250", "simulated")], answer.points
    assert answer.has(said)


def test_times_that_are_milliseconds_are_asked_about(validate: Validate, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("m,n,k,time_us\n8192,8192,8192,1.6\n", encoding="utf-8")
    answer = validate(path)
    assert answer.code == 3
    assert answer.has("mine.csv:2: time_us is 1.6, faster than any device", "milliseconds?")


def test_a_point_that_fails_ends_with_exit_code_6_and_stays_in_the_table(
    validate: Validate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_fails(runner: PhaseRunner) -> dict[object, Outcome]:
        return {one: Outcome({"time": 100.0}, failed="" if i else "a hang") for i, one in enumerate(runner.points)}

    monkeypatch.setattr(simulation, "outcomes_of", first_fails)
    answer = validate(case("all_gather_timestamps.txt"))
    assert answer.code == 6
    assert [(point["status"], point["reason"]) for point in answer.points] == [("failed", "a hang"), ("simulated", "")]
    assert answer.has("1 of 2 points failed", "all_gather_timestamps.txt:14")
