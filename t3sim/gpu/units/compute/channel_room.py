"""Room in the stream queues of memory controllers: a compute unit that finds none waits, first come first served.

A controller that has room again promises it to the units that have waited longest; a promise holds for one slot.
Pinned by tests/kernel/test_compute_unit.py.
"""

from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.dram.memory_controller import has_room


@kernel
def wait_for_channel(gpu, cu_index, channel_id, traffic_class):
    """Queue a compute unit in front of a controller that has no room for requests of *traffic_class*."""
    channel = gpu.channels[channel_id]
    gpu.compute_units[cu_index].is_waiting = 1
    gpu.n_waiting_cus += 1
    place = (channel.waiting_head[traffic_class] + channel.n_waiting_cu[traffic_class]) % channel.waiting_cu.shape[1]
    channel.waiting_cu[traffic_class, place] = cu_index
    channel.n_waiting_cu[traffic_class] += 1


@kernel
def wake_waiting_cus(gpu, channel, channel_id, traffic_class):
    """Promise room to the compute units that have waited longest; the promise holds for one slot."""
    need = 2 * gpu.l2.granules_per_line
    while channel.n_waiting_cu[traffic_class] > 0 and has_room(
        channel, traffic_class, channel.n_reserved[traffic_class] + need
    ):
        head = channel.waiting_head[traffic_class]
        cu = gpu.compute_units[channel.waiting_cu[traffic_class, head]]
        channel.waiting_head[traffic_class] = (head + 1) % channel.waiting_cu.shape[1]
        channel.n_waiting_cu[traffic_class] -= 1
        gpu.n_waiting_cus -= 1
        channel.n_reserved[traffic_class] += need
        cu.is_waiting = 0
        cu.granted_channel = channel_id
        cu.granted_class = traffic_class


@kernel
def return_promise(gpu, cu):
    """Release, at the end of a slot, room that was promised and not used."""
    if cu.granted_channel >= 0:
        gpu.channels[cu.granted_channel].n_reserved[cu.granted_class] -= 2 * gpu.l2.granules_per_line
        cu.granted_channel = -1


@kernel
def reserved_by_others(gpu, cu, channel_id, traffic_class):
    """Return the entries of a stream queue that *cu* must leave free: those promised to others; all if others wait."""
    channel = gpu.channels[channel_id]
    if cu.granted_channel == channel_id and cu.granted_class == traffic_class:
        return channel.n_reserved[traffic_class] - 2 * gpu.l2.granules_per_line
    if channel.n_waiting_cu[traffic_class] > 0:
        return channel.stream_capacity
    return channel.n_reserved[traffic_class]


@kernel
def finds_room(gpu, cu_index, channel_id, traffic_class, n_granules):
    """Return whether a controller takes *n_granules* of a compute unit now; if not, the unit queues for it."""
    cu, channel = gpu.compute_units[cu_index], gpu.channels[channel_id]
    if has_room(channel, traffic_class, n_granules + reserved_by_others(gpu, cu, channel_id, traffic_class)):
        return True
    wait_for_channel(gpu, cu_index, channel_id, traffic_class)
    return False
