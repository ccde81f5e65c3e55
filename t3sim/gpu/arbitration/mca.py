"""MCA, T3's memory-controller arbitration (T3 section 4.5).

Compute goes first.  Communication goes when it has waited longer than the starvation
limit, or when compute has nothing and the DRAM queue is shorter than the threshold.
Once the producer kernel has ended, communication drains without a threshold.
Class 0 is compute, every other class is communication: the lower class first, each with a
starvation limit of its own and all below the same threshold.

``threshold``: 5, 10 or 30 entries in the paper, ``none``, or ``auto``, which follows from the GEMM's first stage, in
which it runs alone; the paper gives no rule.  Ours (both halves are assumed): there is no threshold, and arbitration is
round-robin during that stage.  It stays round-robin afterwards if the GEMM kept more than half of the DRAM queue full
(it is bound by the memory: with priority it would starve communication), or if the stage took less than half of the
link's time for its stores (communication is the critical path).  Otherwise compute has priority, and communication has
it while the GEMM is more than a stage ahead of the link (docs/adr/0036-compute-keeps-pace.md).
``starvation_limit``: cycles of the memory clock (assumed: 1000).
"""

from t3sim.gpu.arbitration import round_robin
from t3sim.gpu.arbitration.interface import ChannelView, policy
from t3sim.gpu.arbitration.pace import A_STAGE, STARVATION, keep_pace
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.codes import NEVER
from t3sim.registry import Parameter

THRESHOLD, STARVATION_LIMIT = range(2)  # of the parameters
AUTO = -1
HALF = 50  # per cent

PARAMETERS = {
    "threshold": Parameter(
        "auto", words={"auto": AUTO, "none": NEVER}, minimum=1, at_most="memory.queue.entries",
        meaning="DRAM-queue occupancy below which communication requests are admitted.",
    ),
    "starvation_limit": STARVATION,
}  # fmt: skip


@kernel
def threshold_of(channel: ChannelView) -> int:
    """Return the occupancy below which communication may enter."""
    threshold: int = channel.policy_params[THRESHOLD]
    return NEVER if threshold == AUTO else threshold


@kernel
def is_round_robin(channel: ChannelView) -> bool:
    """Return whether arbitration is round-robin: in the first stage, or if that was bound by the memory or short."""
    occupancy: int = channel.first_stage_occupancy
    return occupancy < 0 or occupancy > HALF * channel.queue_capacity or channel.first_stage_length < HALF


@policy("mca", PARAMETERS, threshold=threshold_of)
def pick_stream(channel: ChannelView, now: int) -> int:
    """Serve compute first; communication below the threshold, when the GEMM leads or it has starved."""
    lead = NEVER
    if channel.policy_params[THRESHOLD] == AUTO:
        if is_round_robin(channel):
            return round_robin.pick_stream(channel, now)
        lead = A_STAGE
    return keep_pace(channel, now, lead, channel.policy_params[STARVATION_LIMIT], threshold_of(channel))
