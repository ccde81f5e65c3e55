"""What a calibration leaves behind: a machine file with the origin of each number, and a table of the fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from t3sim.config.machine import MachineSpec
from t3sim.config.trees import shown_value
from t3sim.measurements.samples import csv_text
from t3sim.validation.calibrate import Fitted

TABLE_COLUMNS = (
    "parameter", "start", "value", "low", "high", "error_before", "error", "source", "n_points", "points",
)  # fmt: skip


def text_of(path: str, value: float) -> str:
    """Return *value* of the machine's number at *path* as a machine file states it."""
    return shown_value(MachineSpec, tuple(path.split(".")), value)


def machine_file(description: str, presets: dict[str, str], fitted: Sequence[Fitted], measured_on: str) -> bytes:
    """Return a machine file: *presets* (``gpu``, ``memory``, ``link``) with the numbers *fitted* in their places.

    *measured_on* names the device of the measurements.
    """
    lines = ["description: >", f"  {description}"]
    for section, preset in presets.items():
        own = [one for one in fitted if one.path.startswith(f"{section}.")]
        if not own:
            lines.append(f"{section}: {preset}")
            continue
        lines += [f"{section}:", f"  preset: {preset}"]
        lines += _section([(one.path.split(".")[1:], one) for one in own], measured_on, "  ")
    return ("\n".join(lines) + "\n").encode()


def _section(numbers: Sequence[tuple[list[str], Fitted]], measured_on: str, indent: str) -> Iterator[str]:
    """Yield the lines of a section from *numbers*, each with its place in it: those of its own, then the sections."""
    sections: dict[str, list[tuple[list[str], Fitted]]] = {}
    for (name, *below), one in sorted(numbers, key=lambda number: number[0]):
        if below:
            sections.setdefault(name, []).append((below, one))
            continue
        origin = "measured" if one.error is None else "fitted"
        source = f"{measured_on}: {source_of(one)}"
        yield f'{indent}{name}: {{value: {text_of(one.path, one.value)}, origin: {origin}, source: "{source}"}}'
    for name, found in sections.items():
        yield f"{indent}{name}:"
        yield from _section(found, measured_on, f"{indent}  ")


def source_of(one: Fitted) -> str:
    """Return where a number comes from, in words: a reading, or a fit with its error and the range as good."""
    if one.error is None or one.low is None or one.high is None:
        return f"{one.source}, {len(one.points)} points"
    low, high = text_of(one.path, one.low), text_of(one.path, one.high)
    return f"{one.source}, error {100 * one.error:.1f} %; {low} to {high} fit as well"


def calibration_table(fitted: Sequence[Fitted]) -> bytes:
    """Return a CSV table of *fitted*; errors are relative, points are file:line joined by ``;``."""
    rows = []
    for one in fitted:
        values = (one.start, one.value, one.low, one.high)
        numbers = ["" if value is None else text_of(one.path, value) for value in values]
        errors = ["" if error is None else f"{error:.4f}" for error in (one.error_before, one.error)]
        rows.append([one.path, *numbers, *errors, one.source, len(one.points), ";".join(one.points)])
    return csv_text(TABLE_COLUMNS, rows).encode()
