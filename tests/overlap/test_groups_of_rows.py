"""Tiles in groups of rows under every strategy: every command and value checked, both modes alike, fewer reads."""

from __future__ import annotations

from t3sim.checks.audit import Audit
from t3sim.config.experiment import RunSpec
from t3sim.strategies import in_order
from t3sim.system.simulate import SimulationResult, simulate
from tests.harness.rings import point

HOST = (
    "machine.link.topology=switch", "machine.link.ingress_buffer=16 KiB",
    "machine.gpu.copy_engines={number: 2, startup: 1 us, bandwidth: 30 GB/s, max_outstanding_lines: 8}",
)  # fmt: skip
PARAMS = {"communication_units": 1}
DESIGNS = [one for one in in_order() if one.kind != "estimate" and "moe" not in one.operators]


def of(name: str, group_rows: int, *overrides: str) -> RunSpec:
    """Three rows of tiles for each of two GPUs, in two columns."""
    [strategy] = [one for one in DESIGNS if one.name == name]
    given = [f"strategy.{key}={value}" for key, value in PARAMS.items() if key in strategy.parameters]
    kernel = f"tiling={{preset: gemm-64x64, wavefront_tile: [32, 64], group_rows: {group_rows}}}"
    host = HOST if strategy.name not in ("t3", "t3-mca", "ideal-rs-nmc") else ()
    operator = f"workload.operator={strategy.operators[0]}"
    return point(name, kernel, operator, *host, *given, *overrides, shape=(384, 128, 72), tp=2)


def checked(run: RunSpec) -> SimulationResult:
    """Simulate *run* with every check and with values."""
    audit = Audit(has_checks=True, has_data=True)
    result = simulate(run, audit=audit)
    assert audit.n_values > 0
    return result


def test_tiles_that_run_together_share_their_operands() -> None:
    """Sixteen tiles of a row take 17 rows of tiles of operands through a small L2; four by four of them take eight."""

    def read(group_rows: int) -> int:
        units = "machine.gpu={n_compute_units: 16, l2: {capacity: 256 KiB}}"
        kernel = f"tiling={{preset: gemm-64x64, wavefront_tile: [32, 64], group_rows: {group_rows}}}"
        run = point("sequential", kernel, units, shape=(512, 1024, 512), tp=2)
        [gemm] = [phase for phase in simulate(run).phases if phase.name == "gemm"]
        return int(gemm.counters["class_bytes"]["compute_read"])

    assert read(1) > 1.15 * read(4)
