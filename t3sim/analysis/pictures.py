"""Figures as files, drawn by several processes where there are many of them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import NamedTuple

from t3sim.analysis.style import Drawing, figure_bytes, journal_style

KINDS = ("svg", "pdf", "png")
PER_PROCESS = 4  # figures at least: each takes half a second, a process one to start


class Picture(NamedTuple):
    """A drawn figure: its caption, width and height in inches, and the file of each kind that it was written as."""

    caption: str
    inches: tuple[float, float]
    files: Mapping[str, bytes]


class Plot(NamedTuple):
    """A figure that nobody has drawn yet; *draw* may be called in another process."""

    name: str
    draw: Callable[[], Drawing]


def picture_of(drawing: Drawing, kinds: Iterable[str] = KINDS) -> Picture:
    """Return *drawing* as files of these *kinds*, laid out for the first of them."""
    files = {}
    for kind in kinds:
        files[kind] = figure_bytes(drawing.figure, kind)
        drawing.figure.set_layout_engine("none")  # a layout that is found again differs a little, and takes as long
    width, height = map(float, drawing.figure.get_size_inches())
    return Picture(drawing.caption, (width, height), files)


@contextmanager
def pictures_of(plots: Sequence[Plot], n_processes: int) -> Iterator[Callable[[], list[Picture]]]:
    """Draw *plots*, and give what returns their pictures when all are there.

    Up to *n_processes* draw, each as many: the others begin at once, this one when it is asked for the pictures.  It
    draws all where there are few, or where the system has no other processes.
    """
    n_processes = min(n_processes, len(plots) // PER_PROCESS)
    pool = _others(n_processes - 1)
    if pool is None:
        yield lambda: list(map(_drawn, plots))
        return
    try:
        elsewhere = {i: pool.submit(_drawn, plot) for i, plot in enumerate(plots) if i % n_processes}
        own = {i: plot for i, plot in enumerate(plots) if i not in elsewhere}

        def all_of_them() -> list[Picture]:
            here = {i: _drawn(plot) for i, plot in own.items()}
            return [here[i] if i in here else _arrived(elsewhere[i], plot) for i, plot in enumerate(plots)]

        yield all_of_them
    finally:
        pool.shutdown(cancel_futures=True)


def _others(n: int) -> ProcessPoolExecutor | None:
    """Return *n* other processes; None if that is none, or the system has no semaphores for them."""
    # The user's interrupt is for this process, which then ends the others.
    ignore = (signal.SIGINT, signal.SIG_IGN)
    try:
        return (
            ProcessPoolExecutor(n, get_context("spawn"), initializer=signal.signal, initargs=ignore) if n > 0 else None
        )
    except (OSError, NotImplementedError):
        return None


def _drawn(plot: Plot) -> Picture:
    with journal_style():
        drawing = plot.draw()
    return picture_of(drawing)


def _arrived(picture: Future[Picture], plot: Plot) -> Picture:
    """Return what another process draws; if one was killed, it is drawn here."""
    try:
        return picture.result()
    except BrokenProcessPool:
        return _drawn(plot)
