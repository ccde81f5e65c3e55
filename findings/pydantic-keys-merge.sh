#!/usr/bin/env bash
# pydantic 2.12.5: validation can drop entries of a dictionary.
# Expected: a field of type `dict[int, str]` keeps all entries of its input or refuses it.
# Observed: text keys are converted to numbers; of entries whose keys are then equal ("1", "01", "1.0", " 1 ") only the
#   last stays, without an error. JSON input behaves in the same way, since its keys are always text.
# Way out: a validator in mode "before" that compares the number of entries, or keys in strict mode.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pydantic==2.12.5
"$folder/venv/bin/python" - <<'PYTHON'
from pydantic import BaseModel


class Lanes(BaseModel):
    names: dict[int, str]


given = '{"names": {"1": "a", "01": "b", "1.0": "c", " 1 ": "d", "2": "e"}}'
read = Lanes.model_validate_json(given).names
print(f"5 entries given, {len(read)} kept: {read}")
assert read == {1: "d", 2: "e"}
PYTHON
