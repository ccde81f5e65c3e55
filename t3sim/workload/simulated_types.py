"""The element types that GEMMs of a checkpoint are simulated with, on a machine.

A machine multiplies 16-bit elements, and those that it states a matrix rate for.  Where it has none for the activations
of a checkpoint, or where only weights are quantised, activations have 16 bits and weights are read as they are stored
and converted by the kernel, as libraries do (Marlin).  Types without a model (INT5, mixed precision, types that the
checkpoint does not say) are simulated in 16 bits, and FP32 too, as serving libraries convert such a checkpoint.
"""

from typing import Any

from t3sim.config.element_types import DEFAULT_TYPE, ELEMENT_TYPES
from t3sim.config.experiment import CheckpointTypes, ModelSpec, OperandTypes
from t3sim.config.gpu import ComputeUnitSpec
from t3sim.workload.operands import SIXTEEN_BITS, stated_rate

PLAIN = "bf16"  # of activations that are not quantised, where the checkpoint does not say


def is_simulated(types: OperandTypes) -> bool:
    """Return whether GEMMs of these types are simulated as what they are, on a machine that multiplies them."""
    fields = simulated_types(types)
    weights = fields.get("weights") or fields.get("element", DEFAULT_TYPE)
    stated = "fp16" if types.weights == "16-bit" else types.weights
    return bool(weights == stated)


def simulated_types(types: OperandTypes) -> dict[str, Any]:
    """Return fields of ``GemmShape``: empty for FP16."""
    weights, activations = types.weights, types.activations
    if weights not in ELEMENT_TYPES or weights == "fp32":
        return {}
    if ELEMENT_TYPES.get(activations, ELEMENT_TYPES[PLAIN]).is_for_weights or activations not in ELEMENT_TYPES:
        activations = PLAIN
    if activations == "fp32" or ELEMENT_TYPES[weights].bits > ELEMENT_TYPES[activations].bits:
        activations = weights if ELEMENT_TYPES[weights].bits == SIXTEEN_BITS else PLAIN
    fields = {} if activations == DEFAULT_TYPE else {"element": activations}
    return fields if weights == activations else {**fields, "weights": weights}


def on_machine(model: ModelSpec, unit: ComputeUnitSpec) -> ModelSpec:
    """Return *model* with the element types that a machine of these compute units runs it with."""
    if model.elements is None:
        return model
    parts = {
        part: _multiplied(getattr(model.elements, part), unit) for part in ("attention", "feed_forward", "experts")
    }
    return model.model_copy(update={"elements": model.elements.model_copy(update=parts)})


def in_type(model: ModelSpec, element: str) -> ModelSpec:
    """Return *model* with all GEMMs in one element type, whatever its checkpoint states."""
    one = OperandTypes(weights=element, activations=element)
    return model.model_copy(update={"elements": CheckpointTypes(attention=one, feed_forward=one, experts=one)})


def with_outputs(model: ModelSpec, outputs: str) -> ModelSpec:
    """Return *model* with the outputs of all GEMMs in one element type."""
    elements = (model if model.elements is not None else in_type(model, DEFAULT_TYPE)).elements
    assert elements is not None
    return model.model_copy(update={"elements": elements.model_copy(update={"outputs": outputs})})


def _multiplied(types: OperandTypes, unit: ComputeUnitSpec) -> OperandTypes:
    activations = simulated_types(types).get("element", DEFAULT_TYPE)
    if stated_rate(unit, ELEMENT_TYPES[activations]) is not None:
        return types
    return OperandTypes(weights=types.weights, activations=PLAIN)
