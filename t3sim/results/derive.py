"""Columns that compare points: speedup, exposed communication time, overlap efficiency.

Pure functions of finished records; nothing here changes what was simulated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Hashable, Sequence
from dataclasses import replace
from operator import attrgetter

from t3sim.results.record import RunRecord


def derive(
    records: Sequence[RunRecord], baselines: Container[str], case_keys: Sequence[Hashable] | None = None
) -> list[RunRecord]:
    """Return *records* with ``speedup``, ``ect_us`` and ``overlap_efficiency`` filled in.

    Each is compared with the record of the same case whose strategy is one of
    *baselines*: same workload and machine, of the same mode where there is one.  *case_keys*, one per
    record, tell apart cases of which the columns say the same (a sweep over
    a machine value or a tiling; see ``digest.case_digest``).  What only
    overlapping depends on, such as an arbitration policy, is not part of a
    case.  Without a baseline, or with several that disagree, the comparison is
    left absent.
    """
    if case_keys is None:
        case_keys = [None] * len(records)
    workload_of = attrgetter("model", "sublayer", "layer", "tp", "m", "n", "k", "machine")
    workloads = [(workload_of(record), key) for record, key in zip(records, case_keys, strict=True)]
    candidates: dict[Hashable, list[RunRecord]] = defaultdict(list)
    for record, workload in zip(records, workloads, strict=True):
        if record.strategy in baselines and record.time_us is not None:
            candidates[workload].append(record)
    return [
        _compare(record, _baseline_for(record, candidates[workload], baselines))
        for record, workload in zip(records, workloads, strict=True)
    ]


def _baseline_for(record: RunRecord, candidates: list[RunRecord], baselines: Container[str]) -> RunRecord | None:
    if record.strategy in baselines:
        return record if record.time_us is not None else None
    same_mode = [candidate for candidate in candidates if candidate.mode == record.mode] or candidates
    if len({(candidate.time_us, candidate.gemm_us) for candidate in same_mode}) != 1:
        return None
    return same_mode[0]


def _compare(record: RunRecord, baseline: RunRecord | None) -> RunRecord:
    speedup = ect = efficiency = None
    isolated = _isolated(baseline or record)
    if record.time_us is not None and isolated is not None:
        ect = record.time_us - isolated
    if baseline is not None and baseline.time_us is not None and record.time_us:
        speedup = baseline.time_us / record.time_us
        if ect is not None and isolated is not None and baseline.time_us > isolated:
            efficiency = 1.0 - ect / (baseline.time_us - isolated)
    return replace(record, speedup=speedup, ect_us=ect, overlap_efficiency=efficiency)


def _isolated(record: RunRecord) -> float | None:
    """Return what of the time is no communication: the unsplit GEMM, and the other operators of a layer."""
    if record.gemm_us is None or record.gemm_compute_units is not None:
        return None
    return record.gemm_us + (record.others_us or 0.0)
