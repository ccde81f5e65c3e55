"""The receiving end of the ring link: messages become requests of the traffic class of arrivals.

Models: messages wait in order of arrival until the stream queue of their channel has room;
they are never refused or lost.  Pinned by tests/kernel/test_mailbox.py.
"""

from t3sim.gpu.kernel._jit import kernel
from t3sim.gpu.kernel.address_map import channel_of, memory_cycle, place_of
from t3sim.gpu.kernel.codes import OF_ARRIVALS
from t3sim.gpu.kernel.memory_controller import GRANULE_BITS, has_room, request


@kernel
def receive_messages(gpu, inbox, tiles, slot_end):
    """Move messages that arrive before *slot_end* into the stream queues of their class."""
    traffic_class = gpu.traffic_class[OF_ARRIVALS]
    ring_mask = len(inbox) - 1
    while gpu.inbox_head < gpu.inbox_tail:
        message = inbox[gpu.inbox_head & ring_mask]
        if message.at >= slot_end:
            return
        granule = message.granule
        tag = message.tile
        if message.tile >= 0:
            tag = (message.tile << GRANULE_BITS) | granule
            granule = granule_address(gpu, tiles, message.tile, granule)
        channel_id = channel_of(gpu, granule)
        if not has_room(gpu.channels[channel_id], traffic_class, 1):
            return
        at = memory_cycle(gpu, max(message.at, gpu.now))
        request(gpu, channel_id, traffic_class, place_of(gpu, granule, message.kind), tag, at)
        gpu.inbox_head += 1
        gpu.n_inbound += 1


@kernel
def granule_address(gpu, tiles, tile, granule):
    """Return the address of the *granule*-th granule of a wavefront tile of the output."""
    row_granules = tiles[tile].row_granules
    return tiles[tile].first_granule + (granule // row_granules) * gpu.c_row_granules + granule % row_granules
