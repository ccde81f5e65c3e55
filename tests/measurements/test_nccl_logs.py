"""Layouts of logs of nccl-tests: labels of launchers, other lines within a table, older and newer columns, many runs.

Each log is made from one table of two sizes on 4 GPUs. The file ``test_cases.py`` runs logs through the command line.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from t3lab.measurements.floors import ring_bytes
from t3lab.measurements.foreign import Found
from t3lab.measurements.nccl_log import of_text
from t3lab.measurements.nccl_tests import of_json

SIZES = (1 << 20, 1 << 24)
NAMES = "#       size         count      type   redop    root" + 2 * "     time   algbw   busbw #wrong"
END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 83.9 \n#\n"


def row(size: int, us: float, program: str = "all_reduce", gpus: int = 4, what: str = "float     sum      -1") -> str:
    rate = size / us / 1e3
    sides = [f"{us:9.2f} {rate:7.2f} {ring_bytes(program, gpus, rate):7.2f}       0"] * 2
    return f"{size:12}  {size // 4:12}  {what} {' '.join(sides)}"


def ranks(n: int = 4, hosts: int = 1, groups: int = 1) -> str:
    lines = (
        f"#  Rank {i:2} Group {i * groups // n:2} Pid {40 + i} on node{i * hosts // n} device  {i} [0x0f] NVIDIA H200"
        for i in range(n)
    )
    return "# nThread 1 nGpus 1 minBytes 8 maxBytes 9 step: 2(factor) iters: 20\n" + "\n".join(lines) + "\n"


def log(program: str = "all_reduce", factor: float = 1.0, gpus: int = 4) -> str:
    rows = [row(size, factor * us, program, gpus) for size, us in zip(SIZES, (20.0, 100.0), strict=True)]
    return f"# {program}_perf\n{ranks(gpus)}{NAMES}\n" + "\n".join(rows) + f"\n{END}"


def times(found: Found) -> list[tuple[object, ...]]:
    names = ("collective", "gpus", "bytes", "time_us")
    return [tuple(values[name] for name in names) for _, _, values in found.rows]


BOTH = [("all_reduce", 4, SIZES[0], 20.0), ("all_reduce", 4, SIZES[1], 100.0)]


def each_line(before: str) -> Callable[[str], str]:
    return lambda text: "".join(f"{before}{line}\n" for line in text.splitlines())


def in_front_of_sides(label: str) -> Callable[[str], str]:
    return lambda text: re.sub(r"(?m)^( +\d+ .*?)(  +\d+\.\d+ .*)$", rf"\1{label}\2", text)


INFO = "node0:40:41 [0] NCCL INFO Channel 00/24 : 0 1 2 3"


@pytest.mark.parametrize(
    "change",
    [
        each_line("[1,0]<stdout>:"), each_line("[1,0]<stdout>: "), each_line("0: "), each_line(" 3: "),
        each_line("[prterun-node0-77@1,0]<stdout>: "), each_line("node0: "), each_line("worker-0  | "),
        each_line("2026-03-04T05:06:07.123Z "), each_line("[2026-03-04 05:06:07] "), each_line("[0]"),
        in_front_of_sides("[1,0]<stdout>:"), in_front_of_sides("[0]"), in_front_of_sides(" 0: "),
        lambda text: text.replace("\n", "\x1b[0m\r\n\x1b[32m"),
        lambda text: text.replace("float", "\x1b[1;31mfloat\x1b[0m"),
        lambda text: re.sub(r"(?m)^( +\d+ .*)$", rf"{INFO}\n\1\n{INFO}", text),
        in_front_of_sides(f"{INFO}\n"), in_front_of_sides("\n"),
        lambda text: re.sub(r"(?m)       0$", "     N/A", text.replace("      0 ", "    N/A ")),  # -c 0
        lambda text: text.replace(str(SIZES[1]), "16M").replace(str(SIZES[0]), "1M"),
        lambda text: text.replace(NAMES, ""),
        lambda text: text.replace("   redop    root", "   redop").replace("sum      -1", "sum"),
        lambda text: text.replace("#wrong", "error").replace("       0", "   2e-07"),
        lambda text: text.replace("  -1 ", "     "),  # no root, though there is a column for it
        lambda text: re.sub(r"(?m)^( +\d+ .*)$", r"\1  2026-03-04 05:06:07", text).replace(NAMES, f"{NAMES} timestamp"),
        lambda text: text[text.index("# nThread"):],
    ],
)  # fmt: skip
def test_a_table_is_read_whatever_is_around_it(change: Callable[[str], str]) -> None:
    text = change(log())
    assert text != log()
    found = of_text(text, "log.txt")
    assert (times(found), found.problems) == (BOTH, [])


@pytest.mark.parametrize(
    "name",
    [
        "allgather.log", "all_gather.out", "nccl-AllGather-8.txt", "ALLGATHER.log", "all-gather_perf.txt",
        "2026-03-04_all.gather.log",
    ],
)  # fmt: skip
def test_names_of_files(name: str) -> None:
    text = log("all_gather").replace("all_gather_perf", "").replace("     sum", "    none")
    assert [row[0] for row in times(of_text(text, name))] == ["all_gather"] * 2
    [problem] = of_text(text, "log.txt").problems
    assert re.match(r"lines \d+, \d+: what ran on 4 GPUs does not follow", problem)


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("alltoall", "all_to_all"), ("broadcast", "broadcast"), ("gather", "gather"), ("scatter", "scatter"),
        ("sendrecv", "send_recv"), ("hypercube", "hypercube"), ("reduce", "reduce"), ("alltoallv", "all_to_all"),
    ],
)  # fmt: skip
def test_programs_that_are_not_simulated_are_rows(program: str, name: str) -> None:
    text = log().replace("all_reduce_perf", f"{program}_perf")
    assert [row[:2] for row in times(of_text(text, "log.txt"))] == [(name, 4)] * 2


def test_a_line_that_is_cut_is_refused_with_its_place() -> None:
    text = log()
    cut = text[: text.index(str(SIZES[1])) + 60]
    found = of_text(cut, "log.txt")
    assert times(found) == BOTH[:1]
    [problem] = found.problems
    assert re.match(r"line \d+ has \d+ cells, its table 13", problem)


def test_a_line_of_names_that_is_damaged_takes_no_more_than_its_table() -> None:
    """Found by changing logs at random: a name that is there twice."""
    found = of_text(log().replace("       size         count", "   size  size         count"), "log.txt")
    assert [problem.partition(": ")[2][:46] for problem in found.problems] == [
        "the columns of its table are size, size, count"
    ] * 2


def test_cycles_of_a_run_are_one_point_each() -> None:
    """Their median; canary: the three differ."""
    rows = [log(factor=factor).split(NAMES)[1].split(END)[0] for factor in (1.0, 1.3, 1.1)]
    found = of_text(log().split(NAMES)[0] + NAMES + "".join(rows) + END, "log.txt")
    [small, large] = found.rows
    assert [small[2][name] for name in ("min_us", "time_us", "max_us")] == [20.0, 22.0, 26.0]
    assert large[2]["time_us"] == 110.0
    assert any("4 rows repeat others" in sentence for sentence in found.assumed)


def test_what_nccl_was_held_to_is_that_of_each_run() -> None:
    runs = ["$ NCCL_ALGO=NVLS all_reduce_perf", "$ NCCL_ALGO='Ring' NCCL_PROTO=simple x", "$ all_reduce_perf -g 4"]
    text = "".join(f"{command}\n{log(factor=1 + i)}" for i, command in enumerate(runs))
    found = of_text(text, "log.txt")
    assert [values.get("nccl_algo", "") for _, _, values in found.rows] == ["NVLS"] * 2 + ["Ring"] * 2 + [""] * 2
    assert [values["nccl_proto"] for _, _, values in found.rows] == ["auto"] * 2 + ["Simple"] * 2 + ["auto"] * 2


@pytest.mark.parametrize(
    ("setting", "algorithm"),
    [
        ("Tree", "Tree"), ("ring", "Ring"), ("NVLS,Tree", "NVLS,Tree"), ("Ring,Tree", ""), ("^NVLS", ""),
        ("allreduce:nvls;allgather:ring", "nvls"), ("allgather:nvls", ""),
    ],
)  # fmt: skip
def test_lists_of_algorithms(setting: str, algorithm: str) -> None:
    found = of_text(f"export NCCL_ALGO={setting}\n{log()}", "log.txt")
    assert {values.get("nccl_algo", "") for _, _, values in found.rows} == {algorithm}


def test_hosts_and_groups() -> None:
    def with_ranks(lines: str) -> list[tuple[object, object]]:
        found = of_text(log().replace(ranks(), lines), "log.txt")
        assert found.problems == []
        return [(values["gpus"], values.get("hosts", 1)) for _, _, values in found.rows]

    assert with_ranks(ranks(4, hosts=2)) == [(4, 2)] * 2
    assert with_ranks(ranks(8, groups=2)) == [(4, 1)] * 2
    assert with_ranks(ranks(8, hosts=2, groups=2)) == [(4, 1)] * 2


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda text: text.replace("0 OK", "2 FAILED"), "the run says: 2 out of bounds values"),
        (lambda text: text.replace(END, f"{END}# error: unhandled cuda error\n"), "had errors: unhandled cuda error"),
        (lambda text: text.replace("time", "cputime"), "run without -C"),
        (lambda text: text.replace("#wrong", "error").replace("       0", "   3e+02"), "the results are wrong"),
        (lambda text: text.replace(ranks(), ranks(1)), "built with MPI=1"),
        (lambda text: text.replace("  20.00", "    nan"), "`time` must be a number above 0, found 'nan'"),
    ],
)
def test_rows_that_are_refused(change: Callable[[str], str], problem: str) -> None:
    text = change(log())
    assert text != log()
    found = of_text(text, "log.txt")
    assert problem in " ".join(found.problems)
    assert times(found) == (BOTH[1:] if "nan" in problem else [])


def test_types_and_operations_of_a_json_file_are_chosen_as_in_a_log() -> None:
    """And a bandwidth that fits no other refuses its result only."""
    results = [
        {"size": SIZES[0], "type": element, "redop": operation, "root": "    -1",
         "out_of_place": {"time": us, "alg_bw": 100.0, "bus_bw": bus, "nwrong": None}}
        for element, operation, us, bus in (
            ("int8", "sum", 30.0, 150.0), ("float", "sum", 21.0, 150.0), ("half", "sum", 20.0, 150.0),
            ("half", "prod", 25.0, 150.0), ("bfloat16", "sum", 20.5, 90.0),
        )
    ]  # fmt: skip
    devices = [{"hostname": host, "device_info": "NVIDIA H100"} for host in ("a", "a", "b", "b")]
    config = {"nthreads": 1, "ngpus": 1, "devices": devices}
    found = of_json({"version": 3, "args": ["all_reduce_perf"], "config": config, "results": results})
    [(place, _, values)] = found.rows
    assert (place, values["time_us"], values["gpus"], values["hosts"]) == (3, 20.0, 4, 2)
    assert any("left out: 3 rows" in sentence for sentence in found.assumed)
    [problem] = found.problems
    assert problem.startswith("result 5: bus bandwidth 90 over 100")
    assert found.devices == ("NVIDIA H100",)
