"""Parts that several strategies share: the GEMM alone, each collective alone; plans of a bare collective."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from t3sim.collective.choice import ring_schedule, way_of
from t3sim.collective.direct import LEVELS, NVLS, RING, TREE, VLLM, kernel_of
from t3sim.collective.nvls import takes_switch
from t3sim.collective.schedule import CollectiveSchedule, Op, ring_reduce_scatter
from t3sim.collective.tree import takes_tree
from t3sim.errors import UsageError
from t3sim.program.all_to_all import all_to_all_program
from t3sim.program.contents import Content
from t3sim.program.direct import direct_program
from t3sim.program.kernels import copies, gemm, program, refuse_element, ring, summed, whole_tiles
from t3sim.program.levels import levels, levels_program
from t3sim.program.nvls import nvls_program
from t3sim.program.one_way import broadcast_program, send_receive_program
from t3sim.program.operations import Memory, Moves, Program
from t3sim.program.operator import Operator
from t3sim.program.plan import Part, Plan, in_order
from t3sim.program.tree import tree_program

ProgramOf = Callable[[Operator, int], Program]  # of a rank

KEPT = 8  # parts of an operator that strategies share, so that a plan of many points makes them once


def part_of(op: Operator, role: str, name: str, program_of: ProgramOf, *, is_arbitrated: bool = False) -> Part:
    """Return the part that runs ``program_of(op, rank)``, which asks *op* for all that depends on the rank.

    So staggered ranks all run one program.
    """
    if op.staggered:
        return Part.alike(role, name, program_of(op, 0), is_arbitrated=is_arbitrated)
    return Part.of(role, name, lambda rank: program_of(op, rank), op.n, is_arbitrated=is_arbitrated)


def fused_plan(
    op: Operator, program_of: ProgramOf, *, ordered: Operator | None = None, runs_on_one: bool = False
) -> Plan:
    """Return the plan of one part, `fused`, that a policy arbitrates, and the all-gather of its output after it.

    *ordered*: what programs are made of, where it is not *op* itself.  One GPU has the GEMM only, unless the programs
    *runs_on_one* as well.
    """
    if op.n == 1 and not runs_on_one:
        return Plan(in_order(gemm_part(op)))
    fused = part_of(ordered or op, "fused", "fused", program_of, is_arbitrated=True)
    return Plan(in_order(fused, None if op.kind == "ag-gemm" else all_gather_part(op)), also=(gemm_part(op),))


def gemm_part(
    op: Operator, n_compute_units: int | None = None, n_resident: int | None = None, *, is_repeated: bool = False
) -> Part:
    """Return the GEMM alone, output through the L2, on a number of compute units (default: all).

    *n_resident*: workgroups of a persistent kernel (default: as many as these hold).  It splits k if that is faster,
    whether a strategy can do so or not.  *is_repeated*: twice, back-to-back, with the same operands.
    """
    return _gemm_part(op.given or op, n_compute_units, n_resident, is_repeated)


@lru_cache(KEPT)
def _gemm_part(op: Operator, n_compute_units: int | None, n_resident: int | None, is_repeated: bool) -> Part:
    """Return the GEMM of *op* alone."""

    def program_of(op: Operator, rank: int) -> Program:
        memory = Memory(op.memory().stripe)
        units = None if n_compute_units is None else (0, n_compute_units)
        kernel = replace(gemm(op, memory, rank, units=units), n_resident=n_resident)
        kernels = [kernel]
        if is_repeated:
            c = memory.buffers[-1]
            stores = kernel.stores.copy()
            stores.first[:] += memory.buffer("C again", c.n_granules).first - c.first
            kernels.append(replace(kernel, name="gemm again", stores=stores))
        operations = (one for kernel in kernels for one in summed(memory, kernel, op.granule))
        return program(op, rank, memory, *operations, outputs=tuple(whole_tiles(kernel, of=0) for kernel in kernels))

    return part_of(op, "gemm", named("gemm", n_compute_units), program_of)


@lru_cache(KEPT)
def reduce_scatter_part(
    op: Operator, *, has_near_memory: bool = False, n_compute_units: int | None = None
) -> Part | None:
    """Return the reduce-scatter of the output alone, on a number of compute units; None on one GPU."""
    if has_near_memory and op.ranks.n_nodes > 1:
        return levels_part(op, "reduce-scatter", n_compute_units, has_near_memory=True)
    if has_near_memory:
        schedule = ring_reduce_scatter(op.n, op.chunk_granules, has_near_memory=True)
        return ring_part(op, "reduce-scatter", schedule, "reduce-scatter, near memory", n_compute_units)
    return _chosen(op, "reduce-scatter", n_compute_units)


@lru_cache(KEPT)
def all_gather_part(op: Operator, *, n_compute_units: int | None = None) -> Part | None:
    """Return the all-gather of the reduced output alone, on a number of compute units; None on one GPU."""
    return _chosen(op, "all-gather", n_compute_units)


def _chosen(op: Operator, collective: Op, n_compute_units: int | None) -> Part | None:
    """Return *collective* alone as the machine runs it."""
    is_chosen = (
        n_compute_units is None or op.ranks.n_nodes > 1
    )  # on a number of compute units GPUs of a node take rings
    if way_of(op.machine, op.n) != "ring" and op.algorithm != RING and is_chosen:
        return levels_part(op, collective, n_compute_units)
    schedule = ring_schedule(op.machine, collective, op.n, op.chunk_granules, n_compute_units)
    return ring_part(op, collective, schedule, collective, n_compute_units)


def ring_part(
    op: Operator, collective: Op, schedule: CollectiveSchedule, name: str, n_compute_units: int | None = None
) -> Part | None:
    """Return the part that runs *schedule* alone; None if it has nothing to do."""
    if not schedule.steps:
        return None

    def program_of(op: Operator, rank: int) -> Program:
        memory = Memory(op.memory().stripe)
        units = None if n_compute_units is None else (0, n_compute_units)
        kernel = ring(op, memory, schedule, name, units=units)
        inputs, outputs = ring_contents(collective, op.n, op.chunk_granules, has_channels=schedule.n_units is not None)
        return program(op, rank, memory, kernel, inputs=inputs, outputs=outputs)

    return part_of(op, collective.replace("-", "_"), named(name, n_compute_units), program_of)


def copy_part(op: Operator) -> Part:
    """Return a copy of a chunk to the GPU before by a copy engine."""
    memory, n_granules = op.memory(), op.chunk_granules
    given, there = memory.buffer("given", n_granules), memory.buffer("copied", n_granules)
    row = {
        "n_granules": n_granules, "operand": given.first, "distance": op.n - 1, "destination": there.first
    }  # fmt: skip
    return Part.alike("copy", "copy", program(op, 0, memory, copies("copy", [row])))


def ring_contents(
    collective: Op, n: int, c: int, *, has_channels: bool
) -> tuple[tuple[Content, ...], tuple[Content, ...]]:
    """Return what a ring finds in memory and what it leaves there, *c* granules a chunk.

    Channels leave their output after the input, whole chunks inside it.
    """
    out = n * c if has_channels else 0
    every = range(n)
    if collective == "all-gather":
        return (Content(0, c, 0, of=0),), tuple(Content(out + p * c, c, p, of=p) for p in every)
    parts = tuple(Content(p * c, c, p, of=0) for p in every)
    if collective == "reduce-scatter":
        return parts, (Content(out + (n - 1) * c, c, n - 1, of=None),)
    return parts, tuple(Content(out + p * c, c, (p - 1) % n, of=None) for p in every)


def all_reduce(
    op: Operator, memory: Memory, units: tuple[int, int]
) -> tuple[tuple[Moves, ...], tuple[Content, ...], tuple[Content, ...]]:
    """Return kernels on *units*, and what their data are before and after: of an array like the output.

    On one node two rings, one after the other; on several the kernels of a hierarchical all-reduce, concurrently.

    The all-gather sends the chunk that the reduce-scatter leaves from where that lies; what it gathers lies apart.
    """
    c, has_channels = op.chunk_granules, op.machine.gpu.collective_kernel.kind == "channels"
    if op.ranks.n_nodes > 1:
        found = levels(op, memory, "all-reduce", units=units)
        return tuple(found.kernels), found.inputs, found.outputs

    def placed(collective: Op, array: str) -> tuple[Moves, int]:
        schedule = ring_schedule(op.machine, collective, op.n, c, units[1] - units[0])
        return ring(op, memory, schedule, collective, units=units, array=array), memory.buffers[-1].first

    (scatter, data), (gather, there) = placed("reduce-scatter", "data"), placed("all-gather", "gathered")
    given, (summed,) = ring_contents("reduce-scatter", op.n, c, has_channels=has_channels)
    _, gathered = ring_contents("all-reduce", op.n, c, has_channels=has_channels)
    given, (summed,), gathered = moved(given, data), moved((summed,), data), moved(gathered, there)
    steps = gather.steps.copy()
    is_own = (steps["operand"] >= there) & (steps["operand"] < there + c)
    steps["operand"][is_own] += summed.first - there
    outputs = gathered if has_channels else (summed, *gathered[1:])  # whole chunks: the own one stays where it is
    return (scatter, replace(gather, steps=steps)), given, outputs


def moved(contents: tuple[Content, ...], by: int) -> tuple[Content, ...]:
    """Return the same contents, shifted by a number of granules."""
    return tuple(replace(one, first=one.first + by) for one in contents)


def collective_plan(op: Operator, *, has_near_memory: bool = False, n_compute_units: int | None = None) -> Plan:
    """Return the plan of an operator that is one collective, on a number of compute units (default: all)."""
    collective, n_units = op.collective, n_compute_units
    if collective == "all-to-all":
        return Plan(in_order(part_of(op, "all_to_all", collective, all_to_all_program)))
    if collective == "send-receive":
        return Plan(in_order(part_of(op, "send_receive", collective, send_receive_program)))
    if collective == "broadcast":
        return Plan(in_order(Part.of("broadcast", collective, lambda rank: broadcast_program(op, rank), op.n)))
    if op.algorithm in LEVELS:
        assert collective is not None
        return Plan(in_order(levels_part(op, collective)))
    if op.algorithm == NVLS:
        assert collective is not None
        return Plan(in_order(nvls_part(op, collective)))
    if collective == "all-reduce":
        return Plan(in_order(*all_reduce_parts(op, op.algorithm, n_units)))
    if collective == "reduce-scatter":
        return Plan(in_order(reduce_scatter_part(op, has_near_memory=has_near_memory, n_compute_units=n_units)))
    return Plan(in_order(all_gather_part(op, n_compute_units=n_units)))


def all_reduce_parts(op: Operator, algorithm: str, n_compute_units: int | None = None) -> tuple[Part | None, ...]:
    """Return the parts of an all-reduce of an array of n chunks, like the output of *op*.

    One kernel of *algorithm* (``collective.direct``); NCCL's, in the switch or a ring in channels; where collectives
    are made of whole chunks, a reduce-scatter and an all-gather.  On a number of compute units it is a ring.
    """
    size = op.n * op.chunk_granules * op.granule
    kernel = kernel_of(algorithm, op.machine, op.n, size)
    if kernel is not None and algorithm == VLLM and op.element not in kernel.elements:
        kernel = None  # it leaves other types to NCCL
    if kernel is not None and op.n > 1:
        refuse_element(op, kernel.elements, f"the kernel {algorithm}")
        name = f"all-reduce, {kernel.form}"
        return (Part.of("all_reduce", name, lambda rank: direct_program(op, rank, kernel), op.n),)
    n_nodes = op.ranks.n_nodes
    if algorithm in LEVELS and algorithm != LEVELS[n_nodes > 1]:
        where = f"{n_nodes} nodes" if n_nodes > 1 else "one node"
        raise UsageError(
            f"strategy.all_reduce: is {algorithm}, and the GPUs are on {where}; take `{LEVELS[n_nodes > 1]}`"
        )
    is_free = algorithm not in {RING, NVLS, TREE} and (n_compute_units is None or n_nodes > 1)
    is_chosen = is_free and algorithm not in LEVELS and n_compute_units is None
    if op.n > 1 and (algorithm == TREE or (is_chosen and takes_tree(op.machine, "all-reduce", op.n, size))):
        return (Part.of("all_reduce", "all-reduce, trees", lambda rank: tree_program(op, rank), op.n),)
    if algorithm in LEVELS or (is_free and way_of(op.machine, op.n) != "ring"):
        return (levels_part(op, "all-reduce", n_compute_units if n_nodes > 1 else None),)
    is_added = op.machine.link.multicast is not None and op.element in op.machine.link.multicast.elements
    if algorithm == NVLS or (is_free and is_added and takes_switch(op.machine, "all-reduce", op.n, size)):
        return (nvls_part(op, "all-reduce"),)
    if op.machine.gpu.collective_kernel.kind == "channels":
        return (_chosen(op, "all-reduce", n_compute_units),)
    return (
        reduce_scatter_part(op, n_compute_units=n_compute_units), all_gather_part(op, n_compute_units=n_compute_units)
    )  # fmt: skip


def levels_part(
    op: Operator, collective: Op, n_compute_units: int | None = None, *, has_near_memory: bool = False
) -> Part | None:
    """Return *collective* alone, direct or hierarchical, on a number of compute units; None on one GPU."""
    if op.n == 1:
        return None
    name = f"{collective}, {'direct' if op.ranks.n_nodes == 1 else 'hierarchical'}"
    name = named(f"{name}, near memory" if has_near_memory else name, n_compute_units)
    units = None if n_compute_units is None else (0, n_compute_units)

    def program_of(op: Operator, rank: int) -> Program:
        return levels_program(op, rank, collective, units, has_near_memory=has_near_memory)

    return part_of(op, collective.replace("-", "_"), name, program_of)


def nvls_part(op: Operator, collective: Op) -> Part | None:
    """Return *collective* in the switch, alone; None on one GPU."""
    if op.n == 1:
        return None
    name = f"{collective}, NVLS"
    return part_of(op, collective.replace("-", "_"), name, lambda op, rank: nvls_program(op, rank, collective))


def named(part: str, n_compute_units: int | None) -> str:
    """Return the name of a part that runs on a number of compute units, None: on all."""
    return part if n_compute_units is None else f"{part}, {n_compute_units} compute units"
