"""Phrases that the glossary refuses are found where they are written."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

LINT = runpy.run_path(str(REPOSITORY / "tools" / "glossary"))


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("planted.md", "One line.\nTwo GEMMs run without\npause here.\n", 2),
        ("planted.py", '"""Programs.\n\nThey are followed on paper.\n"""\n', 3),
        ("planted.py", 'def f():\n    return Field(description="it is quicker")\n', 2),
    ],
)
def test_a_planted_phrase_is_found(name: str, text: str, line: int, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    LINT["complaints"].__globals__["ROOT"] = tmp_path
    refused = LINT["phrases"]((REPOSITORY / "docs/developers/contributing.md").read_text(encoding="utf-8"))
    [found] = LINT["complaints"](tmp_path / name, refused)
    assert found.startswith(f"{name}:{line}: ")
