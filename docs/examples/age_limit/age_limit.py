"""A user's own arbitration policy: compute first, but communication never waits longer than ``limit`` cycles.

Like MCA without a threshold on the DRAM queue, and with a limit that counts from the arrival of the
request at the head, not from the last one served.
"""

from t3sim.plugins import COMM, COMPUTE, ChannelView, Parameter, head_arrival, head_is_ready, policy

LIMIT = 0  # index into policy_params: the first parameter that is declared


@policy("age_limit", {"limit": Parameter(200, unit="cycles")})
def pick_stream(channel: ChannelView, now: int) -> int:
    """Serve compute unless the oldest communication request has waited longer than the limit."""
    if head_is_ready(channel, COMM, now):
        if now - head_arrival(channel, COMM) > channel.policy_params[LIMIT]:
            return COMM
    return COMPUTE if head_is_ready(channel, COMPUTE, now) else COMM
