"""The notebooks in git are sources: no outputs, no counts, the kernel that `make test` runs them with.

That they run is shown by `make test`, which executes them (nbmake).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
MAX_BYTES = 40_000  # a source; an output with one figure is larger


def check_source(text: str) -> None:
    """Fail if a notebook holds what running it leaves behind, or runs with another kernel."""
    notebook: dict[str, Any] = json.loads(text)
    assert len(text) <= MAX_BYTES
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["name"]) == (4, "python3")
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    cells = notebook["cells"]
    assert cells[0]["cell_type"] == "markdown"
    assert "".join(cells[0]["source"]).startswith("# ")
    for cell in cells:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_a_source(path: Path) -> None:
    check_source(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_run_on_the_machine_for_tests(path: Path) -> None:
    """A machine of real size would take minutes."""
    code = "".join(
        line for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"
        for line in cell["source"]
    )  # fmt: skip
    assert "machine: t3-tiny" in code
    assert "t3-150" not in code
