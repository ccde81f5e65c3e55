"""What every unit of a GPU remembers: nested NumPy dtypes, one record per GPU.

Sizes here are capacities and part of the compiled type; the numbers a machine
really has (``n_...`` fields) are values, so machines that fit one ``Layout``
share one compilation (``assemble.layout_for``).  Tables whose length depends on the workload (workgroups,
wavefront tiles, DMA commands, collective steps, messages) are arrays beside the
record.  Times are ticks unless the name says cycles; a channel counts cycles of
the memory clock.
"""

from mmap import mmap
from typing import NamedTuple

import numpy as np

from t3sim.gpu.kernel.codes import FOR_REQUEST, MOST_CLASSES, N_CU_STATES, N_KINDS, N_REASONS, NEVER

N_POLICY_PARAMS = 8
MOST_STORE_QUEUES = 33  # of the link port: 32 groups of compute units, and what no compute unit stores
RETURN_RING = 128  # slots ahead in which something may come back to a CU: more than an L2 latency


# Half a cache line: rings of messages are read and written for each granule.
MESSAGE = np.dtype(
    [
        ("at", "i8"),  # departure when sent, arrival when received, ticks
        ("granule", "i8"),  # index inside the tile, or the address; of a SIGNAL, the amount
        ("tile", "i4"),  # wavefront tile there that it is stored to, or -1
        ("signal", "i4"),  # of the GPU that it goes to, which it posts; -1: none
        ("packet", "i2"),  # bytes of the store that it is a part of, which decide how long it is on the wire
        ("unit", "i2"),  # compute unit or copy engine that stores it, until it is on the wire; -1: none
        ("kind", "i2"),  # of the request that it becomes, or SIGNAL
        ("distance", "i2"),  # distance of the GPU that it goes to; when received, of the one that it comes from
    ],
    align=True,
)


class Layout(NamedTuple):
    """Capacities of one compiled type; the defaults are those of the standard layout.

    Memory that a machine does not use is never touched, so a large capacity costs addresses and no memory.  Only
    ``n_dram_banks`` costs time: the controllers look at every bank of the layout.
    """

    n_compute_units: int = 272  # copy engines among them
    n_slots: int = 4  # resident workgroups per compute unit
    n_buffers: int = 4  # operand slices staged per workgroup
    n_waiters: int = 1 << 20  # loads waiting on misses, whole GPU
    n_collective_lines: int = 4096  # of a move kernel, loaded and not stored yet, per unit
    n_l2_banks: int = 128
    n_l2_sets: int = 1 << 17  # all banks together: 256 MiB of lines of 128 bytes
    l2_associativity: int = 16
    n_mshrs: int = 512  # per bank
    n_channels: int = 64
    n_dram_banks: int = 16  # per channel
    queue_entries: int = 256  # DRAM queue, per direction
    n_classes: int = MOST_CLASSES  # of traffic, each with a stream queue in every channel
    stream_queue_entries: int = 512  # power of two
    tracker_entries: int = 8192
    n_operations: int = 1024  # of a program
    n_signals: int = 1 << 19
    n_move_workgroups: int = 1 << 15  # of all move kernels of a program
    n_done: int = 128  # column commands of one channel in one slot


def channel_dtype(layout):
    """One HBM channel: its FR-FCFS queue, bank state, stream queues and counters."""
    banks = layout.n_dram_banks
    pool = 2 * layout.queue_entries
    ring = layout.stream_queue_entries
    classes = layout.n_classes
    return np.dtype(
        [
            # the clock of this channel (memory cycles) and when each command bus can act next
            ("now", "i8"),
            ("column_wake_at", "i8"),
            ("row_wake_at", "i8"),
            ("next_refresh_at", "i8"),
            ("sleeps_until", "i8"),  # cycle before which nothing can happen in it unless a request comes
            # timing parameters, cycles
            ("nBL", "i8"),
            ("nCL", "i8"),
            ("nCWL", "i8"),
            ("nRCDRD", "i8"),
            ("nRCDWR", "i8"),
            ("nRP", "i8"),
            ("nRAS", "i8"),
            ("nRC", "i8"),
            ("nRTP", "i8"),
            ("nWR", "i8"),
            ("nCCDS", "i8"),
            ("nCCDL", "i8"),
            ("nCCDWS", "i8"),
            ("nCCDWL", "i8"),
            ("nRRDS", "i8"),
            ("nRRDL", "i8"),
            ("nFAW", "i8"),
            ("nRTW", "i8"),
            ("nWTRS", "i8"),
            ("nWTRL", "i8"),
            ("nREFI", "i8"),
            ("nRFC", "i8"),
            # queue parameters
            ("banks_per_group", "i8"),
            ("queue_capacity", "i8"),
            ("is_split", "i8"),
            ("write_high_watermark", "i8"),
            ("write_low_watermark", "i8"),
            # DRAM queue: per direction a pool of entries, per bank a list in order of arrival
            ("occupancy", "i8", (2,)),
            ("is_draining", "i8"),
            ("n_admitted", "i8"),
            ("free_entry", "i8", (2, layout.queue_entries)),
            ("next_entry", "i4", (pool,)),
            ("previous_entry", "i4", (pool,)),
            ("entry_row", "i8", (pool,)),
            ("entry_key", "i8", (pool,)),
            ("entry_place", "i8", (pool,)),  # column, bank, class and kind, packed as in codes
            ("entry_tag", "i8", (pool,)),
            ("list_head", "i8", (2, banks)),
            ("list_tail", "i8", (2, banks)),
            ("oldest_hit", "i8", (2, banks)),
            ("hit_key", "i8", (2, banks)),
            ("closed_key", "i8", (2, banks)),
            # bank state
            ("open_row", "i8", (banks,)),
            ("activate_at", "i8", (banks,)),
            ("precharge_at", "i8", (banks,)),
            ("column_at", "i8", (2, banks)),
            ("channel_column_at", "i8", (2,)),
            ("channel_activate_at", "i8"),
            ("activate_window", "i8", (4,)),
            ("activate_pointer", "i8"),
            # stream queues in front of the arbiter, one for each traffic class
            ("n_classes", "i8"),
            ("stream_capacity", "i8"),
            ("queue_head", "i8", (classes,)),
            ("queue_tail", "i8", (classes,)),
            ("request_place", "i8", (classes, ring)),  # packed as in codes
            ("request_tag", "i8", (classes, ring)),
            ("request_at", "i8", (classes, ring)),
            ("n_reserved", "i8", (classes,)),  # entries promised to woken compute units
            ("waiting_cu", "i4", (classes, layout.n_compute_units * layout.n_slots)),
            ("n_waiting_cu", "i8", (classes,)),
            ("waiting_head", "i8", (classes,)),
            # arbitration
            ("last_stream", "i8"),
            ("last_direction", "i8"),
            ("last_comm_at", "i8"),
            ("last_served_at", "i8", (classes,)),
            ("producer_done", "i8"),
            ("first_stage_occupancy", "i8"),  # mean DRAM queue occupancy x 100 of the first stage; -1 before its end
            ("policy_params", "i8", (N_POLICY_PARAMS,)),
            ("policy_scratch", "i8", (N_POLICY_PARAMS,)),
            # column commands of this slot, for the units that wait for them
            ("has_posted", "i8"),  # a signal, since the units were told
            ("n_done", "i8"),
            ("done_kind", "i8", (layout.n_done,)),
            ("done_class", "i8", (layout.n_done,)),
            ("done_tag", "i8", (layout.n_done,)),
            ("done_at", "i8", (layout.n_done,)),
            # counters
            ("n_commands", "i8", (6,)),
            ("n_requests", "i8", (classes, N_KINDS)),
            ("fault", "i8"),  # see codes; NO_FAULT until something is wrong
            ("fault_tile", "i8"),
            ("n_turnarounds", "i8"),
            ("occupancy_cycles", "i8"),
            ("noted_occupancy_cycles", "i8"),  # of these, in the time series
            ("peak_occupancy", "i8"),
            ("is_stalled", "i8", (classes,)),  # the head waits for the next slot: tracker full or older store
            ("stalled_head", "i8", (classes,)),  # last head that was counted as stalled
            ("tracker_stalls", "i8"),
            ("hazard_stalls", "i8"),
            ("last_done_at", "i8"),
            # the ledger: see ledger.py
            ("n_enqueued", "i8", (classes, N_KINDS)),
            ("n_served", "i8", (classes, N_KINDS)),
            ("stream_changed_at", "i8", (classes,)),
            ("stream_queue_cycles", "i8", (classes,)),  # sum over cycles of requests in the stream queue
            ("stream_wait_cycles", "i8", (classes,)),  # sum over requests of leaving - entering the stream queue
            ("queue_wait_cycles", "i8"),  # the same for the DRAM queue; its sum over cycles is occupancy_cycles
            ("idle_reason", "i8"),  # why nothing is in the DRAM queue, if nothing is
            ("reason_cycles", "i8", (N_REASONS,)),
        ],
        align=True,
    )


def l2_dtype(layout):
    """The L2: tags in recency order, miss-status registers, bank ports."""
    banks = layout.n_l2_banks
    return np.dtype(
        [
            ("n_banks", "i8"),
            ("banks_per_channel", "i8"),
            ("sets_per_bank", "i8"),
            ("associativity", "i8"),
            ("n_mshrs", "i8"),
            ("granules_per_line", "i8"),
            ("bank_ticks", "i8"),  # one line access occupies a bank this long
            ("bank_queue_ticks", "i8"),  # how far a bank may be booked ahead
            ("request_ticks", "i8"),  # CU to bank: half of the hit latency
            ("return_ticks", "i8"),  # bank to CU: the other half
            ("miss_ticks", "i8"),  # bank to memory controller, on a miss
            ("keeps_dirty_lines", "i8"),  # at the end of a kernel
            ("n_partitions", "i8"),
            ("crossing_ticks", "i8"),  # from one partition to another and back
            ("tags", "i8", (layout.n_l2_sets, layout.l2_associativity)),  # see l2_slice
            ("bank_free_at", "i8", (banks,)),
            ("n_free_mshrs", "i8", (banks,)),
            ("free_mshr", "i4", (banks, layout.n_mshrs)),
            ("mshr_line", "i8", (banks, layout.n_mshrs)),
            ("mshr_remaining", "i8", (banks, layout.n_mshrs)),
            ("mshr_fill_at", "i8", (banks, layout.n_mshrs)),
            ("mshr_waiter", "i4", (banks, layout.n_mshrs)),
            ("n_waiters", "i8"),
            ("n_free_waiters", "i8"),
            ("free_waiter", "i4", (layout.n_waiters,)),
            ("next_waiter", "i4", (layout.n_waiters,)),
            ("waiter_owner", "i4", (layout.n_waiters,)),  # ((cu * slots) + slot) * buffers + buffer
            ("flush_cursor", "i8", (banks,)),  # next set of each bank
            ("n_accesses", "i8"),
            ("n_hits", "i8"),
            ("n_merged", "i8"),
            ("n_misses", "i8"),
            ("n_copy_hits", "i8"),  # of the hits: in the copy of another partition's line
            ("n_crossings", "i8"),  # loads that had to ask another partition
            ("n_copies", "i8"),  # made
            ("n_store_accesses", "i8"),
            ("n_evictions", "i8"),
            ("n_dirty_evictions", "i8"),
            ("n_flushed", "i8"),
            ("n_fills", "i8"),
            ("n_delivered", "i8"),  # loads answered by a fill
            ("n_granules_requested", "i8"),  # for fills
            ("n_granules_dirtied", "i8"),
            ("n_granules_written_back", "i8"),
        ],
        align=True,
    )


def workgroup_slot_dtype(layout):
    """One resident workgroup of a compute unit."""
    return np.dtype(
        [
            ("workgroup", "i8"),  # id, or -1 when the slot is free
            ("launch_at", "i8"),
            ("load_slice", "i8"),
            ("load_line", "i8"),
            ("multiply_slice", "i8"),
            ("is_multiplying", "i8"),
            ("work_left", "i8"),
            ("outstanding", "i8", (layout.n_buffers,)),
            ("ready_at", "i8", (layout.n_buffers,)),
            ("is_issued", "i8", (layout.n_buffers,)),
            ("store_line", "i8"),
            ("stores_outstanding", "i8"),
            # the ledger: see ledger.py
            ("refused_by", "i8"),  # what last had no room for a line of this workgroup; WORKING: nothing
            ("refused_line", "i8"),  # that line of the L2
        ],
        align=True,
    )


def compute_unit_dtype(layout):
    """One compute unit: its resident workgroups, its share of the memory system, its time accounting."""
    return np.dtype(
        [
            ("slots", workgroup_slot_dtype(layout), (layout.n_slots,)),
            ("is_waiting", "i8"),  # queued in front of a channel that had no room
            ("granted_channel", "i8"),  # room promised there; -1 otherwise
            ("granted_class", "i8"),  # in the queue of this traffic class
            ("issue_debt", "i8"),  # of the path to the L2, at most 0: what the last access overdrew
            ("outstanding_lines", "i8"),  # loads in flight, until their data are back in the CU
            ("outstanding_stores", "i8"),  # stores in flight, until they are acknowledged
            ("store_queue", "i8"),  # of the link port, in which its stores to other GPUs wait
            ("unsent_granules", "i8"),  # of them, in that queue
            ("most_unsent", "i8"),
            ("returning_lines", "i4", (RETURN_RING,)),  # by slot number, modulo the ring: what comes back then
            ("returning_stores", "i4", (RETURN_RING,)),
            ("wanted_by", "i8"),  # move kernel that it is kept free of GEMM workgroups for; -1: none
            ("shares", "i8"),  # of it that resident workgroups take, of ALL_SHARES
            ("move_operation", "i8"),  # whose workgroup has it for itself; -1: none
            ("idle_from", "i8"),  # first active slot in which nothing ran on it, as long as no GEMM does
            # slots spent in each state
            ("state_slots", "i8", (N_CU_STATES,)),
            # the ledger: see ledger.py
            ("refused_by", "i8"),  # what had no room for a line in this slot; WORKING: nothing was refused
            ("refused_ticks", "i8"),  # of the slot, which could not be used for that
            ("reason_ticks", "i8", (N_REASONS,)),
            ("last_reason", "i8"),  # of the last slot in which it issued
        ],
        align=True,
    )


def move_workgroup_dtype(layout):
    """A workgroup of a move kernel on its compute unit: its place in the steps, the lines that it has under way."""
    return np.dtype(
        [
            ("number", "i8"),  # in its kernel
            ("step_ready_at", "i8"),
            ("step", "i8"),
            ("step_line", "i8"),  # lines of this step issued so far
            ("step_operand", "i8"),
            ("step_stored", "i8"),
            ("line_head", "i8"),
            ("line_tail", "i8"),
            ("line_remaining", "i4", (layout.n_collective_lines,)),
            ("line_ready_at", "i8", (layout.n_collective_lines,)),
            ("line_index", "i8", (layout.n_collective_lines,)),
        ],
        align=True,
    )


def tracker_dtype(layout):
    """T3's tracker: set-associative counters per wavefront tile."""
    return np.dtype(
        [
            ("n_sets", "i8"),
            ("entries_per_set", "i8"),
            ("entry_tile", "i8", (layout.tracker_entries,)),
            ("entry_remaining", "i8", (layout.tracker_entries,)),
            ("entry_last_at", "i8", (layout.tracker_entries,)),
            ("n_entries", "i8"),
            ("peak_entries", "i8"),
            ("n_allocated", "i8"),
            ("n_triggered", "i8"),
            ("n_counted", "i8"),  # stores counted
            ("held_workgroup", "i8"),  # last workgroup whose dispatch waited for its set
            ("dispatch_stalls", "i8"),
            ("n_fired", "i8"),
            ("fired_tile", "i8", (layout.tracker_entries,)),
            ("fired_at", "i8", (layout.tracker_entries,)),
        ],
        align=True,
    )


def dma_dtype():
    """T3's DMA engine: cursor through the ready commands and read-ahead accounting."""
    return np.dtype(
        [
            ("n_ready", "i8"),
            ("n_taken", "i8"),
            ("tile_cursor", "i8"),
            ("granule_cursor", "i8"),
            ("credit", "i8"),
            ("bytes_per_tick_num", "i8"),  # rate at which reads are issued
            ("bytes_per_tick_den", "i8"),
            ("read_ahead_granules", "i8"),
            ("command_ticks", "i8"),  # from when a command is its turn to its first read
            ("turn_at", "i8"),  # of the command that is its turn
            ("reads_in_flight", "i8"),
            ("n_commands", "i8"),
            ("n_commands_done", "i8"),
            # the ledger: see ledger.py
            ("last_reason", "i8"),  # of the last slot that was not NOTHING_LEFT
            ("reason_slots", "i8", (N_REASONS,)),
        ],
        align=True,
    )


# Stores of a group of compute units that wait for the wire: granules taken off it, and put into it.
STORE_QUEUE = np.dtype([("head", "i8"), ("tail", "i8")], align=True)


def link_port_dtype():
    """The egress port: serialises granules at the link rate."""
    return np.dtype(
        [
            ("granule_cost", "i8"),  # wire time of one granule in full packets, in 1/scale ticks
            ("payload_cost", "i8"),  # of it, without the share of the header of its packet
            ("header_cost", "i8"),  # that share, times the bytes of the packet
            ("full_packet", "i8"),  # bytes
            ("scale", "i8"),
            ("free_at_scaled", "i8"),
            ("n_queues", "i8"),  # of stores: 1, or one for each group of compute units and one for what no unit stores
            ("queue_places", "i8"),  # of each, in the array of stores that wait
            ("buffer_granules", "i8"),  # that each has room for
            ("last_source", "i8"),
            ("last_queue", "i8"),  # of the store that left last
            ("packet_left", "i8"),  # granules of its packet that come behind it
            ("dma_head", "i8"),
            ("dma_tail", "i8"),
            ("n_sent", "i8"),  # granules handed to the outbox
            ("n_signals", "i8"),  # signals handed to the outbox
            ("busy_scaled", "i8"),
            ("idle_scaled", "i8"),
            # the ledger: see ledger.py
            ("noted_idle_scaled", "i8"),  # idle up to the end of the last slot
            ("noted_sent", "i8"),
            ("reason_scaled", "i8", (N_REASONS,)),  # idle before the granules that were sent, by what it waited for
            ("open_scaled", "i8", (N_REASONS,)),  # idle since then
            ("queues", STORE_QUEUE, (MOST_STORE_QUEUES,)),
        ],
        align=True,
    )


def ingress_port_dtype():
    """The ingress port: the wire from the switch, which what comes from all other GPUs shares."""
    return np.dtype(
        [
            ("is_there", "i8"),  # 0: a link from one neighbour, which has sent no faster than its rate
            ("payload_cost", "i8"),  # as in the egress port
            ("header_cost", "i8"),
            ("scale", "i8"),
            ("free_at_scaled", "i8"),
            ("busy_scaled", "i8"),
            ("last_source", "i8"),  # distance of the GPU whose granule was served last
            ("ring_size", "i8"),  # of the arrivals of each GPU, power of two
            ("buffer_granules", "i8"),  # that one GPU may have on the way here
            ("n_served", "i8"),  # messages moved to the inbox
        ],
        align=True,
    )


# A kernel that this GPU runs: when, on which compute units, where its work is in the other tables, how far it is.
OPERATION_TABLE = np.dtype(
    [
        ("kind", "i8"),
        ("state", "i8"),
        ("priority", "i8"),
        ("traffic_class", "i8"),
        ("issued_at", "i8"),  # by the host
        ("launch_ticks", "i8"),  # from then, or from what it waits for, to its start
        ("first_wait", "i8"),  # of WAIT_TABLE
        ("n_waits", "i8"),
        ("n_untils", "i8"),  # behind these in WAIT_TABLE: what has to hold before it has ended
        ("first_post", "i8"),  # of POST_TABLE: what it posts at its end
        ("n_posts", "i8"),
        ("start_at", "i8"),  # NEVER: not known yet
        ("end_at", "i8"),
        ("first_unit", "i8"),  # compute units that it may run on
        ("end_unit", "i8"),
        ("first_workgroup", "i8"),  # of WORKGROUP_TABLE; of a move kernel: of the compute units of its workgroups
        ("n_workgroups", "i8"),
        ("n_dispatched", "i8"),
        ("n_finished", "i8"),
        # GEMM
        ("is_persistent", "i8"),  # its workgroups keep their compute units until it has no tile left
        ("n_slots", "i8"),  # workgroups resident on a compute unit
        ("share", "i8"),  # of a compute unit that a workgroup takes, of ALL_SHARES
        ("n_stage_slots", "i8"),  # workgroups of a stage
        ("n_released", "i8"),  # leading workgroups of the dispatch order that hold no place of the tracker any more
        ("dispatch_window", "i8"),  # workgroups that may be dispatched and not released
        ("tile_rows", "i8"),
        ("tile_columns", "i8"),
        ("wavefront_rows", "i8"),
        ("wavefront_columns", "i8"),
        ("n_wavefronts", "i8"),  # per workgroup
        ("first_tile", "i8"),  # of TILE_TABLE
        ("n_slices", "i8"),
        ("n_buffers", "i8"),  # operand slices staged per workgroup
        ("last_slice_granules", "i8"),
        ("slice_work", "i8"),
        ("last_slice_work", "i8"),
        ("a_line", "i8"),  # first line of operand A
        ("b_line", "i8"),
        ("is_tracked", "i8"),  # the tracker counts its tiles
        # move kernel
        ("n_wanted", "i8"),  # compute units that are kept free for it
        ("first_step", "i8"),  # of STEP_TABLE
        ("n_steps", "i8"),  # of each workgroup
        ("n_step_columns", "i8"),  # channels, each a workgroup; 1: all workgroups share each step
        ("slice_overhead_ticks", "i8"),  # from the last store of a step to the next one
        ("startup_ticks", "i8"),  # of a workgroup, on its compute unit
        ("flags_numerator", "i8"),  # granules that are sent, over ...
        ("flags_denominator", "i8"),  # ... granules of data
        ("buffer_places", "i8"),  # of a receive buffer, for each granule of data
        ("max_lines", "i8"),  # in flight to one workgroup
        ("load_ticks", "i8"),  # of its path to the L2, for each line loaded
        ("store_ticks", "i8"),  # the same, stored
    ],
    align=True,
)


def gpu_dtype(layout):
    """One GPU: clocks, the running kernel, and all units."""
    return np.dtype(
        [
            ("now", "i8"),
            ("slot_ticks", "i8"),
            ("slot_index", "i8"),
            ("compute_ticks", "i8"),  # period of the compute clock
            ("memory_ticks", "i8"),  # period of the memory clock
            ("n_compute_units", "i8"),
            ("n_copy_engines", "i8"),  # units behind them
            ("n_slots", "i8"),  # workgroups resident per CU, of the operation that allows most
            ("n_channels", "i8"),
            ("n_classes", "i8"),
            ("inbound_class", "i8"),  # of what comes from other GPUs, and of what the DMA engine reads
            ("line_bytes", "i8"),
            ("granule_bytes", "i8"),
            # address map: sizes as powers of two
            ("interleave_bits", "i8"),
            ("channel_bits", "i8"),
            ("bank_bits", "i8"),
            ("group_bits", "i8"),
            ("row_unit_bits", "i8"),
            ("line_issue_ticks", "i8"),  # path CU <-> L2: one line loaded
            ("store_issue_ticks", "i8"),  # the same, stored
            ("max_outstanding_lines", "i8"),
            ("epilogue_ticks", "i8"),  # of a tile, from its last multiplication to its first store
            ("workgroup_launch_ticks", "i8"),
            # operations
            ("is_busy", "i8"),  # from the load of a program to its end
            ("operations", OPERATION_TABLE, (layout.n_operations,)),
            ("running", "i8", (layout.n_operations,)),  # those that run, in the order in which they take their turn
            ("move_units", "i8", (layout.n_move_workgroups,)),  # compute unit of each workgroup of a move kernel; -1
            ("signals", "i8", (layout.n_signals,)),
            ("n_operations", "i8"),
            ("n_pending", "i8"),  # not started
            ("n_running", "i8"),  # started and not over
            ("next_start_at", "i8"),  # of those that wait for nothing but time
            ("has_news", "i8"),  # a signal has been posted that nobody has looked at
            ("n_undispatched", "i8"),  # workgroups of GEMMs, started or not
            ("n_gemms_left", "i8"),  # that have workgroups which have not ended
            ("n_moving", "i8"),  # workgroups of move kernels that have no compute unit yet, of those that run
            ("runs_gemms", "i8"),  # a GEMM has started: all compute units act in every slot
            ("stage_operation", "i8"),  # whose first stage the policies are told of; -1: none
            ("n_active_slots", "i8"),  # in which compute units acted
            ("first_active_at", "i8"),  # tick of the first of them
            ("compute_done_at", "i8"),  # last workgroup ended
            ("last_done_at", "i8"),  # last column command finished
            ("work_per_slot", "i8"),  # of a matrix pipe
            ("n_buffers", "i8"),  # operand slices staged per workgroup, of the operation that stages most
            ("n_slices_multiplied", "i8"),
            ("n_tiles_open", "i8"),  # tracked wavefront tiles that have not been triggered
            ("dispatcher_slots", "i8", (N_REASONS,)),  # of the workgroup dispatcher; see ledger.py
            ("dispatcher_reason", "i8"),  # of the last slot
            # mailbox
            ("inbox_head", "i8"),
            ("inbox_tail", "i8"),
            ("n_outbox", "i8"),
            ("peak_inbox", "i8"),
            ("expected_inbound", "i8"),
            ("n_inbound", "i8"),
            ("n_signals_received", "i8"),  # messages that only posted a signal
            # units
            ("l2", l2_dtype(layout)),
            ("tracker", tracker_dtype(layout)),
            ("dma", dma_dtype()),
            ("link_port", link_port_dtype()),
            ("ingress_port", ingress_port_dtype()),
            ("channels", channel_dtype(layout), (layout.n_channels,)),
            ("channels_until", "i8"),  # memory cycle up to which those that have something to do have run
            ("n_waiting_cus", "i8"),  # queued in front of channels that had no room
            ("compute_units", compute_unit_dtype(layout), (layout.n_compute_units,)),
            ("move_workgroups", move_workgroup_dtype(layout), (layout.n_compute_units,)),  # by compute unit
            ("bin_ticks", "i8"),
        ],
        align=True,
    )


# What an operation waits for, and what it posts at its end.
WAIT_TABLE = np.dtype([("signal", "i8"), ("at_least", "i8")], align=True)
POST_TABLE = np.dtype([("distance", "i8"), ("signal", "i8"), ("amount", "i8")], align=True)

WORKGROUP_TABLE = np.dtype(
    [
        ("operation", "i8"),
        ("order", "i8"),  # the workgroup of the same operation that is dispatched in this place
        ("first_tile", "i8"),
        ("row", "i8"),
        ("column", "i8"),
        ("n_rows", "i8"),
        ("n_columns", "i8"),
        ("route", "i8"),
        ("packet", "i8"),  # bytes of its stores to other GPUs
        ("cu", "i8"),
        ("slot", "i8"),
        ("start_at", "i8"),
        ("multiply_at", "i8"),
        ("main_loop_end_at", "i8"),
        ("end_at", "i8"),
        ("sent_mark", "i8"),  # stores in its queue at the link port up to the end of this workgroup
        ("wait_signal", "i8"),  # before its first load; -1: none
        ("wait_at_least", "i8"),
    ],
    align=True,
)

TILE_TABLE = np.dtype(
    [
        ("n_granules", "i8"),  # 0: this wavefront has nothing to do (ragged edge)
        ("workgroup", "i8"),
        ("first_tile", "i8"),  # of its workgroup
        ("row_granules", "i8"),  # granules in one row of the tile
        ("first_granule", "i8"),  # address
        ("pitch", "i8"),  # granules from one row to the next
        # where its stores go, if they leave the GPU, or what the DMA engine sends of it
        ("distance", "i8"),  # distance of the GPU; 0: they stay
        ("to_tile", "i8"),  # wavefront tile there, of the same shape; -1: a plain address
        ("to_granule", "i8"),  # that address
        ("to_pitch", "i8"),
        ("signal", "i8"),  # that each of its granules posts where it is stored in the end; -1: none
        ("updates_expected", "i8"),  # granule updates until trigger; 0: not tracked here
        ("updates_seen", "i8"),
        ("dma_command", "i8"),  # -1: none
        ("block_offset", "i8"),  # granules of the same DMA block before this tile
        ("tracker_set", "i8"),
        ("predecessor", "i8"),  # first tile of the workgroup whose place in the tracker this one takes; -1: none
        ("n_open", "i8"),  # at the first tile of a workgroup: its tiles that have not triggered
    ],
    align=True,
)

DMA_TABLE = np.dtype(
    [
        ("first_tile", "i8"),
        ("n_tiles", "i8"),
        ("kind", "i8"),  # of the stores that it sends
        ("tiles_missing", "i8"),
        ("ready_at", "i8"),
        ("start_at", "i8"),
        ("end_at", "i8"),
        ("granules_left", "i8"),
        ("queue_start", "i8"),  # place of its first granule in the queue of DMA data
    ],
    align=True,
)

STEP_TABLE = np.dtype(
    [
        ("n_lines", "i8"),
        ("n_granules", "i8"),
        ("n_operands", "i8"),
        ("operand", "i8"),  # first granule of the first operand
        ("stride", "i8"),  # from one operand to the next
        ("is_received", "i8"),  # the last operand lies as a step sent it, flags between the data
        ("send", "i8"),  # kind of the message; -1: the result is not sent
        ("distance", "i8"),  # of the GPU that it is sent to
        ("destination", "i8"),  # first granule there
        ("kept_at", "i8"),  # first granule of what is stored in own memory; -1: nothing
        ("wait_signal", "i8"),  # before the step starts; -1: none
        ("wait_at_least", "i8"),
        ("post_signal", "i8"),  # that each granule posts where it is sent, else where it is kept; -1: none
        ("packet", "i8"),  # bytes of its stores to other GPUs
        ("start_at", "i8"),
        ("end_at", "i8"),
    ],
    align=True,
)

# What a GPU knows of each GPU behind the same switch, by its distance; unused in a ring.
PEER_TABLE = np.dtype(
    [
        ("data_head", "i8"),  # of what it has sent and the ingress port has not served
        ("data_tail", "i8"),
        ("credit_head", "i8"),  # of the credits that it has given back and that have not been taken
        ("credit_tail", "i8"),
        ("credits", "i8"),  # granules that may still be sent to it
        ("n_freed", "i8"),  # granules of it that have left the ingress buffer since it was last given credits
    ],
    align=True,
)

# What the DRAM was told to do, in the order in which each channel issued it.  Entry 0 is the head of the log:
# ``at`` is the number of commands behind it, ``tag`` how many found no room; ``command`` 1 lets the loop return
# before there is none, so that somebody can empty it.
COMMAND_LOG = np.dtype(
    [
        ("at", "i8"),  # cycle of the memory clock
        ("channel", "i8"),
        ("command", "i8"),
        ("bank", "i8"),  # -1: all banks
        ("row", "i8"),  # of ACT and column commands; -1: all rows
        ("column", "i8"),  # of column commands
        ("kind", "i8"),  # of the request a column command serves
        ("tag", "i8"),  # of the same request
    ],
    align=True,
)


def empty_gpu(layout, used=None):
    """Return a one-element array with an idle GPU: everything zero but the fields whose idle value is not.

    *used* are the capacities that the machine really uses (None: all); what lies beyond them stays zero and untouched.
    """
    used = layout if used is None else used
    dtype = gpu_dtype(layout)
    state = np.frombuffer(mmap(-1, dtype.itemsize), dtype).view(np.recarray)
    gpu = state[0]
    channels = gpu.channels[: used.n_channels]
    channels["open_row"] = -1
    for name in ("list_head", "list_tail", "oldest_hit", "stalled_head"):
        channels[name] = -1
    for name in ("hit_key", "closed_key", "column_wake_at", "row_wake_at"):
        channels[name] = NEVER
    channels["now"] = -1
    channels["first_stage_occupancy"] = -1
    channels["idle_reason"] = FOR_REQUEST
    entries = layout.queue_entries
    channels["free_entry"] = np.arange(2 * entries).reshape(2, entries)
    gpu.compute_units["granted_channel"] = -1
    gpu.compute_units["move_operation"] = -1
    gpu.compute_units["wanted_by"] = -1
    gpu.compute_units["slots"]["workgroup"] = -1
    gpu.stage_operation = -1
    gpu.next_start_at = NEVER
    gpu.l2.tags[: used.n_l2_sets] = -1
    gpu.l2.free_mshr[: used.n_l2_banks, : used.n_mshrs] = np.arange(used.n_mshrs)
    gpu.l2.free_waiter[: used.n_waiters] = np.arange(used.n_waiters)
    gpu.l2.n_waiters = gpu.l2.n_free_waiters = used.n_waiters
    gpu.tracker.entry_tile[:] = -1
    gpu.tracker.held_workgroup = -1
    return state
