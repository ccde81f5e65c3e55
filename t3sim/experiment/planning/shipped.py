"""Shipped experiments by name: the folders of ``experiments/``."""

import os
from pathlib import Path

from t3sim.config.presets import shipped
from t3sim.errors import ConfigError, Problem
from t3sim.registry import unknown_name

FILE_NAME = "experiment.yaml"


def shipped_experiments() -> dict[str, Path]:
    """Return the files of the experiments by their names."""
    return {path.parent.name: path for path in sorted(shipped("experiments").glob(f"*/{FILE_NAME}"))}


def experiment_file(name: str | os.PathLike[str]) -> Path:
    """Return the file called *name*: a path, or one of the shipped experiments unless there is such a file.

    Raises ``ConfigError`` for what is neither and looks like a name.
    """
    path = Path(name)
    if path.suffix or path.name != os.fspath(name) or os.path.isfile(path):  # noqa: PTH113 - never raises
        return path
    known = shipped_experiments()
    if path.name not in known:
        message = f"no such file; {unknown_name('experiment', path.name, list(known))}"
        raise ConfigError(Problem(path.name, 0, 0, "", message))
    return known[path.name]
