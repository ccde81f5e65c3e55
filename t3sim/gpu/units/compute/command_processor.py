"""The command processor: starts the operations of the streams of a program and detects their ends.

Models: an operation starts ``launch_ticks`` after all signals that it waits for have been posted and the host has
issued it; its end posts signals, and may have to wait for others (``until``).  Streams are ordered by such a signal
from each operation to the next.
Running operations are served by priority, then in the order of their starts.
A GEMM ends when its last workgroup has ended; on GPUs that write dirty lines back at the end of a kernel, when they are
written back; and when all its tracked tiles are complete and the DMA engine has sent them.
Leaves out: the number of hardware queues.
Pinned by tests/kernel/test_command_processor.py.
"""

from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.codes import ENDING, GEMM, MOVES, NEVER, OVER, PENDING, RUNNING, SIGNAL
from t3sim.gpu.units.l2.l2_slice import flush_dirty_lines
from t3sim.gpu.units.ledger import note_idle_slots
from t3sim.gpu.units.link.link_port import buffer_store, dma_queued, has_buffer_room, is_sent_until, port_of
from t3sim.gpu.units.signals import post


@kernel
def are_posted(gpu, waits, first, n):
    """Return whether *n* waits from the *first* on hold."""
    for index in range(first, first + n):
        if gpu.signals[waits[index].signal] < waits[index].at_least:
            return False
    return True


@kernel
def note_ready(gpu, waits, now):
    """Set the start of the operations whose signals have all been posted."""
    gpu.has_news = 0
    for index in range(gpu.n_operations):
        operation = gpu.operations[index]
        if (
            operation.state == PENDING
            and operation.start_at == NEVER
            and are_posted(gpu, waits, operation.first_wait, operation.n_waits)
        ):
            operation.start_at = max(now, operation.issued_at) + operation.launch_ticks
            gpu.next_start_at = min(gpu.next_start_at, operation.start_at)


@kernel
def start_operations(gpu, now):
    """Start the operations whose launch is over."""
    if now < gpu.next_start_at:
        return
    gpu.next_start_at = NEVER
    for index in range(gpu.n_operations):
        operation = gpu.operations[index]
        if operation.state == PENDING:
            if operation.start_at <= now:
                start(gpu, index)
            else:
                gpu.next_start_at = min(gpu.next_start_at, operation.start_at)


@kernel
def start(gpu, index):
    """Insert an operation into those that run, after all of its priority or a higher one."""
    operation = gpu.operations[index]
    operation.state = RUNNING
    place = gpu.n_running
    while place > 0 and gpu.operations[gpu.running[place - 1]].priority < operation.priority:
        gpu.running[place] = gpu.running[place - 1]
        place -= 1
    gpu.running[place] = index
    gpu.n_running += 1
    gpu.n_pending -= 1
    if operation.kind == MOVES:
        gpu.n_moving += operation.n_workgroups
    elif operation.kind == GEMM and gpu.runs_gemms == 0:
        gpu.runs_gemms = 1
        for cu_index in range(gpu.n_compute_units):
            if gpu.compute_units[cu_index].move_operation < 0:
                note_idle_slots(gpu, gpu.compute_units[cu_index])


@kernel
def end_operations(gpu, waits, posts, store_queue, now):
    """Post the signals of operations that have ended, and remove them from those that run."""
    n_left = 0
    for place in range(gpu.n_running):
        operation = gpu.operations[gpu.running[place]]
        is_over = has_ended(gpu, operation) and are_posted(
            gpu, waits, operation.first_wait + operation.n_waits, operation.n_untils
        )
        if is_over and has_left(gpu, operation, store_queue) and post_all(gpu, operation, posts, store_queue, now):
            operation.state = OVER
            operation.end_at = now
            gpu.n_awaited -= 1 - operation.is_background
        else:
            gpu.running[n_left] = gpu.running[place]
            n_left += 1
    gpu.n_running = n_left


@kernel
def has_left(gpu, operation, store_queue):
    """Return whether what is posted from now on leaves after the stores of an operation: one port keeps an order."""
    return gpu.n_ports == 1 or is_sent_until(gpu, store_queue, operation.end_at + gpu.slot_ticks)


@kernel
def has_ended(gpu, operation):
    """Return whether an operation has ended; of a GEMM, with its dirty lines, tracked tiles and DMA blocks."""
    if operation.n_finished < operation.n_workgroups:
        return False
    if operation.kind != GEMM:
        return True
    if operation.state == RUNNING:
        operation.state = ENDING
        gpu.n_gemms_left -= 1
        if gpu.n_gemms_left == 0:
            for channel_id in range(gpu.n_channels):
                gpu.channels[channel_id].producer_done = 1
    if gpu.l2.keeps_dirty_lines == 0:
        if not flush_dirty_lines(gpu, gpu.now, operation.traffic_class):
            return False
        for bank in range(gpu.l2.n_banks):
            gpu.l2.flush_cursor[bank] = 0  # for the GEMM that ends next
    if operation.is_tracked == 0:
        return True
    has_sent = gpu.dma.n_commands_done == gpu.dma.n_commands and dma_queued(gpu) == 0
    return gpu.n_tiles_open == 0 and has_sent


@kernel
def post_all(gpu, operation, posts, store_queue, now):
    """Post the signals of an operation that has ended, as the link port has room; return whether all are posted.

    Signals to other GPUs follow all its stores there.
    """
    while operation.n_posted < operation.n_posts:
        entry = posts[operation.first_post + operation.n_posted]
        if entry.distance == 0:
            post(gpu, gpu.signals, entry.signal, entry.amount)
        elif not has_buffer_room(gpu.ports[port_of(gpu, entry.distance)], 1):
            return False
        else:
            buffer_store(
                gpu, store_queue, SIGNAL, entry.distance, -1, entry.amount, entry.signal,
                gpu.ports[0].full_packet, now,
            )  # fmt: skip
        operation.n_posted += 1
    return True
