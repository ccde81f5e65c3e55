"""Large pages of memory: for the largest arrays of a machine that runs alone, none for small machines."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from t3lab.cli.validate import machine_of
from t3sim.gpu import room
from t3sim.gpu.assemble import capacities_of, layout_for
from t3sim.gpu.units.state import empty_gpu

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no large pages")


class Noted(mmap.mmap):
    """Memory that notes what it is advised of: from where, and how much."""

    advice: list[tuple[int, int]]

    def madvise(self, _option: int, start: int = 0, length: int = 0, /) -> None:  # type: ignore[override]
        """Note it."""
        self.advice = [*getattr(self, "advice", []), (start, length)]


@pytest.mark.parametrize(("machine", "n_least"), [("h200", 3), ("t3-150", 1), ("t3-tiny", 0)])
def test_large_arrays_have_large_pages(machine: str, n_least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "mmap", Noted)
    spec = machine_of(machine, ())
    layout, used = layout_for(spec), capacities_of(spec)
    memory = room.large_pages(layout, used)
    assert memory is not None
    advice = getattr(memory, "advice", [])
    assert len(advice) >= n_least
    assert bool(advice) == bool(n_least)
    begin = room.address_of(np.frombuffer(memory, np.uint8))
    for start, length in advice:
        assert (begin + start) % room.LARGE_PAGE == length % room.LARGE_PAGE == 0
        assert 0 <= start < start + length <= len(memory)


def test_the_record_is_the_same() -> None:
    spec = machine_of("h200", ())
    layout, used = layout_for(spec), capacities_of(spec)
    plain, large = empty_gpu(layout, used), empty_gpu(layout, used, room.large_pages(layout, used))
    for name in ("channels", "compute_units", "tracker", "ports"):
        assert plain[0][name].tobytes() == large[0][name].tobytes(), name
    assert np.array_equal(plain[0].l2.tags[: used.n_l2_sets], large[0].l2.tags[: used.n_l2_sets])
