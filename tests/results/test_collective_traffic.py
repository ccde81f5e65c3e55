"""Columns of a collective without a GEMM: bytes of the link and of the DRAM by closed forms."""

import pytest

from t3sim.experiment.planning.plan import load_experiment
from t3sim.experiment.running.point_record import record_of
from t3sim.system import simulate

GPUS, SIZE = 4, 4096
FABRICS = {
    "switch": {"topology": "switch"},
    "nodes": {
        "topology": "two-level",
        "gpus_per_node": 2,
        "nic": {"bandwidth": "10 GB/s", "latency": "1 us", "message_rate": 100_000_000},
    },
}
SENT = {  # by each GPU, over the size; between nodes, chunks of an all-to-all first go to the GPU of their rail
    "reduce-scatter": (3 / 4, 3 / 4),
    "all-gather": (3 / 4, 3 / 4),
    "all-reduce": (6 / 4, 6 / 4),
    "all-to-all": (3 / 4, 4 / 4),
    "send-receive": (1, 1),
}


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("op", SENT)
def test_bytes_of_a_collective_alone(op: str, fabric: str) -> None:
    """Nothing that is sent, read or written is missing from the row, in whatever role it ran."""
    experiment = {
        "name": "x",
        "machine": {"preset": "t3-tiny", "link": {"ingress_buffer": "64 KiB", **FABRICS[fabric]}},
        "workload": {"collective": {"op": op, "size": f"{SIZE} B", "gpus": GPUS}},
        "strategy": "sequential",
    }
    row = record_of(simulate(load_experiment(experiment).points[0]))
    assert row.link_bytes == SENT[op][fabric == "nodes"] * SIZE
    read = (row.dram_rs_read_bytes or 0) + (row.dram_ag_read_bytes or 0)
    written = (row.dram_rs_write_bytes or 0) + (row.dram_ag_write_bytes or 0)
    assert min(read, written) >= SIZE * 3 / 4
