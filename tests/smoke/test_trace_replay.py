"""A tile trace on disk replays as the GEMM it was made of, or is refused before anything is simulated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.here import t3sim_here
from tests.smoke.command_line import ALL_STRATEGIES, GEMM, manifest_of, rows_of, simulated, t3sim

REPLAY = ALL_STRATEGIES.replace(GEMM, "workload: {trace: x.parquet}\n")
MODEL = "workload: {model: T-NLG, sublayer: OP, tp: 16}\n"


def make(folder: Path, *options: str) -> Path:
    """Write ``x.parquet`` into *folder*."""
    done = t3sim_here("trace", "make", *options, "-o", folder / "x.parquet", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "x.parquet"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """The trace of the GEMM that the other smoke tests simulate."""
    return make(tmp_path, "--gemm", "512,512,256", "--tp", "4", "--tiling", "gemm-64x64")


def test_replay_equals_the_generated_gemm(base: Path, trace: Path) -> None:
    replayed = simulated(REPLAY, trace.parent)
    assert rows_of(replayed) == rows_of(base)
    assert (replayed / "trace.json.gz").read_bytes() == (base / "trace.json.gz").read_bytes()
    assert set(manifest_of(replayed)["inputs"]) == {"experiment.yaml", "x.parquet"}


@pytest.mark.deep  # a long way round what tests/workload shows of traces
def test_trace_of_a_sublayer_has_its_gemm(tmp_path: Path) -> None:
    make(tmp_path, "--model", "T-NLG", "--sublayer", "OP", "--tp", "16")
    shown = {}
    for name, workload in (("trace", "workload: {trace: x.parquet}\n"), ("model", MODEL)):
        (tmp_path / f"{name}.yaml").write_text(f"name: e\nmachine: t3-150\n{workload}strategy: t3\n", encoding="utf-8")
        done = t3sim("config", "show", f"{name}.yaml", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        shown[name] = json.loads(done.stdout)["workload"]
    for key in ("gemm", "tiling", "tp"):
        assert shown["trace"][key] == shown["model"][key]


def edit_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def remove(path: Path) -> None:
    path.unlink()


def remove_manifest(path: Path) -> None:
    path.with_name("x.manifest.json").unlink()


def edit_manifest(path: Path) -> None:
    manifest = path.with_name("x.manifest.json")
    manifest.write_text(manifest.read_text(encoding="utf-8").replace('"k": 256', '"k": 128'), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (edit_a_byte, ("x.parquet", "checksum verification failed")),
        (cut_short, ("x.parquet", "not a readable Parquet file")),
        (remove, ("workload.trace: `x.parquet`: no such file", "looked for at")),
        (remove_manifest, ("x.manifest.json", "no such file")),
        (edit_manifest, ("x.manifest.json", "edited")),
    ],
)
def test_damaged_trace_is_refused(trace: Path, damage: Callable[[Path], None], words: tuple[str, ...]) -> None:
    damage(trace)
    (trace.parent / "e.yaml").write_text(REPLAY, encoding="utf-8")
    done = t3sim_here("run", "e.yaml", "-o", "out", cwd=trace.parent)
    assert done.returncode == 3
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 10
    assert not (trace.parent / "out").exists()
