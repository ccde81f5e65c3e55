"""Published results of the T3 study compared with ours: the file of targets, the verdicts, the table.

The targets, with their bands and the reasons for them, are data (``validation/targets.yaml``);
``t3study.checks`` computes our value of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import pandas as pd

from t3sim.analysis.folder import Results
from t3sim.analysis.page import Cell, Column, ExtraTable, Table
from t3sim.errors import InputDataError
from t3sim.registry import unknown_name
from t3study.checks import CHECKS, Ours
from t3study.sublayers import NotRunError, Study

MET, MISSED, NOT_RUN = "met", "missed", "not run"
KINDS = ("headline", "case", "shape", "exact")


@dataclass(frozen=True)
class Target:
    """A published result and what of ours counts as meeting it (see ``validation/targets.yaml``)."""

    id: str
    section: str
    kind: str
    statement: str
    published: str
    band: tuple[float, float] | None = None
    equals: tuple[str, ...] = ()
    because: str = ""
    note: str = ""


class Comparison(NamedTuple):
    """One row of the table."""

    id: str
    statement: str
    section: str
    published: str
    ours: str
    band: str
    verdict: str
    note: str


def read_targets(content: Any, name: str) -> list[Target]:
    """Return the targets of a file's *content* (plain mappings and lists); *name* represents the file in messages.

    Raises ``InputDataError`` naming the target and what is wrong with it.
    """
    listed = content.get("targets") if isinstance(content, Mapping) else None
    if not isinstance(listed, list) or not listed:
        raise InputDataError(f"{name}: no list `targets`")
    targets: dict[str, Target] = {}
    for i, entry in enumerate(listed, start=1):
        target = _target(entry, f"{name}: target {i}")
        if target.id in targets:
            raise InputDataError(f"{name}: target `{target.id}` is listed twice")
        targets[target.id] = target
    return list(targets.values())


def _target(entry: Any, where: str) -> Target:
    if not isinstance(entry, Mapping):
        raise InputDataError(f"{where}: not a mapping")
    texts = {f.name: None if f.default else "" for f in fields(Target) if f.type == "str"}  # None: required
    for key in entry:
        if key not in (*texts, "band", "equals"):
            raise InputDataError(f"{where}: {unknown_name('key', str(key), [f.name for f in fields(Target)])}")
    where = f"{where} ({entry.get('id', 'no id')})"
    for key, default in texts.items():
        if not isinstance(entry.get(key, default), str):
            raise InputDataError(f"{where}: `{key}` must be a text")
    for what, value, known in (("kind", entry["kind"], KINDS), ("target", entry["id"], tuple(CHECKS))):
        if value not in known:
            raise InputDataError(f"{where}: {unknown_name(what, value, known)}")
    band, equals = entry.get("band"), entry.get("equals", [])
    is_pair = isinstance(band, list) and len(band) == 2 and all(type(end) in (int, float) for end in band)
    if band is not None and not (is_pair and band[0] <= band[1]):
        raise InputDataError(f"{where}: `band` must be two numbers, the lower one first")
    if not isinstance(equals, list) or not all(isinstance(text, str) for text in equals):
        raise InputDataError(f"{where}: `equals` must be a list of texts")
    if band is not None and equals:
        raise InputDataError(f"{where}: `band` or `equals`, not both")
    pair = None if band is None else (float(band[0]), float(band[1]))
    return Target(**{**entry, "band": pair, "equals": tuple(equals)})


def compare(folders: Sequence[Results], targets: Iterable[Target]) -> list[Comparison]:
    """Return one row for each target, in order; what the results do not hold is ``not run``, never left out."""
    study = Study(folders)
    return [_compare(study, target) for target in targets]


def _compare(study: Study, target: Target) -> Comparison:
    try:
        ours = CHECKS[target.id](study)
        verdict, shown = _verdict(target, ours), ours.text
    except NotRunError as missing:
        verdict, shown = NOT_RUN, str(missing)
    except KeyError as missing:  # a resolved.json of another version
        verdict, shown = NOT_RUN, f"resolved.json has no {missing}"
    note = "; ".join(text for text in (target.because, target.note) if text)
    return Comparison(
        target.id, target.statement, target.section, target.published, shown, _band_text(target), verdict, note
    )


def _verdict(target: Target, ours: Ours) -> str:
    if target.band is not None:
        low, high = target.band
        is_met = bool(ours.numbers) and all(low <= number <= high for number in ours.numbers)
    elif target.equals:
        is_met = ours.texts == target.equals
    else:
        is_met = ours.holds is True
    return MET if is_met else MISSED


def _band_text(target: Target) -> str:
    if target.band is not None:
        low, high = (f"{end:g}" for end in target.band)
        return low if low == high else f"{low} to {high}"
    return "equal" if target.equals else "holds"


def counts_of(rows: Sequence[Comparison]) -> dict[str, int]:
    """Return how many targets have each verdict."""
    return {verdict: sum(row.verdict == verdict for row in rows) for verdict in (MET, MISSED, NOT_RUN)}


def targets_csv(rows: Sequence[Comparison]) -> bytes:
    """Return the table as a CSV file."""
    return pd.DataFrame(list(rows)).to_csv(index=False, lineterminator="\n").encode()


def report_table(rows: Sequence[Comparison]) -> ExtraTable:
    """Return the table as a part of the report."""
    n = counts_of(rows)
    columns = [
        Column("verdict", "verdict", "met, missed, or not run: the results do not hold what it looks at", "verdict"),
        Column("id", "target", "its name in the file of targets", ""),
        Column("statement", "what is compared", "in our words", ""),
        Column("published", "published", "as the study prints it", ""),
        Column("ours", "ours", "what these results give", ""),
        Column("band", "band", "what counts as met", "short"),
        Column("section", "section", "of Pati et al., ASPLOS 2024", ""),
        Column("note", "why this band", "and what is unclear", "more"),
    ]
    cells = [
        [
            Cell(row.verdict, f"verdict {row.verdict.replace(' ', '-')}"),
            *(Cell(getattr(row, column.name), column.css) for column in columns[1:]),
        ]
        for row in rows
    ]
    return ExtraTable(
        id="targets",
        title="Published results of the T3 study",
        summary=f"Of {len(rows)} targets {n[MET]} are met, {n[MISSED]} are missed and {n[NOT_RUN]} were not run.",
        explanation="A target is met if all of our values that it looks at lie in its band; the file of targets says"
        " why a band is what it is.",
        table=Table("target-table", columns, cells, is_whole=True),
    )
