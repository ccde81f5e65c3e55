"""Compute first: communication moves only while the compute stream has nothing ready, the lower class first."""

from t3sim.gpu.arbitration.interface import ChannelView, policy
from t3sim.gpu.units.codes import NO_STREAM
from t3sim.gpu.units.dram.memory_controller import head_is_ready


@policy("compute_first")
def pick_stream(channel: ChannelView, now: int) -> int:
    """Serve the first class that is ready."""
    for stream in range(channel.n_classes):
        if head_is_ready(channel, stream, now):
            return stream
    return NO_STREAM
