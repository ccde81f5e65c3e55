"""Sections of an experiment file as pydantic models, and its JSON schema."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from t3sim.config.element_types import ElementName
from t3sim.config.experiment import AttentionKind, CollectiveSpec, GemmShape, LayerKind, OperatorKind
from t3sim.config.experts import ExpertsFields
from t3sim.config.gpu_overrides import MODELS
from t3sim.config.machine import UniformMachineSpec
from t3sim.config.operating_points import OperatingPoint
from t3sim.config.presets import SKEW
from t3sim.config.spec import Count, Latency, PicosecondsAboveZero, ShortCycles, Spec, Unit
from t3sim.workload.sublayers import sublayer_spelled

SCHEMA_VERSION = 1
MAX_TP = 1024
DEFAULT_MAX_HOURS = 24
OF_A_POINT = (
    "name", "description", "workload", "operating_point", "mode", "staggered", "quantum", "plugins", "figures",
    "max_hours",
)  # fmt: skip


class WorkloadFile(Spec):
    """``workload:`` one of a model's sublayer or layer, a GEMM, routed experts, a tile trace or a collective."""

    model: str | None = Field(None, description="Model: a preset, a model file, or the `config.json` of a checkpoint.")
    sublayer: Annotated[str, AfterValidator(sublayer_spelled)] | None = Field(
        None,
        description="Sublayer of the model: `OP`, `FC-2`, `FC-1`, `IP`, `QKV` (with `ag-gemm`) or `MoE` (with `moe`).",
    )
    group: Count | None = Field(
        None,
        description="Group of like layers, in a model whose layers differ. If omitted, the largest with the sublayer.",
    )
    layer: LayerKind | None = Field(
        None,
        description="Pass over a whole layer of the model, instead of one sublayer; `generation`: one token of each "
        "sequence.",
    )
    context: Annotated[Count, Unit("tokens")] | None = Field(
        None, description="Of `layer: generation`: tokens of each sequence whose keys and values are in the cache."
    )
    attention: AttentionKind | None = Field(
        None,
        description="Attention of a layer: `unfused` writes scores to DRAM. If omitted, `fused` for a `config.json`, "
        "otherwise `unfused`.",
    )
    operators: str | dict[str, Any] | None = Field(
        None,
        description="Efficiency of the other kernels of a layer: a preset, optionally with values on top. If omitted, "
        "`bert-v100`.",
    )
    tokens: Annotated[Count, Unit("tokens")] | None = Field(
        None,
        description="Number of tokens (M); in `layer: generation` one of each sequence. If omitted, that of the model.",
    )
    sequence: Annotated[Count, Unit("tokens")] | None = Field(
        None, description="Length of one sequence. If omitted, that of the model."
    )
    tp: Annotated[int, Field(ge=1, le=MAX_TP, strict=True), Unit("GPUs")] | None = Field(
        None, description="Number of GPUs: the tensor-parallel degree of a GEMM, `ep` x `tp` of routed experts."
    )
    gemm: GemmShape | None = Field(None, description="Shape of a bare GEMM, instead of a model.")
    operator: OperatorKind | None = Field(
        None,
        description="Collective of a GEMM: after it (`gemm-rs`, `gemm-ar`, `gemm-a2a`) or before it (`ag-gemm`); or "
        "`moe`, a layer of routed experts. "
        "If omitted, `gemm-rs`; in `layer: generation` `gemm-ar`; with `experts` `moe`.",
    )
    element: ElementName | None = Field(
        None,
        description="Element type of the operands of a model's GEMMs, such as `fp8`. If omitted, what its checkpoint "
        "states, or FP16 if it states none.",
    )
    output: ElementName | None = Field(
        None,
        description="Element type of the outputs of a model's GEMMs, such as `fp32`. If omitted, BF16, or FP16 with "
        "`fp16` operands.",
    )
    experts: dict[str, Any] | None = Field(
        None,
        description="Routed experts, with the keys of the section *Experts*: a layer of its own, or on top of what the "
        "model states.",
    )
    trace: str | None = Field(None, description="Path of a tile trace (Parquet), instead of a model.")
    collective: CollectiveSpec | None = Field(None, description="Collective without a GEMM, instead of a model.")


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

    preset: str | None = Field(None, description="Kernel or library: a preset of `configs/kernel`, or a file.")
    operand_cost: Count | None = Field(
        None, description="Cost of loading one operand element, in the cost model of a library."
    )
    every: KernelFile | None = Field(
        None, description="Keys common to all kernels of a library, unless a kernel overrides them."
    )
    kernels: dict[str, KernelFile] | None = Field(None, description="Kernels of a library by name.")


class SweepFile(Spec):
    """``sweep:`` dotted key -> values; the points are all combinations."""

    grid: dict[str, list[Any]] = Field(
        description="Swept dotted keys, each with its list of values. The points are all combinations; the last key "
        "varies fastest."
    )


class ExperimentFile(Spec):
    """An experiment file."""

    schema_version: Literal[1] = Field(1, description="Version of the file format.")
    name: str = Field(description="Name of the experiment and of its results folder: letters, digits, `.`, `_`, `-`.")
    description: str = Field("", description="Free text.")
    machine: str | dict[str, Any] = Field(
        description="Machine: a preset, a machine file, or `preset:` with values that replace its own (see Machine)."
    )
    workload: WorkloadFile = Field(
        description="Workload to simulate: exactly one of `model`, `gemm`, `trace`, `collective`."
    )
    tiling: str | TilingFile | None = Field(
        None,
        description="Kernel of the GEMM, or a library of kernels. If omitted, the library that the machine names, or "
        "`gemm-256x128` if it names none.",
    )
    strategy: str | dict[str, Any] = Field(description="Overlap strategy: a name, or `name:` with its parameters.")
    arbitration: str | dict[str, Any] | None = Field(
        None,
        description="Arbitration policy of the memory controllers: a name, or `policy:` with its parameters. If "
        "omitted, that of the strategy.",
    )
    operating_point: OperatingPoint | None = Field(
        None,
        description="Clock regime of the GPUs: `sustained`, at the power limit; `boost`, short loops before it acts; "
        "`onset`, the first GEMM after an idle interval. If omitted, that of the machine, `sustained` in all presets.",
    )
    mode: Literal["mirrored", "explicit"] = Field(
        "mirrored",
        description="Simulation mode: `mirrored`, one GPU represents all; `explicit`, every GPU of the ring is "
        "simulated.",
    )
    staggered: Annotated[bool, Field(strict=True)] = Field(
        True,
        description="Chunk order: true, each GPU starts with its own chunk; false (explicit mode only), all start "
        "with chunk 0.",
    )
    quantum: PicosecondsAboveZero | None = Field(
        None,
        description="Synchronisation interval of the simulated GPUs; it affects simulation speed, never results. If "
        "omitted, the link latency.",
    )
    plugins: list[str] = Field(
        default_factory=list, description="Python files that register policies and strategies, relative to this file."
    )
    sweep: SweepFile | None = Field(None, description="Parameter sweep.")
    figures: list[str] = Field(
        default_factory=list, description="Figures that `plot` and `report` draw from the results."
    )
    max_hours: Annotated[Count, Unit("hours")] = Field(
        DEFAULT_MAX_HOURS, description="Maximum estimated simulation time on one core; a longer experiment is refused."
    )


class PointFile(ExperimentFile):
    """The part of a point that pydantic reads: the keys ``OF_A_POINT``."""

    machine: Any = None
    strategy: Any = None


def experiment_schema() -> dict[str, Any]:
    """The JSON schema of an experiment file."""
    schema = ExperimentFile.model_json_schema()
    defined = schema.setdefault("$defs", {})
    for model in (UniformMachineSpec, ExpertsFields):
        described = model.model_json_schema()
        defined |= {**described.pop("$defs", {}), model.__name__: described}
    machine = defined["MachineSpec"] = defined.pop(UniformMachineSpec.__name__)
    machine["patternProperties"] = {
        rf"^{kind}\[[0-9]+\]$": {"$ref": f"#/$defs/{model.__name__}"} for kind, model in MODELS.items()
    }
    machine["properties"] |= {
        SKEW: {"type": "object", "patternProperties": {r"^gpu\[[0-9]+\]$": {"type": "string"}}},
    }
    experts = defined[ExpertsFields.__name__]  # a model states what it can, `tp` and `tokens` the rest
    defined["WorkloadFile"]["properties"]["experts"] = {**{k: v for k, v in experts.items() if k != "required"}}
    del defined[ExpertsFields.__name__]
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
