"""Columns for swept keys in results, and detection of axes without effect."""

import json
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from t3sim.experiment.planning.plan import Experiment
from t3sim.results.record import SIMULATED, RunRecord

# Keys that have a fixed column in the results.
HAVE_COLUMNS = frozenset(
    {
        "strategy", "strategy.name", "strategy.communication_units", "mode", "machine", "machine.preset",
        "arbitration", "arbitration.policy", "arbitration.preset",
        "workload.model", "workload.sublayer", "workload.layer", "workload.tp", "workload.gemm.m", "workload.gemm.n",
        "workload.gemm.k", "workload.collective.gpus",
    }
)  # fmt: skip


def axis_texts(experiment: Experiment) -> list[dict[str, str]]:
    """Return for each point the values of the swept keys that have no column of their own, as the user wrote them.

    All points have the same keys.  A value is empty if the point does not have the key, or if it represents
    combinations that differ in it: then it does not depend on it.
    """
    values = [[dict(_leaves(key, value)) for value in listed] for key, listed in experiment.axes.items()]
    keys = {key: "" for axis in values for leaves in axis for key in leaves if key not in HAVE_COLUMNS}
    texts = []
    for combinations in experiment.combinations:
        found = [
            keys | {key: text for axis, i in zip(values, places, strict=True) for key, text in axis[i].items()}
            for places in combinations
        ]
        texts.append({key: found[0][key] if all(one[key] == found[0][key] for one in found) else "" for key in keys})
    return texts


def idle_axes(experiment: Experiment, records: Sequence[RunRecord | None]) -> list[str]:
    """Return the swept keys that changed nothing: points that differ only in one of them have the same results.

    *records* are those of the points, None for a point without a result.
    """
    result_of: dict[tuple[int, ...], Hashable] = {}
    for combinations, record in zip(experiment.combinations, records, strict=True):
        if record is not None:
            simulated = tuple(getattr(record, name) for name in SIMULATED)
            result_of.update(dict.fromkeys(combinations, simulated))
    return [key for i, key in enumerate(experiment.axes) if _is_idle(i, result_of)]


def _is_idle(axis: int, result_of: dict[tuple[int, ...], Hashable]) -> bool:
    """Return whether no result depends on the place on *axis*; False if no two points differ only there."""
    by_others: dict[tuple[int, ...], list[Hashable]] = {}
    for places, result in result_of.items():
        by_others.setdefault(places[:axis] + places[axis + 1 :], []).append(result)
    compared = [results for results in by_others.values() if len(results) > 1]
    return len(compared) > 0 and all(len(set(results)) == 1 for results in compared)


def _leaves(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the swept values of an axis whose value may be a mapping: dotted key and text of each."""
    if not isinstance(value, dict):
        yield key, str(value) if isinstance(value, (str, float)) else json.dumps(value, allow_nan=False)
        return
    for name, child in value.items():
        inner = key if name in ("params", "preset") else f"{key}.{name}"
        yield from _leaves(inner, child)
