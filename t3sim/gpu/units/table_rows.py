"""Rows of the tables outside the record of a GPU, whose length the workload sets: operations, tiles, steps, messages.

Operations lie in the record too, since the loop reads them in every slot.  Times are ticks.
"""

from t3sim.gpu.units.records import record_dtype

# Half a cache line: rings of messages are read and written for each granule.
MESSAGE = record_dtype(
    "at",  # departure when sent, arrival when received, ticks
    "granule",  # index inside the tile, or the address; of a SIGNAL: the amount; of POLLED: the value
    ("tile", "i4"),  # wavefront tile at the receiver, or -1; of loads and polls: the requesting entry
    ("signal", "i4"),  # that it posts at the receiver, -1: none; of a LOAD: the number of granules
    ("packet", "i2"),  # bytes of the store that it belongs to, which set its time on the wire
    ("n_added", "i2"),  # contributions that have arrived, of a sum in the table of the switch
    ("kind", "i2"),  # of its request, or SIGNAL and the kinds after it
    # distance of the receiver, or EVERY; after the wire that of the sender, EVERY if a sum
    ("distance", "i2"),
)  # fmt: skip

# A kernel that this GPU runs: its times, compute units, ranges of the other tables, and progress.
OPERATION_TABLE = record_dtype(
    "kind", "state", "priority", "traffic_class",
    "is_background",  # 1: the program may end before it
    "issued_at",  # when the host has issued it
    "launch_ticks",  # from then, or from what it waits for, to its start
    "first_wait", "n_waits",  # of WAIT_TABLE
    "n_untils",  # after these in WAIT_TABLE: waits before its end
    "first_post", "n_posts", "n_posted",  # of POST_TABLE: what it posts at its end
    "start_at", "end_at",  # the start is NEVER while it is not known
    "began_at",  # when its first workgroup had a unit
    "first_unit", "end_unit",  # compute units that it may run on
    "first_workgroup",  # of WORKGROUP_TABLE; of a move kernel: of the compute units of its workgroups
    "n_workgroups", "n_dispatched", "n_finished",
    "l1_granules",  # of outstanding loads that fit into the L1 of a compute unit, next to the LDS of its workgroups
    # GEMM
    "is_persistent",  # its workgroups keep their compute units until it has no tile left
    "n_resident", "n_begun",  # of a persistent kernel: its workgroups, and those that have begun; 0: other kernels
    "prologue_ticks",  # of a workgroup, after its launch
    "epilogue_ticks",  # of a tile, from its last multiplication to its first store
    "count_ticks",  # of a tile, from its last acknowledgement to the end of its workgroup
    "zero_fill_ticks",  # of an operand line beyond the array
    "loads_ahead",  # 1: a workgroup takes its next tile when it has loaded this one
    "n_own", "n_shared",  # first tiles of each workgroup, reserved for it, and how many of the others have been taken
    "n_slots",  # workgroups resident on a compute unit
    "share",  # of a compute unit that a workgroup takes, of ALL_SHARES
    "n_stage_slots",  # workgroups of a stage
    "n_released",  # leading workgroups of the dispatch order that hold no place of the tracker any more
    "dispatch_window",  # workgroups that may be dispatched and not released
    "tile_rows", "tile_columns", "wavefront_rows", "wavefront_columns",
    "n_wavefronts",  # per workgroup; 0: a move kernel that proceeds line by line
    "first_tile",  # of TILE_TABLE
    "n_slices",  # of k, each a line of a row of A or a column of B
    "n_buffers",  # operand slices staged per workgroup
    "last_slice_granules", "slice_work", "last_slice_work",
    # A tile as it is stored: rows of memory, with scales of blocks; elements of a line, or of an equal part of one that
    # is stored at once, and of a granule.
    "stored_tile_rows", "columns_per_line", "columns_per_granule",
    "tile_granules",  # of the output
    "is_tracked",  # the tracker counts its tiles
    # move kernel
    "n_ranks",
    "shares_units",  # 1: its workgroups run on compute units that also run GEMMs
    "n_wanted",  # compute units that are kept free for it
    "first_step",  # of STEP_TABLE
    "n_steps",  # of each workgroup
    "n_step_columns",  # channels, each a workgroup; 1: all workgroups share each step
    "slice_overhead_ticks",  # from the last store of a step to the next one
    "startup_ticks",  # of a workgroup, on its compute unit
    "wake_ticks",  # from the post that a step waits for to its start: an engine starts up, a wavefront polls
    "flags_numerator", "flags_denominator",  # granules that are sent, over granules of data
    "buffer_places",  # of a receive buffer, for each granule of data
    "max_lines",  # outstanding loads of one workgroup
    "wavefront_lines", "sum_rounds", "n_simds",  # see wavefronts.py
    "wide_load_ticks",  # extra latency of its loads, over those of GEMMs
    "load_ticks", "store_ticks",  # of its path to the L2, for each line loaded, and stored
    "header_ticks",  # and in addition for a line stored to another GPU
)  # fmt: skip

# Waits of an operation, and its posts at the end.
WAIT_TABLE = record_dtype("signal", "at_least")
POST_TABLE = record_dtype("distance", "signal", "amount")

WORKGROUP_TABLE = record_dtype(
    "operation",
    "order",  # the workgroup of the same operation that is dispatched in this place
    "first_tile", "n_rows", "n_columns",
    "stored_rows",  # of memory, with scales of blocks
    "stored_columns",  # fewer than it makes, if an activation leaves less of them
    "a_line", "b_line",  # of its operands: the first lines of its first row and column
    "n_slices",  # that it multiplies: all of k, or its panel
    "last_slice",  # number, among these slices, of the last slice of k; beyond them in all other panels
    "row_from", "row_until", "column_from", "column_until",  # of its operands, counted from its first: those it loads
    "packet",  # bytes of its stores to other GPUs
    "n_leaving",  # granules of its tile for other GPUs, stored there by it or sent by the DMA engine
    "cu", "slot", "start_at", "multiply_at", "main_loop_end_at", "end_at",
    "sent_mark",  # stores that had entered the egress buffer at the end of this workgroup
)  # fmt: skip

TILE_TABLE = record_dtype(
    "n_granules",  # 0: this wavefront has nothing to do (ragged edge)
    "workgroup", "first_tile",  # of that workgroup, or of the part of its tile that this belongs to
    "route",
    "first_row",  # of the workgroup's tile that it has
    "until_row",  # of the workgroup's tile: the first row after the part that this belongs to
    "next_part",  # first wavefront tile of the next part of the same workgroup's tile; -1: none
    "wait_signal", "wait_at_least",  # at the first of a part: before the first load of the workgroup; -1: none
    "row_granules",  # granules in one row of the tile
    "first_granule", "pitch",  # address; granules from one row to the next
    # where its stores go, if they leave the GPU, or what the DMA engine sends of it
    "distance",  # distance of the GPU; 0: they stay
    "to_tile",  # wavefront tile there, of the same shape; -1: a plain address
    "to_granule", "to_pitch",  # that address
    "signal",  # that each of its granules posts where it is stored in the end; -1: none
    "updates_expected", "updates_seen",  # granule updates until trigger; 0: not tracked here
    "dma_command",  # -1: none
    "block_offset",  # granules of the same DMA block before this tile
    "tracker_set",
    "predecessor",  # first tile of the workgroup whose place in the tracker this one takes; -1: none
    "n_open",  # at the first tile of a workgroup: its tiles that have not triggered
)  # fmt: skip

DMA_TABLE = record_dtype(
    "first_tile", "n_tiles",
    "kind",  # of the stores that it sends
    "tiles_missing", "ready_at", "start_at", "end_at", "granules_left",
    "queue_start",  # place of its first granule in the queue of DMA data
)  # fmt: skip

STEP_TABLE = record_dtype(
    "n_lines", "n_granules", "n_operands",
    "n_batched",  # of the next steps of the column: wavefronts make them concurrently with this one; 0 elsewhere
    "wider",  # w: w + 1 consecutive operands are the lines, round-robin, of one array of elements w + 1 times as wide
    "operand", "stride",  # first granule of the first operand; from one operand, or such array, to the next
    "is_remote", "source", "source_stride",  # whether any lies on another GPU; distances of their GPUs, likewise
    "is_received",  # the last operand lies as a step sent it, flags between the data
    "send",  # kind of the message; -1: the result is not sent
    "distance", "destination",  # of the GPU that it is sent to; first granule there
    "is_reduced",  # the operand is a sum of all GPUs, which the switch makes; ``stride`` from one GPU to the next
    "is_multicast", "spread",  # it is sent to every GPU, on the next one so many granules before ``destination``
    "kept_at",  # first granule of the result in local memory; -1: nothing
    "wait_signal", "wait_at_least",  # before the step starts; -1: none
    "wait_where",  # 1: on the GPUs of the operands
    "post_signal",  # that each granule posts where it is sent, else where it is kept; -1: none
    "packet",  # bytes of its stores to other GPUs
    "start_at", "end_at",
)  # fmt: skip

# The state that a GPU keeps of each GPU behind the same switch, by its distance; unused in a ring.
PEER_TABLE = record_dtype(
    "data_head", "data_tail",  # of its messages that the ingress port has not served
    "credit_head", "credit_tail",  # of the credits that it has returned and that have not been taken
    "credits",  # granules that may still be sent to it
    "n_contributed",  # granules, to sums for this GPU
    "n_freed",  # its granules that have left the ingress buffer since credits were last returned to it
)  # fmt: skip

# The log of DRAM commands, in the order in which each channel issued them.  Entry 0 is the head of the log:
# ``at`` is the number of commands after it, ``tag`` the number that did not fit; ``command`` 1 lets the loop return
# before the log is full, so that a reader can empty it.
COMMAND_LOG = record_dtype(
    "at",  # cycle of the memory clock
    "channel", "command",
    "bank",  # -1: all banks
    "row",  # of ACT and column commands; -1: all rows
    "column",  # of column commands
    "kind",  # of the request a column command serves
    "tag",  # of the same request
)  # fmt: skip
