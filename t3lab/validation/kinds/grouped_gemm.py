"""``grouped_gemm``: the GEMMs of the experts of one GPU in one launch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from t3lab.measurements.samples import Measurement
from t3lab.validation.bench import Bench, one
from t3lab.validation.kinds.interface import ComparedKind
from t3lab.validation.operating_points import Loops
from t3lab.validation.point import Comparison, NotSimulatedError, Point, Term
from t3lab.validation.simulations.experts import GroupedGemm
from t3sim.config.experiment import GemmShape, Kernels
from t3sim.config.experts import experts_spec, routing_called
from t3sim.config.presets import load_kernels, preset_names
from t3sim.registry import unknown_name
from t3sim.workload.kernel_choice import fitting_kernels
from t3sim.workload.routings import routing_of


def points(row: Measurement, bench: Bench) -> Iterable[Point]:
    """Return the point of *row*."""
    regime = bench.regime(row, Loops())

    def make() -> Comparison:
        types: dict[str, Any] = {name: row.values[name] for name in ("element", "weights") if row.values.get(name)}
        gemm = GemmShape(m=int(row["tokens"]), n=int(row["n"]), k=int(row["k"]), **types)
        return one(Term(GroupedGemm(regime.machine, kernels_of_row(row, bench), gemm, rows_of(row))))

    host_us = bench.measurements.host_us(row)
    return [bench.point(row, "time_us", make, host_us=host_us, operating_point=regime.shown)]


def kernels_of_row(row: Measurement, bench: Bench) -> Kernels:
    """Return the kernels that *row* names, or those of the machine."""
    name = str(row.values.get("kernel") or "")
    if not name:
        return bench.kernels
    known = preset_names("kernel")
    if name not in known:
        raise NotSimulatedError(unknown_name("kernel", name, known))
    return fitting_kernels(load_kernels(name), bench.machine)


def rows_of(row: Measurement) -> tuple[int, ...]:
    """Return the rows of each expert: by the routing that *row* states, one expert for each of its rows."""
    layer = experts_spec(
        n_experts=int(row["experts"]), top_k=1, hidden=int(row["k"]), intermediate=int(row["n"]),
        tokens_per_gpu=int(row["tokens"]), ep=1, routing=routing_called(str(row["routing"])),
    )  # fmt: skip
    return tuple(routing_of(layer).rows()[0].tolist())


KINDS = [ComparedKind("grouped_gemm", points)]
