"""Is the isolated GEMM as long as it should be, and do its workgroups stay together?"""

from __future__ import annotations

import pytest

from t3sim.program.parts import all_gather_part, gemm_part, reduce_scatter_part

from .conftest import base_run, parts_of

FORMULA_EFFICIENCY = 0.84  # of the matrix rate, and
FORMULA_K0 = 160  # elements of k that represent the prologue and the write burst of a stage: meets T3's isolated ratios


def stage_formula_us(m: int, n: int, k: int) -> float:
    """Closed form of the isolated GEMM: stages of 160 tiles of 128 x 128 on 80 compute units."""
    gpu = base_run().machine.gpu
    slots = 2 * gpu.n_compute_units
    stages = -(-(-(-m // 128) * -(-n // 128)) // slots)
    rate = gpu.n_compute_units * gpu.compute_unit.matrix_flops_per_cycle * gpu.compute_clock
    return stages * slots * 2 * 128 * 128 * (k + FORMULA_K0) / (FORMULA_EFFICIENCY * rate) * 1e6


def bounds_us(m: int, n: int, k: int, dram_bytes: int) -> float:
    """The longer of matrix time at the full rate and DRAM traffic at the full bandwidth."""
    machine = base_run().machine
    gpu, memory = machine.gpu, machine.memory
    compute = 2 * m * n * k / (gpu.n_compute_units * gpu.compute_unit.matrix_flops_per_cycle * gpu.compute_clock)
    bandwidth = memory.n_channels * memory.clock * memory.access / memory.timing.nCCDS
    return max(compute, dram_bytes / bandwidth) * 1e6


def test_time_is_within_ten_percent_of_the_stage_formula(case):
    """10 %: the formula rounds the last stage up and charges reads by an average."""
    parts = parts_of(*case)
    gemm = parts.op.shape
    simulated = parts.of(gemm_part(parts.op)).ticks / 7e3
    assert simulated == pytest.approx(stage_formula_us(gemm.m, gemm.n, gemm.k), rel=0.10)


def test_time_never_beats_compute_or_dram(case):
    parts = parts_of(*case)
    phase = parts.of(gemm_part(parts.op))
    traffic = phase.counters["operand_read_bytes"] + phase.counters["output_write_bytes"]
    gemm = parts.op.shape
    assert phase.ticks / 7e3 >= bounds_us(gemm.m, gemm.n, gemm.k, traffic)


def test_workgroups_drift_no_more_than_on_hardware():
    """0.022 was recorded on an H200 at the eighth tile of T-NLG FC-2; 0.04 leaves room for its noise."""
    parts = parts_of("T-NLG", "FC-2", 8)
    spread = parts.of(gemm_part(parts.op)).counters["workgroup_spread"]
    assert 0 < spread <= 0.04


def ideal_speedup(model: str, sublayer: str, tp: int) -> float:
    parts = parts_of(model, sublayer, tp)
    gemm, scatter, gather = (
        parts.of(part(parts.op)).ticks for part in (gemm_part, reduce_scatter_part, all_gather_part)
    )
    return (gemm + scatter + gather) / (max(gemm, scatter) + gather)


@pytest.mark.deep
def test_ideal_overlap_of_tnlg_fc1_tp16():
    """Published: 1.50, to two digits; 1.45 to 1.50 asked for.

    With R longer than A by the final step, G = R gives 1 + R / (R + A) = 1.508: 1.50 is not the ceiling.
    """
    assert 1.45 <= round(ideal_speedup("T-NLG", "FC-1", 16), 2) <= 1.50


@pytest.mark.deep  # the study compares all sixteen
def test_ideal_overlap_of_mega_op_tp16():
    """Published: 1.15."""
    assert 1.12 <= ideal_speedup("Mega-GPT-2", "OP", 16) <= 1.18
