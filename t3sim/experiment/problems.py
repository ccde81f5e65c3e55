"""The problems of one experiment, collected while its points are made, so that all are shown at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from t3sim.config.trees import node_at
from t3sim.config.yaml_loader import Node, Position
from t3sim.errors import ConfigError, Problem


class Problems:
    """An ordered set: many points can have the same problem."""

    def __init__(self, own_file: str) -> None:
        self._own_file = own_file
        self._found: dict[Problem, None] = {}

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._found)

    def report(self, root: Node, path: tuple[str, ...], message: str, at_key: bool = False) -> None:
        """Add a problem of the value at *path*, at the deepest place of the tree that exists."""
        node, _ = node_at(root, path)
        at = (node.key_position if at_key else None) or node.position
        self.add(at, ".".join(path), message)

    def add(self, at: Position, key: str, message: str) -> None:
        """Add a problem at a place."""
        self._found[Problem(at.file, at.line, at.column, key, message)] = None

    def take(self, problems: Iterable[Problem]) -> None:
        """Add problems that were found elsewhere."""
        for problem in problems:
            self._found[problem] = None

    def in_reading_order(self) -> ConfigError:
        """All problems as one error, the experiment file first."""
        return ConfigError(sorted(self._found, key=lambda p: (p.file != self._own_file, p.file, p.line, p.column)))


__all__ = ["Problems"]
