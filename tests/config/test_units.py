"""Quantities: exact, integer, and refused with a message that proposes the right spelling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t3sim import units

ACCEPTED = [
    (units.parse_bytes, "16 MiB", 16 << 20),
    (units.parse_bytes, "16MiB", 16 << 20),
    (units.parse_bytes, " 1.5 KiB ", 1536),
    (units.parse_bytes, "0 B", 0),
    (units.parse_bytes, "1e3 B", 1000),
    (units.parse_bandwidth, "150 GB/s", 150 * 10**9),
    (units.parse_bandwidth, "150 GiB/s", 150 << 30),
    (units.parse_bandwidth, "0.1 kB/s", 100),
    (units.parse_time, "500 ns", 500_000),
    (units.parse_time, "0.1 ns", 100),
    (units.parse_time, "3.6 \u00b5s", 3_600_000),
    (units.parse_time, "1e-9 s", 1000),
    (units.parse_frequency, "1.4 GHz", 1_400_000_000),
    (units.parse_cycles, "1000 cycles", 1000),
    (units.parse_cycles, "1 cycle", 1),
]


@pytest.mark.parametrize(("parse", "text", "expected"), ACCEPTED)
def test_accepted(parse, text, expected):
    value = parse(text)
    assert value == expected
    assert type(value) is int


REFUSED = [
    (units.parse_bytes, 16, "16 has no unit; did you mean `16 B` or `16 KiB`?"),
    (units.parse_bytes, 16777216, "16777216 has no unit; did you mean `16 MiB`?"),
    (units.parse_bytes, "16", "16 has no unit; did you mean `16 B` or `16 KiB`?"),
    (units.parse_bytes, "16 MB", "`16 MB`: capacities take binary prefixes only; did you mean `16 MiB`?"),
    (units.parse_bytes, "16 kB", "`16 kB`: capacities take binary prefixes only; did you mean `16 KiB`?"),
    (units.parse_bytes, "16 mib", "`16 mib`: unknown unit `mib`; did you mean `16 MiB`?"),
    (units.parse_bytes, "5 Mb", "`5 Mb` counts bits; a capacity is in bytes, like `16 MiB`"),
    (units.parse_bytes, "0.3 B", "`0.3 B` is not a whole number of bytes"),
    (units.parse_bytes, "-3 MiB", "`-3 MiB` is negative; a capacity is written like `16 MiB`"),
    (units.parse_bytes, "9e18 B", "`9e18 B` is too large: at most 2^62 - 1 bytes can be counted"),
    (units.parse_bytes, "1e999 B", "`1e999 B` is out of range: the exponent is beyond 40"),
    (units.parse_bytes, "nan B", "`nan B` is not a finite number; a capacity is written like `16 MiB`"),
    (units.parse_bytes, True, "found true where a capacity is needed, like `16 MiB`"),
    (units.parse_bytes, None, "found nothing where a capacity is needed, like `16 MiB`"),
    (units.parse_bytes, [1], "found a list or mapping where a capacity is needed, like `16 MiB`"),
    (units.parse_bytes, "much", "`much` is not a capacity; write a number and a unit, like `16 MiB`"),
    (units.parse_frequency, 1.4, "1.4 has no unit; did you mean `1.4 GHz`?"),
    (units.parse_frequency, 1400, "1400 has no unit; did you mean `1400 MHz`?"),
    (units.parse_frequency, "500 ns", "`500 ns` is a time, here a frequency is needed, like `1.4 GHz`"),
    (units.parse_time, 500, "500 has no unit; did you mean `500 ns`?"),
    (units.parse_time, "1.4 GHz", "`1.4 GHz` is a frequency, here a time is needed, like `500 ns`"),
    (units.parse_time, "0.0001 ns", "`0.0001 ns` is not a whole number of picoseconds"),
    (units.parse_time, float("inf"), "`inf` is not a finite number; a time is written like `500 ns`"),
    (units.parse_cycles, 1000, "1000 has no unit; did you mean `1000 cycles`?"),
    (units.parse_cycles, "5 ns", "`5 ns` is a time, here a number of cycles is needed, like `1000 cycles`"),
    (units.parse_bandwidth, "150 GB", "`150 GB` is an amount; did you mean `150 GB/s`?"),
    (units.parse_bandwidth, "150 Gbps", "`150 Gbps` counts bits; a bandwidth is in bytes: did you mean `18.75 GB/s`?"),
    (units.parse_bandwidth, "400 Gb/s", "`400 Gb/s` counts bits; a bandwidth is in bytes: did you mean `50 GB/s`?"),
    (units.parse_bandwidth, 150, "150 has no unit; did you mean `150 GB/s`?"),
]


@pytest.mark.parametrize(("parse", "value", "message"), REFUSED)
def test_refused(parse, value, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole message is compared
        parse(value)
    assert str(error.value) == message


PAIRS = [
    (units.parse_bytes, units.format_bytes),
    (units.parse_bandwidth, units.format_bandwidth),
    (units.parse_time, units.format_time),
    (units.parse_frequency, units.format_frequency),
    (units.parse_cycles, units.format_cycles),
]


@given(st.integers(0, units.LIMIT - 1), st.sampled_from(PAIRS))
def test_formatting_is_exact(value, pair):
    parse, write = pair
    assert parse(write(value)) == value


@given(st.text(max_size=30), st.sampled_from(PAIRS))
def test_any_text_is_a_number_in_range_or_a_message(text, pair):
    try:
        value = pair[0](text)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - both outcomes are legal
    else:
        assert 0 <= value < units.LIMIT


def test_base_units_are_accepted_only_when_a_spec_is_read_again():
    with units.base_units():
        assert units.parse_time(500_000) == 500_000
    with pytest.raises(ValueError, match="has no unit"):
        units.parse_time(500_000)


def test_a_value_is_shown_in_the_unit_of_what_parsed_it():
    assert units.format_parsed(units.parse_frequency_or_word("compute_clock"), 1_800_000_000) == "1.8 GHz"
    assert units.format_parsed(units.parse_bytes_or_word("chunk"), 1 << 20) == "1 MiB"
