"""Columns that compare points: speedup, exposed communication time, overlap efficiency.

Pure functions of finished records; nothing here changes what was simulated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Hashable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from t3sim.results.record import RunRecord


def derive(
    records: Sequence[RunRecord], baselines: Container[str], case_keys: Sequence[Hashable] | None = None,
    bounds: Container[str] = (),
) -> list[RunRecord]:  # fmt: skip
    """Return *records* with speedup, exposed communication and overlap efficiency filled in.

    Exposed communication is the time minus that of the GEMM alone (ECT in Flux), of the operator (GEMM and
    reduce-scatter) and of the sublayer (with the all-gather). Each is compared with the record of the same case whose
    strategy is one of *baselines*: same workload and machine, of the same mode where there is one.  *case_keys*, one
    per record, distinguish cases with equal columns (a sweep over a machine value or a tiling; see
    ``digest.case_digest``).  What only overlapping depends on, such as an arbitration policy, is not part of a case.
    Without a baseline, or with several that disagree, the comparison is left absent.  So are the efficiencies of
    *bounds*: they are times below which no design gets, with no communication that could be hidden.
    """
    workload_of = attrgetter("model", "sublayer", "layer", "tp", "m", "n", "k", "machine")
    keys = [None] * len(records) if case_keys is None else case_keys
    cases = [(record, (workload_of(record), key)) for record, key in zip(records, keys, strict=True)]
    candidates: dict[Hashable, list[RunRecord]] = defaultdict(list)
    for record, case in cases:
        if record.strategy in baselines and record.time_us is not None:
            candidates[case].append(record)
    compared = [_compare(record, _baseline_for(record, candidates[case], baselines)) for record, case in cases]
    no_efficiency: dict[str, Any] = {"overlap_efficiency": None, "sublayer_overlap_efficiency": None}
    return [replace(one, **no_efficiency) if one.strategy in bounds else one for one in compared]


def _baseline_for(record: RunRecord, candidates: list[RunRecord], baselines: Container[str]) -> RunRecord | None:
    if record.strategy in baselines:
        return record if record.time_us is not None else None
    same_mode = [candidate for candidate in candidates if candidate.mode == record.mode] or candidates
    return same_mode[0] if len({(one.time_us, one.gemm_us) for one in same_mode}) == 1 else None


def _compare(record: RunRecord, baseline: RunRecord | None) -> RunRecord:
    whole = baseline or record
    gemm = whole.gemm_us if whole.gemm_compute_units is None else None  # isolated, on all compute units
    operator = _exposed(record.operator_us, gemm)
    sublayer = _exposed(_of_sublayers(record), gemm)
    speedup = efficiency = sublayer_efficiency = None
    if baseline is not None:
        if baseline.time_us is not None and record.time_us:
            speedup = baseline.time_us / record.time_us
        efficiency = _efficiency(operator, _exposed(baseline.operator_us, gemm))
        sublayer_efficiency = _efficiency(sublayer, _exposed(_of_sublayers(baseline), gemm))
    return replace(
        record, speedup=speedup, ect_us=operator, overlap_efficiency=efficiency, sublayer_ect_us=sublayer,
        sublayer_overlap_efficiency=sublayer_efficiency,
    )  # fmt: skip


def _of_sublayers(record: RunRecord) -> float | None:
    """Return the time without the other operators of a layer."""
    return None if record.time_us is None else record.time_us - (record.others_us or 0.0)


def _exposed(time_us: float | None, gemm_us: float | None) -> float | None:
    """Return what of a time is communication that the GEMM does not hide."""
    return None if time_us is None or gemm_us is None else time_us - gemm_us


def _efficiency(exposed_us: float | None, without_overlap_us: float | None) -> float | None:
    """Return the share of the communication that is hidden; None if there is none to hide."""
    if exposed_us is None or without_overlap_us is None or without_overlap_us <= 0:
        return None
    return 1.0 - exposed_us / without_overlap_us
