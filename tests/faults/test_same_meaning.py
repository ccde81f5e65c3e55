"""The same configuration, written in another way, is the same: equal specs, equal digests (R3, MR3).

That hash seed, locale, time zone and folder do not matter either: tests/properties/test_determinism.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from t3sim.experiment.planning.plan import load_experiment
from t3sim.results.digest import run_digest

LINK = "{bandwidth: 100 GB/s, latency: 1 us, egress_buffer: 16 KiB}"
BASE = f"""\
name: e
machine: {{name: mine, gpu: cu80, memory: {{preset: hbm2-1tb, queue: {{entries: 32}}}}, link: {LINK}}}
workload: {{gemm: {{m: 4096, n: 2048, k: 512}}, tp: 4}}
tiling: {{preset: gemm-128x128, prefetch_depth: 1}}
strategy: t3-mca
arbitration: {{policy: mca, threshold: 10, starvation_limit: 1000 cycles}}
quantum: 500 ns
sweep: {{grid: {{workload.tp: [2, 4]}}}}
"""
LINES = BASE.splitlines(keepends=True)
BLOCK_STYLE = """\
# A comment
name: 'e'          # in quotes
sweep:
  grid:
    workload.tp:
    - 2
    - 4
machine:
  link:
    egress_buffer: 16 KiB
    latency: 1 us
    bandwidth: 100 GB/s
  memory:
    queue: {entries: 32}
    preset: hbm2-1tb
  gpu: {preset: cu80}
  name: mine
strategy: "t3-mca"
workload:
  tp: 4
  gemm:
    k: 512
    n: 2048
    m: 4096
tiling:
  prefetch_depth: 1
  preset: gemm-128x128
arbitration:
  starvation_limit: 1000 cycles
  policy: mca
  params: {threshold: 10}
quantum: 500 ns
"""
FILES = {
    "machine.yaml": "name: mine\ngpu: gpu.yaml\nmemory: {preset: hbm2-1tb, queue: {entries: 32}}\nlink: link.yaml\n",
    "link.yaml": "".join(f"{item}\n" for item in LINK.strip("{}").split(", ")),
    "tiling.yaml": (
        "workgroup_tile: [128, 128]\nwavefront_tile: [64, 64]\nk_slice: 64\nprefetch_depth: {value: 1, origin: user}\n"
    ),
}
VARIANTS = {
    "order of keys": "".join([LINES[0], *reversed(LINES[1:])]),
    "comments, block style, quotes": BLOCK_STYLE,
    "CRLF and byte order mark": "\ufeff" + BASE.replace("\n", "\r\n"),
    "anchors and aliases": BASE.replace("k: 512", "k: &k 512").replace("entries: 32", "entries: &e 32")
    + "description: &d a text\n",
    "values by alias": BASE.replace("tp: 4}", "tp: &tp 4}").replace("[2, 4]", "[2, *tp]"),
    "other units": BASE.replace("1 us", "1000 ns").replace("16 KiB", "16384 B").replace("100 GB/s", "0.1 TB/s").replace(
        "500 ns", "5e5 ps"
    ).replace("1000 cycles", "1e3 cycles"),
    "annotations": BASE.replace("bandwidth: 100 GB/s", "bandwidth: {value: 100 GB/s, origin: paper, source: a paper}"),
    "split into files": BASE.replace(LINES[1], "machine: machine.yaml\n").replace(LINES[3], "tiling: tiling.yaml\n"),
    "defaults written out": "schema_version: 1\nmax_hours: 24\nmode: mirrored\nplugins: []\n" + BASE,
    "presets as mappings": BASE.replace("gpu: cu80", "gpu: {preset: cu80}"),
}  # fmt: skip


@pytest.fixture
def digests(tmp_path: Path, repository: Path):
    """Write an experiment beside the files that it may name; return the digests of its points."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    gpu = (repository / "configs/gpu/cu80.yaml").read_text(encoding="utf-8")
    (tmp_path / "gpu.yaml").write_text(gpu, encoding="utf-8")

    def digests_of(text: str, *overrides: str) -> list[str]:
        (tmp_path / "e.yaml").write_bytes(text.encode())
        return [run_digest(run) for run in load_experiment(tmp_path / "e.yaml", overrides).points]

    return digests_of


@pytest.mark.parametrize("variant", VARIANTS)
def test_another_spelling_has_the_same_digest(variant: str, digests) -> None:
    assert VARIANTS[variant] != BASE
    assert digests(VARIANTS[variant]) == digests(BASE)


def test_an_override_is_the_value_in_the_file(digests) -> None:
    other = BASE.replace("quantum: 500 ns", "quantum: 250 ns").replace("threshold: 10", "threshold: 5")
    assert digests(other, "quantum=500 ns", "arbitration.threshold=10") == digests(BASE)
    assert digests(BASE.replace(LINES[-1], ""), "sweep.grid.workload.tp=[2, 4]") == digests(BASE)
