"""Patient: compute goes first, and communication waits out a store burst, but no longer.

All compute units store their tiles at the end of a stage, and what those stores wait delays the next stage; the link
meanwhile lives on what communication has read ahead.  So communication stands back while a burst passes.  A request
that has waited longer than a burst lasts goes first.  Where compute has not been idle for six bursts, there is no burst
that would end: the GEMM keeps the memory busy throughout, and all streams take turns.  There is no threshold on the
DRAM queue: what enters it while compute has nothing to do costs compute less than the link would lose.

Class 0 is compute, every other class is communication: the lower class first, each with a patience of its own.

``patience``: cycles of the memory clock.  5000 is how long the memory of the T3 study takes to store the tiles of a
stage: 80 compute units, 64 KiB each, 1.024 TB/s.
"""

from t3sim.gpu.arbitration import round_robin
from t3sim.gpu.arbitration.interface import ChannelView, policy
from t3sim.gpu.kernel._jit import kernel
from t3sim.gpu.kernel.codes import COMPUTE, NO_STREAM
from t3sim.gpu.kernel.memory_controller import head_is_ready
from t3sim.registry import Parameter

PATIENCE = 0  # of the parameters
BUSY_SINCE = 0  # of the scratch: cycle since when compute has always had a request
MOST_BURSTS = 6  # without a pause; assumed: together 30 us, as long as a stage of the shorter GEMMs of the T3 study

PARAMETERS = {"patience": Parameter(
    5000, unit="cycles",
    meaning="of the memory clock: how long a request of communication stands back",
)}  # fmt: skip


@kernel
def arrival_of_head(channel: ChannelView, stream: int) -> int:
    """Return the cycle at which the head of *stream* arrived."""
    at: int = channel.request_at[stream, channel.queue_head[stream] & (channel.request_at.shape[1] - 1)]
    return at


@policy("patient", PARAMETERS)
def pick_stream(channel: ChannelView, now: int) -> int:
    """Serve communication that is out of patience, else compute, else communication; or take turns."""
    patience = channel.policy_params[PATIENCE]
    first_ready = NO_STREAM
    for stream in range(COMPUTE + 1, channel.n_classes):
        if head_is_ready(channel, stream, now):
            if now - arrival_of_head(channel, stream) > patience:
                return stream
            if first_ready == NO_STREAM:
                first_ready = stream
    if not head_is_ready(channel, COMPUTE, now):
        return first_ready
    arrived_at = arrival_of_head(channel, COMPUTE)
    if arrived_at > channel.last_served_at[COMPUTE]:
        channel.policy_scratch[BUSY_SINCE] = arrived_at
    if now - channel.policy_scratch[BUSY_SINCE] > MOST_BURSTS * patience:
        return round_robin.pick_stream(channel, now)
    return COMPUTE
