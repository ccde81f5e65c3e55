"""A little traffic of every sort, small enough for interpreted runs: which rules does the checker say are broken?"""

from __future__ import annotations

from tests.checks.dram.traffic import KINDS, PATTERNS, TIMINGS, TracedBench, check, memory_of, requests
from tests.harness.channel_bench import Setup

UNTIL = 2500  # cycles, enough for all requests: a channel that a defect has stopped comes to its end too
# timings, whether the queue is split, pattern, kinds, requests of each stream
CASES = (
    ("refreshed", False, "few rows", "mixed", 45),
    ("unshadowed", True, "one group", "mixed", 45),
    ("unshadowed", False, "frequent hits", "reads", 30),
    ("refreshed", False, "sparse", "mixed", 25),
    ("slow updates", False, "few rows", "reads and updates", 20),
    ("always refreshing", False, "sparse", "mixed", 6),
    ("bank by bank", False, "few rows", "mixed", 30),
    ("banks always refreshing", False, "row conflicts", "mixed", 30),
)


def reported() -> str:
    """The ids of the rules that were broken, in order, separated by blanks."""
    rules: set[str] = set()
    for seed, (timings, is_split, pattern, kinds, n) in enumerate(CASES):
        bench = TracedBench(Setup(TIMINGS[timings], "round_robin", {}, is_split))
        log = bench.run_arrays(*requests(PATTERNS[pattern], KINDS[kinds], n, seed), quantum=100, until=UNTIL)
        checker = check(log, memory_of(TIMINGS[timings]), UNTIL)
        rules |= set(checker.violated)
    return " ".join(sorted(rules, key=lambda rule: int(rule[1:])))
