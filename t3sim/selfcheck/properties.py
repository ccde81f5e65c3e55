"""Properties that ``t3sim selfcheck`` tests, each with the evidence found on this machine.

A property is a function of a ``Depth``: it returns what it checked, in words, and raises when it
finds something wrong.  The last one seeds a defect, so that a self-check that sees nothing is seen.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from t3sim.checks.audit import Audit
from t3sim.checks.dram.rules import RULES
from t3sim.checks.invariants import broken, claims
from t3sim.errors import ModelError, T3SimError
from t3sim.gpu.units import _kept, codes
from t3sim.selfcheck import traffic
from t3sim.selfcheck.data_cases import DataCase, loaded, random_case, run_case
from t3sim.selfcheck.known import known_runs
from t3sim.selfcheck.machines import Outcome, outcome_of, random_run
from t3sim.selfcheck.preset_cases import digests_of, machine_presets, run_and_digest
from t3sim.system.machine import MirroredMachine

KNOWN_RESULTS = Path(__file__).with_name("known_results.json")
WORKERS = (1, 2, 4)
QUICK_MACHINES = (1, 3, 5, 6, 9, 10, 17, 19)  # seeds: rings and switches, all within two seconds each
BLOCK = 20  # cases between two reports of progress
T = TypeVar("T")


class CheckFailed(T3SimError):  # noqa: N818 - what happened, not an error of the user
    """A property does not hold on this machine."""

    exit_code = 4


@dataclass(frozen=True)
class Depth:
    """How much each property looks at."""

    audited_runs: int = 20
    dram_commands: int = 1_000_000
    data_cases: int = 24
    machines: Sequence[int] = QUICK_MACHINES  # their seeds
    same_results: int = 12
    interpreted: Sequence[str] = ("h200", "t3-150", "t3-tiny")  # presets
    n_processes: int = 1
    report: Callable[[float], None] = lambda _: None  # receives the completed share of a property


DEEP = Depth(
    audited_runs=2_000,
    dram_commands=200_000_000,
    data_cases=50_000,
    machines=range(5_000),
    same_results=100,
    interpreted=machine_presets(),
)


def mirrored(case: DataCase) -> MirroredMachine:
    """Return a mirrored machine with *case* loaded."""
    machine = loaded(case)
    assert isinstance(machine, MirroredMachine)
    return machine


def conservation(depth: Depth) -> str:
    """Is nothing lost, made twice or counted wrongly?  Every claim and DRAM command, during random runs."""
    audit = Audit(has_checks=True)
    n_claims = 0
    for seed in range(depth.audited_runs):
        depth.report(seed / depth.audited_runs)
        case = replace(random_case(seed), is_mirrored=True)
        machine = mirrored(case)
        followed = audit.follow(machine.devices)
        machine.run(*followed.reports([lambda _: None]))
        followed.finish()
        n_claims += sum(1 for _ in claims(machine.core))
    return (
        f"{n_claims:,} claims at the end of {audit.n_phases:,} random runs, {audit.n_looks:,} checks during the runs,"
        f" {audit.n_commands:,} DRAM commands"
    )


def dram_rules(depth: Depth) -> str:
    """Does every DRAM command keep the timings?  Random traffic, all policies and queue kinds, several memories."""
    n_commands, tight = traffic.checked_commands(depth.dram_commands, depth.report)
    n_rules = sum(not rule.absent for rule in RULES)  # of memories that can be configured
    return f"{n_commands:,} commands of random traffic keep {n_rules} rules, {len(tight)} met to the cycle"


def data(depth: Depth) -> str:
    """Does the machine compute what NumPy computes?  Random GEMMs, fused and plain, and collectives carry numbers."""
    n_values, n_accesses = map(sum, zip(*for_each_seed(depth, values_of, range(depth.data_cases)), strict=True))
    return f"{n_values:,} values of {depth.data_cases:,} random runs equal NumPy's ({n_accesses:,} accesses)"


def for_each_seed(depth: Depth, run: Callable[[int], T], seeds: Sequence[int]) -> Iterator[T]:
    """Yield what *run* returns for one seed after another, in as many processes as are wanted."""
    with ExitStack() as stack:
        results: Iterator[T] = map(run, seeds)
        if depth.n_processes > 1:
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the processes are the parallelism
            pool = stack.enter_context(ProcessPoolExecutor(depth.n_processes, mp_context=get_context("spawn")))
            results = pool.map(run, seeds, chunksize=BLOCK)
        for number, found in enumerate(results, 1):
            if number % BLOCK == 0:
                depth.report(number / len(seeds))
            yield found


def values_of(seed: int) -> tuple[int, int]:
    """Run the case of *seed*; return values compared and accesses carried."""
    case = random_case(seed)
    values = run_case(case)
    if values.problems:
        raise CheckFailed(f"{case}: {values.problems[0]}")
    return values.n_values, values.n_events


def machines(depth: Depth) -> str:
    """Do random machines keep every rule, with real values, and do mirrored and explicit mode agree?"""
    seen = list(for_each_seed(depth, machine_outcome, depth.machines))
    findings = [line for one in seen for line in one.findings]
    if findings:
        raise CheckFailed("\n".join([f"{len(findings)} findings on random machines", *findings]))
    return (
        f"{len(seen):,} random machines, the same in both modes: {sum(one.n_commands for one in seen):,} DRAM"
        f" commands and {sum(one.n_values for one in seen):,} values are right"
    )


def machine_outcome(seed: int) -> Outcome:
    """Run the random machine of *seed*."""
    return outcome_of(random_run(seed))


def trace_of_commands(case: DataCase) -> str:
    """Return the digest of *case*, see ``run_and_digest``."""
    return run_and_digest(loaded(case))


def determinism(depth: Depth) -> str:
    """Do equal runs issue the same DRAM commands at the same cycles: again, in threads?"""
    cases = [random_case(seed) for seed in range(depth.same_results)]
    first = list(map(trace_of_commands, cases))
    if list(map(trace_of_commands, reversed(cases))) != first[::-1]:
        raise CheckFailed("a second run in another order issued other DRAM commands")
    for n_workers in WORKERS:
        with ThreadPoolExecutor(n_workers) as pool:
            if list(pool.map(trace_of_commands, cases)) != first:
                raise CheckFailed(f"{n_workers} threads issued other DRAM commands than one after another")
    threads = ", ".join(map(str, WORKERS))
    return f"{len(cases)} runs repeat command by command: reversed, in {threads} threads"


def interpreted(depth: Depth) -> str:
    """Does the kernel as plain Python, where no integer may overflow, issue the commands of the compiled one?"""
    if _kept.IS_INTERPRETED:
        return "nothing to compare: T3SIM_INTERPRETED=1 is set"
    names = list(depth.interpreted)
    for name, found in zip(names, interpreted_digests(names), strict=True):
        if found != digests_of(name):
            raise CheckFailed(
                f"a small {name}: the interpreted kernel issued other DRAM commands than the compiled one"
            )
    return f"small machines of {len(names)} presets have the same results without a compiler"


def interpreted_digests(presets: Sequence[str]) -> list[list[str]]:
    """Return ``digests_of`` each of *presets* as plain Python computes it."""
    program = (
        "import json\nfrom t3sim.selfcheck.preset_cases import digests_of\n"
        f"print(json.dumps([digests_of(name) for name in {list(presets)}]))"
    )
    return list(json.loads(in_plain_python(program)))


def in_plain_python(program: str) -> str:
    """Return what *program* prints in a process where the kernel is interpreted and an integer overflow is an error."""
    environment = {**os.environ, "T3SIM_INTERPRETED": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-W", "error::RuntimeWarning", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CheckFailed(f"the interpreted kernel failed: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def known_results(depth: Depth) -> str:  # noqa: ARG001 - the list is what it is
    """Does this machine get the results that every machine gets, those of the file that is shipped?"""
    known = json.loads(KNOWN_RESULTS.read_text(encoding="utf-8"))
    for name, run in known_runs():
        if known.get(name) != (digest := run()):
            raise CheckFailed(f"{name}: {digest}, in the release {known.get(name)}")
    return f"{len(known)} runs have the results of the release"


def hangs(depth: Depth) -> str:  # noqa: ARG001 - two are enough to see that they are found
    """A lost update and a trigger that never comes: is each found, at once, and its part named?"""
    for what, field in (
        ("a tile that waits for one update too many", "tiles"),
        ("a block that waits for one tile too many", "commands"),
    ):
        machine = mirrored(DataCase("fused round_robin", 3, *SMALL_FUSED, machine=0, is_mirrored=True, seed=0))
        table = getattr(machine.core.tables, field)
        table["updates_expected" if field == "tiles" else "tiles_missing"][-1 if field == "tiles" else 0] += 1
        try:
            machine.run()
        except ModelError as error:
            if not str(error).startswith("deadlock") or "gpu[0].tracker" not in "\n".join(str(error).splitlines()[:5]):
                raise CheckFailed(f"{what} was reported as: {str(error).splitlines()[0]}") from None
        else:
            raise CheckFailed(f"{what} was not noticed")
    return "two seeded deadlocks are found at once and name the tracker"


def canary(depth: Depth) -> str:  # noqa: ARG001 - one defect
    """A request that vanishes from a queue: would the checks above notice?"""
    machine = mirrored(DataCase("gemm", 1, *SMALL_FUSED, machine=0, is_mirrored=True, seed=0))
    core = machine.core
    while not (core.gpu.channels["queue_tail"] > core.gpu.channels["queue_head"]).any():
        core.advance(core.now + core.slot_ticks)
    channel = int((core.gpu.channels["queue_tail"][:, codes.COMPUTE] > 0).argmax())
    core.gpu.channels["queue_head"][channel, codes.COMPUTE] += 1
    if not any(line.startswith("C1 broken") for line in broken(core)):
        raise CheckFailed("a lost request was not noticed: the other lines mean nothing")
    return "a request taken out of a queue is noticed"


SMALL_FUSED = (random_case(1).shape, random_case(1).tiling)

PROPERTIES: Mapping[str, Callable[[Depth], str]] = {
    "conservation": conservation,
    "dram": dram_rules,
    "data": data,
    "machines": machines,
    "determinism": determinism,
    "interpreted": interpreted,
    "known results": known_results,
    "hangs": hangs,
    "canary": canary,
}
