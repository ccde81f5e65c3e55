"""Published results of the T3 study beside ours: for each target what it looks at, and whether ours is in its band.

The targets themselves, with their bands and the reasons for them, are data
(``validation/targets.yaml``).  Here is only how our value is computed.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import geometric_mean
from typing import Any

import pandas as pd

from t3sim.analysis.closed_form import collectives_of, formula_us, geomean_error, memory_bandwidth
from t3sim.analysis.folder import Results
from t3sim.analysis.study import CASES, DEGREES, MACHINE, NotRunError, Study, chunk_bytes, with_degree
from t3sim.errors import InputDataError
from t3sim.registry import unknown_name
from t3sim.units import format_bandwidth, format_bytes, format_frequency, format_time

MET, MISSED, NOT_RUN = "met", "missed", "not run"
KINDS = ("headline", "case", "shape", "exact")
EQUAL_SPEEDUPS = 0.005  # half of the last digit that the study prints
TRACKER_ENTRY_BITS = 76  # 256 sets x 8 wavefronts x 76 bit are the 19 KB of T3 section 4.2.1
BURST_BINS = 5  # a gap of one bin in a burst does not make it two
READ_PAUSE = 0.9  # of the rate between bursts: less than that is a pause, and not the noise of the bins
MANY_SLOWER = 0.87  # 1 / 1.15: more than 15 % slower


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


@dataclass(frozen=True)
class Ours:
    """What we have: numbers for a band, texts to be equal, or whether a shape holds; and how to show it."""

    numbers: tuple[float, ...] = ()
    texts: tuple[str, ...] = ()
    holds: bool | None = None
    shown: str = ""


@dataclass(frozen=True)
class Comparison:
    """One row of the table."""

    id: str
    statement: str
    section: str
    published: str
    ours: str
    band: str
    verdict: str
    note: str


Check = Callable[[Study], Ours]
CHECKS: dict[str, Check] = {}


def check(name: str) -> Callable[[Check], Check]:
    """Register what computes our value of target *name*."""

    def add(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return add


def read_targets(content: Any, name: str) -> list[Target]:
    """Return the targets of a file's *content* (plain mappings and lists); *name* stands for the file in messages.

    Raises ``InputDataError`` naming the target and what is wrong with it.
    """
    listed = content.get("targets") if isinstance(content, Mapping) else None
    if not isinstance(listed, list) or not listed:
        raise InputDataError(f"{name}: no list `targets`")
    targets = [_target(entry, f"{name}: target {i}") for i, entry in enumerate(listed, start=1)]
    ids = [target.id for target in targets]
    for target_id in ids:
        if ids.count(target_id) > 1:
            raise InputDataError(f"{name}: target `{target_id}` is listed twice")
    return targets


def _target(entry: Any, where: str) -> Target:
    if not isinstance(entry, Mapping):
        raise InputDataError(f"{where}: not a mapping")
    names = tuple(f.name for f in fields(Target))
    for key in entry:
        if key not in names:
            raise InputDataError(f"{where}: {unknown_name('key', str(key), names)}")
    where = f"{where} ({entry.get('id', 'no id')})"
    for key in names:
        if key in ("band", "equals"):
            continue
        if not isinstance(entry.get(key, "" if key in ("because", "note") else None), str):
            raise InputDataError(f"{where}: `{key}` must be a text")
    if entry["kind"] not in KINDS:
        raise InputDataError(f"{where}: {unknown_name('kind', entry['kind'], KINDS)}")
    if entry["id"] not in CHECKS:
        raise InputDataError(f"{where}: {unknown_name('target', entry['id'], list(CHECKS))}")
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
        verdict, shown = _verdict(target, ours), _shown(ours)
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


def _shown(ours: Ours) -> str:
    if ours.shown:
        return ours.shown
    if ours.texts:
        return ", ".join(ours.texts)
    if ours.numbers:
        distinct = sorted({f"{number:.4g}" for number in ours.numbers}, key=float)
        return distinct[0] if len(distinct) == 1 else f"{distinct[0]} to {distinct[-1]}"
    return "holds" if ours.holds else "does not hold"


def _band_text(target: Target) -> str:
    if target.band is not None:
        low, high = (f"{end:g}" for end in target.band)
        return low if low == high else f"{low} to {high}"
    return "equal" if target.equals else "holds"


def targets_csv(rows: Sequence[Comparison]) -> bytes:
    """Return the table as a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [f.name for f in fields(Comparison)]
    writer.writerow(names)
    writer.writerows([getattr(row, name) for name in names] for row in rows)
    return text.getvalue().encode()


# ideal overlap and near-memory compute


@check("t3.ideal.geomean")
def _ideal_geomean(study: Study) -> Ours:
    return Ours((geometric_mean(study.speedups("ideal-overlap").values()),))


@check("t3.ideal.max")
def _ideal_max(study: Study) -> Ours:
    return _largest(study.speedups("ideal-overlap"))


@check("t3.ideal.tnlg_fc1_tp16")
def _ideal_of_balanced_case(study: Study) -> Ours:
    return Ours(tuple(study.speedups("ideal-overlap", [("T-NLG", 16, "FC-1")]).values()))


@check("t3.ideal.mega_op_tp16")
def _ideal_of_smallest_case(study: Study) -> Ours:
    return Ours(tuple(study.speedups("ideal-overlap", [("Mega-GPT-2", 16, "OP")]).values()))


@check("t3.ideal.balance")
def _balance(study: Study) -> Ours:
    speedups = study.speedups("ideal-overlap")
    rows = {case: study.cases[case]["sequential"] for case in CASES}
    if any(not row["gemm_us"] or not row["rs_us"] for row in rows.values()):
        raise NotRunError("no isolated times of GEMM and reduce-scatter")
    balance = {case: -abs(math.log(row["gemm_us"] / row["rs_us"])) for case, row in rows.items()}
    ranks = pd.DataFrame({"speedup": speedups, "balance": balance}).rank()
    return Ours((float(ranks["speedup"].corr(ranks["balance"])),))


@check("t3.nmc.rs_tp8")
def _near_memory_8(study: Study) -> Ours:
    return Ours(tuple(study.ratios("sequential", "ideal-rs-nmc", "rs_us", with_degree(8)).values()))


@check("t3.nmc.rs_tp16")
def _near_memory_16(study: Study) -> Ours:
    return Ours(tuple(study.ratios("sequential", "ideal-rs-nmc", "rs_us", with_degree(16)).values()))


@check("t3.nmc.final_step_only")
def _final_step_only(study: Study) -> Ours:
    machine = study.point["machine"]
    rows = [row for row, _ in study.pairs("ideal-rs-nmc", "sequential").values()]
    if any(not row["rs_us"] for row in rows):
        raise NotRunError("no isolated near-memory reduce-scatter")
    sizes = [int(chunk_bytes(row) * row["tp"]) for row in rows]
    return Ours(
        tuple(
            row["rs_us"] / formula_us("near-memory reduce-scatter", size, row["tp"], machine)
            for row, size in zip(rows, sizes, strict=True)
        )
    )


@check("t3.nmc.extra_max")
def _near_memory_extra(study: Study) -> Ours:
    return _largest(study.ratios("ideal-overlap", "ideal-rs-nmc"))


@check("t3.nmc.extra_only_rs_bound")
def _no_extra_where_gemm_is_longer(study: Study) -> Ours:
    extra = study.ratios("ideal-overlap", "ideal-rs-nmc")
    rows = {case: study.cases[case]["ideal-overlap"] for case in CASES}
    longer = [case for case, row in rows.items() if (row["gemm_us"] or 0) >= (row["rs_us"] or 0)]
    if not longer:
        raise NotRunError("no sublayer with a GEMM longer than its reduce-scatter")
    n = sum(extra[case] == 1 for case in longer)
    return Ours(holds=n == len(longer), shown=f"no gain in {n} of {len(longer)} such sublayers")


# T3 and MCA


@check("t3.t3.geomean")
def _t3_geomean(study: Study) -> Ours:
    return Ours((geometric_mean(study.speedups("t3").values()),))


@check("t3.t3.max")
def _t3_max(study: Study) -> Ours:
    return _largest(study.speedups("t3"))


@check("t3.t3.op_near_ideal")
def _t3_near_ideal_on_op(study: Study) -> Ours:
    cases = [case for case in CASES if case[2] == "OP"]
    over_ideal = study.ratios("ideal-overlap", "t3", wanted=cases)
    over_limit = study.ratios("ideal-rs-nmc", "t3", wanted=cases)
    n_above = sum(ratio > 1 for ratio in over_ideal.values())
    is_near = min(over_ideal.values()) >= 0.97 and max(over_limit.values()) <= 1.01
    shown = f"{_range(over_ideal.values())} of ideal overlap, above it in {n_above} of 4"
    return Ours(holds=is_near and n_above > 0, shown=shown)


@check("t3.t3.fc_gap")
def _t3_far_from_ideal(study: Study) -> Ours:
    ratios = study.ratios("ideal-overlap", "t3")
    n = sum(ratio <= MANY_SLOWER for ratio in ratios.values())
    return Ours((n,), shown=f"{n} of 16; T3 is {_range(ratios.values())} of ideal overlap")


@check("t3.mca.geomean")
def _mca_geomean(study: Study) -> Ours:
    return Ours((geometric_mean(study.speedups("t3-mca").values()),))


@check("t3.mca.max")
def _mca_max(study: Study) -> Ours:
    return _largest(study.speedups("t3-mca"))


@check("t3.mca_over_t3.max")
def _mca_over_t3_max(study: Study) -> Ours:
    return _largest(study.ratios("t3", "t3-mca"))


@check("t3.mca_over_t3.geomean")
def _mca_over_t3(study: Study) -> Ours:
    return Ours((geometric_mean(study.ratios("t3", "t3-mca").values()),))


@check("t3.mca.vs_ideal")
def _mca_below_ideal(study: Study) -> Ours:
    return Ours(
        (geometric_mean(study.speedups("ideal-overlap").values()) - geometric_mean(study.speedups("t3-mca").values()),)
    )  # fmt: skip


@check("t3.mca.far_case")
def _mca_far_case(study: Study) -> Ours:
    far = ("T-NLG", 16, "FC-1")
    speedup = study.speedups("t3-mca", [far])[far]
    gaps = study.ratios("ideal-overlap", "t3-mca")
    rank = sorted(gaps.values()).index(gaps[far]) + 1
    return Ours((speedup,), shown=f"{speedup:.4g}; {gaps[far]:.3f} of ideal overlap, number {rank} of 16 from below")


@check("t3.mca.thresholds")
def _thresholds(study: Study) -> Ours:
    chosen = {
        row["mca_threshold"]
        for strategies in study.cases.values()
        for row in strategies.values()
        if row["mca_threshold"]
    }
    if not chosen:
        raise NotRunError("no point of t3-mca")
    return Ours(holds=chosen <= {"5", "10", "30", "none"}, shown=", ".join(sorted(chosen)))


@check("t3.order")
def _order(study: Study) -> Ours:
    t3, mca, ideal, limit = (study.speedups(name) for name in ("t3", "t3-mca", "ideal-overlap", "ideal-rs-nmc"))
    wrong = [
        case
        for case in CASES
        if t3[case] <= 1
        or t3[case] > mca[case] + EQUAL_SPEEDUPS
        or mca[case] > limit[case] + EQUAL_SPEEDUPS
        or ideal[case] > limit[case] + EQUAL_SPEEDUPS
    ]
    named = ", ".join(f"{model} {sublayer} TP {tp}" for model, tp, sublayer in wrong)
    n = len(CASES) - len(wrong)
    return Ours((n,), shown=f"{n} of 16{'; not ' + named if wrong else ''}")


@check("t3.fig17")
def _traffic_over_time(study: Study) -> Ours:
    series = study.time_series("T-NLG", "FC-2", 8)
    phases = {str(name): frame for name, frame in series.groupby("phase")}
    fused = next((frame for name, frame in phases.items() if name.startswith("fused") and "mca" not in name), None)
    if "gemm" not in phases or fused is None:
        raise NotRunError("no time series of both the GEMM alone and a fused run")
    alone = phases["gemm"]
    writes = alone["compute_write_gbps"]
    is_burst = writes.rolling(BURST_BINS, center=True, min_periods=1).mean() > 2 * writes.mean()
    share = float(writes[is_burst].sum() / writes.sum()) if writes.sum() else 0.0
    n_bursts = int((is_burst & ~is_burst.shift(fill_value=False)).sum())
    read_dip = float(alone.loc[is_burst, "compute_read_gbps"].mean() / alone.loc[~is_burst, "compute_read_gbps"].mean())
    has_traffic = bool(fused["comm_read_gbps"].sum() > 0 and fused["comm_write_gbps"].sum() > 0)
    shown = f"{n_bursts} bursts with {share:.0%} of the writes, reads in them {read_dip:.2f} of those between"
    holds = share >= 0.5 and n_bursts >= 2 and read_dip < READ_PAUSE and has_traffic
    waiting = "waiting_compute_units"
    if waiting in series and series[waiting].notna().all():
        before, after = float(alone[waiting].mean()), float(fused[waiting].mean())
        shown += f"; {before:.1f} compute units wait alone, {after:.1f} fused"
        holds = holds and after > before
    return Ours(holds=holds, shown=shown)


# traffic and counts


@check("t3.data.ag_constant")
def _gather_traffic(study: Study) -> Ours:
    reads = study.ratios("t3", "sequential", "dram_ag_read_bytes")
    writes = study.ratios("t3", "sequential", "dram_ag_write_bytes")
    return Ours((*reads.values(), *writes.values()))


@check("t3.data.rs_reads_tp8")
def _scatter_reads_8(study: Study) -> Ours:
    return Ours(tuple(_scatter_reads(study, 8).values()))


@check("t3.data.rs_reads_tp16")
def _scatter_reads_16(study: Study) -> Ours:
    return Ours(tuple(_scatter_reads(study, 16).values()))


@check("t3.data.rs_reads_geomean")
def _scatter_reads_all(study: Study) -> Ours:
    return Ours((geometric_mean([ratio for tp in DEGREES for ratio in _scatter_reads(study, tp).values()]),))


def _scatter_reads(study: Study, tp: int) -> dict[Any, float]:
    return study.ratios("sequential", "t3", "dram_rs_read_bytes", with_degree(tp))


@check("t3.data.writes_tp8")
def _writes_8(study: Study) -> Ours:
    return Ours(tuple(ratio - 1 for ratio in _writes(study, 8)))


@check("t3.data.writes_tp16")
def _writes_16(study: Study) -> Ours:
    return Ours(tuple(ratio - 1 for ratio in _writes(study, 16)))


@check("t3.data.writes_geomean")
def _writes_all(study: Study) -> Ours:
    return Ours((geometric_mean([ratio for tp in DEGREES for ratio in _writes(study, tp)]) - 1,))


def _writes(study: Study, tp: int) -> list[float]:
    """The ratios of GEMM writes and of reduce-scatter writes."""
    columns = ("dram_gemm_write_bytes", "dram_rs_write_bytes")
    return [r for name in columns for r in study.ratios("sequential", "t3", name, with_degree(tp)).values()]


@check("t3.rs.step_traffic")
def _step_traffic(study: Study) -> Ours:
    # Sequential: one read in the first step, two in each of N-2, two in the local end; all N writes but the last come
    # in. T3: N-2 chunks are read and sent, N-1 come in (T3 sections 4.1 and 4.3).
    found: list[list[float]] = [[], [], [], []]
    for sequential, t3 in study.pairs("sequential", "t3").values():
        chunk, n = chunk_bytes(sequential), sequential["tp"]
        counts = [
            (row[column] or 0) / chunk
            for row in (sequential, t3)
            for column in ("dram_rs_read_bytes", "dram_rs_write_bytes")
        ]
        per_step = [(counts[0] - 3) / (n - 2), (counts[1] - 1) / (n - 1), counts[2] / (n - 2), counts[3] / (n - 1)]
        for values, value in zip(found, per_step, strict=True):
            values.append(value)
    return Ours(texts=tuple(_same_text(values) for values in found))


@check("t3.rs.steps")
def _ring_steps(study: Study) -> Ours:
    return Ours(texts=tuple(_chunks_text(study, tp, "sequential", "link_bytes", 2) for tp in DEGREES))


@check("t3.fused.dma_steps")
def _dma_steps(study: Study) -> Ours:
    return Ours(texts=tuple(_chunks_text(study, tp, "t3", "dram_rs_read_bytes", 1) for tp in DEGREES))


def _chunks_text(study: Study, tp: int, strategy: str, column: str, n_collectives: int) -> str:
    """Chunks counted in *column*, for each of the collectives it sums (the all-gather takes as many steps)."""
    rows = [row for row, _ in study.pairs(strategy, strategy, with_degree(tp)).values()]
    return f"{_same_text([(row[column] or 0) / chunk_bytes(row) / n_collectives for row in rows])} of {tp}"


def _same_text(values: Sequence[float]) -> str:
    """Two digits of values that should be one; all of them if they are not."""
    return " and ".join(dict.fromkeys(f"{value:.2f}" for value in values))


@check("t3.track.threshold")
def _tracker_threshold(_study: Study) -> Ours:
    raise NotRunError("not in result files")


@check("t3.fig14.error")
def _ring_error(study: Study) -> Ours:
    found = [
        collective
        for results in study.folders
        for collective in collectives_of(results)
        if (collective.op, collective.machine, collective.n_gpus) == ("reduce-scatter", MACHINE, 4)
        and 6e6 <= collective.size_bytes <= 202e6
    ]
    if len({collective.size_bytes for collective in found}) < 3:
        raise NotRunError("no reduce-scatters of three sizes from 6 to 192 MB on 4 GPUs")
    return Ours((geomean_error(found),), shown=f"{geomean_error(found):.4f} over {len(found)} sizes")


# configuration


@check("t3.track.entries")
def _tracker_sets(study: Study) -> Ours:
    return Ours(texts=(str(study.point["machine"]["gpu"]["tracker"]["n_sets"]),))


@check("t3.track.size")
def _tracker_size(study: Study) -> Ours:
    tracker = study.point["machine"]["gpu"]["tracker"]
    n_bytes = tracker["n_sets"] * tracker["entries_per_set"] * TRACKER_ENTRY_BITS // 8
    return Ours(texts=(format_bytes(n_bytes),))


@check("t3.track.wfs")
def _wavefronts(study: Study) -> Ours:
    tiling = study.point["workload"]["tiling"]
    (rows, columns), (wf_rows, wf_columns) = tiling["workgroup_tile"], tiling["wavefront_tile"]
    return Ours((rows * columns / (wf_rows * wf_columns),))


@check("t3.nmc.ccdwl")
def _update_delay(study: Study) -> Ours:
    timing = study.point["machine"]["memory"]["timing"]
    return Ours((timing["nCCDWL"] / timing["nCCDL"],))


@check("t3.table1.cus")
def _compute_units(study: Study) -> Ours:
    gpu = study.point["machine"]["gpu"]
    return Ours(texts=(str(gpu["n_compute_units"]), format_frequency(gpu["compute_clock"])))


@check("t3.table1.cu")
def _compute_unit(study: Study) -> Ours:
    unit = study.point["machine"]["gpu"]["compute_unit"]
    return Ours(texts=(str(unit["max_threads"]), format_bytes(unit["lds"]), format_bytes(unit["registers"])))


@check("t3.table1.l2")
def _l2(study: Study) -> Ours:
    gpu = study.point["machine"]["gpu"]
    l2 = gpu["l2"]
    return Ours(texts=(format_bytes(l2["capacity"]), str(l2["n_banks"]), format_frequency(gpu["compute_clock"])))


@check("t3.table1.hbm")
def _memory(study: Study) -> Ours:
    machine = study.point["machine"]
    memory = machine["memory"]
    delay = memory["timing"]["nCCDWL"] * 32 / memory["access"]
    bandwidth = f"{memory_bandwidth(machine) / 1e12:.1f} TB/s"
    return Ours(texts=(bandwidth, format_frequency(memory["clock"]), f"{delay:g}", str(memory["n_bank_groups"])))


@check("t3.table1.link")
def _link(study: Study) -> Ours:
    link = study.point["machine"]["link"]
    return Ours(texts=(format_bandwidth(link["bandwidth"]), format_time(link["latency"])))


@check("t3.table1.gpus")
def _gpus(study: Study) -> Ours:
    degrees = sorted({tp for _, tp, _ in study.cases})
    if not degrees:
        raise NotRunError("no sublayer of the study")
    return Ours(texts=tuple(map(str, degrees)))


def _check_model(model: str) -> None:
    """Register the row of table 2 about *model*: hidden size, tokens and tensor-parallel degrees that were run."""

    @check(f"t3.table2.{model.lower()}")
    def _(study: Study) -> Ours:
        rows = [row for row in study.of_model(model) if row["m"] is not None]
        if not rows:
            raise NotRunError(f"no point of {model}")
        values = [sorted({row[name] for row in rows}) for name in ("n", "m", "tp")]
        return Ours(texts=tuple(str(value) for column in values for value in column))


for _model in ("Mega-GPT-2", "T-NLG", "GPT-3", "PALM", "MT-NLG"):
    _check_model(_model)


def _largest(values: Mapping[tuple[str, int, str], float]) -> Ours:
    model, tp, sublayer = max(values, key=lambda case: values[case])
    largest = values[model, tp, sublayer]
    return Ours((largest,), shown=f"{largest:.4g} ({model} {sublayer}, TP {tp})")


def _range(values: Iterable[float]) -> str:
    found = list(values)
    return f"{min(found):.3f} to {max(found):.3f}"
