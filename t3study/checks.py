"""Our value of each published result of the T3 study: ``CHECKS`` maps the name of a target to how it is computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import getitem
from statistics import geometric_mean
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from t3sim.analysis.closed_form import collectives_of, formula_us, geomean_error, memory_bandwidth
from t3sim.analysis.table import Row
from t3sim.units import format_bandwidth, format_bytes, format_frequency, format_time
from t3study.sublayers import (
    CASES,
    DEGREES,
    LARGE_LAYERS,
    LAYERS,
    MACHINE,
    MODELS,
    Case,
    Layer,
    NotRunError,
    Study,
    chunk_bytes,
    with_degree,
)

EQUAL_SPEEDUPS = 0.005  # half of the last digit that the study prints
TRACKER_ENTRY_BITS = 76  # 256 sets x 8 wavefronts x 76 bit are the 19 KB of T3 section 4.2.1
BURST_BINS = 5  # a gap of one bin in a burst does not make it two
READ_PAUSE = 0.9  # of the rate between bursts: less than that is an idle interval, and not the noise of the bins
MANY_SLOWER = 0.87  # 1 / 1.15: more than 15 % slower


class Ours(NamedTuple):
    """What we have: numbers for a band, texts to be equal, or whether a shape holds; and how to show it."""

    numbers: tuple[float, ...] = ()
    texts: tuple[str, ...] = ()
    holds: bool | None = None
    shown: str = ""

    @property
    def text(self) -> str:
        """What stands in the table: *shown*, else the texts, the range of the numbers, or whether the shape holds."""
        if self.shown or self.texts:
            return self.shown or ", ".join(self.texts)
        if self.numbers:
            distinct = sorted({f"{number:.4g}" for number in self.numbers}, key=float)
            return distinct[0] if len(distinct) == 1 else f"{distinct[0]} to {distinct[-1]}"
        return "holds" if self.holds else "does not hold"


K = TypeVar("K")
Check = Callable[[Study], Ours]
Ratios = Callable[[Study], Mapping[tuple[Case, str], float]]  # by sublayer and column


# shapes that several targets share


def ratios(one: str, other: str, *columns: str, wanted: Iterable[Case] = CASES) -> Ratios:
    """Columns (times if none is named) of strategy *one* over those of *other*."""
    return lambda study: {
        (case, column): ratio
        for column in columns or ("time_us",)
        for case, ratio in study.ratios(one, other, column, wanted).items()
    }


def speedups(strategy: str, *wanted: Case) -> Ratios:
    """Speedups over sequential, of all sublayers if none is named."""
    return ratios("sequential", strategy, wanted=wanted or CASES)


def each(values: Ratios, *, minus: float = 0.0) -> Check:
    """All values must lie in the band."""
    return lambda study: Ours(tuple(value - minus for value in values(study).values()))


def mean(values: Ratios, *, minus: float = 0.0) -> Check:
    """The geometric mean."""
    return lambda study: Ours((geometric_mean(values(study).values()) - minus,))


def largest(values: Ratios) -> Check:
    """The largest value, shown with its sublayer."""
    return lambda study: _largest_of(values(study), lambda of: _named(of[0], ", "))


def layers(strategy: str, kind: str, wanted: Sequence[Layer] = LAYERS, *, of_all: bool = True) -> Check:
    """Speedups of whole layers over sequential: the geometric mean of all, or the largest, shown with its layer."""

    def check(study: Study) -> Ours:
        found = {}
        for layer, rows in study.layers(kind, wanted).items():
            if strategy not in rows:
                raise NotRunError(f"no {strategy} of {' TP '.join(map(str, layer))}")
            found[layer] = rows["sequential"]["time_us"] / rows[strategy]["time_us"]
        return Ours((geometric_mean(found.values()),)) if of_all else _largest_of(found, _named_layer)

    return check


def communication(kind: str) -> Check:
    """The largest share of a sequential layer in which reduce-scatters and all-gathers run, shown with its layer."""

    def check(study: Study) -> Ours:
        rows = {layer: strategies["sequential"] for layer, strategies in study.layers(kind, LAYERS).items()}
        return _largest_of({layer: _all_reduce(row) / row["time_us"] for layer, row in rows.items()}, _named_layer)

    return check


def split(n_units: int, ratio: Callable[[Row, Row], float]) -> Check:
    """The geometric mean of what *ratio* makes of the row with the all-reduce on *n_units*, and the sequential row."""
    return lambda study: Ours((geometric_mean(ratio(*rows) for rows in study.splits(n_units).values()),))


def values_of(part: str, **forms: Callable[[Any], str]) -> Check:
    """Values of a part of the resolved machine as texts: dotted path, then how each of its keys is written."""
    return lambda study: Ours(
        texts=tuple(form(reduce(getitem, f"{part}.{key}".split("."), study.point)) for key, form in forms.items())
    )


def quotient(part: str, over: str, below: str) -> Check:
    """A value of a part of the resolved point over another one; of sizes their products."""

    def check(study: Study) -> Ours:
        values = reduce(getitem, part.split("."), study.point)
        return Ours((float(np.prod(values[over]) / np.prod(values[below])),))

    return check


def chunks(strategy: str, column: str, n_collectives: int) -> Check:
    """Chunks counted in *column*, for each of the collectives it sums (the all-gather takes as many steps)."""

    def check(study: Study) -> Ours:
        found = []
        for tp in DEGREES:
            rows = [row for row, _ in study.pairs(strategy, strategy, with_degree(tp)).values()]
            counts = [(row[column] or 0) / chunk_bytes(row) / n_collectives for row in rows]
            found.append(f"{_same_text(counts)} of {tp}")
        return Ours(texts=tuple(found))

    return check


def shape_of(model: str) -> Check:
    """The row of table 2 about *model*: hidden size, tokens and tensor-parallel degrees that were run."""

    def check(study: Study) -> Ours:
        rows = [row for row in study.of_model(model) if row["m"] is not None]
        if not rows:
            raise NotRunError(f"no point of {model}")
        return Ours(texts=tuple(str(v) for name in ("n", "m", "tp") for v in sorted({row[name] for row in rows})))

    return check


# targets of a shape of their own


def _balance(study: Study) -> Ours:
    gains = study.speedups("published-overlap")
    rows = {case: study.cases[case]["sequential"] for case in CASES}
    if any(not row["gemm_us"] or not row["rs_us"] for row in rows.values()):
        raise NotRunError("no isolated times of GEMM and reduce-scatter")
    balance = {case: -abs(math.log(row["gemm_us"] / row["rs_us"])) for case, row in rows.items()}
    ranks = pd.DataFrame({"speedup": gains, "balance": balance}).rank()
    return Ours((float(ranks["speedup"].corr(ranks["balance"])),))


def _final_step_only(study: Study) -> Ours:
    machine = study.point["machine"]
    rows = [row for row, _ in study.pairs("published-rs-nmc", "sequential").values()]
    if any(not row["rs_us"] for row in rows):
        raise NotRunError("no isolated near-memory reduce-scatter")

    def expected_us(row: Mapping[str, Any]) -> float:
        return formula_us("near-memory reduce-scatter", int(chunk_bytes(row) * row["tp"]), row["tp"], machine)

    return Ours(tuple(row["rs_us"] / expected_us(row) for row in rows))


def _no_extra_where_gemm_is_longer(study: Study) -> Ours:
    extra = study.ratios("published-overlap", "published-rs-nmc")
    rows = {case: study.cases[case]["published-overlap"] for case in CASES}
    longer = [case for case, row in rows.items() if (row["gemm_us"] or 0) >= (row["rs_us"] or 0)]
    if not longer:
        raise NotRunError("no sublayer with a GEMM longer than its reduce-scatter")
    n = sum(extra[case] == 1 for case in longer)
    return Ours(holds=n == len(longer), shown=f"no gain in {n} of {len(longer)} such sublayers")


def _t3_near_ideal_on_op(study: Study) -> Ours:
    cases = [case for case in CASES if case[2] == "OP"]
    over_ideal = study.ratios("published-overlap", "t3", wanted=cases)
    over_limit = study.ratios("published-rs-nmc", "t3", wanted=cases)
    n_above = sum(ratio > 1 for ratio in over_ideal.values())
    is_near = min(over_ideal.values()) >= 0.97 and max(over_limit.values()) <= 1.01
    shown = f"{_range(over_ideal.values())} of ideal overlap, above it in {n_above} of 4"
    return Ours(holds=is_near and n_above > 0, shown=shown)


def _t3_far_from_ideal(study: Study) -> Ours:
    found = study.ratios("published-overlap", "t3").values()
    n = sum(ratio <= MANY_SLOWER for ratio in found)
    return Ours((n,), shown=f"{n} of 16; T3 is {_range(found)} of ideal overlap")


def _mca_below_ideal(study: Study) -> Ours:
    ideal, mca = (geometric_mean(study.speedups(name).values()) for name in ("published-overlap", "t3-mca"))
    return Ours((ideal - mca,))


def _mca_far_case(study: Study) -> Ours:
    far = ("T-NLG", 16, "FC-1")
    speedup = study.speedups("t3-mca", [far])[far]
    gaps = study.ratios("published-overlap", "t3-mca")
    rank = sorted(gaps.values()).index(gaps[far]) + 1
    return Ours((speedup,), shown=f"{speedup:.4g}; {gaps[far]:.3f} of ideal overlap, number {rank} of 16 from below")


def _thresholds(study: Study) -> Ours:
    rows = [row for strategies in study.cases.values() for row in strategies.values()]
    chosen = {row["mca_threshold"] for row in rows if row["mca_threshold"]}
    if not chosen:
        raise NotRunError("no point of t3-mca")
    return Ours(holds=chosen <= {"5", "10", "30", "none"}, shown=", ".join(sorted(chosen)))


def _order(study: Study) -> Ours:
    t3, mca, ideal, limit = (study.speedups(name) for name in ("t3", "t3-mca", "published-overlap", "published-rs-nmc"))
    wrong = [
        case
        for case in CASES
        if t3[case] <= 1
        or any(one[case] > other[case] + EQUAL_SPEEDUPS for one, other in ((t3, mca), (mca, limit), (ideal, limit)))
    ]
    named = ", ".join(_named(case, " ") for case in wrong)
    n = len(CASES) - len(wrong)
    return Ours((n,), shown=f"{n} of 16{'; not ' + named if wrong else ''}")


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


def _step_traffic(study: Study) -> Ours:
    # Sequential: one read in the first step, two in each of N-2, two in the local end; all N writes but the last come
    # in. T3: N-2 chunks are read and sent, N-1 come in (T3 sections 4.1 and 4.3).
    found = []
    for sequential, t3 in study.pairs("sequential", "t3").values():
        chunk, n = chunk_bytes(sequential), sequential["tp"]
        reads, writes = ([(row[f"dram_rs_{way}_bytes"] or 0) / chunk for row in (sequential, t3)] for way in _WAYS)
        found.append(((reads[0] - 3) / (n - 2), (writes[0] - 1) / (n - 1), reads[1] / (n - 2), writes[1] / (n - 1)))
    return Ours(texts=tuple(map(_same_text, zip(*found, strict=True))))


def _tracker_threshold(_study: Study) -> Ours:
    raise NotRunError("not in result files")


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


def _tracker_size(study: Study) -> Ours:
    tracker = study.point["machine"]["gpu"]["tracker"]
    return Ours(texts=(format_bytes(tracker["n_sets"] * tracker["entries_per_set"] * TRACKER_ENTRY_BITS // 8),))


def _memory(study: Study) -> Ours:
    machine = study.point["machine"]
    memory = machine["memory"]
    delay = memory["timing"]["nCCDWL"] * 32 / memory["access"]
    bandwidth = f"{memory_bandwidth(machine) / 1e12:.1f} TB/s"
    return Ours(texts=(bandwidth, format_frequency(memory["clock"]), f"{delay:g}", str(memory["n_bank_groups"])))


def _gpus(study: Study) -> Ours:
    if not study.cases:
        raise NotRunError("no sublayer of the study")
    return Ours(texts=tuple(map(str, sorted({tp for _, tp, _ in study.cases}))))


def _all_reduce(row: Row) -> float:
    return float(row["rs_us"] + row["ag_us"])


def _slower_all_reduce(row: Row, whole: Row) -> float:
    return _all_reduce(row) / _all_reduce(whole)


def _potential(row: Row, whole: Row) -> float:
    """The speedup if GEMM and all-reduce ran at the same time as fast as in *row*."""
    return float((whole["gemm_us"] + _all_reduce(whole)) / max(row["gemm_us"], _all_reduce(row)))


def _largest_of(values: Mapping[K, float], named: Callable[[K], str]) -> Ours:
    """The largest value, shown with what it is of."""
    of, value = max(values.items(), key=lambda item: item[1])
    return Ours((value,), shown=f"{value:.4g} ({named(of)})")


def _same_text(values: Sequence[float]) -> str:
    """Two digits of values that should be one; all of them if they are not."""
    return " and ".join(dict.fromkeys(f"{value:.2f}" for value in values))


def _range(values: Iterable[float]) -> str:
    return f"{min(values):.3f} to {max(values):.3f}"


def _named_layer(layer: Layer) -> str:
    return "{}, TP {}".format(*layer)


def _named(case: Case, separator: str) -> str:
    model, tp, sublayer = case
    return f"{model} {sublayer}{separator}TP {tp}"


_WAYS = ("read", "write")
_WRITES = ("dram_gemm_write_bytes", "dram_rs_write_bytes")
_TP_8, _TP_16 = map(with_degree, DEGREES)

CHECKS: Mapping[str, Check] = {
    # ideal overlap and near-memory compute
    "t3.ideal.geomean": mean(speedups("published-overlap")),
    "t3.ideal.max": largest(speedups("published-overlap")),
    "t3.ideal.tnlg_fc1_tp16": each(speedups("published-overlap", ("T-NLG", 16, "FC-1"))),
    "t3.ideal.mega_op_tp16": each(speedups("published-overlap", ("Mega-GPT-2", 16, "OP"))),
    "t3.ideal.balance": _balance,
    "t3.nmc.rs_tp8": each(ratios("sequential", "published-rs-nmc", "rs_us", wanted=_TP_8)),
    "t3.nmc.rs_tp16": each(ratios("sequential", "published-rs-nmc", "rs_us", wanted=_TP_16)),
    "t3.nmc.final_step_only": _final_step_only,
    "t3.nmc.extra_max": largest(ratios("published-overlap", "published-rs-nmc")),
    "t3.nmc.extra_only_rs_bound": _no_extra_where_gemm_is_longer,
    # T3 and MCA
    "t3.t3.geomean": mean(speedups("t3")),
    "t3.t3.max": largest(speedups("t3")),
    "t3.t3.op_near_ideal": _t3_near_ideal_on_op,
    "t3.t3.fc_gap": _t3_far_from_ideal,
    "t3.mca.geomean": mean(speedups("t3-mca")),
    "t3.mca.max": largest(speedups("t3-mca")),
    "t3.mca_over_t3.max": largest(ratios("t3", "t3-mca")),
    "t3.mca_over_t3.geomean": mean(ratios("t3", "t3-mca")),
    "t3.mca.vs_ideal": _mca_below_ideal,
    "t3.mca.far_case": _mca_far_case,
    "t3.mca.thresholds": _thresholds,
    "t3.order": _order,
    "t3.fig17": _traffic_over_time,
    # traffic and counts
    "t3.data.ag_constant": each(ratios("t3", "sequential", "dram_ag_read_bytes", "dram_ag_write_bytes")),
    "t3.data.rs_reads_tp8": each(ratios("sequential", "t3", "dram_rs_read_bytes", wanted=_TP_8)),
    "t3.data.rs_reads_tp16": each(ratios("sequential", "t3", "dram_rs_read_bytes", wanted=_TP_16)),
    "t3.data.rs_reads_geomean": mean(ratios("sequential", "t3", "dram_rs_read_bytes")),
    "t3.data.writes_tp8": each(ratios("sequential", "t3", *_WRITES, wanted=_TP_8), minus=1.0),
    "t3.data.writes_tp16": each(ratios("sequential", "t3", *_WRITES, wanted=_TP_16), minus=1.0),
    "t3.data.writes_geomean": mean(ratios("sequential", "t3", *_WRITES), minus=1.0),
    "t3.rs.step_traffic": _step_traffic,
    "t3.rs.steps": chunks("sequential", "link_bytes", 2),
    "t3.fused.dma_steps": chunks("t3", "dram_rs_read_bytes", 1),
    "t3.track.threshold": _tracker_threshold,
    "t3.fig14.error": _ring_error,
    # compute units reserved for the all-reduce
    "t3.cu.ideal": split(8, lambda _row, whole: _potential(whole, whole)),
    "t3.cu.all_reduce_8": split(8, _slower_all_reduce),
    "t3.cu.potential_8": split(8, _potential),
    "t3.cu.all_reduce_16": split(16, _slower_all_reduce),
    "t3.cu.gemm_64": split(16, lambda row, whole: float(row["gemm_us"] / whole["gemm_us"])),
    "t3.cu.potential_16": split(16, _potential),
    # whole layers
    "t3.layer.communication_training": communication("training"),
    "t3.layer.communication_prompt": communication("prompt"),
    "t3.layer.t3_training": layers("t3", "training"),
    "t3.layer.t3_training_max": layers("t3", "training", of_all=False),
    "t3.layer.t3_prompt": layers("t3", "prompt"),
    "t3.layer.t3_prompt_max": layers("t3", "prompt", of_all=False),
    "t3.layer.mca_training": layers("t3-mca", "training"),
    "t3.layer.mca_training_max": layers("t3-mca", "training", of_all=False),
    "t3.layer.mca_prompt": layers("t3-mca", "prompt"),
    "t3.layer.mca_prompt_max": layers("t3-mca", "prompt", of_all=False),
    "t3.layer.mca_training_large": layers("t3-mca", "training", LARGE_LAYERS, of_all=False),
    "t3.layer.mca_prompt_large": layers("t3-mca", "prompt", LARGE_LAYERS, of_all=False),
    # configuration
    "t3.track.entries": values_of("machine.gpu.tracker", n_sets=str),
    "t3.track.size": _tracker_size,
    "t3.track.wfs": quotient("workload.tiling", "workgroup_tile", "wavefront_tile"),
    "t3.nmc.ccdwl": quotient("machine.memory.timing", "nCCDWL", "nCCDL"),
    "t3.table1.cus": values_of("machine.gpu", n_compute_units=str, compute_clock=format_frequency),
    "t3.table1.cu": values_of("machine.gpu.compute_unit", max_threads=str, lds=format_bytes, registers=format_bytes),
    "t3.table1.l2": values_of(
        "machine.gpu", **{"l2.capacity": format_bytes}, **{"l2.n_banks": str}, compute_clock=format_frequency
    ),
    "t3.table1.hbm": _memory,
    "t3.table1.link": values_of("machine.link", bandwidth=format_bandwidth, latency=format_time),
    "t3.table1.gpus": _gpus,
    **{f"t3.table2.{model.lower()}": shape_of(model) for model in (*MODELS, "GPT-3", "PALM", "MT-NLG")},
}
