"""Checks of a point across its sections: quantum and machine, tiling and compute unit, shape and number of GPUs.

And as a ring: which GPUs and links there are, and whether one GPU may represent all.
"""

import math
from collections.abc import Iterator, Sequence

from t3sim.collective.direct import FORCED, LEVELS, NCCL, NVLS, RING
from t3sim.config.element_types import ELEMENT_TYPES, NOT_OUTPUTS, OUTPUTS, REDUCED_TYPES
from t3sim.config.experiment import CollectiveSpec, GemmShape, WorkloadSpec
from t3sim.config.experts import ExpertsSpec
from t3sim.config.gpu_overrides import OVERRIDE_KEY, differences
from t3sim.config.machine import MachineSpec
from t3sim.config.machine_checks import too_many_gpus
from t3sim.config.presets import SKEW
from t3sim.config.resolve import ResolvedMachine
from t3sim.config.trees import Problems, node_at
from t3sim.config.yaml_loader import Node
from t3sim.experiment.planning.decisions import STRATEGY, Choice
from t3sim.experiment.planning.schema import MAX_TP, PointFile
from t3sim.fabric.interface import fabrics, findings_of, ranks_of
from t3sim.program.operator import needs_whole_tiles
from t3sim.strategies import OverlapStrategy, in_order, not_an_operator_of, overlap_strategies
from t3sim.units import format_bytes, format_time
from t3sim.workload.layer import held_of, sublayer_workloads
from t3sim.workload.moe import gemms_of, weight_bytes
from t3sim.workload.operands import bytes_of_a, bytes_of_b, stated_rate, wider
from t3sim.workload.outputs import output_bytes, output_name
from t3sim.workload.tiling_rules import (
    MAX_MATRIX_BYTES,
    output_findings,
    shape_findings,
    stage_findings,
    tiling_findings,
)

PS_PER_S = 10**12
GIB = 1 << 30
Findings = Iterator[tuple[str, str]]  # dotted key and message of each problem


def check_point(
    problems: Problems, tree: Node, machine: ResolvedMachine, workload: WorkloadSpec, point: PointFile,
    choices: Sequence[Choice],
) -> None:  # fmt: skip
    """Report what is wrong with a point although each of its sections alone is legal.

    *choices* are its strategy and its policy, as far as they are legal.
    """
    strategy = next((overlap_strategies.get(choice.name) for choice in choices if choice.key == STRATEGY), None)
    gpus = _kinds_of_gpus(machine.spec)
    found = [*_of_quantum(machine.spec, point.quantum)]
    found += [
        (f"{choice.key}.{name}", f"{where}is {value}{'' if name in choice.params else ' unless it is given'}, {excess}")
        for where, gpu in gpus for choice in choices for name, declared in choice.parameters.items()
        if (excess := declared.excess(value := choice.params.get(name, declared.default), gpu)) is not None
    ]  # fmt: skip
    shape_key = "workload.gemm" if tree.value["workload"].get("gemm") else "workload"
    found += workload_findings(machine.spec, workload, strategy, shape_key)
    for key, message in found:
        problems.report(tree, key, message)
    n = workload.tp if workload.collective is None else workload.collective.gpus
    _check_names(problems, machine.tree, n)
    if point.mode == "mirrored":
        _check_identical(problems, tree, machine, point)
        return
    for key, message in _of_explicit(machine.spec, n, point.quantum):
        problems.report(tree, key, message)


def _kinds_of_gpus(machine: MachineSpec) -> list[tuple[str, MachineSpec]]:
    """Return each kind of GPU as a machine: the common one, others under their names."""
    return [("", machine), *((f"on gpu[{own.number}]: ", machine.of_gpu(own.number)) for own in machine.own_gpus)]


def workload_findings(
    machine: MachineSpec, workload: WorkloadSpec, strategy: OverlapStrategy | None, shape_key: str = "workload"
) -> Findings:
    """Yield what keeps *strategy* from running *workload* on *machine*, although each of them alone is legal.

    *shape_key* is the key that the shape of its GEMM is reported at.
    """
    n, n_key, times = workload.tp, "workload.tp" if workload.trace is None else "workload.trace", ""
    if workload.collective is not None:
        n, n_key = workload.collective.gpus, "workload.collective.gpus"
        yield from _of_collective(workload.collective, strategy)
    elif strategy is not None and workload.operator not in strategy.operators:
        yield STRATEGY, not_an_operator_of(strategy, workload.operator)
    yield from _of_shape(workload, strategy, _kinds_of_gpus(machine), shape_key)
    yield from _of_memory(workload, _kinds_of_gpus(machine), shape_key)
    if workload.experts is not None and workload.model is None:
        n_key, times = "workload.experts.ep", "" if workload.experts.tp == 1 else "times `tp` "
    if message := too_many_gpus(machine, n):
        yield n_key, times + message
    of_fabric = list(findings_of(machine, n))
    yield from of_fabric or _of_reach(machine, workload.collective)
    yield from _of_generation(machine, workload)
    if workload.experts is not None:
        yield from _of_experts(workload.experts, _kinds_of_gpus(machine))


def _of_quantum(machine: MachineSpec, quantum: int | None) -> Findings:
    slot, latency = longest_slot(machine, 0), machine.link.latency
    if quantum is not None and quantum > latency:
        message = f"cannot be longer than `machine.link.latency`, {format_time(latency)}"
        yield "quantum", f"is {format_time(quantum)}, {message}"
    if quantum is not None and quantum < slot:
        yield "quantum", f"is {format_time(quantum)}, below one `machine.gpu.issue_slot`, {format_time(slot)}"


def _of_shape(
    workload: WorkloadSpec, strategy: OverlapStrategy | None, gpus: Sequence[tuple[str, MachineSpec]], shape_key: str
) -> Findings:
    """What keeps the workgroups of GEMMs from running on the GPUs of a ring, or their output from being cut."""
    gemms = [part.gemm for part in sublayer_workloads(workload) if part.gemm is not None]
    tiling, tiling_key = workload.tiling, "tiling" if workload.trace is None else "workload.trace"
    if gemms and tiling.split_k > 1 and workload.kernels is None and strategy is not None and not strategy.splits_k:
        yield f"{tiling_key}.split_k", needs_whole_tiles(strategy.name, tiling.split_k)
    for where, gpu in gpus if gemms else ():
        findings = tiling_findings(tiling, gpu)
        if tiling.column_major and workload.operator == "ag-gemm":
            message = "is for a GEMM whose output is reduced; rows of A are gathered from arrays stored by rows"
            findings.append(("column_major", message))
        for path, message in findings:
            yield f"{tiling_key}.{path}", where + message
        n_wavefronts = math.prod(tiling.workgroup_tile) // math.prod(tiling.wavefront_tile)
        is_tracked = strategy is not None and strategy.arbitration is not None and not findings  # in its fused phase
        entries = gpu.gpu.tracker.entries_per_set
        if is_tracked and n_wavefronts > entries and not where:
            message = f"but a workgroup has {n_wavefronts} wavefronts and needs an entry for each in one set"
            yield "machine.gpu.tracker.entries_per_set", f"is {entries}, {message}"
    for gemm in gemms:
        findings = shape_findings(gemm, tiling)
        yield from _of_output(gemm, workload, findings)
        for where, gpu in gpus:
            if stated_rate(gpu.gpu.compute_unit, wider(gemm)) is None:
                lacking = f"machine.gpu.compute_unit.matrix_rates.{wider(gemm).rate}"
                element = "workload.gemm.element" if workload.model is None else "workload.element"
                yield element, f"{where}is {gemm.element}, and this machine has no `{lacking}`"
        if strategy is not None and strategy.has_stages and not findings:
            yield from (("workload.tp", message) for _, message in stage_findings(gemm, tiling, workload.tp))
        for path, message in findings:
            key = f"{tiling_key}.split_k" if path == "tiling.split_k" else shape_key
            yield key, message


def _of_output(gemm: GemmShape, workload: WorkloadSpec, of_shape: Sequence[tuple[str, str]]) -> Findings:
    """What keeps a kernel from storing an output in its type, or a collective from adding it up."""
    key = "workload.trace" if workload.trace else "workload.output" if workload.model else "workload.gemm.output"
    name = output_name(gemm)
    if name in NOT_OUTPUTS:
        yield key, f"is {name}, and {NOT_OUTPUTS[name]}; take one of {', '.join(OUTPUTS)}"
    elif workload.tp > 1 and workload.operator in ("gemm-rs", "gemm-ar") and name not in REDUCED_TYPES:
        what = "is reduced, and no collective adds up such elements"
        yield key, f"is {name}: the output of {workload.operator} {what}; take one of {', '.join(REDUCED_TYPES)}"
    elif not of_shape:
        yield from ((key, message) for _, message in output_findings(gemm, workload.tiling))


def _of_generation(machine: MachineSpec, workload: WorkloadSpec) -> Findings:
    """What keeps a layer of generation from running: a memory that is too small, or GPUs that differ."""
    layer = workload.layer
    if layer is None or layer.kind != "generation" or layer.context is None:
        return
    if not machine.is_uniform:
        yield "workload.layer", "is generation, which is simulated on identical GPUs only"
    held, tokens = held_of(layer, workload.tp), layer.model.tokens
    capacity, cache = machine.memory.capacity, held.per_token * tokens * layer.context
    if capacity is None or held.weights + cache <= capacity:
        return
    room = capacity - held.weights
    at_most = f"at most {room // (held.per_token * tokens)} tokens fit" if room > 0 else "the weights alone do not fit"
    needed = f"{held.weights / GIB:.1f} GiB of weights and {cache / GIB:.1f} GiB of KV cache"
    message = f"all layers take {needed} on each of {workload.tp} GPUs"
    has = f"`machine.memory.capacity` is {capacity / GIB:.1f} GiB"
    yield "workload.context", f"is {layer.context}: {message}, and {has}; {at_most}"


def _of_experts(experts: ExpertsSpec, gpus: Sequence[tuple[str, MachineSpec]]) -> Findings:
    """What keeps a layer of experts from running: element types that are not multiplied, a memory that is too small,
    shared experts that are not rows of the grouped GEMMs.
    """
    shared, each = experts.shared_intermediate or 0, experts.local_intermediate
    if shared % each:
        message = f"is {shared}, and shared experts run as rows of the grouped GEMMs, each {each} wide on a GPU"
        yield "workload.experts.shared_intermediate", f"{message}; take a multiple, or leave them out (`null`)"
    for where, gpu in gpus:
        one = gemms_of(experts, 1)[0]
        if stated_rate(gpu.gpu.compute_unit, wider(one)) is None:
            lacking = f"machine.gpu.compute_unit.matrix_rates.{wider(one).rate}"
            yield "workload.experts.element", f"{where}is {experts.element}, and this machine has no `{lacking}`"
        held = weight_bytes(experts)
        if lacks := _beyond_memory(held, gpu):
            needed = f"{held / GIB:.1f} GiB of weights on each GPU"
            yield "workload.experts.ep", f"{where}is {experts.ep}: {needed}, {lacks}"


def _of_memory(workload: WorkloadSpec, gpus: Sequence[tuple[str, MachineSpec]], shape_key: str) -> Findings:
    """What each GPU has to store at least and cannot: the array of a collective; operands and output of a GEMM."""
    gemms = [part.gemm for part in sublayer_workloads(workload) if part.gemm is not None]
    for where, gpu in gpus:
        if workload.collective is not None and (lacks := _beyond_memory(workload.collective.size, gpu)):
            size = format_bytes(workload.collective.size)
            yield "workload.collective.size", f"{where}is {size} on each GPU, {lacks}"
        for gemm in gemms:
            stored = bytes_of_a(gemm, gemm.m * gemm.k) + bytes_of_b(gemm, gemm.n * gemm.k)
            stored += output_bytes(gemm)
            if lacks := _beyond_memory(stored, gpu):
                needed = f"operands and output of {gemm.m} x {gemm.n} x {gemm.k} are {stored / GIB:.1f} GiB on each GPU"
                yield shape_key, f"{where}{needed}, {lacks}"


def _beyond_memory(needed: int, gpu: MachineSpec) -> str:
    """Say that the memory of *gpu* has less than *needed* bytes; empty if it has as many, or states no capacity."""
    capacity = gpu.memory.capacity
    if capacity is None or needed <= capacity:
        return ""
    return f"and `machine.memory.capacity` is {capacity / GIB:.1f} GiB"


def _of_collective(collective: CollectiveSpec, strategy: OverlapStrategy | None) -> Findings:
    if strategy is not None and not strategy.runs_collectives:
        names = " or ".join(entry.name for entry in in_order() if entry.runs_collectives)
        yield STRATEGY, f"`{strategy.name}` overlaps a GEMM; a collective on its own takes {names}"
    size, gpus = format_bytes(collective.size), collective.gpus
    if collective.size > MAX_MATRIX_BYTES:
        yield "workload.collective.size", f"is {size}, at most {format_bytes(MAX_MATRIX_BYTES)}"
    forced = FORCED.get(collective.op, ())
    if collective.algorithm not in (NCCL, *forced):
        takes = " or ".join(f"`{name}`" for name in (NCCL, *forced))
        yield "workload.collective.algorithm", f"is {collective.algorithm}, and {collective.op} takes {takes}"
    if gpus > MAX_TP:
        yield "workload.collective.gpus", f"is {gpus}, at most {MAX_TP}"
    if 8 * collective.size < ELEMENT_TYPES[collective.element].bits * gpus:
        name = collective.element.upper()
        yield "workload.collective.size", f"is {size}, less than one {name} element for each of {gpus} GPUs"


def _of_reach(machine: MachineSpec, collective: CollectiveSpec | None) -> Findings:
    """What keeps a collective from running on the fabric of *machine*: GPUs that no link leads to."""
    if collective is None:
        return
    n, link = collective.gpus, machine.link
    to_all = collective.op == "all-to-all" or collective.algorithm not in (NCCL, NVLS, RING)
    needed = range(1, ranks_of(link, n).per_node) if to_all else [1] if collective.op == "send-receive" else []
    if not set(needed) <= set(fabrics.get(link.topology).reached(link, n)):
        what = collective.op if collective.algorithm == NCCL else f"{collective.op} by {collective.algorithm}"
        message = f"is {link.topology}, and {what} needs links between all GPUs of a node; take `switch` or `mesh`"
        yield "machine.link.topology", message
    n_nodes = ranks_of(link, n).n_nodes
    if collective.algorithm in LEVELS and collective.algorithm != LEVELS[n_nodes > 1]:
        where = "several nodes" if n_nodes > 1 else "one node"
        message = f"is {collective.algorithm}, and the GPUs are on {where}; take `{LEVELS[n_nodes > 1]}`"
        yield "workload.collective.algorithm", message


def _of_explicit(machine: MachineSpec, n: int, quantum: int | None) -> Findings:
    """What explicit mode cannot simulate of a ring of *n*."""
    slot, window = longest_slot(machine, n), shortest_latency(machine, n)
    if n == 1:
        yield "mode", "explicit mode simulates a ring; one GPU (`workload.tp` is 1) is a plain GEMM: use `mirrored`"
        return
    if quantum is not None and window < quantum <= machine.link.latency:
        message = f"is {format_time(quantum)}, cannot be longer than the shortest link latency"
        yield "quantum", f"{message}, {format_time(window)}"
    if window < slot:
        message = f"the shortest link latency, {format_time(window)}, is below the longest issue slot"
        yield "machine", f"{message} (`gpu.issue_slot`), {format_time(slot)}"


def _check_names(problems: Problems, tree: Node, n: int) -> None:
    """Report GPUs and links that a ring of *n* does not have."""
    skews = tree.get(SKEW)
    named = [(name, name, node) for name, node in tree.value.items()]
    if skews is not None and skews.is_mapping:
        named += [(f"{SKEW}.{name}", name, node) for name, node in skews.value.items()]
    for key, name, node in named:
        match = OVERRIDE_KEY.fullmatch(name)
        if match is not None and int(match[2]) >= n:
            what, part = ("links", "link") if match[1] == "link" else ("GPUs", "gpu")
            last = f", {part}[0] to {part}[{n - 1}]" if n > 1 else ""
            problems.add(node, f"machine.{key}", f"there is no {name}: the ring has {n} {what}{last}", at_key=True)


def _check_identical(problems: Problems, tree: Node, machine: ResolvedMachine, point: PointFile) -> None:
    """Report what mirrored mode cannot simulate with one GPU."""
    if not point.staggered:
        message = "is false: every GPU begins with chunk 0, so no GPU represents all; use `mode: explicit`"
        problems.report(tree, "staggered", message)
    fabric = machine.spec.link.topology
    if fabric in fabrics and not fabrics.get(fabric).is_symmetric:
        message = f"mirrored mode simulates one GPU for all, but in `{fabric}` GPUs have different ports"
        problems.report(tree, "machine.link.topology", f"{message}; use `mode: explicit`")
    for key, difference in differences(machine.spec):
        node, _ = node_at(machine.tree, tuple(key.split(".")))
        message = f"mirrored mode simulates one GPU for all, but {difference}; use `mode: explicit`"
        problems.add(node, f"machine.{key}", message, at_key=True)


def shortest_latency(machine: MachineSpec, n: int | None = None) -> int:
    """Return the shortest latency of the links, in picoseconds: the time in which no GPU can affect another.

    Of a ring of *n*, in which every link may be overridden; None: of a ring of any size.
    """
    own = [one.link.latency for one in machine.own_links if n is None or one.number < n]
    return min(own) if n is not None and len(own) == n else min([machine.link.latency, *own])


def longest_slot(machine: MachineSpec, n: int) -> int:
    """Return the longest issue slot of the GPUs of a ring of *n*, in picoseconds, rounded up."""
    gpus = [machine.gpu, *(own.gpu for own in machine.own_gpus if own.number < n)]
    return max(-(-gpu.issue_slot * PS_PER_S // min(gpu.compute_clock, gpu.clock_of_matrices)) for gpu in gpus)
