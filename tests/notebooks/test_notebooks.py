"""The notebooks in git hold their outputs, and these are what the simulator gives: `tools/notebooks` stores them.

Each notebook is executed once; texts of outputs are compared, figures have to be there.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
MAX_BYTES = 100_000  # with a few small figures
OF_ONE_MACHINE = re.compile(rf"{tempfile.gettempdir()}|t3sim-\w+-\w+/|\d\d:\d\d:\d\d|20\d\d-\d\d-\d\d")


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The notebooks as they come out now."""
    folder = tmp_path_factory.mktemp("notebooks")
    subprocess.run([sys.executable, REPOSITORY / "tools" / "notebooks", "--into", folder], check=True, timeout=280)
    return folder


def outputs_of(notebook: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the texts of all outputs, cell by cell, and which of them are figures."""
    found = []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            data = {"text": output["text"]} if "text" in output else output["data"]
            text = "".join(data.get("text/plain", data.get("text", "")))
            found.append((text, *sorted(kind for kind in data if kind.startswith("image/"))))
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_stored_outputs_are_current(path: Path, executed: Path) -> None:
    stored, now = (json.loads(each.read_text(encoding="utf-8")) for each in (path, executed / path.name))
    assert any("image/png" in output for output in outputs_of(stored))
    assert outputs_of(now) == outputs_of(stored)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_small_and_of_no_machine(path: Path) -> None:
    """Nor does it run on a machine of real size, which would take minutes."""
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert len(text) <= MAX_BYTES
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert [cell["metadata"] for cell in notebook["cells"]] == [{}] * len(notebook["cells"])
    assert not OF_ONE_MACHINE.search("".join(text for text, *_ in outputs_of(notebook)))
    assert "machine: t3-tiny" in text
    assert "machine: t3-150\\n" not in text
