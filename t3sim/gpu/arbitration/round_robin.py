"""Round robin: the streams take turns, the other one goes when one has nothing (T3 section 4.5, the default)."""

from t3sim.gpu.arbitration.interface import ArbitrationPolicy, ChannelView, arbitration_policies
from t3sim.gpu.kernel._jit import kernel
from t3sim.gpu.kernel.codes import COMM, COMPUTE
from t3sim.gpu.kernel.memory_controller import head_is_ready


@kernel
def pick_stream(channel: ChannelView, now: int) -> int:
    """Serve the stream that was not served last, if it is ready."""
    preferred = COMM if channel.last_stream == COMPUTE else COMPUTE
    if head_is_ready(channel, preferred, now):
        return preferred
    return COMPUTE if preferred == COMM else COMM


arbitration_policies.register("round_robin")(ArbitrationPolicy(pick_stream))
