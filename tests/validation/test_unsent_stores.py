"""What SMs hold of their stores to another GPU, with their loads behind it: the values of scatters against measured."""

from __future__ import annotations

import pytest

from t3sim.validation.tiles import STORES_AHEAD, STORES_HELD
from tests.harness.sms import measured_rows

CLOCK_GHZ = 1.98  # of the cycles in the file
UNLOADED = 325  # cycles of a load behind nothing
START_NS = 350.0  # until the first store is on the link


DEVICES = ("NVIDIA H200", "NVIDIA H100 80GB HBM3")


def rows(thread_bytes: int, device: str = DEVICES[0], stored_at: str = "peer") -> list[dict[str, str]]:
    """What all SMs stored, so many bytes a thread, 256 threads each, without a pause."""
    wanted = {
        "device": device,
        "stored_at": stored_at,
        "sms": "132",
        "threads": "256",
        "idle_ns": "100",
        "thread_bytes": str(thread_bytes),
    }
    return [row for row in measured_rows("h200-unsent-stores.csv") if wanted.items() <= row.items()]


def rate(thread_bytes: int, device: str) -> float:
    """Return bytes a nanosecond that leave an SM while all of them store without end."""
    [row] = [r for r in rows(thread_bytes, device) if r["stored_bytes"] == "65536" and r["wave"] == "3"]
    return 65536 / float(row["period_ns"])


def unsent(thread_bytes: int, device: str) -> list[float]:
    """Return bytes that had been issued and not sent when the first workgroup of an SM had issued all it had to."""
    found = [r for r in rows(thread_bytes, device) if r["wave"] == "0" and int(r["stored_bytes"]) >= 24 << 10]
    return [int(r["stored_bytes"]) - (float(r["stored_ns"]) - START_NS) * rate(thread_bytes, device) for r in found]


def behind(thread_bytes: int, device: str) -> float:
    """Return bytes of an SM that leave before its next load."""
    full = [r for r in rows(thread_bytes, device) if r["wave"] in {"3", "5"} and int(r["stored_bytes"]) >= 24 << 10]
    waits = [(float(r["load_cycles"]) - UNLOADED) / CLOCK_GHZ for r in full]
    return sum(waits) / len(waits) * rate(thread_bytes, device)


@pytest.mark.parametrize("device", DEVICES)
def test_what_an_sm_holds_is_what_its_loads_wait_for(device: str) -> None:
    assert behind(2, device) == pytest.approx(STORES_HELD, rel=0.03)


@pytest.mark.parametrize("device", DEVICES)
def test_what_lies_in_front_of_the_link_and_in_the_sms_is_what_they_are_ahead(device: str) -> None:
    assert unsent(2, device) == pytest.approx([STORES_HELD + STORES_AHEAD] * 3, rel=0.06)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("thread_bytes", [4, 16])
def test_what_lies_in_front_of_the_link_does_not_depend_on_the_width_of_stores(thread_bytes: int, device: str) -> None:
    """Wider ones fill more of what an SM holds: loads wait longer, a workgroup's place is free later."""
    [full] = [r for r in rows(thread_bytes, device) if r["stored_bytes"] == "65536" and r["wave"] == "3"]
    held = behind(thread_bytes, device) + (float(full["pause_ns"]) - 200) * rate(thread_bytes, device)
    assert sum(unsent(thread_bytes, device)) / 3 - held == pytest.approx(STORES_AHEAD, rel=0.2)
    assert held > 1.3 * STORES_HELD


@pytest.mark.parametrize("device", DEVICES)
def test_stores_to_the_own_memory_hold_back_no_load(device: str) -> None:
    own = [r for r in rows(2, device, "own") if r["wave"] == "3"]
    assert [float(r["load_cycles"]) < 1.5 * UNLOADED for r in own] == [True]
