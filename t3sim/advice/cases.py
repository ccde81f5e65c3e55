"""What is asked: the GEMMs of a model's layer at several sizes, or those of an experiment file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from t3sim.config.experiment import RunSpec
from t3sim.config.presets import library_of
from t3sim.config.yaml_loader import Position, load_yaml
from t3sim.errors import ConfigError, Problem, UsageError
from t3sim.experiment.plan import MAPPING, Experiment, load_experiment
from t3sim.experiment.shipped import shipped_experiments
from t3sim.workload.models import named_model
from t3sim.workload.sublayers import PHASES_OF, TURNED_AROUND, lacks

MOST_CASES = 200
OPTIONS = {
    "workload.model": "TARGET", "workload.tp": "--tp", "workload.tokens": "--tokens", "machine": "--machine",
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
            found += [low << i for i in range(64) if 0 < low << i <= high]
        elif part.strip().isdigit() and int(part):
            found.append(int(part))
        else:
            raise UsageError(f"{option} {text}: needs numbers like 8, 4,8 or 512..4096 (each twice the one before)")
    if not found:
        raise UsageError(f"{option} {text}: names no number")
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
    """Return each GEMM of the experiment once, whatever strategies it names."""
    return _checked(_gemms(target, load_experiment(target, overrides)))


def cases_of_model(
    model: str, machine: str, tiling: str | None, tps: Sequence[int], tokens: Sequence[int], phase: str,
    overrides: Sequence[str],
) -> list[RunSpec]:  # fmt: skip
    """Return the GEMMs of a layer of *model* in one *phase* (forward, backward) at each degree and number of tokens.

    Raises ``UsageError`` that names the option of each problem.
    """
    found: list[RunSpec] = []
    for operator in ("gemm-rs", "ag-gemm"):  # of a layer with sequence parallelism
        sublayers = [name for name, when in PHASES_OF[operator].items() if when == phase and _has(model, name)]
        if not sublayers:
            continue
        experiment = {
            "name": operator, "machine": machine, "strategy": "sequential",
            "workload": {"model": model, "operator": operator},
            "sweep": {"grid": {"workload.tp": tps, "workload.tokens": tokens, "workload.sublayer": sublayers}},
        }  # fmt: skip
        try:
            experiment["tiling"] = tiling or library_of(machine, Position(MAPPING))
            found += _gemms(model, load_experiment(experiment, overrides))
        except ConfigError as error:
            raise UsageError("\n".join(dict.fromkeys(map(_said_of_an_option, error.problems)))) from None
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


def _said_of_an_option(problem: Problem) -> str:
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
