"""Incremental ``results.csv``: a row for each finished point.

What a folder held before stays until there is something new to show: an earlier result of another experiment until the
first point of this one is finished, an earlier result of this very experiment until all points are.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t3sim.errors import InputDataError
from t3sim.files import parse_json, read_limited
from t3sim.results.derive import derive
from t3sim.results.digest import source_digest
from t3sim.results.gpus import GPUS_CSV, GPUS_PARQUET
from t3sim.results.manifest import MANIFEST_NAME
from t3sim.results.record import RunRecord
from t3sim.results.spans import SPANS_CSV, SPANS_PARQUET
from t3sim.results.timeseries import TIMESERIES_NAME
from t3sim.results.waits import WAITS_CSV, WAITS_PARQUET
from t3sim.results.writer import FAILED_NAME, write_results
from t3sim.strategies import baselines, bounds

RESOLVED_NAME = "resolved.json"
TIMELINE_NAME = "trace.json.gz"
MAX_RESOLVED_BYTES = 64 << 20
PUBLISH_EVERY_S = 1.0
SHARE_OF_TIME = 0.05  # that may go into writing a table of many rows again and again
OF_A_FINISHED_RESULT = (
    MANIFEST_NAME, TIMELINE_NAME, TIMESERIES_NAME, WAITS_CSV, WAITS_PARQUET, SPANS_CSV, SPANS_PARQUET, FAILED_NAME,
    GPUS_CSV, GPUS_PARQUET,
)  # fmt: skip


class ResultTable:
    """Rows by point, published now and then."""

    def __init__(self, folder: Path, case_keys: Sequence[str], point_digests: Sequence[str]) -> None:
        """*case_keys* say which points are compared with each other, *point_digests* what the table is of."""
        self.folder = folder
        self.records: list[RunRecord | None] = [None] * len(case_keys)
        self._case_keys = case_keys
        self.is_of_same = is_result_of(folder, point_digests)
        self._has_begun = False
        self._next_at = 0.0

    def publish_if_due(self, begin: Callable[[], object]) -> None:
        """Publish the finished rows unless that was done just now; *begin* is called before the first time."""
        if self.is_of_same or time.monotonic() < self._next_at:
            return
        started = time.monotonic()
        if not self._has_begun:
            self._has_begun = True
            self.remove_finished_result()
            begin()
        write_results(self.folder, self.compared())
        ended = time.monotonic()
        self._next_at = ended + max(PUBLISH_EVERY_S, (ended - started) / SHARE_OF_TIME)

    def remove_finished_result(self) -> None:
        """Remove what says that the folder holds a finished result, the manifest first."""
        for name in OF_A_FINISHED_RESULT:
            (self.folder / name).unlink(missing_ok=True)

    def compared(self) -> list[RunRecord]:
        """Return the finished rows in the order of the points, compared with those baselines that are there."""
        pairs = [(r, key) for r, key in zip(self.records, self._case_keys, strict=True) if r is not None]
        return derive([record for record, _ in pairs], baselines(), [key for _, key in pairs], bounds())


def replaced_results(folder: Path, points: Iterable[Mapping[str, Any]]) -> str:
    """Return what a run of *points* replaces in *folder*: resolved points that it does not have; "" if nothing."""
    try:
        before = parse_json(read_limited(folder / RESOLVED_NAME, MAX_RESOLVED_BYTES, shown_as=str(folder)))
        own = {json.dumps(point, sort_keys=True, allow_nan=False) for point in points}
        lost = [point for point in before["points"] if json.dumps(point, sort_keys=True, allow_nan=False) not in own]
        name, overrides = str(before["name"]), "".join(f" -s {override}" for override in before["overrides"])
    except (InputDataError, ValueError, LookupError, TypeError):  # nothing, or nothing of ours
        return ""
    if not lost:
        return ""
    what = f"{len(lost)} points of {name}{overrides}, which this run does not have and replaces"
    return f"{folder} holds {what}; their finished phases are kept (-o names another folder)"


def is_result_of(folder: Path, point_digests: Sequence[str]) -> bool:
    """Return whether *folder* holds a finished result of these very points, simulated by this t3sim."""
    try:
        manifest = json.loads((folder / MANIFEST_NAME).read_bytes())
        return bool(manifest["points"] == list(point_digests) and manifest["source_sha256"] == source_digest())
    except (OSError, ValueError, LookupError, TypeError):
        return False
