"""Runs the operations of a GPU as events in time: streams, tile slots of compute units, channels, copy engines, link.

A *process* is one row of ``procs``: kind, the place at which it continues, registers.  It sleeps in exactly
one place: in the heap of events, in the queue of a signal or of a resource, or among the idle slots.  Events at the
same time come in the order in which they were made, but the first event of a process comes before those.  All times
are picoseconds; all that has to be computed from rates is an entry of the tables that ``analytic.outline`` makes.
"""

from t3sim.gpu.units._jit import kernel

NONE = -1

# Columns of ``ops``, and what an operation is.
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

# Columns of ``parts``, of what a tile is stored as, and of ``tiles``.
PART_SIGNAL, PART_AT_LEAST, PART_SENT, PART_POST, PART_AMOUNT, PART_IS_SENT = range(6)
PART_COLUMNS = 6
TILE_PART, TILE_PART_STOP, TILE_STORE = range(3)
TILE_COLUMNS = 3

# Columns of ``procs``.
P_AT, P_NEXT, P_FOR, P_OP, P_I, P_STOP, P_SUB, P_LEFT, P_TIME, P_PARENT = range(10)
P_COLUMNS = 10

# Columns of ``signals`` and of ``resources``: a value, or whether it is taken; who waits.
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


@kernel
def is_before(heap, i, j):
    """Return whether event *i* comes before event *j*."""
    if heap[i, E_TIME] != heap[j, E_TIME]:
        return heap[i, E_TIME] < heap[j, E_TIME]
    return heap[i, E_ORDER] < heap[j, E_ORDER]


@kernel
def swap(heap, i, j):
    """Exchange two events."""
    for column in range(E_COLUMNS):
        kept = heap[i, column]
        heap[i, column] = heap[j, column]
        heap[j, column] = kept


@kernel
def push(state, heap, delay, first, kind, a, b):
    """Make an event *delay* from now; *first*: ``FIRST`` or 0."""
    i = state[N_EVENTS]
    state[N_EVENTS] = i + 1
    heap[i, E_TIME] = state[NOW] + delay
    heap[i, E_ORDER] = state[N_MADE] + first
    heap[i, E_KIND] = kind
    heap[i, E_A] = a
    heap[i, E_B] = b
    state[N_MADE] += 1
    while i > 0 and is_before(heap, i, (i - 1) // 2):
        swap(heap, i, (i - 1) // 2)
        i = (i - 1) // 2


@kernel
def pop(state, heap):
    """Move the first event after all others."""
    n = state[N_EVENTS] - 1
    state[N_EVENTS] = n
    swap(heap, 0, n)
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            return
        if child + 1 < n and is_before(heap, child + 1, child):
            child += 1
        if not is_before(heap, child, i):
            return
        swap(heap, i, child)
        i = child


@kernel
def sleep(state, heap, procs, p, delay, at):
    """Let process *p* continue *at* a place after *delay*."""
    procs[p, P_AT] = at
    push(state, heap, delay, 0, RESUME, p, 0)


@kernel
def await_signal(state, heap, procs, signals, p, signal, at_least, at):
    """Let process *p* continue *at* a place when *signal* has *at_least* this value; first whose value comes first."""
    procs[p, P_AT] = at
    if signals[signal, VALUE] >= at_least:
        push(state, heap, 0, 0, RESUME, p, 0)
        return
    procs[p, P_FOR] = at_least
    before, after = NONE, signals[signal, HEAD]
    last = signals[signal, TAIL]
    if last != NONE and procs[last, P_FOR] <= at_least:
        before, after = last, NONE
    while after != NONE and procs[after, P_FOR] <= at_least:
        before, after = after, procs[after, P_NEXT]
    procs[p, P_NEXT] = after
    if before == NONE:
        signals[signal, HEAD] = p
    else:
        procs[before, P_NEXT] = p
    if after == NONE:
        signals[signal, TAIL] = p


@kernel
def add(state, heap, procs, signals, signal, amount):
    """Add *amount* to *signal* and wake who waited for it."""
    signals[signal, VALUE] += amount
    p = signals[signal, HEAD]
    while p != NONE and procs[p, P_FOR] <= signals[signal, VALUE]:
        push(state, heap, 0, 0, RESUME, p, 0)
        p = procs[p, P_NEXT]
    signals[signal, HEAD] = p
    if p == NONE:
        signals[signal, TAIL] = NONE


@kernel
def post(state, heap, procs, signals, signal, amount, delay):
    """Add *amount* to *signal* after *delay*."""
    if delay:
        push(state, heap, 0, FIRST, POST_BEGIN, signal * AMOUNT + amount, delay)
    else:
        add(state, heap, procs, signals, signal, amount)


@kernel
def grant(state, heap, procs, resources, r):
    """Give a free resource to who waits first."""
    p = resources[r, HEAD]
    if resources[r, VALUE] == 0 and p != NONE:
        resources[r, VALUE] = 1
        resources[r, HEAD] = procs[p, P_NEXT]
        push(state, heap, 0, 0, RESUME, p, 0)


@kernel
def request(state, heap, procs, resources, r, p, at):
    """Let process *p* continue *at* a place when it has resource *r*."""
    procs[p, P_AT] = at
    enqueue(procs, resources, r, p)
    grant(state, heap, procs, resources, r)


@kernel
def enqueue(procs, queues, q, p):
    """Put process *p* at the end of a queue."""
    procs[p, P_NEXT] = NONE
    if queues[q, HEAD] == NONE:
        queues[q, HEAD] = p
    else:
        procs[queues[q, TAIL], P_NEXT] = p
    queues[q, TAIL] = p


@kernel
def release(state, heap, resources, r):
    """Give resource *r* back."""
    resources[r, VALUE] = 0
    push(state, heap, 0, 0, RELEASED, r, 0)


@kernel
def until_sent(state):
    """Return how long it takes until all that is on the link has left: what follows is queued."""
    return max(state[LINK_FREE_AT] - state[NOW], 0)


@kernel
def send(state, duration):
    """Queue what takes *duration* on the link."""
    state[LINK_FREE_AT] = max(state[LINK_FREE_AT], state[NOW]) + duration


@kernel
def advance_stream(
    state, heap, procs, signals, resources, pools, ops, waits, posts, steps, stream_ops, in_l2, times, p
):
    """Run a stream of operations until it has to wait."""
    latency, buffered = times[0], times[1]
    while True:
        at = procs[p, P_AT]
        if at == S_NEXT:
            if procs[p, P_I] == procs[p, P_STOP]:
                push(state, heap, 0, 0, STREAM_END, p, 0)
                return
            op = stream_ops[procs[p, P_I]]
            procs[p, P_OP] = op
            procs[p, P_SUB] = ops[op, OP_AFTER]
            procs[p, P_AT] = S_AFTER
            if ops[op, OP_ISSUED] > state[NOW]:
                sleep(state, heap, procs, p, ops[op, OP_ISSUED] - state[NOW], S_AFTER)
                return
            continue
        op = procs[p, P_OP]
        if at == S_AFTER:
            i = procs[p, P_SUB]
            if i == ops[op, OP_AFTER_STOP]:
                sleep(state, heap, procs, p, ops[op, OP_LAUNCH], S_START)
                return
            procs[p, P_SUB] = i + 1
            await_signal(state, heap, procs, signals, p, waits[i, 0], waits[i, 1], S_AFTER)
            return
        if at == S_START:
            procs[p, P_SUB] = ops[op, OP_UNTIL]
            kind = ops[op, OP_KIND]
            if kind == GEMM:
                find_operands(ops, in_l2, op)
                sleep(state, heap, procs, p, ops[op, OP_TIME], S_LAUNCH)
            elif kind == BARRIER:
                sleep(state, heap, procs, p, until_sent(state) + latency, S_UNTIL)
            elif kind == LOCAL:
                sleep(state, heap, procs, p, ops[op, OP_TIME], S_UNTIL)
            elif kind == COPIES:
                request(state, heap, procs, resources, ops[op, OP_RESOURCE], p, S_COPY)
            else:
                begin_channels(state, heap, procs, ops, p, op)
            return
        if at == S_LAUNCH:
            procs[p, P_AT] = S_UNTIL
            launch(state, heap, procs, pools, ops, op, p)
            return
        if at == S_UNTIL:
            i = procs[p, P_SUB]
            if i < ops[op, OP_UNTIL_STOP]:
                procs[p, P_SUB] = i + 1
                await_signal(state, heap, procs, signals, p, waits[i, 0], waits[i, 1], S_UNTIL)
                return
            for j in range(ops[op, OP_POST], ops[op, OP_POST_STOP]):
                delay = until_sent(state) + latency if posts[j, 2] else 0
                post(state, heap, procs, signals, posts[j, 0], posts[j, 1], delay)
            procs[p, P_I] += 1
            procs[p, P_AT] = S_NEXT
            continue
        if at == S_COPY:
            procs[p, P_LEFT] = ops[op, OP_FIRST]
            procs[p, P_TIME] = ops[op, OP_TIME]
            procs[p, P_AT] = S_COPY_STEP
            continue
        step = procs[p, P_LEFT]
        if at == S_COPY_STEP:
            if step == ops[op, OP_FIRST] + ops[op, OP_N]:
                release(state, heap, resources, ops[op, OP_RESOURCE])
                procs[p, P_AT] = S_UNTIL
                continue
            procs[p, P_AT] = S_COPY_START
            if steps[step, STEP_SIGNAL] != NONE:
                await_signal(
                    state, heap, procs, signals, p, steps[step, STEP_SIGNAL], steps[step, STEP_AT_LEAST], S_COPY_START
                )
                return
            continue
        if at == S_COPY_START:
            sleep(state, heap, procs, p, procs[p, P_TIME], S_COPY_MOVE)
            procs[p, P_TIME] = ops[op, OP_OVERHEAD]
            return
        if at == S_COPY_MOVE:
            duration = steps[step, STEP_TIME]
            if steps[step, STEP_SENT] != NONE:
                send(state, steps[step, STEP_SENT])
                duration = max(duration, state[LINK_FREE_AT] - buffered - state[NOW])
            sleep(state, heap, procs, p, duration, S_COPY_POST)
            return
        if steps[step, STEP_POST] != NONE:  # S_COPY_POST
            delay = until_sent(state) + latency if steps[step, STEP_SENT] != NONE else 0
            post(state, heap, procs, signals, steps[step, STEP_POST], steps[step, STEP_AMOUNT], delay)
        procs[p, P_LEFT] = step + 1
        procs[p, P_AT] = S_COPY_STEP


@kernel
def begin_channels(state, heap, procs, ops, p, op):
    """Begin the channels of a kernel; process *p* continues when all have ended."""
    n = ops[op, OP_N]
    procs[p, P_LEFT] = n
    procs[p, P_AT] = S_UNTIL
    for column in range(n):
        channel = state[N_PROCS]
        state[N_PROCS] += 1
        procs[channel, P_AT] = C_BEGIN
        procs[channel, P_OP] = op
        procs[channel, P_PARENT] = p
        procs[channel, P_I] = ops[op, OP_FIRST] + column
        procs[channel, P_STOP] = ops[op, OP_FIRST] + column + n * ops[op, OP_ROWS]
        push(state, heap, 0, FIRST, RESUME, channel, 0)
    if n == 0:
        push(state, heap, 0, 0, RESUME, p, 0)


@kernel
def launch(state, heap, procs, pools, ops, op, p):
    """Let the slots of a pool take the tiles of a GEMM; process *p* continues when all have ended."""
    ops[op, OP_TILE] = 0
    ops[op, OP_LEFT] = ops[op, OP_N]
    ops[op, OP_WAITER] = p
    pool = ops[op, OP_RESOURCE]
    slot = pools[pool, HEAD]
    pools[pool, HEAD] = NONE
    while slot != NONE:
        push(state, heap, 0, 0, RESUME, slot, 0)
        slot = procs[slot, P_NEXT]


@kernel
def find_operands(ops, in_l2, op):
    """Decide what each tile of a GEMM that starts has to load, and keep its operands in the L2 if they fit."""
    a, b = ops[op, OP_A], ops[op, OP_B]
    ops[op, OP_OPERANDS] = ops[op, OP_LOADS + 2 * in_l2[a] + in_l2[b]]
    in_l2[a] |= ops[op, OP_A_FITS]
    in_l2[b] |= ops[op, OP_B_FITS]


@kernel
def next_gemm(ops, pool):
    """Return the launched GEMM whose tiles a pool takes next; NONE: none is left."""
    found = NONE
    for op in range(len(ops)):
        if ops[op, OP_KIND] == GEMM and ops[op, OP_RESOURCE] == pool and 0 <= ops[op, OP_TILE] < ops[op, OP_N]:
            if found == NONE or ops[op, OP_RANK] < ops[found, OP_RANK]:
                found = op
    return found


@kernel
def advance_slot(state, heap, procs, signals, resources, pools, ops, tiles, parts, order, times, p):
    """Run a slot of a compute unit until it has to wait."""
    latency, buffered = times[0], times[1]
    while True:
        at = procs[p, P_AT]
        if at == T_NEXT:
            op = next_gemm(ops, procs[p, P_PARENT])
            if op == NONE:
                enqueue(procs, pools, procs[p, P_PARENT], p)
                return
            tile = order[ops[op, OP_FIRST] + ops[op, OP_TILE]]
            ops[op, OP_TILE] += 1
            procs[p, P_OP] = op
            procs[p, P_I] = tile
            procs[p, P_SUB] = tiles[tile, TILE_PART]
            procs[p, P_AT] = T_WAIT
        op, tile, part = procs[p, P_OP], procs[p, P_I], procs[p, P_SUB]
        at = procs[p, P_AT]
        if at == T_WAIT:
            while part < tiles[tile, TILE_PART_STOP] and parts[part, PART_SIGNAL] == NONE:
                part += 1
            procs[p, P_SUB] = part + 1
            if part < tiles[tile, TILE_PART_STOP]:
                await_signal(
                    state, heap, procs, signals, p, parts[part, PART_SIGNAL], parts[part, PART_AT_LEAST], T_WAIT
                )
                return
            state[MEMORY_FREE_AT] = max(state[MEMORY_FREE_AT], state[NOW]) + ops[op, OP_OPERANDS]
            procs[p, P_TIME] = state[MEMORY_FREE_AT]
            procs[p, P_LEFT] = ops[op, OP_TURNS]
            sleep(state, heap, procs, p, ops[op, OP_OF_TILE], T_TURN)
            return
        if at == T_TURN:
            if procs[p, P_LEFT]:
                request(state, heap, procs, resources, procs[p, P_STOP], p, T_GRANTED)
                return
            procs[p, P_SUB] = tiles[tile, TILE_PART]
            delay = max(procs[p, P_TIME] - state[NOW], 0) + ops[op, OP_EPILOGUE] + tiles[tile, TILE_STORE]
            sleep(state, heap, procs, p, delay, T_STORE)
            return
        if at == T_GRANTED:
            sleep(state, heap, procs, p, ops[op, OP_MULTIPLY], T_MULTIPLIED)
            return
        if at == T_MULTIPLIED:
            release(state, heap, resources, procs[p, P_STOP])
            procs[p, P_LEFT] -= 1
            procs[p, P_AT] = T_TURN
            continue
        if at == T_STORE:
            if part == tiles[tile, TILE_PART_STOP]:
                ops[op, OP_LEFT] -= 1
                if ops[op, OP_LEFT] == 0:
                    push(state, heap, 0, 0, RESUME, ops[op, OP_WAITER], 0)
                procs[p, P_AT] = T_NEXT
                continue
            procs[p, P_AT] = T_SENT
            if parts[part, PART_IS_SENT]:
                send(state, parts[part, PART_SENT])
                delay = state[LINK_FREE_AT] - buffered - state[NOW]
                if delay > 0:
                    sleep(state, heap, procs, p, delay, T_SENT)
                    return
        if parts[part, PART_POST] != NONE:  # T_SENT
            delay = until_sent(state) + latency if parts[part, PART_IS_SENT] else 0
            post(state, heap, procs, signals, parts[part, PART_POST], parts[part, PART_AMOUNT], delay)
        procs[p, P_SUB] = part + 1
        procs[p, P_AT] = T_STORE


@kernel
def advance_channel(state, heap, procs, signals, ops, steps, p):
    """Run a channel of a kernel that moves data until it has to wait."""
    op = procs[p, P_OP]
    while True:
        at, step = procs[p, P_AT], procs[p, P_I]
        if at == C_BEGIN:
            sleep(state, heap, procs, p, ops[op, OP_TIME], C_STEP)
            return
        if at == C_STEP:
            if step == procs[p, P_STOP]:
                push(state, heap, 0, 0, CHANNEL_END, procs[p, P_PARENT], 0)
                return
            procs[p, P_AT] = C_GO
            if steps[step, STEP_SIGNAL] != NONE:
                await_signal(
                    state, heap, procs, signals, p, steps[step, STEP_SIGNAL], steps[step, STEP_AT_LEAST], C_EXTRA
                )
                return
        elif at == C_EXTRA:
            sleep(state, heap, procs, p, steps[step, STEP_EXTRA], C_GO)
            return
        elif at == C_GO:
            if not steps[step, STEP_IS_EMPTY]:
                duration = steps[step, STEP_TIME]
                if steps[step, STEP_SENT] > 0:
                    send(state, steps[step, STEP_SENT])
                    duration = max(duration, until_sent(state))
                sleep(state, heap, procs, p, duration, C_POST)
                return
            procs[p, P_I] += ops[op, OP_N]
            procs[p, P_AT] = C_STEP
        else:
            if steps[step, STEP_POST] != NONE:
                post(
                    state, heap, procs, signals, steps[step, STEP_POST], steps[step, STEP_AMOUNT],
                    steps[step, STEP_DELAY],
                )  # fmt: skip
            procs[p, P_I] += ops[op, OP_N]
            sleep(state, heap, procs, p, ops[op, OP_OVERHEAD], C_STEP)
            return


@kernel
def run(
    state,
    heap,
    procs,
    signals,
    resources,
    pools,
    ops,
    waits,
    posts,
    steps,
    stream_ops,
    in_l2,
    tiles,
    parts,
    order,
    times,
):
    """Run all events until every stream has ended; return False if that never comes: all wait for each other.

    *in_l2*: of each operand, whether it is in the L2.  *times*: latency of the link, and how
    long what its buffer holds takes to leave.
    """
    while state[N_EVENTS]:
        pop(state, heap)
        event = state[N_EVENTS]
        state[NOW] = heap[event, E_TIME]
        kind, a, b = heap[event, E_KIND], heap[event, E_A], heap[event, E_B]
        if kind == RESUME:
            at = procs[a, P_AT]
            if at < T_NEXT:
                advance_stream(
                    state, heap, procs, signals, resources, pools, ops, waits, posts, steps, stream_ops, in_l2, times, a
                )
            elif at < C_BEGIN:
                advance_slot(state, heap, procs, signals, resources, pools, ops, tiles, parts, order, times, a)
            else:
                advance_channel(state, heap, procs, signals, ops, steps, a)
        elif kind == POST_BEGIN:
            push(state, heap, b, 0, POST_END, a, 0)
        elif kind == POST_END:
            add(state, heap, procs, signals, a // AMOUNT, a % AMOUNT)
        elif kind == RELEASED:
            grant(state, heap, procs, resources, a)
        elif kind == STREAM_END:
            state[N_STREAMS] -= 1
            if state[N_STREAMS] == 0:
                push(state, heap, 0, 0, ALL_ENDED, 0, 0)
        elif kind == CHANNEL_END:
            procs[a, P_LEFT] -= 1
            if procs[a, P_LEFT] == 0:
                push(state, heap, 0, 0, RESUME, a, 0)
        else:
            return True
    return False
