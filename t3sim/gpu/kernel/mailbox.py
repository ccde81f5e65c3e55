"""Where messages of other GPUs are taken in: they become requests of the class of arrivals, or post a signal.

Models: messages wait in order of arrival until the stream queue of their channel has room;
they are never refused or lost.  Pinned by tests/kernel/test_mailbox.py.
"""

from t3sim.gpu.kernel._jit import kernel
from t3sim.gpu.kernel.address_map import channel_of, memory_cycle, place_of
from t3sim.gpu.kernel.codes import SIGNAL
from t3sim.gpu.kernel.memory_controller import has_room, request
from t3sim.gpu.kernel.signals import post, store_tag


@kernel
def receive_messages(gpu, inbox, tiles, signals, slot_end):
    """Move messages that arrive before *slot_end* into the stream queues of their class."""
    traffic_class = gpu.inbound_class
    ring_mask = len(inbox) - 1
    while gpu.inbox_head < gpu.inbox_tail:
        message = inbox[gpu.inbox_head & ring_mask]
        if message.at >= slot_end:
            return
        if message.kind == SIGNAL:
            post(gpu, signals, message.signal, message.granule)
            gpu.inbox_head += 1
            gpu.n_signals_received += 1
            continue
        granule, tile = message.granule, int(message.tile)  # plain numbers: tags are wider than the fields
        tag = store_tag(tile, granule, int(message.signal))
        if tile >= 0:
            granule = granule_address(tiles, tile, granule)
        channel_id = channel_of(gpu, granule)
        if not has_room(gpu.channels[channel_id], traffic_class, 1):
            return
        at = memory_cycle(gpu, max(message.at, gpu.now))
        request(gpu, channel_id, traffic_class, place_of(gpu, granule, int(message.kind)), tag, at)
        gpu.inbox_head += 1
        gpu.n_inbound += 1


@kernel
def granule_address(tiles, tile, granule):
    """Return the address of the *granule*-th granule of a wavefront tile of the output."""
    row_granules = tiles[tile].row_granules
    return tiles[tile].first_granule + (granule // row_granules) * tiles[tile].pitch + granule % row_granules


@kernel
def granule_there(tiles, tile, granule):
    """Return where the *granule*-th granule of a wavefront tile goes that is sent: index in a tile, or address."""
    if tiles[tile].to_tile >= 0:
        return granule
    row_granules = tiles[tile].row_granules
    return tiles[tile].to_granule + (granule // row_granules) * tiles[tile].to_pitch + granule % row_granules
