"""A measurement, and all measurements of a folder with their provenance."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from t3lab.measurements.columns import Value, is_above_zero
from t3lab.measurements.kinds import KINDS
from t3lab.measurements.provenance import GEMM_LOOP_SHARE, HOST_US, OPERATING_POINT, REST_MS
from t3sim.config.operating_points import OPERATING_POINTS, OperatingPoint


@dataclass(frozen=True)
class Measurement:
    """One row: ``measurement["time_us"]``; where it stands; all samples of its time columns, if they were kept."""

    kind: str
    values: Mapping[str, Value]
    file: str
    line: int
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __getitem__(self, column: str) -> Value:
        return self.values[column]

    @property
    def place(self) -> str:
        """``file:line``, for messages."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Measurements:
    """All measurements of a folder or a file, in the order of file names and lines.

    ``folder``: that of the file, if it is one. ``provenance``: what each subfolder's ``provenance.json`` says, by the
    folder's path as given. ``refused``: what could not be used, with file and line. ``assumed``: what the files do not
    say, each with what it is taken for, and what was left out of them because it is no measurement. ``devices``: names
    of GPUs that files or provenances state, each with the first place that does.
    """

    folder: Path
    rows: tuple[Measurement, ...]
    provenance: Mapping[str, Mapping[str, Any]]
    refused: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    is_file: bool = False
    devices: Mapping[str, str] = field(default_factory=dict)

    def host_us(self, row: Measurement) -> float:
        """Return the time from one launch of the host to the next in the time of *row*; 0 if they are not in it."""
        if row.values.get(HOST_US) is not None:
            return float(row[HOST_US])
        return float(self._provenance_of(row).get(HOST_US, {}).get(row.kind, 0))

    def gemm_loop_share(self, row: Measurement) -> float | None:
        """Return how long the loop of GEMMs of a contention row ran, over that of collectives, by their times alone.

        None: each was timed while the other one ran throughout.
        """
        share = self._provenance_of(row).get(GEMM_LOOP_SHARE)
        return None if share is None else float(share)

    def are_rested(self, row: Measurement) -> bool:
        """Return whether the GPUs rested before each group of loops of a row: the power limit then slows down none."""
        return REST_MS in self._provenance_of(row)

    def nccl_version(self, row: Measurement) -> tuple[int, ...] | None:
        """Return the version of NCCL that a provenance states (``nccl``) for a row, like (2, 28, 9); None: none."""
        stated = str(self._provenance_of(row).get("nccl", ""))
        return tuple(map(int, stated.split("."))) if re.fullmatch(r"\d+(\.\d+)+", stated) else None

    def operating_point(self, row: Measurement) -> OperatingPoint | None:
        """Return the operating point that a provenance states for the GEMMs of a row; None: it states none."""
        stated = self._provenance_of(row).get(OPERATING_POINT)
        found = stated.get(row.kind) if isinstance(stated, Mapping) else stated
        return next((name for name in OPERATING_POINTS if name == found), None)

    def groups(self, row: Measurement) -> tuple[int, float] | None:
        """Return how many groups ``measure`` timed for a row, and how long each is in milliseconds; None: unknown."""
        method = self._provenance_of(row).get("method")
        if not isinstance(method, Mapping):
            return None
        number, group_us = method.get("groups", 0), method.get("group_us", 0)
        return (int(number), float(group_us) / 1e3) if is_above_zero(number) and is_above_zero(group_us) else None

    def _provenance_of(self, row: Measurement) -> Mapping[str, Any]:
        return self.provenance.get(str(Path(row.file).parent), {})

    def of_kind(self, kind: str) -> tuple[Measurement, ...]:
        """Return the measurements of one kind; ``KeyError`` if there is no such kind."""
        return tuple(row for row in self.rows if row.kind == KINDS[kind].name)
