"""``t3sim workload``: the GEMMs of a model or an experiment, and what else a layer does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from t3sim.cli._errors import printable
from t3sim.cli.config import aligned
from t3sim.errors import UsageError

if TYPE_CHECKING:
    from t3sim.config.experiment import ModelSpec, RunSpec, WorkloadSpec

GEMM_HEADINGS = ("GEMM", "phase", "M", "N", "local K", "GFLOP", "output MB", "FLOP/byte", "all-reduce MB")
GATHERING_HEADINGS = ("GEMM", "phase", "M", "local N", "K", "GFLOP", "output MB", "FLOP/byte", "all-gather MB")
OPERATOR_HEADINGS = ("operator", "phase", "GFLOP", "MB", "us", "bound by")


@click.group()
def workload() -> None:
    """Show what a model or an experiment computes."""


@workload.command()
@click.argument("what", metavar="EXPERIMENT|MODEL")
@click.option("--tp", type=click.IntRange(1), metavar="N", help="GPUs in the ring [default: those it names].")
@click.option("--tokens", type=click.IntRange(1), metavar="N", help="Rows of every GEMM [default: those it names].")
def show(what: str, tp: int | None, tokens: int | None) -> None:
    """Print the GEMMs of one GPU before their all-reduce or behind an all-gather, and the other operators of a layer.

    WHAT is an experiment file, the config.json of a Hugging Face model, a model file (.yaml) or a model of
    configs/model, such as T-NLG.  MB are 10^6 bytes; all-reduce and all-gather count what one GPU sends.
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
    from t3sim.experiment.plan import load_experiment
    from t3sim.workload.layer import sublayer_workloads

    given = {"workload.tp": tp, "workload.tokens": tokens}
    points = load_experiment(path, [f"{key}={value}" for key, value in given.items() if value is not None]).runnable
    groups: dict[tuple[str, int], dict[WorkloadSpec, None]] = {}
    for run in points:
        parts = [part for part in sublayer_workloads(run.workload) if part.gemm is not None]
        groups.setdefault((_title(run.workload), run.workload.tp), {}).update(dict.fromkeys(parts))
    for (title, n_gpus), found in groups.items():
        if not found:
            yield [f"a collective on {n_gpus} GPUs: no GEMM"]
            continue
        for operator in get_args(OperatorKind):
            headings = GATHERING_HEADINGS if operator == "ag-gemm" else GEMM_HEADINGS
            rows = [_gemm_row(part) for part in found if part.operator == operator]
            if rows:
                yield [f"{title} on {n_gpus} GPUs", *_table(headings, rows)]
    layers = {(run.workload.layer, run.workload.tp, run.machine): run for run in points if run.workload.layer}
    for run in layers.values():
        yield _operators(run)


def _of_model(name: str, tp: int | None, tokens: int | None) -> Iterator[list[str]]:
    from t3sim.config.experiment import WorkloadSpec
    from t3sim.config.presets import load_tiling
    from t3sim.workload.models import named_model
    from t3sim.workload.sublayers import SUBLAYERS, gemm_of

    model = named_model(name, None, "workload.model")
    if tokens is None and not model.states_tokens:
        raise UsageError(f"{name} does not say how many tokens there are: give --tokens N")
    degrees = model.spec.tensor_parallel if tp is None else (tp,)
    if not degrees:
        raise UsageError(f"{name} does not say on how many GPUs it runs: give --tp N")
    spec = model.spec if tokens is None else model.spec.model_copy(update={"tokens": tokens})
    tiling = load_tiling()
    for degree in degrees:
        try:
            parts = [
                WorkloadSpec(model=spec.name, sublayer=part, tp=degree, gemm=gemm_of(spec, part, degree), tiling=tiling)
                for part in SUBLAYERS
            ]
        except ValueError as error:
            raise UsageError(str(error)) from None
        head = f"{spec.name} on {degree} GPUs: {_sizes(spec)}"
        yield [head, *_table(GEMM_HEADINGS, [_gemm_row(part) for part in parts])]


def _title(workload: WorkloadSpec) -> str:
    trace = Path(workload.trace).name if workload.trace is not None else None
    return workload.model or trace or ("GEMM" if workload.collective is None else workload.collective.op)


def _sizes(model: ModelSpec) -> str:
    """Say what a layer of *model* is made of."""
    sizes = [f"hidden {model.hidden}", f"feed-forward {model.feed_forward_width}{' (gated)' if model.gated else ''}"]
    if model.heads is not None:
        kv = "" if model.kv_heads in (None, model.heads) else f", {model.kv_heads} of keys and values"
        sizes.append(f"{model.heads} heads of {model.attention_width // model.heads}{kv}")
    return ", ".join([*sizes, f"{model.tokens} tokens"])


def _gemm_row(part: WorkloadSpec) -> list[str]:
    from t3sim.workload.sublayers import PHASES_OF
    from t3sim.workload.tiling import ELEMENT_BYTES

    gemm = part.gemm
    assert gemm is not None
    m, n, k = gemm.m, gemm.n, gemm.k
    output, flops = m * n * ELEMENT_BYTES, 2 * m * n * k
    moved = output + (m + n) * k * ELEMENT_BYTES
    collective = m * k * ELEMENT_BYTES if part.operator == "ag-gemm" else 2 * output
    sent = (part.tp - 1) * collective / part.tp
    phase = PHASES_OF[part.operator].get(part.sublayer or "", "-")
    numbers = [f"{flops / 1e9:.1f}", f"{output / 1e6:.1f}", f"{flops / moved:.0f}", f"{sent / 1e6:.1f}"]
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
        numbers = [f"{number:.1f}" for number in (one.flops / 1e9, one.n_bytes / 1e6, took * 1e6)]
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
