"""What nccl-tests writes with ``-J`` becomes rows of collectives; anything unexpected is refused by name.

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

from t3sim.errors import InputDataError
from t3sim.measurements.nccl_tests import collectives
from t3sim.measurements.samples import read_measurements
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
        "time_us": 20.341,
        "min_us": 20.341,
        "max_us": 20.341,
        "busbw_gbps": pytest.approx(1.5 * (1 << 20) / 20.341 / 1e3),
    }
    assert (large["bytes"], large["time_us"], large.line) == (32 << 20, 181.25, 2)


def edited(change: Callable[[dict[str, Any]], None]) -> bytes:
    found = json.loads(FIXTURE.read_text(encoding="utf-8"))
    change(found)
    return json.dumps(found).encode()


def test_iterations_are_the_samples() -> None:
    times = [20.0, 21.0, 19.0]

    def keep(found: dict[str, Any]) -> None:
        found["results"][0]["out_of_place_per_iter"] = {"times_us": times}

    _, first = next(collectives(edited(keep)))
    assert (first["min_us"], first["time_us"], first["max_us"]) == (19.0, 20.0, 21.0)


def test_in_place_counts_where_there_is_no_other() -> None:
    _, first = next(collectives(edited(lambda found: found["results"][0].update(out_of_place=None))))
    assert first["time_us"] == 20.5


def test_processes_of_one_gpu_each_are_counted() -> None:
    def with_mpi(found: dict[str, Any]) -> None:
        found["config"] |= {"ngpus": 1, "devices": 4 * found["config"]["devices"]}

    _, first = next(collectives(edited(with_mpi)))
    assert first["gpus"] == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.update(version=3), "version is 3; known are 1 and 2"),
        (lambda f: f.pop("config"), "not a result of nccl-tests: it has `config` and `results`"),
        (lambda f: f["args"].__setitem__(0, "./alltoall_perf"), "ran './alltoall_perf'; known are reduce_scatter_perf"),
        (lambda f: f["results"][1]["out_of_place"].update(nwrong=3.0), "result 2 has 3.0 wrong elements"),
        (lambda f: f["results"][1]["out_of_place"].update(time="nan"), "result 2: `time` must be a number above 0"),
        (lambda f: f["results"][1]["out_of_place"].pop("time"), "result 2 has no `time`; run without -C"),
        (lambda f: f["results"][1].update(out_of_place=None, in_place=None), "has neither `out_of_place` nor"),
        (lambda f: f["config"].update(ngpus=3), "fits none of 3 GPUs in 1 processes"),
        (lambda f: f.update(errors=["unhandled cuda error"]), "the run had errors"),
        (lambda f: f.update(results=[]), "`results` must be a list with something in it"),
    ],
)
def test_refusals(change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(edited(change))
    with pytest.raises(InputDataError) as refused:
        read_measurements(tmp_path)
    assert message in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path / "x.json"))


def test_another_json_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[1, 2", encoding="utf-8")
    with pytest.raises(InputDataError, match=r"x\.json: "):
        read_measurements(tmp_path)


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
        rows = list(collectives(json.dumps(found).encode()))
    except ValueError:
        return
    assert len(rows) == 2
    assert all(row["time_us"] > 0 and row["gpus"] == 4 for _, row in rows)  # type: ignore[operator]
