"""The names of a GPU's operating points; nodes that only measure use them, so nothing else is imported here."""

from typing import Literal, get_args

OperatingPoint = Literal["sustained", "boost", "onset"]
OPERATING_POINTS: tuple[OperatingPoint, ...] = get_args(OperatingPoint)
