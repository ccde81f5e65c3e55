"""Recorded routings: CSV or ``.npz`` files, checked against the layer that they are of.

Three forms, distinguished by their columns or arrays:

- choices, CSV: ``gpu,token,choice_0,...,choice_{k-1}`` and optionally ``weight_0,...``: one line for each token, the
  number of an expert in each choice, -1 or nothing where it was dropped;
- rows, CSV: ``gpu,0,1,...,{n-1}``: one line for each GPU, how many of its rows go to each expert;
- ``.npz``: an array ``experts`` of shape (GPUs, tokens, top_k), with ``weights`` if there are any; or an array ``rows``
  of shape (GPUs, experts).

Of rows, which token chooses which expert is made up: experts with the most rows are laid out first.
"""

import csv
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from t3sim.config.experts import ExpertsSpec
from t3sim.errors import InputDataError
from t3sim.files import read_limited
from t3sim.workload.routing import DROPPED, Routing, choices_from_rows, faults

MAX_BYTES = 256 << 20
MAX_PROBLEMS = 8
Ints = npt.NDArray[np.int64]


def read_routing(path: str | Path, layer: ExpertsSpec) -> Routing:
    """Return the routing recorded in the file at *path*, of *layer*; raises ``InputDataError`` with file and row."""
    path = Path(path)
    content = read_limited(path, MAX_BYTES, shown_as=str(path))
    if path.suffix == ".npz":
        return _from_arrays(content, str(path), layer)
    return _from_csv(content, str(path), layer)


def _from_csv(content: bytes, shown: str, layer: ExpertsSpec) -> Routing:
    try:
        lines = list(csv.reader(io.StringIO(content.decode("utf-8-sig")), strict=True))
    except UnicodeDecodeError as error:
        raise InputDataError(f"{shown}: byte 0x{content[error.start]:02x} is not UTF-8") from None
    except csv.Error as error:
        raise InputDataError(f"{shown}: not a CSV file: {error}") from None
    lines = [line for line in lines if not (line and line[0].startswith("#"))] if lines else []
    if not lines or not lines[0]:
        raise InputDataError(f"{shown}:1: no header: `gpu,token,choice_0,...` or `gpu,0,1,...` is needed")
    header = [name.strip() for name in lines[0]]
    table = [(number, line) for number, line in enumerate(lines[1:], start=2) if line]
    for number, line in table:
        if len(line) != len(header):
            raise InputDataError(f"{shown}:{number}: {len(line)} columns, the header has {len(header)}")
    if header[:2] == ["gpu", "token"]:
        return _of_choices(header, table, shown, layer)
    if header[:1] == ["gpu"]:
        return _of_rows(header, table, shown, layer)
    message = f"columns {', '.join(header[:3])}: `gpu,token,choice_0,...` or `gpu,0,1,...` is needed"
    raise InputDataError(f"{shown}:1: {message}")


def _of_choices(header: list[str], table: list[tuple[int, list[str]]], shown: str, layer: ExpertsSpec) -> Routing:
    choices = [f"choice_{j}" for j in range(layer.top_k)]
    weights = [f"weight_{j}" for j in range(layer.top_k)]
    has_weights = len(header) > 2 + layer.top_k
    expected = ["gpu", "token", *choices, *(weights if has_weights else [])]
    if header != expected:
        stranger = next((name for name in header if name not in expected), None)
        missing = next((name for name in expected if name not in header), None)
        what = f"column `{stranger}` is not known" if missing is None else f"column `{missing}` is missing"
        raise InputDataError(f"{shown}:1: {what}; top_k is {layer.top_k}")
    shape = (layer.gpus, layer.tokens_per_gpu, layer.top_k)
    experts, weighed = np.full(shape, DROPPED, np.int32), np.zeros(shape)
    line_of = np.zeros(shape[:2], np.int64)
    for number, line in table:
        gpu = _number(line[0], "gpu", layer.gpus, f"{shown}:{number}")
        token = _number(line[1], "token", layer.tokens_per_gpu, f"{shown}:{number}")
        if line_of[gpu, token]:
            raise InputDataError(f"{shown}:{number}: GPU {gpu}, token {token} is in line {line_of[gpu, token]} already")
        line_of[gpu, token] = number
        for j in range(layer.top_k):
            text = line[2 + j].strip()
            if text not in ("", str(DROPPED)):
                experts[gpu, token, j] = _number(text, choices[j], layer.n_experts, f"{shown}:{number}")
        if has_weights:
            weighed[gpu, token] = _weights(line[2 + layer.top_k :], f"{shown}:{number}")
    if (line_of == 0).any():
        gpu, token = np.argwhere(line_of == 0)[0].tolist()
        raise InputDataError(f"{shown}: GPU {gpu}, token {token} is missing: {layer.tokens_per_gpu} tokens on each GPU")
    for gpu, token, what in faults(experts, layer.n_experts):
        raise InputDataError(f"{shown}:{line_of[gpu, token]}: {what}")
    return Routing(experts, layer.n_experts, layer.ep, weighed if has_weights else None)


def _of_rows(header: list[str], table: list[tuple[int, list[str]]], shown: str, layer: ExpertsSpec) -> Routing:
    if header[1:] != [str(expert) for expert in range(layer.n_experts)]:
        raise InputDataError(
            f"{shown}:1: {len(header) - 1} experts; the columns after `gpu` are the experts 0 to {layer.n_experts - 1}"
        )
    rows = np.zeros((layer.gpus, layer.n_experts), np.int64)
    line_of: dict[int, int] = {}
    for number, line in table:
        gpu = _number(line[0], "gpu", layer.gpus, f"{shown}:{number}")
        if gpu in line_of:
            raise InputDataError(f"{shown}:{number}: GPU {gpu} is in line {line_of[gpu]} already")
        line_of[gpu] = number
        for expert, text in enumerate(line[1:]):
            rows[gpu, expert] = _number(text, f"expert {expert}", layer.tokens_per_gpu + 1, f"{shown}:{number}")
    missing = [gpu for gpu in range(layer.gpus) if gpu not in line_of]
    if missing:
        raise InputDataError(f"{shown}: GPU {missing[0]} is missing: there are {layer.gpus}")
    return _of_counts(rows, layer, lambda gpu: f"{shown}:{line_of[gpu]}")


def _from_arrays(content: bytes, shown: str, layer: ExpertsSpec) -> Routing:
    try:
        with np.load(io.BytesIO(content)) as file:
            arrays = {name: file[name] for name in file.files if name in ("experts", "weights", "rows")}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, KeyError) as error:
        raise InputDataError(f"{shown}: not a NumPy archive: {error}") from None
    for name, array in arrays.items():
        if name != "weights" and array.dtype.kind not in "iu":
            raise InputDataError(f"{shown}: `{name}` holds {array.dtype}, whole numbers are needed")
    if "experts" in arrays:
        shape = (layer.gpus, layer.tokens_per_gpu, layer.top_k)
        for name in ("experts", "weights"):
            if name in arrays and arrays[name].shape != shape:
                raise InputDataError(f"{shown}: `{name}` has the shape {arrays[name].shape}, must be {shape}")
        experts = np.clip(arrays["experts"].astype(np.int64), -2, 2**31 - 1).astype(np.int32)
        for gpu, token, what in faults(experts, layer.n_experts):
            raise InputDataError(f"{shown}: GPU {gpu}, token {token}: {what}")
        weights = arrays.get("weights")
        return Routing(experts, layer.n_experts, layer.ep, None if weights is None else weights.astype(np.float64))
    if "rows" in arrays:
        rows = arrays["rows"].astype(np.int64)
        if rows.shape != (layer.gpus, layer.n_experts):
            message = f"`rows` has the shape {rows.shape}, must be {(layer.gpus, layer.n_experts)}"
            raise InputDataError(f"{shown}: {message}")
        if (rows < 0).any():
            gpu, expert = np.argwhere(rows < 0)[0].tolist()
            raise InputDataError(f"{shown}: GPU {gpu}, expert {expert}: {rows[gpu, expert]} rows")
        return _of_counts(rows, layer, lambda gpu: f"{shown}: GPU {gpu}")
    raise InputDataError(f"{shown}: holds neither `experts` nor `rows`")


def _of_counts(rows: Ints, layer: ExpertsSpec, place: Callable[[int], str]) -> Routing:
    """Return a routing with these rows; each GPU's sum to its tokens times top_k."""
    whole = layer.tokens_per_gpu * layer.top_k
    choices = []
    for gpu in range(layer.gpus):
        found = int(rows[gpu].sum())
        if found != whole:
            words = f"{layer.tokens_per_gpu} tokens with {layer.top_k} experts each are {whole}"
            raise InputDataError(f"{place(gpu)}: sums to {found} rows, but {words}")
        try:
            choices.append(choices_from_rows(rows[gpu], layer.tokens_per_gpu, layer.top_k))
        except ValueError as error:
            raise InputDataError(f"{place(gpu)}: {error}") from None
    return Routing(np.stack(choices), layer.n_experts, layer.ep)


def _number(text: str, name: str, stop: int, at: str) -> int:
    try:
        found = int(text.strip())
    except ValueError:
        raise InputDataError(f"{at}: {name}: found `{text[:40]}`, a whole number is needed") from None
    if not 0 <= found < stop:
        what = "an expert without a GPU; they are numbered" if name.startswith("choice") else "must be"
        raise InputDataError(f"{at}: {name}: {found}: {what} 0 to {stop - 1}")
    return found


def _weights(texts: list[str], at: str) -> list[float]:
    found = []
    for text in texts:
        try:
            value = float(text) if text.strip() else 0.0
        except ValueError:
            raise InputDataError(f"{at}: weight `{text[:40]}` is not a number") from None
        if not np.isfinite(value):
            raise InputDataError(f"{at}: weight {value} is not finite")
        found.append(value)
    return found
