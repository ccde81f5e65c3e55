"""What is asked: the GEMMs of a model's layer at several sizes, or those of an experiment file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from t3sim.config.experiment import OperatorKind, RunSpec
from t3sim.config.yaml_loader import load_yaml
from t3sim.errors import UsageError
from t3sim.experiment.plan import load_experiment
from t3sim.files import publish
from t3sim.workload.sublayers import PHASES_OF

MOST_CASES = 200
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


def is_experiment(path: Path) -> bool:
    """Return whether *path* is an experiment file, and not a model."""
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return False
    root = load_yaml(path)
    return root.is_mapping and "workload" in root.value


def cases_of_experiment(path: Path, overrides: Sequence[str]) -> list[RunSpec]:
    """Return each GEMM of the experiment once, whatever strategies it names."""
    runs = {
        (one.machine, one.workload): one
        for one in load_experiment(path, overrides).points
        if one.workload.gemm is not None and one.workload.tp > 1
    }
    if not runs:
        raise UsageError(f"{path}: has no GEMM on more than one GPU to advise on")
    return _checked(list(runs.values()))


def cases_of_model(
    model: str, machine: str, tiling: str, tps: Sequence[int], tokens: Sequence[int], phase: str, folder: Path,
    overrides: Sequence[str],
) -> list[RunSpec]:
    """Return the GEMMs of a layer of *model* in one *phase* (forward, backward) at each degree and number of tokens.

    They are those of two experiments, one for each operator, which are written into *folder*.
    """  # fmt: skip
    named = str(Path(model).resolve()) if Path(model).is_file() else model
    found = []
    for operator, phases in PHASES_OF.items():
        path = folder / f"{operator}.yaml"
        sublayers = [name for name, when in phases.items() if when == phase]
        publish({path: _experiment(named, machine, tiling, operator, sublayers, tps, tokens).encode()})
        found += cases_of_experiment(path, overrides)
    return _checked(found)


def _experiment(
    model: str, machine: str, tiling: str, operator: OperatorKind, sublayers: Sequence[str], tps: Sequence[int],
    tokens: Sequence[int],
) -> str:  # fmt: skip
    return (
        f"description: Written by `t3sim advise`.\nname: {operator}\nmachine: {machine}\ntiling: {tiling}\n"
        f"workload: {{model: '{model}', operator: {operator}}}\nstrategy: sequential\nsweep:\n  grid:\n"
        f"    workload.tp: {list(tps)}\n    workload.tokens: {list(tokens)}\n"
        f"    workload.sublayer: [{', '.join(sublayers)}]\n"
    )


def _checked(runs: list[RunSpec]) -> list[RunSpec]:
    for run in runs:
        if not run.machine.is_uniform or run.mode != "mirrored":
            raise UsageError("mode: advice is on rings of identical GPUs in mirrored mode; others take `t3sim run`")
    if len(runs) > MOST_CASES:
        raise UsageError(f"{len(runs)} GEMMs are asked for, at most {MOST_CASES} are searched at once")
    return runs
