"""The strict loader: YAML 1.2 readings and positions; what it refuses: tests/faults/test_configuration.py."""

import pytest

from t3sim.config.yaml_loader import load_yaml_text


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


def test_positions_of_keys_and_values():
    root = load_yaml_text("a:\n  b: [1,\n   2]\n", "f.yaml")
    b = root.get("a").get("b")
    assert str(b.key_position) == "f.yaml:2:3"
    assert str(b.position) == "f.yaml:2:6"
    assert str(b.value[1].position) == "f.yaml:3:4"
