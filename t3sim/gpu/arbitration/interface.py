"""What an arbitration policy is: a choice between the streams of one memory controller, one for each traffic class.

A policy is a plain function ``pick_stream(channel, now)`` that returns a class or ``NO_STREAM``.  T3 has two classes,
``COMPUTE`` (0) and ``COMM`` (1); a policy that knows only these serves runs that have no others.
It is called whenever at least one head may enter the DRAM queue, and in every cycle while it
holds a ready head back.  It reads the fields of ``ChannelView`` and may write only
``channel.policy_scratch``.  It gives the same results compiled (integers only) and interpreted.
A stream whose head cannot move (tracker full) is not ready until the next slot.  It must pick a ready stream.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from t3sim.gpu.units._jit import kernel
from t3sim.registry import Parameter, Registry, check_declaration, encoded

F = TypeVar("F", bound=Callable[[Any, int], int])


class ChannelView(Protocol):
    """What a policy may read of its channel, besides ``head_is_ready`` and ``head_arrival``.

    Cycles are of the memory clock.
    """

    n_classes: int  # streams, one for each traffic class; class 0 is compute
    occupancy: npt.NDArray[np.int64]  # requests in the DRAM queue: [reads, writes]
    queue_capacity: int  # of the DRAM queue
    queue_head: npt.NDArray[np.int64]  # per stream, monotonic
    queue_tail: npt.NDArray[np.int64]
    last_stream: int  # served last
    last_comm_at: int  # cycle of the last communication request served: of any class but 0
    last_served_at: npt.NDArray[np.int64]  # per stream: cycle of the last request served
    producer_done: int  # 1 once the producer kernel has ended
    first_stage_occupancy: int  # mean DRAM queue occupancy x 100 in the GEMM's first stage; -1 before its end
    first_stage_length: int  # of that stage, per cent of the time that the link takes for what it stores
    # Of compute over the link: what ended workgroups of GEMMs have for other GPUs and the link has not sent, per cent
    # of what a stage of the first GEMM stores.  What other operations send counts as sent.
    lead: int
    policy_params: npt.NDArray[np.int64]  # in the order in which the policy declares them
    policy_scratch: npt.NDArray[np.int64]  # the policy's own memory


@dataclass(frozen=True)
class ArbitrationPolicy:
    """A policy and what it declares."""

    pick_stream: Callable[[Any, int], int]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)  # in the order of ``policy_params``
    threshold: Callable[[Any], int] | None = None  # of a channel: the limit on the queue that the results show

    def __post_init__(self) -> None:
        check_declaration(self.pick_stream, "channel, now", self.parameters)

    def encode(self, params: Mapping[str, Any]) -> list[int]:
        """Return ``policy_params`` for *params*; ValueError names an unknown or illegal parameter."""
        return list(encoded(self.parameters, params).values())


arbitration_policies: Registry[ArbitrationPolicy] = Registry("arbitration policy", ArbitrationPolicy)


def policy(
    name: str, parameters: Mapping[str, Parameter] | None = None, *, threshold: Callable[[Any], int] | None = None
) -> Callable[[F], F]:
    """Decorator: compile a function and register it as the arbitration policy *name* (see ``ArbitrationPolicy``)."""

    def register(pick_stream: F) -> F:
        compiled: F = kernel(getattr(pick_stream, "py_func", pick_stream))
        arbitration_policies.register(name)(ArbitrationPolicy(compiled, parameters or {}, threshold))
        return compiled

    return register
