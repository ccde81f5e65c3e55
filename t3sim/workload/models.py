"""The transformers of the study (T3 table 2), as GEMM shapes.

Their hyperparameters live in ``configs/model``, one file each with sources.
"""

from __future__ import annotations

from t3sim.config.experiment import GemmShape, ModelSpec
from t3sim.config.presets import load_model, preset_names
from t3sim.workload.sublayers import SUBLAYERS, gemm_of


def load_models() -> dict[str, ModelSpec]:
    """Return every model of ``configs/model`` by name, sorted."""
    return {name: load_model(name) for name in preset_names("model")}


def sublayer_gemms(model: ModelSpec) -> dict[tuple[int, str], GemmShape]:
    """Return the local GEMM of each sublayer at each tensor-parallel degree studied, by (tp, sublayer)."""
    return {(tp, sublayer): gemm_of(model, sublayer, tp) for tp in model.tensor_parallel for sublayer in SUBLAYERS}


__all__ = ["load_model", "load_models", "sublayer_gemms"]
