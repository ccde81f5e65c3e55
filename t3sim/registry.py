"""Registries of exchangeable parts: named entries of each kind, and their declared parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import takewhile
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar

from t3sim.errors import UsageError
from t3sim.spelling import spelled_as

T = TypeVar("T")
LARGEST = (1 << 60) - 1  # value of a parameter; the kernel's NEVER is above it


@dataclass(frozen=True)
class Parameter:
    """A parameter that an entry declares: a whole number, or one of a few words that represent one.

    ``schemes_of``: kinds of operator for which advice treats its values as separate schemes; with
    others it has no effect.  ``on_nodes``: it has an effect on several nodes only.

    Raises ``ValueError`` for a default that is not a value of the parameter.
    """

    default: int | str | None = None  # None: an experiment that uses the entry has to give it
    words: Mapping[str, int] = field(default_factory=dict)
    minimum: int = 0
    maximum: int = LARGEST
    has_numbers: bool = True  # False: only its words are allowed
    unit: Literal["", "cycles", "B", "%"] = ""  # of the number; `cycles` may stand behind it
    at_most: str = ""  # the machine's value that bounds it, like `memory.queue.entries`
    below: str = ""  # the same for a value that is not allowed itself
    tried: tuple[int | str, ...] = ()  # that a search for the best value looks at; none: the default alone
    meaning: str = ""
    schemes_of: tuple[str, ...] = ()
    on_nodes: bool = False

    def __post_init__(self) -> None:
        for value in (*self.tried, *(() if self.default is None else (self.default,))):
            self.encode(value)

    def encode(self, value: Any) -> int:
        """Return the integer that represents *value*; ValueError says what is allowed."""
        if isinstance(value, str) and value in self.words:
            return self.words[value]
        is_number = self.has_numbers and isinstance(value, int) and not isinstance(value, bool)
        if not is_number or not self.minimum <= value <= self.maximum:
            raise ValueError(f"{value!r} is not {self.allowed}")
        assert isinstance(value, int)
        return value

    @property
    def allowed(self) -> str:
        """What a value may be, in words."""
        is_bounded = self.maximum < LARGEST
        range_of_it = f"from {self.minimum} to {self.maximum}" if is_bounded else f"of at least {self.minimum}"
        number = [f"a whole number {range_of_it}"] if self.has_numbers else []
        return " or ".join([*number, *self.words])

    def excess(self, value: Any, machine: Any) -> str | None:
        """Say what a *value* must be that is beyond the one of *machine* that bounds it; None: it is not."""
        for bound, words, is_allowed in ((self.at_most, "at most", 1), (self.below, "below", 0)):
            if bound and isinstance(value, int) and value >= (most := attrgetter(bound)(machine)) + is_allowed:
                words_too = f" (or {' or '.join(self.words)})" if self.words else ""
                return f"must be {words} `machine.{bound}`, {most}{words_too}"
        return None


# Names that parameters had in earlier versions.
_RENAMED = {
    "collective_compute_units": "communication_units", "fetching_units": "communication_units",
    "sms": "communication_units", "own_rows": "local_rows",
}  # fmt: skip


def present_name(name: str, parameters: Iterable[str]) -> str | None:
    """Return the name that the parameter *name* of an earlier version has among *parameters*; None without one."""
    now = _RENAMED.get(name, "")
    return now if now in parameters else None


def encoded(parameters: Mapping[str, Parameter], given: Mapping[str, Any]) -> dict[str, int]:
    """Return the integers of all *parameters*, in their order; ValueError names an unknown, missing or illegal one."""
    unknown = [name for name in given if name not in parameters]
    if unknown:
        now = present_name(unknown[0], parameters)
        advice = f"it is called {now!r} now" if now else f"known: {', '.join(parameters) or 'none'}"
        raise ValueError(f"unknown parameter {unknown[0]!r}; {advice}")
    values = {}
    for name, parameter in parameters.items():
        value = given.get(name, parameter.default)
        if value is None:
            raise ValueError(f"{name}: is missing")
        try:
            values[name] = parameter.encode(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return values


def check_declaration(function: Any, arguments: str, parameters: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` unless *function* takes *arguments* and *parameters* are of the class ``Parameter``."""
    function = getattr(function, "py_func", function)
    if not callable(function):
        raise TypeError(f"{function!r} is not a function")
    try:
        inspect.signature(function).bind(*arguments.split(", "))
    except TypeError:
        raise TypeError(f"`{getattr(function, '__name__', function)}` must take ({arguments})") from None
    wrong = [name for name, parameter in parameters.items() if not isinstance(parameter, Parameter)]
    if wrong:
        raise TypeError(f"parameter `{wrong[0]}` is {parameters[wrong[0]]!r}, not a Parameter")


def nearest(name: str, known: list[str] | tuple[str, ...]) -> str | None:
    """The known name that *name* was probably meant to be, or None."""
    cutoff = 0.5 if len(name) <= 3 else 0.6  # of two letters, one may be wrong
    matches = get_close_matches(name, known, n=1, cutoff=cutoff)
    if matches:
        return matches[0]
    folded = {entry.lower().replace("-", "_"): entry for entry in known}
    matches = get_close_matches(name.lower().replace("-", "_"), folded, n=1, cutoff=cutoff)
    return folded[matches[0]] if matches else None


# What people call something -> the names here that represent it, by the kind of name.
_STRATEGY_ALIASES = {
    "nccl": ("sequential",), "baseline": ("sequential",), "none": ("sequential",), "serial": ("sequential",),
    "streams": ("cu-split",), "two-streams": ("cu-split",), "concurrent": ("cu-split",),
    "flux": ("flux-push", "flux-pull", "flux-ag"),
    "te": ("te-p2p-rs", "te-pipelined-rs", "te-ring-ag"),
    "transformer-engine": ("te-p2p-rs", "te-pipelined-rs", "te-ring-ag"),
    "transformerengine": ("te-p2p-rs", "te-pipelined-rs", "te-ring-ag"),
    "userbuffers": ("te-p2p-rs", "te-pipelined-rs", "te-ring-ag"),
    "flashoverlap": ("wave-groups",), "flash-overlap": ("wave-groups",),
    "thunderkittens": ("sm-specialised",), "comet": ("sm-specialised",), "sm-specialized": ("sm-specialised",),
    "pytorch": ("async-tp", "async-tp-ag"), "torch": ("async-tp", "async-tp-ag"),
    "dma": ("copy-engine-scatter",), "copy-engine": ("copy-engine-scatter",),
    "ideal": ("ideal-overlap", "ideal-rs-nmc"), "one-shot": ("distfuse",), "two-shot": ("distfuse",),
}  # fmt: skip
ALIASES: dict[str, dict[str, tuple[str, ...]]] = {
    "strategy": _STRATEGY_ALIASES,
    "sublayer": {
        "mlp": ("FC-1", "FC-2"), "ffn": ("FC-1", "FC-2"), "up-proj": ("FC-1",), "gate-proj": ("FC-1",),
        "gate-up-proj": ("FC-1",), "down-proj": ("FC-2",), "o-proj": ("OP",), "out-proj": ("OP",), "qkv-proj": ("QKV",),
        "attention": ("OP", "QKV"), "attn": ("OP", "QKV"),
    },
    "arbitration policy": {"fcfs": ("round_robin",), "fr-fcfs": ("round_robin",), "rr": ("round_robin",)},
}  # fmt: skip
# What else helps where a name is unknown and no known one is near.
ADVICE = {
    "machine": "for another GPU, derive one: `machine: {preset: h200, name: NAME, ...}` with its values",
    "model": "for a checkpoint, give the path of its config.json",
}
LISTED_BY = {  # kinds that `t3sim list` shows
    "experiment": "experiments", "machine": "machines", "strategy": "strategies", "arbitration policy": "policies",
    "model": "models",
}  # fmt: skip
MOST_LISTED = 12  # names in a message


def _guesses(kind: str, name: str, known: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that *name* was probably meant to be: those it is an alias of, else the nearest spelling."""
    spelled = name.lower().replace("_", "-").replace(" ", "-")
    meant = tuple(one for one in ALIASES.get(kind, {}).get(spelled, ()) if one in known)
    if meant:
        return meant
    guess = nearest(name, known)
    # A product whose letters differ, like b200 and h200, is another product.
    is_other_product = kind == "machine" and guess is not None and _letters(guess) != _letters(name)
    return () if guess is None or is_other_product else (guess,)


def _letters(name: str) -> str:
    return "".join(takewhile(str.isalpha, name.lower()))


def unknown_name(kind: str, name: str, known: list[str] | tuple[str, ...]) -> str:
    """The message for a name that is not in a table: what it may have been meant to be, else the known names."""
    guesses = _guesses(kind, name, known)
    if guesses:
        return f"unknown {kind} `{name}`; did you mean {' or '.join(f'`{one}`' for one in guesses)}?"
    advice = f"; {ADVICE[kind]}" if kind in ADVICE else ""
    if len(known) > MOST_LISTED and kind in LISTED_BY:
        return f"unknown {kind} `{name}`{advice}; `t3sim list {LISTED_BY[kind]}` shows the known ones"
    return f"unknown {kind} `{name}`{advice} (known: {', '.join(known) if known else 'none'})"


class Registry(Generic[T]):
    """Entries of one *kind* by name, in the order in which they were registered."""

    def __init__(self, kind: str, entry_type: type[T]) -> None:
        self.kind = kind
        self.entry_type = entry_type
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator or plain call: ``registry.register("mca")(entry)`` returns the entry.

        A name can be taken only once; giving the very same entry again is allowed.
        """

        def add(entry: T) -> T:
            if not isinstance(entry, self.entry_type):
                raise UsageError(f"{self.kind} `{name}` is {entry!r}, not of the class {self.entry_type.__name__}")
            if name in self._entries and self._entries[name] is not entry:
                raise UsageError(f"{self.kind} `{name}` is registered twice")
            self._entries[name] = entry
            return entry

        return add

    def get(self, name: str) -> T:
        """The entry called *name* in any spelling; an unknown name is a UsageError that lists the known ones."""
        try:
            return self._entries[spelled_as(name, self._entries)]
        except KeyError:
            raise UsageError(unknown_name(self.kind, name, self.names())) from None

    def names(self) -> list[str]:
        """All names, in order of registration."""
        return list(self._entries)

    def __contains__(self, name: object) -> bool:
        return spelled_as(name, self._entries) in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)
