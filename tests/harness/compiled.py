"""Compile the loop for the layouts that tests use, each in a process of its own.

    python -m tests.harness.compiled

Otherwise the two workers of a first run of the tests compile the same layout at the same time.
"""

from __future__ import annotations

from multiprocessing import get_context

from t3sim.config.limits import MOST_BANKS_OF_A_CHANNEL
from t3sim.gpu.assemble import compiled_advance, is_compiled
from t3sim.gpu.kernel.state import Layout

# Those of all machines but one: see tests/kernel/test_layouts.py.
LAYOUTS = (Layout(), Layout(n_dram_banks=MOST_BANKS_OF_A_CHANNEL))


def main() -> None:
    """Compile what the cache lacks."""
    processes = [
        get_context("spawn").Process(target=compiled_advance, args=(layout,))
        for layout in LAYOUTS
        if not is_compiled(layout)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
