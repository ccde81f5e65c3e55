"""The experiment file as a user writes it: its sections as models, and its JSON schema."""

from typing import Annotated, Any, Literal

from pydantic import Field

from t3sim.config.experiment import AttentionKind, CollectiveSpec, GemmShape, LayerKind, OperatorKind
from t3sim.config.gpu_overrides import MODELS
from t3sim.config.machine import (
    Count,
    Latency,
    PicosecondsAboveZero,
    ShortCycles,
    Spec,
    StartJitterSpec,
    UniformMachineSpec,
    Unit,
)
from t3sim.config.presets import JITTER, SKEW

SCHEMA_VERSION = 1
MAX_TP = 1024
DEFAULT_MAX_HOURS = 24
OF_A_POINT = (
    "name", "description", "workload", "mode", "staggered", "quantum", "plugins", "figures", "max_hours",
)  # fmt: skip


class WorkloadFile(Spec):
    """``workload:`` exactly one of a model's sublayer or layer, a GEMM, a tile trace or a collective."""

    model: str | None = Field(None, description="a preset, a file of yours, or the `config.json` of a checkpoint")
    sublayer: str | None = Field(None, description="of the model: `OP`, `FC-2`, `FC-1`, `IP`; of `ag-gemm` also `QKV`")
    layer: LayerKind | None = Field(None, description="a whole layer of the model instead of a sublayer")
    attention: AttentionKind | None = Field(
        None, description="of a layer: `unfused` writes scores to DRAM; none: `fused` for a `config.json`, else that"
    )
    operators: str | dict[str, Any] | None = Field(
        None, description="of a layer, how fast its other kernels are: a preset, or values on top; none: `bert-v100`"
    )
    tokens: Annotated[Count, Unit("tokens")] | None = Field(None, description="instead of those of the model")
    sequence: Annotated[Count, Unit("tokens")] | None = Field(
        None, description="of one sequence, instead of that of the model"
    )
    tp: Annotated[int, Field(ge=1, le=MAX_TP, strict=True), Unit("GPUs")] | None = Field(
        None, description="tensor parallelism: GPUs that share the GEMM"
    )
    gemm: GemmShape | None = Field(None, description="a bare GEMM instead of a model")
    operator: OperatorKind | None = Field(
        None,
        description="the collective of a GEMM, behind it (`gemm-rs`, `gemm-ar`) or in front of it; none: `gemm-rs`",
    )
    trace: str | None = Field(None, description="a tile trace instead of a model: the path of its Parquet file")
    collective: CollectiveSpec | None = Field(None, description="a collective alone instead of a model")


class KernelFile(Spec):
    """How one kernel cuts its work."""

    workgroup_tile: tuple[Count, Count] | None = None
    wavefront_tile: tuple[Count, Count] | None = None
    k_slice: Count | None = None
    prefetch_depth: Count | None = None
    persistent: bool | None = None
    own_tiles: Count | Literal["all"] | None = None
    prologue: Latency | None = None
    epilogue: ShortCycles | None = None
    whole_slices: bool | None = None
    loads_ahead: bool | None = None
    cluster: Literal[1, 2] | None = None
    column_major: bool | None = None
    group_rows: Count | None = None


class TilingFile(KernelFile):
    """``tiling:`` a preset of ``configs/kernel`` and values that replace the preset's; or a library of kernels."""

    preset: str | None = Field(None, description="of `configs/kernel`, or a file of yours")
    operand_cost: Count | None = Field(None, description="of a library")
    every: KernelFile | None = Field(
        None, description="of a library: what all its kernels have, unless one says otherwise"
    )
    kernels: dict[str, KernelFile] | None = Field(None, description="of a library")


class SweepFile(Spec):
    """``sweep:`` dotted key -> values; the points are all combinations."""

    grid: dict[str, list[Any]] = Field(
        description="dotted key -> values; the points are all combinations, the last key fastest"
    )


class ExperimentFile(Spec):
    """An experiment file."""

    schema_version: Literal[1] = Field(1, description="of the file format")
    name: str = Field(description="of the experiment, and of its folder of results: letters, digits, `.`, `_`, `-`")
    description: str = Field("", description="free text")
    machine: str | dict[str, Any] = Field(
        description="a preset, a file of yours, or `preset:` and values that replace its own: see Machine"
    )
    workload: WorkloadFile = Field(
        description="what is simulated: exactly one of `model`, `gemm`, `trace`, `collective`"
    )
    tiling: str | TilingFile | None = Field(
        None, description="the kernel of the GEMM, or a library of kernels; none: `gemm-256x128`"
    )
    strategy: str | dict[str, Any] = Field(
        description="how GEMM and collective overlap: a name, or `name:` and its parameters"
    )
    arbitration: str | dict[str, Any] | None = Field(
        None,
        description="policy of the memory controllers: a name, or `policy:` and parameters; none: the strategy says",
    )
    mode: Literal["mirrored", "explicit"] = Field(
        "mirrored", description="one GPU that stands for all, or every GPU of the ring"
    )
    staggered: Annotated[bool, Field(strict=True)] = Field(
        True, description="each GPU begins with its own chunk; false (explicit only): all begin with chunk 0"
    )
    quantum: PicosecondsAboveZero | None = Field(
        None, description="between two looks at the link; changes speed, never results; none: its latency"
    )
    plugins: list[str] = Field(
        default_factory=list, description="Python files with policies and strategies of yours, relative to this file"
    )
    sweep: SweepFile | None = Field(None, description="values to combine")
    figures: list[str] = Field(default_factory=list, description="what `plot` and `report` draw of the results")
    max_hours: Annotated[Count, Unit("hours")] = Field(
        DEFAULT_MAX_HOURS, description="of one core: an experiment estimated to take longer is refused"
    )


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
