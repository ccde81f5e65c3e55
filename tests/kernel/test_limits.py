"""Do the limits that the configuration states agree with the tables and bit fields of the kernel?"""

from __future__ import annotations

import numpy as np

from t3sim.config import limits
from t3sim.config.gpu import L2Spec
from t3sim.config.spec import AtMost
from t3sim.gpu.assemble import EFFICIENCY_SCALE
from t3sim.gpu.units import codes
from t3sim.gpu.units.l2 import l2_slice
from t3sim.gpu.units.loop import OUTBOX_MARGIN
from t3sim.gpu.units.state import LONGEST_SLEEP, RETURN_RING, Layout, l2_dtype


def disagreements() -> dict[str, tuple[int, int]]:
    """Return the limits of which the kernel holds less, or more: what is stated, and what the kernel holds."""
    layout = Layout()
    held = {
        "MOST_ACCESSES_IN_A_ROW": codes.FIELD_MASK + 1,
        "MOST_ACCESSES_IN_A_SLOT": OUTBOX_MARGIN,
        "MOST_RESIDENT_WORKGROUPS": layout.n_slots,
        "MOST_PREFETCHED_SLICES": layout.n_buffers - 1,
        "EFFICIENCY_DIGITS": EFFICIENCY_SCALE,
    }
    return {name: (getattr(limits, name), found) for name, found in held.items() if getattr(limits, name) != found}


def test_limits_are_those_of_the_kernel() -> None:
    assert disagreements() == {}
    assert codes.N_KINDS == 1 << codes.CLASS_SHIFT
    assert codes.MOST_CLASSES << codes.CLASS_SHIFT == codes.FIELD_MASK + 1
    assert Layout().n_classes == codes.MOST_CLASSES
    assert (Layout().n_slots, Layout().n_buffers) == (l2_slice.SLOT_MASK + 1, l2_slice.BUFFER_MASK + 1)
    assert limits.MOST_BANKS_OF_A_CHANNEL <= codes.FIELD_MASK + 1
    most = next(one for one in L2Spec.model_fields["mshrs_per_bank"].metadata if isinstance(one, AtMost)).limit
    assert most <= np.iinfo(l2_dtype(Layout())["filling"].base).max
    # What comes back after the longest trip is noted ahead of the slot that is being counted.
    longest = (limits.LONGEST_RETURN_SLOTS, limits.LONGEST_QUEUED_RETURN_SLOTS, limits.LONGEST_TRIP_SLOTS)
    assert LONGEST_SLEEP + max(longest) < RETURN_RING
