"""The files of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t3sim.advice.answer import Answer
from t3sim.advice.profile import profile_bytes
from t3sim.files import publish
from t3sim.results.writer import table_bytes

ADVICE_NAME, CANDIDATES_NAME, EXPOSED_NAME = "advice.csv", "candidates.csv", "exposed.csv"
PROFILE_NAME = "profile.json"


def write_answers(folder: Path, answers: Sequence[Answer]) -> list[Path]:
    """Write a row for each GEMM, candidate and part of what was simulated, and a profile for ``torch.compile``."""
    tables = {
        ADVICE_NAME: [answer.row() for answer in answers],
        CANDIDATES_NAME: [row for answer in answers for row in answer.choices()],
        EXPOSED_NAME: [row for answer in answers for row in answer.parts()],
    }
    contents = {folder / name: _csv(rows) for name, rows in tables.items()}
    contents[folder / PROFILE_NAME] = profile_bytes([answer.case for answer in answers])
    publish(contents)
    return list(contents)


def _csv(rows: Sequence[dict[str, Any]]) -> bytes:
    return table_bytes(list(rows[0]), [list(row.values()) for row in rows])
