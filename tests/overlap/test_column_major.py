"""GEMMs with arrays stored by columns: every command and value checked; refused where somebody owns rows."""

from __future__ import annotations

from itertools import product

import pytest

from t3sim.checks.audit import Audit
from t3sim.config.experiment import RunSpec
from t3sim.errors import ConfigError
from t3sim.system.simulate import simulate
from tests.conftest import cases
from tests.harness.rings import point

BY_COLUMNS = "tiling={preset: gemm-64x64, wavefront_tile: [64, 32], column_major: true}"
SHAPE = (200, 250, 72)  # ragged both ways


def of(strategy: str, *overrides: str, by_columns: bool = True) -> RunSpec:
    return point(strategy, *([BY_COLUMNS] if by_columns else []), *overrides, shape=SHAPE, tp=3)


RUNS = list(product(("sequential", "t3", "t3-mca"), ("64 B", "32 B"), ("mirrored", "explicit")))
# Each strategy, each access and each mode with each other, but for MCA, which orders the requests of `t3` otherwise.
QUICK = [
    ("sequential", "64 B", "mirrored"), ("sequential", "32 B", "explicit"), ("t3", "64 B", "explicit"),
    ("t3", "32 B", "mirrored"), ("t3-mca", "32 B", "mirrored"),
]  # fmt: skip


@pytest.mark.parametrize(("strategy", "access", "mode"), cases(RUNS, *QUICK, n_names=3))
def test_every_command_and_every_value(strategy: str, access: str, mode: str) -> None:
    """Does the independent checker agree, and is the sum over all GPUs what NumPy says?"""
    memory = () if access == "64 B" else ("machine.memory={preset: hbm2-1tb-32b, n_channels: 2}",)
    audit = Audit(has_checks=True, has_data=True)
    simulate(of(strategy, *memory, f"mode={mode}"), audit=audit)
    assert audit.n_values > 0


def test_nobody_owns_rows_of_it() -> None:
    with pytest.raises(ConfigError, match="here GPUs own rows of the output"):
        simulate(of("flux-push", "machine.link.topology=switch", "machine.link.ingress_buffer=16 KiB"))


def test_rows_are_not_gathered_for_it() -> None:
    with pytest.raises(ConfigError, match="is for a GEMM whose output is reduced"):
        of("sequential", "workload.operator=ag-gemm")
