"""The figure ``closed_form``: isolated ring collectives against a formula of the link.

A ring of N GPUs moves a chunk of S/N bytes in each of N - 1 steps, so a step
takes chunk / link bandwidth + link latency.  A reduce-scatter without
near-memory compute ends with a local reduction: two reads and a write of a
chunk at the memory's bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from statistics import geometric_mean
from typing import Any, NamedTuple

from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from t3sim.analysis.folder import Results
from t3sim.analysis.strategies import has_near_memory
from t3sim.analysis.style import MARKERS, QUIET_COLOUR, Drawing, legend_outside, light_grid, mark, new_figure
from t3sim.config.element_types import DEFAULT_TYPE, ELEMENT_TYPES, output_type

# operation -> colour and size of its marks: two that take equally long can both be seen
_LOOKS = {
    "reduce-scatter": ("#E69F00", 4.0),
    "near-memory reduce-scatter": ("#D55E00", 6.0),
    "all-gather": ("#009E73", 3.5),
}
_HOLLOW = {"markerfacecolor": "none"}


class Collective(NamedTuple):
    """An isolated collective: what it was, how long it took and how long the formula says."""

    op: str
    n_gpus: int
    size_bytes: int
    machine: str
    simulated_us: float
    formula_us: float

    @property
    def error(self) -> float:
        """Simulated over formula, minus one."""
        return self.simulated_us / self.formula_us - 1


def draw(results: Results, columns: int | None = None) -> list[Drawing]:
    """Draw times and relative errors; raises ``InputDataError`` if there is no isolated collective.

    Machine values come from ``resolved.json``.
    """
    nothing = "no isolated collective with its machine in resolved.json to draw"
    collectives = results.required(collectives_of(results), nothing)
    columns = columns or 1
    figure = new_figure(columns, 3.6)
    times, errors = figure.subplots(2, 1, height_ratios=(1.5, 1.0), sharex=True)
    is_by_size = len({c.machine for c in collectives}) == 1 and len({c.size_bytes for c in collectives}) > 1
    rings = sorted({c.n_gpus for c in collectives})
    looks = {op: look for op, look in _LOOKS.items() if any(c.op == op for c in collectives)}
    for op, (colour, size) in looks.items():
        for n_gpus, marker in zip(rings, cycle(MARKERS), strict=False):
            members = [c for c in collectives if c.op == op and c.n_gpus == n_gpus]
            members.sort(key=lambda c: (c.size_bytes, c.formula_us))
            x = [c.size_bytes / 2**20 if is_by_size else c.formula_us for c in members]
            look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": size, **_HOLLOW}
            times.plot(x, [c.simulated_us for c in members], linestyle="none", **look)
            times.plot(x, [c.formula_us for c in members], color=colour, linewidth=0.7, zorder=0)
            errors.plot(x, [100 * c.error for c in members], linestyle="none", **look)
    times.set_ylabel("time (µs)")
    errors.set_ylabel("simulated over\nformula − 1 (%)")
    errors.axhline(0.0, color=QUIET_COLOUR, linewidth=0.5)
    errors.set_xlabel("array (MiB)" if is_by_size else "time by the formula (µs)")
    if max(c.formula_us for c in collectives) > 4 * min(c.formula_us for c in collectives):
        times.set_xscale("log")
        times.set_yscale("log")
        for axis in (errors.xaxis, times.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_locator(NullLocator())
    for axes in (times, errors):
        light_grid(axes)
    largest = max(abs(100 * c.error) for c in collectives)
    low = min(100 * c.error for c in collectives)
    errors.set_ylim(min(0.0, 1.3 * low) - 0.1 * max(largest, 0.1), 1.2 * max(largest, 0.1))
    operations = [mark(op, colour, markersize=size, **_HOLLOW) for op, (colour, size) in looks.items()]
    sizes = [mark(f"{n} GPUs", marker=marker, **_HOLLOW) for n, marker in zip(rings, cycle(MARKERS), strict=False)]
    formula = Line2D([], [], color=QUIET_COLOUR, linewidth=0.7, label="formula")
    legend_outside(figure, [*operations, *sizes, formula], n_columns=3)
    caption = (
        "Isolated ring collectives against (N−1)(chunk/bandwidth + latency), and for a reduce-scatter without "
        f"near-memory compute its last reduction: geometric mean of the error "
        f"{100 * geomean_error(collectives):.1f} %, largest {largest:.1f} %."
    )
    return [Drawing(figure, caption)]


def collectives_of(results: Results) -> list[Collective]:
    """Return every isolated collective that the points timed, each once."""
    found: dict[tuple[Any, ...], Collective] = {}
    for row, point in zip(results.rows, results.points, strict=True):
        if point is None or row["time_us"] is None or row["gemm_compute_units"] is not None or row["layer"]:
            continue
        size = size_of(point)
        if size is None or row["tp"] < 2:
            continue
        machine = point["machine"]
        scatter = "near-memory reduce-scatter" if has_near_memory(row["strategy"]) else "reduce-scatter"
        for op, time in (("all-gather", row["ag_us"]), (scatter, row["rs_us"])):
            if time:
                formula = formula_us(op, size, row["tp"], machine)
                key = (op, row["tp"], size, row["machine"])
                found.setdefault(key, Collective(*key, simulated_us=time, formula_us=formula))
    return list(found.values())


def size_of(point: Mapping[str, Any]) -> int | None:
    """Return the bytes of the array that a resolved point reduces or gathers, all chunks together."""
    collective, gemm = point["workload"].get("collective"), point["workload"].get("gemm")
    if collective:
        return int(collective["size"])
    if not gemm:
        return None
    of_a = gemm.get("element", DEFAULT_TYPE)
    is_gather = point["workload"].get("operator") == "ag-gemm"
    element = of_a if is_gather else gemm.get("output") or output_type(of_a)
    return ELEMENT_TYPES[element].n_bytes(int(gemm["m"]) * int(gemm["k" if is_gather else "n"]))


def formula_us(op: str, size_bytes: int, n_gpus: int, machine: Mapping[str, Any]) -> float:
    """Return the closed-form time of a ring collective on a resolved *machine*, in microseconds."""
    chunk = size_bytes / n_gpus
    link = machine["link"]
    step_s = chunk / link["bandwidth"] + link["latency"] / 1e12  # latency is in picoseconds
    final_s = 3 * chunk / memory_bandwidth(machine) if op == "reduce-scatter" else 0.0
    return float(1e6 * ((n_gpus - 1) * step_s + final_s))


def memory_bandwidth(machine: Mapping[str, Any]) -> float:
    """Return the peak DRAM bandwidth of a resolved *machine*, in bytes per second."""
    memory = machine["memory"]
    return float(memory["n_channels"] * memory["access"] * memory["clock"] / memory["timing"]["nCCDS"])


def geomean_error(collectives: Sequence[Collective]) -> float:
    """Return the geometric mean of the ratios between simulated and formula, minus one; each ratio at least 1."""
    ratios = [c.simulated_us / c.formula_us for c in collectives]
    return geometric_mean(max(ratio, 1 / ratio) for ratio in ratios) - 1
