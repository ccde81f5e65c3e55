"""Compile the loop for the layouts that tests use.

    python -m tests.harness.compiled

Otherwise the two workers of a first run of the tests compile the same layout at the same time.
"""

from __future__ import annotations

from t3sim.config.limits import MOST_BANKS_OF_A_CHANNEL
from t3sim.gpu.compiled import compiled_advance
from t3sim.gpu.units.state import Layout

# Those of all machines but one: see tests/kernel/test_layouts.py.
LAYOUTS = (Layout(), Layout(n_dram_banks=MOST_BANKS_OF_A_CHANNEL))


def main() -> None:
    """Compile what the cache lacks."""
    for layout in LAYOUTS:
        compiled_advance(layout)


if __name__ == "__main__":
    main()
