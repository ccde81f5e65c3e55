"""Run the points of an experiment: phases once each, records, files.

Nothing is written before every point has been simulated, so an interrupted run leaves what was there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from t3sim.files import publish
from t3sim.observe.perfetto import write_timeline
from t3sim.observe.timeline import Timeline
from t3sim.results.derive import derive
from t3sim.results.digest import file_digest, machine_digest, run_digest
from t3sim.results.manifest import make_manifest, write_manifest
from t3sim.results.record import RunRecord
from t3sim.results.writer import prepare_output, write_results
from t3sim.system.phases import PhaseJob, PhasePlan, PhaseStore
from t3sim.system.simulate import SimulationResult, evaluate, simulate
from t3sim.workload.trace_file import read_trace

if TYPE_CHECKING:
    from t3sim.checks.audit import Audit
    from t3sim.config.experiment import RunSpec
    from t3sim.experiment.plan import Experiment
    from t3sim.overlap import Phase
    from t3sim.workload.tiling import TileTrace

TIMELINE_NAME = "trace.json.gz"
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Outcome:
    """What a finished experiment left: one record per point, and the files."""

    records: list[RunRecord]
    results: list[SimulationResult]
    files: dict[str, Path]


def run(
    experiment: Experiment,
    directory: str | Path,
    command: Sequence[str] = (),
    progress: Progress | None = None,
    audit: Audit | None = None,
) -> Outcome:
    """Simulate every point and write results, manifest and timeline into *directory*.

    *progress* is told what is being simulated and the share of the whole that is done, 0 to 1; *audit* says which
    of the full checks are made.  Raises ``ModelError`` and writes nothing if a check fails.
    Raises ``EnvironmentFailure`` before anything is simulated if *directory* cannot be written.
    """
    started = time.perf_counter()
    traces = read_traces(experiment.points)
    jobs = plan_phases(experiment.points, traces)
    folder = prepare_output(directory)
    store = PhaseStore(_weighted(jobs, progress))
    results = [simulate(run, traces.get(run.workload.trace or ""), store, audit) for run in experiment.points]
    records = derive(
        [record_of(result) for result in results], [machine_digest(run.machine) for run in experiment.points]
    )
    csv, parquet = write_results(folder, records)
    inputs = _digests_of_inputs(experiment)
    manifest = make_manifest(
        experiment=experiment.name,
        command=command,
        point_digests=[run_digest(run, inputs=inputs) for run in experiment.points],
        records=records,
        inputs=inputs,
        wall_s=round(time.perf_counter() - started, 3),
    )
    timeline = write_timeline(folder / TIMELINE_NAME, timelines_of(results))
    files = {"results.csv": csv, "results.parquet": parquet, "timeline": timeline}
    files.update(write_inputs(folder, experiment))
    return Outcome(records, results, {**files, "manifest": write_manifest(folder, manifest)})


def write_inputs(folder: Path, experiment: Experiment) -> dict[str, Path]:
    """Write the experiment as given and as resolved (base units) beside its results."""
    given, resolved = folder / "experiment.yaml", folder / "resolved.json"
    points = [run.model_dump(mode="json") for run in experiment.points]
    about = {"name": experiment.name, "description": experiment.description, "figures": list(experiment.figures)}
    content = {**about, "overrides": list(experiment.overrides), "points": points}
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    publish({given: experiment.path.read_bytes(), resolved: text.encode()})
    return {"experiment": given, "resolved": resolved}


def read_traces(points: Sequence[RunSpec]) -> dict[str, TileTrace]:
    """Read and verify every tile trace that the points replay, each once."""
    return {run.workload.trace: read_trace(run.workload.trace) for run in points if run.workload.trace is not None}


def plan_phases(points: Sequence[RunSpec], traces: Mapping[str, TileTrace]) -> dict[tuple[object, ...], PhaseJob]:
    """Return the distinct phases the points need, without simulating any."""
    plan = PhasePlan()
    for run in points:
        evaluate(run, traces.get(run.workload.trace or ""), plan)
    return plan.jobs


def _weighted(
    jobs: Mapping[tuple[object, ...], PhaseJob], progress: Progress | None
) -> Callable[[PhaseJob, float], None] | None:
    """Return a reporter that turns the share of one phase into the share of all, weighted by size."""
    if progress is None:
        return None
    total = sum(job.n_line_accesses for job in jobs.values()) or 1
    before: dict[tuple[object, ...], int] = {}
    running = 0
    for key, job in jobs.items():
        before[key] = running
        running += job.n_line_accesses

    def report(job: PhaseJob, share: float) -> None:
        progress(job.name, (before.get(job.key, running) + share * job.n_line_accesses) / total)

    return report


def _digests_of_inputs(experiment: Experiment) -> dict[str, str]:
    """Return the digest of every file the experiment read besides its presets."""
    names = {str(experiment.path)}
    for run in experiment.points:
        names.update(run.plugins)
        if run.workload.trace is not None:
            names.add(run.workload.trace)
    return {Path(name).name: file_digest(name) for name in sorted(names)}


def timelines_of(results: Sequence[SimulationResult]) -> dict[str, Timeline]:
    """Return the timeline of every phase that was simulated, each once, under a name that says what it was."""
    timelines: dict[str, Timeline] = {}
    for result in results:
        for part in result.sublayers:
            workload = part.run.workload
            what = " ".join(str(name) for name in (workload.model, workload.sublayer) if name) or "workload"
            for phase in part.phases:
                label = f"{result.run.machine.name}: {what} TP {workload.tp}: {phase.name}"
                timelines.setdefault(label, phase.timeline)
    return timelines


def record_of(result: SimulationResult) -> RunRecord:
    """Return the result row of one point (comparisons with other points are left to ``derive``)."""
    run, us = result.run, result.ticks.to_us
    workload, gemm, layer = run.workload, run.workload.gemm, run.workload.layer
    n_collective = run.collective_compute_units
    fused = result.fused
    producer = fused or result.gemm
    phases = _phases_in_force(result)

    def total(counter: str, *parts: Phase | None) -> int:
        return sum(int(part.counters[counter]) for part in parts if part is not None)

    def time_of(phase: Phase | None) -> float | None:
        return None if phase is None else us(phase.ticks)

    scatter = fused if fused is not None else result.reduce_scatter
    counters = producer.counters if producer is not None else {}
    accesses = counters.get("l2_accesses", 0)
    return RunRecord(
        model=workload.model,
        sublayer=workload.sublayer,
        layer=layer.kind if layer else None,
        tp=workload.collective.gpus if workload.collective is not None else workload.tp,
        m=gemm.m if gemm else layer.model.tokens if layer else None,
        n=gemm.n if gemm else layer.model.hidden if layer else None,
        k=gemm.k if gemm else None,
        machine=run.machine.name,
        strategy=run.strategy,
        arbitration=run.arbitration.policy if run.arbitration is not None and fused is not None else None,
        mca_threshold=_threshold_text(fused),
        mode=run.mode,
        gemm_compute_units=run.machine.gpu.n_compute_units - n_collective if n_collective is not None else None,
        collective_compute_units=n_collective,
        time_us=us(result.total),
        gemm_us=time_of(result.gemm),
        rs_us=time_of(result.reduce_scatter),
        ag_us=time_of(result.all_gather),
        fused_us=time_of(fused),
        others_us=us(result.others) if result.others is not None else None,
        dram_gemm_read_bytes=total("operand_read_bytes", producer) if producer else None,
        dram_gemm_write_bytes=total("output_write_bytes", producer) if producer else None,
        dram_rs_read_bytes=total("comm_read_bytes", scatter),
        dram_rs_write_bytes=total("comm_write_bytes", scatter),
        dram_ag_read_bytes=total("comm_read_bytes", result.all_gather),
        dram_ag_write_bytes=total("comm_write_bytes", result.all_gather),
        link_bytes=total("link_bytes", *phases),
        l2_hit_rate=counters["l2_hits"] / accesses if accesses else None,
        tracker_peak_entries=total("tracker_peak_entries", fused),
        tracker_stalls=total("tracker_stalls", fused),
        dma_commands=total("dma_commands", fused),
        mem_requests=total("mem_requests", *phases),
        workgroup_spread=result.gemm.counters["workgroup_spread"] if result.gemm else None,
        workgroup_spread_fused=fused.counters["workgroup_spread"] if fused else None,
        wall_s=result.wall_s,
    )


def _phases_in_force(result: SimulationResult) -> list[Phase]:
    """Return the phases that make up the point: the fused run instead of the GEMM and reduce-scatter alone."""
    alone = [result.gemm, result.reduce_scatter]
    parts = [result.fused] if result.fused is not None else alone
    return [phase for phase in (*parts, result.all_gather) if phase is not None]


def _threshold_text(fused: Phase | None) -> str | None:
    """Return the MCA threshold in force as text: a number, or ``none`` for no limit; None without MCA."""
    if fused is None or "mca_threshold" not in fused.counters or not fused.name.endswith("mca"):
        return None
    threshold = fused.counters["mca_threshold"]
    return "none" if threshold is None else str(threshold)
