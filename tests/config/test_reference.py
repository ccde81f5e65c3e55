"""The page about all keys is that of the program, and says of each what it means and in which unit."""

from __future__ import annotations

import subprocess
import sys

import pytest

from t3sim.config.presets import preset_names
from t3sim.config.resolve import resolve_machine
from t3sim.config.yaml_loader import Node, Position
from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference.md"


def unexplained(page: str) -> list[str]:
    """Return the keys of tables that say nothing of their meaning or of what they may be."""
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    return [name.strip("| `") for name, meaning, allowed, *_ in rows if not (meaning.strip() and allowed.strip())]


def test_page_is_up_to_date() -> None:
    command = [sys.executable, "-m", "t3sim", "config", "reference"]  # a process without policies of other tests
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    advice = "keys, meanings or presets have changed: t3sim config reference > docs/reference.md"
    assert PAGE.read_text(encoding="utf-8") == printed, advice


def test_every_key_is_explained() -> None:
    assert unexplained(PAGE.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", preset_names("machine"))
def test_every_value_of_a_preset_is_on_the_page(name: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    keys = resolve_machine(Node(name, Position("e.yaml"))).leaves()
    # A part that a machine has not is named as a whole.
    missing = [key for key in keys if f"| `machine.{key}` |" not in text and f"| `machine.{key}." not in text]
    assert missing == []
