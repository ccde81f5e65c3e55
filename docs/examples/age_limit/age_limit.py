"""A user's own arbitration policy: compute first, but communication never waits longer than ``limit`` cycles.

Like MCA without a threshold on the DRAM queue, and with a limit that counts from the arrival of the
request at the head, not from the last one served.
"""

from t3sim.gpu.arbitration import ArbitrationPolicy, ChannelView, Parameter, arbitration_policies
from t3sim.gpu.kernel._jit import kernel
from t3sim.gpu.kernel.codes import COMM, COMPUTE
from t3sim.gpu.kernel.memory_controller import head_is_ready

LIMIT = 0  # index into policy_params: the first parameter declared below


@kernel
def pick_stream(channel: ChannelView, now: int) -> int:
    """Serve compute unless the oldest communication request has waited longer than the limit."""
    if head_is_ready(channel, COMM, now):
        index = channel.queue_head[COMM] & (channel.request_at.shape[1] - 1)
        if now - channel.request_at[COMM, index] > channel.policy_params[LIMIT]:
            return COMM
    return COMPUTE if head_is_ready(channel, COMPUTE, now) else COMM


arbitration_policies.register("age_limit")(ArbitrationPolicy(pick_stream, {"limit": Parameter(200)}))
