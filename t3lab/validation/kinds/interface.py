"""Interface of a kind of measurement: conversion of its rows to points."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from t3lab.measurements.samples import Measurement
from t3lab.validation.bench import Bench
from t3lab.validation.point import Point


@dataclass(frozen=True)
class ComparedKind:
    """A kind of ``measurements.kinds.KINDS`` and the points of one of its rows.

    *groups*: the kinds of its points where tables and verdicts distinguish them; empty: the kind itself.
    """

    name: str
    points: Callable[[Measurement, Bench], Iterable[Point]]
    groups: tuple[str, ...] = ()
