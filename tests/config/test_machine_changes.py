"""What is said of a machine made from another: figures of its own values, and what a change brings along."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.refusals import t3sim_here

REST = "workload: {model: T-NLG, sublayer: FC-2, tp: 8}\nstrategy: sequential\n"
CHANGED = (
    "{preset: t3-150, memory: {clock: 1.6 GHz, n_channels: 64}, link: {bandwidth: 300 GB/s}, gpu: {l2: {n_banks: 128}}}"
)


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.chdir(tmp_path)

    def called(machine: str) -> tuple[int, str]:
        Path("e.yaml").write_text(f"name: e\nmachine: {machine}\n{REST}")
        answer = t3sim_here("config", "check", "e.yaml")
        return answer.code, " ".join((answer.printed + answer.errors).split())

    return called


def test_a_changed_machine_is_described_by_its_own_figures(check: object) -> None:
    """64 channels of 32 B a cycle at 1.6 GHz; not the 1 TB/s and 150 GB/s of its preset."""
    code, said = check(CHANGED)  # type: ignore[operator]
    assert code == 0
    assert "changed from t3-150: 80 compute units, 229 TFLOP/s FP16" in said
    assert "3.28 TB/s of memory, links of 300 GB/s" in said
    assert "1 TB/s HBM2" not in said


@pytest.mark.parametrize(
    ("memory", "is_noted"),
    [("clock: 1.6 GHz", True), ("clock: 1.6 GHz, timing: {nRCDRD: 23}", False), ("stream_queue_entries: 64", False)],
)
def test_another_clock_of_the_memory_says_that_timings_are_in_cycles(
    check: object, memory: str, *, is_noted: bool
) -> None:
    said = check(f"{{preset: t3-150, memory: {{{memory}}}}}")[1]  # type: ignore[operator]
    assert ("stay in cycles of its new clock, 0.625 ns each" in said) == is_noted


def test_the_bandwidth_of_the_memory_is_computed(check: object) -> None:
    code, said = check("{preset: t3-150, memory: {bandwidth: 3.35 TB/s}}")  # type: ignore[operator]
    assert code == 2
    assert "e.yaml:2:36: machine.memory.bandwidth: `bandwidth` is computed: `n_channels` x `access` x `clock`" in said
