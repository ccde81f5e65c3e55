"""A folder of results or phases from somebody else is data: nothing in it is ever executed or unpickled."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from t3sim.experiment.running.phase_files import FORMAT
from t3sim.experiment.running.runner import run
from tests.conftest import cases
from tests.harness.here import t3sim_here
from tests.smoke.command_line import rows_of
from tests.sweeps.sweeping import RUN, SWEEP, experiment


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, tripwire: Path) -> None:
        self.tripwire = tripwire

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.tripwire),)


def sealed(content: bytes) -> bytes:
    """Return a phase file as t3sim would write it, but for what is in it."""
    body = zlib.compress(content)
    return b"%s %s\n%s" % (FORMAT, hashlib.sha256(body).hexdigest().encode(), body)


@pytest.mark.parametrize("disguise", cases([bytes, zlib.compress, sealed], sealed))
def test_pickles_in_a_folder_are_never_opened(
    disguise: Callable[[bytes], bytes], undisturbed: Path, tmp_path: Path
) -> None:
    tripwire = tmp_path / "tripwire"
    trap = pickle.dumps(Trap(tripwire))
    folder = tmp_path / "results"
    shutil.copytree(undisturbed, folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".phase", ".csv", ".json", ".parquet", ".yaml", ".gz"}
    for path in files:
        path.write_bytes(disguise(trap))
    if disguise is bytes:
        for command in ("plot", "report"):
            assert "internal error" not in t3sim_here(command, folder, cwd=tmp_path).stderr
    outcome = run(experiment(tmp_path, SWEEP), folder)
    assert (len(outcome.records), len(list((folder / "phases").glob("*.phase")))) == (9, RUN.n_phases)
    assert rows_of(folder) == rows_of(undisturbed)
    assert not tripwire.exists()
    pickle.loads(trap)  # canary: opening it would have been noticed
    assert tripwire.exists()
