"""The strict loader: YAML 1.2 readings, positions, and attacks that end at once."""

import os
import time

import pytest

from t3sim.config import yaml_loader
from t3sim.config.yaml_loader import load_yaml, load_yaml_text
from t3sim.errors import ConfigError


def message(text, name="f.yaml"):
    started = time.monotonic()
    with pytest.raises(ConfigError) as error:
        load_yaml_text(text, name)
    assert time.monotonic() - started < 2  # F-A11 asks for 0.5 s; the rest is a slow machine
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e9", 1e9),
        ("1.0e9", 1e9),
        ("1e-9", 1e-9),
        ("-3", -3),
        ("+3", 3),
        ("1.", 1.0),
        (".5", 0.5),
        ("no", "no"),
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("'017'", "017"),
        ('"1:30"', "1:30"),
        ("16 MiB", "16 MiB"),
        ("3d", "3d"),
        ("[1, {b: 2}]", [1, {"b": 2}]),
    ],
)
def test_readings(text, value):
    read = load_yaml_text(f"a: {text}", "f.yaml").plain()["a"]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("017", "`017` has a leading zero: YAML 1.1 would read it as octal, 15; write it in decimal or in quotes"),
        ("09", "`09` has a leading zero; write the number without it, or in quotes"),
        ("0o17", "`0o17` is octal (15); write it in decimal, or in quotes"),
        ("0x1F", "`0x1F` is hexadecimal (31); write it in decimal, or in quotes"),
        ("0b11", "`0b11` is binary (3); write it in decimal, or in quotes"),
        ("1:30", "`1:30`: YAML 1.1 would read it in base 60, as 90; write it in decimal, or in quotes"),
        ("1_000", "`1_000`: YAML 1.1 would read it as 1000; write it without underscores"),
        ("2024-01-02", "`2024-01-02`: YAML 1.1 would read it as a date; write it in quotes"),
        (".nan", "`.nan` is not a finite number"),
        ("-.inf", "`-.inf` is not a finite number"),
        ("1e400", "`1e400` is too large"),
        ("9" * 5000, "a number of 5000 characters is too long"),
    ],
)
def test_numbers_that_are_refused(text, expected):
    assert message(f"a: {text}") == f"f.yaml:1:4: a: {expected}"


def test_positions_of_keys_and_values():
    root = load_yaml_text("a:\n  b: [1,\n   2]\n", "f.yaml")
    b = root.get("a").get("b")
    assert str(b.key_position) == "f.yaml:2:3"
    assert str(b.position) == "f.yaml:2:6"
    assert str(b.value[1].position) == "f.yaml:3:4"


def test_all_bad_numbers_and_duplicates_at_once():
    assert message("a: 1\nb: 017\na: 2\n") == (
        "f.yaml:2:4: b: `017` has a leading zero: YAML 1.1 would read it as octal, 15; write it in decimal or in quotes"
        "\nf.yaml:3:1: a: duplicate key; the first is at 1:1"
    )


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{c}: &{c} [{','.join([f'*{p}'] * 9)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
)

ATTACKS = [
    ("", "f.yaml: is empty"),
    ("# only a comment\n", "f.yaml: is empty"),
    ("a: b: c", "f.yaml:1:5: not valid YAML: mapping values are not allowed here"),
    ("a:\n\tb: 1", "f.yaml:2:1: a tab cannot indent; use spaces"),
    ("a: \0", "f.yaml:1:4: a NUL character is not allowed"),
    ("a: \x1b[2J", "f.yaml:1:4: the control character U+001B is not allowed"),
    (b"a: 1\nb: \xff", "f.yaml:2:4: byte 0xff is not UTF-8"),
    ("a: 1\n---\nb: 2", "f.yaml:2:1: a second document starts here; one file holds one document"),
    ("a: &a [*a]", "f.yaml:1:8: a[0]: `*a` contains itself"),
    ("a: *x", "f.yaml:1:4: a: `*x` has no anchor `&x` before it"),
    (
        "a: !!python/object:os.system x",
        "f.yaml:1:4: a: tags are not allowed (`tag:yaml.org,2002:python/object:os.system`)",
    ),
    ("b: &x {c: 1}\na:\n  <<: *x", "f.yaml:3:3: a: merge keys (`<<`) are not allowed; write the values out"),
    ("[a]: 1", "f.yaml:1:1: a key must be a plain word"),
    ("%TAG ! tag:x,2000:\n---\na: 1", "f.yaml:1:1: tags are not allowed"),
    (BOMB, "f.yaml:6:8: more than 100000 values after aliases are expanded"),
    ("- &a 1\n" + "- *a\n" * 1001, "f.yaml:1002:3: more than 1000 aliases"),
    ("#" * (1 << 20) + "#", "f.yaml: is larger than 1 MiB; a configuration is a few KiB"),
]


@pytest.mark.parametrize(("text", "expected"), ATTACKS)
def test_attacks(text, expected):
    assert message(text) == expected


@pytest.mark.parametrize("depth", [51, 900, 100_000])
def test_depth(depth):
    assert message("[" * depth).endswith("nested deeper than 50 levels")


def test_legal_depth_and_byte_order_mark():
    load_yaml_text("[" * 50 + "]" * 50, "f.yaml")
    assert load_yaml_text(b"\xef\xbb\xbfa: 1", "f.yaml").plain() == {"a": 1}


def test_a_tag_creates_nothing(tmp_path):
    canary = tmp_path / "canary"
    message(f"a: !!python/object/apply:os.mkdir ['{canary}']")
    assert not canary.exists()


def test_only_regular_files(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path, cause in [
        (tmp_path / "fifo", "is not a regular file"),
        ("/dev/zero", "is not a regular file"),
        (tmp_path, "is a folder, not a YAML file"),
        (tmp_path / "none", "no such file"),
        ("a\0b", "a file name cannot contain a NUL character"),
    ]:
        with pytest.raises(ConfigError, match=cause):
            load_yaml(path)


def test_size_of_a_file_is_limited(tmp_path):
    path = tmp_path / "large.yaml"
    path.write_bytes(b"#" * (yaml_loader.MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        load_yaml(path)
