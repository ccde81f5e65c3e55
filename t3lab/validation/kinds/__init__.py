"""How rows of each kind of measurement are compared with simulations, a module for each."""

from t3lab.validation.kinds import (
    async_tp,
    collectives,
    contention,
    dispatch_combine,
    fused_scatter,
    gemms,
    grouped_gemm,
    memory_contention,
    moe,
    operators,
    sequential,
    tile_timelines,
    transfers,
    unsimulated,
)
from t3lab.validation.kinds.interface import ComparedKind

_SIMULATED = (
    collectives, gemms, sequential, operators, contention, tile_timelines, fused_scatter, transfers, async_tp,
    memory_contention, grouped_gemm, dispatch_combine, moe,
)  # fmt: skip
COMPARED: dict[str, ComparedKind] = {kind.name: kind for module in (*_SIMULATED, unsimulated) for kind in module.KINDS}
SIMULATED_KINDS = tuple(
    group for module in _SIMULATED for kind in module.KINDS for group in (kind.groups or (kind.name,))
)
WITHOUT_SIMULATION = unsimulated.REASONS
