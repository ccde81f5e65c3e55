"""``t3sim trace``: make, import, show and check tile traces."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from t3sim.cli import PATH
from t3sim.cli._errors import printable
from t3sim.companions import module_of
from t3sim.errors import UsageError

if TYPE_CHECKING:
    from t3sim.config.experiment import TilingSpec
    from t3sim.workload.tiling import TileTrace

output_option = click.option(
    "-o", "--output", type=PATH, required=True, help="File to write; its name ends in .parquet."
)


@click.group()
def trace() -> None:
    """Make, import, show and check tile traces: the workgroups of a GEMM in dispatch order."""


@trace.command()
@click.option(
    "--model", metavar="NAME", help="Model of configs/model, such as T-NLG, or a config.json; with --sublayer."
)
@click.option("--tokens", type=click.IntRange(1), metavar="N", help="Rows of the GEMM [default: those of the model].")
@click.option("--sublayer", metavar="NAME", help="OP, FC-2, FC-1 or IP.")
@click.option("--gemm", metavar="M,N,K", help="A bare GEMM instead, in elements; K is local to a GPU.")
@click.option("--tp", type=int, required=True, help="GPUs in the ring: the output is cut into as many chunks.")
@click.option("--tiling", metavar="NAME", help="Tiling of configs/kernel; default: the one experiments use.")
@output_option
def make(
    model: str | None,
    tokens: int | None,
    sublayer: str | None,
    gemm: str | None,
    tp: int,
    tiling: str | None,
    output: Path,
) -> None:
    """Write the trace of a GEMM: OUTPUT and its manifest."""
    from t3sim.config.experiment import GemmShape
    from t3sim.config.presets import DEFAULT_TILING, load_tiling
    from t3sim.workload.models import named_model
    from t3sim.workload.sublayers import gemm_of, sublayer_spelled
    from t3sim.workload.tiling import make_tile_trace

    if gemm is not None and (model is not None or sublayer is not None or tokens is not None):
        raise UsageError("give either --gemm, or --model with --sublayer")
    _check_name(output)
    tiling = tiling or DEFAULT_TILING
    spec = load_tiling(tiling)
    words = ["t3sim", "trace", "make"]
    try:
        if gemm is not None:
            m, n, k = _whole_numbers("--gemm", gemm, "three", "M,N,K", "8192,4256,2128")
            shape = GemmShape(m=m, n=n, k=k)
            words += ["--gemm", f"{m},{n},{k}"]
        elif model is None or sublayer is None:
            raise UsageError("give --model with --sublayer, or --gemm M,N,K")
        else:
            known = named_model(model)
            if tokens is None and not known.states_tokens:
                raise UsageError(f"--model {model}: does not say how many tokens there are; give --tokens")
            spoken = known.spec if tokens is None else known.spec.model_copy(update={"tokens": tokens})
            sublayer = sublayer_spelled(sublayer)
            shape = gemm_of(spoken, sublayer, tp)
            of_tokens = ["--tokens", str(tokens)] if tokens is not None else []
            words += ["--model", known.spec.name, "--sublayer", sublayer, *of_tokens]
        made = make_tile_trace(shape, spec, tp)
    except ValueError as error:
        raise UsageError(str(error)) from None
    _write(output, made, origin=shlex.join([*words, "--tp", str(tp), "--tiling", tiling]))


@trace.command("import")
@click.argument("recorded", type=PATH)
@click.option("--model", metavar="NAME", help="Which timeline, if the file has several: its model,")
@click.option("--sublayer", metavar="NAME", help="its sublayer,")
@click.option("--kernel", metavar="NAME", help="its kernel.")
@click.option(
    "--gemm", metavar="M,N,K", help="Shape of the GEMM, where the file does not state it; K is local to a GPU."
)
@click.option("--scope", metavar="NAME", help="Span of Proton, or event of iris, that marks the start of a tile.")
@click.option("--rank", type=click.IntRange(0), metavar="N", help="GPU, if a trace of iris has several.")
@click.option("--tp", type=click.IntRange(1), help="GPUs in the ring [default: what K was cut by].")
@click.option("--tile", metavar="ROWS,COLUMNS", help="Workgroup tile, where the file does not state it.")
@click.option("--tiling", metavar="NAME", help="Tiling of configs/kernel for what a recording does not state.")
@output_option
def import_(
    recorded: Path,
    model: str | None,
    sublayer: str | None,
    kernel: str | None,
    gemm: str | None,
    scope: str | None,
    rank: int | None,
    tp: int | None,
    tile: str | None,
    tiling: str | None,
    output: Path,
) -> None:
    """Make a trace of a kernel recorded on a GPU.

    RECORDED is a tile timeline (`t3sim measure tile_timelines`), a Chrome trace of Proton (Triton's intra-kernel
    profiler) or iris, or a kernel trace of Accel-Sim (kernel-1.traceg, also .xz or .gz); these need --gemm and --tp.
    The tiles are in the order in which they started.
    """
    from t3sim.config.presets import DEFAULT_TILING, load_tiling

    orders = module_of("t3lab.measurements.tile_orders", "trace import")
    _check_name(output)
    numbers = [] if tile is None else _whole_numbers("--tile", tile, "two", "ROWS,COLUMNS", "128,256")
    size = None if tile is None else (numbers[0], numbers[1])
    spec = load_tiling(tiling or DEFAULT_TILING)
    if orders.is_recorded_elsewhere(recorded):
        if model is not None or sublayer is not None:
            raise UsageError("--model and --sublayer are of timelines of t3sim; a trace of another program has neither")
        _import_order(orders, recorded, (gemm, tp, size), spec, (kernel, scope, rank), output)
        return
    if (gemm, scope, rank) != (None, None, None):
        raise UsageError("--gemm, --scope and --rank are of traces of other programs; a timeline states its shape")
    timeline = module_of("t3lab.measurements.timeline", "trace import")
    found = timeline.read_timelines(recorded)
    chosen = timeline.select(found, model, sublayer, kernel)
    n_chunks = tp or chosen[2]
    if n_chunks < 2:
        raise UsageError("a bare GEMM does not say how many GPUs there are; give --tp")
    made = timeline.tile_trace(found[chosen], spec, n_chunks, size)
    name = timeline.shown(chosen)
    _write(output, made, f"recorded on a GPU: {name}; {recorded.name}", f", of {name}")


def _import_order(
    orders: Any, recorded: Path, stated: tuple[str | None, int | None, tuple[int, int] | None], spec: TilingSpec,
    names: tuple[str | None, str | None, int | None], output: Path,
) -> None:  # fmt: skip
    """Write the trace of what another program recorded; *stated*: shape, GPUs and tile as the options say."""
    from t3sim.config.experiment import GemmShape
    from t3sim.workload.tiling_rules import check_tiling

    gemm, tp, size = stated
    if gemm is None or tp is None:
        raise UsageError(f"{recorded.name} states neither shape nor number of GPUs; give --gemm M,N,K and --tp")
    m, n, k = _whole_numbers("--gemm", gemm, "three", "M,N,K", "8192,4256,2128")
    spec = spec if size is None else spec.model_copy(update={"workgroup_tile": size})
    try:
        check_tiling(spec)
    except ValueError as error:
        raise UsageError(f"--tile: {error}") from None
    wanted = orders.Wanted(GemmShape(m=m, n=n, k=k), spec, *names)
    order = orders.read_order(recorded, wanted)
    origin = f"recorded by another program: {order.name}; {recorded.name}"
    _write(output, orders.tile_trace(order, wanted, tp), origin, f", of {order.name}")


@trace.command()
@click.argument("file", type=PATH)
@click.option(
    "--slots", type=click.IntRange(min=1), default=80, show_default=True, help="Workgroups resident at a time."
)
@click.option(
    "--access", type=click.Choice(["32", "64"]), default="64", show_default=True, help="Bytes of a DRAM access."
)
def show(file: Path, slots: int, access: str) -> None:
    """Describe the content of a trace."""
    from t3sim.workload.operands import k_slice_of
    from t3sim.workload.outputs import output_bytes, output_name
    from t3sim.workload.tiling import expected_chunk_bytes
    from t3sim.workload.trace_file import content_digest, read_manifest, read_trace

    tiles, origin = read_trace(file), read_manifest(file).origin
    gemm, tiling = tiles.gemm, tiles.tiling
    (height, width), (down, across) = tiling.workgroup_tile, tiles.wavefront_grid
    clipped = (tiles.workgroups["n_rows"] < height) | (tiles.workgroups["n_columns"] < width)
    n_wavefronts = int(tiles.chunk_wavefronts().sum())
    full, rest = divmod(tiles.n_workgroups, slots)
    last = f", the last with {rest} workgroups" if rest else ""
    panels = f", in {tiling.split_k} panels" if tiling.split_k > 1 else ""
    lines = {
        "origin": printable(origin),
        "digest": content_digest(tiles),
        "GEMM": f"{gemm.m} x {gemm.n} x {gemm.k} (m x n x local k), output {_mebibytes(output_bytes(gemm))}"
        f" in {output_name(gemm)}",
        "workgroups": f"{tiles.n_workgroups} of {height} x {width} elements, {int(clipped.sum())} clipped at the edges",
        "wavefronts": f"{n_wavefronts} of {tiles.wavefront_tile[0]} x {tiles.wavefront_tile[1]} elements,"
        f" {down} x {across} per workgroup",
        "K loop": f"slices of {k_slice_of(gemm, tiling)} elements, {tiling.prefetch_depth} loaded ahead" + panels,
        "stages": f"{full + bool(rest)} at {slots} workgroup slots{last}",
        "chunks": str(tiles.n_chunks),
    }
    click.echo(str(file))
    for name, text in lines.items():
        click.echo(f"  {name:<11} {text}")
    click.echo(f"\n  chunk  workgroups  stages  wavefronts     elements  stored ({access} B accesses)")
    stored = expected_chunk_bytes(tiles, int(access))
    rows = zip(tiles.chunk_ranges, tiles.chunk_wavefronts(), tiles.chunk_elements(), stored, strict=True)
    for chunk, ((start, stop), wavefronts, elements, n_bytes) in enumerate(rows):
        n, size = int(stop - start), _mebibytes(int(n_bytes))
        click.echo(f"  {chunk:>5}  {n:>10}  {n / slots:>6.2f}  {wavefronts:>10}  {elements:>11}  {size}")


@trace.command()
@click.argument("file", type=PATH)
@click.pass_context
def check(context: click.Context, file: Path) -> None:
    """Check every rule of a trace.

    Lists the first 20 problems and exits with 3 if there are any.
    """
    from t3sim.workload.trace_file import check_trace

    problems = check_trace(file)
    if not problems:
        click.echo(f"{file}: a valid trace")
        return
    click.echo(f"{file}: not a valid trace:", err=True)
    for problem in problems:
        click.echo(f"  {printable(problem)}", err=True)
    context.exit(3)


def _check_name(output: Path) -> None:
    if output.suffix != ".parquet":
        raise UsageError(f"--output {output}: a trace file name ends in .parquet")


def _write(output: Path, made: TileTrace, origin: str, what: str = "") -> None:
    """Write a trace and its manifest, and say so."""
    from t3sim.files import prepare_folder
    from t3sim.workload.trace_file import manifest_path, write_trace

    prepare_folder(output.parent)
    write_trace(output, made, origin)
    click.echo(f"{output}: {made.n_workgroups} workgroups in {made.n_chunks} chunks{what}")
    click.echo(f"{manifest_path(output)}: its manifest")


def _whole_numbers(option: str, text: str, count: str, names: str, example: str) -> list[int]:
    """Return the numbers of an option such as ``M,N,K``."""
    parts = text.split(",")
    is_whole = all(re.fullmatch(" *[1-9][0-9]{0,17} *", part) for part in parts)
    if not is_whole or len(parts) != len(names.split(",")):
        raise UsageError(f"{option} {text}: write {count} whole numbers above 0, {names}, such as {example}")
    return [int(part) for part in parts]


def _mebibytes(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.2f} MiB ({n_bytes} B)"
