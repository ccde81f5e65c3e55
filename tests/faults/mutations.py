"""Seeded damage to configuration files, tile traces and overrides: what typing errors, merges, disks and malice do."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

TOKENS = (
    "0", "-1", "1e9", "1e999", "4611686018427387904", "99999999999999999999", '9' * 5000, "017", "0x10", "1:30",
    "1_000", "2024-01-02", ".nan", "-.inf", ".5", "1e-400", "true", "no", "null", "~", "''", '"\\0"', '"\\ud800"',
    '"\\x1b[2J"', "!!python/object:os.system x", "!!binary x", "!t", "&a", "*a", "&a [*a]", "<<: *a", "{<<: {a: 1}}",
    "- ", "? ", ": ", "|", ">-", "%YAML 1.1", "---", "...", "#", "\t", "[", "]", "{", "}", '[' * 60, '{a: ' * 60, ",",
    "'", '"', "16 MiB", "16 MB", "150 GB/s", "500 ns", "1.4 GHz", "7 cycles", "0 B", "-3 ns", "1e40 s", "1e-40 s",
    "0.1 ps", "1 THz", "9223372036854775807 ps", "../../../etc/passwd", "/dev/zero", 'x' * 5000, "mine.yaml",
    "e.yaml", ".yaml", "/", "{preset: t3-150}", "{preset: 1}", "{preset: {preset: t3-150}}",
    "{value: 1, origin: paper, source: x}", "{value: 1, orgin: x}", "{value: {value: 1}}", "[1, 2, 3]", "[[]]", "{}",
    "[]", "t3-tiny", "hbm2-2ch", "gemm-64x64", "mca", "round_robin", "auto", "none", "chunk", "t3", "sequential",
    "explicit", "T-NLG", "\u00b5s", "\U0001f600", "\u2028",
)  # fmt: skip
BYTES = (b"\0", b"\xff", b"\xfe\xff", b"\xc3", b"\r", b"\x1b", b"\xef\xbb\xbf", b"\x85", b"\xed\xa0\x80", b"\x7f")
NUMBERS = (0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 63, 64, 65, 127, 128, 256, 1000, 1024, 4096, 2**20, 2**31, 2**40, 2**61)
EXTREMES = (0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63), 127, 128)

Rng = random.Random


def mutated_text(text: str, other: str, rng: Rng) -> bytes:
    """Return *text* after one to four changes; *other* lends its lines and values."""
    if rng.random() < 0.2:
        text = _mutated_tree(text, other, rng)
    for _ in range(rng.choice((0, 1, 1, 2, 3)) or 1):
        text = rng.choice(TEXT_CHANGES)(text, other, rng)
    found = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.15:
        found = mutated_bytes(found, rng)
    return found


def mutated_bytes(found: bytes, rng: Rng) -> bytes:
    """Return *found* with bits flipped, bytes put in, or parts cut out, repeated or exchanged."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        if not found:
            return rng.choice(BYTES)
        at, to = sorted(rng.randrange(len(found) + 1) for _ in range(2))
        kind = rng.randrange(6)
        if kind <= 1:
            at = min(at, len(found) - 1)
            found = found[:at] + bytes([found[at] ^ (1 << rng.randrange(8))]) + found[at + 1 :]
        elif kind == 2:
            found = found[:at] + rng.choice(BYTES) + found[at:]
        elif kind == 3:
            found = found[:at] if rng.random() < 0.5 else found[:at] + found[to:]
        elif kind == 4:
            found = found[:at] + bytes([rng.randrange(256)]) * rng.choice((1, 4, 8)) + found[at + 1 :]
        else:
            found = found[:to] + found[at:]
    return found


def _lines(change: Callable[[list[str], Rng], None]) -> Callable[[str, str, Rng], str]:
    def changed(text: str, _other: str, rng: Rng) -> str:
        lines = text.splitlines(keepends=True)
        if lines:
            change(lines, rng)
        return "".join(lines)

    return changed


def _exchange(lines: list[str], rng: Rng) -> None:
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]


def _indent(lines: list[str], rng: Rng) -> None:
    i = rng.randrange(len(lines))
    lines[i] = rng.choice(("  ", " ", "\t", "    ")) + lines[i] if rng.random() < 0.7 else lines[i].lstrip()


def _replaced_token(text: str, other: str, rng: Rng) -> str:
    """One word becomes a hostile one, or a value of another file."""
    words = list(re.finditer(r"[^\s,:\[\]{}]+", text))
    if not words:
        return rng.choice(TOKENS)
    word = rng.choice(words)
    others = re.findall(r"[^\s,:\[\]{}]+", other)
    new = rng.choice(others) if others and rng.random() < 0.3 else rng.choice(TOKENS)
    return text[: word.start()] + new + text[word.end() :]


def _inserted_token(text: str, _other: str, rng: Rng) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(TOKENS) + text[at:]


def _without_character(text: str, _other: str, rng: Rng) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + text[at + 1 :]


def _spliced(text: str, other: str, rng: Rng) -> str:
    """The beginning of one file and the end of another."""
    ours, theirs = text.splitlines(keepends=True), other.splitlines(keepends=True)
    return "".join(ours[: rng.randrange(len(ours) + 1)] + theirs[rng.randrange(len(theirs) + 1) :])


TEXT_CHANGES: tuple[Callable[[str, str, Rng], str], ...] = (
    _lines(lambda lines, rng: lines.insert(rng.randrange(len(lines)), rng.choice(lines))),
    _lines(lambda lines, rng: lines.pop(rng.randrange(len(lines))) and None),
    _lines(_exchange),
    _lines(_indent),
    _replaced_token,
    _replaced_token,
    _replaced_token,
    _inserted_token,
    _without_character,
    _spliced,
)


def _containers(tree: Any) -> list[Any]:
    """Every mapping and list of a tree that is not empty."""
    if not isinstance(tree, dict | list) or not tree:
        return []
    children = tree.values() if isinstance(tree, dict) else tree
    return [tree, *(found for child in children for found in _containers(child))]


def mutate_tree(tree: Any, other: Any, rng: Rng) -> None:
    """Rename, move, remove or retype a value of *tree*, or put a part of *other* in its place."""
    places = _containers(tree)
    if not places:
        return
    place = rng.choice(places)
    key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
    kind = rng.randrange(6)
    if kind == 0 and isinstance(place, dict):
        place[str(key)[:-1] + rng.choice("xyz_")] = place.pop(key)
    elif kind == 1:
        target = rng.choice(places)
        value = copy.deepcopy(place[key])
        if isinstance(target, dict):
            target[key] = value
        else:
            target.append(value)
    elif kind == 2:
        del place[key]
    elif kind == 3:
        place[key] = rng.choice(([place[key]], {"value": place[key]}, str(place[key]), [place[key]] * 3, None, {}, 1.5))
    elif kind == 4:
        place[key] = rng.choice((*EXTREMES, True, "", "x", 1e300, 10**30, [], "16 MiB", "1 ns"))
    else:
        donors = _containers(other)
        place[key] = copy.deepcopy(rng.choice(donors)) if donors else None


_FAST_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FAST_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def _mutated_tree(text: str, other: str, rng: Rng) -> str:
    try:
        tree, donor = (yaml.load(found, Loader=_FAST_LOADER) for found in (text, other))
    except (yaml.YAMLError, ValueError):
        return text
    for _ in range(rng.choice((1, 1, 2, 3))):
        mutate_tree(tree, donor, rng)
    style = rng.choice((True, False, None))
    return str(yaml.dump(tree, Dumper=_FAST_DUMPER, sort_keys=False, default_flow_style=style, allow_unicode=True))


def override(values: Mapping[str, str], rng: Rng) -> str:
    """Return the text of a ``-s``: a key that exists, or nearly, and a hostile value."""
    key = rng.choice(list(values))
    if rng.random() < 0.2:
        key = rng.choice(
            (key[:-1], f"{key}.x", key.upper(), f"sweep.grid.{key}", "sweep.grid", "sweep", ".", "a.b.c", "", key * 40)
        )
    value = rng.choice(TOKENS)
    return rng.choice((f"{key}={value}", f"{key}={value}", f"{key}=[{value}, 1]", key, f"{key}={{a: {value}}}"))


def plausible_override(values: Mapping[str, str], rng: Rng) -> str:
    """Return the text of a ``-s`` that gives a number of the configuration another value, in its own unit."""
    key = rng.choice([key for key, value in values.items() if re.search("[0-9]", value)])
    number = rng.choice(NUMBERS) if rng.random() < 0.5 else rng.randrange(1, 300)
    return f"{key}={re.sub('[0-9.]+', str(number), values[key], count=rng.choice((0, 1)))}"


def mutated_manifest(text: str, rng: Rng) -> dict[str, Any]:
    """Return the manifest of a trace after changes to its tree."""
    tree: dict[str, Any] = json.loads(text)
    for _ in range(rng.choice((1, 1, 2))):
        mutate_tree(tree, tree, rng)
    found: dict[str, Any] = json.loads(json.dumps(tree))  # every key a text
    return found


def mutated_workgroups(workgroups: NDArray[Any], rng: Rng) -> NDArray[Any]:
    """Return the records of a trace after changes of values or of their order."""
    found = workgroups.copy()
    for _ in range(rng.choice((1, 1, 2, 5))):
        if not len(found):
            break
        column = rng.choice(found.dtype.names or ())
        i, j = rng.randrange(len(found)), rng.randrange(len(found))
        kind = rng.randrange(6)
        if kind == 0:
            found[column][i] = rng.choice(EXTREMES)
        elif kind == 1:
            found[column][i] ^= rng.choice((1, 64, 128, 2**40))
        elif kind == 2:
            found[[i, j]] = found[[j, i]]
        elif kind == 3:
            found[i] = found[j]
        elif kind == 4:
            found = np.delete(found, i) if rng.random() < 0.5 else np.insert(found, i, found[j])
        else:
            found[column] = rng.choice(EXTREMES)
    return found
