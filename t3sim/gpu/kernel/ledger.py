"""What goes in and what comes out of every queue, counted so that a run can prove it lost nothing.

Counts entries, admissions and departures for each kind of request, and the waiting that goes with
them twice: request by request and cycle by cycle.  Both must agree (Little's law as an identity).
Nothing here decides anything.  ``T3SIM_LEDGER=0`` compiles the kernel without it; only the bench
suite does so, to measure what it costs.
Read by ``t3sim.checks.invariants``.
"""

from t3sim.gpu.kernel._jit import IS_COUNTING, kernel
from t3sim.gpu.kernel.codes import FIELD_MASK


@kernel
def queue_length_since(channel, stream):
    """Add what the queue of *stream* has held since its last change to its cycles of waiting."""
    length = channel.queue_tail[stream] - channel.queue_head[stream]
    channel.stream_queue_cycles[stream] += length * (channel.now - channel.stream_changed_at[stream])
    channel.stream_changed_at[stream] = channel.now


@kernel
def note_enqueued(channel, stream, place):
    """A request is about to enter the queue of *stream*."""
    if IS_COUNTING:
        channel.n_enqueued[place & FIELD_MASK] += 1
        queue_length_since(channel, stream)
        channel.stream_wait_cycles[stream] -= channel.now


@kernel
def note_admitted(channel, stream):
    """The head of *stream* is about to move into the DRAM queue."""
    if IS_COUNTING:
        queue_length_since(channel, stream)
        channel.stream_wait_cycles[stream] += channel.now
        channel.queue_wait_cycles -= channel.now


@kernel
def note_served(channel, kind):
    """A request leaves the DRAM queue: its column command is issued."""
    if IS_COUNTING:
        channel.n_served[kind] += 1
        channel.queue_wait_cycles += channel.now


@kernel
def note_cycles(channel, n_cycles, occupancy, is_held_back):
    """*n_cycles* have passed with the DRAM queue as it is: what the channel did in them."""
    if IS_COUNTING:
        if occupancy > 0:
            channel.working_cycles += n_cycles
        elif is_held_back:
            channel.held_back_cycles += n_cycles
        else:
            channel.empty_cycles += n_cycles
