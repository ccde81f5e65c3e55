"""``t3sim advise``: which way of overlapping wins for the GEMMs of a layer, and why."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from t3sim.cli import PATH
from t3sim.cli._errors import echo
from t3sim.cli.config import override_option
from t3sim.cli.run import note, progress_bar, worker_options, workers_with_cost
from t3sim.errors import UsageError, lacking

if TYPE_CHECKING:
    from collections.abc import Sequence

    from t3sim.advice.answer import Answer
    from t3sim.config.experiment import RunSpec
    from t3sim.system.simulate import SimulationResult

WIDTH = 80
OF_A_MODEL = {
    "machine": "-s machine=NAME takes another", "tiling": "-s tiling=NAME takes others",
    "tp": "-s workload.tp=8 takes another", "tokens": "-s workload.tokens=1024 takes others",
    "backward": "-s workload.sublayer=IP takes another GEMM",
}  # fmt: skip
INDENT = "  "


@click.command()
@click.argument("target")
@click.option("--machine", default="h200", show_default=True, help="A preset or the file of a machine.")
@click.option("--tiling", help="The GEMM kernels: a preset or a file [default: what the machine names].")
@click.option("--tp", default="8", show_default=True, help="Tensor-parallel degrees, like 8 or 2,4,8.")
@click.option("--tokens", default="512..16384", show_default=True, help="Rows of the GEMMs, like 8192 or 512..4096.")
@click.option("--backward", is_flag=True, help="The GEMMs of the backward pass instead of the forward pass.")
@click.option("--host", help="How operations are issued, for strategies that ask: graph or eager [default: graph].")
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
    """Say which way of overlapping wins for each GEMM of TARGET, and why.

    TARGET is a model, as a preset (T-NLG), a YAML file or the config.json of a checkpoint; or an experiment, whose
    GEMMs and machine are taken.  Few of the candidates are simulated: docs/users/advice.md says how they are chosen.

    Writes advice.csv (a row for each GEMM), candidates.csv, exposed.csv (where the time goes) and figures.
    """
    from t3sim.advice.answer import answer_of, hardware_candidate, write_answers
    from t3sim.advice.cases import cases_of_experiment, cases_of_model, is_experiment, notes_on, numbers
    from t3sim.advice.search import case_of, settle
    from t3sim.advice.validated import Validated
    from t3sim.experiment.phase_files import PHASES_NAME
    from t3sim.experiment.phase_runner import PhaseRunner
    from t3sim.experiment.phase_task import ExperimentPoint
    from t3sim.experiment.result_folder import default_folder, owned

    if is_experiment(target):
        _refuse_options_of_a_model()
        runs = cases_of_experiment(target, overrides)
        name = runs[0].experiment
    else:
        sizes = numbers(tp, "--tp"), numbers(tokens, "--tokens")
        phase = "backward" if backward else "forward"
        runs = cases_of_model(target, machine, tiling, *sizes, phase, overrides)
        name = f"{runs[0].workload.model}-{runs[0].machine.name.partition('+')[0]}"
    echo(*(line for text in notes_on(target, overrides) for line in wrap(f"note: {text}", WIDTH)))
    directory = output or default_folder(f"advice-{name}")
    with owned(directory):
        cases = [case_of(run, {} if host is None else {"host": host}) for run in runs]
        n = sum(len(case.choices) for case in cases)
        echo(f"search      {len(cases)} GEMMs on {runs[0].machine.name}, {n} candidates")

        def simulate(wanted: Sequence[RunSpec]) -> list[SimulationResult]:
            runner = PhaseRunner([ExperimentPoint(run) for run in wanted], phases or directory / PHASES_NAME)
            if runner.missing:
                workers = workers_with_cost(runner, jobs, scheduler)
                with progress_bar() as progress, workers.hired(note) as workforce:
                    runner.simulate(workforce, progress, longest_first=True)
            return [runner.results[i].result for i in range(len(wanted))]

        settle(cases, simulate, lambda text: echo(f"search      {text}"))
        hardware = {} if only_today else {i: one for i, run in enumerate(runs) if (one := hardware_candidate(run))}
        results = simulate([one.run(runs[i]) for i, one in hardware.items()])
        designs = {i: (one, result) for (i, one), result in zip(hardware.items(), results, strict=True)}
        validated = Validated.of(runs[0].machine.name)
        answers = [answer_of(case, validated, designs.get(i)) for i, case in enumerate(cases)]
        files = write_answers(directory, answers)
        without_figures = None if no_figures else lacking("figures")
        if without_figures:
            note(without_figures)
        elif not no_figures:
            from t3sim.analysis.advice import draw_advice

            files += draw_advice(directory)
    echo("", *table(answers))
    for answer in answers:
        echo("", *paragraph(answer))
    echo("", *map(str, files))


def _refuse_options_of_a_model() -> None:
    """Raise ``UsageError`` for an option that an experiment file decides."""
    context = click.get_current_context()
    for name, instead in OF_A_MODEL.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"--{name}: TARGET is an experiment, which says so itself; {instead}")


def table(answers: Sequence[Answer]) -> list[str]:
    """Return a table of the winners, at most ``WIDTH`` wide."""
    lines = [f"{'GEMM':8}{'TP':>3}{'tokens':>7}  {'winner':20}{'us':>6}{'speedup':>8}  {'next':18}{'margin':>6}"]
    lines.append("-" * WIDTH)
    for answer in answers:
        row = answer.row()
        margin = "" if answer.margin is None else "tie" if answer.is_tie else f"{answer.margin:.0%}"
        lines.append(
            f"{name_of(row):8.8}{row['tp']:>3}{row['m']:>7}  {row['winner']:20.20}{row['time_us']:>6.0f}"
            f"{row['speedup']:>8.2f}  {row['runner_up'] or '-':19.19}{margin:>5}"
        )
    return lines


def name_of(row: dict[str, object]) -> str:
    """Return what a GEMM is called: its sublayer with its operator, or its shape."""
    where = "AG+" if row["operator"] == "ag-gemm" else ""
    return f"{where}{row['gemm'] or 'GEMM'}"


def paragraph(answer: Answer) -> list[str]:
    """Return what is said about one GEMM, in lines of at most ``WIDTH`` characters."""
    row = answer.row()
    head = f"{name_of(row)}, {row['m']} x {row['n']} x {row['k']}, TP {row['tp']}"
    return [head, *(INDENT + line for text in answer.sentences() for line in wrap(text, WIDTH - len(INDENT)))]
