"""Ways to overlap a GEMM with its collective: one file per strategy, which is registered because it lies here."""

from importlib import import_module
from pkgutil import iter_modules

from t3sim.strategies.interface import (
    GpuPhase,
    OverlapStrategy,
    Phase,
    Span,
    availability_of,
    baselines,
    bounds,
    in_order,
    not_an_operator_of,
    overlap_strategies,
    strategy,
)

__all__ = [
    "GpuPhase", "OverlapStrategy", "Phase", "Span", "availability_of", "baselines", "bounds", "in_order",
    "not_an_operator_of", "overlap_strategies", "strategy",
]  # fmt: skip

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
