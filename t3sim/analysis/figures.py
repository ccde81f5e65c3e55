"""Figures of a result folder, by name.

Each is a function of the folder's results; the modules that hold them are
imported when they are used, so that a name can be checked without matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from t3sim.companions import module_of
from t3sim.errors import InputDataError, NotInstalledError, UsageError
from t3sim.registry import unknown_name

if TYPE_CHECKING:
    from t3sim.analysis.folder import Results
    from t3sim.analysis.style import Drawing

NoFigure = InputDataError | NotInstalledError  # why a figure cannot be drawn
FIGURES: dict[str, str] = {
    # name -> "module", or "module:function", of a function draw(results, columns)
    "speedup": "t3sim.analysis.bar_figures:draw_speedup",
    "dram_traffic": "t3sim.analysis.bar_figures:draw_dram_traffic",
    "runtime_split": "t3sim.analysis.bar_figures:draw_runtime_split",
    "dram_over_time": "t3sim.analysis.dram_over_time",
    "waits": "t3sim.analysis.waits",
    "timeline": "t3sim.analysis.timeline",
    "cu_sharing": "t3study.cu_sharing",
    "sweep": "t3sim.analysis.sweep",
    "layer": "t3sim.analysis.layer",
    "sensitivity": "t3sim.analysis.sensitivity",
    "closed_form": "t3sim.analysis.closed_form",
    "straggler": "t3sim.analysis.heterogeneous:draw_straggler",
    "slow_link": "t3sim.analysis.heterogeneous:draw_slow_link",
    "start_skew": "t3sim.analysis.heterogeneous:draw_start_skew",
    "staggering": "t3sim.analysis.bar_figures:draw_staggering",
}


def check_figure_names(names: Sequence[str]) -> None:
    """Raise ``UsageError`` with the nearest spelling for a name that is not that of a figure."""
    for name in names:
        if name not in FIGURES:
            raise UsageError(unknown_name("figure", name, list(FIGURES)))


def draw_figure(name: str, results: Results, columns: int | None = None) -> list[Drawing]:
    """Draw figure *name* of *results*, 1 or 2 journal *columns* wide; None: as wide as it needs.

    Raises ``UsageError`` for an unknown name, ``InputDataError`` if the results do not have what it shows,
    ``NotInstalledError`` if it is a figure of a package that is not installed.
    """
    from t3sim.analysis.style import journal_style

    check_figure_names([name])
    module, _, function = FIGURES[name].partition(":")
    draw: Callable[[Results, int | None], list[Drawing]] = getattr(
        module_of(module, f"the figure {name}"), function or "draw"
    )
    with journal_style():
        return draw(results, columns)


def draw_figures(
    results: Results, names: Sequence[str], columns: int | None = None,
    on_missing: Callable[[str, NoFigure], None] = lambda *_: None,
) -> Iterator[tuple[str, list[Drawing]]]:  # fmt: skip
    """Yield each of the figures *names* that can be drawn; *on_missing* is called for all others, with the reason."""
    check_figure_names(names)
    for name in names:
        try:
            drawings = draw_figure(name, results, columns)
        except (InputDataError, NotInstalledError) as error:
            on_missing(name, error)
        else:
            yield name, drawings


def figures_of(
    folder: str | Path, names: Sequence[str] | None = None, output: str | Path | None = None,
    columns: int | None = None, on_missing: Callable[[str], None] | None = None,
) -> dict[str, list[Path]]:  # fmt: skip
    """Draw figures of a result folder as PDF and PNG and return the files of each by its name.

    *names* left out: those that the experiment lists, or the usual ones.  They go into *output*, by default the
    folder itself.  *on_missing* is called with a message for each figure that the results lack the data for; without
    it, or if no figure can be drawn, the error is raised.  Raises ``UsageError`` for an unknown name,
    ``InputDataError`` for results that cannot be read.
    """
    from t3sim.analysis.folder import read_folder
    from t3sim.analysis.pictures import save

    results = read_folder(folder)
    wanted = list(names or results.figures)
    problems: dict[str, NoFigure] = {}

    def note(name: str, error: NoFigure) -> None:
        if on_missing is None:
            raise error
        problems[name] = error

    drawn = draw_figures(results, wanted, columns, note)
    files = {name: save(drawings, Path(output or folder) / name) for name, drawings in drawn}
    if len(problems) == 1 and not files:
        raise next(iter(problems.values()))
    for name, error in problems.items():
        assert on_missing is not None
        on_missing(f"no figure {name}: {error}")
    if problems and not files:
        raise InputDataError(f"{folder}: none of the figures can be drawn")
    return files
