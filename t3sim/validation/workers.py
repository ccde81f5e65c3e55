"""Simulations of a validation, on this process or on worker processes; what fails is an outcome, not the end.

Finished outcomes are kept in a folder, so that a run that was interrupted goes on where it ended.  Pinned by
``tests/validation/test_workers.py``.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import t3sim
from t3sim.errors import InputDataError, T3SimError
from t3sim.files import prepare_folder, publish, read_limited
from t3sim.results.digest import file_digest, sha256_of
from t3sim.validation import simulation as validate_simulation
from t3sim.validation.simulation import Outcome, Simulation, needs, perform, simulation_digest

MAX_OUTCOME_BYTES = 16 << 20
PRELOADED = validate_simulation.__name__
BESIDES = ("cli", "experiment", "analysis", "hardware", "selfcheck")  # no outcome depends on these

Known = Mapping[Simulation, Outcome]
Perform = Callable[[Simulation, Known], Outcome]
Done = Callable[[Simulation, Outcome], None]


def simulate_all(
    stages: Sequence[Sequence[Simulation]],
    n_workers: int,
    kept: OutcomeFolder,
    done: Done,
    perform: Perform = perform,
) -> dict[Simulation, Outcome]:
    """Return the outcome of every simulation of *stages*, each stage after those before it.

    *n_workers* 1: in this process.  *done* is told each outcome as it comes, those that are *kept* first.
    """
    outcomes: dict[Simulation, Outcome] = {}
    for stage in stages:
        missing: list[Simulation] = []
        for simulation in stage:
            outcome = kept.load(simulation) or _without_needs(simulation, outcomes)
            if outcome is None:
                missing.append(simulation)
            else:
                outcomes[simulation] = outcome
                done(simulation, outcome)
        missing.sort(key=lambda simulation: -simulation.work)  # the longest first: workers end together
        run = _in_this_process if n_workers == 1 else _on_workers
        for simulation, outcome in run(missing, n_workers, outcomes, perform):
            outcomes[simulation] = outcome
            kept.put(simulation, outcome)
            done(simulation, outcome)
    return outcomes


def _without_needs(simulation: Simulation, outcomes: Known) -> Outcome | None:
    """Return a failure if something that *simulation* needs has failed."""
    failures = [outcomes[part].failed for part in needs(simulation) if outcomes[part].failed]
    return Outcome(failed=f"a part of it failed: {failures[0]}") if failures else None


def attempted(perform: Perform, simulation: Simulation, known: Known) -> Outcome:
    """Return the outcome of *simulation*, a failure if the simulator refuses it or breaks one of its rules."""
    try:
        return perform(simulation, {part: known[part] for part in needs(simulation)})
    except MemoryError:
        return Outcome(failed="out of memory")
    except (T3SimError, ValueError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        return Outcome(failed=lines[0])


_Outcomes = Iterator[tuple[Simulation, Outcome]]


def _in_this_process(missing: Sequence[Simulation], _: int, known: Known, perform: Perform) -> _Outcomes:
    for simulation in missing:
        yield simulation, attempted(perform, simulation, known)


def _on_workers(missing: Sequence[Simulation], n_workers: int, known: Known, perform: Perform) -> _Outcomes:
    """Yield outcomes as they come; a simulation whose worker dies is tried once more, alone."""
    lost: list[Simulation] = []
    for simulation, outcome in _in_pool(missing, n_workers, known, perform):
        if outcome is None:
            lost.append(simulation)
        else:
            yield simulation, outcome
    for simulation in lost:
        for _, outcome in _in_pool([simulation], 1, known, perform):
            yield simulation, outcome or Outcome(failed="killed its worker process twice")


def _in_pool(
    missing: Sequence[Simulation], n_workers: int, known: Known, perform: Perform
) -> Iterator[tuple[Simulation, Outcome | None]]:
    """Yield outcomes, None for those that were not finished when a worker died."""
    if not missing:
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(min(n_workers, len(missing)), mp_context=context, initializer=_be_a_worker)
    flying: dict[Future[Outcome], Simulation] = {}
    try:
        for simulation in missing:
            parts = {part: known[part] for part in needs(simulation)}
            flying[pool.submit(attempted, perform, simulation, parts)] = simulation
        while flying:
            ended, _ = wait(flying, return_when=FIRST_COMPLETED)
            for future in ended:
                simulation = flying.pop(future)
                try:
                    yield simulation, future.result()
                except BrokenProcessPool:
                    yield simulation, None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        if flying:  # interrupted: nobody waits for what they do
            for process in set(multiprocessing.active_children()) - before:
                process.kill()


def _be_a_worker() -> None:
    """Leave Ctrl-C to the driver, and end when it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_driver, daemon=True).start()


def _die_with_driver() -> None:
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)


class OutcomeFolder:
    """Outcomes of this program as files, by the digest of what was simulated; None: nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._program = simulator_digest() if folder is not None else ""
        if folder is not None:
            prepare_folder(folder)

    def load(self, simulation: Simulation) -> Outcome | None:
        """Return a kept outcome, None if there is none or the file is damaged."""
        if self.folder is None:
            return None
        path = self._path(simulation)
        with suppress(InputDataError, ValueError, KeyError, TypeError):
            if path.exists():
                found = json.loads(read_limited(path, MAX_OUTCOME_BYTES, shown_as=str(path)))
                tiles = tuple((unit, start, computed, end) for unit, start, computed, end in found["tiles"])
                return Outcome(found["times"], wall_s=found["wall_s"], tiles=tiles)
        return None

    def put(self, simulation: Simulation, outcome: Outcome) -> None:
        """Keep an outcome that did not fail."""
        if self.folder is not None and not outcome.failed:
            publish({self._path(simulation): json.dumps(asdict(outcome), allow_nan=False).encode()})

    def _path(self, simulation: Simulation) -> Path:
        assert self.folder is not None
        return self.folder / f"{sha256_of([self._program, simulation_digest(simulation)])}.json"


def simulator_digest() -> str:
    """Return the digest of the sources that decide an outcome: of the layers below this one, and of the simulation."""
    root = Path(t3sim.__file__).parent
    paths = [path for path in root.rglob("*.py") if path.relative_to(root).parts[0] not in BESIDES]
    paths.append(Path(validate_simulation.__file__))
    found = {path.relative_to(root).as_posix(): file_digest(path) for path in paths}
    return sha256_of([t3sim.__version__, found])


__all__ = ["OutcomeFolder", "attempted", "simulate_all"]
