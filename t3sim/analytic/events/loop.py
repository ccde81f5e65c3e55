"""Runs the operations of a GPU as events in time: streams, tile slots of compute units, channels, copy engines, link.

A *process* is one row of ``procs``: kind, the place at which it continues, registers.  It sleeps in exactly
one place: in the heap of events, in the queue of a signal or of a resource, or among the idle slots.  Events at the
same time come in the order in which they were made, but the first event of a process comes before those.  All times
are picoseconds; all that has to be computed from rates is an entry of the tables that ``analytic.outline`` makes.
"""

from t3sim.analytic.events.fields import (
    ALL_ENDED,
    AMOUNT,
    BARRIER,
    C_BEGIN,
    C_EXTRA,
    C_GO,
    C_POST,
    C_STEP,
    CHANNEL_END,
    COPIES,
    E_A,
    E_B,
    E_KIND,
    E_TIME,
    FIRST,
    GEMM,
    HEAD,
    LINK_FREE_AT,
    LOCAL,
    MEMORY_FREE_AT,
    N_EVENTS,
    N_PROCS,
    N_STREAMS,
    NONE,
    NOW,
    OP_A,
    OP_A_FITS,
    OP_AFTER,
    OP_AFTER_STOP,
    OP_B,
    OP_B_FITS,
    OP_EPILOGUE,
    OP_FIRST,
    OP_ISSUED,
    OP_KIND,
    OP_LAUNCH,
    OP_LEFT,
    OP_LOADS,
    OP_MULTIPLY,
    OP_N,
    OP_OF_TILE,
    OP_OPERANDS,
    OP_OVERHEAD,
    OP_POST,
    OP_POST_STOP,
    OP_RANK,
    OP_RESOURCE,
    OP_ROWS,
    OP_TILE,
    OP_TIME,
    OP_TURNS,
    OP_UNTIL,
    OP_UNTIL_STOP,
    OP_WAITER,
    P_AT,
    P_I,
    P_LEFT,
    P_NEXT,
    P_OP,
    P_PARENT,
    P_STOP,
    P_SUB,
    P_TIME,
    PART_AMOUNT,
    PART_AT_LEAST,
    PART_IS_SENT,
    PART_POST,
    PART_SENT,
    PART_SIGNAL,
    POST_BEGIN,
    POST_END,
    RELEASED,
    RESUME,
    S_AFTER,
    S_COPY,
    S_COPY_MOVE,
    S_COPY_POST,
    S_COPY_START,
    S_COPY_STEP,
    S_LAUNCH,
    S_NEXT,
    S_START,
    S_UNTIL,
    STEP_AMOUNT,
    STEP_AT_LEAST,
    STEP_DELAY,
    STEP_EXTRA,
    STEP_IS_EMPTY,
    STEP_POST,
    STEP_SENT,
    STEP_SIGNAL,
    STEP_TIME,
    STREAM_END,
    T_GRANTED,
    T_MULTIPLIED,
    T_NEXT,
    T_SENT,
    T_STORE,
    T_TURN,
    T_WAIT,
    TILE_PART,
    TILE_PART_STOP,
    TILE_STORE,
)
from t3sim.analytic.events.queue import (
    add,
    await_signal,
    enqueue,
    grant,
    pop,
    post,
    push,
    release,
    request,
    send,
    sleep,
    until_sent,
)
from t3sim.gpu.units._jit import kernel


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
    """Run all events until every stream has ended; return False on a deadlock.

    *in_l2*: whether each operand is in the L2.  *times*: latency of the link, and the time to drain its full buffer.
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
