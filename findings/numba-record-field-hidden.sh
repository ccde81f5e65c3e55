#!/usr/bin/env bash
# Numba 0.63.1 with NumPy 2.3.5: a function that reads a record field has another result compiled than interpreted.
# Expected: `row.size` is the field `size` of the record in both, or an error in one of them.
# Observed: compiled code reads the field (7). Plain Python finds the attribute of NumPy's scalars first (1). No warning.
#   The same holds for fields named `data`, `flags`, `base`, ...: NumPy accepts all these names in a dtype.
# Way out: read fields as `row["size"]`, or test that no field name is an attribute of a NumPy record.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numba==0.63.1 numpy==2.3.5
"$folder/venv/bin/python" - <<'PYTHON'
import numba
import numpy as np


def size_of_first(boxes):
    return boxes[0].size


boxes = np.rec.array([(7, 1.5)], dtype=[("size", np.int64), ("weight", np.float64)])
interpreted, compiled = size_of_first(boxes), numba.njit(size_of_first)(boxes)
print(f"stored 7: interpreted {interpreted}, compiled {compiled}, by name {boxes[0]['size']}")
assert (interpreted, compiled) == (1, 7)
PYTHON
