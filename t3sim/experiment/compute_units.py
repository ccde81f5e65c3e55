"""``collective_compute_units:`` how many compute units `cu-split` takes from the GEMM, and which strategies use it."""

from __future__ import annotations

from collections.abc import Sequence

from t3sim.config.experiment import STRATEGIES
from t3sim.config.machine import MachineSpec
from t3sim.config.yaml_loader import Node, Position
from t3sim.experiment.problems import Problems

KEY = "collective_compute_units"
USER = "cu-split"


class CollectiveComputeUnits:
    """Reads the key of each point and remembers whether any strategy of the experiment uses it."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self._unused: Position | None = None

    def of_point(
        self, tree: Node, strategy: str | None, strategies: set[str], known: Sequence[str], machine: MachineSpec | None
    ) -> int | None:
        """The value, if *strategy* uses it: `cu-split`, which needs it, and strategies of the user's own.

        *strategies* are those of the whole experiment, *known* those that exist.
        """
        users = set(known) - set(STRATEGIES) | {USER}
        node = tree.get(KEY)
        if node is None or node.value is None:
            if strategy == USER:
                self.problems.report(
                    tree, ("strategy",), f"`{USER}` needs `{KEY}`; the GEMM has the other compute units"
                )
            return None
        if not users & strategies:
            self._unused = self._unused or node.position
        if strategy not in users:
            return None
        n_units: int = node.value
        for where, n_all in [] if machine is None else compute_units_of(machine):
            if n_units >= n_all:
                self.problems.report(
                    tree,
                    (KEY,),
                    f"is {n_units}, must be below `machine.{where}.n_compute_units`, {n_all}: the GEMM needs at least"
                    " one",
                )
                break
        return n_units

    def report_unused(self) -> None:
        """A key that no strategy of the experiment uses is an error, not ignored."""
        if self._unused is not None:
            self.problems.add(self._unused, KEY, f"is used by the strategy `{USER}` only, which is not run")


def compute_units_of(machine: MachineSpec) -> list[tuple[str, int]]:
    """Return how many compute units the GPUs have, each number under the key that says it."""
    own = [(f"gpu[{one.number}]", one.gpu.n_compute_units) for one in machine.own_gpus]
    return [("gpu", machine.gpu.n_compute_units), *own]


__all__ = ["CollectiveComputeUnits"]
