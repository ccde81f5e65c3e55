"""Shared experts as one MLP of their own, on a second stream concurrent with dispatch or combine.

All tokens of a GPU pass through it where they are.  It has the compute units that the kernels of dispatch or combine
leave; a last kernel adds its rows to those that came back from the routed experts.
Sources: vLLM, ``SharedFusedMoE`` (a second stream); Megatron-Core, ``shared_experts.py`` (overlap with dispatch and
combine).  Leaves out: that the MLP may go on behind the kernels that it is concurrent with.
Pinned by ``tests/program/test_moe_shared.py``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from t3sim.errors import UsageError
from t3sim.program.contents import Rows
from t3sim.program.moe_layer import MoeLayer, program_of_stages
from t3sim.program.moe_operator import MoeOperator
from t3sim.program.operations import Ints, Operation, Program
from t3sim.program.row_steps import steps

STREAM = 2  # behind those of receivers and senders


class SharedExperts(MoeLayer):
    """The shared experts of the layer whose routed experts are *layer*, with buffers of their own."""

    def __init__(self, layer: MoeLayer, op: MoeOperator) -> None:
        """*op* is the whole layer."""
        super().__init__(
            op.of_shared_experts(), layer.rank, layer.memory, "shared experts: ", STREAM, behind=layer.n_elements
        )
        self._sent, self._returned = layer.places_of_tokens  # they have the same tokens
        self._choice = op.routing.top_k - op.experts.n_shared

    def _returned_rows(self, first: Ints, distance: Ints, token: Ints, choices: Ints) -> Rows:
        return super()._returned_rows(first, distance, token, choices << self._choice)

    def mlp(self, units: tuple[int, int]) -> list[Operation]:
        """Return both GEMMs and the activation on the compute *units*."""
        return [*self.first_gemm(units=units), *self.activation(units=units), *self.second_gemm(units=units)]

    def sum_with(self, layer: MoeLayer) -> list[Operation]:
        """Return the kernel that adds the rows of the MLP to the results of *layer*."""
        row = self.op.returned_row
        results, made = layer.results(), self._buffer("made", self.n_rows, row)
        self.inputs = (*layer.outputs, self._rows_made(made))
        token = np.arange(self.op.n_tokens)
        [routed] = layer.outputs
        has_rows = np.isin(results.first + token * row, routed.first)
        # A token without routed experts is what the shared ones make of it.
        every = steps(
            len(token), n_granules=row, n_operands=np.where(has_rows, 2, 1), kept_at=results.first + token * row,
            operand=np.where(has_rows, results.first, made.first) + token * row,
            stride=np.where(has_rows, made.first - results.first, 0),
        )  # fmt: skip
        choices = np.full(len(token), 1 << self._choice)
        choices[(routed.first - results.first) // row] |= routed.choices
        self.outputs = (super()._returned_rows(results.first + token * row, 0 * token, token, choices),)
        return [self._on_all("sum", every)]


def concurrent_program(layer: MoeLayer, operations: list[Operation], op: MoeOperator, n_units: int) -> Program:
    """Return the program of *operations* of *layer* on the first *n_units*, and of shared experts on the others."""
    shared = SharedExperts(layer, op)
    mlp = shared.mlp((n_units, op.machine.gpu.n_compute_units))
    program = program_of_stages(layer, [*operations, *mlp], (*layer.inputs, *shared.inputs))
    return replace(program, outputs=(*program.outputs, *shared.outputs))


def sum_program(layer: MoeLayer, op: MoeOperator) -> Program:
    """Return the program that adds up what routed and shared experts have made of each token."""
    shared = SharedExperts(layer, op)
    operations = shared.sum_with(layer)
    return program_of_stages(shared, operations, shared.inputs)


def check_shared(op: MoeOperator, n_units: int) -> None:
    """Raise ``UsageError`` if there are no shared experts, or no compute units for them."""
    n_all = op.machine.gpu.n_compute_units
    if not op.experts.n_shared:
        message = "the layer has no shared experts (`workload.experts.shared_intermediate`)"
        raise UsageError(f"strategy.shared_experts: {message}")
    if n_units >= n_all:
        message = f"is {n_units}, of {n_all} compute units; the shared experts need some of them"
        raise UsageError(f"strategy.communication_units: {message}")
