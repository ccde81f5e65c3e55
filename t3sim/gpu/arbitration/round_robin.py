"""Round robin: the streams take turns, the other one goes when one has nothing (T3 section 4.5, the default)."""

from t3sim.gpu.arbitration.interface import ChannelView, policy
from t3sim.gpu.kernel.codes import COMM, COMPUTE
from t3sim.gpu.kernel.memory_controller import head_is_ready


@policy("round_robin")
def pick_stream(channel: ChannelView, now: int) -> int:
    """Serve the stream that was not served last, if it is ready."""
    preferred = COMM if channel.last_stream == COMPUTE else COMPUTE
    if head_is_ready(channel, preferred, now):
        return preferred
    return COMPUTE if preferred == COMM else COMM
