"""Strict YAML reader that records the position of every key and value.

PyYAML reads YAML 1.1 and lets surprises through: ``no`` becomes false, ``017`` becomes 15, ``1e9`` stays a string, the
last of two equal keys wins, a short file of aliases expands without bound.  This loader works on PyYAML's events and
reads the core schema of YAML 1.2 with decimal numbers only.  Whatever YAML 1.1 would have read differently, and a
person might mean differently, is refused with both readings.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from t3sim.errors import ConfigError, InputDataError, Problem
from t3sim.files import read_limited

MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 50
MAX_ALIASES = 1_000
MAX_NODES = 100_000  # after every alias is expanded
MAX_NUMBER_CHARACTERS = 100
MAX_KEY_CHARACTERS = 60  # of a key path in a message
EXPLAINED_CHARACTERS = 32 << 10  # of a text that PyYAML's own parser explains: it is 15 times slower than libyaml

_TYPE_NAMES = {dict: "a mapping", list: "a list", str: "a text", bool: "true or false", type(None): "nothing"}


@dataclass(frozen=True, slots=True)
class Position:
    """Where something was written; line and column count from 1, 0 means a place without lines."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file

    def problem(self, key: str, message: str) -> Problem:
        """Return what is wrong with *key* here."""
        return Problem(self.file, self.line, self.column, key, message)


@dataclass(frozen=True, slots=True)
class Node:
    """A value of a configuration, where it stands, and where it came from.

    ``value`` is a scalar, a list of nodes or a dict from key to node.  A node is never changed; ``with_value`` of
    ``trees`` makes a new tree. ``origin`` is the kind of source (paper, measured, ..., user) and ``source`` says which.
    """

    value: Any
    position: Position
    key_position: Position | None = None
    origin: str = ""
    source: str = ""

    @property
    def is_mapping(self) -> bool:
        """Whether there are keys below."""
        return isinstance(self.value, dict)

    def problem(self, key: str, message: str, at_key: bool = False) -> Problem:
        """What is wrong with this value, which stands under *key*; *at_key*: the place of the key itself."""
        return ((self.key_position if at_key else None) or self.position).problem(key, message)

    def plain(self) -> Any:
        """The value as plain dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def get(self, key: str) -> Node | None:
        """The node under *key* of a mapping, or None."""
        return self.value.get(key) if isinstance(self.value, dict) else None

    def leaves(self, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Node]]:
        """Every (path, node) that is not a mapping, in file order."""
        if self.is_mapping:
            for key, node in self.value.items():
                yield from node.leaves((*prefix, key))
        else:
            yield prefix, self


def tree_of(value: Any, position: Position) -> Node:
    """Plain dicts, lists and scalars as a tree that stands at one place."""
    if isinstance(value, dict):
        return Node({key: tree_of(child, position) for key, child in value.items()}, position)
    if isinstance(value, list):
        return Node([tree_of(child, position) for child in value], position)
    return Node(value, position)


def type_name(value: Any) -> str:
    """What a value is, in words."""
    return _TYPE_NAMES.get(type(value), "a number")


def load_yaml(path: str | os.PathLike[str], shown_as: str | None = None) -> Node:
    """Read a YAML file into a tree of nodes; every fault is a ConfigError with its position."""
    name = shown_as or os.fspath(path)
    try:
        content = read_limited(Path(path), MAX_FILE_BYTES, shown_as=name)
    except InputDataError as error:
        raise _fail(name, error.message.removeprefix(f"{name}: ")) from None
    return load_yaml_text(content, name)


def load_yaml_text(text: str | bytes, name: str) -> Node:
    """Read YAML text; *name* represents the file in messages."""
    return _Reader(_checked_text(text, name), name).read()


def _fail(name: str, message: str, line: int = 0, column: int = 0) -> ConfigError:
    return ConfigError(Problem(name, line, column, "", message))


def _checked_text(text: str | bytes, name: str) -> str:
    """Decode and refuse characters that no configuration needs, with their position."""
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            before = error.object[: error.start].decode("latin-1")
            raise _fail_after(before, name, f"byte 0x{error.object[error.start]:02x} is not UTF-8") from None
    if len(text) > MAX_FILE_BYTES:
        raise _fail(name, "is larger than 1 MiB; a configuration is a few KiB")
    text = text.removeprefix("\ufeff")
    bad = _FORBIDDEN.search(text)
    if bad:
        raise _fail_after(text[: bad.start()], name, f"{_in_words(bad.group())} is not allowed")
    tab = re.search(r"^ *\t", text, re.MULTILINE)
    if tab and text[tab.end() :].split("\n", 1)[0].strip():
        raise _fail_after(text[: tab.end() - 1], name, "a tab cannot indent; use spaces")
    return text


_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _in_words(character: str) -> str:
    """What a character that no configuration needs is called."""
    if character == "\0":
        return "a NUL character"
    is_half = "\ud800" <= character <= "\udfff"  # no character, but \ud800 in double quotes makes one
    return f"the {'lone surrogate' if is_half else 'control character'} U+{ord(character):04X}"


def _fail_after(before: str, name: str, message: str) -> ConfigError:
    """A fault at the character after the text *before*."""
    return _fail(name, message, before.count("\n") + 1, len(before) - before.rfind("\n"))


_CORE_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def _in_base(base: int) -> Callable[[str], int]:
    return lambda text: int(text.replace("_", ""), base)


def _in_base_60(text: str) -> float:
    return reduce(lambda total, part: total * 60 + float(part), text.replace("_", "").lstrip("+-").split(":"), 0.0)


# Numbers in other notations than the two above, in the order in which they are tried: how they read, what is wrong.
_REFUSED: tuple[tuple[str, Callable[[str], object], str], ...] = (
    (r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", str, " is not a finite number"),
    (
        r"[-+]?0[0-7_]+",
        _in_base(8),
        " has a leading zero: YAML 1.1 would read it as octal, {}; write it in decimal or in quotes",
    ),
    (r"[-+]?0[0-9]+", str, " has a leading zero; write the number without it, or in quotes"),
    (r"0o[0-7]+", _in_base(8), " is octal ({}); write it in decimal, or in quotes"),
    (r"[-+]?0x[0-9a-fA-F_]+", _in_base(16), " is hexadecimal ({}); write it in decimal, or in quotes"),
    (r"[-+]?0b[01_]+", _in_base(2), " is binary ({}); write it in decimal, or in quotes"),
    (
        r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?",
        _in_base_60,
        ": YAML 1.1 would read it in base 60, as {:g}; write it in decimal, or in quotes",
    ),
    (
        r"[-+]?[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?",
        lambda text: text.replace("_", ""),
        ": YAML 1.1 would read it as {}; write it without underscores",
    ),
    (r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?", str, ": YAML 1.1 would read it as a date; write it in quotes"),
)


def _plain_scalar(text: str) -> Any:
    """The value of an unquoted scalar; ValueError if it is a number in a notation that is refused."""
    if text in _CORE_WORDS:
        return _CORE_WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    if len(text) > MAX_NUMBER_CHARACTERS:
        if re.fullmatch(r"[-+.0-9eE_:]+", text):
            raise ValueError(f"a number of {len(text)} characters is too long")
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    for pattern, read, complaint in _REFUSED:
        if re.fullmatch(pattern, text):
            raise ValueError(f"`{text}`{complaint.format(read(text))}")
    if _FLOAT.fullmatch(text):
        if math.isinf(number := float(text)):
            raise ValueError(f"`{text}` is too large")
        return number
    return text


_FAST_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


# Of what the parsers of PyYAML and libyaml say -> what is wrong, in the words of a file.
_CAUSES = (
    ("',' or '}'", "a `,` or the closing `}` is missing before this"),
    ("',' or ']'", "a `,` or the closing `]` is missing before this"),
    ("flow node", "a bracket or a brace is not closed"),
    ("quoted scalar", "a quote is not closed"),
    ("mapping values are not allowed", "a second `:` in one line; put the text in quotes, or the key on its own line"),
    ("expected ':'", "a `:` is missing after this key"),
    ("expected <block end>", "this line is not indented like the others of its block"),
    ("expected key", "this line is not indented like the others of its block"),
    ("cannot start any token", "a value cannot start with this character; put it in quotes"),
    ("expected <document start>", "there is more than one value at the top of the file"),
)  # fmt: skip


def _cause_in_words(cause: str) -> str:
    """Return what a parser says about bad YAML in the words of a file; its own words if they are of another kind."""
    return next((words for part, words in _CAUSES if part in cause), cause.replace("stream", "file"))


class _Reader:
    """Builds nodes from the event stream of one document, within the limits."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.events = self._guarded(text)
        self.anchors: dict[str, tuple[Node, int] | None] = {}  # None while the node is being read
        self.n_aliases = 0
        self.n_nodes = 0
        self.problems: list[Problem] = []

    def _guarded(self, text: str) -> Iterator[Any]:
        try:
            if len(text) > EXPLAINED_CHARACTERS:
                yield from yaml.parse(text, Loader=_FAST_LOADER)
                return
            try:
                events: Iterable[Any] = [*yaml.parse(text, Loader=_FAST_LOADER)]
            except (yaml.YAMLError, ValueError):
                events = yaml.parse(text, Loader=yaml.SafeLoader)  # says better what is wrong, and where
            yield from events
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            cause = " ".join(filter(None, (error.context, error.problem)))
            place = (mark.line + 1, mark.column + 1) if mark else ()
            raise _fail(self.name, f"not valid YAML: {_cause_in_words(cause)}", *place) from None
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            raise _fail(self.name, f"not valid YAML: {str(error).splitlines()[0]}") from None

    def _position(self, event: Any) -> Position:
        return Position(self.name, event.start_mark.line + 1, event.start_mark.column + 1)

    def _refuse(self, event: Any, message: str, key: str = "") -> ConfigError:
        shown_key = key if len(key) <= MAX_KEY_CHARACTERS else f"{key[:MAX_KEY_CHARACTERS]}..."
        return ConfigError(self._position(event).problem(shown_key, message))

    def read(self) -> Node:
        root: Node | None = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise self._refuse(event, "a second document starts here; one file holds one document")
                if event.tags:
                    raise self._refuse(event, "tags are not allowed")
                first = next(self.events)
                root, _ = self._node(first, (), 1)
        if root is None or (root.value is None and not self.problems):
            raise _fail(self.name, "is empty")
        if self.problems:
            raise ConfigError(self.problems)
        return root

    def _count(self, event: Any, n: int) -> None:
        self.n_nodes += n
        if self.n_nodes > MAX_NODES:
            raise self._refuse(event, f"more than {MAX_NODES} values after aliases are expanded")

    def _node(self, event: Any, path: tuple[str, ...], depth: int) -> tuple[Node, int]:
        """The node that starts with *event*, and how many values it holds."""
        key = ".".join(path)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, key)
        if depth > MAX_DEPTH:
            raise self._refuse(event, f"nested deeper than {MAX_DEPTH} levels", key)
        if event.tag is not None:
            raise self._refuse(event, f"tags are not allowed (`{event.tag[:60]}`)", key)
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        self._count(event, 1)
        value: Any
        size = 1
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event, key)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = []
            while not isinstance(child := next(self.events), yaml.SequenceEndEvent):
                node, n = self._node(child, (*path[:-1], f"{path[-1] if path else ''}[{len(value)}]"), depth + 1)
                value.append(node)
                size += n
        else:
            value, n = self._mapping(path, depth)
            size += n
        node = Node(value, self._position(event))
        if event.anchor is not None:
            self.anchors[event.anchor] = (node, size)
        return node, size

    def _alias(self, event: Any, key: str) -> tuple[Node, int]:
        self.n_aliases += 1
        if self.n_aliases > MAX_ALIASES:
            raise self._refuse(event, f"more than {MAX_ALIASES} aliases")
        if event.anchor not in self.anchors:
            raise self._refuse(event, f"`*{event.anchor}` has no anchor `&{event.anchor}` before it", key)
        target = self.anchors[event.anchor]
        if target is None:
            raise self._refuse(event, f"`*{event.anchor}` contains itself", key)
        self._count(event, target[1])
        return target

    def _scalar(self, event: Any, key: str) -> Any:
        if event.style:  # quoted or block text
            return self._text(event, key)
        try:
            return _plain_scalar(event.value)
        except ValueError as error:
            self.problems.append(self._position(event).problem(key, str(error)))
            return None

    def _text(self, event: Any, key: str) -> str:
        """A quoted text, whose escapes may spell what the file itself may not hold."""
        bad = _FORBIDDEN.search(event.value)
        if bad:
            raise self._refuse(event, f"{_in_words(bad.group())} is not allowed", key)
        return str(event.value)

    def _mapping(self, path: tuple[str, ...], depth: int) -> tuple[dict[str, Node], int]:
        value: dict[str, Node] = {}
        size = 0
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self._key(event, path)
            key_position = self._position(event)
            node, n = self._node(next(self.events), (*path, key), depth + 1)
            size += n + 1
            if key in value:
                first = value[key].key_position
                assert first is not None
                message = f"duplicate key; the first is at {first.line}:{first.column}"
                self.problems.append(key_position.problem(".".join((*path, key)), message))
                continue
            value[key] = replace(node, key_position=key_position)
        return value, size

    def _key(self, event: Any, path: tuple[str, ...]) -> str:
        under = ".".join(path)
        if not isinstance(event, yaml.ScalarEvent):
            raise self._refuse(event, "a key must be a plain word", under)
        if event.tag is not None:
            raise self._refuse(event, f"tags are not allowed (`{event.tag[:60]}`)", under)
        if not event.style and event.value == "<<":
            raise self._refuse(event, "merge keys (`<<`) are not allowed; write the values out", under)
        if event.anchor is not None:
            raise self._refuse(event, "a key cannot have an anchor", under)
        self._count(event, 1)
        return self._text(event, under)
