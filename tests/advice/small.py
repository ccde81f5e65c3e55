"""An eighth of an H200: as many units, banks and channels for each other."""

from __future__ import annotations

from collections.abc import Sequence

from t3sim.config.experiment import RunSpec
from t3sim.system.parts import PhaseStore
from t3sim.system.simulate import SimulationResult, simulate
from tests.harness.sublayers import point

EIGHTH = (
    "machine.gpu.n_compute_units=16", "machine.memory.n_channels=8", "machine.gpu.l2.n_banks=16",
    "machine.gpu.l2.capacity=7.5 MiB", "machine.gpu.collective_kernel.channels=3", "machine.link.bandwidth=45 GB/s",
)  # fmt: skip

TWO_NODES = (
    "machine.link.topology=two-level", "machine.link.gpus_per_node=2", "machine.link.multicast=null",
    "machine.link.nic={bandwidth: 6 GB/s, latency: 3 us, message_rate: 100000000}",
)  # fmt: skip


def run_of(
    strategy: str = "sequential", *overrides: str, shape: tuple[int, int, int] = (1024, 512, 512), tp: int = 4
) -> RunSpec:
    """Return a GEMM in tiles of 128 x 128 with its collective."""
    every = (*EIGHTH, *overrides)
    return point(strategy, *every, shape=shape, tp=tp, tiling="gemm-128x128", machine="h200")


class Simulator:
    """Simulates points, each once, with one store of their parts."""

    def __init__(self) -> None:
        self._store, self._known = PhaseStore(), dict[str, SimulationResult]()

    def __call__(self, runs: Sequence[RunSpec]) -> list[SimulationResult]:
        """Return the results of *runs*."""
        for run in runs:
            if (key := run.model_dump_json()) not in self._known:
                self._known[key] = simulate(run, None, self._store)
        return [self._known[run.model_dump_json()] for run in runs]
