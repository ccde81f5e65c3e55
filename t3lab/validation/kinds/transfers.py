"""``peer_copy``, ``transfers``: copies, loads and stores between GPUs, one or several at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from t3lab.measurements.meshes import Mesh, meshes
from t3lab.measurements.samples import Measurement
from t3lab.measurements.words import ALL_LANES
from t3lab.validation.bench import Bench, one
from t3lab.validation.kinds.interface import ComparedKind
from t3lab.validation.point import Comparison, NotSimulatedError, Point, Term
from t3lab.validation.simulations.alone import PeerCopy, Transfers
from t3sim.config.machine import MachineSpec
from t3sim.fabric.interface import fabric_of

BY_ENGINES = ("uni", "bidi", "ring")  # patterns of copies
NO_COPY_ENGINES = "the machine has no copy engines"


def of_copies(row: Measurement, bench: Bench) -> Iterable[Point]:
    """Return the point of a copy, both ways at once: the directions of a port share nothing but the memory."""

    def make() -> Comparison:
        if row["pattern"] not in BY_ENGINES:
            raise NotSimulatedError("no kernel of loads or stores alone")
        if bench.machine.gpu.copy_engines is None:
            raise NotSimulatedError(NO_COPY_ENGINES)
        machine = bench.machine.at_operating_point("boost")
        return one(Term(PeerCopy(machine, bench.tiling, int(row["bytes"]))))

    return [bench.point(row, "time_us", make, host_us=bench.measurements.host_us(row))]


def points(row: Measurement, bench: Bench) -> Iterable[Point]:
    """Return the point of a lane of transfers, or of all lanes."""

    def make() -> Comparison:
        named, lane = (str(row["pattern"]), int(row["gpus"]), str(row["ways"])), str(row["lane"])
        mesh = next((one for one in meshes(named[1]) if (one.pattern, one.gpus, one.ways) == named), None)
        if mesh is None or lane not in (ALL_LANES, *map(str, range(len(mesh.lanes)))):
            raise NotSimulatedError("no such lane of a pattern of that many GPUs")
        if reason := _reason(row, mesh, bench.machine):
            raise NotSimulatedError(reason)
        machine = bench.machine.at_operating_point("boost")
        found = Transfers(machine, bench.tiling, mesh, int(row["bytes"]), str(row["means"]))
        return one(Term(found, "time" if lane == ALL_LANES else lane))

    return [bench.point(row, "time_us", make)]


def _reason(row: Measurement, mesh: Mesh, machine: MachineSpec) -> str:
    """Say why the machine cannot do the transfers of *mesh* by the means of *row*; empty if it can."""
    n_engines, is_copy = machine.gpu.n_copy_engines, row["means"] == "copy"
    n = max(Counter(lane.gpu for lane in mesh.lanes).values())
    if row["means"] == "bulk_store" or (is_copy and str(row["pattern"]).startswith("pull")):
        return "no bulk stores alone, and engines push only"
    if is_copy and not n_engines:
        return NO_COPY_ENGINES
    if is_copy and n > n_engines:
        return f"{n} lanes of one GPU; the machine has {n_engines} copy engines"
    if not set(range(1, mesh.gpus)) <= set(fabric_of(machine.link, mesh.gpus).reached(machine.link, mesh.gpus)):
        return "its links do not lead from every GPU to every other one"
    return ""


KINDS = [ComparedKind("peer_copy", of_copies), ComparedKind("transfers", points)]
