"""Cases of a search: the GEMMs of a model's layer at several sizes, or those of an experiment file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Literal

from t3sim.config.experiment import OperatorKind, RunSpec
from t3sim.config.yaml_loader import load_yaml
from t3sim.errors import ConfigError, Problem, UsageError
from t3sim.experiment.planning.plan import MAPPING, Experiment, load_experiment
from t3sim.experiment.planning.shipped import shipped_experiments
from t3sim.workload.models import named_model
from t3sim.workload.sublayers import PHASES_OF, TURNED_AROUND, lacks

MOST_CASES = 200
Parallelism = Literal["auto", "sequence", "tensor"]
OPTIONS = {
    "workload.model": "TARGET", "workload.tp": "--tp", "workload.tokens": "--tokens", "workload.element": "--dtype",
    "workload.experts.ep": "--tp", "workload.experts.routing": "--routing",
    "workload.experts.tokens_per_gpu": "--tokens",
    "machine": "--machine",
    "tiling": "--tiling", "sweep.grid.workload.tp": "--tp", "sweep.grid.workload.tokens": "--tokens",
}  # fmt: skip
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def numbers(text: str, option: str) -> list[int]:
    """Return the numbers that *text* names: ``8``, ``4,8``, or ``512..4096``, each twice the one before.

    Raises ``UsageError`` that names *option*.
    """
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match:
            low, high = int(match[1]), int(match[2])
            if low > high:
                raise UsageError(f"{option} {text}: the range {low}..{high} is empty; did you mean {high}..{low}?")
            found += [low << i for i in range(64) if 0 < low << i <= high]
        elif part.strip().isdigit() and int(part):
            found.append(int(part))
        else:
            example = "8192, a list like 1024,2048, or a range like 512..4096 (512, 1024, 2048, 4096)"
            raise UsageError(
                f"{option} {text}: `{part.strip()}` is not a whole number above 0; write a number like {example}"
            )
    if not found:
        raise UsageError(f"{option} {text}: a number must be above 0")
    return list(dict.fromkeys(found))


def is_experiment(target: str) -> bool:
    """Return whether *target* is an experiment, a file or a shipped one by its name, and not a model."""
    path = Path(target)
    if not path.is_file():
        return target in shipped_experiments()
    if path.suffix not in (".yaml", ".yml"):
        return False
    root = load_yaml(path)
    return root.is_mapping and "workload" in root.value


def cases_of_experiment(target: str, overrides: Sequence[str]) -> list[RunSpec]:
    """Return each GEMM of the experiment once, whatever strategies it names; none if all of it is routed experts."""
    loaded = load_experiment(target, overrides)
    is_of_experts = all(one.workload.experts is not None for one in loaded.runnable)
    return [] if is_of_experts else _checked(_gemms(target, loaded))


def cases_of_model(
    model: str, machine: str, tiling: str | None, tps: Sequence[int], tokens: Sequence[int], phase: str,
    overrides: Sequence[str], parallelism: Parallelism = "auto", left_out: Callable[[str], None] = lambda _text: None,
) -> list[RunSpec]:  # fmt: skip
    """Return the GEMMs of a layer of *model* in one *phase* (forward, backward) at each degree and number of tokens.

    With sequence *parallelism* they reduce and scatter, or gather, the rows; with tensor parallelism alone two of them
    reduce all, and the others communicate nothing.  ``auto``: the first where tp divides the tokens.  *left_out*
    receives each GEMM that cannot be had while others can.  Raises ``UsageError`` that names the option of each problem
    if none can.
    """
    found: list[RunSpec] = []
    problems: list[str] = []
    whole: list[str] = []
    tps = [tp for tp in tps if tp > 1] or tps
    for operator, sublayers, own_tokens, tp in _grids(model, tps, tokens, phase, parallelism):
        try:
            found += _of_grid(model, machine, tiling, operator, sublayers, own_tokens, tp, overrides)
            continue
        except UsageError as error:
            whole.append(error.message)
        for name, n in product(sublayers, own_tokens):
            try:
                found += _of_grid(model, machine, tiling, operator, [name], [n], tp, overrides)
            except UsageError as error:
                problems.append(f"{name} ({operator}), TP {tp}, {n} tokens: {error.message}")
    if not found:
        raise UsageError("\n".join(dict.fromkeys(whole)) or f"{model}: has no such GEMM")
    for problem in problems:
        left_out(problem)
    return _checked(found)


def notes_on(target: str, overrides: Sequence[str]) -> tuple[str, ...]:
    """Return what has to be said of the models of *target*, such as a checkpoint that is not in 16 bit."""
    if is_experiment(target):
        return load_experiment(target, overrides).notes
    return named_model(target).notes


def _has(model: str, sublayer: str) -> bool:
    """Return whether any layer of *model* has *sublayer*; a model that cannot be read is reported where it is named."""
    try:
        found = named_model(model)
    except ConfigError:
        return True
    return lacks(found.with_sublayer(sublayer), TURNED_AROUND.get(sublayer, sublayer)) is None


def _grids(
    model: str, tps: Sequence[int], tokens: Sequence[int], phase: str, parallelism: Parallelism
) -> Iterator[tuple[OperatorKind, list[str], list[int], int]]:
    """Yield operators, their sublayers in a *phase*, and for which numbers of tokens and degree."""
    asked: tuple[OperatorKind, ...] = ("gemm-rs", "ag-gemm", "gemm-ar")
    for operator in asked:
        sublayers = [name for name, when in PHASES_OF[operator].items() if when == phase and _has(model, name)]
        for tp in tps if sublayers else ():
            chosen = {n: ("tensor" if n % tp else "sequence") if parallelism == "auto" else parallelism for n in tokens}
            own = [n for n in tokens if chosen[n] == ("tensor" if operator == "gemm-ar" else "sequence")]
            if own:
                yield operator, sublayers, own, tp


def _of_grid(
    model: str, machine: str, tiling: str | None, operator: OperatorKind, sublayers: Sequence[str],
    tokens: Sequence[int], tp: int, overrides: Sequence[str],
) -> list[RunSpec]:  # fmt: skip
    experiment = {
        "name": operator, "machine": machine, "strategy": "sequential",
        "workload": {"model": model, "operator": operator},
        "sweep": {"grid": {"workload.tp": [tp], "workload.tokens": [*tokens], "workload.sublayer": [*sublayers]}},
    }  # fmt: skip
    try:
        if tiling is not None:
            experiment["tiling"] = tiling
        loaded = load_experiment(experiment, overrides)
    except ConfigError as error:
        raise UsageError("\n".join(dict.fromkeys(map(said_of_an_option, error.problems)))) from None
    if loaded.unmade:
        problems = [problem for error in loaded.unmade.values() for problem in error.problems]
        raise UsageError("\n".join(dict.fromkeys(map(said_of_an_option, problems))))
    if loaded.refused:
        raise UsageError(next(iter(loaded.refused.values())))
    return _gemms(model, loaded)


def said_of_an_option(problem: Problem) -> str:
    """Return the message of a problem in what options gave; of a file of theirs, with its place."""
    if problem.file != MAPPING:
        return str(problem)
    option = next((name for key, name in OPTIONS.items() if problem.key.startswith(key)), problem.key)
    return f"{option}: {problem.message}"


def _gemms(name: str, experiment: Experiment) -> list[RunSpec]:
    """Return each GEMM of *experiment* once, whatever strategies it names."""
    found = {
        (one.machine, one.workload): one
        for one in experiment.runnable
        if one.workload.gemm is not None and one.workload.tp > 1
    }
    if not found:
        raise UsageError(f"{name}: has no GEMM on more than one GPU to advise on")
    return list(found.values())


def _checked(runs: list[RunSpec]) -> list[RunSpec]:
    for run in runs:
        if not run.machine.is_uniform or run.mode != "mirrored":
            raise UsageError("mode: advice is on rings of identical GPUs in mirrored mode; others take `t3sim run`")
    if len(runs) > MOST_CASES:
        raise UsageError(f"{len(runs)} GEMMs are asked for, at most {MOST_CASES} are searched at once")
    return runs
