"""Host software of a rank: issue times of operations, and the cost of its own kernels."""

from collections.abc import Sequence
from dataclasses import replace

from t3sim.errors import UsageError
from t3sim.program.operations import Barrier, Gemm, Moves, Operation
from t3sim.program.operator import Operator
from t3sim.registry import Parameter

GRAPH, EAGER = range(2)
HOST = Parameter(
    "graph", words={"graph": GRAPH, "eager": EAGER}, has_numbers=False,
    meaning="Launch mode: `graph`, a captured graph (or a host far ahead); `eager`, one Python call on idle "
            "GPUs.",
)  # fmt: skip
STREAMS = Parameter(
    3,
    minimum=1,
    tried=(1, 2, 3),
    meaning="Number of CUDA streams on which the GEMMs are issued round-robin; as many can run concurrently.",
)


def run_by(
    op: Operator, operations: Sequence[Operation], host: int = GRAPH, *, is_library: bool = True
) -> list[Operation]:
    """Return *operations* as the software of the host runs them: how each is launched, and how fast its code is.

    ``GRAPH``: all are issued when the GPUs begin, as of a captured graph, or by a host that is far ahead.  ``EAGER``:
    the host is called when the GPUs begin, and issues one after the other.  *is_library*: the code is that of the
    host's library; otherwise kernels are the strategy's own, and GEMMs need no setup.
    """
    spec = op.machine.gpu.host
    if spec is None:
        if host == EAGER:
            raise UsageError(
                "strategy.host: is eager, and this machine does not say what that takes (`gpu.host`); graph takes"
                " nothing"
            )
        return list(operations)
    usual = op.machine.gpu.kernel_launch if spec.launch is None else spec.launch
    found = []
    for number, one in enumerate(operations):
        launch = usual if one.launch is None else one.launch
        launch += spec.gemm_setup * (is_library and isinstance(one, Gemm)) + spec.barrier * isinstance(one, Barrier)
        is_of_gemm = isinstance(one, Moves) and one.is_of_gemm
        issue = one.issue + (spec.eager_issue * (not is_of_gemm) + spec.eager_call * (number == 0)) * (host == EAGER)
        run = replace(one, launch=launch, issue=issue)
        if isinstance(run, Moves) and is_library and not is_of_gemm:
            of_units = spec.sum_bandwidth if (run.steps["n_operands"] > 1).any() else None
            run = replace(run, bandwidth=of_units if run.engine is None else spec.copy_bandwidth)
        found.append(run)
    return found
