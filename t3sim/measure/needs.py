"""What measuring needs, and the one line that says what is missing."""

from __future__ import annotations

from t3sim.errors import EnvironmentFailure

ELSE = "everything else in t3sim works without it"


class CannotMeasure(EnvironmentFailure):
    """A measurement could not be made; exit code 5."""


class MissingHardware(CannotMeasure):
    """A library, a device or an ability that only measuring needs is missing."""

    def __init__(self, missing: str, remedy: str) -> None:
        super().__init__(f"cannot measure: {missing}; {remedy}; {ELSE}")
        self.args = (missing, remedy)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self.args)
