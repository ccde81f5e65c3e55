"""Names of the integers the kernel decides with.

A request *kind* is a code whose bits say what the DRAM has to do with it:
``WRITE_BIT`` for stores, ``UPDATE_BIT`` for near-memory op-and-stores.
"""

# A moment that never comes; leaves room to add latencies without overflow.
NEVER = 1 << 60

# Traffic classes: each has a stream queue in front of the arbiter.  A run names as many as it likes; these are T3's two
# (T3 section 4.5).
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
WRITE_BACK = WRITE_BIT
LOCAL_STORE = WRITE_BIT + 1
INCOMING_WRITE = WRITE_BIT + 2
COLLECTIVE_WRITE = WRITE_BIT + 3
LOCAL_UPDATE = WRITE_BIT + UPDATE_BIT
INCOMING_UPDATE = WRITE_BIT + UPDATE_BIT + 1
N_KINDS = 32

# Kinds of messages that become no request.
SIGNAL = 32  # posts a signal when all that was sent before it has been taken in
CREDIT = 33  # gives back room in the ingress buffer of the GPU that it comes from

# A place inside a channel, packed with the kind of the request: row, column, bank, class (in the DRAM queue), kind.
KIND_MASK = N_KINDS - 1
CLASS_SHIFT = 5
CLASS_MASK = MOST_CLASSES - 1
FIELD_MASK = 255
BANK_SHIFT = 8
COLUMN_SHIFT = 16
ROW_SHIFT = 24
BELOW_ROW_MASK = 0xFFFFFF

# DRAM commands, as logged.
ACT = 0
PRE = 1
RD = 2
WR = 3
UPD = 4  # op-and-store: a WR that adds to the stored value
REF = 5

# Where the stores of a workgroup go (address-space mapping, T3 section 4.4).
ROUTE_CACHED = 0  # through the L2, write-back: the baseline
ROUTE_LOCAL_UPDATE = 1  # uncached op-and-store to own memory
ROUTE_REMOTE_UPDATE = 2  # over the link, op-and-store at the neighbour
ROUTE_LOCAL_STORE = 3  # uncached plain store to own memory
ROUTE_REMOTE_STORE = 4  # over the link, plain store at the neighbour

# Who put a granule on the link.
FROM_STORES = 0
FROM_DMA = 1

# Kinds of operations.
GEMM = 0
MOVES = 1  # a kernel that loads, adds and stores: collectives, sums, copies by compute units
BARRIER = 2  # posts and waits, and runs nothing

# States of an operation.
PENDING = 0
RUNNING = 1
ENDING = 2  # a GEMM whose dirty lines are written back
OVER = 3

ALL_SHARES = 12  # of a compute unit: one to four workgroups take all of it

# Why advance() came back.
AT_HORIZON = 0
KERNEL_DONE = 1
OUTBOX_FULL = 2
LOG_FULL = 3

# What ends a run at once.
NO_FAULT = 0
PICKED_NOTHING = 1  # the policy picked a stream that was not ready
ONE_UPDATE_TOO_MANY = 2  # of a tile that has all it expects
NO_TRACKER_ENTRY = 3  # free in the set of a tile that has a place there

# What a compute unit did in a slot (time accounting, adds up to the total).
BUSY_MULTIPLYING = 0
WAIT_FIRST_OPERANDS = 1
WAIT_OPERANDS = 2
STORING = 3
WAIT_LAUNCH = 4
COLLECTIVE_WORK = 5
IDLE = 6
N_CU_STATES = 7

# What a unit did with its time, or waited for; names and definitions are in ``t3sim.observe.waits``.
WORKING = 0
FOR_LAUNCH = 1
FOR_CU_SLOT = 2
FOR_L2 = 3
FOR_DRAM_QUEUE = 4
FOR_DRAM = 5
FOR_LINK = 6
FOR_DMA = 7
FOR_DEPENDENCY = 8
FOR_ARBITRATION = 9
FOR_REQUEST = 10
NOTHING_LEFT = 11
N_REASONS = 12

# How an L2 access ended, if not with the time of a hit.
L2_MERGED = -1
L2_MISS = -2
L2_BUSY = -3
L2_NO_ROOM = -4
