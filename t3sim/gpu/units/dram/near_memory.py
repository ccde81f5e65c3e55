"""Near-memory op-and-store: its cost for a channel.

Models: an update (``UPD``) is a write command whose bank-side ALU reads, adds and stores, so the bank group is held for
``nCCDWL`` instead of ``nCCDL`` (T3 section 5.1.1) and other bank groups for ``nCCDWS``.  Atomic, because a bank
executes one command at a time.  Leaves out: ALU width and data types.
Pinned by tests/timing/test_near_memory.py.
"""

from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.codes import UPDATE_BIT


@kernel
def store_gap_same_group(channel, kind):
    """Return cycles from a store to the next column command of its bank group."""
    if kind & UPDATE_BIT:
        return channel.nCCDWL
    return channel.nCCDL


@kernel
def store_gap_other_group(channel, kind):
    """Return cycles from a store to the next column command of another bank group."""
    if kind & UPDATE_BIT:
        return channel.nCCDWS
    return channel.nCCDS
