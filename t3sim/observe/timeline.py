"""A timeline: spans of each part of the machine, and sampled levels.

The simulator fills one while it runs, if asked to; times are simulated
picoseconds.  Keeping a timeline never changes what is simulated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

Place = tuple[str, str, int]  # of a span: its track, its name, when it starts


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasted: a stage on the compute units, a chunk on the link."""

    track: str  # the part of the machine, such as "gpu[0] dma"
    name: str
    start_ps: int
    duration_ps: int
    args: Mapping[str, int | float | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.start_ps < 0 or self.duration_ps < 0:
            raise ValueError(f"span {self.name!r}: starts at {self.start_ps} ps, lasts {self.duration_ps} ps")

    @property
    def place(self) -> Place:
        """Return where flows find it."""
        return self.track, self.name, self.start_ps


@dataclass(frozen=True, slots=True)
class Counter:
    """A level over time, such as a queue's occupancy; each value holds until the next time."""

    track: str
    name: str
    times_ps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.times_ps) != len(self.values):
            raise ValueError(f"counter {self.name!r}: {len(self.times_ps)} times, {len(self.values)} values")
        if any(later < earlier for earlier, later in zip(self.times_ps, self.times_ps[1:], strict=False)):
            raise ValueError(f"counter {self.name!r}: times go back")


@dataclass(frozen=True, slots=True)
class Flow:
    """Data on their way: the spans that they pass through, in order."""

    name: str
    places: tuple[Place, ...]


GPU = re.compile(r"gpu\[\d+\]")


def gpu_of(track: str) -> str:
    """Return the GPU that *track* is a part of, such as ``gpu[0]``; empty if it is part of none."""
    found = GPU.match(track)
    return found.group() if found else ""


@dataclass(slots=True)
class Timeline:
    """Spans, counters and flows of one run, of one GPU or several: their tracks begin with the name of the GPU."""

    spans: list[Span] = field(default_factory=list)
    counters: list[Counter] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)

    def add_span(self, track: str, name: str, start_ps: int, end_ps: int, **args: float | str) -> None:
        """Record that *name* occupied *track* from *start_ps* to *end_ps*."""
        self.spans.append(Span(track, name, start_ps, end_ps - start_ps, args))

    def add_counter(self, track: str, name: str, times_ps: list[int], values: list[float]) -> None:
        """Record a sampled level."""
        self.counters.append(Counter(track, name, times_ps, values))

    def extend(self, other: Timeline) -> None:
        """Take in what *other* recorded, of another GPU or from another time."""
        self.spans += other.spans
        self.counters += other.counters
        self.flows += other.flows

    def later(self, ps: int) -> Timeline:
        """Return the same, delayed by a number of picoseconds."""
        return self.as_gpu(0, 1, ps) if ps else self

    def as_gpu(self, d: int, n_chunks: int, later_ps: int) -> Timeline:
        """Return what ``gpu[0]`` did as what the identical ``gpu[d]`` does *later_ps* later, chunk numbers plus *d*."""

        def track_of(track: str) -> str:
            return f"gpu[{d}]" + track[len(gpu_of(track)) :] if gpu_of(track) == "gpu[0]" else track

        def args_of(span: Span) -> Mapping[str, int | float | str]:
            chunk = span.args.get("chunk")
            return {**span.args, "chunk": (chunk + d) % n_chunks} if d and isinstance(chunk, int) else span.args

        return Timeline(
            [Span(track_of(s.track), s.name, s.start_ps + later_ps, s.duration_ps, args_of(s)) for s in self.spans],
            [Counter(track_of(c.track), c.name, [at + later_ps for at in c.times_ps], c.values) for c in self.counters],
            [
                Flow(flow.name, tuple((track_of(track), name, at + later_ps) for track, name, at in flow.places))
                for flow in self.flows
            ],
        )

    @property
    def gpus(self) -> list[str]:
        """The GPUs that have tracks, in order; the empty name represents tracks of none."""
        tracks = [span.track for span in self.spans] + [counter.track for counter in self.counters]
        return list(dict.fromkeys(map(gpu_of, tracks)))

    def of_gpu(self, gpu: str) -> Timeline:
        """Return the tracks of one GPU, without flows."""
        return Timeline(
            [span for span in self.spans if gpu_of(span.track) == gpu],
            [counter for counter in self.counters if gpu_of(counter.track) == gpu],
        )
