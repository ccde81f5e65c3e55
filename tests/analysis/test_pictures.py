"""Figures that several processes draw are those that one draws, whatever happens to the others."""

from __future__ import annotations

import multiprocessing
import os
from functools import partial

import pytest

from t3sim.analysis import pictures
from t3sim.analysis.pictures import Plot, pictures_of
from t3sim.analysis.style import Drawing, new_figure

pytestmark = pytest.mark.usefixtures("one_is_enough")


@pytest.fixture
def one_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "PER_PROCESS", 1)


def is_elsewhere() -> bool:
    return multiprocessing.parent_process() is not None


def a_line(height: float, *, dies: bool = False, fails: bool = False) -> Drawing:
    """A figure; in another process it can be the last thing that this does."""
    if dies and is_elsewhere():
        os._exit(1)
    if fails:
        raise ValueError("nothing to draw")
    figure = new_figure(1, 1.0)
    figure.subplots().plot([0.0, height])
    return Drawing(figure, f"up to {height}")


PLOTS = [Plot(f"line-{height}", partial(a_line, height)) for height in (1.0, 2.0, 3.0, 4.0)]


def drawn(plots: list[Plot], n_processes: int) -> list[pictures.Picture]:
    with pictures_of(plots, n_processes) as all_of_them:
        return all_of_them()


def where() -> Drawing:
    return Drawing(a_line(1.0).figure, "elsewhere" if is_elsewhere() else "here")


def test_what_a_process_that_was_killed_had_is_drawn_here() -> None:
    killed = [PLOTS[0], Plot("line-2", partial(a_line, 2.0, dies=True)), *PLOTS[2:]]
    assert drawn(killed, 2) == drawn(PLOTS, 1)


def no_semaphores(*_: object, **__: object) -> None:
    raise PermissionError("/dev/shm")


def test_without_other_processes_this_one_draws_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "ProcessPoolExecutor", no_semaphores)
    captions = [picture.caption for picture in drawn([Plot("where", where)] * 2, 2)]
    assert captions == ["here", "here"]
