"""The traffic classes of a run: how many streams the memory controllers have, and their names."""

import re
from dataclasses import dataclass

from t3sim.errors import UsageError
from t3sim.gpu.units import codes


@dataclass(frozen=True)
class TrafficClasses:
    """Names of the classes, by number; class 0 is the one that policies call compute.

    Raises ``UsageError`` for more classes than a controller can distinguish.
    """

    names: tuple[str, ...] = ("compute", "communication")

    def __post_init__(self) -> None:
        if not 1 <= len(self.names) <= codes.MOST_CLASSES:
            raise UsageError(f"traffic classes: {len(self.names)} are named, must be 1 to {codes.MOST_CLASSES}")
        for name in self.names:
            if not re.fullmatch(r"[a-z]\w*", name) or self.names.count(name) > 1:
                raise UsageError(f"traffic classes: `{name}` is not a word of its own (a to z, digits, _)")

    @property
    def queues(self) -> tuple[str, ...]:
        """The parts of a channel in which requests of each class wait."""
        return tuple(f"{name}_queue" for name in self.names)


def classes_in_words(n_classes: int) -> str:
    """Return what a policy may return besides NO_STREAM: ``COMPUTE or COMM``, or the numbers of more classes."""
    return "COMPUTE or COMM" if n_classes == 2 else f"a class from 0 to {n_classes - 1}"
