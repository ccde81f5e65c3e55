"""Compute first: communication moves only while the compute stream has nothing ready."""

from t3sim.gpu.arbitration.interface import ChannelView, policy
from t3sim.gpu.kernel.codes import COMM, COMPUTE
from t3sim.gpu.kernel.memory_controller import head_is_ready


@policy("compute_first")
def pick_stream(channel: ChannelView, now: int) -> int:
    """Serve compute whenever it is ready."""
    return COMPUTE if head_is_ready(channel, COMPUTE, now) else COMM
