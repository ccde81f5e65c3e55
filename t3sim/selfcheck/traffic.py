"""DRAM traffic for the independent checker: GEMMs, and stores of a neighbour to random addresses."""

from collections.abc import Callable

import numpy as np

from t3sim.checks.dram.checker import DramChecker
from t3sim.config.experiment import GemmShape
from t3sim.config.presets import load_tiling
from t3sim.errors import ModelError
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.core import GpuCore
from t3sim.gpu.tables import records
from t3sim.gpu.units import codes
from t3sim.gpu.units.table_rows import MESSAGE
from t3sim.program.operator import Operator
from t3sim.program.parts import gemm_part
from t3sim.selfcheck.data_cases import machine_from
from t3sim.workload.tiling import make_tile_trace

MEMORIES = (  # on the machine of the study
    "{preset: t3-150}",
    "{preset: t3-150, memory: {queue: {kind: split}}}",
    "{preset: t3-150, memory: {timing: {nREFI: 1300}, queue: {entries: 16}}}",
    "{preset: t3-150, memory: hbm2-reference}",
)
POLICIES = ("round_robin", "compute_first", "mca")
SHAPES = (GemmShape(m=1024, n=1024, k=256), GemmShape(m=700, n=1100, k=520))
MESSAGES_PER_SLOT = 6  # about the bandwidth of the memory, on top of the GEMM
N_ROWS = 1 << 12  # of every bank, that stores go to


def checked_run(seed: int) -> DramChecker:
    """Run a GEMM while random stores and updates arrive; return the checker that saw every command."""
    rng = np.random.default_rng(seed)
    spec = machine_from(MEMORIES[seed % len(MEMORIES)])
    core = GpuCore(spec, arbitration_policies.get(POLICIES[seed // len(MEMORIES) % len(POLICIES)]), {})
    checker = DramChecker(spec.memory)
    core.stream_commands(checker.take)
    trace = make_tile_trace(SHAPES[seed % len(SHAPES)], load_tiling(), 1)
    core.load(gemm_part(Operator(spec, 1, trace)).programs[0])
    n = int(rng.integers(50_000, 300_000))
    gap = int(core.gpu.slot_ticks) // MESSAGES_PER_SLOT
    messages = records(MESSAGE, n)
    messages["at"] = np.cumsum(rng.integers(0, 2 * gap + 1, n))
    messages["kind"] = rng.choice([codes.INCOMING_WRITE, codes.INCOMING_UPDATE], n)
    messages["tile"] = messages["signal"] = -1
    banks = spec.memory.n_bank_groups * spec.memory.banks_per_group * spec.memory.n_channels
    messages["granule"] = rng.integers(0, banks * N_ROWS * spec.memory.row // spec.memory.access, n)
    core.gpu.expected_inbound = n
    core.receive(messages)
    while not core.advance(core.now + 1000 * core.slot_ticks):
        pass
    checker.finish(int(core.gpu.channels["now"][0]) + 1)
    return checker


def checked_commands(n_commands: int, report: Callable[[float], None]) -> tuple[int, set[str]]:
    """Check random traffic until *n_commands* have been seen; return how many, and the rules met with equality.

    *report* receives the completed share, 0 to 1.
    """
    n_seen, tight, seed = 0, set[str](), 0
    while n_seen < n_commands:
        report(n_seen / n_commands)
        checker = checked_run(seed)
        if checker.n_violations:
            raise ModelError(f"random traffic {seed}: {checker.violations[0]}")
        n_seen += checker.n_commands
        tight |= set(checker.tight)
        seed += 1
    return n_seen, tight
