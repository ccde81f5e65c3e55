"""What nccl-tests writes with ``-J`` or prints becomes rows of collectives; anything unexpected is refused by name.

``data/all_reduce_perf.json`` has the layout that src/util.cu of nccl-tests writes (file version 2), with made-up times.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t3lab.measurements.columns import ANY_DEVICE, Value
from t3lab.measurements.floors import ring_bytes
from t3lab.measurements.nccl_log import of_text
from t3lab.measurements.nccl_tests import of_json
from t3lab.measurements.reading import read_file, read_measurements
from t3sim.files import parse_json
from tests.conftest import sample

FIXTURE = Path(__file__).with_name("data") / "all_reduce_perf.json"


def test_results_become_rows(tmp_path: Path) -> None:
    shutil.copy(FIXTURE, tmp_path)
    small, large = read_measurements(tmp_path).of_kind("collectives")
    assert small.values == {
        "collective": "all_reduce",
        "gpus": 4,
        "bytes": 1 << 20,
        "nccl_channels": "16",
        "nccl_proto": "Simple",
        "nccl_algo": "Ring",
        "time_us": 20.341,
        "min_us": 20.341,
        "max_us": 20.341,
        "busbw_gbps": pytest.approx(1.5 * (1 << 20) / 20.341 / 1e3),
    }
    assert (large["bytes"], large["time_us"], large.line) == (32 << 20, 181.25, 2)


def first_of(content: bytes) -> dict[str, Value]:
    [(_, kind, values), *_] = of_json(json.loads(content)).rows
    assert kind == "collectives"
    return values


def edited(change: Callable[[dict[str, Any]], None]) -> bytes:
    found = json.loads(FIXTURE.read_text(encoding="utf-8"))
    change(found)
    return json.dumps(found).encode()


def test_iterations_are_the_samples() -> None:
    times = [20.0, 21.0, 19.0]

    def keep(found: dict[str, Any]) -> None:
        found["results"][0]["out_of_place_per_iter"] = {"times_us": times}

    first = first_of(edited(keep))
    assert (first["min_us"], first["time_us"], first["max_us"]) == (19.0, 20.0, 21.0)


def test_in_place_counts_where_there_is_no_other() -> None:
    first = first_of(edited(lambda found: found["results"][0].update(out_of_place=None)))
    assert first["time_us"] == 20.5


def test_processes_of_one_gpu_each_are_counted() -> None:
    def with_mpi(found: dict[str, Any]) -> None:
        found["config"] |= {"ngpus": 1, "devices": 4 * found["config"]["devices"]}

    first = first_of(edited(with_mpi))
    assert first["gpus"] == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.update(version="3"), "version is '3'; known are 1 to 2"),
        (lambda f: f.pop("config"), "not a result of nccl-tests: it has `config` and `results`"),
        (lambda f: f["args"].__setitem__(0, "./bisection_perf"), "ran 'bisection_perf'; known are reduce_scatter_perf"),
        (lambda f: f["results"][1]["out_of_place"].update(nwrong=3.0), "result 2: has 3.0 wrong elements"),
        (lambda f: f["results"][1]["out_of_place"].update(time="nan"), "result 2: `time` must be a number above 0"),
        (lambda f: f["results"][1]["out_of_place"].pop("time"), "result 2: has no `time`; run without -C"),
        (lambda f: f["results"][1].update(out_of_place=None, in_place=None), "result 2: has neither `out_of_place`"),
        (lambda f: f["config"].update(ngpus=3), "results 1, 2: what ran on 3 GPUs does not follow"),
        (lambda f: f.update(errors=["unhandled cuda error"]), "the run had errors"),
        (lambda f: f.update(results=[]), "`results` must be a list with something in it"),
    ],
)
def test_refusals(change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(edited(change))
    read = read_file(tmp_path / "x.json", ANY_DEVICE)
    [problem] = read.problems
    assert message in problem
    assert problem.startswith(str(tmp_path / "x.json"))
    assert len(read.rows) == ("result 2" in message)  # the other result is good


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to everything in a JSON value, itself left out."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, part in inside for found in [(*path, key), *leaves(part, (*path, key))]]


LEAVES = leaves(json.loads(FIXTURE.read_text(encoding="utf-8")))
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.just(10**400), st.floats(), st.text(), st.just([]), st.just({})
)


@settings(max_examples=sample(200, 40))
@given(st.sampled_from(LEAVES), ODD)
def test_any_other_value_is_read_or_refused(place: tuple[Any, ...], value: Any) -> None:
    found = json.loads(FIXTURE.read_text(encoding="utf-8"))
    holder = found
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    try:
        read = of_json(parse_json(json.dumps(found).encode()))
    except ValueError:
        return
    n_refused = sum(problem.partition(":")[0].count(",") + 1 for problem in read.problems)  # results 1, 2: ...
    assert len(read.rows) + n_refused == 2
    assert all(row["time_us"] > 0 and row["gpus"] == 4 for _, _, row in read.rows)  # type: ignore[operator]


HEADER = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""


def printed(
    collective: str = "all_reduce", gpus: int = 4, redop: str = "sum", sizes: tuple[int, ...] = (20, 24)
) -> str:  # fmt: skip
    """Return the lines of a table: arrays of 2 to the power of *sizes*, out of place at 100 GB/s, in place at 50."""
    lines = []
    for size in (1 << power for power in sizes):
        sides = ""
        for rate in (100.0, 50.0):
            time = size / rate / 1e3
            sides += f"  {time:.2f}  {rate:.2f}  {ring_bytes(collective, gpus, rate):.2f}      0"
        lines.append(f"  {size}  {size // 4}  float  {redop}  -1{sides}")
    return HEADER + "\n".join(lines) + "\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 83.9\n#\n"


def ranks(n: int) -> str:
    return "".join(f"#  Rank {i:2} Group  0 Pid {40 + i} on node device  {i} [0x0f] NVIDIA H200\n" for i in range(n))


def table(text: str, name: str = "log.txt") -> list[tuple[Value, ...]]:
    found = of_text(text, name)
    assert found.problems == []
    return [tuple(values[key] for key in ("collective", "gpus", "bytes", "time_us")) for _, _, values in found.rows]


BOTH = [("all_reduce", 4, 1 << 20, 10.49), ("all_reduce", 4, 1 << 24, 167.77)]


@pytest.mark.parametrize(
    ("before", "name", "n_assumed"),
    [
        ("$ NCCL_DEBUG=WARN ./build/all_reduce_perf -b 1M -e 16M -g 4\n" + ranks(4), "log.txt", 0),
        ("# Collective test starting: all_reduce_perf\n" + ranks(4), "log.txt", 0),
        (ranks(4), "all_reduce_perf-4.log", 0),
        (ranks(4), "log.txt", 1),  # the bandwidths and the sum say what it was
        ("", "all_reduce_perf.txt", 1),  # the bandwidths say how many GPUs
    ],
)
def test_printed_tables_become_rows(before: str, name: str, n_assumed: int) -> None:
    assert table(before + printed(), name) == BOTH
    assert len(of_text(before + printed(), name).assumed) == n_assumed


def test_a_log_with_prefixes_and_several_tables() -> None:
    gathered = "all_gather_perf -g 8\n" + ranks(8) + printed("all_gather", 8, "none")
    text = "all_reduce_perf -g 4\n" + ranks(4) + printed() + "NCCL INFO comm 0x60 rank 0 nranks 2\n" + gathered
    text = "".join(f"[1,0]<stdout>: {line}\n" for line in text.splitlines())
    assert table(text) == [*BOTH, *(("all_gather", 8, *row[2:]) for row in BOTH)]


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (ranks(4) + printed("all_gather", redop="none"), "log.txt", "does not follow from the bandwidths"),
        (ranks(4) + printed(gpus=8), "all_reduce_perf.txt", "what ran on 4 GPUs does not follow"),
        (
            ranks(4) + printed().replace("0  20.97", "0  nan", 1).replace("10.49", "nan"),
            "",
            "line 8: `time` must be a number above 0, found 'nan'",
        ),
    ],
)
def test_tables_that_are_refused(text: str, name: str, message: str) -> None:
    found = of_text(text, name)
    assert len(found.rows) == ("line 8" in message)  # the other line is good
    [problem] = found.problems
    assert message in problem


def test_a_text_without_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no table of nccl-tests"):
        of_text("all is well", "log.txt")


def test_wrong_elements_refuse_their_line_only() -> None:
    """Canary: the same line without them is read."""
    text = "all_reduce_perf\n" + ranks(4) + printed()
    wrong = text.replace("0  20.97", "2  20.97", 1)
    assert wrong != text
    found = of_text(wrong, "log.txt")
    assert [values["bytes"] for _, _, values in found.rows] == [1 << 24]
    assert found.problems == ["line 9: has 2 wrong elements"]


@settings(max_examples=sample(200, 40))
@given(st.integers(0, 1200), st.integers(0, 30), st.text(max_size=12))
def test_any_edit_of_a_table_is_read_or_refused(start: int, length: int, text: str) -> None:
    good = "all_reduce_perf\n" + ranks(4) + printed()
    try:
        found = of_text(good[:start] + text + good[start + length :], "log.txt")
    except ValueError:
        return  # the line of names was hit
    assert len(found.rows) <= 3
