"""``collectives``: one alone: a ring with the machine's own channels or held to some, or an all-reduce kernel."""

from __future__ import annotations

from collections.abc import Iterable

from t3lab.measurements.samples import Measurement
from t3lab.validation.bench import OPS, Bench, one
from t3lab.validation.kinds.hosts import check_hosts
from t3lab.validation.kinds.interface import ComparedKind
from t3lab.validation.point import Comparison, NotSimulatedError, Point, Term
from t3sim.collective.direct import ALGORITHMS, FORCED, NCCL, kernel_of
from t3sim.errors import UsageError
from t3sim.spelling import spelled_as

# Algorithms that NCCL may have been held to, and what simulates them.
HELD = {"Ring": "nccl-ring", "NVLS": "nccl-nvls", "Tree": "nccl-tree"}
LIMITED = "channel_limited_collectives"  # a row of its own in the tables


def points(row: Measurement, bench: Bench) -> Iterable[Point]:
    """Return the point of *row*."""
    channels, protocol = str(row["nccl_channels"]), spelled_as(str(row["nccl_proto"]), ("auto", "Simple"))

    def make() -> Comparison:
        if reason := _not_simulated(row):
            raise NotSimulatedError(reason)
        check_hosts(row, bench.machine)
        if protocol not in {"auto", "Simple"}:
            raise NotSimulatedError(f"the machine is not held to the protocol {protocol}")
        op, algorithm = OPS[str(row["collective"])], str(row.values.get("algorithm", NCCL))
        if (held := row.values.get("nccl_algo")) and op in FORCED:  # NCCL holds no other operation to an algorithm
            algorithm = HELD[str(spelled_as(str(held), HELD))]
        if algorithm not in ALGORITHMS:
            raise NotSimulatedError(f"{algorithm}: no such algorithm is simulated; those are {', '.join(ALGORITHMS)}")
        if algorithm not in {NCCL, *FORCED.get(op, ())}:
            raise NotSimulatedError(f"{algorithm} is an all-reduce, not {op}")
        size, gpus, version = int(row["bytes"]), int(row["gpus"]), bench.measurements.nccl_version(row)
        try:
            kernel_of(algorithm, bench.machine, gpus, size)
        except UsageError as error:
            raise NotSimulatedError(error.message) from None
        return one(Term(bench.ring(op, size, gpus, channels, protocol, algorithm, version)))

    kind = "collectives" if channels == "auto" else LIMITED
    return [bench.point(row, "time_us", make, kind=kind, host_us=bench.measurements.host_us(row))]


def _not_simulated(row: Measurement) -> str:
    """Say why a collective is none of those that are simulated; empty if it may be one."""
    name, algorithm = str(row["collective"]), str(row.values.get("nccl_algo", "Ring"))
    if name not in OPS:
        return f"{name.replace('_', '-')}: no such collective is simulated"
    if spelled_as(algorithm, HELD) not in HELD:
        return f"{algorithm}: NCCL was held to this algorithm; {', '.join(HELD)} are simulated"
    return ""


KINDS = [ComparedKind("collectives", points, ("collectives", LIMITED))]
