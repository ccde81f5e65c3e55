"""Lists of numbers as users write them: one spelling for each set, and messages for what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t3sim.config.number_lists import LARGEST_NUMBER, format_number_list, numbers_in, parse_number_list


@given(st.sets(st.integers(0, LARGEST_NUMBER), min_size=1, max_size=40))
def test_what_is_written_is_read_back(numbers: set[int]) -> None:
    text = format_number_list(numbers)
    assert numbers_in(text) == sorted(numbers)
    assert parse_number_list(text) == text
    assert parse_number_list(" , ".join(map(str, numbers))) == text


@pytest.mark.parametrize(
    ("written", "kept"),
    [("0-17,44-47", "0-17,44-47"), ("3,1,2", "1-3"), (" 5 - 6 ,0", "0,5-6"), (7, "7"), ("4-4", "4"), ("0,1", "0-1")],
)
def test_lists_have_one_spelling(written: object, kept: str) -> None:
    assert parse_number_list(written) == kept


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("", "`` is no number and no range; a list of numbers is needed, like `0-17,44-47`"),
        ("0-3,", "`` is no number"),
        ("0..3", "`0..3` is no number"),
        ("-1", "`-1` is no number"),
        ("7-4", "`7-4` ends before it begins; did you mean `4-7`?"),
        ("0-4096", "`0-4096`: numbers go up to 4095"),
        ("0-5,4-7", "`4-5` is in it twice"),
        (True, "a list of numbers is needed"),
        (1.5, "a list of numbers is needed"),
        (None, "a list of numbers is needed"),
        ("0," * 200_000, "is too long"),
    ],
)
def test_what_is_no_list_is_refused(written: object, message: str) -> None:
    with pytest.raises(ValueError, match=r"^.") as refused:
        parse_number_list(written)
    assert str(refused.value).startswith(message)
