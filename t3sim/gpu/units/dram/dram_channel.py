"""One HBM channel: bank state, command timing, first-ready first-come-first-served.

Models: one column and one row command bus, banks in bank groups, row state, tRCD/tRP/tRAS/tRC/tRTP/tWR, CCD short and
long, RRD short and long, tFAW, bus turnaround, refresh of all banks or bank by bank (decision 40), near-memory updates.
The oldest row hit that may issue has priority; a row is closed only when no queued request hits it, or for a refresh.
The requests of each bank have a key (``dram_queue``), so arbitration is a minimum over the banks, and time jumps to the
next moment at which its result can change.  Times of banks have 32 bits, relative to an epoch that is moved when they
are used up (decision 2).
With split queues, writes are drained as soon as no read is queued, or held back and drained in batches (decision 37);
then, while reads wait, a drain serves at most ``writes_per_drain`` requests, ends at ``read_age``, and begins with
``turnaround_to_writes`` (decision 48).
Leaves out: command/address bus encoding, power-down.
Pinned by tests/timing (gates, bandwidths) and tests/scheduling (equal to a ticking scan).
"""

import numpy as np

from t3sim.gpu.units import codes
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.codes import FAR
from t3sim.gpu.units.dram.dram_queue import (
    BANK_MASK,
    EITHER,
    NO_KEY,
    find_hit_from,
    first_of,
    forget_hit,
    forget_hits,
    has_hit,
    is_end,
    is_queued,
    note_closed,
    note_hit,
    remove_from_bank_list,
    set_row,
)
from t3sim.gpu.units.dram.near_memory import store_gap_other_group, store_gap_same_group
from t3sim.gpu.units.ledger import note_served

MOST_CYCLES = 1 << 30  # after which the epoch is moved; a timing has at most 2**20 cycles
NO_COMMAND = -1


@kernel
def log_command(command_log, channel, channel_id, command, bank, row, place, tag, at):
    """Count a command and, if the log has room, log it; *place* holds column and kind."""
    channel.n_commands[command] += 1
    if len(command_log) == 1:
        return
    n = command_log[0].at
    if n + 1 == len(command_log):
        command_log[0].tag += 1
        return
    entry = command_log[n + 1]
    entry.at = at
    entry.channel = channel_id
    entry.command = command
    entry.bank = bank
    entry.row = row
    entry.column = (place >> codes.COLUMN_SHIFT) & codes.FIELD_MASK
    entry.kind = place & codes.KIND_MASK
    entry.tag = tag
    command_log[0].at = n + 1


@kernel
def count_from(channel, now):
    """Move the epoch of the times of banks to cycle *now* if it is long ago.

    A time in the past becomes now.
    """
    passed = now - channel.epoch
    if passed < MOST_CYCLES:
        return
    channel.epoch = now
    for bank in range(channel.n_banks):
        for direction in range(2):
            channel.column_at[direction, bank] = max(channel.column_at[direction, bank] - passed, 0)
        channel.activate_at[bank] = max(channel.activate_at[bank] - passed, 0)
        channel.precharge_at[bank] = max(channel.precharge_at[bank] - passed, 0)


@kernel
def counted(channel, cycle):
    """Return *cycle* relative to the epoch, 0 if it is before that."""
    return np.int32(max(cycle - channel.epoch, 0))


@kernel
def cycle_of(channel, time):
    """Return the cycle of a *time* of a bank."""
    return codes.NEVER if time == FAR else channel.epoch + time


@kernel
def refresh_all_banks(channel, channel_id, command_log):
    """Close every row and refresh: nothing may start before tRFC is over."""
    now = channel.now
    count_from(channel, now)
    precharge_at = now
    has_open_row = False
    for bank in range(len(channel.open_row)):
        if channel.open_row[bank] >= 0:
            has_open_row = True
            precharge_at = max(precharge_at, cycle_of(channel, channel.precharge_at[bank]))
    refresh_at = now
    if has_open_row:
        log_command(command_log, channel, channel_id, codes.PRE, -1, -1, 0, -1, precharge_at)
        refresh_at = precharge_at + channel.nRP
    for bank in range(len(channel.open_row)):
        refresh_at = max(refresh_at, cycle_of(channel, channel.activate_at[bank]))
        set_row(channel, bank, -1)
        forget_hits(channel, bank)
    for bank in range(len(channel.open_row)):
        channel.activate_at[bank] = counted(channel, refresh_at + max(channel.nRFC, 1))  # one row command a cycle
    log_command(command_log, channel, channel_id, codes.REF, -1, -1, 0, -1, refresh_at)
    channel.next_refresh_at += channel.nREFI
    channel.column_wake_at = codes.NEVER
    channel.row_wake_at = now


@kernel
def begin_refresh(channel, now):
    """Per-bank refresh: the next bank is due; its requests wait until it is over."""
    count_from(channel, now)
    bank = channel.n_refreshes % channel.n_banks
    channel.n_refreshes += 1
    channel.refreshed_bank = bank
    channel.is_refresh_closing = channel.open_row[bank] >= 0
    set_row(channel, bank, -1)
    for direction in range(2):
        forget_hit(channel, direction, bank)
        channel.closed_key[direction, bank] = FAR
    channel.closed_key[EITHER, bank] = FAR


@kernel
def go_on_with_refresh(channel, now):
    """Per-bank refresh: close the bank that is due, then refresh it; return the command sent, NO_COMMAND if none.

    It has priority over all other row commands.  The bank of the command is ``last_refreshed``.
    """
    if channel.refreshed_bank < 0:
        begin_refresh(channel, now)
    bank = channel.refreshed_bank
    if channel.is_refresh_closing:
        precharge_at = cycle_of(channel, channel.precharge_at[bank])
        if precharge_at > now:
            channel.next_refresh_at = precharge_at
            return NO_COMMAND
        channel.activate_at[bank] = max(channel.activate_at[bank], counted(channel, now + channel.nRP))
        channel.is_refresh_closing = 0
        channel.next_refresh_at = now + 1
        return codes.PRE
    refresh_at = max(cycle_of(channel, channel.activate_at[bank]), channel.channel_activate_at)
    if refresh_at > now:
        channel.next_refresh_at = refresh_at
        return NO_COMMAND
    channel.activate_at[bank] = counted(channel, now + channel.nRFCpb)
    channel.channel_activate_at = now + channel.nRREFD
    channel.refreshed_bank = -1
    if is_queued(channel, codes.READ, bank) or is_queued(channel, codes.WRITE, bank):
        forget_hits(channel, bank)
        channel.row_wake_at = min(channel.row_wake_at, now + channel.nRFCpb)
    due_at = (channel.n_refreshes + 1) * channel.nREFI // channel.n_banks
    channel.next_refresh_at = max(due_at, now + 1)
    return codes.REF


@kernel
def last_refreshed(channel):
    """Return the bank whose refresh has begun last."""
    return (channel.n_refreshes - 1) % channel.n_banks


@kernel
def direction_to_serve(channel):
    """Split queues only: WRITE while writes are drained between the watermarks, READ otherwise."""
    reads = channel.occupancy[codes.READ]
    writes = channel.occupancy[codes.WRITE]
    if channel.is_draining:
        is_low = writes < channel.write_low_watermark and channel.is_read_waiting == 0
        is_over = is_low or is_batch_over(channel) or (channel.read_age > 0 and is_read_overdue(channel))
        return codes.READ if writes == 0 or (reads > 0 and is_over) else codes.WRITE
    if channel.write_age == 0:
        return codes.WRITE if writes > channel.write_high_watermark or (reads == 0 and writes > 0) else codes.READ
    is_high = writes > channel.write_high_watermark and (reads == 0 or is_batch_over(channel))
    return codes.WRITE if is_high or overdue_at(channel) <= channel.now or channel.is_read_waiting else codes.READ


@kernel
def is_batch_over(channel):
    """Return whether as many requests of the direction in service were served as may be while the other one waits."""
    return channel.write_age > 0 and served_before(channel, channel.is_draining) >= channel.batch_until


@kernel
def batch_limit(channel, direction):
    """Return how many requests of *direction* are served before a turnaround; reads: after an interrupted drain."""
    if direction == codes.WRITE:
        return channel.writes_per_drain
    return channel.queue_capacity if channel.occupancy[codes.WRITE] >= channel.write_low_watermark else 0


@kernel
def served_before(channel, direction):
    """Return how many requests of *direction* have been served so far."""
    if direction == codes.READ:
        return channel.n_commands[codes.RD]
    return channel.n_commands[codes.WR] + channel.n_commands[codes.UPD]


@kernel
def overdue_at(channel):
    """Return when the oldest request of the other direction is overdue; NEVER: none waits, or there is no limit."""
    if channel.is_draining:
        has_limit = channel.read_age > 0 and channel.occupancy[codes.READ] > 0
        return channel.held_since + channel.read_age if has_limit else codes.NEVER
    return channel.held_since + channel.write_age if channel.occupancy[codes.WRITE] > 0 else codes.NEVER


@kernel
def is_read_overdue(channel):
    """Return whether a drain is interrupted for a read that has waited long enough.

    A drain that has not issued a write is not interrupted, nor one of a queue above its high watermark.
    """
    is_full = channel.occupancy[codes.WRITE] > channel.write_high_watermark
    has_begun = served_before(channel, codes.WRITE) > channel.batch_from
    return overdue_at(channel) <= channel.now and has_begun and not is_full and channel.is_read_waiting == 0


@kernel
def choose_direction_to_drain(channel):
    """Split queues only: switch between serving reads and draining writes at the watermarks."""
    wanted = direction_to_serve(channel)
    if wanted != channel.is_draining:
        channel.is_draining = wanted
        channel.held_since = channel.now
        if wanted == codes.WRITE:
            write_at = channel.now + channel.turnaround_to_writes
            channel.channel_column_at[codes.WRITE] = max(channel.channel_column_at[codes.WRITE], write_at)
        channel.batch_from = served_before(channel, wanted)
        channel.batch_until = channel.batch_from + batch_limit(channel, wanted)
        channel.column_wake_at = channel.now
        channel.row_wake_at = channel.now


@kernel
def is_served_now(channel, direction):
    """Return whether requests of *direction* may be chosen (always, with a unified queue)."""
    return channel.is_split == 0 or channel.is_draining == direction


@kernel
def serve_column_bus(channel, channel_id, command_log):
    """Issue the oldest row hit that is ready, or set when the next one will be; return whether one was issued."""
    now = counted(channel, channel.now)
    best_key, last_key, wake_time = FAR, NO_KEY, FAR
    best_direction = codes.READ
    for direction in range(2):
        if not is_served_now(channel, direction) or channel.n_hits[direction] == 0:
            continue
        channel_at = counted(channel, channel.channel_column_at[direction])
        key_here = FAR
        for bank in range(channel.n_banks):  # of a length that is not compiled in: it is vectorised, not unrolled
            key = channel.hit_key[direction, bank]
            ready_at = max(channel.column_at[direction, bank], channel_at)
            is_ready = ready_at <= now
            key_here = min(key_here, key if is_ready else FAR)
            last_key = max(last_key, key if (is_ready and key != FAR) else NO_KEY)
            wake_time = min(wake_time, FAR if (is_ready or key == FAR) else ready_at)
        if key_here < best_key:
            best_key = key_here
            best_direction = direction
    wake_at = cycle_of(channel, wake_time)
    if best_key == FAR:
        channel.column_wake_at = wake_at
        return False
    bank = best_key & BANK_MASK
    issue_column_command(channel, channel_id, command_log, best_direction, bank)
    # The next one may be another one that is ready, the next hit of this bank, or one that waits: not before wake_at.
    if has_hit(channel, best_direction, bank):
        wake_at = min(wake_at, cycle_of(channel, channel.column_at[best_direction, bank]))
    next_at = channel.now + channel.nCCDS
    channel.column_wake_at = next_at if last_key != best_key else max(wake_at, next_at)
    return True


@kernel
def issue_column_command(channel, channel_id, command_log, direction, bank):
    """Issue RD, WR or UPD for the oldest hit of *bank* and update the times at which other commands may issue."""
    now = channel.now
    entry = channel.oldest_hit[direction, bank]
    served = channel.entries[entry]
    place = served.place
    kind = place & codes.KIND_MASK
    traffic_class = (place >> codes.CLASS_SHIFT) & codes.CLASS_MASK
    first = bank & -channel.banks_per_group
    last = first + channel.banks_per_group
    if direction != channel.last_direction:
        channel.n_turnarounds += 1
        channel.last_direction = direction
    if direction == codes.READ:
        command = codes.RD
        channel.channel_column_at[codes.READ] = now + channel.nCCDS
        channel.channel_column_at[codes.WRITE] = max(channel.channel_column_at[codes.WRITE], now + channel.nRTW)
        next_at = counted(channel, now + channel.nCCDL)
        for other in range(first, last):
            channel.column_at[codes.READ, other] = max(channel.column_at[codes.READ, other], next_at)
        channel.precharge_at[bank] = max(channel.precharge_at[bank], counted(channel, now + channel.nRTP))
        finish = now + channel.nCL + channel.nBL
    else:
        command = codes.UPD if kind & codes.UPDATE_BIT else codes.WR
        finish = now + channel.nCWL + channel.nBL
        gap_same = store_gap_same_group(channel, kind)
        gap_other = store_gap_other_group(channel, kind)
        channel.channel_column_at[codes.WRITE] = now + gap_other
        read_at = max(finish + channel.nWTRS, now + gap_other)
        channel.channel_column_at[codes.READ] = max(channel.channel_column_at[codes.READ], read_at)
        next_at = counted(channel, now + gap_same)
        next_read_at = counted(channel, max(finish + channel.nWTRL, now + gap_same))
        for other in range(first, last):
            channel.column_at[codes.WRITE, other] = max(channel.column_at[codes.WRITE, other], next_at)
            channel.column_at[codes.READ, other] = max(channel.column_at[codes.READ, other], next_read_at)
        channel.precharge_at[bank] = max(channel.precharge_at[bank], counted(channel, finish + channel.nWR))
    log_command(command_log, channel, channel_id, command, bank, served.row, place, served.tag, now)
    note_served(channel, traffic_class, kind)
    done = channel.done[channel.n_done]
    done.kind = kind
    done.traffic_class = traffic_class
    done.tag = served.tag
    done.at = finish
    channel.n_done += 1
    channel.last_done_at = max(channel.last_done_at, finish)
    following = remove_from_bank_list(channel, direction, entry)
    hit = find_hit_from(channel, following, channel.open_row[bank])
    if not is_end(channel, hit):
        channel.oldest_hit[direction, bank] = hit
        channel.hit_key[direction, bank] = channel.entries[hit].key
        return
    note_closed(channel, direction, bank)
    channel.row_wake_at = min(channel.row_wake_at, max(now, cycle_of(channel, channel.precharge_at[bank])))


@kernel
def serve_row_bus(channel, channel_id, command_log):
    """Activate or precharge for the oldest request that needs it, or set when one may be possible."""
    now = counted(channel, channel.now)
    best_key, last_key, wake_time = FAR, NO_KEY, FAR
    window_at = channel.activate_window[channel.activate_pointer]
    activate_at = counted(channel, max(channel.channel_activate_at, window_at))
    waiting = channel.is_draining if channel.is_split else EITHER
    for bank in range(channel.n_banks):
        key = channel.closed_key[waiting, bank]
        close_at = channel.precharge_at[bank]
        open_at = max(activate_at, channel.activate_at[bank])
        ready_at = close_at if channel.open_row[bank] >= 0 else open_at
        is_ready = ready_at <= now
        best_key = min(best_key, key if is_ready else FAR)
        last_key = max(last_key, key if (is_ready and key != FAR) else NO_KEY)
        wake_time = min(wake_time, FAR if (is_ready or key == FAR) else ready_at)
    wake_at = cycle_of(channel, wake_time)
    if best_key == FAR:
        channel.row_wake_at = wake_at
        return
    bank = best_key & BANK_MASK
    if channel.open_row[bank] >= 0:
        precharge_bank(channel, channel_id, command_log, bank)
        wake_at = min(wake_at, cycle_of(channel, channel.activate_at[bank]))
    else:
        activate_bank(channel, channel_id, command_log, bank, best_key)
    # Only another one that is ready can be next in the following cycle; all others wait at least until wake_at.
    channel.row_wake_at = wake_at if last_key == best_key else channel.now + 1


@kernel
def precharge_bank(channel, channel_id, command_log, bank):
    """Close the row of *bank*."""
    now = channel.now
    log_command(command_log, channel, channel_id, codes.PRE, bank, channel.open_row[bank], 0, -1, now)
    set_row(channel, bank, -1)
    channel.activate_at[bank] = max(channel.activate_at[bank], counted(channel, now + channel.nRP))
    forget_hits(channel, bank)


@kernel
def activate_bank(channel, channel_id, command_log, bank, key):
    """Open the row that the request with *key* wants and find which queued requests now hit."""
    now = channel.now
    entry = first_of(channel, codes.READ, bank)
    if channel.entries[entry].key != key:
        entry = first_of(channel, codes.WRITE, bank)
    row = channel.entries[entry].row
    log_command(command_log, channel, channel_id, codes.ACT, bank, row, 0, -1, now)
    set_row(channel, bank, row)
    read_at, write_at = counted(channel, now + channel.nRCDRD), counted(channel, now + channel.nRCDWR)
    channel.column_at[codes.READ, bank] = max(channel.column_at[codes.READ, bank], read_at)
    channel.column_at[codes.WRITE, bank] = max(channel.column_at[codes.WRITE, bank], write_at)
    channel.precharge_at[bank] = counted(channel, now + channel.nRAS)
    first = bank & -channel.banks_per_group
    next_at = counted(channel, now + channel.nRRDL)
    for other in range(first, first + channel.banks_per_group):
        channel.activate_at[other] = max(channel.activate_at[other], next_at)
    channel.activate_at[bank] = max(channel.activate_at[bank], counted(channel, now + channel.nRC))
    channel.channel_activate_at = now + channel.nRRDS
    channel.activate_window[channel.activate_pointer] = now + channel.nFAW
    channel.activate_pointer = (channel.activate_pointer + 1) & 3
    for direction in range(2):
        hit = find_hit_from(channel, first_of(channel, direction, bank), row)
        if not is_end(channel, hit):
            note_hit(channel, direction, bank, hit)
    channel.column_wake_at = min(channel.column_wake_at, now + min(channel.nRCDRD, channel.nRCDWR))
