"""Figures as files: PDF and PNG in one layout; many figures are drawn by several processes."""

from __future__ import annotations

import io
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from t3sim.analysis.style import Drawing, journal_style
from t3sim.files import prepare_folder, publish

if TYPE_CHECKING:  # a second of imports, which only what draws needs
    from matplotlib.figure import Figure

OF_PAGE, OF_FOLDER = ("svg",), ("pdf", "png")
PNG_DPI = 200
PER_PROCESS = 4  # figures at least: each takes half a second, a process one to start


class Picture(NamedTuple):
    """A drawn figure: its caption, width and height in inches, and the file of each kind that it was written as."""

    caption: str
    inches: tuple[float, float]
    files: Mapping[str, bytes]


class Plot(NamedTuple):
    """A figure that is not drawn yet; *draw* may be called in another process."""

    name: str
    draw: Callable[[], Drawing]


def figure_bytes(figure: Figure, kind: str) -> bytes:
    """The figure as ``pdf``, ``png`` or ``svg``: the same results give the same bytes."""
    changing: dict[str, Any] = {"pdf": ["CreationDate"], "png": ["Software"], "svg": ["Date", "Creator"]}
    buffer = io.BytesIO()
    with journal_style():
        figure.savefig(buffer, format=kind, dpi=PNG_DPI, metadata=dict.fromkeys(changing[kind]))
    return buffer.getvalue()


def picture_of(drawing: Drawing, kinds: Iterable[str] = (*OF_PAGE, *OF_FOLDER)) -> Picture:
    """Return *drawing* as files of these *kinds*, laid out for the first of them."""
    files = {}
    for kind in kinds:
        files[kind] = figure_bytes(drawing.figure, kind)
        drawing.figure.set_layout_engine("none")  # a layout that is found again differs a little, and takes as long
    width, height = map(float, drawing.figure.get_size_inches())
    return Picture(drawing.caption, (width, height), files)


def save(drawings: Iterable[Drawing], stem: Path) -> list[Path]:
    """Publish each drawing as ``stem.pdf`` and ``stem.png`` with its tables as CSV; return the files."""
    prepare_folder(stem.parent)
    contents: dict[Path, bytes] = {}
    for drawing in drawings:
        for kind, content in picture_of(drawing, OF_FOLDER).files.items():
            contents[stem.with_name(f"{stem.name}{drawing.suffix}.{kind}")] = content
        for name, table in drawing.tables.items():
            contents[stem.with_name(f"{name}.csv")] = table.to_csv(index=False, lineterminator="\n").encode()
    publish(contents)
    return list(contents)


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
    if n < 1:
        return None
    # The user's interrupt is for this process, which then ends the others.
    ignore = (signal.SIGINT, signal.SIG_IGN)
    try:
        return ProcessPoolExecutor(n, get_context("spawn"), initializer=signal.signal, initargs=ignore)
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
