"""The heap of events, and the queues of signals and resources in which processes wait."""

from t3sim.analytic.events.fields import (
    AMOUNT,
    E_A,
    E_B,
    E_COLUMNS,
    E_KIND,
    E_ORDER,
    E_TIME,
    FIRST,
    HEAD,
    LINK_FREE_AT,
    N_EVENTS,
    N_MADE,
    NONE,
    NOW,
    P_AT,
    P_FOR,
    P_NEXT,
    POST_BEGIN,
    RELEASED,
    RESUME,
    TAIL,
    VALUE,
)
from t3sim.gpu.units._jit import kernel


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
    """Let process *p* continue *at* a place when *signal* is *at_least* this value; waiters are ordered by value."""
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
    """Add *amount* to *signal* and wake the processes that waited for it."""
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
    """Give a free resource to the process that has waited longest."""
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
    """Return the time until everything queued on the link has left."""
    return max(state[LINK_FREE_AT] - state[NOW], 0)


@kernel
def send(state, duration):
    """Queue a transfer that takes *duration* on the link."""
    state[LINK_FREE_AT] = max(state[LINK_FREE_AT], state[NOW]) + duration
