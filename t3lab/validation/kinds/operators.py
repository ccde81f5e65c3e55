"""``operators``: a GEMM and its collective, one after the other or as a strategy overlaps them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from t3lab.measurements.samples import Measurement
from t3lab.validation.bench import Bench, host_of, one, output_bytes
from t3lab.validation.kinds.interface import ComparedKind
from t3lab.validation.operating_points import Loops
from t3lab.validation.point import Comparison, NotSimulatedError, Point, Term
from t3lab.validation.simulations.concurrent import Overlapped
from t3lab.validation.timelines import shape_of
from t3sim.collective.schedule import Op
from t3sim.config.experiment import OperatorKind
from t3sim.config.machine import MachineSpec
from t3sim.config.presets import load_kernels
from t3sim.strategies import not_an_operator_of, overlap_strategies
from t3sim.workload.kernel_choice import fitting_kernels
from t3sim.workload.tiling import moved_bytes


def points(row: Measurement, bench: Bench) -> Iterable[Point]:
    """Return the point of *row*."""
    name, regime = str(row.values.get("strategy", "")), bench.regime(row, Loops())
    is_known = name in overlap_strategies
    is_plain = not name or (
        is_known and overlap_strategies.get(name).kind == "baseline" and not row.values.get("parameters")
    )

    def make() -> Comparison:
        return _parts(row, bench, regime.machine) if is_plain else _by_strategy(row, bench, name, regime.machine)

    host_us = bench.measurements.host_us(row)
    return [bench.point(row, "time_us", make, host_us=host_us, operating_point=regime.shown)]


def _parts(row: Measurement, bench: Bench, machine: MachineSpec) -> Comparison:
    """Compare with the GEMM, and the collective of its output after it or the all-gather of its A before it."""
    is_gather = row["op"] == "ag-gemm"
    op: Op = "all-gather" if is_gather else "reduce-scatter" if row["op"] == "gemm-rs" else "all-reduce"
    size = moved_bytes(shape_of(row), "ag-gemm") if is_gather else output_bytes(row)
    terms = [Term(bench.gemm(row, machine)), Term(bench.ring(op, size, int(row["tp"])))]
    return Comparison.of(*(reversed(terms) if is_gather else terms), remark="its parts back to back")


def _by_strategy(row: Measurement, bench: Bench, name: str, machine: MachineSpec) -> Comparison:
    """Compare with the operator as the strategy *name* runs it."""
    params = given_parameters(str(row.values.get("parameters", "")))
    shape, operator = shape_of(row), next(kind for kind in get_args(OperatorKind) if kind == row["op"])
    strategy, tiling = overlap_strategies.get(name), row.values.get("tiling")
    strategy.encode(dict(params))
    kernels = bench.kernels if tiling is None else fitting_kernels(load_kernels(str(tiling)), machine)
    if operator not in strategy.operators:
        raise NotSimulatedError(not_an_operator_of(strategy, operator))
    simulated = Overlapped(machine, kernels, shape, int(row["tp"]), operator, strategy.name, params)
    return one(Term(simulated), host_of(name, dict(params)))


def given_parameters(text: str) -> tuple[tuple[str, int | str], ...]:
    """Return the parameters of a strategy that a row states, like ``chunks=8;host=eager``."""
    pairs = [pair.partition("=") for pair in text.split(";") if pair]
    return tuple((name.strip(), int(value) if value.strip().isdecimal() else value.strip()) for name, _, value in pairs)


KINDS = [ComparedKind("operators", points)]
