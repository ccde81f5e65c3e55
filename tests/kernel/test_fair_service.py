"""Is every compute unit served alike where they compete for L2 and memory controllers?

Serving them in a fixed order is a defect that makes workgroups drift apart and hides T3's loss.
"""

from __future__ import annotations

import pytest

from t3sim.experiment.planning.plan import load_experiment
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.core import GpuCore
from t3sim.gpu.units.codes import COMM, COMPUTE
from t3sim.gpu.units.compute.channel_room import return_promise, wait_for_channel, wake_waiting_cus

EXPERIMENT = "experiments/t3-tnlg-fc2/experiment.yaml"


def full_size_core() -> GpuCore:
    machine = load_experiment(EXPERIMENT, ["strategy=sequential"]).points[0].machine
    return GpuCore(machine, arbitration_policies.get("round_robin"), {})


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
