#!/usr/bin/env bash
# pyarrow 22.0.0: its CSV reader turns identifiers that look like hexadecimal numbers into integers.
# Expected: a column of texts such as `0x0a1f` stays text, as in pandas' own reader, or at least can be written back.
# Observed: the column becomes int64. Leading zeros and the notation are lost; one longer value turns the whole column
#   back into text, so the type of a column depends on its rows. `pandas.read_csv(engine="pyarrow")` does the same.
# Way out: `ConvertOptions(column_types={"digest": pyarrow.string()})`, or `dtype=str` in pandas.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==22.0.0 pandas==2.3.3 numpy==2.3.5
"$folder/venv/bin/python" - <<'PYTHON'
import io

import pandas as pd
from pyarrow import csv

short = "digest,n\n0x0a1f,1\n0x00b2,2\n"
long = short + "0x0123456789abcdef0,3\n"
columns = {name: csv.read_csv(io.BytesIO(text.encode()))["digest"] for name, text in (("short", short), ("long", long))}
default = pd.read_csv(io.StringIO(short))["digest"].tolist()
engine = pd.read_csv(io.StringIO(short), engine="pyarrow")["digest"].tolist()
print(f"pyarrow: {columns['short'].type} {columns['short'].to_pylist()}; with a longer value: {columns['long'].type}")
print(f"pandas: {default}; with engine='pyarrow': {engine}")
assert columns["short"].to_pylist() == [2591, 178] == engine
assert str(columns["long"].type) == "string" and default == ["0x0a1f", "0x00b2"]
PYTHON
