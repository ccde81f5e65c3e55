"""The tile trace that a point replays."""

from functools import lru_cache

from t3sim.config.experiment import RunSpec
from t3sim.workload.tiling import TileTrace
from t3sim.workload.trace_file import read_trace

_verified_trace = lru_cache(maxsize=8)(read_trace)


def trace_of(run: RunSpec) -> TileTrace | None:
    """Return the tile trace that a point replays, None if it makes its tiles from the shape."""
    return None if run.workload.trace is None else _verified_trace(run.workload.trace)
