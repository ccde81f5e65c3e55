"""What is said about a machine that hangs: the cause first, then the state of every part that holds something.

The first five lines name the part at fault and how unfinished work leads to it.  The rest is for a reader who looks
for the defect: oldest requests, occupancies, what each unit waits for, last DRAM commands.
"""

import enum
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from t3sim.checks.dram.rules import SORT_NAMES
from t3sim.checks.hang.causes import graph_of
from t3sim.checks.hang.wait_graph import Cause, WaitGraph
from t3sim.checks.invariants import KIND_NAMES
from t3sim.gpu.core import GpuCore
from t3sim.gpu.in_flight import HungGpu, Queued, counted
from t3sim.gpu.kernel import codes
from t3sim.gpu.wait_edges import NOT_SERVED, work_left

MAX_LINES = 200
MAX_ROWS = 16  # of one section, for one GPU
WAY_LINES = 3
LAST_COMMANDS = 64
COMMANDS_IN_A_LINE = 4


class Hang(enum.Enum):
    """How a machine can fail to come to an end."""

    DEADLOCK = "deadlock: nothing moves any more and nothing is left to come"
    NO_PROGRESS = "no progress: nothing has moved for longer than this machine and its policy may take"
    LOST_WAKE_UP = "deadlock: a memory channel has requests and will never look at them again"


def describe_hang(hang: Hang, gpus: Sequence[HungGpu], since: int) -> str:
    """Return the report of *hang*, at most ``MAX_LINES`` lines; nothing has moved since tick *since*."""
    core = gpus[0].core
    lines = [f"{hang.value}; since {_time(core, since)}, now {_time(core, max(g.core.now for g in gpus))}"]
    graph = graph_of(gpus)
    causes = graph.causes([f"{gpu.name}.kernel" for gpu in gpus])
    causes.sort(key=lambda cause: cause.part.endswith(".arbiter"))  # a policy may have its reasons, others have none
    lines += _cause_lines(causes)
    for gpu in gpus:
        lines += ["", f"state of {gpu.name}", *_state_lines(gpu, graph, causes)]
    if len(lines) > MAX_LINES:
        lines = [*lines[: MAX_LINES - 1], f"... and {counted(len(lines) - MAX_LINES + 1, 'more line')}"]
    return "\n".join(lines)


def headline(report: str, n_lines: int) -> str:
    """Return the head of a report: what comes before the state, at most *n_lines* lines."""
    return "\n".join(report.split("\n\n", maxsplit=1)[0].splitlines()[:n_lines])


def _time(core: GpuCore, at: int) -> str:
    return f"{core.ticks.to_us(at):.3f} us (cycle {at // int(core.gpu.compute_ticks):,})"


def _cause_lines(causes: list[Cause]) -> list[str]:
    """Name the part at fault, then how unfinished work leads there, then other parts at fault."""
    if not causes:
        return ["  no part is at fault that its state shows; see what each of them holds, below"]
    first, *others = causes
    lines = [f"  {first.part}: {first.fault}"]
    way = first.way if first.is_cycle else first.way[-WAY_LINES:][::-1]
    lines += [f"    {wait.part} waits for {wait.on}: {wait.reason}" for wait in way]
    lines += [f"  also {cause.part}: {cause.fault}" for cause in others[:MAX_ROWS]]
    if len(others) > MAX_ROWS:
        lines.append(f"  also {len(others) - MAX_ROWS} more parts")
    return lines


# --- the state ---------------------------------------------------------------------------------------


def _state_lines(gpu: HungGpu, graph: WaitGraph, causes: list[Cause]) -> Iterator[str]:
    yield from (f"  {progress}" for progress in dict.fromkeys(work_left(gpu).values()) if progress != NOT_SERVED)
    if not gpu.gpu.is_busy:
        yield "  no kernel is running"
    yield from _section("oldest requests", _oldest_lines(gpu))
    yield from _section("memory channels", _channel_lines(gpu.core))
    yield from _wait_sections(gpu, graph)
    yield from _command_lines(gpu.core, causes)


def _section(title: str, rows: Iterator[str]) -> Iterator[str]:
    """Yield a title and at most ``MAX_ROWS`` rows; nothing if there are none."""
    found = list(rows)
    if found:
        yield f"  {title}"
        yield from (f"    {row}" for row in found[:MAX_ROWS])
        if len(found) > MAX_ROWS:
            yield f"    ... and {len(found) - MAX_ROWS} more"


def _oldest_lines(hung: HungGpu) -> Iterator[str]:
    """The oldest request of each stream queue and bank."""
    for part, n in Counter(q.part for q in hung.queued).items():
        oldest = min((q for q in hung.queued if q.part == part), key=lambda q: q.at)
        yield f"{part}: {counted(n, 'request')}, oldest {_request(hung.core, oldest)}"


def _request(core: GpuCore, q: Queued) -> str:
    channel = core.gpu.channels[q.channel]
    bank = (q.place >> codes.BANK_SHIFT) & codes.FIELD_MASK
    row, column = q.place >> codes.ROW_SHIFT, (q.place >> codes.COLUMN_SHIFT) & codes.FIELD_MASK
    if q.is_admitted:
        age = f"admission {q.at} of {channel.n_admitted}"
    else:
        age = f"age {core.now // int(core.gpu.memory_ticks) - q.at:,} cycles"
        age += ", stalled" if channel.stalled >> q.traffic_class & 1 else ""
    open_row = int(channel.open_row[bank])
    state = f"row {open_row} open" if open_row >= 0 else "closed"
    return f"{KIND_NAMES[q.kind].removesuffix('s')} ({age}), bank {bank} row {row} column {column}, bank {state}"


def _channel_lines(core: GpuCore) -> Iterator[str]:
    period = int(core.gpu.memory_ticks)
    for c in range(int(core.gpu.n_channels)):
        channel = core.gpu.channels[c]
        n_queued = channel.queue_tail - channel.queue_head
        if not (n_queued.any() or channel.occupancy.any() or channel.n_waiting_cu.any() or channel.n_reserved.any()):
            continue
        queues = ", ".join(
            f"{name} {n_queued[stream]} of {channel.stream_capacity}" for stream, name in enumerate(core.traffic.queues)
        )
        wakes = ", ".join(
            f"{name} bus {_cycle(int(channel[field]))}"
            for name, field in (("column", "column_wake_at"), ("row", "row_wake_at"))
        )
        params = [_cycle(int(value)) for value in np.trim_zeros(channel.policy_params, "b")]
        yield (
            f"channel[{c}] at cycle {core.now // period:,}: {queues}, DRAM queue {channel.occupancy[codes.READ]} reads"
            f" {channel.occupancy[codes.WRITE]} stores of {channel.queue_capacity} and {channel.write_capacity},"
            f" promised {channel.n_reserved.sum()}, compute units in line {channel.n_waiting_cu.sum()}; next {wakes};"
            f" policy parameters {' '.join(params) or '-'}"
        )


def _cycle(value: int) -> str:
    return "never" if value >= codes.NEVER else f"{value:,}"


def _wait_sections(hung: HungGpu, graph: WaitGraph) -> Iterator[str]:
    """Every unit that waits, by kind."""
    parts: dict[str, list[str]] = defaultdict(list)
    for part in [*graph.waits, *(part for part in graph.faults if part not in graph.waits)]:
        gpu, _, place = part.partition(".")
        if gpu == hung.name and place != "kernel":
            parts[re.sub(r"\d+", "", place)].append(part)
    for kind, found in parts.items():
        yield from _section(kind, (_wait_row(part, graph) for part in found))


def _wait_row(part: str, graph: WaitGraph) -> str:
    """What one unit waits for: its fault, and the first of its edges."""
    edges = graph.waits.get(part, [])
    texts = [graph.faults[part]] if part in graph.faults else []
    own = f"{part.partition('.')[0]}."
    texts += [f"waits for {edge.on.removeprefix(own)} ({edge.reason})" for edge in edges[:WAY_LINES]]
    more = [f"{len(edges) - WAY_LINES} more"] if len(edges) > WAY_LINES else []
    return f"{part.partition('.')[2]}: {', '.join(texts + more)}"


def _command_lines(core: GpuCore, causes: list[Cause]) -> Iterator[str]:
    """The last commands of the channels at fault, if a command log was kept."""
    log = core.command_log
    entries = log[1 : int(log[0].at) + 1]
    channels = {cause.part.split("channel[")[1].split("]")[0] for cause in causes if "channel[" in cause.part}
    for c in sorted(channels, key=int)[:1]:
        mine = entries[entries["channel"] == int(c)][-LAST_COMMANDS:]
        texts = [f"{e.at:,} {SORT_NAMES[int(e.command)]} bank {e.bank} row {e.row}" for e in mine]
        rows = [" | ".join(texts[i : i + COMMANDS_IN_A_LINE]) for i in range(0, len(texts), COMMANDS_IN_A_LINE)]
        yield from _section(f"last {len(mine)} commands of channel[{c}]", iter(rows))
