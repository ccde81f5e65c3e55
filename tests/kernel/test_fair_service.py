"""Is every compute unit served alike where they compete for L2 and memory controllers?

Serving them in a fixed order is a defect that makes workgroups drift apart and hides T3's loss.
"""

from __future__ import annotations

import numpy as np
import pytest

from t3sim.config.experiment import GemmShape
from t3sim.config.presets import load_tiling
from t3sim.experiment.planning.plan import load_experiment
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.core import GpuCore
from t3sim.gpu.units.codes import COMM, COMPUTE
from t3sim.gpu.units.compute.compute_unit import return_promise, wait_for_channel, wake_waiting_cus
from t3sim.workload.tiling import make_tile_trace
from tests.kernel.small import at_once, gemm_of

EXPERIMENT = "experiments/t3-tnlg-fc2/experiment.yaml"


def full_size_core() -> GpuCore:
    machine = load_experiment(EXPERIMENT, ["strategy=sequential"]).points[0].machine
    return GpuCore(machine, arbitration_policies.get("round_robin"), {})


def one_stage(core: GpuCore) -> np.ndarray:
    """Run one workgroup on each compute unit; return how long each took, in ticks."""
    trace = make_tile_trace(GemmShape(m=2560, n=1024, k=256), load_tiling(), 1)
    core.load(at_once(gemm_of(core.machine, trace)))
    while not core.advance(core.now + 1_000_000):
        pass
    table = core.tables.workgroups
    assert sorted(table["cu"]) == list(range(80))
    return np.array(table["end_at"] - table["start_at"], float)


def test_workgroups_of_one_stage_take_equally_long():
    """All 80 compute units read at once and store at once: 5 % is the length of a few DRAM queues."""
    took = one_stage(full_size_core())
    assert took.std() / took.mean() < 0.05


@pytest.mark.parametrize("traffic_class", [COMPUTE, COMM])
def test_waiting_compute_units_are_promised_room_in_order_of_arrival(traffic_class: int) -> None:
    core = full_size_core()
    gpu = core.gpu
    channel = gpu.channels[5]
    need = 2 * int(gpu.l2.granules_per_line)
    channel.queue_tail[traffic_class] = channel.stream_capacity - 2 * need
    for cu_index in (7, 2, 70):
        wait_for_channel(gpu, cu_index, 5, traffic_class)
    wake_waiting_cus(gpu, channel, 5, traffic_class)
    waiting = [int(gpu.compute_units[cu].is_waiting) for cu in (7, 2, 70)]
    assert waiting == [0, 0, 1]
    assert int(channel.n_reserved[traffic_class]) == channel.n_reserved.sum() == 2 * need
    return_promise(gpu, gpu.compute_units[7])
    assert int(channel.n_reserved[traffic_class]) == need
