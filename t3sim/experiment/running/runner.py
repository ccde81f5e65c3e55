"""Run the points of an experiment: its phases, records and files.

Interrupted runs resume from completed phases and produce identical output.  The table of
results grows while points finish; a manifest marks it as complete.
"""

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, overload

from t3sim.checks.audit import Audit
from t3sim.config.experiment import RunSpec
from t3sim.errors import UsageError
from t3sim.experiment.planning.axes import axis_texts, idle_axes
from t3sim.experiment.planning.plan import Experiment, Overrides, Source, load_experiment
from t3sim.experiment.planning.policy_trial import try_policies
from t3sim.experiment.running.phase_files import PHASES_NAME
from t3sim.experiment.running.phase_runner import PhaseRunner, PointResult, Progress
from t3sim.experiment.running.phase_task import ExperimentPoint, Say
from t3sim.experiment.running.point_record import record_of
from t3sim.experiment.running.result_folder import default_folder, owned
from t3sim.experiment.running.result_table import RESOLVED_NAME, TIMELINE_NAME, ResultTable, replaced_results
from t3sim.experiment.running.workers import THIS_PROCESS, Workers
from t3sim.files import publish, publishing
from t3sim.observe.perfetto import timeline_bytes
from t3sim.observe.timeline import Timeline
from t3sim.results.csv_table import table_bytes
from t3sim.results.digest import case_digest, file_digest, run_digest
from t3sim.results.gpus import GpuRow, write_gpus
from t3sim.results.manifest import write_manifest
from t3sim.results.record import RunRecord
from t3sim.results.spans import SCHEMA as SPANS_SCHEMA
from t3sim.results.spans import SPANS_CSV, SPANS_PARQUET, spans_rows
from t3sim.results.timeseries import TIMESERIES_NAME, timeseries_bytes
from t3sim.results.waits import SCHEMA as WAITS_SCHEMA
from t3sim.results.waits import WAITS_CSV, WAITS_PARQUET, PointPhase, waits_rows
from t3sim.results.writer import FAILED_NAME, PARQUET_NAME, TableFiles, frame_of, write_results
from t3sim.strategies import Phase, overlap_strategies
from t3sim.system.simulate import SimulationResult

FEW_PHASES = 4  # for each worker (assumed)
MOST_POINTS_WITH_TIMELINE = 10
MOST_RESULTS = 200  # in memory; those of more points are made from their phases when they are asked for
TABLES_OF_PHASES = WAITS_CSV, WAITS_PARQUET, SPANS_CSV, SPANS_PARQUET
NumberedPoint = tuple[int, RunRecord, SimulationResult]  # as in the experiment, from 1


@dataclass(frozen=True)
class FailedPoint:
    """A point without a result: its number, counted from 1, and the phase that could not be simulated."""

    number: int
    run: RunSpec
    phase: str
    reason: str


class PointResults(MutableMapping[int, PointResult]):
    """The results of finished points by index; in memory are the first ``MOST_RESULTS`` and the last one."""

    def __init__(self, again: Callable[[int], PointResult]) -> None:
        """*again* makes the result of a finished point once more."""
        self._again = again
        self._found: dict[int, PointResult | None] = {}  # None: not in memory
        self._last: dict[int, PointResult] = {}

    def __getitem__(self, i: int) -> PointResult:
        return self._last.get(i) or self._found[i] or self._again(i)

    def __setitem__(self, i: int, result: PointResult) -> None:
        self._last = {i: result}
        self._found[i] = result if len(self._found) < MOST_RESULTS else None

    def __delitem__(self, i: int) -> None:
        del self._found[i]

    def __iter__(self) -> Iterator[int]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class Results(Sequence[SimulationResult]):
    """The results of the points of an experiment that did not fail, in order; each is made when it is asked for."""

    def __init__(self, numbers: Sequence[int], of_point: Callable[[int], SimulationResult]) -> None:
        """*numbers* are the indices of the points, which *of_point* takes."""
        self._numbers, self._of_point = numbers, of_point

    @overload
    def __getitem__(self, place: int) -> SimulationResult: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[SimulationResult]: ...
    def __getitem__(self, place: int | slice) -> SimulationResult | Sequence[SimulationResult]:
        if isinstance(place, slice):
            return Results(self._numbers[place], self._of_point)
        return self._of_point(self._numbers[place])

    def __len__(self) -> int:
        return len(self._numbers)


@dataclass(frozen=True)
class Outcome:
    """What a finished experiment left: one record and one result for each point that did not fail, and the files."""

    records: list[RunRecord]
    results: Sequence[SimulationResult]
    files: dict[str, Path]
    failed: list[FailedPoint] = field(default_factory=list)
    idle_axes: list[str] = field(default_factory=list)  # swept keys that changed nothing

    def __repr__(self) -> str:
        points = len(self.records) + len(self.failed)
        where = f", results in {self.files['results.csv'].parent}" if "results.csv" in self.files else ""
        return f"Outcome({points} point{'' if points == 1 else 's'}, {len(self.failed)} failed{where})"

    @cached_property
    def table(self) -> Any:
        """A DataFrame of ``results.parquet``: a row for each point, README says what the columns mean."""
        return self._frame(PARQUET_NAME)

    @cached_property
    def waits(self) -> Any:
        """A DataFrame of ``waits.parquet``: what the units of each GPU waited for, phase by phase."""
        return self._frame(WAITS_PARQUET)

    @cached_property
    def spans(self) -> Any:
        """A DataFrame of ``spans.parquet``: when each operation ran, and the bytes that it moved."""
        return self._frame(SPANS_PARQUET)

    def _frame(self, name: str) -> Any:
        return frame_of(self.files[name].read_bytes())

    def phases(self) -> Iterator[PointPhase]:
        """Yield every phase of the points, those that points share for each."""
        failed = {point.number for point in self.failed}
        numbers = (number for number in count(1) if number not in failed)
        return phases_of_points(zip(numbers, self.records, self.results))  # noqa: B905 - without end


def run(
    experiment: Experiment | Source, directory: str | Path | None = None, command: Sequence[str] = (),
    progress: Progress | None = None, audit: Audit | None = None, *, overrides: Overrides = (),
    workers: Workers | int = THIS_PROCESS, phases: str | Path | None = None, timeline: bool | None = None,
) -> Outcome:  # fmt: skip
    """Simulate every point and write results and manifest into *directory*, by default ``results/NAME``.

    *experiment* and *overrides* are what ``load_experiment`` takes, or an experiment that it returned.
    Phases that are finished already are not simulated again; they are kept in the folder *phases*, by default
    ``directory/phases``.  *progress* receives the finished points and the share of the work that is done, 0 to 1;
    *audit* says which of the full checks are made; *timeline* whether to write timelines, by default if points are few.
    Points without a result (refused, out of memory, a phase that kills its worker) are in ``failed``.  Raises
    ``ModelError`` if a check fails, and ``EnvironmentFailure`` before anything is simulated if *directory* cannot be
    written or another run writes there.
    """
    if not isinstance(experiment, Experiment):
        experiment = load_experiment(experiment, overrides)
    elif overrides:
        raise UsageError("this experiment is planned already: give its overrides to load_experiment, or a path to run")
    workers = Workers.of(workers)
    with owned(directory or default_folder(experiment.name)) as folder:
        return Sweep(experiment, folder, audit, phases, timeline).run(workers, command, progress)


class Sweep(PhaseRunner):
    """A running experiment in a folder that this process owns."""

    def __init__(
        self, experiment: Experiment, folder: Path, audit: Audit | None = None, phases: str | Path | None = None,
        timeline: bool | None = None,
    ) -> None:  # fmt: skip
        """Plan the phases and take those that are finished; the arguments are those of ``run``."""
        self.experiment = experiment
        self.folder = folder
        self._started = time.perf_counter()
        names = {name for run in experiment.points for name in run.plugins}
        names |= {run.workload.trace for run in experiment.points if run.workload.trace is not None}
        self._inputs = {experiment.path.name: hashlib.sha256(experiment.content()).hexdigest()}
        self._inputs |= {Path(name).name: file_digest(name) for name in sorted(names)}
        self._point_digests = [run_digest(run, inputs=self._inputs) for run in experiment.points]
        self._axis_texts = axis_texts(experiment)
        super().__init__(
            [ExperimentPoint(run) for run in experiment.points],
            folder / PHASES_NAME if phases is None else phases,
            audit,
            has_timeline=len(experiment.points) <= MOST_POINTS_WITH_TIMELINE if timeline is None else timeline,
            refused=experiment.refused,
            results=PointResults(self.result_again),
        )

    def run(
        self, workers: Workers = THIS_PROCESS, command: Sequence[str] = (), progress: Progress | None = None,
        say: Say | None = None,
    ) -> Outcome:  # fmt: skip
        """Simulate what is missing, let the table grow meanwhile, and write what a finished run leaves behind."""
        table = ResultTable(self.folder, [case_digest(run) for run in self.experiment.points], self._point_digests)

        def publish(i: int) -> None:
            table.records[i] = self._record(i)
            table.publish_if_due(self._write_inputs)

        replaced = "" if table.is_of_same else replaced_results(self.folder, self._resolved_points())
        if replaced:
            warnings.warn(replaced, stacklevel=2)
        for i in self.results:
            table.records[i] = self._record(i)
        if self.missing:
            try_policies(self.experiment.points, has_checks=self.audit.has_checks)
            with workers.hired(say or (lambda _text: None)) as workforce:
                # Of few phases, that they end together counts for more than that the points come in their order.
                is_short = len(self.missing) <= FEW_PHASES * workers.n
                self.simulate(workforce, progress, publish, longest_first=is_short)
        return self._write(table, command)

    def _result(self, i: int) -> SimulationResult:
        """Return the result of point *i*; its host time is that of its phases, whenever they were simulated."""
        found = self.results[i]
        result: SimulationResult = found.result
        return replace(result, wall_s=sum(found.wall_s.values()))

    def _record(self, i: int) -> RunRecord:
        return replace(record_of(self._result(i)), axes=self._axis_texts[i])

    def _resolved_points(self) -> list[dict[str, Any]]:
        return [run.model_dump(mode="json") for run in self.experiment.points]

    def _write_inputs(self) -> dict[str, Path]:
        """Write the experiment as given and as resolved (base units) next to its results."""
        experiment = self.experiment
        given, resolved = self.folder / "experiment.yaml", self.folder / RESOLVED_NAME
        content = {
            "name": experiment.name,
            "description": experiment.description,
            "figures": experiment.figures,
            "overrides": experiment.overrides,
            "strategies": {run.strategy: overlap_strategies.get(run.strategy).label for run in experiment.points},
            "points": self._resolved_points(),
        }
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"
        publish({given: experiment.content(), resolved: text.encode()})
        return {"experiment": given, "resolved": resolved}

    def _write(self, table: ResultTable, command: Sequence[str]) -> Outcome:
        """Write what a finished run leaves behind, the manifest last."""
        folder = self.folder
        points = self.experiment.points
        failed = [FailedPoint(i + 1, points[i], one.phase, one.reason) for i, one in self.failed.items()]
        records = table.compared()
        done = sorted(self.results)
        results = Results(done, self._result)
        idle = idle_axes(self.experiment, table.records)
        if not table.is_of_same:
            table.remove_finished_result()
        csv, parquet = write_results(folder, records)
        files = {"results.csv": csv, "results.parquet": parquet, **write_gpus(folder, list(gpu_rows(results)))}
        files |= {name: folder / name for name in TABLES_OF_PHASES}
        outcome = Outcome(records, results, files, failed, idle)
        with publishing(*(files[name] for name in TABLES_OF_PHASES)) as streams:
            waits, spans = TableFiles(WAITS_SCHEMA, *streams[:2]), TableFiles(SPANS_SCHEMA, *streams[2:])
            for phase in outcome.phases():
                waits.add(waits_rows(phase))
                spans.add(spans_rows(phase))
            waits.close()
            spans.close()
        if failed:
            files[FAILED_NAME] = folder / FAILED_NAME
            publish({files[FAILED_NAME]: failed_bytes(failed, [self._axis_texts[i] for i in self.failed])})
        if self.audit.has_timeline:
            files |= {"timeline": folder / TIMELINE_NAME, "timeseries": folder / TIMESERIES_NAME}
            publish({files["timeline"]: timeline_bytes(timelines_of(results))})
            publish({files["timeseries"]: timeseries_bytes(outcome.phases())})
        files.update(self._write_inputs())
        files["manifest"] = write_manifest(
            folder,
            experiment=self.experiment.name,
            command=command,
            points=[self._point_digests[i] for i in done],
            records=records,
            inputs=self._inputs,
            failed=[self._point_digests[i] for i in self.failed],
            idle_axes=idle,
            wall_s=round(time.perf_counter() - self._started, 3),
        )
        return outcome


def timelines_of(results: Sequence[SimulationResult]) -> dict[str, Timeline]:
    """Return the timeline of every sublayer of the points, from its begin to its end.

    Phases on the same GPU at the same time, each on a machine of its own, have timelines of their own.  So have those
    that were simulated for reference, unless a sublayer shows them.
    """
    timelines: dict[str, Timeline] = {}

    def name_of(label: str) -> str:
        same = sum(name == label or name.startswith(f"{label} (") for name in timelines)
        return f"{label} ({same + 1})" if same else label

    sublayers = [(result.ticks, part) for result in results for part in result.sublayers]
    shown = {phase.identity for _, part in sublayers for phase in part.phases if phase.counts}
    for ticks, part in sublayers:
        workload, policy = part.run.workload, part.run.arbitration
        what = " ".join(filter(None, (workload.model, workload.sublayer))) or "workload"
        case = f"{part.run.machine.name}: {what} TP {workload.tp}"
        strategy = part.run.strategy + (f", {policy.policy}" if policy is not None else "")
        whole, ends = Timeline(), dict[int, int]()
        name = name_of(f"{case}: {strategy}")
        timelines[name] = whole
        for phase in part.phases:
            placed = phase.timeline.later(ticks.to_ps(phase.at))
            gpus = [(gpu.start, gpu.end) for gpu in phase.gpus] or [(phase.at, phase.end)]
            if not phase.counts:
                if phase.identity not in shown:
                    shown.add(phase.identity)
                    timelines[name_of(f"{case}: {phase.name}")] = placed
            elif any(start < ends.get(d, 0) for d, (start, _) in enumerate(gpus)):
                timelines[name_of(f"{case}: {strategy}: {phase.name}")] = placed
            else:
                ends |= {d: end for d, (_, end) in enumerate(gpus)}
                whole.extend(placed)
        if not whole.spans:  # bounds of all that there is
            del timelines[name]
    return timelines


def gpu_rows(results: Sequence[SimulationResult]) -> Iterator[GpuRow]:
    """Yield what each GPU of the explicit points did; *results* are those of the rows of the table."""
    for row, result in enumerate(results, start=1):
        us = result.ticks.to_us
        for run, phase in _phases_of(result):
            for number, gpu in enumerate(phase.gpus):
                what = (row, run.workload.sublayer, phase.name, number)
                yield GpuRow(*what, us(gpu.start), us(gpu.end), gpu.counters)


def phases_of_points(points: Iterable[NumberedPoint]) -> Iterator[PointPhase]:
    """Yield every phase of *points*, phases that points share for each."""
    for number, record, result in points:
        for run, phase in _phases_of(result):
            yield PointPhase(
                number, record.model, run.workload.sublayer, record.tp, record.machine, record.strategy, record.mode,
                result.ticks.to_us(1), phase,
            )  # fmt: skip


def _phases_of(result: SimulationResult) -> list[tuple[RunSpec, Phase]]:
    """Return the phases of a point, each with the sublayer that it belongs to."""
    return [(part.run, phase) for part in result.sublayers for phase in part.phases]


def failed_bytes(failed: Sequence[FailedPoint], axes: Sequence[Mapping[str, str]]) -> bytes:
    """Return ``failed.csv``: which points have no result, and why; *axes* are their swept values."""
    header = ["point", "model", "sublayer", "tp", "machine", "strategy", *axes[0], "phase", "reason"]
    rows = []
    for point, texts in zip(failed, axes, strict=True):
        run, workload = point.run, point.run.workload
        what = [str(point.number), workload.model or "", workload.sublayer or "", str(workload.tp), run.machine.name]
        rows.append([*what, run.strategy, *texts.values(), point.phase, point.reason])
    return table_bytes(header, rows)
