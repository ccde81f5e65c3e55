"""Random legal machines with random work: every check of a run, and mirrored mode against explicit mode.

A seed decides a variant of the machine ``t3-tiny`` and a workload that exercise rare corners together: queues of one
entry, odd clocks and refresh intervals, links of one issue slot, channels with and without flags, ragged chunks.
Sizes that decide the compiled layout stay within the standard one, so that all machines share one compilation.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from t3sim.checks.audit import Audit
from t3sim.config import experiment as specs
from t3sim.config.experiment import GemmShape, RunSpec, TilingSpec, WorkloadSpec
from t3sim.config.gpu import L1Spec
from t3sim.config.machine import MachineSpec
from t3sim.errors import ConfigError, T3SimError, UsageError, home_of, is_of_a_user
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.selfcheck.data_cases import TILINGS, machine_from
from t3sim.strategies import OverlapStrategy, in_order
from t3sim.system.simulate import SimulationResult, operator_of, plan_for, simulate
from t3sim.system.threads import at_most_threads
from t3sim.system.user_code import check_programs_of

SHARE_CHANGED = 0.25  # of the values below, on one machine
MOST_TRIES = 200  # to draw a legal machine: about every third is one
SHARE_OF_COLLECTIVES = 0.25  # on their own
SHARE_OF_ALL_REDUCES = 0.1  # behind GEMMs
SHARE_OF_HOSTS = 0.4  # with a switch, copy engines and whole tile rows for each GPU: else many strategies have no plan
VALUES: Mapping[str, Sequence[Any]] = {
    "gpu.n_compute_units": (1, 2, 3, 5, 8),
    "gpu.compute_clock": ("1 GHz", "1.26 GHz", "2 GHz"),
    "gpu.matrix_clock": ("1 GHz", "1.2 GHz"),
    "gpu.issue_slot": ("4 cycles", "16 cycles"),
    "gpu.kernel_launch": ("100 ns", "3 us"),
    "gpu.compute_unit.max_outstanding_lines": (1, 2, 16),
    "gpu.compute_unit.matrix_efficiency": (0.2, 0.5, 1.0),
    "gpu.compute_unit.l2_bytes_per_cycle": (32, 128),
    "gpu.compute_unit.l2_store_bytes_per_cycle": (16, 128),
    "gpu.compute_unit.workgroup_launch": ("1 ns", "2 us"),
    "gpu.l2.capacity": ("16 KiB", "32 KiB", "128 KiB"),
    "gpu.l2.n_banks": (8,),
    "gpu.l2.associativity": (2, 8),
    "gpu.l2.mshrs_per_bank": (1, 2),
    "gpu.l2.bank_queue_entries": (1, 2, 4),
    "gpu.l2.hit_latency": ("16 cycles", "40 cycles"),
    "gpu.l2.miss_latency": ("1 cycle", "400 cycles"),
    "gpu.l2.at_kernel_end": ("keep",),
    "gpu.l2.n_partitions": (2,),
    "gpu.l2.crossing_latency": ("0 cycles", "7 cycles"),
    "gpu.tracker.n_sets": (1, 2, 4),
    "gpu.tracker.entries_per_set": (9, 16),
    "gpu.dma.wavefront_tiles_per_block": (2, 5, 8),
    "gpu.dma.read_ahead": ("128 B", "1 KiB"),
    "gpu.dma.bytes_per_cycle": (3, 16),
    "gpu.dma.command_cost": ("10 ns", "1 us"),
    "gpu.collective_kernel.max_outstanding_lines": (2, 3, 8),
    "gpu.collective_kernel.kind": ("channels",),
    "gpu.collective_kernel.channel_chunk": ("256 B", "1 KiB", "16 KiB"),
    "gpu.collective_kernel.slices": (1, 3),
    "gpu.collective_kernel.least_slice": ("512 B",),
    "gpu.collective_kernel.launch": ("100 ns", "2 us"),
    "gpu.collective_kernel.slice_overhead": ("30 ns", "1 us"),
    "memory.preset": ("hbm2-1tb-32b",),
    "memory.clock": ("500 MHz", "900 MHz"),
    "memory.n_channels": (1, 2, 4),
    "memory.channel_interleave": ("128 B", "512 B"),
    "memory.row": ("1 KiB",),
    "memory.banks_per_group": (1, 2),
    "memory.stream_queue_entries": (8, 16, 33),
    "memory.queue": (
        {"entries": 1, "write_high_watermark": 1, "write_low_watermark": 0},
        {"entries": 4, "write_high_watermark": 3, "write_low_watermark": 1},
        {"entries": 32, "write_high_watermark": 24, "write_low_watermark": 8},
        {"kind": "split", "entries": 1, "write_high_watermark": 1, "write_low_watermark": 0},
        {"kind": "split", "entries": 5, "write_high_watermark": 3, "write_low_watermark": 1},
        {"kind": "split", "entries": 64, "write_high_watermark": 48, "write_low_watermark": 16},
        {
            "kind": "split",
            "entries": 4,
            "write_entries": 40,
            "write_high_watermark": 30,
            "write_low_watermark": 5,
            "write_age": "50 ns",
        },
        {
            "kind": "split",
            "entries": 4,
            "write_entries": 1,
            "write_high_watermark": 1,
            "write_low_watermark": 0,
            "write_age": "2 us",
        },
        {
            "kind": "split",
            "entries": 8,
            "write_entries": 24,
            "write_high_watermark": 16,
            "write_low_watermark": 0,
            "write_age": "300 ns",
            "read_age": "300 ns",
            "turnaround_to_writes": "125 ns",
        },
    ),
    "memory.timing.nREFI": (0, 500, 1000, 1301),
    "memory.timing.nRFC": (0, 100),
    "memory.timing.nFAW": (40, 100),
    "memory.timing.nRRDL": (6, 11),
    "memory.timing.nCCDL": (3, 8),
    "memory.timing.nCCDWS": (4,),
    "memory.timing.nCCDWL": (5, 16),
    "memory.timing.nCL": (1, 20),
    "memory.timing.nRTW": (30, 44),
    "memory.timing.nWR": (1, 40),
    "memory.timing.nWTRL": (3, 20),
    "memory.timing.nRTP": (1, 12),
    "memory.timing.nRC": (60, 120),
    "link.bandwidth": ("4 GB/s", "40 GB/s", "150 GB/s"),
    "link.egress_buffer": ("128 B", "256 B", "1 KiB"),
    "link.topology": ("switch",),
}
L1_LINES = (1, 2, 16)
RETENTIONS = (256, 1 << 13, 1 << 20)  # bytes
EXPECTED = {"start": "1 us", "step": "1 us", "bandwidth": "1 GB/s"}  # of a protocol: taken before the plain one
SLOW = {"start": "1 ms", "step": "1 ms", "bandwidth": "1 GB/s"}
FLAGGED = {"launch": "0 ns", "slice_overhead": "20 ns", "chunk": "4 KiB", "slices": 3, "least_slice": "256 B"}
COPY_ENGINES = (
    {"number": 1, "startup": "10 ns", "bandwidth": "1 GB/s", "max_outstanding_lines": 1},
    {"number": 2, "startup": "1 us", "bandwidth": "100 GB/s", "max_outstanding_lines": 64},
    {"number": 1, "startup": "0 ns", "bandwidth": "30 GB/s", "max_outstanding_lines": 8, "handover": "300 ns"},
)
PROTOCOLS = (
    {"expected": SLOW, "low_latency": {**FLAGGED, "data_per_line": "64 B", "expected": EXPECTED}},
    {"expected": SLOW, "low_latency_128": {**FLAGGED, "data_per_line": "120 B", "expected": EXPECTED}},
)
TILES = ((64, 64), (32, 64), (64, 128), (128, 64), (16, 64), (128, 128))
PARAMETERS: Mapping[str, Sequence[Any]] = {
    "threshold": ("auto", "none", 1, 5),
    "starvation_limit": (1, 50, 1000),
    "lead": (0, 25, 100),
}
WAVEFRONT_LINES = (1, 2)  # no more than any of these machines may have in flight
STORE_HEADERS = (1, 32, 200)  # bytes
RINGS = (2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 7, 8)
# The shortest is one issue slot.  Every GPU takes a turn in each window of that length: short ones on small rings only.
LATENCIES = {2: ("10 ns", "50 ns", "1 us"), 3: ("50 ns", "100 ns"), 4: ("100 ns", "1 us")}
OTHER_LATENCIES = ("200 ns", "1 us")
MOST_WORKGROUPS = 9
MOST_K = 140


def random_run(seed: int) -> RunSpec:
    """Return the machine and the work of *seed*, in mirrored mode; what is illegal is drawn again."""
    for attempt in range(MOST_TRIES):
        rng = np.random.default_rng([seed, attempt])
        try:
            return _drawn(rng, f"machine-{seed}")
        except (ConfigError, UsageError):
            continue
    raise AssertionError(f"no legal machine in {MOST_TRIES} tries of seed {seed}")


def _drawn(rng: np.random.Generator, name: str) -> RunSpec:
    """Return one draw; raises ``ConfigError`` if its machine is not legal."""
    tp = int(rng.choice(RINGS))
    chosen = {path: _one(rng, choices) for path, choices in VALUES.items() if rng.random() < SHARE_CHANGED}
    is_host = rng.random() < SHARE_OF_HOSTS
    if is_host:
        chosen |= {"gpu.copy_engines": _one(rng, COPY_ENGINES), "link.topology": "switch"}
    if rng.random() < SHARE_CHANGED:
        chosen["link.latency"] = _one(rng, LATENCIES.get(tp, OTHER_LATENCIES))
    n_units = chosen.get("gpu.n_compute_units", 4)
    kernel = "gpu.collective_kernel"
    if f"{kernel}.kind" in chosen:
        chosen[f"{kernel}.channels"] = int(rng.integers(1, min(n_units, 4) + 1))
        if rng.random() < SHARE_CHANGED:
            protocol = _one(rng, PROTOCOLS)
            chosen |= {f"{kernel}.{key}": value for key, value in protocol.items()}
            chosen["memory.channel_interleave"] = "256 B"
    if "link.topology" in chosen:
        chosen["link.ingress_buffer"] = _one(rng, ("256 B", "2 KiB", "64 KiB"))
    if "memory.preset" in chosen:
        chosen = {"memory.n_channels": 2, "memory.stream_queue_entries": 64} | chosen
    machine = machine_of(chosen)
    workload = _collective(rng, tp) if rng.random() < SHARE_OF_COLLECTIVES else _gemm(rng, tp, is_even=is_host)
    quantum = machine.link.latency // int(rng.integers(1, 4)) if rng.random() < SHARE_CHANGED else None
    slot = -(-machine.gpu.issue_slot * 10**12 // min(machine.gpu.compute_clock, machine.gpu.clock_of_matrices))
    run = _with_strategy(rng, RunSpec(experiment=name, machine=machine, workload=workload, strategy="sequential"))
    if rng.random() < SHARE_CHANGED:
        kernel_spec = machine.gpu.collective_kernel.model_copy(update={"wavefront_lines": _one(rng, WAVEFRONT_LINES)})
        gpu = machine.gpu.model_copy(update={"collective_kernel": kernel_spec})
        run = run.model_copy(update={"machine": machine.model_copy(update={"gpu": gpu})})
    if rng.random() < SHARE_CHANGED:
        run = _with_l1(rng, run)
    if rng.random() < SHARE_CHANGED:
        run = _with_slow_stores_and_sums(rng, run)
    if rng.random() < SHARE_CHANGED:
        run = _with_banks_refreshed_in_turn(rng, run)
    if rng.random() < SHARE_CHANGED:
        run = _with_retention(rng, run)
    return run if quantum is None else run.model_copy(update={"quantum": max(quantum, slot)})


def _with_banks_refreshed_in_turn(rng: np.random.Generator, run: RunSpec) -> RunSpec:
    """Return *run* with a memory that refreshes one bank after the other, hardly fast enough or at leisure."""
    memory = run.machine.memory
    timing, n_banks = memory.timing, memory.n_bank_groups * memory.banks_per_group
    delay, length = _one(rng, (1, 7)), _one(rng, (120, 301))
    least = max(n_banks * (timing.nRP + delay), length + timing.nRC + max(timing.nRCDRD, timing.nRCDWR)) + 1
    timing = timing.model_copy(update={"nREFI": least * _one(rng, (1, 3)), "nRFCpb": length, "nRREFD": delay})
    changed = memory.model_copy(update={"timing": timing})
    return run.model_copy(update={"machine": run.machine.model_copy(update={"memory": changed})})


def _with_slow_stores_and_sums(rng: np.random.Generator, run: RunSpec) -> RunSpec:
    """Return *run* with a header for stores to other GPUs, SIMD units, and sums that wait as often as they can."""
    gpu = run.machine.gpu
    units = {"store_header": _one(rng, STORE_HEADERS), "n_simds": _one(rng, (1, 2, 4))}
    units["wide_load_latency"] = _one(rng, (0, 36))
    unit = gpu.compute_unit.model_copy(update=units)
    rounds = gpu.collective_kernel.wavefront_lines or 1
    kernel_spec = gpu.collective_kernel.model_copy(update={"sum_rounds": rounds})
    gpu = gpu.model_copy(update={"compute_unit": unit, "collective_kernel": kernel_spec})
    return run.model_copy(update={"machine": run.machine.model_copy(update={"gpu": gpu})})


def _with_retention(rng: np.random.Generator, run: RunSpec) -> RunSpec:
    """Return *run* on GPUs whose L2 keeps for a while what was stored past its tags."""
    gpu = run.machine.gpu
    gpu = gpu.model_copy(update={"l2": gpu.l2.model_copy(update={"retention": _one(rng, RETENTIONS)})})
    return run.model_copy(update={"machine": run.machine.model_copy(update={"gpu": gpu})})


def _with_l1(rng: np.random.Generator, run: RunSpec) -> RunSpec:
    """Return *run* on compute units whose L1 holds few loads next to the LDS, more next to half of it."""
    gpu = run.machine.gpu
    unit, n_lines = gpu.compute_unit, _one(rng, L1_LINES)
    l1 = L1Spec.model_construct(with_lds=unit.lds + n_lines * gpu.l2.line, lds_sizes=(unit.lds // 2, unit.lds))
    gpu = gpu.model_copy(update={"compute_unit": unit.model_copy(update={"l1": l1})})
    return run.model_copy(update={"machine": run.machine.model_copy(update={"gpu": gpu})})


def _with_strategy(rng: np.random.Generator, run: RunSpec) -> RunSpec:
    """Return *run* with the first strategy that has a plan for it, in a random order; ``UsageError`` if none has.

    On machines with copy engines designs of today come first: most have a plan for no other, all else has one for all.
    """
    n_units = run.machine.gpu.n_compute_units
    possible = [one for one in strategies(run.workload.operator)
                if run.workload.collective is None or one.runs_collectives]  # fmt: skip
    order = [possible[number] for number in rng.permutation(len(possible))]
    order.sort(key=lambda one: one.operators != ("gemm-ar",))  # it is the only one of its kind
    if run.machine.gpu.copy_engines is not None:
        order.sort(key=lambda one: bool(one.needs) or one.kind != "design")
    for strategy in order:
        if any(not one.words for one in strategy.parameters.values()) and n_units < 2:
            continue  # there are too few compute units to be shared
        params = {
            name: _one(rng, tuple(one.words) or range(one.minimum, min(n_units, one.maximum + 1)))
            for name, one in strategy.parameters.items()
        }
        arbitration = _arbitration(rng, strategy, run.machine)
        chosen = run.model_copy(
            update={"strategy": strategy.name, "strategy_params": params, "arbitration": arbitration}
        )
        try:
            check_programs_of(plan_for(chosen, operator_of(chosen)), run.machine)
        except UsageError:
            continue
        return chosen
    raise UsageError("no strategy has a plan for this")


def strategies(operator: specs.OperatorKind = "gemm-rs") -> list[OverlapStrategy]:
    """Return the strategies of t3sim for *operator*, without those of plugins and estimates from the same phases."""
    own = [one for one in in_order() if one.kind != "estimate" and not is_of_a_user(home_of(one.plan)[0])]
    return [one for one in own if operator in one.operators]


def machine_of(values: Mapping[str, Any]) -> MachineSpec:
    """Return ``t3-tiny`` with *values* by dotted path."""
    tree: dict[str, Any] = {"preset": "t3-tiny"}
    for path, value in values.items():
        *sections, key = path.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return machine_from(json.dumps(tree, allow_nan=False))


def _one(rng: np.random.Generator, choices: Sequence[Any]) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _gemm(rng: np.random.Generator, tp: int, *, is_even: bool) -> WorkloadSpec:
    """Return a GEMM of few workgroups, at least one for each of *tp* GPUs; ragged most of the time if not *is_even*."""
    rows, columns = _one(rng, TILES)
    wavefront_rows = 16 if rows == 16 or (rows == 128 and columns == 64 and rng.random() < 0.5) else 32
    tiling = TilingSpec(
        workgroup_tile=(rows, columns),
        wavefront_tile=(wavefront_rows, 64),
        k_slice=64,
        prefetch_depth=int(rng.integers(1, 4)),
        persistent=bool(rng.random() < SHARE_CHANGED),
        group_rows=int(rng.spawn(1)[0].integers(1, 4)),
        own_tiles=_one(rng.spawn(1)[0], (1, 2, "all")),
        cluster=_one(rng.spawn(1)[0], (1, 2)),
        whole_slices=_one(rng.spawn(1)[0], (False, True)),
        loads_ahead=_one(rng.spawn(1)[0], (False, True)),
        epilogue=_one(rng.spawn(1)[0], ("0 cycles", "0 cycles", "300 cycles")),
    )
    n_across = int(rng.integers(1, 4))
    n_down = int(rng.integers(-(-tp // n_across), max(MOST_WORKGROUPS // n_across, -(-tp // n_across)) + 1))
    m = n_down * rows - int(rng.integers(0, rows)) * int(rng.random() < 0.7)
    if is_even:
        m, n = tp * rows, n_across * columns
    n = n_across * columns - int(rng.integers(0, columns)) * int(rng.random() < 0.7)
    drawn = rng.random()
    operator = "ag-gemm" if drawn < SHARE_CHANGED else "gemm-rs" if drawn < 1 - SHARE_OF_ALL_REDUCES else "gemm-ar"
    shape = GemmShape(m=max(m, tp), n=n, k=int(rng.integers(1, MOST_K)))
    return WorkloadSpec(gemm=shape, tp=tp, operator=operator, tiling=tiling)


def _collective(rng: np.random.Generator, gpus: int) -> WorkloadSpec:
    """Return a collective on its own, of a few bytes to 32 KiB."""
    op = _one(rng, ("reduce-scatter", "all-gather", "all-reduce"))
    size = int(rng.integers(gpus, 1 << int(rng.integers(6, 15)))) * 2
    collective = specs.CollectiveSpec.model_validate({"op": op, "size": f"{size} B", "gpus": gpus})
    return WorkloadSpec(collective=collective, tiling=TILINGS[0])


def _arbitration(
    rng: np.random.Generator, strategy: OverlapStrategy, machine: MachineSpec
) -> specs.ArbitrationSpec | None:
    policies = [
        name for name in arbitration_policies
        if strategy.takes(name) and not is_of_a_user(home_of(arbitration_policies.get(name).pick_stream)[0])
    ]  # fmt: skip
    if not policies:
        return None
    policy = _one(rng, policies)
    params = {name: _one(rng, PARAMETERS[name]) for name in arbitration_policies.get(policy).parameters}
    if params.get("threshold") == 5:
        params["threshold"] = min(5, machine.memory.queue.entries)
    return specs.ArbitrationSpec(policy=policy, params=params)


@dataclass
class Outcome:
    """What one machine showed: findings, and how much was checked."""

    n_commands: int = 0
    n_values: int = 0
    findings: list[str] = field(default_factory=list)


def outcome_of(run: RunSpec) -> Outcome:
    """Run *run* in its modes with every check; say what is wrong and where the modes differ.

    With real values, unless its L2 keeps what was stored: those are carried through the memories.
    """
    audit = Audit(has_checks=True, has_data=run.machine.gpu.l2.retention is None)
    outcome = Outcome()
    results: list[SimulationResult] = []
    modes = modes_of(run)
    for mode in modes:
        try:
            with at_most_threads(1):  # these rings are too small to gain by more
                results.append(simulate(run.model_copy(update={"mode": mode}), audit=audit))
        except UsageError:
            continue  # in both modes: the work does not fit the machine
        except T3SimError as error:
            outcome.findings.append(f"{run.experiment}, {mode}: {error}")
        except Exception as error:  # noqa: BLE001 - whatever else comes out is the finding
            outcome.findings.append(f"{run.experiment}, {mode}: {type(error).__name__}: {error}")
    if 0 < len(results) < len(modes) and not outcome.findings:
        outcome.findings.append(f"{run.experiment}: refused in one mode only")
    if len(results) == 2:
        outcome.findings += [f"{run.experiment}: {what}" for what in differences(*results)]
    outcome.n_commands, outcome.n_values = audit.n_commands, audit.n_values
    return outcome


def modes_of(run: RunSpec) -> tuple[str, ...]:
    """Return the modes that a run may have: one GPU represents all only where their programs are the same."""
    try:
        plan = plan_for(run, operator_of(run))
    except UsageError:
        return ("mirrored", "explicit")  # both have to refuse it
    is_alike = all(part.difference is None for part in plan.parts())
    return ("mirrored", "explicit") if is_alike else ("explicit",)


def differences(one: SimulationResult, ring: SimulationResult) -> list[str]:
    """Return in what the explicit run *ring* differs from the mirrored run *one*: times and all counters."""
    found = [] if one.total == ring.total else [f"{one.total} ticks mirrored, {ring.total} explicit"]
    for due, seen in zip(one.phases, ring.phases, strict=True):
        if due.ticks != seen.ticks:
            found.append(f"{due.name}: {due.ticks} ticks mirrored, {seen.ticks} explicit")
        for d, gpu in enumerate(seen.gpus):
            names = sorted({*due.counters, *gpu.counters})
            wrong = [name for name in names if due.counters.get(name) != gpu.counters.get(name)]
            if wrong:
                found.append(f"{due.name}, gpu[{d}]: other {', '.join(wrong)} in explicit mode")
    return found
