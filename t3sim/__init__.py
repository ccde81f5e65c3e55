"""t3sim: simulate how a GPU overlaps a GEMM with the collective on its output.

Importing this package costs nothing; the names below load what they need when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from t3sim.experiment.planning.plan import Experiment, load_experiment
    from t3sim.experiment.running.runner import Outcome, run
    from t3sim.results.record import RunRecord

_EXPORTS = {
    "Experiment": "t3sim.experiment.planning.plan",
    "load_experiment": "t3sim.experiment.planning.plan",
    "Outcome": "t3sim.experiment.running.runner",
    "run": "t3sim.experiment.running.runner",
    "RunRecord": "t3sim.results.record",
}

__all__ = ["Experiment", "Outcome", "RunRecord", "__version__", "load_experiment", "run"]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
