"""Cost of an experiment, reported before it starts: phases, CPU time, compilation, wall time.

All of it follows from the plan and from what the kernel cache has.  ``estimate`` is for a core of a certain speed; here
its seconds are turned into those of this host.
"""

import bz2
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from statistics import median

import numpy as np

from t3sim.config.experiment import RunSpec
from t3sim.experiment.running.phase_task import PhaseTask
from t3sim.experiment.running.workers import Workers
from t3sim.gpu.compiled import compiled_advance, is_compiled
from t3sim.gpu.units.state import Layout
from t3sim.system.compilation import layouts_of

COMPILE_SECONDS = 30.0  # of a layout, on the core of ``estimate``
TEXT = bytes((i * i * 7 + i // 3) % 251 for i in range(50_000))
N_WORDS = 1 << 20
SAMPLE_SECONDS = 0.0215  # of the known computation on that core, see ``host_factor``
N_SAMPLES = 5


def cost_lines(n_phases: int, n_damaged: int, missing: Sequence[PhaseTask], workers: Workers) -> Iterator[str]:
    """Yield what is to be simulated and about how long that takes.

    *missing* are those of *n_phases* distinct phases that are not finished; *n_damaged* were, in damaged files.
    """
    n_done = n_phases - len(missing)
    done = f", {n_done} of them finished already" if n_done else ""
    damaged = f", {n_damaged} damaged and simulated again" if n_damaged else ""
    yield f"phases      {n_phases} distinct ones{done}{damaged}"
    if not missing:
        return
    factor = host_factor()
    seconds = [task.seconds * factor for task in missing]
    compiling = COMPILE_SECONDS * factor * len(layouts_to_compile(task.run for task in missing))
    wall_s = workers.wall_seconds(seconds)
    there = f"on {workers}" if wall_s is None else f"{in_words(wall_s + compiling)} in all with {workers}"
    of_it = f", {in_words(compiling)} of it to compile the kernel" if compiling else ""
    yield f"cost        about {in_words(sum(seconds) + compiling)} of one core{of_it}; {there}"


def in_words(seconds: float) -> str:
    """Return a duration as a person says it, with two digits at most."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 1):.0f} s"


@cache
def host_factor() -> float:
    """Return how much slower this host is now than the core of ``estimate``, by the time of a known computation.

    Half of it is integers and branches, half is access to memory in no order, so that it slows down as the kernel does
    if other processes take a part of the caches: the kernel's time varied by a factor of 1.4, that over this by 1.1.
    """
    words = np.arange(N_WORDS)
    places = (words * 2654435761) % N_WORDS
    times = []
    for _ in range(N_SAMPLES + 1):
        started = time.process_time()
        bz2.compress(TEXT)
        words[places]
        times.append(time.process_time() - started)
    return median(times[1:]) / SAMPLE_SECONDS  # the first one also fills the caches


def layouts_to_compile(points: Iterable[RunSpec]) -> list[Layout]:
    """Return the layouts that *points* need and the kernel cache does not have."""
    return sorted(layout for layout in layouts_of(points) if not is_compiled(layout))


def prepare_kernel(layouts: Iterable[Layout], say: Callable[[str], None]) -> None:
    """Compile the kernel for *layouts*, those that the kernel cache lacks; *say* receives the name of each before."""
    for layout in layouts:
        if not is_compiled(layout):
            from t3sim.gpu.units import _compiler

            seconds, folder = in_words(COMPILE_SECONDS * host_factor()), _compiler.CACHE_DIRECTORY
            kept = "in this process only" if folder is None else f"once; kept in {folder}"
            say(f"compiling   the kernel for {described(layout)}: about {seconds}, {kept}")
            compiled_advance(layout)


def described(layout: Layout) -> str:
    """Return what distinguishes *layout*: its capacities that are larger than those of the standard one."""
    pairs = zip(layout._asdict().items(), Layout(), strict=True)
    larger = [f"{name} {capacity}" for (name, capacity), standard in pairs if capacity != standard]
    return f"the layout {', '.join(larger)}" if larger else "the standard layout"
