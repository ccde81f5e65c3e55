"""MCA, T3's memory-controller arbitration (T3 section 4.5).

Compute goes first.  Communication goes when it has waited longer than the starvation
limit, or when compute has nothing and the DRAM queue is shorter than the threshold.
Once the producer kernel has ended, communication drains without a threshold.
Class 0 is compute, every other class is communication: the lower class first, each with a
starvation limit of its own and all below the same threshold.

``threshold``: 5, 10 or 30 entries in the paper, ``none``, or ``auto``: chosen from the
mean queue occupancy of the GEMM's first stage, in which it runs alone.  The paper does
not give the cut points; those here are assumed: three quarters, seven eighths and fifteen sixteenths of the queue.  A
kernel that fills half of it would let communication in at a threshold of 30 only by chance, and what the link loses
meanwhile never comes back (experiments/t3-sweep-threshold).
``starvation_limit``: cycles of the memory clock (assumed: 1000).
``turns_above``: per cent of the DRAM queue, none unless stated.  A GEMM that alone, in its first stage, kept more of
the queue full is bound by the memory: compute always waits, and going first it would leave the link nothing.  Then the
streams take turns (docs/adr/0031-what-the-study-simulated.md).
``turns_within``: cycles of the memory clock, 0 unless stated.  A first stage that is over within them ends long before
the link has sent what it stored: communication is the critical path and compute has time, so the streams take turns.
"""

from t3sim.gpu.arbitration import round_robin
from t3sim.gpu.arbitration.interface import ChannelView, policy
from t3sim.gpu.kernel._jit import kernel
from t3sim.gpu.kernel.codes import COMPUTE, NEVER, NO_STREAM, READ, WRITE
from t3sim.gpu.kernel.memory_controller import head_is_ready
from t3sim.registry import Parameter

THRESHOLD, STARVATION_LIMIT, TURNS_ABOVE, TURNS_WITHIN = range(4)  # of the parameters
BEGUN_AT, STAGE_CYCLES = 0, 1  # of the scratch: one more than the cycle of the first look; length of the first stage
AUTO = -1
PERCENT = 100
CUTS = (15, 14, 12)  # sixteenths of the queue, above which the thresholds below apply
AUTO_THRESHOLDS = (5, 10, 30)

PARAMETERS = {
    "threshold": Parameter(
        "auto", words={"auto": AUTO, "none": NEVER}, minimum=1, at_most="memory.queue.entries",
        meaning="entries of the DRAM queue below which communication is let in",
    ),
    "starvation_limit": Parameter(
        1000, words={"none": NEVER}, unit="cycles",
        meaning="of the memory clock: communication that waited longer goes first",
    ),
    "turns_above": Parameter(
        "none", words={"none": NEVER}, unit="%",
        meaning="streams take turns if the GEMM alone kept more of the DRAM queue full",
    ),
    "turns_within": Parameter(
        0, unit="cycles",
        meaning="of the memory clock: streams take turns if the first stage was over within them",
    ),
}  # fmt: skip


@kernel
def threshold_of(channel: ChannelView) -> int:
    """Return the occupancy below which communication may enter."""
    threshold: int = channel.policy_params[THRESHOLD]
    if threshold != AUTO:
        return threshold
    observed = channel.first_stage_occupancy
    if observed < 0:
        return NEVER
    capacity = channel.queue_capacity * PERCENT
    for i in range(len(CUTS)):
        if 16 * observed > CUTS[i] * capacity:
            return AUTO_THRESHOLDS[i]
    return NEVER


@kernel
def has_starved(channel: ChannelView, stream: int, now: int) -> bool:
    """Return whether the head of *stream* has waited longer than the limit, since that stream was last served."""
    index = channel.queue_head[stream] & (channel.request_at.shape[1] - 1)
    waiting_since: int = max(channel.last_served_at[stream], channel.request_at[stream, index])
    limit: int = channel.policy_params[STARVATION_LIMIT]
    return now - waiting_since > limit


@kernel
def note_first_stage(channel: ChannelView, now: int) -> None:
    """Note in the scratch when the GEMM began and how long its first stage took, once it is over."""
    if channel.policy_scratch[BEGUN_AT] == 0:
        channel.policy_scratch[BEGUN_AT] = now + 1
    elif channel.policy_scratch[STAGE_CYCLES] == 0 and channel.first_stage_occupancy >= 0:
        channel.policy_scratch[STAGE_CYCLES] = now + 1 - channel.policy_scratch[BEGUN_AT]


@kernel
def takes_turns(channel: ChannelView) -> bool:
    """Return whether the first stage showed a GEMM that the memory bounds, or one much shorter than its collective."""
    if channel.first_stage_occupancy < 0:
        return False
    limit: int = channel.policy_params[TURNS_ABOVE]
    is_short: bool = channel.policy_scratch[STAGE_CYCLES] < channel.policy_params[TURNS_WITHIN]
    return is_short or (limit != NEVER and channel.first_stage_occupancy > limit * channel.queue_capacity)


@policy("mca", PARAMETERS, threshold=threshold_of)
def pick_stream(channel: ChannelView, now: int) -> int:
    """Serve compute, and communication where it does no harm or has starved."""
    note_first_stage(channel, now)
    if takes_turns(channel):
        return round_robin.pick_stream(channel, now)
    first_ready = NO_STREAM
    for stream in range(COMPUTE + 1, channel.n_classes):
        if head_is_ready(channel, stream, now):
            if has_starved(channel, stream, now):
                return stream
            if first_ready == NO_STREAM:
                first_ready = stream
    if head_is_ready(channel, COMPUTE, now):
        return COMPUTE
    if channel.producer_done or channel.occupancy[READ] + channel.occupancy[WRITE] < threshold_of(channel):
        return first_ready
    return NO_STREAM
