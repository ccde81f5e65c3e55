"""The memory controller of one channel: a queue for each stream, the arbiter, the bounded DRAM queue.

Models: requests of each traffic class (T3: compute and communication) are a stream and wait in a bounded queue; an
exchangeable policy picks the stream whose head enters the DRAM queue when there is room (T3 section 4.5).  A store to
tracked output is counted by the tracker at that moment (T3 section 4.2.1) and waits in its stream while the tracker's
set is full; it posts its signal on admission.  A read does not enter while an older store to the same address is
queued, in the DRAM queue or in the stream of another class.
Leaves out: the wires between L2 slice and controller (a constant latency).
Pinned by tests/scheduling and tests/kernel/test_memory_controller.py.
"""

from t3sim.gpu.units import codes
from t3sim.gpu.units._ask import ask
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.dram.dram_channel import (
    NO_COMMAND,
    choose_direction_to_drain,
    count_from,
    direction_to_serve,
    go_on_with_refresh,
    last_refreshed,
    log_command,
    overdue_at,
    refresh_all_banks,
    serve_column_bus,
    serve_row_bus,
)
from t3sim.gpu.units.dram.dram_queue import first_of, is_end, place_in_bank_list
from t3sim.gpu.units.ledger import has_stalled_head, note_admitted, note_cycles, note_enqueued, reason_of_idleness
from t3sim.gpu.units.signals import signal_of, tile_of
from t3sim.gpu.units.state import STORE_BUCKETS
from t3sim.gpu.units.t3.tracker import count_store, has_place_for


@kernel
def has_room(channel, stream, n_requests):
    """Return whether *n_requests* more fit into the queue of *stream*."""
    return channel.queue_tail[stream] - channel.queue_head[stream] + n_requests <= channel.stream_capacity


@kernel
def queued_request(channel, stream, number):
    """Return the place of request *number*, of all that *stream* has had, in its queue."""
    return channel.requests[stream, (number - channel.ring_start[stream]) & channel.ring_mask]


@kernel
def enqueue_request(channel, stream, place, tag, at):
    """Put a request into the queue of *stream*; it may be admitted from cycle *at* on.

    The caller has asked ``has_room``.
    """
    if channel.queue_head[stream] == channel.queue_tail[stream]:
        channel.ring_start[stream] = channel.queue_tail[stream]  # few places: they stay in the caches of the host
    entry = queued_request(channel, stream, channel.queue_tail[stream])
    entry.place = place
    entry.tag = tag
    entry.at = at
    note_enqueued(channel, stream, place)
    channel.queue_tail[stream] += 1
    if place & codes.WRITE_BIT:
        channel.n_stores_queued[stream] += 1
        channel.store_counts[bucket_of(place)] += 1


@kernel
def bucket_of(place):
    """Return the counter of queued stores that an address belongs to."""
    address = place >> codes.BANK_SHIFT
    return (address ^ (address >> 6) ^ (address >> 12) ^ (address >> 18)) & (STORE_BUCKETS - 1)


@kernel
def request(gpu, channel_id, stream, place, tag, at):
    """Put a request into a queue of a channel of *gpu*, which may sleep until cycle *at*: ``enqueue_request``."""
    channel = gpu.channels[channel_id]
    catch_up(gpu, channel)
    enqueue_request(channel, stream, place, tag, at)
    gpu.channel_sleeps_until[channel_id] = min(gpu.channel_sleeps_until[channel_id], at)


@kernel
def catch_up(gpu, channel):
    """Account for the slots in which the channel slept."""
    if channel.now < gpu.channels_until - 1:
        pass_time(channel, gpu.channels_until, False)


@kernel
def catch_up_all(gpu):
    """Bring every channel up to the end of the last slot, before it is read from outside."""
    for channel_id in range(gpu.n_channels):
        catch_up(gpu, gpu.channels[channel_id])


@kernel
def queue_occupancy(channel):
    """Return the number of requests in the DRAM queue."""
    return channel.occupancy[codes.READ] + channel.occupancy[codes.WRITE]


@kernel
def has_queue_room(channel, place):
    """Return whether the DRAM queue can take the request (per direction with split queues)."""
    if channel.is_split:
        if place & codes.WRITE_BIT:
            return channel.occupancy[codes.WRITE] < channel.write_capacity
        return channel.occupancy[codes.READ] < channel.queue_capacity
    return queue_occupancy(channel) < channel.queue_capacity


@kernel
def has_head(channel, stream):
    """Return whether *stream* has a head that need not wait for the next slot."""
    return channel.queue_head[stream] != channel.queue_tail[stream] and channel.stalled >> stream & 1 == 0


@kernel
def head_of(channel, stream):
    """Return the request at the head of *stream*, which has one."""
    return queued_request(channel, stream, channel.queue_head[stream])


@kernel
def head_arrival(channel, stream):
    """Return the cycle at which the request at the head of *stream* arrived; there must be one."""
    return head_of(channel, stream).at


@kernel
def head_is_ready(channel, stream, now):
    """Return whether the head of *stream* has arrived by *now* and the DRAM queue can take it."""
    if not has_head(channel, stream):
        return False
    head = head_of(channel, stream)
    return head.at <= now and has_queue_room(channel, head.place)


@kernel
def next_admission_at(channel):
    """Return the earliest cycle at which a head could enter the DRAM queue; NEVER if none can."""
    wake_at = codes.NEVER
    for stream in range(channel.n_classes):
        if has_head(channel, stream):
            head = head_of(channel, stream)
            if has_queue_room(channel, head.place):
                wake_at = min(wake_at, head.at)
    return wake_at


@kernel
def has_older_store(channel, place):
    """Return whether a store to the same address as the read *place* waits in the DRAM queue."""
    bank = (place >> codes.BANK_SHIFT) & codes.FIELD_MASK
    row = place >> codes.ROW_SHIFT
    column_and_bank = (place & codes.BELOW_ROW_MASK) >> codes.BANK_SHIFT
    entry = first_of(channel, codes.WRITE, bank)
    while not is_end(channel, entry):
        if channel.entries[entry].row == row and channel.entries[entry].place >> codes.BANK_SHIFT == column_and_bank:
            return True
        entry = channel.entries[entry].next
    return False


@kernel
def has_store_of_others(channel, stream, place, at):
    """Return whether a store of another class to the address of a read, from before cycle *at*, is in its stream queue.

    In its own queue a read follows it.
    """
    if channel.store_counts[bucket_of(place)] == 0:
        return False
    for other in range(channel.n_classes):
        if other != stream and channel.n_stores_queued[other] > 0:
            for number in range(channel.queue_head[other], channel.queue_tail[other]):
                queued = queued_request(channel, other, number)
                if queued.place & codes.WRITE_BIT and queued.place >> codes.BANK_SHIFT == place >> codes.BANK_SHIFT:
                    if queued.at < at:
                        return True
    return False


@kernel
def stall_head(channel, stream):
    """Let the head of *stream* wait for the next slot; return 1 the first time this head stalls, else 0."""
    channel.stalled |= 1 << stream
    if channel.stalled_head[stream] == channel.queue_head[stream]:
        return 0
    channel.stalled_head[stream] = channel.queue_head[stream]
    return 1


@kernel
def stop_at_tile(channel, stream, tile, fault):
    """Note a fault of the store to *tile* at the head of *stream*, which ends the run; the store does not enter."""
    channel.fault = fault
    channel.fault_tile = tile
    stall_head(channel, stream)
    return False


@kernel
def admit_head(channel, tracker, tiles, signals, stream):
    """Move the head of *stream* into the DRAM queue; return whether it could enter."""
    head = head_of(channel, stream)
    place = head.place
    tag = head.tag
    kind = place & codes.KIND_MASK
    if kind & codes.WRITE_BIT:
        if tag >= 0:
            tile = tile_of(tag)
            if tiles[tile].updates_expected > 0:
                if not has_place_for(tiles, tile):
                    channel.tracker_stalls += stall_head(channel, stream)
                    return False
                if tiles[tile].updates_seen == tiles[tile].updates_expected:
                    return stop_at_tile(channel, stream, tile, codes.ONE_UPDATE_TOO_MANY)
                if not count_store(tracker, tiles, tile, channel.now):
                    return stop_at_tile(channel, stream, tile, codes.NO_TRACKER_ENTRY)
                tiles[tile].updates_seen += 1
        signal = signal_of(tag)
        if signal >= 0:
            signals[signal] += 1
            channel.has_posted = 1
        channel.n_stores_queued[stream] -= 1
        channel.store_counts[bucket_of(place)] -= 1
        if channel.occupancy[codes.WRITE] == 0 and channel.is_draining == 0:
            channel.held_since = channel.now
    elif kind != codes.OPERAND_READ or channel.reads_stored_operands:
        if has_older_store(channel, place):
            channel.hazard_stalls += stall_head(channel, stream)
            channel.is_read_waiting = channel.write_age > 0
            return False
        if has_store_of_others(channel, stream, place, head.at):
            channel.hazard_stalls += stall_head(channel, stream)
            return False
        channel.is_read_waiting = 0
    if kind & codes.WRITE_BIT == 0 and channel.occupancy[codes.READ] == 0 and channel.is_draining:
        channel.held_since = channel.now
    note_admitted(channel, stream)
    channel.queue_head[stream] += 1
    channel.n_requests[stream, kind] += 1
    place_in_bank_list(channel, place | (stream << codes.CLASS_SHIFT), tag)
    return True


@kernel
def arbitrate(channel, tracker, tiles, signals, pick_stream):
    """Admit heads while one is ready and the policy picks one; return whether the policy held a ready one back.

    The caller has a ready head.  A policy that picks a stream that is not ready is a fault, which ends the run.
    """
    now = channel.now
    while True:
        stream = ask(pick_stream, channel, now)
        if stream == codes.NO_STREAM:
            return True
        if stream < 0 or stream >= channel.n_classes or not head_is_ready(channel, stream, now):
            channel.fault = codes.PICKED_NOTHING
            return True
        if admit_head(channel, tracker, tiles, signals, stream):
            channel.last_stream = stream
            channel.last_served_at[stream] = now
            if stream != codes.COMPUTE:
                channel.last_comm_at = now
        channel.admission_at = next_admission_at(channel)
        if channel.admission_at > now:
            return False


@kernel
def advance_channel(channel, channel_id, tracker, tiles, signals, command_log, pick_stream, until):
    """Run one channel up to (not including) cycle *until*; return the cycle until which it may sleep without requests.

    In a cycle: 1. refresh if due, 2. arbitrate and admit, 3. choose the direction (split queues), 4. one column
    command, 5. one row command; then jump to the next moment at which any of these can do something.
    """
    count_from(channel, max(channel.now, 0))
    is_held_back = False
    idle_reason = channel.idle_reason
    channel.stalled = 0
    channel.admission_at = next_admission_at(channel)
    while True:
        wake_at = min(channel.column_wake_at, channel.row_wake_at)
        wake_at = min(min(wake_at, max(channel.admission_at, channel.now + 1)), channel.next_refresh_at)
        if wake_at >= until:
            break
        occupancy = queue_occupancy(channel)
        channel.occupancy_cycles += (wake_at - channel.now) * occupancy
        note_cycles(channel, wake_at - channel.now, occupancy, idle_reason)
        channel.peak_occupancy = max(channel.peak_occupancy, occupancy)
        channel.now = wake_at
        is_row_bus_taken = False
        if wake_at >= channel.next_refresh_at:
            if channel.nRFCpb > 0:
                command = go_on_with_refresh(channel, wake_at)
                is_row_bus_taken = command != NO_COMMAND
                if is_row_bus_taken:
                    bank = last_refreshed(channel)
                    log_command(command_log, channel, channel_id, command, bank, -1, 0, -1, wake_at)
            else:
                refresh_all_banks(channel, channel_id, command_log)
        if channel.admission_at <= wake_at:
            is_held_back = arbitrate(channel, tracker, tiles, signals, pick_stream)
        if channel.is_split:
            choose_direction_to_drain(channel)
        is_served = False
        if channel.column_wake_at <= wake_at:
            is_served = serve_column_bus(channel, channel_id, command_log)
        if channel.row_wake_at <= wake_at and not is_row_bus_taken:
            serve_row_bus(channel, channel_id, command_log)
        if channel.column_wake_at <= wake_at:
            channel.column_wake_at = wake_at + 1
        if channel.is_split and channel.write_age > 0 and (channel.is_draining == 0 or channel.read_age > 0):
            over_at = overdue_at(channel)  # one that is overdue waits for something else, which wakes the channel
            if over_at > wake_at:
                channel.column_wake_at = min(channel.column_wake_at, over_at)
        if channel.row_wake_at <= wake_at or (channel.is_split and direction_to_serve(channel) != channel.is_draining):
            channel.row_wake_at = wake_at + 1
        if is_served:
            channel.admission_at = next_admission_at(channel)
        if queue_occupancy(channel) == 0:
            idle_reason = reason_of_idleness(channel, is_held_back)
    # A head that was held back or stalled is tried again in the next slot; other work happens at ``wake_at`` or on a
    # request.
    is_restless = is_held_back or has_stalled_head(channel)
    if channel.nRFCpb > 0 and len(command_log) == 1 and not has_work(channel):
        wake_at = min(channel.column_wake_at, channel.row_wake_at)  # ``pass_time`` refreshes
    pass_time(channel, until, is_held_back)
    return 0 if is_restless else wake_at


@kernel
def pass_time(channel, until, is_held_back):
    """Account for the cycles before *until*, in which the channel does nothing but refresh bank by bank."""
    while channel.nRFCpb > 0 and channel.next_refresh_at < until:
        command = go_on_with_refresh(channel, channel.next_refresh_at)
        if command != NO_COMMAND:
            channel.n_commands[command] += 1
    occupancy = queue_occupancy(channel)
    channel.occupancy_cycles += (until - 1 - channel.now) * occupancy
    channel.idle_reason = reason_of_idleness(channel, is_held_back)
    note_cycles(channel, until - 1 - channel.now, occupancy, channel.idle_reason)
    channel.now = until - 1


@kernel
def has_work(channel):
    """Return whether any request is queued in front of or inside the channel."""
    if queue_occupancy(channel) > 0:
        return True
    for stream in range(channel.n_classes):
        if channel.queue_head[stream] != channel.queue_tail[stream]:
            return True
    return False
