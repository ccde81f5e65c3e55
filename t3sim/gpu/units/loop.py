"""The order in which the units of one GPU act, slot by slot.

A slot is ``issue_slot`` cycles of the compute clock.  In a slot, compute units and L2 act on the state at its start,
then every channel runs cycle by cycle to its end.  Data from the DRAM take at least half an L2 latency, longer than a
slot, so no unit sees them too early.  Results do not depend on how many slots one call of ``advance`` covers.
Pinned by tests/kernel/test_loop.py (any horizon gives the same bits).
"""

from t3sim.gpu.units import codes
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.collective.move_kernel import advance_moves, dispatch_moves, is_second
from t3sim.gpu.units.collective.move_lines import return_collective_read
from t3sim.gpu.units.compute.channel_room import wake_waiting_cus
from t3sim.gpu.units.compute.command_processor import end_operations, note_ready, start_operations
from t3sim.gpu.units.compute.compute_unit import acknowledge_store, advance_workgroups
from t3sim.gpu.units.compute.unit_sleep import catch_up_units
from t3sim.gpu.units.compute.workgroup_dispatcher import dispatch_workgroups
from t3sim.gpu.units.dram.memory_controller import advance_channel, catch_up, catch_up_all, has_work
from t3sim.gpu.units.l2.l2_slice import fill_granule
from t3sim.gpu.units.ledger import note_idle_slots, note_launch, note_port_slot
from t3sim.gpu.units.link.ingress_port import return_credits, serve_arrivals, take_credits
from t3sim.gpu.units.link.link_port import (
    dma_place,
    dma_queued,
    is_empty,
    n_sent_by,
    reason_without_data,
    transmit,
)
from t3sim.gpu.units.link.mailbox import receive_messages
from t3sim.gpu.units.link.wire import hear_itself
from t3sim.gpu.units.t3.dma_engine import arm_triggered, forward_granule, issue_reads

# Columns of the time series.
BIN_OCCUPANCY = 0  # DRAM queue occupancy x memory cycles, all channels
BIN_WAITING = 1  # compute units x slots that wait for operands
BIN_SENT = 2  # granules handed to the link
# Granules of DRAM traffic of class 0, of GEMMs and of communication; the columns of the other classes follow.
BIN_COMPUTE_READ = 3
BIN_COMPUTE_WRITE = 4
BIN_COMM_READ = 5
BIN_COMM_WRITE = 6
N_CLASS_COLUMNS = 4
PERCENT = 100
OUTBOX_MARGIN = 4096  # more than one slot can add
COMMANDS_PER_CYCLE = 4  # of a channel, more than one cycle can log: column, row, and a refresh with its precharge


@kernel
def advance_compute_units(gpu, workgroups, tiles, steps, store_queue, outbox, now):
    """Let every compute unit act once, a different one first in each slot; return how many wait for operands.

    The units of a move kernel rotate among themselves: otherwise the first of them would act first in most slots.
    Until a GEMM starts, all other units are idle; their idle slots are accounted for when it starts.
    """
    if gpu.n_active_slots == 0:
        catch_up_all(gpu)  # channels: until now they waited for the launch
        note_launch(gpu)
    gpu.n_active_slots += 1
    n_waiting = 0
    for place in range(gpu.n_running):
        moves = gpu.operations[gpu.running[place]]
        if moves.kind == codes.MOVES:
            for turn in range(moves.n_workgroups):
                number = (gpu.slot_index + turn) % moves.n_workgroups
                cu_index = gpu.move_units[moves.first_workgroup + number]
                if cu_index >= 0 and not is_second(gpu, gpu.compute_units[cu_index]):
                    advance_moves(gpu, moves, cu_index, steps, store_queue, outbox, False, now)
    if gpu.runs_gemms:
        first = gpu.slot_index % gpu.n_compute_units
        for turn in range(first, first + gpu.n_compute_units):
            cu_index = turn if turn < gpu.n_compute_units else turn - gpu.n_compute_units
            cu = gpu.compute_units[cu_index]
            if cu.sleeps_until > gpu.slot_index:
                continue
            if cu.is_taken or cu.idle_from == gpu.n_active_slots:
                continue  # a move kernel has used it exclusively in this slot
            comes_second = is_second(gpu, cu)
            state = advance_workgroups(gpu, cu_index, workgroups, tiles, store_queue, comes_second, now)
            if comes_second:
                moves = gpu.operations[cu.move_operation]
                advance_moves(gpu, moves, cu_index, steps, store_queue, outbox, True, now)
            n_waiting += state == codes.WAIT_FIRST_OPERANDS or state == codes.WAIT_OPERANDS
    return n_waiting


@kernel
def retire_columns(gpu, channel, channel_id, workgroups, tiles, dma_commands, dma_queue, series, bin_index):
    """Deliver the completed column commands of one channel to the units that wait for them."""
    for i in range(channel.n_done):
        done = channel.done[i]
        kind = done.kind
        tag = done.tag
        done_at = done.at * gpu.memory_ticks
        of_class = done.traffic_class * N_CLASS_COLUMNS
        if kind == codes.OPERAND_READ:
            fill_granule(gpu, tag, done_at)
            series[bin_index, of_class + BIN_COMPUTE_READ] += 1
        elif kind == codes.DMA_READ:
            forward_granule(gpu, dma_queue, tiles, dma_commands, tag, done_at)
            series[bin_index, of_class + BIN_COMM_READ] += 1
        elif kind == codes.COLLECTIVE_READ:
            return_collective_read(gpu, channel_id, tag, done_at)
            series[bin_index, of_class + BIN_COMM_READ] += 1
        elif kind == codes.REMOTE_READ:
            p = tag % gpu.n_ports
            dma_queue[dma_place(gpu, tag // gpu.n_ports, p, dma_queue)].at = done_at
            series[bin_index, of_class + BIN_COMM_READ] += 1
        elif kind == codes.LOCAL_UPDATE or kind == codes.LOCAL_STORE:
            if gpu.holds_writes == 0:
                acknowledge_store(gpu, workgroups, tiles, tag, done_at)
            series[bin_index, of_class + BIN_COMPUTE_WRITE] += 1
        elif kind == codes.WRITE_BIT:
            series[bin_index, of_class + BIN_COMPUTE_WRITE] += 1
        else:
            series[bin_index, of_class + BIN_COMM_WRITE] += 1
    channel.n_done = 0


@kernel
def advance_channels(
    gpu, workgroups, tiles, dma_commands, dma_queue, series, bin_index, command_log, pick_stream, slot_end
):
    """Run every channel that is awake to the end of the slot, and retire its column commands.

    The others sleep: ``catch_up``.
    """
    until = (slot_end + gpu.memory_ticks - 1) // gpu.memory_ticks
    lead = (gpu.n_to_send - n_sent_by(gpu)) * PERCENT // gpu.stage_granules
    for channel_id in range(gpu.n_channels):
        if gpu.channel_sleeps_until[channel_id] < until:
            channel = gpu.channels[channel_id]
            channel.lead = lead
            catch_up(gpu, channel)
            gpu.channel_sleeps_until[channel_id] = advance_channel(
                channel, channel_id, gpu.tracker, tiles, gpu.signals, command_log, pick_stream, until
            )
            series[bin_index, BIN_OCCUPANCY] += channel.occupancy_cycles - channel.noted_occupancy_cycles
            channel.noted_occupancy_cycles = channel.occupancy_cycles
            gpu.has_fault |= channel.fault != codes.NO_FAULT
            if channel.has_posted:
                channel.has_posted = 0
                gpu.has_news = 1
            retire_columns(gpu, channel, channel_id, workgroups, tiles, dma_commands, dma_queue, series, bin_index)
    gpu.channels_until = until


@kernel
def note_first_stage(gpu, gemm):
    """When the first stage of a GEMM has ended, record its length and its DRAM queue occupancy for policies."""
    if gemm.n_finished < gemm.n_stage_slots:
        return
    catch_up_all(gpu)
    occupancy = 0
    for channel_id in range(gpu.n_channels):
        occupancy += gpu.channels[channel_id].occupancy_cycles
    elapsed = max((gpu.now - gemm.start_at) // gpu.memory_ticks, 1)
    port = gpu.ports[0]
    on_link = max(gpu.stage_granules * port.granule_cost // (port.scale * gpu.memory_ticks), 1)
    for channel_id in range(gpu.n_channels):
        gpu.channels[channel_id].first_stage_occupancy = occupancy * PERCENT // (elapsed * gpu.n_channels)
        gpu.channels[channel_id].first_stage_length = elapsed * PERCENT // on_link
    gpu.stage_operation = -1


@kernel
def is_program_over(gpu):
    """Return whether all operations have ended and all their effects are complete.

    Background operations are cut off when all others have ended, with all that is outstanding.

    Move kernels end before their last stores have left: the next program may send them.  Behind a switch they must
    have left: the time until the receiver has room is unknown.
    """
    if gpu.n_awaited > 0:
        return False
    if gpu.has_background:
        return True
    if gpu.n_inbound != gpu.expected_inbound:
        return False
    if gpu.n_loads != gpu.expected_loads or (gpu.n_loads > 0 and dma_queued(gpu) > 0):
        return False
    if gpu.ingress_port.is_there and not is_empty(gpu):
        return False
    if gpu.runs_gemms:
        is_forwarded = gpu.dma.n_commands_done == gpu.dma.n_commands and gpu.n_tiles_open == 0
        if not is_forwarded or not is_empty(gpu):
            return False
    for channel_id in range(gpu.n_channels):
        if has_work(gpu.channels[channel_id]):
            return False
    return True


@kernel
def end_program(gpu):
    """Note when the last column command of the program finished."""
    for channel_id in range(gpu.n_channels):
        gpu.last_done_at = max(gpu.last_done_at, gpu.channels[channel_id].last_done_at * gpu.memory_ticks)
    for cu_index in range(gpu.n_compute_units if gpu.runs_gemms else 0, gpu.n_compute_units + gpu.n_engines):
        if gpu.compute_units[cu_index].move_operation < 0:
            note_idle_slots(gpu, gpu.compute_units[cu_index])
    gpu.is_busy = 0


@kernel
def commands_per_slot(gpu):
    """Return more DRAM commands than a slot can log."""
    return (gpu.slot_ticks // gpu.memory_ticks + 1) * gpu.n_channels * COMMANDS_PER_CYCLE


@kernel
def is_log_nearly_full(gpu, command_log):
    """Return whether a reader empties the log and the next slot might not fit into it."""
    return command_log[0].command != 0 and command_log[0].at + commands_per_slot(gpu) >= len(command_log)


@kernel
def wake_all_waiting_cus(gpu):
    """Promise room to compute units that queue for channels."""
    for channel_id in range(gpu.n_channels):
        for traffic_class in range(gpu.n_classes):
            wake_waiting_cus(gpu, gpu.channels[channel_id], channel_id, traffic_class)


@kernel
def catch_up_with_time(gpu):
    """Bring channels and compute units that sleep up to the end of the last slot, before they are read from outside."""
    catch_up_all(gpu)
    catch_up_units(gpu)


@kernel
def advance(
    state, waits, posts, workgroups, tiles, dma_commands, ready_fifo, store_queue, dma_queue, steps, peers, arrivals,
    inbox, outbox, series, command_log, pick_stream, until,
):  # fmt: skip
    """Run the GPU in whole slots up to tick *until*; return why it returned.

    In mirrored mode it receives its own messages, once in each quantum.
    In a slot: 1. messages from other GPUs become requests, 2. compute units that queue for a controller are promised
    room, 3. operations start, the DMA engine reads its next granules, 4. free slots take workgroups, empty compute
    units those of move kernels, 5. compute units act, 6. channels run and retire, 7. the link port transmits, 8.
    triggered tiles arm DMA commands, 9. operations and the program may end.
    """
    gpu = state[0]
    while True:
        if gpu.hears_at <= gpu.now:
            outcome = hear_itself(gpu, peers, arrivals, inbox, outbox, dma_queue)
            if outcome != codes.AT_HORIZON:
                catch_up_with_time(gpu)
                return outcome
        if gpu.now + gpu.slot_ticks > until:
            catch_up_with_time(gpu)
            return codes.AT_HORIZON
        now = gpu.now
        slot_end = now + gpu.slot_ticks
        if gpu.n_outbox + OUTBOX_MARGIN + len(peers) > len(outbox):
            catch_up_with_time(gpu)
            return codes.OUTBOX_FULL
        if is_log_nearly_full(gpu, command_log):
            catch_up_with_time(gpu)
            return codes.LOG_FULL
        bin_index = min(now // gpu.bin_ticks, len(series) - 1)
        sent_before = n_sent_by(gpu)
        if gpu.ingress_port.is_there:
            take_credits(gpu, peers, arrivals)
            serve_arrivals(gpu, peers, arrivals, inbox, slot_end)
        first = gpu.inbox_head
        receive_messages(gpu, inbox, tiles, steps, gpu.signals, dma_queue, outbox, slot_end)
        if gpu.ingress_port.is_there:
            return_credits(gpu, peers, inbox, first, outbox, slot_end)
        if gpu.n_waiting_cus > 0:
            wake_all_waiting_cus(gpu)
        if gpu.n_pending > 0:
            start_operations(gpu, now)
        if gpu.is_busy and (gpu.n_running > 0 or gpu.n_active_slots > 0):
            issue_reads(gpu, tiles, dma_commands, ready_fifo, dma_queue, now)
            dispatch_workgroups(gpu, workgroups, tiles, dma_commands, now)
            dispatch_moves(gpu, now)
            n_waiting = advance_compute_units(gpu, workgroups, tiles, steps, store_queue, outbox, now)
            series[bin_index, BIN_WAITING] += n_waiting
        advance_channels(
            gpu, workgroups, tiles, dma_commands, dma_queue, series, bin_index, command_log, pick_stream, slot_end
        )
        for p in range(gpu.n_ports):
            waits_for = reason_without_data(gpu, p, peers, store_queue, dma_queue)
            transmit(gpu, p, peers, store_queue, dma_queue, outbox, slot_end)
            note_port_slot(gpu, p, waits_for, slot_end)
        arm_triggered(gpu, tiles, dma_commands, ready_fifo)
        series[bin_index, BIN_SENT] += n_sent_by(gpu) - sent_before
        gpu.now = slot_end
        gpu.slot_index += 1
        if gpu.stage_operation >= 0:
            note_first_stage(gpu, gpu.operations[gpu.stage_operation])
        if gpu.n_running > 0:
            end_operations(gpu, waits, posts, store_queue, now)
        if gpu.has_news:
            note_ready(gpu, waits, now)
        if gpu.is_busy and is_program_over(gpu):
            end_program(gpu)
            catch_up_with_time(gpu)
            return codes.KERNEL_DONE
