"""The state of every unit of a GPU: nested NumPy dtypes, one record per GPU.

Sizes here are capacities and part of the compiled type; the numbers a machine really has (``n_...`` fields) are values,
so machines that fit one ``Layout`` share one compilation (``assemble.layout_for``).  Tables whose length depends on the
workload are arrays outside the record (``table_rows``).  Times are ticks unless the name says cycles; a channel counts
cycles of the memory clock.
"""

from mmap import mmap
from typing import NamedTuple

import numpy as np

from t3sim.gpu.units.codes import FAR, FOR_REQUEST, MOST_CLASSES, N_CU_STATES, N_KINDS, N_REASONS, NEVER
from t3sim.gpu.units.records import record_dtype
from t3sim.gpu.units.table_rows import OPERATION_TABLE

N_POLICY_PARAMS = 8
MOST_SIMDS = 8  # of a compute unit
MOST_PORTS = 8  # of a GPU, to links and networks
MOST_GPUS = 1024  # of a machine
STORE_BUCKETS = 64  # counters of stores in the stream queues of a channel, by a hash of the address
RETURN_RING = 256  # slots ahead in which loads may return to a compute unit: more than an L2 latency and a sleep
INVERSE_SHIFT = 50  # bits of the inverse of a slot's length: products of times within two rings fit into 64 bits
LONGEST_SLEEP = 128  # slots of a compute unit, after which its places in that ring are still free


class Layout(NamedTuple):
    """Capacities of one compiled type; the defaults are those of the standard layout.

    Memory that a machine does not use is never touched, so a large capacity costs addresses and no memory.  Only
    ``n_dram_banks`` costs time: a channel's record is longer, and a refresh of all banks looks at each of the layout.
    """

    n_compute_units: int = 288  # copy engines and commands of T3's DMA engine among them
    n_slots: int = 4  # resident workgroups per compute unit
    n_buffers: int = 16  # operand slices staged per workgroup
    n_waiters: int = 1 << 20  # loads waiting on misses, whole GPU
    n_collective_lines: int = 4096  # of a move kernel, loaded and not stored yet, per unit
    n_wavefronts: int = 64  # of a workgroup of a move kernel
    n_l2_banks: int = 128
    n_l2_sets: int = 1 << 17  # all banks together: 256 MiB of lines of 128 bytes
    n_noted_lines: int = 1 << 24  # of which the L2 notes stores that bypass its tags; power of two
    l2_associativity: int = 16
    n_mshrs: int = 512  # per bank
    n_channels: int = 64
    n_dram_banks: int = 16  # per channel
    queue_entries: int = 512  # DRAM queue, per direction
    n_classes: int = MOST_CLASSES  # of traffic, each with a stream queue in every channel
    stream_queue_entries: int = 512  # power of two
    tracker_entries: int = 8192
    n_operations: int = 1024  # of a program
    n_signals: int = 1 << 19
    n_move_workgroups: int = 1 << 15  # of all move kernels of a program
    n_done: int = 128  # column commands of one channel in one slot


# The fields of one request, or of one miss, are adjacent: cache misses are much of the time of the loop.
QUEUE_ENTRY = record_dtype(
    ("next", "i4"), ("previous", "i4"),  # in the list of its bank and direction, which is closed
    ("row", "i4"),
    ("place", "i4"),  # column, bank, class and kind, packed as in codes
    ("key", "i4"),  # see dram_queue
    "tag",
)  # fmt: skip
REQUEST = record_dtype(
    "place",  # packed as in codes
    "tag",
    "at",  # cycle of its arrival
)  # fmt: skip
DONE = record_dtype("kind", "traffic_class", "tag", "at")  # a column command and the cycle at which its data have moved
MSHR = record_dtype(
    "line", "fill_at",
    ("remaining", "i4"),  # granules that have not come
    ("waiter", "i4"),
    ("next", "i4"),  # of the same set
)  # fmt: skip
WAVEFRONT = record_dtype(
    "stretch",  # its lines, of those of a step
    "n_loaded", "n_stored",  # of them
    "n_due", "n_come",  # lines loaded when it waits next, and returned
)  # fmt: skip
RETURNING = record_dtype(("lines", "i4"), ("granules", "i4"))  # to a compute unit in a slot
WAITER = record_dtype(
    ("next", "i4"),
    ("owner", "i4"),  # packed: see l2_slice
)


def channel_dtype(layout):
    """One HBM channel: its FR-FCFS queue, bank state, stream queues and counters."""
    banks = layout.n_dram_banks
    classes = layout.n_classes
    return record_dtype(
        # fields that every slot reads come first: the clock of this channel (memory cycles), when each command bus can
        # act next, and when a request can enter the DRAM queue
        "now", "column_wake_at", "row_wake_at", "next_refresh_at", "admission_at",
        "stalled",  # streams whose head waits for the next slot, as bits: tracker full or older store
        "idle_reason",  # stall reason while the DRAM queue is empty
        "n_done",  # column commands of this slot, for the units that wait for them
        # queues and their parameters
        "n_classes", "stream_capacity", "ring_mask",  # of the places that the capacity needs
        "queue_capacity", "is_split", ("occupancy", (2,)), "is_draining",
        "n_admitted", "n_banks", "banks_per_group", ("n_hits", (2,)),  # banks with a request for their open row
        ("channel_column_at", (2,)), "channel_activate_at", ("activate_window", (4,)), "activate_pointer",
        # per-bank refresh: the bank that is due, -1: none; whether its row is still open; the number of refreshes begun
        "refreshed_bank", "is_refresh_closing", "n_refreshes",
        # arbitration
        "last_stream", "last_direction", "last_comm_at", "producer_done",
        "lead",  # of compute over the link: granules stored for other GPUs and not sent, % of a stage
        "first_stage_occupancy",  # mean DRAM queue occupancy x 100 of the first stage; -1 before its end
        "first_stage_length",  # % of the time that the link takes for the stores of a stage
        "reads_stored_operands",  # 1: the program stores operands of its GEMMs; their reads may not overtake these
        "has_posted",  # 1: a signal, since it was read last
        "fault",  # see codes
        "occupancy_cycles",
        "noted_occupancy_cycles",  # of these, in the time series
        "queue_wait_cycles",  # sum over requests in the DRAM queue, whose sum over cycles is occupancy_cycles
        "peak_occupancy", "last_done_at",
        # of split queues
        "write_high_watermark", "write_low_watermark", "write_capacity", "write_age", "writes_per_drain", "read_age",
        "turnaround_to_writes",
        "is_read_waiting",  # 1: a read waits for a store in this queue
        "batch_from",  # requests of the direction in service that had been served when this batch of them began
        "batch_until",  # number of its requests after which the other direction is served
        "held_since",  # when the oldest request of the other direction arrived, or this direction began
        # timing parameters, cycles
        "nBL", "nCL", "nCWL", "nRCDRD", "nRCDWR", "nRP", "nRAS", "nRC", "nRTP", "nWR", "nCCDS", "nCCDL", "nCCDWS",
        "nCCDWL", "nRRDS", "nRRDL", "nFAW", "nRTW", "nWTRS", "nWTRL", "nREFI", "nRFC",
        "nRFCpb", "nRREFD",
        # counters
        "fault_tile", "n_turnarounds", "tracker_stalls", "hazard_stalls", ("n_commands", (6,)),
        ("reason_cycles", (N_REASONS,)),  # the ledger: see ledger.py
        # bank state, of 32 bits each, so that a look at all banks is short
        "epoch",  # cycle from which times of banks are counted
        "key_base",  # requests admitted before those from which keys are counted
        ("hit_key", "i4", (2, banks)), ("column_at", "i4", (2, banks)), ("open_row", "i4", (banks,)),
        ("activate_at", "i4", (banks,)), ("precharge_at", "i4", (banks,)),
        ("closed_key", "i4", (3, banks)),  # of both directions, and of a unified queue
        ("oldest_hit", "i4", (2, banks)),  # entry of the request with hit_key
        # stream queues in front of the arbiter, one for each traffic class
        ("queue_head", (classes,)), ("queue_tail", (classes,)),
        ("ring_start", (classes,)),  # number of the request in the first place of the queue
        ("n_reserved", (classes,)),  # entries promised to woken compute units
        ("n_waiting_cu", (classes,)), ("waiting_head", (classes,)), ("last_served_at", (classes,)),
        ("stalled_head", (classes,)),  # last head that was counted as stalled
        ("n_stores_queued", (classes,)), ("store_counts", (STORE_BUCKETS,)),  # by class, and by address
        ("policy_params", (N_POLICY_PARAMS,)), ("policy_scratch", (N_POLICY_PARAMS,)),
        # the ledger
        ("stream_changed_at", (classes,)),
        ("stream_queue_cycles", (classes,)),  # sum over cycles of requests in the stream queue
        ("stream_wait_cycles", (classes,)),  # sum over requests of leaving - entering the stream queue
        ("n_requests", (classes, N_KINDS)), ("n_enqueued", (classes, N_KINDS)), ("n_served", (classes, N_KINDS)),
        # long fields
        ("done", DONE, (layout.n_done,)), ("free_entry", "i4", (2, layout.queue_entries)),
        # the DRAM queue: the end of the list of each direction and bank, then a pool for each direction
        ("entries", QUEUE_ENTRY, (2 * banks + 2 * layout.queue_entries,)),
        ("requests", REQUEST, (classes, layout.stream_queue_entries)),
        ("waiting_cu", "i4", (classes, layout.n_compute_units * layout.n_slots)),
    )  # fmt: skip


def l2_dtype(layout):
    """The L2: tags in recency order, miss-status registers, bank ports."""
    banks = layout.n_l2_banks
    return record_dtype(
        "n_banks", "banks_per_channel", "sets_per_bank", "associativity", "n_mshrs", "granules_per_line",
        "bank_ticks",  # one line access occupies a bank this long
        "bank_queue_ticks",  # how far a bank may be booked ahead
        "request_ticks", "return_ticks",  # CU to bank and back: half of the hit latency each
        "miss_ticks",  # bank to memory controller, on a miss
        "keeps_dirty_lines",  # at the end of a kernel
        "n_partitions",
        "partition_bits",  # channels of a partition, as a power of two
        "crossing_ticks",  # from one partition to another and back
        "set_bits",  # sets of a bank, as a power of two
        "low_bits",  # of a line, which its set does not depend on
        ("tags", "i4", (layout.n_l2_sets, layout.l2_associativity)),  # see l2_slice
        ("filling", "i2", (layout.n_l2_sets,)),  # first miss-status register of each set, or -1
        ("bank_free_at", (banks,)), ("n_free_mshrs", (banks,)), ("free_mshr", "i4", (banks, layout.n_mshrs)),
        ("mshrs", MSHR, (banks, layout.n_mshrs)), "n_waiters", "n_free_waiters",
        ("free_waiter", "i4", (layout.n_waiters,)), ("waiters", WAITER, (layout.n_waiters,)),
        ("flush_cursor", (banks,)),  # next set of each bank
        "n_accesses", "n_hits", "n_merged", "n_misses",
        "n_copy_hits",  # of the hits: in the copy of another partition's line
        "n_crossings",  # loads that went on to another partition
        "n_copies",  # made
        "n_store_accesses", "n_evictions", "n_dirty_evictions", "n_flushed", "n_fills",
        "n_delivered",  # loads answered by a fill
        "n_granules_requested",  # for fills
        "n_granules_dirtied", "n_granules_written_back",
        # stores that bypass the tags: see l2_slice
        "retained_granules",
        "n_brought_in",  # granules filled, by misses and by stores of all kinds
        "n_found",  # granules that move kernels loaded from the L2 bypassing its tags
        ("stored_at", (layout.n_noted_lines,)),  # line tag and n_brought_in at the time of the store, packed; 0: none
    )  # fmt: skip


def workgroup_slot_dtype(layout):
    """One resident workgroup of a compute unit."""
    return record_dtype(
        "workgroup",  # id, or -1 when the slot is free
        "kernel",  # operation whose persistent workgroup has the slot, or had it last; -1: none
        "member", "n_taken",  # number of that workgroup, and how many of its own tiles it has taken
        "next_place",  # in the order of the tile that it has taken and not begun; -1: none
        "launch_at",
        "load_slice",  # being loaded; the slices of the next tile follow those of this one
        "n_slices", "n_to_load",  # of its tile; and with those of the next one, if it has taken that
        "load_line", "multiply_slice", "is_multiplying", "work_left",
        "first_buffer",  # of the tile
        ("ready_at", (layout.n_buffers,)),
        ("outstanding", "i2", (layout.n_buffers,)), ("is_issued", "i1", (layout.n_buffers,)),
        "store_line", "stores_outstanding",
        "stored_at",  # earliest time of the first store of the tile, then the time of its last acknowledgement
        # the ledger: see ledger.py
        "refused_by",  # last stall reason of a line of this workgroup; WORKING: none
        "refused_line",  # that line of the L2
    )  # fmt: skip


def compute_unit_dtype(layout):
    """One compute unit: its resident workgroups, its share of the memory system, its time accounting."""
    return record_dtype(
        # fields that every slot reads come first
        "sleeps_until",  # slot before which it only multiplies; 0: it is awake
        "is_taken",  # exclusively, by a workgroup of a move kernel
        "idle_from",  # first active slot that is not accounted for, while no kernel runs on it
        "move_operation",  # operation of the move kernel whose workgroup runs on it; -1: none
        "is_waiting",  # queued in front of a channel that had no room
        "granted_channel",  # room promised there; -1: none
        "asking_slot",  # slot of the workgroup that issued last: it queues while the unit waits, and uses the promise
        "issue_debt",  # of the path to the L2, at most 0: the ticks that the last access overdrew
        ("slots", workgroup_slot_dtype(layout), (layout.n_slots,)),
        "outstanding_lines",  # loads of GEMMs, until their data have returned
        # stores, until they are acknowledged, or loads of a move kernel that has the compute unit exclusively
        "outstanding_granules",
        # the ledger: see ledger.py
        "refused_by",  # stall reason of a line in this slot; WORKING: none stalled
        "refused_ticks",  # of the slot, lost to that stall
        ("reason_ticks", (N_REASONS,)),
        ("state_slots", (N_CU_STATES,)),  # spent in each state
        "slept_from",  # first slot of its sleep that is not accounted for
        "granted_class",  # of traffic, in whose queue room is promised
        "wanted_by",  # move kernel that it is kept free of GEMM workgroups for; -1: none
        "shares",  # of it that resident workgroups take, of ALL_SHARES
        "l1_granules",  # outstanding loads of a move kernel that its L1 has room for; 0: not set in this program
        ("returning", RETURNING, (RETURN_RING,)),  # accesses that return in a slot, by its number modulo the ring
    )  # fmt: skip


def move_workgroup_dtype(layout):
    """A workgroup of a move kernel on its compute unit: its step and its outstanding lines."""
    return record_dtype(
        "number",  # in its kernel
        "step_ready_at", "step",
        "step_line",  # lines of this step issued so far
        "n_seen", "is_polling",  # operands whose GPUs have posted the signal of the step; 1: the next one is polled
        "step_operand", "step_stored", "line_head", "line_tail", ("line_remaining", "i4", (layout.n_collective_lines,)),
        ("line_ready_at", (layout.n_collective_lines,)), ("line_index", (layout.n_collective_lines,)),
        "outstanding_lines",  # loaded for it and not stored
        "knows_distance",  # 1: loads from another partition of the L2 take longer
        "wide_load_ticks",  # extra latency of all its loads
        "oldest", "oldest_stretch",  # wavefront, and its lines
        "sleeps_until",  # tick before which no wavefront can act, unless a load returns
        ("wavefronts", WAVEFRONT, (layout.n_wavefronts,)),
        ("simd_free_at", (MOST_SIMDS,)),  # when a SIMD unit may load the next line
        "last_reason",  # stall reason of the last slot
    )  # fmt: skip


def tracker_dtype(layout):
    """T3's tracker: set-associative counters per wavefront tile."""
    return record_dtype(
        "n_sets", "entries_per_set", ("entry_tile", (layout.tracker_entries,)),
        ("entry_remaining", (layout.tracker_entries,)), ("entry_last_at", (layout.tracker_entries,)), "n_entries",
        "peak_entries", "n_allocated", "n_triggered",
        "n_counted",  # stores counted
        "held_workgroup",  # last workgroup whose dispatch stalled for its set
        "dispatch_stalls", "n_fired", ("fired_tile", (layout.tracker_entries,)),
        ("fired_at", (layout.tracker_entries,)),
    )  # fmt: skip


def dma_dtype():
    """T3's DMA engine: cursor through the ready commands and read-ahead accounting."""
    return record_dtype(
        "n_ready", "n_taken", "tile_cursor", "granule_cursor", "credit",
        "bytes_per_tick_num", "bytes_per_tick_den",  # rate at which reads are issued
        "read_ahead_granules",
        "command_ticks",  # from the issue of a command to its first read
        "turn_at",  # when the current command was issued
        "reads_in_flight", "n_commands", "n_commands_done",
        # the ledger: see ledger.py
        "last_reason",  # of the last slot that was not NOTHING_LEFT
        ("reason_slots", (N_REASONS,)),
    )  # fmt: skip


def link_port_dtype():
    """The egress port: serialises granules at the link rate."""
    return record_dtype(
        "number",
        "granule_cost",  # wire time of one granule in full packets, in 1/scale ticks
        "payload_cost",  # of it, without the share of the header of its packet
        "header_cost",  # that share, times the bytes of the packet
        "full_packet",  # bytes
        "multicast_packet",  # bytes, of what goes to all GPUs or into a sum
        "scale", "free_at_scaled",
        "buffer_granules",  # capacity of the egress buffer
        "store_head", "store_tail",  # granules taken off the egress buffer, and put into it
        "ring_start",  # number of the store in the first place of the buffer
        "last_source",
        "dma_head", "dma_tail",
        "n_sent", "n_signals",  # granules and signals handed to the outbox
        "busy_scaled", "idle_scaled",
        # the wire that leads to this port from others
        "first_reached", "end_reached",  # of the GPUs behind it, in ``WIRE.reached``
        "n_waiting",  # messages of these that have not been served
        "served_until_scaled", "served_scaled",  # when the wire is free again; how long it was in use
        "last_served",  # of the GPUs behind it: the one whose granule was served last
        # the ledger: see ledger.py
        "noted_idle_scaled",  # idle up to the end of the last slot
        "noted_sent",
        ("reason_scaled", (N_REASONS,)),  # idle before the granules that were sent, by what it waited for
        ("open_scaled", (N_REASONS,)),  # idle since then
    )  # fmt: skip


def ingress_port_dtype():
    """What arrives at all ports, and sums that a switch makes."""
    return record_dtype(
        "is_there",  # 0: none, since the only sender is one neighbour, which is limited by the rate of its link
        "ring_size",  # of the arrivals of each GPU, power of two
        "buffer_granules",  # of one GPU that may be on the wire and in the ingress buffer
        "n_served",  # messages moved to the inbox
        "most_sums",  # granules, in the table of the switch
        "n_summing",  # requested and not complete
        "n_sums",  # complete
        "sum_cost", "sum_at_scaled",  # from one sum to the next; when the next one can leave the reduction unit
    )  # fmt: skip


# The wires that lead away from a GPU.
WIRE = record_dtype(
    "n_gpus", "per_node",  # of all nodes, and of one: what distances mean, see collective/ranks.py
    ("port_of", "i1", (MOST_GPUS,)),  # by the distance of a GPU
    "n_reached", ("reached", "i2", (MOST_GPUS,)),  # distances of the GPUs behind ports, port by port
    # of each port
    ("latency_ticks", (MOST_PORTS,)),
    ("payload_cost", (MOST_PORTS,)),  # time of the data of a granule
    ("header_cost", (MOST_PORTS,)), ("scale", (MOST_PORTS,)),  # of headers; the denominator
    ("last_at", (MOST_PORTS,)),  # when the last bit of the last message left
    "n_granules",  # put on the wire
    "n_multicast", "n_contributions",  # of these
)  # fmt: skip


def gpu_dtype(layout):
    """One GPU: clocks, the running kernel, and all units."""
    return record_dtype(
        "now", "slot_ticks", "slot_index",
        "slot_inverse",  # of slot_ticks, << INVERSE_SHIFT, rounded up
        "compute_ticks", "memory_ticks",  # periods of the clocks
        "n_compute_units", "n_engines",  # units; after them copy engines and those of the network interface
        "n_slots",  # workgroups resident per CU, of the operation that allows most
        "n_channels", "n_classes",
        "inbound_class",  # of what comes from other GPUs, and of what the DMA engine reads
        "line_bytes", "granule_bytes",
        # address map: sizes as powers of two
        "interleave_bits", "channel_bits", "bank_bits", "group_bits", "row_unit_bits",
        "line_issue_ticks", "store_issue_ticks",  # path CU <-> L2: one line loaded, and stored
        "store_header_ticks",  # in addition, if it goes to another GPU
        "max_outstanding_lines",
        "holds_writes",  # 1: the memory holds writes back, so stores are acknowledged before they reach it
        "workgroup_launch_ticks",
        # operations
        "is_busy",  # from the load of a program to its end
        "has_fault",  # any channel
        ("operations", OPERATION_TABLE, (layout.n_operations,)),
        ("running", (layout.n_operations,)),  # those that run, in the order in which they act
        ("move_units", (layout.n_move_workgroups,)),  # compute unit of each workgroup of a move kernel; -1
        ("signals", (layout.n_signals,)), "n_operations",
        "n_pending", "n_running",  # operations that have not started; that have started and not ended
        "n_awaited",  # of both, those not in the background
        "has_background",
        "next_start_at",  # of those that wait for time only
        "has_news",  # 1: a signal has been posted since the command processor read them
        "n_undispatched",  # workgroups of GEMMs, started or not
        "n_gemms_left",  # that have workgroups which have not ended
        "n_moving",  # workgroups of running move kernels that have no compute unit yet
        "runs_gemms",  # 1: a GEMM has started; all compute units act in every slot
        "stage_operation",  # whose first stage is recorded for policies; -1: none
        "n_active_slots", "first_active_at",  # slots in which compute units acted, tick of the first of them
        "stage_granules",  # that a stage of the first GEMM stores
        "n_to_send",  # granules for other GPUs of workgroups that have ended, and all granules sent before this program
        "compute_done_at", "last_done_at",  # last workgroup ended; last column command finished
        "work_per_slot",  # of a matrix pipe
        "n_buffers",  # operand slices staged per workgroup, of the operation that stages most
        "n_slices_multiplied",
        "n_tiles_open",  # tracked wavefront tiles that have not been triggered
        ("dispatcher_slots", (N_REASONS,)), "dispatcher_reason",  # of the last slot; see ledger.py
        # mailbox
        "inbox_head", "inbox_tail", "n_outbox", "peak_inbox", "expected_inbound", "n_inbound",
        "n_asked_for",  # granules that other GPUs request while this program runs
        "n_signals_received",  # messages that brought no granule
        "n_taken_in",  # messages, without polls of signals and their answers
        "expected_loads", "n_loads",  # granules that other GPUs load
        "n_fetched", "n_asked",  # granules that this GPU has loaded from others; requests that it has sent for them
        # units
        ("l2", l2_dtype(layout)), ("tracker", tracker_dtype(layout)), ("dma", dma_dtype()),
        "n_ports", ("ports", link_port_dtype(), (MOST_PORTS,)),
        ("ingress_port", ingress_port_dtype()), ("wire", WIRE),
        # mirrored mode
        "hears_at", "quantum_ticks",  # when it receives its own messages next (NEVER: those of others); the interval
        "n_travelling", "n_heard",  # of the outbox: messages on the wire; those of them taken in
        # memory cycle until which each channel sleeps unless a request arrives, which every slot reads
        ("channel_sleeps_until", (layout.n_channels,)),
        ("channels", channel_dtype(layout), (layout.n_channels,)),
        "channels_until",  # memory cycle up to which channels that are awake have run
        "n_waiting_cus",  # queued in front of channels that had no room
        ("compute_units", compute_unit_dtype(layout), (layout.n_compute_units,)),
        ("move_workgroups", move_workgroup_dtype(layout), (layout.n_compute_units,)),  # by compute unit
        "bin_ticks",
    )  # fmt: skip


def empty_gpu(layout, used=None, memory=None):
    """Return a one-element array with an idle GPU: everything zero but the fields whose idle value is not.

    *used* are the capacities that the machine really uses (None: all); what lies beyond them stays zero and untouched.
    *memory*: zeroed memory for the record; None: new memory.
    """
    used = layout if used is None else used
    dtype = gpu_dtype(layout)
    state = np.frombuffer(mmap(-1, dtype.itemsize) if memory is None else memory, dtype).view(np.recarray)
    gpu = state[0]
    channels = gpu.channels[: used.n_channels]
    channels["open_row"] = channels["stalled_head"] = -1
    for name in ("column_wake_at", "row_wake_at"):
        channels[name] = NEVER
    channels["hit_key"] = channels["closed_key"] = FAR
    channels["now"] = -1
    channels["ring_mask"] = layout.stream_queue_entries - 1
    channels["first_stage_occupancy"] = -1
    channels["idle_reason"] = FOR_REQUEST
    entries = layout.queue_entries
    ends = 2 * layout.n_dram_banks
    channels["free_entry"] = ends + np.arange(2 * entries).reshape(2, entries)
    channels["entries"]["next"][:, :ends] = channels["entries"]["previous"][:, :ends] = np.arange(ends)
    channels["entries"]["key"][:, :ends], channels["entries"]["row"][:, :ends] = FAR, -1
    for name in ("granted_channel", "move_operation", "wanted_by"):
        gpu.compute_units[name] = -1
    for name in ("workgroup", "kernel", "next_place"):
        gpu.compute_units["slots"][name] = -1
    gpu.stage_operation, gpu.stage_granules = -1, 1
    gpu.next_start_at = gpu.hears_at = NEVER
    gpu.l2.tags[: used.n_l2_sets] = gpu.l2.filling[: used.n_l2_sets] = -1
    gpu.l2.free_mshr[: used.n_l2_banks, : used.n_mshrs] = np.arange(used.n_mshrs)
    gpu.l2.free_waiter[: used.n_waiters] = np.arange(used.n_waiters)
    gpu.l2.n_waiters = gpu.l2.n_free_waiters = used.n_waiters
    gpu.tracker.entry_tile[:] = -1
    gpu.tracker.held_workgroup = -1
    return state
