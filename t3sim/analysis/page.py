"""Common parts of HTML pages: template, style sheet, sortable and filterable tables, embedded figures.

Everything that comes from a file is text and is escaped by the templates; only this package's own style sheet and
script go in as they are. A page loads nothing from elsewhere.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from t3sim.analysis.pictures import Picture

PIXELS_PER_INCH = 140
SHARED = "t3sim.analysis"  # the package of the templates that all pages use


class Column(NamedTuple):
    """A column of a table in the page; *css* has ``more`` if it is shown on demand only."""

    name: str
    title: str
    meaning: str
    css: str


class Cell(NamedTuple):
    """A cell: what is shown, and what it is sorted by if that differs."""

    text: str
    css: str = ""
    value: str | None = None


class Table(NamedTuple):
    """A table of the page that can be sorted and filtered."""

    id: str
    columns: list[Column]
    rows: list[list[Cell]]
    is_whole: bool = False  # shown in full, not in a window of its own

    @property
    def has_more(self) -> bool:
        """Whether there are columns that are shown on demand."""
        return any("more" in column.css.split() for column in self.columns)


class ExtraTable(NamedTuple):
    """A table above the result folders, about all of them."""

    id: str
    title: str
    summary: str
    explanation: str
    table: Table


class EmbeddedFigure(NamedTuple):
    """A figure inside the page: SVG as base64, size in pixels."""

    id: str
    content: str
    width: int
    height: int
    caption: str


def embedded(picture: Picture, figure_id: str) -> EmbeddedFigure:
    """Return *picture*, which was written as SVG, as a part of a page."""
    width, height = (round(inches * PIXELS_PER_INCH) for inches in picture.inches)
    return EmbeddedFigure(figure_id, base64.b64encode(picture.files["svg"]).decode(), width, height, picture.caption)


def number_text(value: float, digits: int = 1) -> str:
    """Return a number with thin spaces between its thousands."""
    return f"{value:,.{digits}f}".replace(",", "\u202f")


def flat_manifest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a manifest says, with its volatile facts among the others."""
    volatile = manifest.get("volatile")
    stable = {name: value for name, value in manifest.items() if name != "volatile"}
    return {**stable, **(volatile if isinstance(volatile, dict) else {})}


def manifest_text(value: Any) -> str:
    """Return a value of a manifest as the page shows it."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {text}" for name, text in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def rendered(template: str, package: str = SHARED, **values: Any) -> str:
    """Return the page that *template* of *package* makes of *values*; one that is missing is an error.

    A template may use those of this package.
    """
    loader = ChoiceLoader([PackageLoader(name) for name in dict.fromkeys((package, SHARED))])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    return environment.get_template(template).render(**values)
