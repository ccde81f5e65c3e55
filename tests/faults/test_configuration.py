"""Bad configuration: every fault of the rows F-A1 to F-A14 ends in its message and code 2, with nothing done.

Rows: 1 malformed YAML, 2 unknown names, 3 duplicates, 4 surprises of YAML 1.1, 5 numbers out of range, 6 keys that
contradict each other, 7 units, 8 shapes, 9 too much to simulate, 10 tags, 11 bombs, 12 aliases of themselves,
13 files that name files (there is no `include:`; presets, models and plugins are what a file can name), 14 versions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from t3sim.config import yaml_loader
from t3sim.config.yaml_loader import load_yaml_text
from t3sim.experiment.planning.plan import load_experiment
from tests.conftest import cases
from tests.faults.refusals import Case, case, check_refused, check_same_problems, t3sim_here
from tests.smoke.command_line import entries

BASE = "name: e\nmachine: t3-150\nworkload: {model: T-NLG, sublayer: FC-2, tp: 8}\nstrategy: t3\n"
EXPECTED = "{start: 3 us, step: 0 us, bandwidth: 4 GB/s}"
LOW_LATENCY = (
    "{launch: 0 us, slice_overhead: 0 us, chunk: 4 KiB, slices: 2, least_slice: 1 KiB, data_per_line: %s, "
    f"expected: {EXPECTED}}}"
)
BOMB_S = 0.5  # of CPU time
HANG_S = 5.0  # of CPU time; the largest legal file takes half a second, three without libyaml


ENGINE = "number: 1, startup: 1 us, bandwidth: 4 GB/s, max_outstanding_lines: 64"


def workload(text: str) -> str:
    """The base with another workload."""
    return BASE.replace("{model: T-NLG, sublayer: FC-2, tp: 8}", text)


def machine(text: str) -> str:
    """The base with values that replace those of the machine."""
    return BASE.replace("t3-150", f"{{preset: t3-150, {text}}}")


def timing(text: str) -> str:
    """The base with another DRAM timing."""
    return machine(f"memory: {{timing: {{{text}}}}}")


LLAMA = (
    '{"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, '
    '"num_attention_heads": 4, "num_key_value_heads": 2}'
)
LETTERS = "abcdefghi"


def aliases_of_aliases(levels: int = 8) -> str:
    """A few hundred bytes that stand for 9 to the power of *levels* values."""
    lines = [f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in pairwise(LETTERS[: levels + 1])]
    return "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(lines)


def merges_of_merges(levels: int = 8) -> str:
    """The same with merge keys, which PyYAML expands while it reads."""
    lines = [f"{b}: &{b} {{<<: [{', '.join([f'*{a}'] * 9)}]}}\n" for a, b in pairwise(LETTERS[: levels + 1])]
    return "a: &a {k: x}\n" + "".join(lines)


CASES = [
    case("F-A1 malformed", "name: [\n", "e.yaml:2:1: closed"),
    case("F-A1 unclosed quote", 'name: "e\n', "e.yaml:2:1: closed"),
    case("F-A1 colon in a value", "name: a: b\n", "e.yaml:1:8: quotes"),
    case("F-A1 tab", "machine:\n\tpreset: t3-150\n", "e.yaml:2:1: indent;"),
    case("F-A1 NUL", "name: \x00\n", "e.yaml:1:7: character"),
    case("F-A1 NUL as an escape", 'name: "a\\0"\n', "e.yaml:1:7: name: character"),
    case("F-A1 escape sequence of a terminal", "name: \x1b[2J\n", "e.yaml:1:7: 001"),
    case("F-A1 half a character", 'name: "\\ud800"\n', "e.yaml:1:7: name: 800"),
    case("F-A1 bad UTF-8", b"name: \xff\n", "e.yaml:1:7: 0"),
    case("F-A1 UTF-16", "name: e\n".encode("utf-16"), "e.yaml:1:1: 0"),
    case("F-A1 key that is a list", "[name]: e\n", "e.yaml:1:1: plain"),
    case("F-A1 two documents", BASE + "---\n" + BASE, "e.yaml:5:1: document"),
    case("F-A1 empty", "", "e.yaml: empty"),
    case("F-A1 only comments", "# later\n", "e.yaml: empty"),
    case("F-A1 list", "- name\n", "e.yaml:1:1: experiment"),
    case("F-A1 text", "experiment\n", "e.yaml:1:1: experiment"),
    case("F-A2 unknown key", BASE + "stratgy: t3\n", "e.yaml:5:1: stratgy: `stratgy`"),
    case(
        "F-A2 unknown nested key", machine("link: {bandwith: 1 GB/s}"), "e.yaml:2:34: machine.link.bandwith: `bandwith`"
    ),
    case("F-A2 unknown key of nothing like it", BASE + "zzz: 1\n", "e.yaml:5:1: zzz: `zzz`"),
    case(
        "F-A2 unknown key in an override",
        BASE,
        "-s machine.link.latncy=1 ns: machine.link.latncy: `latncy`",
        options=("-s", "machine.link.latncy=1 ns"),
    ),
    case("F-A2 unknown preset", BASE.replace("t3-150", "t3-15O"), "e.yaml:2:10: machine: `t3-15O`"),
    case("F-A2 unknown strategy", BASE.replace("strategy: t3", "strategy: t4"), "e.yaml:4:11: strategy: `t4`"),
    case("F-A2 unknown model", workload("{model: TNLH, sublayer: FC-2, tp: 8}"), "e.yaml:3:19: workload.model: `TNLH`"),
    case(
        "F-A2 unknown sublayer",
        workload("{model: T-NLG, sublayer: FC3, tp: 8}"),
        "e.yaml:3:36: workload.sublayer: `FC3`",
    ),
    case(
        "F-A2 unknown parameter of a policy",
        BASE.replace("t3\n", "t3-mca\n") + "arbitration: {policy: mca, treshold: 5}\n",
        "e.yaml:5:28: arbitration.treshold: `mca`",
    ),
    case(
        "F-A2 missing keys",
        "name: e\n",
        "e.yaml:1:1: workload: missing",
        "e.yaml:1:1: machine: missing",
        "e.yaml:1:1: strategy: missing",
    ),
    case("F-A2 list where a mapping is needed", workload("[1]"), "e.yaml:3:11: workload: collective"),
    case("F-A3 duplicate key", BASE + "strategy: t3-mca\n", "e.yaml:5:1: strategy: 4"),
    case(
        "F-A3 duplicate nested key",
        workload("{model: T-NLG, sublayer: FC-2, tp: 8, tp: 16}"),
        "e.yaml:3:49: workload.tp: 3",
    ),
    case(
        "F-A3 value listed twice",
        BASE + "sweep: {grid: {workload.tp: [8, 16, 8]}}\n",
        "e.yaml:5:37: sweep.grid.workload.tp: `8`",
    ),
    case("F-A4 octal", workload("{model: T-NLG, sublayer: FC-2, tp: 017}"), "e.yaml:3:46: workload.tp: `017`"),
    case(
        "F-A4 octal of YAML 1.2",
        workload("{model: T-NLG, sublayer: FC-2, tp: 0o17}"),
        "e.yaml:3:46: workload.tp: `0o17`",
    ),
    case("F-A4 hexadecimal", workload("{model: T-NLG, sublayer: FC-2, tp: 0x8}"), "e.yaml:3:46: workload.tp: `0x8`"),
    case("F-A4 binary", workload("{model: T-NLG, sublayer: FC-2, tp: 0b1000}"), "e.yaml:3:46: workload.tp: `0b1000`"),
    case("F-A4 leading zero", workload("{model: T-NLG, sublayer: FC-2, tp: 08}"), "e.yaml:3:46: workload.tp: `08`"),
    case("F-A4 sexagesimal", BASE + "quantum: 1:30\n", "e.yaml:5:10: quantum: `1:30`"),
    case(
        "F-A4 underscore", workload("{gemm: {m: 1_000, n: 512, k: 64}, tp: 4}"), "e.yaml:3:22: workload.gemm.m: `1_000`"
    ),
    case("F-A4 date", BASE.replace("name: e", "name: 2024-01-02"), "e.yaml:1:7: name: `2024-01-02`"),
    case("F-A4 no is a text", workload("{model: T-NLG, sublayer: FC-2, tp: no}"), "e.yaml:3:46: workload.tp: `no`"),
    case("F-A4 bool", workload("{model: T-NLG, sublayer: FC-2, tp: true}"), "e.yaml:3:46: workload.tp: `true`"),
    case(
        "F-A4 float with an exponent where a count is needed",
        workload("{gemm: {m: 1e3, n: 512, k: 64}, tp: 4}"),
        "e.yaml:3:22: workload.gemm.m: `1000.0`",
    ),
    case("F-A4 in an override", BASE, "-s workload.tp=010: workload.tp: `010`", options=("-s", "workload.tp=010")),
    case("F-A5 negative", workload("{gemm: {m: 512, n: 512, k: -64}, tp: 4}"), "e.yaml:3:38: workload.gemm.k: `-64`"),
    case("F-A5 zero", workload("{gemm: {m: 0, n: 512, k: 64}, tp: 4}"), "e.yaml:3:22: workload.gemm.m: `0`"),
    case(
        "F-A5 2^62",
        workload("{gemm: {m: 4611686018427387904, n: 512, k: 64}, tp: 4}"),
        "e.yaml:3:22: workload.gemm.m: `4611686018427387904`",
    ),
    case(
        "F-A5 2^64",
        workload("{gemm: {m: 18446744073709551616, n: 512, k: 64}, tp: 4}"),
        "e.yaml:3:22: workload.gemm.m: `18446744073709551616`",
    ),
    case(
        "F-A5 quantity of 2^62",
        machine("gpu: {l2: {capacity: 4611686018427387904 B}}"),
        "e.yaml:2:48: machine.gpu.l2.capacity: `4611686018427387904 B`",
    ),
    case(
        "F-A5 quantity with a huge exponent",
        machine("link: {latency: 1e99 s}"),
        "e.yaml:2:43: machine.link.latency: `1e99 s`",
    ),
    case("F-A5 negative quantity", machine("link: {latency: -5 ns}"), "e.yaml:2:43: machine.link.latency: `-5 ns`"),
    case("F-A5 zero quantity", machine("link: {bandwidth: 0 GB/s}"), "e.yaml:2:45: machine.link.bandwidth: `0 GB/s`"),
    case(
        "F-A5 part of a picosecond", machine("link: {latency: 0.1 ps}"), "e.yaml:2:43: machine.link.latency: `0.1 ps`"
    ),
    case(
        "F-A5 nan",
        machine("gpu: {compute_unit: {matrix_efficiency: .nan}}"),
        "e.yaml:2:67: machine.gpu.compute_unit.matrix_efficiency: `.nan`",
    ),
    case(
        "F-A5 inf",
        machine("gpu: {compute_unit: {matrix_efficiency: .inf}}"),
        "e.yaml:2:67: machine.gpu.compute_unit.matrix_efficiency: `.inf`",
    ),
    case(
        "F-A5 nan as a text",
        machine("gpu: {compute_unit: {matrix_efficiency: nan}}"),
        "e.yaml:2:67: machine.gpu.compute_unit.matrix_efficiency: `nan`",
    ),
    case(
        "F-A5 too large for a float",
        machine("gpu: {compute_unit: {matrix_efficiency: 1e999}}"),
        "e.yaml:2:67: machine.gpu.compute_unit.matrix_efficiency: `1e999`",
    ),
    case(
        "F-A5 5000 digits",
        workload("{gemm: {m: " + "9" * 5000 + ", n: 512, k: 64}, tp: 4}"),
        "e.yaml:3:22: workload.gemm.m: 5000",
    ),
    case(
        "F-A5 float for a count",
        workload("{gemm: {m: 512.0, n: 512, k: 64}, tp: 4}"),
        "e.yaml:3:22: workload.gemm.m: `512.0`",
    ),
    case(
        "F-A5 text for a count",
        workload("{gemm: {m: '512', n: 512, k: 64}, tp: 4}"),
        "e.yaml:3:22: workload.gemm.m: `512`",
    ),
    case(
        "F-A5 efficiency above 1",
        machine("gpu: {compute_unit: {matrix_efficiency: 1.5}}"),
        "e.yaml:2:67: machine.gpu.compute_unit.matrix_efficiency: `1.5`",
    ),
    case("F-A6 nRAS < nRCD", timing("nRAS: 10"), "e.yaml:2:51: machine.memory.timing.nRAS: `nRCDRD`"),
    case("F-A6 nRC < nRAS + nRP", timing("nRC: 46"), "e.yaml:2:50: machine.memory.timing.nRC: `nRAS`"),
    case("F-A6 nFAW < nRRDS", timing("nFAW: 3"), "e.yaml:2:51: machine.memory.timing.nFAW: `nRRDS`"),
    case(
        "F-A6 no time between two refreshes", timing("nREFI: 411"), "e.yaml:2:52: machine.memory.timing.nREFI: `nRFC`"
    ),
    case(
        "F-A6 no time between two refreshes of a bank",
        timing("nREFI: 461, nRFCpb: 400"),
        "e.yaml:2:52: machine.memory.timing.nREFI: `nRFCpb`",
    ),
    case(
        "F-A6 no time for the refreshes of all banks",
        timing("nREFI: 352, nRFCpb: 100, nRREFD: 8"),
        "e.yaml:2:52: machine.memory.timing.nREFI: `nRP`",
    ),
    case(
        "F-A6 an efficiency that rounds to nothing",
        machine("gpu: {compute_unit: {matrix_efficiency: 0.00004}}"),
        "e.yaml:2:67: machine.gpu.compute_unit.matrix_efficiency: 4",
    ),
    case(
        "F-A6 a reduction of one line",
        machine("gpu: {collective_kernel: {max_outstanding_lines: 1}}"),
        "e.yaml:2:76: machine.gpu.collective_kernel.max_outstanding_lines: 1",
    ),
    case(
        "F-A6 flags that are most of a line",
        machine(f"gpu: {{collective_kernel: {{expected: {EXPECTED}, low_latency: {LOW_LATENCY % '32 B'}}}}}"),
        "e.yaml:2:219: machine.gpu.collective_kernel.low_latency.data_per_line: `gpu.l2.line`",
    ),
    case(
        "F-A6 a line and its flags on two channels",
        machine(
            f"gpu: {{collective_kernel: {{expected: {EXPECTED}, low_latency: {LOW_LATENCY % '64 B'}}}}}, "
            "memory: {channel_interleave: 128 B}"
        ),
        "e.yaml:2:122: machine.gpu.collective_kernel.low_latency: `memory.channel_interleave`",
    ),
    case(
        "F-A6 a protocol that is never taken",
        machine(f"gpu: {{collective_kernel: {{low_latency: {LOW_LATENCY % '64 B'}}}}}"),
        "e.yaml:2:66: machine.gpu.collective_kernel.low_latency: `gpu.collective_kernel.expected`",
    ),
    case(
        "F-A6 a link port that holds no line",
        machine("link: {egress_buffer: 64 B}"),
        "e.yaml:2:49: machine.link.egress_buffer: `gpu.l2.line`",
    ),
    case(
        "F-A6 a compute unit in no group",
        machine('gpu: {n_compute_units: 4, compute_unit_groups: ["0-1", "2"]}'),
        "e.yaml:2:74: machine.gpu.compute_unit_groups: 3",
    ),
    case(
        "F-A6 a compute unit in two groups",
        machine('gpu: {n_compute_units: 4, compute_unit_groups: ["0-3", "1-2"]}'),
        "e.yaml:2:74: machine.gpu.compute_unit_groups: 1",
    ),
    case(
        "F-A6 a group of compute units that are not there",
        machine('gpu: {n_compute_units: 4, compute_unit_groups: ["0-3", "4-9"]}'),
        "e.yaml:2:74: machine.gpu.compute_unit_groups: `gpu.n_compute_units`",
    ),
    case(
        "F-A6 a group that is no list of numbers",
        machine('gpu: {n_compute_units: 4, compute_unit_groups: ["0-1", "2..3"]}'),
        "e.yaml:2:82: machine.gpu.compute_unit_groups[1]: `2..3`",
    ),
    case(
        "F-A6 more groups of compute units than queues",
        machine(f"gpu: {{n_compute_units: 33, compute_unit_groups: {list(range(33))}}}"),
        "e.yaml:2:75: machine.gpu.compute_unit_groups: 33",
    ),
    case(
        "F-A6 an L1 whose sizes do not rise",
        machine("gpu: {compute_unit: {l1: {with_lds: 256 KiB, lds_sizes: [64 KiB, 128 KiB, 100 KiB]}}}"),
        "e.yaml:2:83: machine.gpu.compute_unit.l1.lds_sizes: 64",
    ),
    case(
        "F-A6 an L1 that may have no line",
        machine("gpu: {compute_unit: {l1: {with_lds: 128 KiB, lds_sizes: [64 KiB, 128 KiB]}}}"),
        "e.yaml:2:63: machine.gpu.compute_unit.l1.with_lds: `lds_sizes`",
    ),
    case(
        "F-A6 an LDS that is set to no size that holds it",
        machine(
            "gpu: {compute_unit: {l1: {with_lds: 128 KiB, lds_sizes: [64 KiB]}, lds: 64 KiB},"
            " collective_kernel: {lds: 96 KiB}}"
        ),
        "e.yaml:2:133: machine.gpu.collective_kernel.lds: `gpu.compute_unit.l1.lds_sizes`",
    ),
    case(
        "F-A6 a link port whose parts hold no line",
        machine('gpu: {n_compute_units: 4, compute_unit_groups: ["0", "1", "2", "3"]}, link: {egress_buffer: 384 B}'),
        "e.yaml:2:119: machine.link.egress_buffer: `gpu.l2.line`",
    ),
    case(
        "F-A6 a link port that holds no line with its flags",
        machine(
            f"link: {{egress_buffer: 128 B}}, gpu: {{collective_kernel: {{expected: {EXPECTED},"
            f" low_latency: {LOW_LATENCY % '64 B'}}}}}"
        ),
        "e.yaml:2:49: machine.link.egress_buffer: `gpu.l2.line`",
    ),
    case(
        "F-A6 packets of engines on a link without packets",
        machine("gpu: {copy_engines: {" + ENGINE + ", packet_payload: 256 B}}"),
        "e.yaml:2:136: machine.gpu.copy_engines.packet_payload: `link.packet_payload`",
    ),
    case(
        "F-A6 packets of engines that are no power of two",
        machine(
            "gpu: {copy_engines: {" + ENGINE + ", packet_payload: 200 B}},"
            " link: {packet_payload: 128 B, packet_header: 16 B}"
        ),
        "e.yaml:2:136: machine.gpu.copy_engines.packet_payload: 200",
    ),
    case("F-A6 nCCDL < burst", timing("nCCDS: 1"), "e.yaml:2:52: machine.memory.timing.nCCDS: `nBL`"),
    case(
        "F-A6 threshold above the queue",
        BASE.replace("t3\n", "t3-mca\n") + "arbitration: {policy: mca, threshold: 65}\n",
        "e.yaml:5:39: arbitration.threshold: `machine.memory.queue.entries`",
    ),
    case(
        "F-A6 watermarks crossed",
        machine("memory: {queue: {kind: split, write_low_watermark: 50}}"),
        "e.yaml:2:78: machine.memory.queue.write_low_watermark: `write_high_watermark`",
    ),
    case("F-A6 banks", machine("memory: {banks_per_group: 3}"), "e.yaml:2:53: machine.memory.banks_per_group: 3"),
    case(
        "F-A6 channels",
        machine("memory: {n_channels: 24}"),
        "e.yaml:2:48: machine.memory.n_channels: 24",
        "configs/gpu/cu80.yaml:21:20: machine.gpu.l2.n_banks: `memory.n_channels`",
    ),
    case("F-A6 peak of nothing", machine("memory: {clock: 0 GHz}"), "e.yaml:2:43: machine.memory.clock: `0 GHz`"),
    case(
        "F-A6 clock of nothing, where a word may stand",
        machine("gpu: {operating_points: {sustained: {matrix_clock: 0 Hz}}}"),
        "e.yaml:2:78: machine.gpu.operating_points.sustained.matrix_clock: `0`",
    ),
    case(
        "F-A6 matrix rate of nothing",
        machine("gpu: {compute_unit: {matrix_flops_per_cycle: 0}}"),
        "e.yaml:2:72: machine.gpu.compute_unit.matrix_flops_per_cycle: `0`",
    ),
    case("F-A6 quantum above the latency", BASE + "quantum: 600 ns\n", "e.yaml:5:10: quantum: `machine.link.latency`"),
    case("F-A7 missing unit", BASE + "quantum: 100\n", "e.yaml:5:10: quantum: `100 ns`"),
    case(
        "F-A7 GB for a capacity",
        machine("gpu: {l2: {capacity: 16 MB}}"),
        "e.yaml:2:48: machine.gpu.l2.capacity: `16 MB`",
    ),
    case(
        "F-A7 amount for a bandwidth",
        machine("link: {bandwidth: 150 GB}"),
        "e.yaml:2:45: machine.link.bandwidth: `150 GB`",
    ),
    case(
        "F-A7 frequency for a latency",
        machine("link: {latency: 1.4 GHz}"),
        "e.yaml:2:43: machine.link.latency: `1.4 GHz`",
    ),
    case("F-A7 bits", machine("link: {bandwidth: 150 Gbps}"), "e.yaml:2:45: machine.link.bandwidth: `150 Gbps`"),
    case("F-A7 unknown unit", machine("link: {latency: 5 parsec}"), "e.yaml:2:43: machine.link.latency: `5 parsec`"),
    case("F-A7 wrong case", machine("link: {latency: 5 NS}"), "e.yaml:2:43: machine.link.latency: `5 NS`"),
    case(
        "F-A7 unit on a count",
        workload("{model: T-NLG, sublayer: FC-2, tp: 8 GPUs}"),
        "e.yaml:3:46: workload.tp: `8 GPUs`",
    ),
    case(
        "F-A7 time for cycles",
        machine("gpu: {l2: {hit_latency: 100 ns}}"),
        "e.yaml:2:51: machine.gpu.l2.hit_latency: `100 ns`",
    ),
    case("F-A8 tp 0", workload("{model: T-NLG, sublayer: FC-2, tp: 0}"), "e.yaml:3:46: workload.tp: `0`"),
    case("F-A8 tp does not divide", workload("{model: T-NLG, sublayer: FC-2, tp: 3}"), "e.yaml:3:46: workload.tp: 2"),
    case("F-A8 tp above the tiles", workload("{gemm: {m: 512, n: 512, k: 64}, tp: 9}"), "e.yaml:3:47: workload.tp: 9"),
    case(
        "F-A8 tp above the limit",
        workload("{model: T-NLG, sublayer: FC-2, tp: 1025}"),
        "e.yaml:3:46: workload.tp: `1025`",
    ),
    case(
        "F-A8 tile not divisible",
        BASE,
        "-s tiling.wavefront_tile=[48, 64]: tiling.wavefront_tile: `workgroup_tile`",
        options=("-s", "tiling.wavefront_tile=[48, 64]"),
    ),
    case(
        "F-A8 tile larger than the registers",
        BASE,
        "-s tiling={workgroup_tile: `machine.gpu.compute_unit.lds`",
        "-s tiling={workgroup_tile: `machine.gpu.compute_unit.registers`",
        options=("-s", "tiling={workgroup_tile: [512, 256], wavefront_tile: [128, 128]}"),
    ),
    case(
        "F-A9 10^12 points",
        BASE
        + "sweep: {grid: {"
        + ", ".join(f"machine.gpu.l2.k{i}: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]" for i in range(12))
        + "}}\n",
        "e.yaml:5:15: sweep.grid: 1000000000000",
    ),
    case(
        "F-A9 more points than can be counted",
        BASE + "sweep: {grid: {" + ", ".join(f"k{i}: [1, 2]" for i in range(5000)) + "}}\n",
        "e.yaml:5:15: sweep.grid: 10",
    ),
    case(
        "F-A9 matrix of 2^41 B",
        workload("{gemm: {m: 1048576, n: 1048576, k: 64}, tp: 8}"),
        "e.yaml:3:18: workload.gemm: 1048576",
    ),
    case(
        "F-A9 operand of 2^41 B",
        workload("{gemm: {m: 1048576, n: 128, k: 1048576}, tp: 8}"),
        "e.yaml:3:18: workload.gemm: 1048576",
    ),
    case(
        "F-A9 too many tiles",
        workload("{gemm: {m: 536870912, n: 1024, k: 64}, tp: 8}"),
        "e.yaml:3:18: workload.gemm: 536870912",
    ),
    case(
        "F-A9 dot product of 2^63",
        workload("{model: vast.json, sublayer: OP, tokens: 512, tp: 4}"),
        "e.yaml:3:61: workload.tp: 9223372036854775808",
    ),
    case(
        "F-A9 days of simulation",
        workload("{gemm: {m: 131072, n: 131072, k: 65536}, tp: 8}"),
        "e.yaml:1:1: max_hours: `max_hours`",
    ),
    case(
        "F-A9 collective of 2^41 B",
        workload("{collective: {op: all-gather, size: 2 TiB, gpus: 4}}").replace(
            "strategy: t3", "strategy: sequential"
        ),
        "e.yaml:3:47: workload.collective.size: 2",
    ),
    case(
        "F-A9 machine of 10^12 compute units",
        machine("gpu: {n_compute_units: 1000000000000}"),
        "e.yaml:2:50: machine.gpu.n_compute_units: 1000000000000",
    ),
    case(
        "F-A9 buffer of 2^61 B",
        machine("link: {egress_buffer: 2305843009213693952 B}"),
        "e.yaml:2:49: machine.link.egress_buffer: 2097152",
    ),
    case(
        "F-A9 latency of 2^61 cycles",
        machine("gpu: {l2: {miss_latency: 2305843009213693952 cycles}}"),
        "e.yaml:2:52: machine.gpu.l2.miss_latency: 2305843009213693952",
    ),
    case("F-A9 latency of a day", machine("link: {latency: 86400 s}"), "e.yaml:2:43: machine.link.latency: 86400"),
    case(
        "F-A9 loads in flight",
        machine("gpu: {n_compute_units: 4096, compute_unit: {max_outstanding_lines: 16384}}"),
        "e.yaml:2:94: machine.gpu.compute_unit.max_outstanding_lines: `gpu.n_compute_units`",
    ),
    case(
        "F-A9 link faster than its outbox",
        machine("link: {bandwidth: 50 TB/s}"),
        "e.yaml:2:45: machine.link.bandwidth: `memory.access`",
    ),
    case("F-A9 file of 2 MiB", "#" * (2 << 20), "e.yaml: 2097152"),
    case(
        "F-A10 python object",
        "name: !!python/object/apply:os.mkdir [canary]\n",
        "e.yaml:1:7: name: `tag:yaml.org,2002:python/object/apply:os.mkdir`",
    ),
    case(
        "F-A10 python name",
        "name: !!python/name:os.system\n",
        "e.yaml:1:7: name: `tag:yaml.org,2002:python/name:os.system`",
    ),
    case("F-A10 own tag", "name: !t3 e\n", "e.yaml:1:7: name: `!t3`"),
    case(
        "F-A10 standard tag",
        workload("{model: T-NLG, sublayer: FC-2, tp: !!int 8}"),
        "e.yaml:3:46: workload.tp: `tag:yaml.org,2002:int`",
    ),
    case("F-A10 tag of a key", "!!str name: e\n", "e.yaml:1:1: `tag:yaml.org,2002:str`"),
    case("F-A10 tag directive", "%TAG ! tag:x,2000:\n---\n" + BASE, "e.yaml:1:1: allowed"),
    case(
        "F-A10 bool as a float",
        machine("gpu: {compute_unit: {matrix_efficiency: true}}"),
        "e.yaml:2:67: machine.gpu.compute_unit.matrix_efficiency: `true`",
    ),
    case("F-A11 aliases of aliases", aliases_of_aliases(), "e.yaml:6:8: 100000"),
    case("F-A11 merge keys of merge keys", merges_of_merges(), "e.yaml:2:8: b: `<<`"),
    case("F-A11 merge key", "a: &a {k: x}\nb: {<<: *a}\n", "e.yaml:2:5: b: `<<`"),
    case("F-A11 1001 aliases", "- &a x\n" + "- *a\n" * 1001, "e.yaml:1002:3: 1000"),
    case("F-A11 51 levels", "[" * 51 + "]" * 51, "e.yaml:1:51: 0"),
    case("F-A11 900 brackets", "[" * 900, "e.yaml:1:51: 0"),
    case(
        "F-A11 100000 braces",
        "{a: " * 100000,
        "e.yaml:1:201: a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a....: 50",
    ),
    case("F-A11 100001 values", "[" + "1," * 100001 + "]", "e.yaml:1:200000: 100000"),
    case(
        "F-A11 override of 1000 steps",
        BASE,
        "-s a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a...: 50",
        options=("-s", ".".join("a" * 1000) + "=1"),
    ),
    case("F-A12 alias of itself", "name: &a [*a]\n", "e.yaml:1:11: name[0]: `*a`"),
    case("F-A12 alias of itself further down", "name: &a {b: [1, {c: *a}]}\n", "e.yaml:1:22: name.b[1].c: `*a`"),
    case("F-A12 alias before its anchor", "name: *a\nstrategy: &a t3\n", "e.yaml:1:7: name: `*a`"),
    case("F-A13 include", BASE + "include: e.yaml\n", "e.yaml:5:1: include: `include`"),
    case("F-A13 extends", BASE + "extends: e.yaml\n", "e.yaml:5:1: extends: `extends`"),
    case(
        "F-A13 preset that names itself", BASE.replace("t3-150", "loop.yaml"), "loop.yaml:1:9: machine.preset: circle"
    ),
    case(
        "F-A13 part that names itself",
        machine("gpu: loop-gpu.yaml"),
        "e.yaml:2:27: machine.gpu.n_compute_units: missing",
        "e.yaml:2:27: machine.gpu.compute_clock: missing",
        "e.yaml:2:27: machine.gpu.issue_slot: missing",
        "e.yaml:2:27: machine.gpu.kernel_launch: missing",
        "e.yaml:2:27: machine.gpu.compute_unit: missing",
        "e.yaml:2:27: machine.gpu.l2: missing",
        "e.yaml:2:27: machine.gpu.tracker: missing",
        "e.yaml:2:27: machine.gpu.dma: missing",
        "e.yaml:2:27: machine.gpu.collective_kernel: missing",
        "loop-gpu.yaml:1:1: machine.gpu.preset: unknown",
    ),
    case(
        "F-A13 experiment as a machine",
        BASE.replace("t3-150", "e.yaml"),
        "e.yaml:1:1: machine.gpu: missing",
        "e.yaml:1:1: machine.memory: missing",
        "e.yaml:1:1: machine.link: missing",
        "e.yaml:2:1: machine.machine: `machine`",
        "e.yaml:3:1: machine.workload: `workload`",
        "e.yaml:4:1: machine.strategy: `strategy`",
    ),
    case("F-A13 missing preset", BASE.replace("t3-150", "mine.yaml"), "e.yaml:2:10: machine: `mine.yaml`"),
    case(
        "F-A13 missing preset in an override",
        BASE,
        "-s machine=mine.yaml: machine: `mine.yaml`",
        options=("-s", "machine=mine.yaml"),
    ),
    case("F-A13 preset is a folder", BASE.replace("t3-150", "folder.yaml"), "e.yaml:2:10: machine: `folder.yaml`"),
    case("F-A13 preset is a FIFO", BASE.replace("t3-150", "fifo.yaml"), "e.yaml:2:10: machine: `fifo.yaml`"),
    case("F-A13 preset is /dev/zero", BASE.replace("t3-150", "zero.yaml"), "e.yaml:2:10: machine: `zero.yaml`"),
    case(
        "F-A13 model is a FIFO",
        workload("{model: fifo.yaml, sublayer: FC-2, tp: 8}"),
        "e.yaml:3:19: workload.model: `fifo.yaml`",
    ),
    case(
        "F-A13 preset of preset is missing",
        BASE.replace("t3-150", "half.yaml"),
        "half.yaml:3:9: machine.memory: `gone.yaml`",
    ),
    case("F-A13 plugin is missing", BASE + "plugins: [none.py]\n", "e.yaml:5:11: plugins: `none.py`"),
    case("F-A13 plugin is a folder", BASE + "plugins: [folder.yaml]\n", "e.yaml:5:11: plugins: `folder.yaml`"),
    case("F-A13 plugin that fails", BASE + "plugins: [bad.py]\n", "{folder}/bad.py:1: ZeroDivisionError:"),
    case("F-A13 plugin that exits", BASE + "plugins: [exit.py]\n", "{folder}/exit.py:1: SystemExit:"),
    case("F-A14 older version", "schema_version: 0\n" + BASE, "e.yaml:1:17: schema_version: 0"),
    case("F-A14 future version", "schema_version: 2\n" + BASE + "a_new_key: 1\n", "e.yaml:1:17: schema_version: 2"),
    case("F-A14 version as a text", "schema_version: '1'\n" + BASE, "e.yaml:1:17: schema_version: 1"),
    case("F-A14 version as a float", "schema_version: 1.0\n" + BASE, "e.yaml:1:17: schema_version: 1"),
    case(
        "F-A14 version swept",
        BASE + "sweep: {grid: {schema_version: [1, 2]}}\n",
        "e.yaml:5:16: sweep.grid.schema_version: `schema_version`",
    ),
    case(
        "F-A14 version in an override",
        BASE,
        "-s schema_version=2: schema_version: 2",
        options=("-s", "schema_version=2"),
    ),
    case(
        "F-A2 unknown key of a workload",
        workload("{model: T-NLG, layers: training, tp: 8}"),
        "e.yaml:3:26: workload.layers: `layers`",
    ),
    case(
        "F-A2 unknown kind of layer",
        workload("{model: T-NLG, layer: train, tp: 8}"),
        "e.yaml:3:33: workload.layer: `train`",
    ),
    case(
        "F-A2 unknown kind of attention",
        workload("{model: T-NLG, layer: prompt, attention: flash, tp: 8}"),
        "e.yaml:3:52: workload.attention: `flash`",
    ),
    case(
        "F-A2 neither sublayer nor layer",
        workload("{model: T-NLG, tp: 8}"),
        "e.yaml:3:1: workload: `workload.sublayer`",
    ),
    case(
        "F-A5 tokens of nothing",
        workload("{model: T-NLG, sublayer: OP, tokens: 0, tp: 8}"),
        "e.yaml:3:48: workload.tokens: `0`",
    ),
    case(
        "F-A5 fraction of a token",
        workload("{model: T-NLG, layer: prompt, sequence: 0.5, tp: 8}"),
        "e.yaml:3:51: workload.sequence: `0.5`",
    ),
    case(
        "F-A5 negative compute units",
        BASE.replace("t3\n", "{name: cu-split, collective_compute_units: -8}\n"),
        "e.yaml:4:54: strategy.collective_compute_units: 8",
    ),
    case(
        "F-A6 layer and sublayer",
        workload("{model: T-NLG, sublayer: OP, layer: prompt, tp: 8}"),
        "e.yaml:3:47: workload.layer: `workload.sublayer`",
    ),
    case(
        "F-A6 keys of a layer without one",
        workload("{model: T-NLG, sublayer: OP, attention: fused, sequence: 1024, tp: 8}"),
        "e.yaml:3:51: workload.attention: `workload.layer`",
        "e.yaml:3:68: workload.sequence: `workload.layer`",
    ),
    case(
        "F-A6 keys of a model without one",
        workload("{gemm: {m: 512, n: 512, k: 64}, tokens: 512, layer: prompt, tp: 4}"),
        "e.yaml:3:51: workload.tokens: `workload.model`",
        "e.yaml:3:63: workload.layer: `workload.model`",
    ),
    case(
        "F-A6 layer of a model without heads",
        workload("{model: bare.yaml, layer: prompt, tp: 2}"),
        "e.yaml:3:19: workload.model: `bare`",
    ),
    case(
        "F-A6 layer of a config without a sequence",
        workload("{model: llama.json, layer: prompt, tokens: 512, tp: 2}"),
        "e.yaml:3:1: workload: `workload.sequence`",
    ),
    case(
        "F-A6 config without tokens",
        workload("{model: llama.json, sublayer: OP, tp: 2}"),
        "e.yaml:3:1: workload: `workload.tokens`",
    ),
    case(
        "F-A6 heads that make up no width",
        workload("{model: odd.yaml, sublayer: OP, tp: 2}"),
        "odd.yaml:1:1: model: `head_dim`",
    ),
    case("F-A6 a split that is not said", BASE.replace("t3\n", "cu-split\n"), "e.yaml:4:11: strategy: `cu-split`"),
    case(
        "F-A6 a split that leaves nothing",
        BASE.replace("t3\n", "{name: cu-split, collective_compute_units: 80}\n"),
        "e.yaml:4:54: strategy.collective_compute_units: `machine.gpu.n_compute_units`",
    ),
    case(
        "F-A6 a split that nothing uses",
        BASE.replace("t3\n", "{name: t3, collective_compute_units: 8}\n"),
        "e.yaml:4:22: strategy.collective_compute_units: `t3`",
    ),
    case(
        "F-A2 a key of an earlier version",
        BASE + "collective_compute_units: 8\n",
        "e.yaml:5:1: collective_compute_units: `strategy.collective_compute_units`",
    ),
    case(
        "F-A2 an unknown key that is swept",
        BASE + "sweep: {grid: {stratgy: [t3]}}\n",
        "e.yaml:5:16: sweep.grid.stratgy: `stratgy`",
    ),
    case(
        "F-A8 tokens that are no whole sequences",
        workload("{model: T-NLG, layer: prompt, tokens: 1000, tp: 8}"),
        "e.yaml:3:49: workload.tokens: 1000",
    ),
    case(
        "F-A8 a sequence longer than all tokens",
        workload("{model: T-NLG, layer: prompt, sequence: 16384, tp: 8}"),
        "e.yaml:3:51: workload.sequence: 8192",
    ),
    case(
        "F-A8 tp does not divide the heads",
        workload("{model: llama.json, sublayer: OP, tokens: 512, tp: 3}"),
        "e.yaml:3:62: workload.tp: 4",
    ),
    case(
        "F-A8 tp does not divide a layer",
        workload("{model: T-NLG, layer: training, tp: 3}"),
        "e.yaml:3:47: workload.tp: 4256",
    ),
    case(
        "F-A13 config that does not exist",
        workload("{model: gone.json, sublayer: OP, tokens: 512, tp: 2}"),
        "e.yaml:3:19: workload.model: `gone.json`",
    ),
    case(
        "F-A13 config that is a folder",
        workload("{model: folder.json, sublayer: OP, tokens: 512, tp: 2}"),
        "folder.json: folder",
    ),
    case(
        "F-A13 config that never ends",
        workload("{model: zero.json, sublayer: OP, tokens: 512, tp: 2}"),
        "zero.json: regular",
    ),
    case(
        "F-A13 config in an override",
        BASE,
        "-s workload={model: `gone.json`",
        options=("-s", "workload={model: gone.json, layer: prompt, tokens: 512, sequence: 512, tp: 2}"),
    ),
    case(
        "F-A13 config with all its problems",
        workload("{model: bad.json, sublayer: OP, tokens: 512, tp: 2}"),
        "bad.json: hidden_size: `4096`",
        "bad.json: num_attention_heads: missing",
    ),
]


LONG_CASES = [
    case("F-A11 9000 unknown keys", BASE + "".join(f"k{i}: 1\n" for i in range(9000)), "e.yaml:5:1: k0: `k0`", "8991"),
    case("F-A11 9000 bad numbers", BASE + f"plugins: [{'017,' * 9000}]\n", "e.yaml:5:11: plugins[0]: `017`", "8991"),
    case(
        "F-A11 axis of 50000 values",
        BASE + f"sweep: {{grid: {{workload.tp: [{','.join(map(str, range(50000)))}]}}}}\n",
        "e.yaml:5:30: workload.tp: `0`",
        "`0`",
    ),
    case(
        "F-A11 key of 100000 characters",
        BASE + f"? {'k' * 100000}\n: 1\n",
        f"e.yaml:5:3: {'k' * 988}...",
        f"e.yaml:5:3: {'k' * 988}...",
    ),
    case(
        "F-A13 preset with too long a name",
        BASE.replace("t3-150", "m" * 300 + ".yaml"),
        f"e.yaml:2:10: machine: no such file `{'m' * 300}.yaml`, looked for at {'m' * 300}.yaml",
        f"e.yaml:2:10: machine: no such file `{'m' * 300}.yaml`, looked for at {'m' * 300}.yaml",
    ),
]


def ids(cases: list[Case]) -> list[str]:
    return [case.id for case in cases]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the files that some cases name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "fifo.yaml")
    (tmp_path / "folder.json").mkdir()
    for suffix in ("yaml", "json"):
        (tmp_path / f"zero.{suffix}").symlink_to("/dev/zero")
    for name, text in {
        "loop.yaml": "preset: loop.yaml\n",
        "loop-gpu.yaml": "preset: loop-gpu.yaml\n",
        "half.yaml": "name: half\ngpu: cu80\nmemory: gone.yaml\nlink: ring-150\n",
        "bare.yaml": "hidden: 256\nlayers: 1\ntokens: 512\ntensor_parallel: [2]\n",
        "odd.yaml": "hidden: 256\nlayers: 1\ntokens: 512\ntensor_parallel: [2]\nheads: 3\n",
        "llama.json": LLAMA,
        "vast.json": LLAMA.replace("}", f', "head_dim": {2**61}}}').replace(": 4,", ": 16,"),
        "bad.json": LLAMA.replace("256", '"4096"').replace("num_attention_heads", "num_experts"),
        "bad.py": "1 / 0\n",
        "exit.py": "raise SystemExit('stop')\n",
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("fault", CASES, ids=ids(CASES))
def test_refused_with_this_message(fault: Case, folder: Path) -> None:
    fault.write(folder / "e.yaml")
    answer = check_refused(folder, ["run", "e.yaml", "-o", "out", *fault.options], 2, fault.lines)
    assert answer.cpu_s < HANG_S


@pytest.mark.parametrize("fault", LONG_CASES, ids=ids(LONG_CASES))
def test_refused_with_a_message_of_few_lines(fault: Case, folder: Path) -> None:
    fault.write(folder / "e.yaml")
    before = entries(folder)
    answer = t3sim_here("run", "e.yaml", "-o", "out")
    assert (answer.code, answer.printed) == (2, "")
    check_same_problems((answer.lines[0], answer.lines[-1]), fault.lines)
    assert len(answer.lines) <= 10
    assert entries(folder) == before
    assert answer.cpu_s < HANG_S


SAMPLE = (
    "F-A1 bad UTF-8",
    "F-A4 octal",
    "F-A10 python object",
    "F-A11 merge keys of merge keys",
    "F-A14 future version",
)


@pytest.mark.parametrize("fault", cases([c for c in CASES if c.id in SAMPLE], *[c for c in CASES if c.id == SAMPLE[0]]))
def test_the_same_from_a_process_of_its_own(fault: Case, folder: Path) -> None:
    fault.write(folder / "e.yaml")
    before = entries(folder)
    done = subprocess.run(
        [sys.executable, "-m", "t3sim", "run", "e.yaml", "-o", "out"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    check_same_problems(done.stderr.splitlines(), fault.lines)
    assert entries(folder) == before


def test_every_row_has_its_cases() -> None:
    assert {c.row for c in [*CASES, *LONG_CASES]} == {f"F-A{i}" for i in range(1, 15)}
    names = ids([*CASES, *LONG_CASES])
    assert len(set(names)) == len(names)


def test_all_problems_of_a_file_at_once(folder: Path) -> None:
    """F-A2 to F-A8 in one file."""
    (folder / "e.yaml").write_text(
        "name: bad name\n"
        "machne: t3-150\n"
        "machine: {preset: t3-150, link: {bandwidth: 150}}\n"
        "workload: {model: TNLH, sublayer: FC2, tp: 0}\n"
        "strategy: t4\n"
        "quantum: 100\n",
        encoding="utf-8",
    )
    check_refused(
        folder,
        ["run", "e.yaml", "-o", "out"],
        2,
        [
            "e.yaml:1:7: name: a name has letters, digits, `.`, `_` and `-` only, at most 100",
            "e.yaml:2:1: machne: unknown key `machne`; did you mean `machine`?",
            "e.yaml:3:45: machine.link.bandwidth: 150 has no unit; did you mean `150 GB/s`?",
            "e.yaml:4:44: workload.tp: found `0`, must be at least 1",
            (
                "e.yaml:5:11: strategy: unknown strategy `t4`; did you mean `t3`? "
                "(known: sequential, cu-split, t3, t3-mca, ideal-overlap, ideal-rs-nmc, "
                "published-overlap, published-rs-nmc, isolated-cu-split, flux-push, "
                "copy-engine-scatter, async-tp, te-p2p-rs, te-pipelined-rs, wave-groups, "
                "sm-specialised, flux-pull, distfuse, flux-ag, async-tp-ag, te-ring-ag)"
            ),
            "e.yaml:6:10: quantum: 100 has no unit; did you mean `100 ns`?",
        ],
    )


FILES = {
    "none.yaml": ["none.yaml: no such file"],
    "folder.yaml": ["folder.yaml: is a folder"],
    "fifo.yaml": ["fifo.yaml: is not a regular file"],
    "zero.yaml": ["zero.yaml: is not a regular file"],
    f"{'e' * 300}.yaml": [f"{'e' * 300}.yaml: cannot read: the name is too long (ENAMETOOLONG)"],
}


@pytest.mark.parametrize("name", FILES)
def test_the_experiment_itself_is_no_file(name: str, folder: Path) -> None:
    """F-A13."""
    check_refused(folder, ["run", name, "-o", "out"], 2, FILES[name])


class TestAccepted:
    """Values at the edge of what is legal."""

    @pytest.mark.parametrize(
        "content",
        [
            pytest.param(b"\xef\xbb\xbf" + BASE.encode(), id="F-A1 byte order mark"),
            pytest.param(BASE.replace("\n", "\r\n").encode(), id="F-A1 CRLF"),
            pytest.param(BASE + "description: 'no'\n", id="F-A4 word"),
            pytest.param(BASE + "description: off\n", id="F-A4 word that YAML 1.1 reads as false"),
            pytest.param(BASE.replace("name: e", "name: '017'"), id="F-A4 number in quotes"),
            pytest.param(machine("gpu: {compute_unit: {matrix_efficiency: 9e-1}}"), id="F-A4 exponent without a dot"),
            pytest.param(machine("gpu: {compute_unit: {matrix_efficiency: 1}}"), id="F-A5 upper bound"),
            pytest.param(timing("nCCDS: 2, nCCDL: 2, nCCDWS: 2, nCCDWL: 2"), id="F-A5 nCCDL = burst"),
            pytest.param(timing("nRC: 47"), id="F-A6 nRC = nRAS + nRP"),
            pytest.param(timing("nREFI: 412"), id="F-A6 shortest nREFI"),
            pytest.param(timing("nREFI: 462, nRFCpb: 400"), id="F-A6 shortest nREFI for a bank"),
            pytest.param(timing("nREFI: 353, nRFCpb: 100, nRREFD: 8"), id="F-A6 shortest nREFI for all banks in turn"),
            pytest.param(BASE + "quantum: 500 ns\n", id="F-A6 quantum = latency"),
            pytest.param(
                BASE.replace("t3\n", "t3-mca\narbitration: {policy: mca, threshold: 64}\n"), id="F-A6 threshold = queue"
            ),
            pytest.param(workload("{gemm: {m: 512, n: 512, k: 64}, tp: 8}"), id="F-A8 a tile for each GPU"),
            pytest.param(BASE + "max_hours: 1\n", id="F-A9 limit of time"),
            pytest.param(
                workload("{model: llama.json, layer: prompt, tokens: 512, sequence: 512, tp: 4}"),
                id="F-A8 key heads on two GPUs each",
            ),
            pytest.param(
                BASE.replace("t3\n", "{name: cu-split, collective_compute_units: 79}\n"),
                id="F-A6 one compute unit is left",
            ),
            pytest.param(workload("{model: T-NLG, layer: training, tokens: 1024, tp: 16}"), id="F-A8 one sequence"),
            pytest.param("schema_version: 1\n" + BASE, id="F-A14 this version"),
            pytest.param(BASE + "#" * (yaml_loader.MAX_FILE_BYTES - len(BASE)), id="F-A11 1 MiB"),
        ],
    )
    def test_edge_of_what_is_legal(self, content: str | bytes, folder: Path) -> None:
        Case("", content, ()).write(folder / "e.yaml")
        answer = t3sim_here("config", "check", "e.yaml")
        assert (answer.code, answer.errors) == (0, "")
        assert answer.printed.startswith("e.yaml: no problems\nexperiment  ")

    def test_time_can_be_allowed(self, folder: Path) -> None:
        """F-A9: what is refused as too long goes on if the user says so."""
        (long,) = (c for c in CASES if c.id == "F-A9 days of simulation")
        long.write(folder / "e.yaml")
        assert t3sim_here("config", "check", "e.yaml").code == 2
        refused = t3sim_here("config", "check", "e.yaml", "-s", "max_hours=50")
        assert refused.errors.startswith("-s max_hours=50: max_hours: is 50")
        assert "-s max_hours=90" in refused.errors
        assert t3sim_here("config", "check", "e.yaml", "-s", "max_hours=90").code == 0

    def test_one_gpu_is_a_plain_gemm(self, folder: Path) -> None:
        """F-A8: and the log says so."""
        (folder / "e.yaml").write_text(BASE, encoding="utf-8")
        note = "note        tp 1 is a plain GEMM: there is no collective and no link traffic\n"
        assert note in t3sim_here("config", "check", "e.yaml", "-s", "workload.tp=1").printed
        assert note not in t3sim_here("config", "check", "e.yaml").printed

    @pytest.mark.parametrize(
        ("shape", "tp"),
        [
            ("m: 1, n: 1, k: 1", 1),
            ("m: 200, n: 136, k: 72", 3),
            ("m: 130, n: 330, k: 65", 5),
            ("m: 129, n: 300, k: 1", 13),
        ],
    )
    def test_ragged_shapes_run(self, shape: str, tp: int, folder: Path) -> None:
        """F-A8: no multiple of a tile, prime numbers of GPUs."""
        text = (
            f"name: e\nmachine: t3-tiny\ntiling: gemm-64x64\nworkload: {{gemm: {{{shape}}}, tp: {tp}}}\nstrategy: t3\n"
        )
        (folder / "e.yaml").write_text(text, encoding="utf-8")
        answer = t3sim_here("run", "e.yaml", "-o", "out", "--no-figures")
        assert (answer.code, answer.errors) == (0, "")
        assert (folder / "out" / "results.csv").exists()


class TestBombs:
    """F-A11: refused in half a second of CPU time, and what is not a bomb is read."""

    @pytest.mark.parametrize(
        "content",
        [
            pytest.param(aliases_of_aliases(), id="aliases"),
            pytest.param(merges_of_merges(), id="merge keys"),
            pytest.param("- &a x\n" + "- *a\n" * 1001, id="1001 aliases"),
            pytest.param("[" * 900, id="900 brackets"),
            pytest.param("[" * 100_000, id="100000 brackets"),  # libyaml 0.2.6 itself refuses 1001
            pytest.param("- " * 100_000, id="100000 dashes"),
            pytest.param("? " * 100_000, id="100000 question marks"),
            pytest.param("&a " * 100_000, id="100000 anchors"),
            pytest.param("\n".join(" " * i + "a:" for i in range(900)), id="900 indents"),
            pytest.param('a: "' + "\\x41" * 200_000, id="unclosed escapes"),
        ],
    )
    def test_refused_at_once(self, content: str, folder: Path) -> None:
        (folder / "e.yaml").write_text(content, encoding="utf-8")
        t3sim_here("config", "check", "none.yaml")  # so that imports are not counted
        answer = t3sim_here("config", "check", "e.yaml")
        assert (answer.code, len(answer.lines)) == (2, 1)
        assert answer.cpu_s < BOMB_S

    def test_a_tag_runs_nothing(self, folder: Path) -> None:
        """F-A10, with a canary: PyYAML's unsafe loader does run it."""
        text = f"name: !!python/object/apply:os.mkdir ['{folder / 'made'}']\n"
        (folder / "e.yaml").write_text(text, encoding="utf-8")
        assert t3sim_here("config", "check", "e.yaml").code == 2
        assert not (folder / "made").exists()
        yaml.unsafe_load(text)
        assert (folder / "made").exists()

    def test_limits_are_reached_exactly(self) -> None:
        assert load_yaml_text("[" * 50 + "]" * 50, "f.yaml").value
        assert len(load_yaml_text("- &a x\n" + "- *a\n" * 1000, "f.yaml").value) == 1001
        assert len(load_yaml_text("[" + "1," * 99_999 + "]", "f.yaml").value) == 99_999

    def test_long_files_read_the_same(self, monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
        """A file too long for PyYAML's own parser goes to libyaml, which agrees on every shipped file."""
        files = [*repository.glob("configs/*/*.yaml"), *repository.glob("experiments/*/experiment.yaml")]
        texts = [path.read_text(encoding="utf-8") for path in files]
        slow = [load_yaml_text(text, "f.yaml") for text in texts]
        monkeypatch.setattr(yaml_loader, "PURE_PYTHON_CHARACTERS", 0)
        assert [load_yaml_text(text, "f.yaml") for text in texts] == slow
        assert len(slow) > 20


def test_a_file_name_with_nul_from_python(folder: Path) -> None:
    """F-A13: the command line cannot pass one on, a caller can."""
    with pytest.raises(Exception, match="a file name cannot contain a NUL character") as error:
        load_experiment("a\0b.yaml")
    assert type(error.value).__name__ == "ConfigError"
