"""``provenance.json`` of a folder of measurements: device, driver, versions, clocks, peaks, how times were taken."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t3lab.measurements.columns import ANY_DEVICE, Peaks, is_above_zero, peaks_from
from t3lab.measurements.kinds import KINDS
from t3sim.config.operating_points import OPERATING_POINTS
from t3sim.errors import InputDataError
from t3sim.files import one_line, parse_json, read_limited

PROVENANCE = "provenance.json"
PROVENANCE_TEXTS = ("device", "driver", "cuda", "date")  # what every provenance states; it may state more
GEMM_LOOP_SHARE = "gemm_loop_share"  # of a provenance: see ``Measurements.gemm_loop_share``
REST_MS = "rest_ms"  # of a provenance: see ``Measurements.are_rested``
OPERATING_POINT = "operating_point"  # of a provenance: see ``Measurements.operating_point``
HOST_US = "host_us"  # of a provenance: kinds whose times hold launches of the host, each with the time of one
MOST_PROVENANCE_BYTES = 64 << 20


def peaks_beside(path: Path) -> Peaks:
    """Return the peaks of the provenance in the folder of *path*; if it gives none, limits above every device."""
    beside = path.with_name(PROVENANCE)
    return peaks_of(read_provenance(beside) if beside.exists() else {})


def peaks_of(provenance: Mapping[str, Any]) -> Peaks:
    """Return the peaks that *provenance* gives; if it gives none, limits above every device."""
    return peaks_from(provenance["peaks"]) if "peaks" in provenance else ANY_DEVICE


def read_provenance(path: Path) -> dict[str, Any]:
    """Return a provenance file after checking what it must hold; raises ``InputDataError``."""
    content = read_limited(path, MOST_PROVENANCE_BYTES, shown_as=str(path))
    try:
        found = parse_json(content)
        for name in PROVENANCE_TEXTS:
            if not isinstance(found.get(name), str) or not found[name]:
                raise ValueError(f"{name} must be text")
        if "peaks" in found:
            peaks_from(found["peaks"] if isinstance(found["peaks"], dict) else {})
        host_us = found.get(HOST_US, {})
        if not isinstance(host_us, dict):
            raise ValueError(f"{HOST_US} must be an object: a kind, and microseconds")
        for kind, us in host_us.items():
            if kind not in KINDS:
                raise ValueError(f"{HOST_US}: no kind {kind}")
            if not is_above_zero(us):
                raise ValueError(f"{HOST_US}: {kind} must be microseconds above 0")
        stated = found.get(OPERATING_POINT, {})
        of_kinds = stated.values() if isinstance(stated, dict) else [stated]
        for point in of_kinds:
            if point not in OPERATING_POINTS:
                needed = f"must be one of {', '.join(OPERATING_POINTS)}, or an object with one of them for each kind"
                raise ValueError(f"{OPERATING_POINT} {needed}")
        for name in (GEMM_LOOP_SHARE, REST_MS):
            if not is_above_zero(found.get(name, 1)):
                raise ValueError(f"{name} must be a number above 0")
    except ValueError as error:
        raise InputDataError(f"{path}: {one_line(error)}") from None
    return found
