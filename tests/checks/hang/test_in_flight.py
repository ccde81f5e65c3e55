"""Is what is said to be queued what a walk through each queue, one request at a time, finds?"""

from __future__ import annotations

import numpy as np

from t3sim.gpu.in_flight import bank_lists

from .scenario import fused


def test_a_list_that_a_defect_has_closed_ends() -> None:
    core = fused().core
    channels = core.state.view(np.ndarray)["channels"][0]
    n_lists = 2 * channels["open_row"].shape[-1]
    channels["entries"]["next"][0, [0, n_lists]] = n_lists  # the first of a bank is behind itself
    assert set(bank_lists(channels)[2].tolist()) == {n_lists}
