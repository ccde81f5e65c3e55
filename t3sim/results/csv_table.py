"""CSV files, without the libraries that other tables need."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any


def table_bytes(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """Return a CSV file: None is written as nothing, a float in its shortest exact form."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue().encode()
