"""Pace: compute has priority until it is a stage ahead of the link, then communication has it.

A delay of communication costs nothing while the link has data to send, and a delay of the GEMM costs nothing while the
link still has a stage of its output to send.  So the slower one has priority: the GEMM, whose stores come in
bursts at the end of each stage, until it has finished a stage more than the link has sent; then communication, until
the link has caught up.  There is no threshold on the DRAM queue, and nothing is measured beforehand
(docs/arbitration.md).

Class 0 is compute, every other class is communication: the lower class first, each with a starvation limit of its own.

``lead``: how far compute may be ahead, in per cent of what a stage stores (assumed: one stage, which is stored in one
burst and sent until the next).
``starvation_limit``: cycles of the memory clock, as MCA's.
"""

from t3sim.gpu.arbitration.interface import ChannelView, policy
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.codes import COMPUTE, NEVER, NO_STREAM, READ, WRITE
from t3sim.gpu.units.dram.memory_controller import head_arrival, head_is_ready
from t3sim.registry import Parameter

LEAD, STARVATION_LIMIT = range(2)  # of the parameters
A_STAGE = 100  # per cent

STARVATION = Parameter(
    1000, words={"none": NEVER}, unit="cycles",
    meaning="Waiting time in memory-clock cycles after which a communication request has priority.",
)  # fmt: skip
PARAMETERS = {
    "lead": Parameter(
        A_STAGE, unit="%",
        meaning="Share of the stores of a stage by which finished GEMM tiles may be ahead of the link; beyond it, "
            "communication has priority.",
    ),
    "starvation_limit": STARVATION,
}  # fmt: skip


@kernel
def has_starved(channel: ChannelView, stream: int, now: int, limit: int) -> bool:
    """Return whether the head of *stream* has waited longer than *limit*, since that stream was last served."""
    waiting_since: int = max(channel.last_served_at[stream], head_arrival(channel, stream))
    return now - waiting_since > limit


@kernel
def keep_pace(channel: ChannelView, now: int, lead: int, starvation_limit: int, threshold: int) -> int:
    """Serve compute first; communication first if it has starved or compute leads by more than *lead*.

    If compute has no request, communication enters a DRAM queue of fewer than *threshold* requests.
    """
    first_ready = NO_STREAM
    for stream in range(COMPUTE + 1, channel.n_classes):
        if head_is_ready(channel, stream, now):
            if channel.lead > lead or has_starved(channel, stream, now, starvation_limit):
                return stream
            if first_ready == NO_STREAM:
                first_ready = stream
    if head_is_ready(channel, COMPUTE, now):
        return COMPUTE
    if channel.producer_done or channel.occupancy[READ] + channel.occupancy[WRITE] < threshold:
        return first_ready
    return NO_STREAM


@policy("pace", PARAMETERS)
def pick_stream(channel: ChannelView, now: int) -> int:
    """Serve compute first; communication first if it lags or has starved."""
    params = channel.policy_params
    return keep_pace(channel, now, params[LEAD], params[STARVATION_LIMIT], NEVER)
