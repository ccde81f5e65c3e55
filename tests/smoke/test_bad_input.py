"""Bad input is refused before anything is simulated or written: an exit code and a short message, no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.smoke.command_line import GEMM, HEADER, ONE_POINT, entries, t3sim

HUGE_TILE = "tiling: {workgroup_tile: [4096, 4096], wavefront_tile: [64, 64], k_slice: 64, prefetch_depth: 2}\n"

CASES = {
    "unknown key": (
        ONE_POINT + "stratgy: t3\n",
        "e.yaml:6:1: stratgy: unknown key `stratgy`; did you mean `strategy`?",
    ),
    "unknown nested key": (
        ONE_POINT.replace("tp: 4", "tpp: 4"),
        "e.yaml:3:44: workload.tpp: unknown key `tpp` under `workload`; did you mean `tp`?",
    ),
    "unknown preset": (
        ONE_POINT.replace("gemm-64x64", "gemm-63x64"),
        "e.yaml:4:9: tiling: unknown kernel `gemm-63x64`; did you mean `gemm-64x64`?",
    ),
    "duplicate key": (ONE_POINT + "strategy: t3\n", "e.yaml:6:1: strategy: duplicate key; the first is at 5:1"),
    "missing unit": (ONE_POINT + "quantum: 100\n", "e.yaml:6:10: quantum: 100 has no unit; did you mean `100 ns`?"),
    "wrong unit": (
        ONE_POINT + "quantum: 100 GB/s\n",
        "e.yaml:6:10: quantum: `100 GB/s` is a bandwidth, here a time is needed, like `500 ns`",
    ),
    "out of range": (ONE_POINT + "quantum: 1 s\n", "e.yaml:6:10: quantum: is 1 s, cannot be longer than"),
    "negative": (
        ONE_POINT.replace("k: 256", "k: -3"),
        "e.yaml:3:38: workload.gemm.k: found `-3`, must be above 0",
    ),
    "no GPUs": (ONE_POINT.replace("tp: 4", "tp: 0"), "e.yaml:3:48: workload.tp: found `0`, must be at least 1"),
    "more chunks than tiles": (ONE_POINT.replace("tp: 4", "tp: 65"), "e.yaml:3:48: workload.tp: is 65, but"),
    "tile larger than memory": (
        ONE_POINT.replace("tiling: gemm-64x64\n", HUGE_TILE),
        "e.yaml:4:26: tiling.workgroup_tile: [4096, 4096] needs 64 MiB for accumulators,",
    ),
    "empty": ("", "e.yaml"),
    "not YAML": ("name: [", "e.yaml:1:"),
    "not text": ("name: \x00\n", "e.yaml"),
}


@pytest.mark.parametrize(("text", "message"), CASES.values(), ids=CASES)
def test_bad_experiment_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(text, encoding="utf-8")
    check_refused(tmp_path, message)


def check_refused(folder: Path, *messages: str, options: tuple[str, ...] = ()) -> None:
    """Fail unless the run of ``e.yaml`` ends with code 2, the messages and nothing written."""
    before = entries(folder)
    done = t3sim("run", "e.yaml", "-o", "out", *options, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert 1 <= len(lines) <= 10
    assert "Traceback" not in done.stderr
    for message in messages:
        assert any(line.startswith(message) for line in lines), done.stderr
    assert entries(folder) == before


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("machine.link.bandwidth=100", "100 has no unit; did you mean `100 GB/s`?"),
        ("machine.link.latncy=1 ns", "unknown key `latncy` under `link`; did you mean `latency`?"),
        ("strategy=t4", "unknown strategy `t4`; did you mean `t3`?"),
    ],
)
def test_bad_override_is_refused(override: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(ONE_POINT, encoding="utf-8")
    key = override.partition("=")[0]
    check_refused(tmp_path, f"-s {override}: {key}: {message}", options=("-s", override))


def test_all_errors_of_a_file_at_once(tmp_path: Path) -> None:
    bad = HEADER + GEMM.replace("tp: 4", "tp: 0") + "strategy: t4\nquantum: 100\nmoed: mirrored\n"
    (tmp_path / "e.yaml").write_text(bad, encoding="utf-8")
    check_refused(
        tmp_path,
        "e.yaml:3:48: workload.tp: found `0`",
        "e.yaml:5:11: strategy: unknown strategy `t4`",
        "e.yaml:6:10: quantum: 100 has no unit",
        "e.yaml:7:1: moed: unknown key `moed`; did you mean `mode`?",
    )


def test_many_errors_stay_within_ten_lines(tmp_path: Path) -> None:
    text = ONE_POINT + "".join(f"key{i}: 1\n" for i in range(30))
    (tmp_path / "e.yaml").write_text(text, encoding="utf-8")
    check_refused(tmp_path, "e.yaml:6:1: key0: unknown key `key0`", "... and 21 more problems")


def test_missing_experiment(tmp_path: Path) -> None:
    done = t3sim("run", "nowhere.yaml", "-o", "out", cwd=tmp_path)
    assert done.returncode in (2, 3)
    assert "nowhere.yaml: no such file" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert entries(tmp_path) == []


@pytest.mark.parametrize("output", ["file", "file/below/it"])
def test_unwritable_output_folder_is_found_before_simulating(output: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept", encoding="utf-8")
    (tmp_path / "e.yaml").write_text(ONE_POINT, encoding="utf-8")
    done = t3sim("run", "e.yaml", "-o", output, cwd=tmp_path)
    assert done.returncode == 5
    assert done.stderr == f"t3sim: {output}: cannot write here: a part of the path is a file, not a folder (ENOTDIR)\n"
    assert "Times (us)" not in done.stdout
    assert entries(tmp_path) == ["e.yaml", "file"]
    assert (tmp_path / "file").read_text(encoding="utf-8") == "kept"
