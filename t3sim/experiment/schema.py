"""The experiment file as a user writes it: its sections as models, and its JSON schema."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from t3sim.config.experiment import AttentionKind, CollectiveSpec, GemmShape, LayerKind, OperatorKind
from t3sim.config.gpu_overrides import JITTER, MODELS, SKEW
from t3sim.config.machine import Count, PicosecondsAboveZero, Spec, StartJitterSpec, UniformMachineSpec

SCHEMA_VERSION = 1
MAX_TP = 1024
DEFAULT_MAX_HOURS = 24
OF_A_POINT = (
    "name", "description", "workload", "mode", "staggered", "quantum", "plugins", "figures", "max_hours",
)  # fmt: skip


class WorkloadFile(Spec):
    """``workload:`` exactly one of a model's sublayer or layer, a GEMM, a tile trace or a collective."""

    model: str | None = None
    sublayer: str | None = None
    layer: LayerKind | None = None
    attention: AttentionKind | None = None
    tokens: Count | None = None
    sequence: Count | None = None
    tp: Annotated[int, Field(ge=1, le=MAX_TP, strict=True)] | None = None
    gemm: GemmShape | None = None
    operator: OperatorKind | None = None  # what is done with a GEMM; None: gemm-rs
    trace: str | None = None
    collective: CollectiveSpec | None = None


class KernelFile(Spec):
    """How one kernel cuts its work."""

    workgroup_tile: tuple[Count, Count] | None = None
    wavefront_tile: tuple[Count, Count] | None = None
    k_slice: Count | None = None
    prefetch_depth: Count | None = None
    persistent: bool | None = None
    column_major: bool | None = None


class TilingFile(KernelFile):
    """``tiling:`` a preset of ``configs/kernel`` and values that replace the preset's; or a library of kernels."""

    preset: str | None = None
    operand_cost: Count | None = None  # of a library
    kernels: dict[str, KernelFile] | None = None  # of a library


class SweepFile(Spec):
    """``sweep:`` dotted key -> values; the points are all combinations."""

    grid: dict[str, list[Any]]


class ExperimentFile(Spec):
    """An experiment file."""

    schema_version: Literal[1] = 1
    name: str
    description: str = ""
    machine: str | dict[str, Any]
    workload: WorkloadFile
    tiling: str | TilingFile | None = None
    strategy: str | dict[str, Any]
    arbitration: str | dict[str, Any] | None = None
    mode: Literal["mirrored", "explicit"] = "mirrored"
    staggered: Annotated[bool, Field(strict=True)] = True  # false (explicit only): all GPUs begin with chunk 0
    quantum: PicosecondsAboveZero | None = None
    plugins: list[str] = Field(default_factory=list)
    sweep: SweepFile | None = None
    figures: list[str] = Field(default_factory=list)  # what `plot` and `report` draw of the results
    max_hours: Count = DEFAULT_MAX_HOURS  # an experiment estimated to take longer is refused


class PointFile(ExperimentFile):
    """The part of a point that pydantic reads: the keys ``OF_A_POINT``."""

    machine: Any = None
    strategy: Any = None


def experiment_schema() -> dict[str, Any]:
    """The JSON schema of an experiment file."""
    schema = ExperimentFile.model_json_schema()
    defined = schema.setdefault("$defs", {})
    for model in (UniformMachineSpec, StartJitterSpec):
        described = model.model_json_schema()
        defined |= {**described.pop("$defs", {}), model.__name__: described}
    machine = defined["MachineSpec"] = defined.pop(UniformMachineSpec.__name__)
    machine["patternProperties"] = {
        rf"^{kind}\[[0-9]+\]$": {"$ref": f"#/$defs/{model.__name__}"} for kind, model in MODELS.items()
    }
    machine["properties"] |= {
        SKEW: {"type": "object", "patternProperties": {r"^gpu\[[0-9]+\]$": {"type": "string"}}},
        JITTER: {"$ref": f"#/$defs/{StartJitterSpec.__name__}"},
    }
    cleaned = _without_bounds_of_texts(schema)
    assert isinstance(cleaned, dict)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **cleaned, "title": "t3sim experiment"}


def _without_bounds_of_texts(schema: Any) -> Any:
    """Quantities are texts with units; their numeric bounds hold after parsing and say nothing about the text."""
    if isinstance(schema, list):
        return [_without_bounds_of_texts(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    bounds = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "gt", "ge", "lt", "le"}
    is_text = schema.get("type") == "string"
    return {key: _without_bounds_of_texts(item) for key, item in schema.items() if not (is_text and key in bounds)}
