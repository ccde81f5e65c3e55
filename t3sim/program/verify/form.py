"""Well-formedness of programs: every address, signal, GPU and workgroup exists."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.program.contents import Content, Rows
from t3sim.program.operations import (
    AT_OPERANDS,
    CACHED,
    DMA,
    HERE,
    NONE,
    STORE,
    UPDATE,
    Barrier,
    Gemm,
    Moves,
    OnComputeUnits,
    Operation,
    Program,
    is_of_commands,
    is_on_network,
)
from t3sim.program.verify.ledger import waits_of
from t3sim.program.verify.places import Map
from t3sim.program.verify.tiles import tile_state
from t3sim.program.verify.words import Findings
from t3sim.workload.outputs import stored_columns

TIMES_WIDER = (1, 2, 4, 8)  # FP32 sums than elements of 32 to 4 bits


def note_form(programs: Sequence[Program], findings: Findings) -> None:
    """Note what is malformed."""
    for message in of_all(programs):
        findings.add("form", message)
    for program in programs:
        for message in of_program(program):
            findings.add("form", message)


def of_all(programs: Sequence[Program]) -> Iterator[str]:
    """Yield what does not fit between the programs of the ranks."""
    first = programs[0]
    for rank, program in enumerate(programs):
        if (program.rank, program.n) != (rank, len(programs)):
            yield f"program {rank} of {len(programs)} says that it is of rank {program.rank} of {program.n}"
        for name in ("buffers", "signals", "granule", "line", "classes"):
            if getattr(program, name) != getattr(first, name):
                yield f"rank {rank} has other {name} than rank 0; they have to be the same on all"
        if barriers(program) != barriers(first):
            yield f"rank {rank} meets other barriers than rank 0: {barriers(program)}, not {barriers(first)}"


def barriers(program: Program) -> dict[str, int]:
    """Return how often *program* meets each barrier."""
    return dict(Counter(operation.name for operation in program.operations if isinstance(operation, Barrier)))


def of_program(program: Program) -> Iterator[str]:
    """Yield what is malformed in one program."""
    if not 0 <= program.inbound_class < len(program.classes):
        yield f"`inbound_class` is {program.inbound_class}, of {len(program.classes)} traffic classes"
    places = Map(program.buffers)
    for one, other in pairwise(places.buffers):
        if one.stop > other.first:
            yield f"buffers `{one.name}` and `{other.name}` overlap"
    names = Counter(operation.name for operation in program.operations if not isinstance(operation, Barrier))
    for name, count in names.items():
        if count > 1:
            yield f"{count} operations are called `{name}`"
    for operation in program.operations:
        for message in of_operation(operation, program, places):
            yield f"operation `{operation.name}` of rank {program.rank}: {message}"
    for content in (*program.inputs, *program.outputs):
        if isinstance(content, Content | Rows) and not places.hold(content.first, content.n_granules):
            yield f"inputs or outputs of rank {program.rank}: {content} is not inside one buffer"


def of_operation(operation: Operation, program: Program, places: Map) -> Iterator[str]:
    """Yield what is malformed in one operation."""
    if not 0 <= operation.traffic_class < len(program.classes):
        yield f"traffic class {operation.traffic_class}, of {len(program.classes)}"
    if isinstance(operation, OnComputeUnits) and operation.units is not None:
        if not 0 <= operation.units[0] < operation.units[1]:
            yield f"compute units {operation.units} are none"
    for post in operation.posts:
        if not 0 <= post.signal < program.n_signals:
            yield f"posts to signal {post.signal}, of {program.n_signals}"
        if not 0 <= post.distance < program.n or post.amount < 1:
            yield f"posts {post.amount} at distance {post.distance}, of {program.n} ranks"
    for check in (of_gemm, of_moves):
        yield from check(operation, program, places)
    for signal, _at_least, _distance in waits_of(operation, program.ranks):
        if not 0 <= signal < program.n_signals:
            yield f"waits for signal {signal}, of {program.n_signals}"
            return


def outside_of(low: int, values: Any, high: int) -> NDArray[np.int64]:
    """Return where *values* are not from *low* to below *high*."""
    return np.flatnonzero((values < low) | (values >= high))


def of_gemm(gemm: Operation, program: Program, places: Map) -> Iterator[str]:
    """Yield what is malformed in a GEMM."""
    if not isinstance(gemm, Gemm):
        return
    stores, n = gemm.stores, gemm.stored.n_workgroups
    arrays = {**vars(stores), **({} if gemm.waits is None else vars(gemm.waits))}
    for name, values in arrays.items():
        if len(values) != n:
            what = "workgroups" if gemm.parts is None else "parts of tiles"
            yield f"`{name}` has {len(values)} entries for {n} {what}"
            return
    if not np.array_equal(np.sort(gemm.order), np.arange(gemm.trace.n_workgroups)):
        yield "`order` does not have each workgroup once"
        return
    limits = {
        "kind": (CACHED, UPDATE + 1), "distance": (0, program.n), "to": (NONE, n), "signal": (NONE, program.n_signals),
    }  # fmt: skip
    for name, (low, high) in limits.items():
        for w in outside_of(low, getattr(stores, name), high)[:1].tolist():
            yield f"`{name}` of tile {w} is {int(getattr(stores, name)[w])}, not {low} to {high - 1}"
            return
    is_away = stores.distance > 0
    if gemm.parts is not None and ((stores.to != NONE).any() or stores.updates.any() or gemm.forwards):
        yield "its tiles are cut into parts: none of them can be counted, sent to a tile or forwarded"
        return
    for w in np.flatnonzero(is_away & (stores.kind == CACHED))[:1].tolist():
        yield f"tile {w} goes through the L2 to another GPU"
    for w in np.flatnonzero(is_away & (stores.updates > 0))[:1].tolist():
        yield f"tile {w} is counted here, but stored on another GPU"
    if gemm.trace.tiling.split_k > 1 and (is_away | (stores.kind == UPDATE) | (stores.updates > 0)).any():
        yield "its kernel splits k: partial sums are stored on the own GPU, and nothing adds to them or counts them"
    element = gemm.trace.element
    at_once = -(-stored_columns(gemm.trace.tiling, element) // element.n_elements(program.granule))
    at_once = min(at_once, program.line)  # granules
    in_lines = (stores.first % at_once == 0) & (stores.pitch % at_once == 0)
    for w in np.flatnonzero((stores.kind == CACHED) & ~in_lines)[:1].tolist():
        yield f"tile {w} goes through the L2, but its rows do not begin with cache lines, of {at_once} granules"
    state = tile_state(gemm, program)
    lengths = (state.rows - 1) * stores.pitch + state.widths
    if not state.is_exact:  # tiles that represent others lie where those do
        lengths[stores.to != NONE] = 0
    for w in places.outside(stores.first, lengths)[:1].tolist():
        yield f"tile {w}, from granule {int(stores.first[w])} on, is not inside one buffer"
    for name, granules in gemm.operands(program.line).items():
        if not places.hold(granules.start, len(granules)):
            yield f"operand {name} is not inside one buffer"
    if state.is_exact:
        to = np.flatnonzero(stores.to != NONE)
        for w in to[stores.first[to] != stores.first[stores.to[to]]][:1].tolist():
            yield f"tile {w} goes to tile {int(stores.to[w])}, but not to the place of that tile"
    forwarded: Counter[int] = Counter()
    for forward in gemm.forwards:
        workgroups = np.array(forward.workgroups)
        if len(outside_of(0, workgroups, n)) or len(outside_of(0, np.array(forward.to), n)):
            yield f"forwards tiles {forward.workgroups} to {forward.to}, of {n}"
            return
        if not 0 < forward.distance < program.n or forward.tiles_per_block < 1:
            yield f"forwards blocks of {forward.tiles_per_block} tiles to distance {forward.distance}"
        for w in workgroups[stores.updates[workgroups] == 0][:1].tolist():
            yield f"tile {w} is forwarded when it is complete, but not counted"
        forwarded.update(forward.workgroups)
    for w, count in forwarded.items():
        if count > 1:
            yield f"tile {w} is forwarded {count} times"
            return


def of_moves(moves: Operation, program: Program, places: Map) -> Iterator[str]:
    """Yield what is malformed in a kernel that moves."""
    if not isinstance(moves, Moves):
        return
    if moves.steps.ndim != 2:
        yield f"`steps` has {moves.steps.ndim} dimensions, not 2"
        return
    steps = moves.steps.reshape(-1)
    if is_of_commands(moves):
        yield from of_commands(moves, steps)
    elif moves.engine is not None:
        is_one = moves.steps.shape[1] == 1 or is_on_network(moves)
        is_plain = is_one and moves.flags == (1, 1) and moves.n_workgroups is None
        is_elsewhere = moves.units is not None or moves.shares_units
        is_sum = ((steps["n_operands"] != 1) & (steps["n_granules"] > 0)).any()
        if moves.engine < 0 or is_elsewhere or not is_plain or is_sum:
            columns = "columns" if is_on_network(moves) else "one column"
            yield f"an engine runs {columns} of steps of one operand each, without flags, units or workgroups"
            return
    spread = -(-moves.flags[0] // moves.flags[1])
    on_wire = steps["n_granules"] if spread == 1 else -(-steps["n_granules"] // program.line) * program.line * spread
    operands = int(steps["n_operands"].max(initial=0))
    is_sent, is_kept = steps["send"] != NONE, steps["kept_at"] != NONE
    ranges = [("destination", steps["destination"], np.where(is_sent, on_wire, 0))]
    ranges.append(("kept_at", steps["kept_at"], np.where(is_kept, steps["n_granules"], 0)))
    for j in range(operands):
        is_last = (j == steps["n_operands"] - 1) & (steps["is_received"] == 1)
        length = np.where(j < steps["n_operands"], np.where(is_last, on_wire, steps["n_granules"]), 0)
        first = steps["operand"] + j * steps["stride"]
        times = steps["wider"] + 1  # so many operands are the lines, in turn, of one array
        first = np.where(times > 1, steps["operand"] + j // times * steps["stride"], first)
        ranges.append((f"operand {j}", first, times * length))
    for name, first, length in ranges:
        for k in places.outside(first, length)[:1].tolist():
            yield f"{name} of step {step_name(moves, k)}, from granule {int(first[k])} on, is not inside one buffer"
    is_plain = (steps["n_operands"] % (steps["wider"] + 1) == 0) & (steps["n_granules"] % program.line == 0)
    is_plain &= (steps["is_received"] == 0) & (steps["source"] == 0) & (steps["source_stride"] == 0)
    for k in np.flatnonzero(~np.isin(steps["wider"] + 1, TIMES_WIDER) | (steps["wider"] > 0) & ~is_plain)[:1].tolist():
        yield f"step {step_name(moves, k)} adds wider elements, groups of operands in whole lines of the own GPU"
    for k in np.flatnonzero(is_sent & ~np.isin(steps["send"], (STORE, UPDATE)))[:1].tolist():
        yield f"step {step_name(moves, k)} sends as {int(steps['send'][k])}, not STORE or UPDATE"
    yield from of_batches(moves)
    yield from of_switch(moves, program, places)
    for k in np.flatnonzero(
        is_sent & (steps["is_multicast"] == 0) & ((steps["distance"] < 1) | (steps["distance"] >= program.n))
    )[:1].tolist():
        yield f"step {step_name(moves, k)} sends to distance {int(steps['distance'][k])}, of {program.n} ranks"
    for k in outside_of(0, steps["source"], program.ranks.per_node)[:1].tolist():
        where = f"at distance {int(steps['source'][k])}, of {program.ranks.per_node} ranks of a node"
        yield f"operand 0 of step {step_name(moves, k)} lies {where}"
    for k in outside_of(NONE, steps["post_signal"], program.n_signals)[:1].tolist():
        yield f"step {step_name(moves, k)} posts to signal {int(steps['post_signal'][k])}, of {program.n_signals}"


def of_batches(moves: Moves) -> Iterator[str]:
    """Yield what is malformed in batches: steps of one length, whose signals are on their own GPU."""
    steps = moves.steps
    n, n_rows = np.array(steps["n_batched"]), len(steps)
    if not n.any():
        return
    row, column = np.nonzero(n)
    is_shared = moves.n_workgroups is not None and moves.n_workgroups != steps.shape[1]
    for k, c in zip(row.tolist(), column.tolist(), strict=True):
        first, rest = steps[k, c], steps[k + 1 : k + 1 + int(n[k, c]), c]
        is_like = rest["n_granules"] == first["n_granules"]
        is_free = ((rest["wait_signal"] == NONE) | (rest["wait_where"] == HERE)) & (rest["n_batched"] == 0)
        if is_shared or n[k, c] < 0 or k + n[k, c] >= n_rows or not (is_like & is_free).all():
            where = step_name(moves, k * steps.shape[1] + c)
            what = "steps that are not as long, wait elsewhere, or are not there"
            yield f"step {where} is batched with {int(n[k, c])} {what}"
            return


def of_commands(moves: Moves, steps: NDArray[Any]) -> Iterator[str]:
    """Yield what an engine with several outstanding commands cannot do of what *moves* asks for.

    T3's DMA engine copies, fills, and gets sums from a switch; it adds nothing itself.
    """
    if moves.units is not None or moves.shares_units or moves.flags != (1, 1):
        yield "commands of an engine have no compute units or flags"
    elif moves.wavefronts is not None and (steps["n_operands"] > 1).any():
        yield "commands of an engine that move several rows at a time add nothing"
    elif moves.engine == DMA and ((steps["n_operands"] > 1) & (steps["is_reduced"] != 1)).any():
        yield "T3's DMA engine adds nothing: a step has one operand at most, or is a sum of the switch"


def of_switch(moves: Moves, program: Program, places: Map) -> Iterator[str]:
    """Yield what is malformed in what steps ask of a switch."""
    steps, n = moves.steps.reshape(-1), program.ranks.per_node
    to_all, is_sum = steps["is_multicast"] == 1, steps["is_reduced"] == 1
    is_malformed = (
        ~np.isin(steps["is_multicast"], (0, 1)) | ~np.isin(steps["is_reduced"], (0, 1)) | (steps["spread"] < 0)
    )
    is_malformed |= to_all & ((steps["send"] != STORE) | (steps["distance"] != 0))
    is_malformed |= (to_all | is_sum) & (
        (moves.flags != (1, 1)) | (moves.engine is not None and not is_of_commands(moves))
    )
    is_malformed |= is_sum & ((steps["n_operands"] != n) | (steps["source"] != 0) | (steps["source_stride"] != 1))
    is_malformed |= is_sum & ((steps["stride"] > 0) | (steps["wider"] > 0) | (steps["wait_where"] == AT_OPERANDS))
    for k in np.flatnonzero(is_malformed)[:1].tolist():
        yield f"step {step_name(moves, k)} needs what a switch does not do: multicast stores, sums over all ranks"
        return
    for d in range(1, n if to_all.any() else 1):
        first = steps["destination"] - d * steps["spread"]
        for k in places.outside(first, np.where(to_all, steps["n_granules"], 0))[:1].tolist():
            where = f"at distance {d}, from granule {int(first[k])} on"
            yield f"destination of step {step_name(moves, k)} {where}, is not inside one buffer"


def step_name(moves: Moves, k: int) -> str:
    """Return the place of a step in words."""
    row, column = divmod(k, moves.steps.shape[1])
    return f"{row}" if moves.steps.shape[1] == 1 else f"{row} of column {column}"
