"""Columns of the tables of events, and what their values mean."""

NONE = -1

# Columns of ``ops``, and kinds of operations.
OP_KIND, OP_ISSUED, OP_LAUNCH, OP_AFTER, OP_AFTER_STOP, OP_UNTIL, OP_UNTIL_STOP, OP_POST, OP_POST_STOP = range(9)
OP_FIRST, OP_N, OP_TIME, OP_OVERHEAD, OP_RESOURCE = range(9, 14)
OP_TURNS, OP_MULTIPLY, OP_OF_TILE, OP_EPILOGUE, OP_OPERANDS, OP_RANK, OP_TILE, OP_LEFT = range(14, 22)
OP_ROWS, OP_WAITER = OP_TURNS, OP_OVERHEAD  # of a ring, how many steps a channel has; of a GEMM, the process after it
OP_A, OP_B, OP_A_FITS, OP_B_FITS, OP_LOADS = range(22, 27)  # operands, whether the L2 keeps them, times of four cases
OP_COLUMNS = 30
GEMM, BARRIER, LOCAL, COPIES, RING = range(5)

# Columns of ``steps``: of a channel, or of a copy engine; ``STEP_SENT``: time on the link, NONE: it stays on this GPU;
# of a channel 0: it has a part of the link.
STEP_SIGNAL, STEP_AT_LEAST, STEP_EXTRA, STEP_IS_EMPTY, STEP_TIME, STEP_SENT = range(6)
STEP_POST, STEP_AMOUNT, STEP_DELAY = range(6, 9)
STEP_COLUMNS = 9

# Columns of ``parts``, in which a tile is stored, and of ``tiles``.
PART_SIGNAL, PART_AT_LEAST, PART_SENT, PART_POST, PART_AMOUNT, PART_IS_SENT = range(6)
PART_COLUMNS = 6
TILE_PART, TILE_PART_STOP, TILE_STORE = range(3)
TILE_COLUMNS = 3

# Columns of ``procs``.
P_AT, P_NEXT, P_FOR, P_OP, P_I, P_STOP, P_SUB, P_LEFT, P_TIME, P_PARENT = range(10)
P_COLUMNS = 10

# Columns of ``signals`` and of ``resources``: a value, or whether it is taken; the waiting processes.
VALUE, HEAD, TAIL = range(3)
Q_COLUMNS = 3

# Entries of ``state``.
NOW, N_EVENTS, N_MADE, LINK_FREE_AT, MEMORY_FREE_AT, N_PROCS, N_STREAMS, IS_OVER = range(8)
STATE_ENTRIES = 8

# Columns of ``heap``.
E_TIME, E_ORDER, E_KIND, E_A, E_B = range(5)
E_COLUMNS = 5
RESUME, POST_BEGIN, POST_END, RELEASED, STREAM_END, CHANNEL_END, ALL_ENDED = range(7)
FIRST = -(1 << 62)  # added to the order of the first event of a process
AMOUNT = 1 << 32  # of a post: signal and amount are one number

# Where a process continues.
(
    S_NEXT, S_AFTER, S_START, S_LAUNCH, S_UNTIL, S_COPY, S_COPY_STEP, S_COPY_START, S_COPY_MOVE, S_COPY_POST,
    T_NEXT, T_WAIT, T_TURN, T_GRANTED, T_MULTIPLIED, T_STORE, T_SENT, C_BEGIN, C_STEP, C_EXTRA, C_GO, C_POST,
) = range(22)  # fmt: skip
