"""``t3sim advise``: the fastest overlap scheme for the GEMMs of a layer, and why."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from t3sim.cli import PATH
from t3sim.cli._errors import echo
from t3sim.cli._tables import WIDTH, wrap_text
from t3sim.cli.config import folded, override_option
from t3sim.cli.run import note, worker_options
from t3sim.errors import PointsFailed, UsageError, lacking

if TYPE_CHECKING:
    from collections.abc import Sequence

    from t3sim.advice.answer import Answer
    from t3sim.advice.cases import Parallelism
    from t3sim.advice.search import Case, Refusal, Simulate
    from t3sim.advice.thresholds import Sizes
    from t3sim.system.simulate import SimulationResult

SMALL_US = 10.0  # shorter times have a decimal
MOST_PARAGRAPHS = 24  # answers that are explained one by one
MOST_SCHEMES, SCHEME_WIDTH = 6, 12  # columns of a table of thresholds
OF_A_MODEL = {
    "machine": "-s machine=NAME takes another", "tiling": "-s tiling=NAME takes others",
    "tp": "-s workload.tp=8 takes another", "tokens": "-s workload.tokens=1024 takes others",
    "parallelism": "-s workload.operator=gemm-ar takes another",
    "dtype": "-s workload.gemm.element=fp8 takes another",
    "backward": "-s workload.sublayer=IP takes another GEMM", "part": "it decides what is advised on",
    "routing": "-s workload.experts.routing={kind: uniform} takes another",
}  # fmt: skip
INDENT = "  "
PARALLELISM = {"gemm-rs": "sequence", "ag-gemm": "sequence", "gemm-ar": "tensor"}


@click.command()
@click.argument("target")
@click.option("--machine", default="h200", show_default=True, help="A preset or the file of a machine.")
@click.option("--tiling", help="The GEMM kernels: a preset or a file [default: what the machine names].")
@click.option("--tp", default="8", show_default=True, help="Tensor-parallel degrees, like 8 or 2,4,8.")
@click.option("--tokens", default="512..16384", show_default=True, help="Rows of the GEMMs, like 8192 or 512..4096.")
@click.option(
    "--parallelism", type=click.Choice(["auto", "sequence", "tensor"]), default="auto", show_default=True,
    help="Of a model: sequence (RS, AG), tensor (AR), or auto: sequence where TP divides the tokens, else tensor.",
)  # fmt: skip
@click.option(
    "--part", type=click.Choice(["all", "dense", "experts"]), default="all", show_default=True,
    help="Of a model: its GEMMs with a collective, its layers of routed experts, or all.",
)  # fmt: skip
@click.option(
    "--routing", default="balanced", show_default=True,
    help="Routings of tokens to experts, like balanced,uniform,power_law_1.2.",
)  # fmt: skip
@click.option("--dtype", help="Element type of the operands, like fp8 [default: what the checkpoint states].")
@click.option("--backward", is_flag=True, help="The GEMMs of the backward pass instead of the forward pass.")
@click.option(
    "--host", help="How operations are issued, for strategies with a parameter `host`: graph or eager [default: graph]."
)
@click.option("--only-today", is_flag=True, help="Do not simulate what other hardware would add.")
@override_option
@click.option("-o", "--output", type=PATH, help="Output folder [default: results/advice-NAME].")
@worker_options
@click.option("--no-figures", is_flag=True, help="Do not draw figures.")
def advise(
    target: str,
    machine: str,
    tiling: str | None,
    tp: str,
    tokens: str,
    parallelism: Parallelism,
    part: str,
    routing: str,
    dtype: str | None,
    backward: bool,
    host: str | None,
    only_today: bool,
    overrides: tuple[str, ...],
    output: Path | None,
    jobs: int | None,
    scheduler: str | None,
    phases: Path | None,
    no_figures: bool,
) -> None:
    """Name the fastest overlap scheme for each GEMM and each layer of routed experts of TARGET, and why.

    TARGET is a model, as a preset (T-NLG), a YAML file or the config.json of a checkpoint; or an experiment, whose
    GEMMs and machine are taken.  Few of the candidates are simulated: docs/users/advice.md says how they are chosen.

    Writes advice.csv (a row for each GEMM), candidates.csv, exposed.csv (where the time goes) and figures; of routed
    experts experts.csv, experts_candidates.csv, experts_parts.csv and experts_thresholds.csv.
    """
    from t3sim.advice import experts
    from t3sim.advice.cases import cases_of_experiment, cases_of_model, is_experiment, notes_on, numbers
    from t3sim.advice.search import case_of
    from t3sim.cli._experts import advise_experts
    from t3sim.cli._simulator import Simulator
    from t3sim.experiment.planning.plan import load_experiment
    from t3sim.experiment.running.phase_files import PHASES_NAME
    from t3sim.experiment.running.result_folder import default_folder, owned

    if is_experiment(target):
        _refuse_options_of_a_model()
        runs = cases_of_experiment(target, overrides)
        layers = experts.runs_of_experiment(load_experiment(target, overrides))
        name = (runs or layers)[0].experiment
    else:
        sizes = numbers(tp, "--tp"), numbers(tokens, "--tokens")
        phase = "backward" if backward else "forward"
        overrides = overrides if dtype is None else (*overrides, f"workload.element={dtype}")
        runs, layers = [], []

        def left_out(text: str) -> None:
            note(f"left out: {text}")

        if part == "experts" or (part == "all" and experts.has_experts(target)):
            routings = [one.strip() for one in routing.split(",")]
            layers = experts.runs_of_model(target, machine, tiling, *sizes, routings, overrides, left_out)
        if part != "experts":
            try:
                runs = cases_of_model(target, machine, tiling, *sizes, phase, overrides, parallelism, left_out)
            except UsageError as error:
                if not layers:
                    raise
                left_out(error.message)
        first = (runs or layers)[0]
        name = f"{first.workload.model}-{first.machine.name.partition('+')[0]}"
    echo(*(line for text in notes_on(target, overrides) for line in wrap_text(f"note: {text}")))
    directory = output or default_folder(f"advice-{name}")
    with owned(directory), Simulator(phases or directory / PHASES_NAME, jobs, scheduler) as simulate:
        given = {} if host is None else {"host": host}
        files: list[Path] = []
        cases: list[Case] = []
        is_interrupted = False
        if layers:
            files += advise_experts(layers, given, simulate, directory, only_today=only_today)
        if runs:
            cases = [case_of(run, given) for run in runs]
            written, is_interrupted = _advise_gemms(cases, simulate, directory, only_today=only_today)
            files += written
        without_figures = None if no_figures else lacking("figures")
        if without_figures:
            note(without_figures)
        elif not no_figures:
            from t3sim.analysis.advice import draw_advice

            files += draw_advice(directory)
    echo("", *map(str, files))
    if is_interrupted:
        raise KeyboardInterrupt
    if without := sum(not case.is_answered for case in cases):
        raise PointsFailed(
            f"{without} of {len(cases)} GEMMs have no answer: {directory / 'candidates.csv'} has the reasons"
        )


def _advise_gemms(
    cases: Sequence[Case], simulate: Simulate, directory: Path, *, only_today: bool
) -> tuple[list[Path], bool]:
    """Search *cases*, show the answers and write their files; return these, and whether Ctrl-C ended it early.

    What is known by then is answered.  Raises ``KeyboardInterrupt`` if nothing is.
    """
    from t3sim.advice import all_reduces, thresholds
    from t3sim.advice.answer import advice_of, write_advice
    from t3sim.advice.hardware import designs
    from t3sim.advice.profile import small_runs
    from t3sim.advice.validated import Validated
    from t3sim.results.csv_table import table_bytes
    from t3sim.strategies.interface import MEANINGS

    runs = [case.run for case in cases]
    n = sum(len(case.choices) for case in cases)
    kinds = dict.fromkeys(run.workload.operator for run in runs)
    machine_name = runs[0].machine.name.partition("+")[0]  # what was changed is in the answer
    echo(*folded(f"operator    {kind}: {MEANINGS[kind]} ({PARALLELISM[kind]} parallelism)" for kind in kinds))
    echo(f"search      {len(cases)} GEMMs on {machine_name}, {n} candidates")

    def say(text: str) -> None:
        echo(*folded([f"search      {text}"]))

    is_interrupted = False
    try:
        thresholds.settle_sizes(cases, simulate, say)
    except KeyboardInterrupt:
        is_interrupted = True
    searched = [case for case in cases if case.is_settled or case.reference.refused]
    unsettled = [case for case in cases if not case.is_settled and not case.reference.refused]
    answered = [case for case in searched if case.is_answered]
    if is_interrupted:
        if not answered:
            raise KeyboardInterrupt
        note(f"interrupted: this is the answer for {len(answered)} of {len(cases)} GEMMs, as far as it is known")
    is_of_today = only_today or is_interrupted
    with_hardware = {} if is_of_today else designs(thresholds.by_gemm(answered).values(), simulate)
    validated = Validated.of(cases[0].run.machine)
    is_explained = len(searched) <= MOST_PARAGRAPHS
    advice = [advice_of(case, validated, with_hardware.get(id(case)), with_changes=is_explained) for case in searched]
    answers = [answer for one in advice for answer in one.answers]
    by_tokens = thresholds.sizes_of(answers, unsettled)
    echo("", *table(answers))
    for one in by_tokens:
        echo("", *thresholds_table(one))
    if not is_explained:
        note(f"{len(answers)} answers are not explained one by one: ask for fewer tokens, like --tokens 64")
    for answer in answers if is_explained else ():
        echo("", *paragraph(answer))
    more: dict[str, bytes] = {}
    if by_tokens:
        more["thresholds.csv"] = table_bytes(thresholds.COLUMNS, [row for one in by_tokens for row in one.ranges()])
    small: Sequence[SimulationResult | Refusal] = []
    if not is_interrupted:
        echo("", "times of small GEMMs and collectives for profile.json, and figures")
        small = simulate(small_runs(answered))
        if found := all_reduces.simulated(answered, simulate):
            of = cases[0].run.machine
            more["all_reduces.csv"] = table_bytes(all_reduces.COLUMNS, all_reduces.rows(of.name, found))
            more["all_reduces.json"] = all_reduces.tables_bytes(of.name, of.gpu.compute_capability, found)
    estimates = {id(size.case): size for one in by_tokens for size in one.sizes}.values()
    return write_advice(
        directory, advice, small, more, [row for size in estimates for row in size.estimates()]
    ), is_interrupted  # fmt: skip


def _refuse_options_of_a_model() -> None:
    """Raise ``UsageError`` for an option that an experiment file decides."""
    context = click.get_current_context()
    for name, instead in OF_A_MODEL.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"--{name}: TARGET is an experiment, which says so itself; {instead}")


def table(answers: Sequence[Answer]) -> list[str]:
    """Return a table of the winners, at most ``WIDTH`` wide."""
    lines = [f"{'GEMM':13}{'TP':>3}{'tokens':>7} {'winner':19}{'us':>6}{'speedup':>8} {'next':16}{'margin':>6}"]
    lines.append("-" * WIDTH)
    for answer in answers:
        row = answer.row()
        name = " ".join(filter(None, [name_of(row), answer.host]))
        start = f"{name:13.13}{row['tp']:>3}{row['m']:>7} "
        if not answer.case.is_answered:
            lines.append(f"{start}no answer: {row['reason']}"[:WIDTH])
            continue
        margin = "" if answer.margin is None else "tie" if answer.is_tie else f"{answer.margin:.0%}"
        second = "-" if answer.case.runner_up is None else answer.case.runner_up.candidate.scheme
        lines.append(
            f"{start}{row['scheme']:19.19}{row['time_us']:>6.{0 if row['time_us'] >= SMALL_US else 1}f}"
            f"{row['speedup']:>8.2f} {second:16.16}{margin:>6}"
        )
    return lines


def thresholds_table(one: Sizes) -> list[str]:
    """Return the times of the schemes of a GEMM by number of rows, and from which on which of them wins."""
    from t3sim.advice.thresholds import SAME_GEMM

    schemes = one.schemes[:MOST_SCHEMES]
    headings = [wrap(name, SCHEME_WIDTH - 1) for name in schemes]
    height = max(map(len, headings))
    padded = [["", *[""] * (height - len(lines)), *lines][-height:] for lines in headings]
    columns = dict(zip(SAME_GEMM, one.key, strict=False))
    host = "" if one.key[-1] is None else f", host {one.key[-1]}"
    lines = [f"{name_of(columns)}, TP {columns['tp']}{host}, us by tokens: * wins, ~ ties, () estimated"]
    for number, cells in enumerate(zip(*padded, strict=True)):
        start = "tokens" if number == height - 1 else ""
        lines.append(f"{start:>7}" + "".join(f"{cell:>{SCHEME_WIDTH}}" for cell in cells))
    for size in one.sizes:
        times = size.times
        shown: list[str] = []
        for scheme in schemes:
            if scheme not in times:
                shown.append("-")
                continue
            us, is_simulated = times[scheme]
            text = f"{us:.{0 if us >= SMALL_US else 1}f}"
            mark = "*" if scheme == size.winner else "~" if scheme in size.ties else ""
            shown.append(f"{text}{mark}" if is_simulated else f"({text}){mark}")
        lines.append(f"{size.rows:>7}" + "".join(f"{cell:>{SCHEME_WIDTH}}" for cell in shown))
    starts = [f"{winner} from {start}" for *_, start, _, winner, _, _ in one.ranges()]
    return [*lines, *wrap_text(f"Winner: {', '.join(starts)} tokens.")]


def name_of(row: dict[str, object]) -> str:
    """Return what a GEMM is called: its sublayer with its operator, or its shape."""
    gemm = str(row["gemm"] or "GEMM")
    return {"ag-gemm": f"AG+{gemm}", "gemm-ar": f"{gemm}+AR"}.get(str(row["operator"]), gemm)


def paragraph(answer: Answer) -> list[str]:
    """Return the text about one GEMM, in lines of at most ``WIDTH`` characters."""
    row = answer.row()
    head = f"{name_of(row)}, {row['m']} x {row['n']} x {row['k']}, TP {row['tp']}"
    return [head, *(line for text in answer.sentences() for line in wrap_text(text, INDENT, INDENT))]
