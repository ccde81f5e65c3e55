"""Ring collectives on a separate engine that reads memory, adds and sends, without compute units (as ACE)."""

from dataclasses import replace

from t3sim.collective.schedule import Channels, CollectiveSchedule, Op, channelled
from t3sim.program.kernels import ring
from t3sim.program.operations import ADDING_ENGINE, Memory, Moves
from t3sim.program.operator import Operator

COMMANDS = 8  # outstanding at a time, each with a part of every chunk
PIECE = 64 << 10  # bytes that a command moves


def engine_ring(
    op: Operator, memory: Memory, collective: Op, chunk_granules: int, name: str
) -> tuple[Moves, CollectiveSchedule]:
    """Return *collective* of chunks of *chunk_granules* on an engine that adds; the data are a new buffer, *name*."""
    n_commands = max(min(COMMANDS, chunk_granules // op.line), 1)
    channels = Channels(n_commands, max(PIECE // op.granule // op.line, 1) * op.line, 1, op.line)
    schedule = channelled(collective, op.n, chunk_granules, channels)
    kernel = ring(op, memory, schedule, name, array=name)
    return replace(kernel, engine=ADDING_ENGINE, n_workgroups=None, startup=0, step_overhead=0, lds=0), schedule
