"""Least squares over numbers on grids: steps of Gauss-Newton, with effects kept up to date by Broyden's rule.

Every evaluation is a simulation, so each is used twice: for the error at the place tried, and to correct what one place
of a number was believed to change (Broyden 1965, "A class of methods for solving nonlinear simultaneous equations").

Pinned by ``tests/validation/test_calibrate_published.py``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from t3lab.validation.calibrate import VISIBLY_WORSE, Parameter

DAMPING = 1e-3  # of a step, relative to the effect of a number on all rows: one that has none stays where it is


def rms(errors: Iterable[float]) -> float:
    """Return the root mean square of *errors*."""
    return math.sqrt(statistics.fmean(error * error for error in errors))


def nearest(parameter: Parameter, value: float) -> int:
    """Return the place of the grid of *parameter* nearest to *value*."""
    return min(range(len(parameter.grid)), key=lambda i: abs(parameter.grid[i] - value))


@dataclass
class Search:
    """The search for the numbers of one regime: places on their grids, errors of the points there."""

    parameters: Sequence[Parameter]
    places: list[int]
    errors: dict[str, float]  # by point
    effects: list[dict[str, float]] = field(default_factory=list)  # of one place of each number, by point
    is_over: bool = False

    def value(self, i: int, place: int) -> int | float:
        """Return the value at *place* of the grid of number *i*."""
        return self.parameters[i].grid[place]

    def probe(self, i: int) -> int:
        """Return the place to which number *i* is moved to see its effect: a tenth of the grid, within it."""
        n, place = len(self.parameters[i].grid), self.places[i]
        size = max(n // 10, 1)
        return place + size if place + size < n else place - size

    def note_effect(self, i: int, place: int, errors: Mapping[str, float]) -> None:
        """Note the *errors* with number *i* alone moved to *place*; empty if there is no such machine."""
        by = place - self.places[i]
        self.effects.append({name: (errors[name] - e) / by for name, e in self.errors.items() if name in errors})

    def wanted(self) -> list[int]:
        """Return the places that least squares ask for, within the grids."""
        names = list(self.errors)
        matrix = np.array([[effect.get(name, 0.0) for effect in self.effects] for name in names])
        scale = np.sqrt((matrix**2).sum(axis=0)) + 1e-12
        damped = np.vstack([matrix, np.diag(DAMPING * scale)])
        target = np.concatenate([-np.array([self.errors[name] for name in names]), np.zeros(len(scale))])
        moved, free = np.zeros(len(scale)), list(range(len(scale)))
        while free:  # a number that would leave its grid stays at its end, and the others are solved for again
            rest = target - damped @ np.where(np.isin(np.arange(len(scale)), free), 0.0, moved)
            moved[free] = np.linalg.lstsq(damped[:, free], rest, rcond=None)[0]
            ends = [(-self.places[i], len(self.parameters[i].grid) - 1 - self.places[i]) for i in range(len(scale))]
            beyond = [i for i in free if not ends[i][0] <= moved[i] <= ends[i][1]]
            for i in beyond:
                moved[i] = min(max(moved[i], ends[i][0]), ends[i][1])
                free.remove(i)
            if not beyond:
                break
        return [self.places[i] + round(float(moved[i])) for i in range(len(scale))]

    def take(self, places: Sequence[int], errors: Mapping[str, float]) -> bool:
        """Correct the effects by the *errors* found at *places*, go there if they are smaller, return whether so.

        The search is over once a step improves less than what is visible.
        """
        now = {name: e for name, e in errors.items() if name in self.errors}
        if len(now) < len(self.errors):  # a point could not be simulated there
            self.is_over = True
            return False
        step = [to - at for to, at in zip(places, self.places, strict=True)]
        length = sum(one * one for one in step)
        for name, before in self.errors.items():
            believed = sum(effect.get(name, 0.0) * one for effect, one in zip(self.effects, step, strict=True))
            missed = (now[name] - before - believed) / length
            for effect, one in zip(self.effects, step, strict=True):
                effect[name] = effect.get(name, 0.0) + missed * one
        gained = rms(self.errors.values()) - rms(now.values())
        self.is_over = 0 <= gained < VISIBLY_WORSE
        if gained > 0:
            self.places, self.errors = list(places), now
        return gained > 0

    def as_good(self, i: int) -> tuple[int | float, int | float]:
        """Return the range of a number that, by its effects, fits as well as the value found."""
        error, found = rms(self.errors.values()), [self.places[i]]
        for direction in (1, -1):
            place = self.places[i] + direction
            while 0 <= place < len(self.parameters[i].grid):
                by = place - self.places[i]
                moved = (e + by * self.effects[i].get(name, 0.0) for name, e in self.errors.items())
                if rms(moved) > error + VISIBLY_WORSE:
                    break
                found.append(place)
                place += direction
        return self.value(i, min(found)), self.value(i, max(found))
