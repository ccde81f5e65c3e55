"""A table of named entries of one kind, for the decisions that a user can exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Generic, TypeVar

from t3sim.errors import UsageError

T = TypeVar("T")


def nearest(name: str, known: list[str] | tuple[str, ...]) -> str | None:
    """The known name that *name* was probably meant to be, or None."""
    cutoff = 0.5 if len(name) <= 3 else 0.6  # of two letters, one may be wrong
    matches = get_close_matches(name, known, n=1, cutoff=cutoff)
    if matches:
        return matches[0]
    folded = {entry.lower().replace("-", "_"): entry for entry in known}
    matches = get_close_matches(name.lower().replace("-", "_"), folded, n=1, cutoff=cutoff)
    return folded[matches[0]] if matches else None


def unknown_name(kind: str, name: str, known: list[str] | tuple[str, ...]) -> str:
    """The message for a name that is not in a table: nearest spelling, then all known names."""
    guess = nearest(name, known)
    hint = f"; did you mean `{guess}`?" if guess else ""
    listed = ", ".join(known) if known else "none"
    return f"unknown {kind} `{name}`{hint} (known: {listed})"


class Registry(Generic[T]):
    """Entries of one *kind* by name, in the order in which they were registered."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator or plain call: ``registry.register("mca")(entry)`` returns the entry.

        A name can be taken only once; giving the very same entry again is allowed.
        """

        def add(entry: T) -> T:
            if name in self._entries and self._entries[name] is not entry:
                raise UsageError(f"{self.kind} `{name}` is registered twice")
            self._entries[name] = entry
            return entry

        return add

    def get(self, name: str) -> T:
        """The entry called *name*; an unknown name is a UsageError that lists the known ones."""
        try:
            return self._entries[name]
        except KeyError:
            raise UsageError(unknown_name(self.kind, name, self.names())) from None

    def names(self) -> list[str]:
        """All names, in order of registration."""
        return list(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
