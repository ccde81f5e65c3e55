"""What an arbitration policy is: a choice between the two streams of one memory controller.

A policy is a plain function ``pick_stream(channel, now) -> COMPUTE | COMM | NO_STREAM``.
It is asked whenever at least one head may enter the DRAM queue, at every cycle while it
holds a ready head back.  It reads the fields of ``ChannelView`` and may write only
``channel.policy_scratch``.  It runs compiled (integers only) and interpreted alike.
A stream whose head cannot move (tracker full) is not ready until the next slot.  It must pick a ready stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from t3sim.gpu.kernel.codes import NEVER
from t3sim.registry import Registry


class ChannelView(Protocol):
    """What a policy may read of its channel; cycles are of the memory clock."""

    occupancy: npt.NDArray[np.int64]  # requests in the DRAM queue: [reads, writes]
    queue_capacity: int  # of the DRAM queue
    queue_head: npt.NDArray[np.int64]  # per stream, monotonic
    queue_tail: npt.NDArray[np.int64]
    last_stream: int  # served last
    last_comm_at: int  # cycle of the last communication request served
    producer_done: int  # 1 once the producer kernel has ended
    first_stage_occupancy: int  # mean DRAM queue occupancy x 100 in the GEMM's first stage; -1 before its end
    request_at: npt.NDArray[np.int64]  # [stream, index]: arrival; the head is at queue_head[stream] & (length - 1)
    policy_params: npt.NDArray[np.int64]  # in the order in which the policy declares them
    policy_scratch: npt.NDArray[np.int64]  # the policy's own memory


@dataclass(frozen=True)
class Parameter:
    """One parameter of a policy: an integer, or one of a few words that stand for one."""

    default: int | str
    words: Mapping[str, int] = field(default_factory=dict)
    minimum: int = 0

    def encode(self, value: Any) -> int:
        """Return the integer the kernel sees; ValueError says what is allowed."""
        if isinstance(value, str) and value in self.words:
            return self.words[value]
        if isinstance(value, bool) or not isinstance(value, int) or not self.minimum <= value < NEVER:
            words = "".join(f" or {word}" for word in self.words)
            raise ValueError(f"{value!r} is not a whole number of at least {self.minimum}{words}")
        return value


@dataclass(frozen=True)
class ArbitrationPolicy:
    """A policy and the parameters it takes, in the order of ``policy_params``."""

    pick_stream: Callable[[Any, int], int]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)

    def encode(self, params: Mapping[str, Any]) -> list[int]:
        """Return ``policy_params`` for *params*; ValueError names an unknown or illegal parameter."""
        unknown = [name for name in params if name not in self.parameters]
        if unknown:
            known = ", ".join(self.parameters) or "none"
            raise ValueError(f"unknown parameter {unknown[0]!r}; known: {known}")
        values = []
        for name, parameter in self.parameters.items():
            try:
                values.append(parameter.encode(params.get(name, parameter.default)))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return values


arbitration_policies: Registry[ArbitrationPolicy] = Registry("arbitration policy")
