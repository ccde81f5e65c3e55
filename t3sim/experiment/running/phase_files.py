"""Files of finished phases, named by their digests, so that no phase is simulated twice.

A file is one line that names the format and holds the digest of the rest, and then, compressed, two lines of JSON: what
the phase cost, counted and waited for, and its timeline.  Files are written whole or not at all
(``t3sim.files.publish``) and verified when they are read; one that is damaged counts as absent.  JSON, so that a folder
of others is safe to read.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from t3sim.checks.audit import Audit
from t3sim.errors import InputDataError
from t3sim.files import publish, read_limited
from t3sim.observe.timeline import Counter, Flow, Span, Timeline
from t3sim.observe.waits import Wait
from t3sim.strategies.interface import GpuPhase, Phase
from t3sim.strategies.interface import Span as OperationSpan

PHASES_NAME = "phases"  # of the folder, inside that of the results
SUFFIX = ".phase"
FORMAT = b"t3sim phase 6"
OF_A_PHASE = ("name", "ticks", "counters", "waits", "gpus", "sent", "spans")
OF_A_TIMELINE = ("spans", "counters", "flows")
FOLLOWING = ("has_checks", "has_data", "has_timeline")  # of an Audit
MAX_PHASE_BYTES = 1 << 30
COMPRESSION = 3  # of zlib: a timeline shrinks sevenfold either way, and this is three times as fast as 6


@dataclass(frozen=True)
class StoredPhase:
    """A finished phase, the host time it took, and what followed it: full checks, with what they saw, a timeline."""

    digest: str
    phase: Phase
    wall_s: float
    checks: Mapping[str, int | bool] = field(default_factory=dict)  # fields of an Audit

    def was_followed_by(self, audit: Audit) -> bool:
        """Return whether all that *audit* asks for has followed this phase."""
        return all(bool(self.checks.get(name)) >= getattr(audit, name) for name in FOLLOWING)


def encode(stored: StoredPhase) -> bytes:
    """Return the content of the file of a phase; equal phases of equal host time give equal bytes."""
    phase, timeline = stored.phase, stored.phase.timeline
    head = {name: getattr(phase, name) for name in OF_A_PHASE}
    head |= {"digest": stored.digest, "wall_s": stored.wall_s, "checks": dict(stored.checks)}
    lines = [head, {name: getattr(timeline, name) for name in OF_A_TIMELINE}]
    text = "\n".join(json.dumps(one, separators=(",", ":"), allow_nan=False, default=_values_of) for one in lines)
    body = zlib.compress(text.encode(), COMPRESSION)
    return b"%s %s\n%s" % (FORMAT, sha256(body).hexdigest().encode(), body)


def decode(content: bytes, *, with_timeline: bool) -> StoredPhase:
    """Return the phase that *content* holds; its timeline is empty unless asked for.

    Raises ``ValueError`` if the content is not what was written.
    """
    first, _, body = content.partition(b"\n")
    if first != b"%s %s" % (FORMAT, sha256(body).hexdigest().encode()):
        raise ValueError("it is not what was written")
    head_line, _, timeline_line = zlib.decompress(body).partition(b"\n")
    head: dict[str, Any] = json.loads(head_line)
    digest, wall_s, checks = (head.pop(name) for name in ("digest", "wall_s", "checks"))
    timeline = Timeline()
    if with_timeline:
        spans, counters, flows = map(json.loads(timeline_line).get, OF_A_TIMELINE)
        flows = [Flow(name, tuple(map(tuple, places))) for name, places in flows]
        timeline = Timeline([Span(*span) for span in spans], [Counter(*one) for one in counters], flows)
    for name, kind in (("waits", Wait), ("gpus", GpuPhase), ("spans", OperationSpan)):
        head[name] = tuple(kind(*one) for one in head[name])
    return StoredPhase(digest, Phase(timeline=timeline, **head), wall_s, checks)


def _values_of(record: Any) -> list[Any]:
    return [getattr(record, name) for name in record.__match_args__]


class PhaseFolder:
    """The finished phases of one experiment, or of several that share a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damaged: list[Path] = []  # files that could not be used

    def path_of(self, digest: str) -> Path:
        """Return where the phase of *digest* lies once it is finished."""
        return self.folder / f"{digest}{SUFFIX}"

    def load(self, digest: str, *, with_timeline: bool) -> StoredPhase | None:
        """Return the phase of *digest*, None if it is not there or damaged."""
        path = self.path_of(digest)
        if not path.exists():
            return None
        try:
            stored = decode(read_limited(path, MAX_PHASE_BYTES, shown_as=str(path)), with_timeline=with_timeline)
            if stored.digest != digest:
                raise ValueError("it holds another phase")
        except (InputDataError, ValueError, KeyError, TypeError, zlib.error):
            self.damaged.append(path)
            return None
        return stored

    def put(self, digest: str, content: bytes) -> None:
        """Publish the *content* of a finished phase; raises ``EnvironmentFailure``."""
        publish({self.path_of(digest): content})
