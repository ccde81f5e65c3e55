"""Bad configuration: every fault of the rows F-A1 to F-A14 ends in its message and code 2, with nothing done.

Rows: 1 malformed YAML, 2 unknown names, 3 duplicates, 4 surprises of YAML 1.1, 5 numbers out of range, 6 keys that
contradict each other, 7 units, 8 shapes, 9 too much to simulate, 10 tags, 11 bombs, 12 aliases of themselves,
13 files that name files (there is no `include:`; presets, models and plugins are what a file can name), 14 versions.
"""

from __future__ import annotations

import csv
import os
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from t3sim.config import yaml_loader
from t3sim.config.yaml_loader import load_yaml_text
from tests.conftest import REPOSITORY
from tests.faults.refusals import Case, case, check_refused, check_same_problems, t3sim_here
from tests.smoke.command_line import entries

BASE = "name: e\nmachine: t3-150\nworkload: {model: T-NLG, sublayer: FC-2, tp: 8}\nstrategy: t3\n"
BOMB_S = 0.5  # of CPU time
HANG_S = 5.0  # of CPU time; the largest legal file takes half a second, three without libyaml


def workload(text: str) -> str:
    """The base with another workload."""
    return BASE.replace("{model: T-NLG, sublayer: FC-2, tp: 8}", text)


def machine(text: str) -> str:
    """The base with values that replace those of the machine."""
    return BASE.replace("t3-150", f"{{preset: t3-150, {text}}}")


def timing(text: str) -> str:
    """The base with another DRAM timing."""
    return machine(f"memory: {{timing: {{{text}}}}}")


LLAMA = (
    '{"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, '
    '"num_attention_heads": 4, "num_key_value_heads": 2}'
)
LETTERS = "abcdefghi"


def aliases_of_aliases(levels: int = 8) -> str:
    """A few hundred bytes that represent 9 to the power of *levels* values."""
    lines = [f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in pairwise(LETTERS[: levels + 1])]
    return "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(lines)


def merges_of_merges(levels: int = 8) -> str:
    """The same with merge keys, which PyYAML expands while it reads."""
    lines = [f"{b}: &{b} {{<<: [{', '.join([f'*{a}'] * 9)}]}}\n" for a, b in pairwise(LETTERS[: levels + 1])]
    return "a: &a {k: x}\n" + "".join(lines)


def case_of(row: dict[str, str]) -> Case:
    """A line of ``configuration.csv``; in its problems ``@`` is the experiment file."""
    files = {
        "machine": machine, "timing": timing, "workload": workload, "base": lambda _: BASE,
        "more": lambda text: f"{BASE}{text}\n", "file": lambda text: f"{text}\n",
        "preset": lambda text: BASE.replace("t3-150", text), "strategy": lambda text: BASE.replace("t3\n", f"{text}\n"),
    }  # fmt: skip
    lines = [f"e.yaml:{line[1:]}" if line.startswith("@") else line for line in row["problems"].split(" | ")]
    options = ("-s", row["override"]) if row["override"] else ()
    return case(f"{row['row']} {row['what']}", files[row["kind"]](row["text"]), *lines, options=options)


with (REPOSITORY / "tests/faults/configuration.csv").open(encoding="utf-8", newline="") as table:
    TABLE = list(csv.DictReader(table))

CASES = [
    *(case_of(row) for row in TABLE),
    case("F-A1 tab", "machine:\n\tpreset: t3-150\n", "e.yaml:2:1: indent;"),
    case("F-A1 NUL", "name: \x00\n", "e.yaml:1:7: character"),
    case("F-A1 escape sequence of a terminal", "name: \x1b[2J\n", "e.yaml:1:7: 001"),
    case("F-A1 bad UTF-8", b"name: \xff\n", "e.yaml:1:7: 0"),
    case("F-A1 UTF-16", "name: e\n".encode("utf-16"), "e.yaml:1:1: 0"),
    case("F-A1 two documents", BASE + "---\n" + BASE, "e.yaml:5:1: document"),
    case("F-A1 empty", "", "e.yaml: empty"),
    case("F-A2 unknown strategy", BASE.replace("strategy: t3", "strategy: t4"), "e.yaml:4:11: strategy: `t4`"),
    case(
        "F-A2 unknown parameter of a policy",
        BASE.replace("t3\n", "t3-mca\n") + "arbitration: {policy: mca, treshold: 5}\n",
        "e.yaml:5:28: arbitration.treshold: `mca`",
    ),
    case("F-A4 date", BASE.replace("name: e", "name: 2024-01-02"), "e.yaml:1:7: name: `2024-01-02`"),
    case(
        "F-A5 5000 digits",
        workload("{gemm: {m: " + "9" * 5000 + ", n: 512, k: 64}, tp: 4}"),
        "e.yaml:3:22: workload.gemm.m: 5000",
    ),
    case(
        "F-A6 threshold above the queue",
        BASE.replace("t3\n", "t3-mca\n") + "arbitration: {policy: mca, threshold: 65}\n",
        "e.yaml:5:39: arbitration.threshold: `machine.memory.queue.entries`",
    ),
    case(
        "F-A9 10^12 points",
        BASE
        + "sweep: {grid: {"
        + ", ".join(f"machine.gpu.l2.k{i}: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]" for i in range(12))
        + "}}\n",
        "e.yaml:5:15: sweep.grid: 1000000000000",
    ),
    case(
        "F-A9 more points than can be counted",
        BASE + "sweep: {grid: {" + ", ".join(f"k{i}: [1, 2]" for i in range(5000)) + "}}\n",
        "e.yaml:5:15: sweep.grid: 10",
    ),
    case(
        "F-A9 collective of 2^41 B",
        workload("{collective: {op: all-gather, size: 2 TiB, gpus: 4}}").replace(
            "strategy: t3", "strategy: sequential"
        ),
        "e.yaml:3:47: workload.collective.size: 2",
    ),
    case(
        "F-A9 collective beyond the memory of a GPU",
        machine("memory: {capacity: 1 GiB}")
        .replace("{model: T-NLG, sublayer: FC-2, tp: 8}", "{collective: {op: all-gather, size: 2 GiB, gpus: 4}}")
        .replace("strategy: t3", "strategy: sequential"),
        "e.yaml:3:47: workload.collective.size: `machine.memory.capacity`",
    ),
    *(
        case(
            f"F-A6 {op} by {algorithm}",
            workload(f"{{collective: {{op: {op}, size: 1 MiB, gpus: 4, algorithm: {algorithm}}}}}")
            .replace("strategy: t3", "strategy: sequential")
            .replace("t3-150", "h200"),
            f"e.yaml:3:{64 + len(op)}: workload.collective.algorithm: `nccl`",
        )
        for op, algorithm in (
            ("all-gather", "vllm"),
            ("reduce-scatter", "pytorch-multimem"),
            ("all-to-all", "nccl-nvls"),
        )
    ),
    *(
        case(
            f"F-A6 {algorithm} on {per_node} GPUs per node",
            machine(
                f"link: {{topology: two-level, gpus_per_node: {per_node}, "
                "nic: {bandwidth: 46 GB/s, latency: 3 us, message_rate: 100000000}}"
            )
            .replace(
                "{model: T-NLG, sublayer: FC-2, tp: 8}",
                f"{{collective: {{op: all-gather, size: 1 MiB, gpus: 4, algorithm: {algorithm}}}}}",
            )
            .replace("strategy: t3", "strategy: sequential")
            .replace("t3-150", "h200"),
            f"e.yaml:3:74: workload.collective.algorithm: `{other}`",
        )
        for algorithm, per_node, other in (("direct", 2, "hierarchical"), ("hierarchical", 4, "direct"))
    ),
    case(
        "F-A9 network interface on one node",
        machine("link: {nic: {bandwidth: 46 GB/s, latency: 3 us, message_rate: 100000000}}").replace("t3-150", "h200"),
        "e.yaml:2:37: machine.link.nic: `gpus_per_node`",
    ),
    case(
        "F-A9 collective of less than an FP32 element for each GPU",
        workload("{collective: {op: all-gather, size: 12 B, gpus: 4, element: fp32}}").replace(
            "strategy: t3", "strategy: sequential"
        ),
        "e.yaml:3:47: workload.collective.size: 12 B",
    ),
    case("F-A9 file of 2 MiB", "#" * (2 << 20), "e.yaml: 2097152"),
    case("F-A10 tag directive", "%TAG ! tag:x,2000:\n---\n" + BASE, "e.yaml:1:1: allowed"),
    case("F-A11 aliases of aliases", aliases_of_aliases(), "e.yaml:6:8: 100000"),
    case("F-A11 merge keys of merge keys", merges_of_merges(), "e.yaml:2:8: b: `<<`"),
    case("F-A11 merge key", "a: &a {k: x}\nb: {<<: *a}\n", "e.yaml:2:5: b: `<<`"),
    case("F-A11 1001 aliases", "- &a x\n" + "- *a\n" * 1001, "e.yaml:1002:3: 1000"),
    case("F-A11 51 levels", "[" * 51 + "]" * 51, "e.yaml:1:51: 0"),
    case("F-A11 900 brackets", "[" * 900, "e.yaml:1:51: 0"),
    case(
        "F-A11 100000 braces",
        "{a: " * 100000,
        "e.yaml:1:201: a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a....: 50",
    ),
    case("F-A11 100001 values", "[" + "1," * 100001 + "]", "e.yaml:1:200000: 100000"),
    case("F-A12 alias before its anchor", "name: *a\nstrategy: &a t3\n", "e.yaml:1:7: name: `*a`"),
    case("F-A14 older version", "schema_version: 0\n" + BASE, "e.yaml:1:17: schema_version: 0"),
    case("F-A14 future version", "schema_version: 2\n" + BASE + "a_new_key: 1\n", "e.yaml:1:17: schema_version: 2"),
    case("F-A14 version as a text", "schema_version: '1'\n" + BASE, "e.yaml:1:17: schema_version: 1"),
    case("F-A14 version as a float", "schema_version: 1.0\n" + BASE, "e.yaml:1:17: schema_version: 1"),
]


LONG_CASES = [
    case("F-A11 9000 unknown keys", BASE + "".join(f"k{i}: 1\n" for i in range(9000)), "e.yaml:5:1: k0: `k0`", "8991"),
    case("F-A11 9000 bad numbers", BASE + f"plugins: [{'017,' * 9000}]\n", "e.yaml:5:11: plugins[0]: `017`", "8991"),
    case(
        "F-A11 axis of 50000 values",
        BASE + f"sweep: {{grid: {{workload.tp: [{','.join(map(str, range(50000)))}]}}}}\n",
        "e.yaml:5:30: workload.tp: `0`",
        "`0`",
    ),
    case(
        "F-A11 key of 100000 characters",
        BASE + f"? {'k' * 100000}\n: 1\n",
        f"e.yaml:5:3: {'k' * 988}...",
        f"e.yaml:5:3: {'k' * 988}...",
    ),
    case(
        "F-A13 preset with too long a name",
        BASE.replace("t3-150", "m" * 300 + ".yaml"),
        f"e.yaml:2:10: machine: no such file `{'m' * 300}.yaml`, looked for at {'m' * 300}.yaml",
        f"e.yaml:2:10: machine: no such file `{'m' * 300}.yaml`, looked for at {'m' * 300}.yaml",
    ),
]


def ids(cases: list[Case]) -> list[str]:
    return [case.id for case in cases]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the files that some cases name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "fifo.yaml")
    (tmp_path / "folder.json").mkdir()
    for suffix in ("yaml", "json"):
        (tmp_path / f"zero.{suffix}").symlink_to("/dev/zero")
    for name, text in {
        "loop.yaml": "preset: loop.yaml\n",
        "loop-gpu.yaml": "preset: loop-gpu.yaml\n",
        "half.yaml": "name: half\ngpu: cu80\nmemory: gone.yaml\nlink: ring-150\n",
        "bare.yaml": "hidden: 256\nlayers: 1\ntokens: 512\ntensor_parallel: [2]\n",
        "odd.yaml": "hidden: 256\nlayers: 1\ntokens: 512\ntensor_parallel: [2]\nheads: 3\n",
        "llama.json": LLAMA,
        "vast.json": LLAMA.replace("}", f', "head_dim": {2**61}}}').replace(": 4,", ": 16,"),
        "bad.json": LLAMA.replace("256", '"4096"').replace("num_attention_heads", "num_experts"),
        "bad.py": "1 / 0\n",
        "exit.py": "raise SystemExit('stop')\n",
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("fault", CASES, ids=ids(CASES))
def test_refused_with_this_message(fault: Case, folder: Path) -> None:
    fault.write(folder / "e.yaml")
    answer = check_refused(folder, ["run", "e.yaml", "-o", "out", *fault.options], 2, fault.lines)
    assert answer.cpu_s < HANG_S


@pytest.mark.parametrize("fault", LONG_CASES, ids=ids(LONG_CASES))
def test_refused_with_a_message_of_few_lines(fault: Case, folder: Path) -> None:
    fault.write(folder / "e.yaml")
    before = entries(folder)
    answer = t3sim_here("run", "e.yaml", "-o", "out")
    assert (answer.code, answer.printed) == (2, "")
    check_same_problems((answer.lines[0], answer.lines[-1]), fault.lines)
    assert len(answer.lines) <= 10
    assert entries(folder) == before
    assert answer.cpu_s < HANG_S


def test_every_row_has_its_cases() -> None:
    assert {c.row for c in [*CASES, *LONG_CASES]} == {f"F-A{i}" for i in range(1, 15)}
    names = ids([*CASES, *LONG_CASES])
    assert len(set(names)) == len(names)


def test_all_problems_of_a_file_at_once(folder: Path) -> None:
    """F-A2 to F-A8 in one file."""
    (folder / "e.yaml").write_text(
        "name: bad name\n"
        "machne: t3-150\n"
        "machine: {preset: t3-150, link: {bandwidth: 150}}\n"
        "workload: {model: TNLH, sublayer: FC2, tp: 0}\n"
        "strategy: t4\n"
        "quantum: 100\n",
        encoding="utf-8",
    )
    check_refused(
        folder,
        ["run", "e.yaml", "-o", "out"],
        2,
        [
            "e.yaml:1:7: name: a name has letters, digits, `.`, `_` and `-` only, at most 100",
            "e.yaml:2:1: machne: unknown key `machne`; did you mean `machine`?",
            "e.yaml:3:45: machine.link.bandwidth: 150 has no unit; did you mean `150 GB/s`?",
            "e.yaml:4:44: workload.tp: found `0`, must be at least 1",
            "e.yaml:5:11: strategy: unknown strategy `t4`; did you mean `t3`?",
            "e.yaml:6:10: quantum: 100 has no unit; did you mean `100 ns`?",
        ],
    )


FILES = {
    "none.yaml": ["none.yaml: no such file"],
    "folder.yaml": ["folder.yaml: is a folder"],
    "fifo.yaml": ["fifo.yaml: is not a regular file"],
    "zero.yaml": ["zero.yaml: is not a regular file"],
    f"{'e' * 300}.yaml": [f"{'e' * 300}.yaml: cannot read: the name is too long (ENAMETOOLONG)"],
}


@pytest.mark.parametrize("name", FILES)
def test_the_experiment_itself_is_no_file(name: str, folder: Path) -> None:
    """F-A13."""
    check_refused(folder, ["run", name, "-o", "out"], 2, FILES[name])


class TestAccepted:
    """Values at the edge of what is legal."""

    @pytest.mark.parametrize(
        "content",
        [
            pytest.param(b"\xef\xbb\xbf" + BASE.encode(), id="F-A1 byte order mark"),
            pytest.param(BASE.replace("\n", "\r\n").encode(), id="F-A1 CRLF"),
            pytest.param(BASE + "description: 'no'\n", id="F-A4 word"),
            pytest.param(BASE + "description: off\n", id="F-A4 word that YAML 1.1 reads as false"),
            pytest.param(BASE.replace("name: e", "name: '017'"), id="F-A4 number in quotes"),
            pytest.param(machine("gpu: {compute_unit: {matrix_efficiency: 9e-1}}"), id="F-A4 exponent without a dot"),
            pytest.param(machine("gpu: {compute_unit: {matrix_efficiency: 1}}"), id="F-A5 upper bound"),
            pytest.param(timing("nCCDS: 2, nCCDL: 2, nCCDWS: 2, nCCDWL: 2"), id="F-A5 nCCDL = burst"),
            pytest.param(timing("nRC: 47"), id="F-A6 nRC = nRAS + nRP"),
            pytest.param(timing("nREFI: 412"), id="F-A6 shortest nREFI"),
            pytest.param(timing("nREFI: 462, nRFCpb: 400"), id="F-A6 shortest nREFI for a bank"),
            pytest.param(timing("nREFI: 353, nRFCpb: 100, nRREFD: 8"), id="F-A6 shortest nREFI for all banks in turn"),
            pytest.param(BASE + "quantum: 500 ns\n", id="F-A6 quantum = latency"),
            pytest.param(
                BASE.replace("t3\n", "t3-mca\narbitration: {policy: mca, threshold: 64}\n"), id="F-A6 threshold = queue"
            ),
            pytest.param(workload("{gemm: {m: 512, n: 512, k: 64}, tp: 8}"), id="F-A8 a tile for each GPU"),
            pytest.param(BASE + "max_hours: 1\n", id="F-A9 limit of time"),
            pytest.param(
                workload("{model: llama.json, layer: prompt, tokens: 512, sequence: 512, tp: 4}"),
                id="F-A8 key heads on two GPUs each",
            ),
            pytest.param(
                BASE.replace("t3\n", "{name: cu-split, communication_units: 79}\n"),
                id="F-A6 one compute unit is left",
            ),
            pytest.param(workload("{model: T-NLG, layer: training, tokens: 1024, tp: 16}"), id="F-A8 one sequence"),
            pytest.param("schema_version: 1\n" + BASE, id="F-A14 this version"),
            pytest.param(BASE + "#" * (yaml_loader.MAX_FILE_BYTES - len(BASE)), id="F-A11 1 MiB"),
        ],
    )
    def test_edge_of_what_is_legal(self, content: str | bytes, folder: Path) -> None:
        Case("", content, ()).write(folder / "e.yaml")
        answer = t3sim_here("config", "check", "e.yaml")
        assert (answer.code, answer.errors) == (0, "")
        assert answer.printed.startswith("e.yaml: no problems\nexperiment  ")

    def test_time_can_be_allowed(self, folder: Path) -> None:
        """F-A9: what is refused as too long goes on if the user says so."""
        (long,) = (c for c in CASES if c.id == "F-A9 days of simulation")
        long.write(folder / "e.yaml")
        assert t3sim_here("config", "check", "e.yaml").code == 2
        refused = t3sim_here("config", "check", "e.yaml", "-s", "max_hours=50")
        assert refused.errors.startswith("-s max_hours=50: max_hours: is 50")
        assert "-s max_hours=70" in refused.errors
        assert t3sim_here("config", "check", "e.yaml", "-s", "max_hours=70").code == 0

    def test_one_gpu_is_a_plain_gemm(self, folder: Path) -> None:
        """F-A8: and the log says so."""
        (folder / "e.yaml").write_text(BASE, encoding="utf-8")
        note = "note        one GPU (tp 1): there is no collective and no link traffic\n"
        assert note in t3sim_here("config", "check", "e.yaml", "-s", "workload.tp=1").printed
        assert note not in t3sim_here("config", "check", "e.yaml").printed

    @pytest.mark.parametrize(
        ("shape", "tp"),
        [
            ("m: 1, n: 1, k: 1", 1),
            ("m: 200, n: 136, k: 72", 3),
            ("m: 130, n: 330, k: 65", 5),
            ("m: 129, n: 300, k: 1", 13),
        ],
    )
    def test_ragged_shapes_run(self, shape: str, tp: int, folder: Path) -> None:
        """F-A8: no multiple of a tile, prime numbers of GPUs."""
        text = (
            f"name: e\nmachine: t3-tiny\ntiling: gemm-64x64\nworkload: {{gemm: {{{shape}}}, tp: {tp}}}\nstrategy: t3\n"
        )
        (folder / "e.yaml").write_text(text, encoding="utf-8")
        answer = t3sim_here("run", "e.yaml", "-o", "out", "--no-figures")
        assert (answer.code, answer.errors) == (0, "")
        assert (folder / "out" / "results.csv").exists()


class TestBombs:
    """F-A11: refused in half a second of CPU time, and what is not a bomb is read."""

    @pytest.mark.parametrize(
        "content",
        [
            pytest.param(aliases_of_aliases(), id="aliases"),
            pytest.param(merges_of_merges(), id="merge keys"),
            pytest.param("- &a x\n" + "- *a\n" * 1001, id="1001 aliases"),
            pytest.param("[" * 900, id="900 brackets"),
            pytest.param("[" * 100_000, id="100000 brackets"),  # libyaml 0.2.6 itself refuses 1001
            pytest.param("- " * 100_000, id="100000 dashes"),
            pytest.param("? " * 100_000, id="100000 question marks"),
            pytest.param("&a " * 100_000, id="100000 anchors"),
            pytest.param("\n".join(" " * i + "a:" for i in range(900)), id="900 indents"),
            pytest.param('a: "' + "\\x41" * 200_000, id="unclosed escapes"),
        ],
    )
    def test_refused_at_once(self, content: str, folder: Path) -> None:
        (folder / "e.yaml").write_text(content, encoding="utf-8")
        t3sim_here("config", "check", "none.yaml")  # so that imports are not counted
        answer = t3sim_here("config", "check", "e.yaml")
        assert (answer.code, len(answer.lines)) == (2, 1)
        assert answer.cpu_s < BOMB_S

    def test_a_tag_runs_nothing(self, folder: Path) -> None:
        """F-A10, with a canary: PyYAML's unsafe loader does run it."""
        text = f"name: !!python/object/apply:os.mkdir ['{folder / 'made'}']\n"
        (folder / "e.yaml").write_text(text, encoding="utf-8")
        assert t3sim_here("config", "check", "e.yaml").code == 2
        assert not (folder / "made").exists()
        yaml.unsafe_load(text)
        assert (folder / "made").exists()

    def test_limits_are_reached_exactly(self) -> None:
        assert load_yaml_text("[" * 50 + "]" * 50, "f.yaml").value
        assert len(load_yaml_text("- &a x\n" + "- *a\n" * 1000, "f.yaml").value) == 1001
        assert len(load_yaml_text("[" + "1," * 99_999 + "]", "f.yaml").value) == 99_999
