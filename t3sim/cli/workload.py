"""``t3sim workload``: the GEMMs and other operators of a model or an experiment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from t3sim.cli._errors import printable
from t3sim.cli._tables import amount, counted, wrap_text
from t3sim.cli.config import aligned
from t3sim.errors import UsageError

if TYPE_CHECKING:
    from t3sim.config.experiment import ModelSpec, RunSpec, WorkloadSpec
    from t3sim.config.experts import ExpertsSpec

GEMM_HEADINGS = ("GEMM", "phase", "M", "N", "local K", "GFLOP", "output MB", "FLOP/byte", "all-reduce MB")
GATHERING_HEADINGS = ("GEMM", "phase", "M", "local N", "K", "GFLOP", "output MB", "FLOP/byte", "all-gather MB")
# Of a model, whose last column is the element type of weights, and of activations where that is another.
MODEL_HEADINGS = (
    ("", "", "", "", "local", "", "output", "FLOP", "sent", "element"),
    ("GEMM", "phase", "M", "N", "K", "GFLOP", "MB", "/byte", "MB", "type"),
)
PROJECTION_HEADINGS = ("GEMM", "sliced", "M", "local N", "local K", "type")
EXPERT_HEADINGS = ("GEMM", "rows of each expert", "local N", "local K", "GFLOP", "type")
OPERATOR_HEADINGS = ("operator", "phase", "GFLOP", "MB", "us", "bound by")


@click.group()
def workload() -> None:
    """Show what a model or an experiment computes."""


@workload.command(short_help="Print the GEMMs and other operators of one GPU.")
@click.argument("what", metavar="EXPERIMENT|MODEL")
@click.option("--tp", type=click.IntRange(1), metavar="N", help="GPUs in the ring [default: those it names].")
@click.option("--tokens", type=click.IntRange(1), metavar="N", help="Rows of every GEMM [default: those it names].")
def show(what: str, tp: int | None, tokens: int | None) -> None:
    """Print the GEMMs of one GPU before their all-reduce or after an all-gather, and the other operators of a layer.

    EXPERIMENT|MODEL is an experiment file, the config.json of a Hugging Face model, a model file (.yaml) or a model of
    configs/model, such as T-NLG.  A model has a table for each group of like layers, with the element type that its
    checkpoint states (bytes are of these types).  MB are 10^6 bytes; all-reduce, all-gather and sent count what one
    GPU sends.
    """
    from t3sim.config.yaml_loader import load_yaml

    root = load_yaml(what) if what.endswith((".yaml", ".yml")) else None
    says_what_to_simulate = root is not None and (root.get("workload") or root.get("machine")) is not None
    tables = _of_experiment(what, tp, tokens) if says_what_to_simulate else _of_model(what, tp, tokens)
    for i, lines in enumerate(tables):
        if i:
            click.echo()
        for line in lines:
            click.echo(printable(line))


def _of_experiment(path: str, tp: int | None, tokens: int | None) -> Iterator[list[str]]:
    from t3sim.config.experiment import OperatorKind
    from t3sim.experiment.planning.plan import load_experiment
    from t3sim.workload.layer import sublayer_workloads

    given = {"workload.tp": tp, "workload.tokens": tokens}
    points = load_experiment(path, [f"{key}={value}" for key, value in given.items() if value is not None]).runnable
    groups: dict[tuple[str, int], dict[WorkloadSpec, str]] = {}
    for run in points:
        parts = [part for part in sublayer_workloads(run.workload) if part.gemm is not None]
        layer = run.workload.layer
        phase = "generation" if layer is not None and layer.kind == "generation" else ""
        groups.setdefault((_title(run.workload), run.workload.tp), {}).update(dict.fromkeys(parts, phase))
    layers_of_experts = {(run.workload.model, run.workload.experts): run for run in points if run.workload.experts}
    for run in layers_of_experts.values():
        experts = run.workload.experts
        assert experts is not None
        types = experts.element if experts.weights is None else f"{experts.weights}/{experts.element}"
        yield [run.workload.model or "experts", *_experts(experts, types)]
    for (title, n_gpus), found in groups.items():
        if not found and layers_of_experts:
            continue
        if not found:
            yield [f"a collective on {n_gpus} GPUs: no GEMM"]
            continue
        for operator in get_args(OperatorKind):
            headings = GATHERING_HEADINGS if operator == "ag-gemm" else GEMM_HEADINGS
            rows = [_gemm_row(part, phase) for part, phase in found.items() if part.operator == operator]
            if rows:
                yield [f"{title} on {n_gpus} GPUs", *_table(headings, rows)]
    layers = {(run.workload.layer, run.workload.tp, run.machine): run for run in points if run.workload.layer}
    for run in layers.values():
        yield _operators(run)


def _of_model(name: str, tp: int | None, tokens: int | None) -> Iterator[list[str]]:
    from t3sim.workload.models import named_model

    model = named_model(name, None, "workload.model")
    if tokens is None and not model.states_tokens:
        raise UsageError(f"{name} does not say how many tokens there are: give --tokens N")
    degrees = model.spec.tensor_parallel if tp is None else (tp,)
    if not degrees:
        raise UsageError(f"{name} does not say on how many GPUs it runs: give --tp N")
    if model.notes:
        yield [line for text in model.notes for line in wrap_text(text, subsequent_indent="  ")]
    for degree in degrees:
        for i, group in enumerate(model.groups or (model.spec,), start=1):
            spec = group if tokens is None else group.model_copy(update={"tokens": tokens})
            try:
                yield _group(spec, degree, i)
            except ValueError as error:
                raise UsageError(str(error)) from None


def _group(model: ModelSpec, tp: int, number: int) -> list[str]:
    """The GEMMs of a group of like layers on one of *tp* GPUs; raises ``ValueError`` if they cannot be sliced."""
    from t3sim.config.experiment import WorkloadSpec
    from t3sim.config.presets import load_tiling
    from t3sim.workload.sublayers import SUBLAYERS, gemm_of, lacks, projections_of

    if model.group:
        lines = wrap_text(f"group {number}: {model.group}", subsequent_indent="  ")
    else:
        lines = []
    lines += wrap_text(f"{model.name} on {tp} GPUs: {_sizes(model)}", subsequent_indent="  ")
    tiling, rows = load_tiling(), []
    for part in SUBLAYERS:
        if lacks(model, part) is None:
            gemm = gemm_of(model, part, tp)
            spec = WorkloadSpec(model=model.name, sublayer=part, tp=tp, gemm=gemm, tiling=tiling)
            rows.append([*_gemm_row(spec), _types(model, part)])
    if rows:
        lines += aligned([*MODEL_HEADINGS, *rows], n_words=2)
    others = projections_of(model, tp)
    if others:
        is_shared = any(one.name.startswith("shared") for one in others)
        lines.append(f"without a collective of their own{'; shared FC-2: that of the experts' if is_shared else ''}")
        split = {"columns": "columns", "rows": "rows", "none": "not sliced"}
        shapes = []
        for one in others:
            types = _types(model, "FC-2" if one.name.startswith("shared") else "OP")
            name = one.name if one.times == 1 else f"{one.name} ({one.times} times)"
            shapes.append([name, split[one.split], str(one.gemm.m), str(one.gemm.n), str(one.gemm.k), types])
        lines += aligned([PROJECTION_HEADINGS, *shapes], n_words=2)
    if model.moe is not None:
        lines += _experts_of(model, tp)
    if not rows and not others and model.moe is None:
        lines.append("  no GEMM that is simulated")
    return lines


def _experts_of(model: ModelSpec, gpus: int) -> list[str]:
    """Return what a layer of routed experts does on one of *gpus* GPUs that share the experts of *model*."""
    from t3sim.workload.moe import experts_on

    try:
        experts = experts_on(model, gpus)
    except ValueError as error:
        return wrap_text(f"routed experts: {error}", subsequent_indent="  ")
    of = model.elements.experts if model.elements is not None else None
    types = "-" if of is None else of.weights if of.weights == of.activations else f"{of.weights}/{of.activations}"
    return _experts(experts, types)


def _experts(experts: ExpertsSpec, types: str) -> list[str]:
    """Return the table of a layer of routed experts: GEMMs and what leaves a GPU, for its routing."""
    from t3sim.workload.moe import exchanged_bytes, gemms_of, mean_rows, weight_bytes
    from t3sim.workload.routings import routing_of

    routing = routing_of(experts)
    groups = f" of {experts.top_groups} of {experts.groups} groups" if experts.groups else ""
    head = (
        f"routed experts of {experts.gpus} GPUs: {counted(experts.n_experts, 'expert')},"
        f" {experts.experts_per_gpu} on a GPU"
        f"{f' in slices of {experts.tp}' if experts.tp > 1 else ''}, top {experts.top_k}{groups};"
        f" {counted(experts.tokens_per_gpu, 'token')} of each GPU, routing {experts.routing.text}"
        f" (most loaded GPU {routing.imbalance():.2f} x the mean)"
    )
    loads = routing.loads()
    busiest = loads[int(loads.sum(axis=1).argmax())]
    rows = []
    for name, gemm in zip(("MoE FC-1", "MoE FC-2"), gemms_of(experts, mean_rows(experts)), strict=True):
        flops = 2 * int(busiest.sum()) * gemm.n * gemm.k
        fewest, most = int(busiest.min()), int(busiest.max())
        spread = str(most) if fewest == most else f"{fewest} to {most}"
        rows.append([name, spread, str(gemm.n), str(gemm.k), amount(flops / 1e9), types])
    dispatched, combined = exchanged_bytes(experts, routing)
    sent = (
        f"a GPU sends up to {amount(dispatched / 1e6)} MB in dispatch ({experts.sent_element}),"
        f" each token once to a GPU,"
        f" and {amount(combined / 1e6)} MB in combine ({experts.combine_element});"
        f" {amount(weight_bytes(experts) / 1e9, 2)} GB of weights of experts"
    )
    table = aligned([EXPERT_HEADINGS, *rows], n_words=2)
    return [*wrap_text(head, subsequent_indent="  "), *table, *wrap_text(sent, subsequent_indent="  ")]


def _types(model: ModelSpec, sublayer: str) -> str:
    """The element types that the checkpoint states for the operands of a GEMM."""
    if model.elements is None:
        return "-"
    is_attention = sublayer in ("OP", "IP")
    one = model.elements.attention if is_attention else model.elements.feed_forward
    return one.weights if one.weights == one.activations else f"{one.weights}/{one.activations}"


def _title(workload: WorkloadSpec) -> str:
    trace = Path(workload.trace).name if workload.trace is not None else None
    return workload.model or trace or ("GEMM" if workload.collective is None else workload.collective.op)


def _sizes(model: ModelSpec) -> str:
    """Say what a layer of *model* is made of."""
    sizes = [f"hidden {model.hidden}"]
    if "feed-forward" in model.parts:
        sizes.append(f"feed-forward {model.feed_forward_width}{' (gated)' if model.gated else ''}")
    if model.moe is not None:
        top = "" if model.moe.top_k is None else f" (top {model.moe.top_k})"
        sizes.append(f"{model.moe.experts} experts{top} of {model.moe.intermediate}")
    if model.mla is not None:
        heads = f"{model.mla.qk_nope_head_dim} + {model.mla.qk_rope_head_dim}"
        sizes.append(f"{model.heads} heads of {heads}, values of {model.mla.v_head_dim}")
    elif model.heads is not None and "attention" in model.parts:
        kv = "" if model.kv_heads in (None, model.heads) else f", {model.kv_heads} of keys and values"
        values = "" if model.value_dim is None else f", values of {model.value_dim}"
        sizes.append(f"{model.heads} heads of {model.attention_width // model.heads}{kv}{values}")
    sizes.append(counted(model.tokens, "token"))
    if not model.group:
        sizes.append(counted(model.layers, "layer"))
    return ", ".join(sizes)


def _gemm_row(part: WorkloadSpec, phase: str = "") -> list[str]:
    from t3sim.workload.operands import operand_bytes
    from t3sim.workload.outputs import output_bytes
    from t3sim.workload.sublayers import PHASES_OF
    from t3sim.workload.tiling import moved_bytes

    gemm = part.gemm
    assert gemm is not None
    m, n, k = gemm.m, gemm.n, gemm.k
    output, flops = output_bytes(gemm), 2 * m * n * k
    moved = output + operand_bytes(gemm)
    collective = moved_bytes(gemm, part.operator) * (1 if part.operator == "ag-gemm" else 2)
    sent = (part.tp - 1) * collective / part.tp
    phase = phase or PHASES_OF[part.operator].get(part.sublayer or "", "-")
    numbers = [amount(flops / 1e9), amount(output / 1e6), f"{flops / moved:.0f}", amount(sent / 1e6)]
    return [part.sublayer or "-", phase, str(m), str(n), str(k), *numbers]


def _operators(run: RunSpec) -> list[str]:
    """The operators of a layer that are not simulated, with their time."""
    from t3sim.system.layer import operator_parts, operator_seconds
    from t3sim.units import format_time
    from t3sim.workload.layer import other_operators

    layer = run.workload.layer
    assert layer is not None
    rows, total = [], 0.0
    for one in other_operators(layer, run.workload.tp):
        computing, moving = operator_parts(one, run.workload, run.machine)
        took = operator_seconds(one, run.workload, run.machine)
        total += took
        numbers = [amount(number) for number in (one.flops / 1e9, one.n_bytes / 1e6, took * 1e6)]
        rows.append([one.name, one.phase, *numbers, "compute" if computing > moving else "DRAM"])
    launch = run.machine.gpu.kernel_launch
    launches = f", with {format_time(launch)} to launch each" if launch else ""
    head = (
        f"everything else in a layer of {run.workload.model}, {layer.kind}, {layer.attention} attention,"
        f" on {run.workload.tp} GPUs {run.machine.name}: {total * 1e6:.1f} us{launches}"
    )
    return [head, *_table(OPERATOR_HEADINGS, rows)]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"  {line}" for line in aligned([headings, *rows], n_words=2)]
