#!/usr/bin/env bash
# pandas 2.3.3: `read_csv` does not return the floats that `to_csv` wrote.
# Expected: `to_csv` writes the shortest text that identifies a float, so reading it back gives the same value; if not,
#   `float_precision="high"` is at least as precise as `"legacy"`.
# Observed: with the default, which is `high`, about 30 % of values of many magnitudes change, by up to 1e-12 of their
#   size. `legacy` changes as many, but by at most the last two bits (4e-16). `high` ignores digits after the
#   seventeenth and counts the zeros after the decimal point among them, so small numbers lose the most.
# Way out: `float_precision="round_trip"`.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pandas==2.3.3 numpy==2.3.5
"$folder/venv/bin/python" - <<'PYTHON'
import io

import numpy as np
import pandas as pd

rng = np.random.default_rng(1)
values = rng.random(100_000) * 10.0 ** rng.integers(-12, 12, 100_000)
text = pd.DataFrame({"x": values}).to_csv(index=False)
changed, largest = {}, {}
for precision in (None, "high", "legacy", "round_trip"):
    read = pd.read_csv(io.StringIO(text), float_precision=precision)["x"]
    changed[precision] = float((read != values).mean())
    largest[precision] = float(np.abs(read / values - 1).max())
    print(f"{precision!s:10}: {changed[precision]:.1%} of the values differ, by up to {largest[precision]:.0e}")
assert changed[None] == changed["high"] > 0.2 and changed["round_trip"] == 0
assert largest["high"] > 100 * largest["legacy"] > 0
PYTHON
