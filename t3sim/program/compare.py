"""Equality of programs: digests, and the first difference between programs of two ranks.

What data mean (``MEANING``) does not count unless it is asked for: no simulated GPU looks at it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from pydantic import BaseModel

from t3sim.program.operations import Operation, Program

MEANING = ("inputs", "outputs", "a_content", "makes", "first_chunk", "first_tile")


def digest(program: Program, *, meaning: bool = False) -> str:
    """Return a name of what *program* does; programs of one digest give equal simulations."""
    found = sha256()
    for path, value in leaves(program, "", meaning=meaning):
        found.update(f"{path}={described(value)}\n".encode())
        if isinstance(value, np.ndarray):
            found.update(np.ascontiguousarray(value).tobytes())
    return found.hexdigest()


def leaves(value: Any, path: str, *, meaning: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the numbers, words and arrays that *value* is made of, each with the way to it; the rank is not one."""
    if isinstance(value, BaseModel):
        yield path, value.model_dump_json()
    elif is_dataclass(value):
        yield path, type(value).__name__
        for name, of_part in counted_fields(value, path, meaning=meaning):
            yield from leaves(getattr(value, name), of_part, meaning=meaning)
    elif isinstance(value, tuple | list):
        yield path, len(value)
        for number, one in enumerate(value):
            yield from leaves(one, f"{path}[{number}]", meaning=meaning)
    else:
        yield path, value


def counted_fields(value: Any, path: str, *, meaning: bool) -> Iterator[tuple[str, str]]:
    """Yield the names of the fields of a dataclass that count, each with the way to it."""
    for one in fields(value):
        if (one.name not in MEANING or meaning) and path + one.name != "rank":
            yield one.name, f"{path}.{one.name}" if path else one.name


def described(value: Any) -> str:
    """Return a leaf in words; of an array what it is an array of."""
    return f"{value.dtype.descr} {value.shape}" if isinstance(value, np.ndarray) else repr(value)


def difference(programs: Sequence[Program], *, meaning: bool = False) -> str | None:
    """Return in which operation and field the program of a rank first differs from that of rank 0, None if nowhere."""
    for program in programs[1:]:
        found = next(differing(programs[0], program, "", meaning=meaning), None)
        if found is not None:
            return _sentence(programs[0], program, *found)
    return None


def differing(expected: Any, found: Any, path: str, *, meaning: bool) -> Iterator[tuple[str, Any, Any]]:
    """Yield the leaves in which two values differ: the way to each, and what it is in each of them."""
    if expected is found:
        return
    if is_dataclass(expected) and type(expected) is type(found):
        for name, of_part in counted_fields(expected, path, meaning=meaning):
            yield from differing(getattr(expected, name), getattr(found, name), of_part, meaning=meaning)
    elif isinstance(expected, tuple) and isinstance(found, tuple) and len(expected) == len(found):
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differing(one, other, f"{path}[{number}]", meaning=meaning)
    else:
        pairs = zip(leaves(expected, path, meaning=meaning), leaves(found, path, meaning=meaning), strict=False)
        for (where, one), (_, other) in pairs:  # lengths and kinds are leaves too
            if described(one) != described(other):
                yield where, one, other
            elif isinstance(one, np.ndarray) and one.tobytes() != other.tobytes():
                index = tuple(np.argwhere(one != other)[0].tolist())
                yield f"{where}[{', '.join(map(str, index))}]", one[index].item(), other[index].item()


def _sentence(first: Program, other: Program, path: str, expected: Any, found: Any) -> str:
    """Say that *path* is *expected* on rank 0 and *found* on another."""
    head, _, rest = path.partition(".")
    if path == "operations":
        return f"rank {other.rank} has {found} operations, and rank {first.rank} has {expected}"
    if head.startswith("operations[") and rest == "name":
        return f"rank {other.rank} runs `{found}`, and rank {first.rank} runs `{expected}`"
    if head.startswith("operations["):
        operation: Operation = first.operations[int(head[len("operations[") : -1])]
        path = f"operation `{operation.name}`, {rest or 'kind'}"
    return f"{path} is {_shown(found)} on rank {other.rank} and {_shown(expected)} on rank {first.rank}"


def _shown(value: Any) -> str:
    """Return a leaf in words; of a table its rows and columns, without the names of its fields."""
    is_table = isinstance(value, np.ndarray) and value.dtype.names is not None
    return f"a table of {' x '.join(map(str, value.shape))}" if is_table else described(value)
