"""Names of the integers the kernel decides with.

A request *kind* is a code whose bits say what the DRAM has to do with it:
``WRITE_BIT`` for stores, ``UPDATE_BIT`` for near-memory op-and-stores.
"""

import numpy as np

# A moment that never comes; leaves room to add latencies without overflow.
NEVER = 1 << 60
FAR = np.int32((1 << 31) - 1)  # the same where 32 bits hold a time or a key

# Traffic classes: each has a stream queue before the arbiter.  A run may name others; these are T3's two (T3 section
# 4.5).
NO_STREAM = -1
COMPUTE = 0
COMM = 1
MOST_CLASSES = 8  # a queued request keeps its class in the three bits above its kind

# Directions of a column command.
READ = 0
WRITE = 1

# Request kinds.
WRITE_BIT = 8
UPDATE_BIT = 16
OPERAND_READ = 0
DMA_READ = 1
COLLECTIVE_READ = 2
REMOTE_READ = 3  # for another GPU; the message with its data has this kind too
CONTRIBUTION = 4  # of messages only: data for a sum that the switch makes
WRITE_BACK = WRITE_BIT
LOCAL_STORE = WRITE_BIT + 1
INCOMING_WRITE = WRITE_BIT + 2
COLLECTIVE_WRITE = WRITE_BIT + 3
LOCAL_UPDATE = WRITE_BIT + UPDATE_BIT
INCOMING_UPDATE = WRITE_BIT + UPDATE_BIT + 1
N_KINDS = 32

# Kinds of messages that bring no granule, from SIGNAL on.
SIGNAL = 32  # posts a signal after all messages before it have been taken in
CREDIT = 33  # gives back room in the ingress buffer of the GPU that it comes from
LOAD = 34  # requests granules of a line
LOAD_SUM = 35  # requests them of all GPUs; the switch adds them
POLL = 36  # requests the value of a signal
POLLED = 37  # the answer to a poll

# Instead of the distance of a GPU: the switch sends a message on to every GPU, the sender included.  Its granule is the
# place at the sender and, shifted, how many granules before that the place on the next GPU lies.
EVERY = -1
SPREAD_SHIFT = 34
PLACE_MASK = (1 << SPREAD_SHIFT) - 1

# A place inside a channel, packed with the kind of the request: row, column, bank, class (in the DRAM queue), kind.
KIND_MASK = N_KINDS - 1
CLASS_SHIFT = 5
CLASS_MASK = MOST_CLASSES - 1
FIELD_MASK = 255
BANK_SHIFT = 8
COLUMN_SHIFT = 16
ROW_SHIFT = 24
BELOW_ROW_MASK = 0xFFFFFF

# DRAM commands, as logged; UPD is an op-and-store: a WR that adds to the stored value.
ACT, PRE, RD, WR, UPD, REF = range(6)

# Where the stores of a workgroup go (address-space mapping, T3 section 4.4).
ROUTE_CACHED = 0  # through the L2, write-back: the baseline
ROUTE_LOCAL_UPDATE = 1  # uncached op-and-store to local memory
ROUTE_REMOTE_UPDATE = 2  # over the link, op-and-store at the receiver
ROUTE_LOCAL_STORE = 3  # uncached plain store to local memory
ROUTE_REMOTE_STORE = 4  # over the link, plain store at the receiver

# Source of a granule on the link.
FROM_STORES = 0
FROM_DMA = 1

# Kinds of operations.
GEMM = 0
MOVES = 1  # a kernel that loads, adds and stores: collectives, sums, copies by compute units
BARRIER = 2  # posts and waits, and runs nothing

# States of an operation; one that is ENDING is a GEMM whose dirty lines are written back.
PENDING, RUNNING, ENDING, OVER = range(4)

ALL_SHARES = 12  # of a compute unit: one to four workgroups take all of it

# Why advance() returned.
AT_HORIZON, KERNEL_DONE, OUTBOX_FULL, LOG_FULL, NO_ROOM, RATE_BROKEN = range(6)

# Faults: each ends a run at once.
NO_FAULT = 0
PICKED_NOTHING = 1  # the policy picked a stream that was not ready
ONE_UPDATE_TOO_MANY = 2  # to a tile that has received all updates that it expects
NO_TRACKER_ENTRY = 3  # free in the set of a tile that has a place there

# States of a compute unit in a slot (time accounting, adds up to the total).
N_CU_STATES = 7
BUSY_MULTIPLYING, WAIT_FIRST_OPERANDS, WAIT_OPERANDS, STORING, WAIT_LAUNCH, COLLECTIVE_WORK, IDLE = range(N_CU_STATES)

# Stall reasons, and WORKING; names and definitions are in ``t3sim.observe.waits``.
N_REASONS = 12
(
    WORKING, FOR_LAUNCH, FOR_CU_SLOT, FOR_L2, FOR_DRAM_QUEUE, FOR_DRAM, FOR_LINK, FOR_DMA, FOR_DEPENDENCY,
    FOR_ARBITRATION, FOR_REQUEST, NOTHING_LEFT,
) = range(N_REASONS)  # fmt: skip

# How an L2 access ended, if not with the time of a hit.
L2_MERGED, L2_MISS, L2_BUSY, L2_NO_ROOM = range(-1, -5, -1)
