"""The problems of one experiment or machine, collected while it is read, so that all are shown at once."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from t3sim.config.trees import node_at
from t3sim.config.yaml_loader import Node, Position
from t3sim.errors import ConfigError, Problem

Made = TypeVar("Made")


class Problems(dict[Problem, None]):
    """An ordered set: many points can have the same problem."""

    def __init__(self, own_file: str = "") -> None:
        super().__init__()
        self._own_file = own_file

    def report(self, root: Node, key: str, message: str) -> None:
        """Add a problem of the value at the dotted *key*, at the deepest place of the tree that exists."""
        self.take([problem_at(root, key, message)])

    def add(self, at: Node | Position, key: str, message: str, at_key: bool = False) -> None:
        """Add a problem of a node, or at a place."""
        self.take([at.problem(key, message, at_key) if isinstance(at, Node) else at.problem(key, message)])

    def take(self, problems: Iterable[Problem]) -> None:
        """Add problems that were found elsewhere."""
        self.update(dict.fromkeys(problems))

    def caught(self, make: Callable[..., Made], *arguments: Any) -> Made | None:
        """Return what *make* makes; None if it raises a ``ConfigError``, whose problems are added."""
        try:
            return make(*arguments)
        except ConfigError as error:
            self.take(error.problems)
            return None

    def raise_any(self) -> None:
        """Raise all problems as one error, in the order in which they were found, if there are any."""
        if self:
            raise ConfigError(self)

    def in_reading_order(self) -> ConfigError:
        """All problems as one error, the experiment file first."""
        return ConfigError(sorted(self, key=lambda p: (p.file != self._own_file, p.file, p.line, p.column)))


def problem_at(root: Node, key: str, message: str, at_key: bool = False) -> Problem:
    """Return a problem of the value at the dotted *key*, at the deepest place of the tree that exists."""
    return node_at(root, tuple(key.split(".")))[0].problem(key, message, at_key)


def refusal(root: Node, key: str, message: str, at_key: bool = False) -> ConfigError:
    """Return the same as an error."""
    return ConfigError(problem_at(root, key, message, at_key))
