"""Compare all stored results with those of the simulator as it is, or store these.

``python -m tests.golden`` prints the first field of each case that moved and ends with exit code 1 if there is one;
``python -m tests.golden --refresh WHY`` stores what the simulator says now, and lists what moved in ``moved.csv``.
"""

from __future__ import annotations

import argparse
import sys

from tests.golden.cases import CASES
from tests.golden.record import result_of
from tests.golden.store import differences, refresh, stored


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--refresh", metavar="WHY", help="store the results of now; WHY says what moved them")
    parser.add_argument("--all", action="store_true", help="print every field that differs, not the first of a case")
    parser.add_argument("words", nargs="*", help="compare the cases whose name has all of these words")
    options = parser.parse_args()
    names = [name for name in CASES if all(word in name for word in options.words)]
    if options.refresh:
        if options.words:
            parser.error("--refresh takes all cases")
        moved = refresh({name: result_of(CASES[name]) for name in names}, options.refresh)
        print(*moved, f"{len(moved)} of {len(names)} cases moved", sep="\n")
        return 0
    before, n_moved = stored(), 0
    for name in names:
        found = list(differences(name, before.get(name), result_of(CASES[name])))
        n_moved += bool(found)
        for one in found if options.all else found[:1]:
            print(one, flush=True)
    print(f"{n_moved} of {len(names)} cases moved")
    return int(n_moved > 0)


if __name__ == "__main__":
    sys.exit(main())
