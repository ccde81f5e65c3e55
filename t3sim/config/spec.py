"""The base of all specs, and the types of their fields.

A spec holds what a data sheet would state and nothing else: no state, no derived numbers, no defaults for hardware
values (those live in ``configs/``, each with its source).  Quantities are written with units in YAML and are integers
here: bytes, bytes per second, hertz, picoseconds, or cycles of the clock that the docstring names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from t3sim import units
from t3sim.spelling import spelled_as


def _written(parser: Callable[[object], object]) -> BeforeValidator:
    """A quantity that files hold as a text with its unit."""
    return BeforeValidator(parser, json_schema_input_type=str)


Bytes = Annotated[int, _written(units.parse_bytes), Field(gt=0)]
BytesOrZero = Annotated[int, _written(units.parse_bytes), Field(ge=0)]
BytesPerSecond = Annotated[int, _written(units.parse_bandwidth), Field(gt=0)]
Hertz = Annotated[int, _written(units.parse_frequency), Field(gt=0)]
Picoseconds = Annotated[int, _written(units.parse_time), Field(ge=0)]
PicosecondsAboveZero = Annotated[int, _written(units.parse_time), Field(gt=0)]
Cycles = Annotated[int, _written(units.parse_cycles), Field(ge=0)]
CyclesAboveZero = Annotated[int, _written(units.parse_cycles), Field(gt=0)]
ReadAhead = Annotated[int | Literal["chunk"], _written(units.parse_bytes_or_word("chunk"))]
MatrixClock = Annotated[
    Annotated[int, Field(gt=0)] | Literal["compute_clock"], _written(units.parse_frequency_or_word("compute_clock"))
]
AccessBytes = Annotated[Literal[32, 64], _written(units.parse_bytes)]
Count = Annotated[int, Field(gt=0, lt=units.LIMIT, strict=True)]
Share = Annotated[float, Field(gt=0, le=1, strict=True)]
CountOrZero = Annotated[int, Field(ge=0, lt=units.LIMIT, strict=True)]


@dataclass(frozen=True)
class AtMost:
    """The largest value of a field: the state of a GPU has to fit a computer's memory, products of values 64 bits."""

    limit: int


@dataclass(frozen=True)
class Unit:
    """What a number represents that files give without a unit; without this it counts what its key names."""

    name: str


Latency = Annotated[Picoseconds, AtMost(10**12)]
ShortCycles = Annotated[Cycles, AtMost(1 << 20)]
CommandCycles = Annotated[Count, AtMost(1 << 20), Unit("cycles")]
CommandCyclesOrZero = Annotated[CountOrZero, AtMost(1 << 20), Unit("cycles")]
LinesInFlight = Annotated[Count, AtMost(1 << 14), Unit("lines")]
BytesPerCycle = Annotated[Count, AtMost(1 << 30), Unit("B/cycle")]
MatrixRate = Annotated[float, Field(ge=0.125, le=16), Unit("times the 16-bit rate")]
EngineRate = Annotated[BytesPerSecond, AtMost(1 << 50)]


class Spec(BaseModel):
    """Base of all specs: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _spelled(cls, value: Any, info: ValidationInfo) -> Any:
        """Accept ``all_reduce`` for ``all-reduce``, of all fields that have a few words to choose from."""
        words = _words(cls.model_fields[str(info.field_name)].annotation)  # type: ignore[arg-type]
        return spelled_as(value, words) if words else value


@lru_cache(maxsize=1024)
def _words(annotation: Any) -> tuple[str, ...]:
    """Return the texts that a field may have besides others."""
    if get_origin(annotation) is Literal:
        return tuple(word for word in get_args(annotation) if isinstance(word, str))
    parts = (part for part in get_args(annotation) if get_origin(part) is not None)
    return tuple(word for part in parts for word in _words(part))
