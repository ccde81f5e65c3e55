"""Tables on the terminal: 80 columns, no name cut, no two points that look alike."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t3sim.cli._results import points_in_words, results_lines, sorted_records, traffic_lines
from t3sim.cli._tables import WIDTH, table_lines, wrap_text
from tests.analysis.folders import SEQUENTIAL, T3, study

CELLS = st.text("abcdefgh -.,", min_size=1, max_size=60)
NUMBERS = st.floats(0, 1e7).map("{:.1f}".format)
AXES = {
    "machine.link.bandwidth": ["75 GB/s", "150 GB/s"], "machine.memory.bandwidth": ["0.5 TB/s", "1 TB/s"],
    "arbitration.threshold": ["5", "none"], "machine.tracker.sets": ["16", "256"],
}  # fmt: skip


@given(st.data(), st.integers(1, 3), st.integers(1, 12), st.integers(1, 4))
def test_any_table_fits_and_has_every_character(data: st.DataObject, n_words: int, n_numbers: int, n: int) -> None:
    words = {f"word {i}": data.draw(st.lists(CELLS, min_size=n, max_size=n)) for i in range(n_words)}
    numbers = {f"number of {i}": data.draw(st.lists(NUMBERS, min_size=n, max_size=n)) for i in range(n_numbers)}
    lines = list(table_lines("A title", words, numbers))
    assert max(map(len, lines)) <= WIDTH
    shown = sorted("".join("".join(lines).split()))
    for cells in numbers.values():
        assert all(cell in " ".join(lines) for cell in cells)
    for cells in words.values():
        assert all(shown.count(c) >= "".join(cells).count(c) for c in "abcdefgh.,")


@pytest.mark.parametrize("n_axes", [1, 3, 4])
def test_points_that_differ_in_a_swept_value_only_are_told_apart(n_axes: int) -> None:
    axes = dict(list(AXES.items())[:n_axes])
    rows = zip(*axes.values(), strict=True)
    records = [dataclasses.replace(T3, axes=dict(zip(axes, values, strict=True))) for values in rows]
    _, words = points_in_words(records)
    assert len(set(zip(*words.values(), strict=True))) == len(records)
    text = "\n".join((*results_lines(records), *traffic_lines(records)))
    assert all(value in text for value in ("75", "150"))
    assert max(map(len, text.splitlines())) <= WIDTH
    same = [dataclasses.replace(one, axes={}) for one in records]  # canary: without the column they look alike
    assert len(set(zip(*points_in_words(same)[1].values(), strict=True))) == 1


def test_what_all_points_share_is_said_once() -> None:
    title, *lines = results_lines([SEQUENTIAL, T3])
    assert title.endswith(": T-NLG FC-2, TP 8 on t3-150")
    assert not any("T-NLG" in line for line in lines)
    assert any(line.split()[:3] == ["Mega-GPT-2", "FC-2", "16"] for line in traffic_lines(study(8)))
    other = dataclasses.replace(T3, machine="t3-150+link.bandwidth=75GB/s")
    assert any("75GB/s" in line for line in results_lines([SEQUENTIAL, T3, other]))


def test_rows_of_a_case_are_next_to_each_other_and_only_what_is_swept_has_a_column() -> None:
    sweep = [
        dataclasses.replace(
            one, model=None, sublayer=None, m=8, n=16, k=k, tp=tp, axes={"arbitration.threshold": limit}
        )
        for one, limits in ((SEQUENTIAL, ("",)), (T3, ("5", "10")))
        for limit in limits
        for tp, k in ((4, 32), (8, 16))
    ]
    title, words = points_in_words(sorted_records(sweep))
    assert title == ": GEMM 8 x 16 x k on t3-150"
    assert words == {
        "k": ["32", "32", "32", "16", "16", "16"],
        "TP": ["4", "4", "4", "8", "8", "8"],
        "strategy": ["sequential", "t3", "t3"] * 2,
        "threshold": ["-", "5", "10"] * 2,
    }


def test_long_names_break_at_their_parts_and_others_stay_whole():
    """A changed machine is longer than a line; the name of a strategy is never divided at its hyphens."""
    name = "h100" + "".join(f"+link.key{i}={i}GB/s" for i in range(9))
    lines = wrap_text(f"on {name} take `moe-low-latency`", "  ", "    ")
    assert max(map(len, lines)) <= WIDTH
    assert "".join(line.strip() for line in lines).startswith(f"on {name}")
    names = wrap_text("moe-low-latency " * 20)
    assert {word for line in names for word in line.split()} == {"moe-low-latency"}


def test_small_traffic_is_not_shown_as_none() -> None:
    lines = list(traffic_lines([dataclasses.replace(SEQUENTIAL, link_bytes=2048, dram_rs_read_bytes=0)]))
    assert "0.002" in lines[-1].split()
    assert "0.0" in lines[-1].split()
