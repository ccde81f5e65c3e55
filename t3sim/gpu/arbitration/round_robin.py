"""Round-robin: streams are served cyclically; one without a ready request is skipped (T3 section 4.5, the default)."""

from t3sim.gpu.arbitration.interface import ChannelView, policy
from t3sim.gpu.units.codes import NO_STREAM
from t3sim.gpu.units.dram.memory_controller import head_is_ready


@policy("round_robin")
def pick_stream(channel: ChannelView, now: int) -> int:
    """Serve the first ready stream after the one that was served last."""
    stream = channel.last_stream
    for _ in range(channel.n_classes):
        stream = 0 if stream + 1 == channel.n_classes else stream + 1
        if head_is_ready(channel, stream, now):
            return stream
    return NO_STREAM
