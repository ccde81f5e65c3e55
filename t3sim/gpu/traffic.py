"""The traffic classes of a run: how many streams the memory controllers have, their names, and who uses which."""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass

from t3sim.errors import UsageError
from t3sim.gpu.kernel import codes


@dataclass(frozen=True)
class Sources:
    """The traffic class of each source of DRAM requests; the order is that of ``gpu.traffic_class``.  Default: T3's."""

    gemm: int = codes.COMPUTE  # operands and output, write-backs of the L2 included
    collective: int = codes.COMPUTE  # what collective kernels read and store
    dma: int = codes.COMM  # what the DMA engine reads
    arrivals: int = codes.COMM  # what comes over the link


@dataclass(frozen=True)
class TrafficClasses:
    """Names of the classes, by number, and who uses which; class 0 is the one that policies call compute.

    Raises ``UsageError`` for more classes than a controller can tell apart, and for a source without a class.
    """

    names: tuple[str, ...] = ("compute", "communication")
    of: Sources = Sources()

    def __post_init__(self) -> None:
        if not 1 <= len(self.names) <= codes.MOST_CLASSES:
            raise UsageError(f"traffic classes: {len(self.names)} are named, must be 1 to {codes.MOST_CLASSES}")
        for name in self.names:
            if not re.fullmatch(r"[a-z]\w*", name) or self.names.count(name) > 1:
                raise UsageError(f"traffic classes: `{name}` is not a word of its own (a to z, digits, _)")
        for source, traffic_class in zip(("gemm", "collective", "dma", "arrivals"), astuple(self.of), strict=True):
            if not 0 <= traffic_class < len(self.names):
                raise UsageError(f"traffic classes: {source} has class {traffic_class} of {len(self.names)}")

    @property
    def queues(self) -> tuple[str, ...]:
        """The parts of a channel in which requests of each class wait."""
        return tuple(f"{name}_queue" for name in self.names)


def classes_in_words(n_classes: int) -> str:
    """Return what a policy may return besides NO_STREAM: ``COMPUTE or COMM``, or the numbers of more classes."""
    return "COMPUTE or COMM" if n_classes == 2 else f"a class from 0 to {n_classes - 1}"
