"""The words that columns of measurements may hold."""

from __future__ import annotations

COLLECTIVES = ("reduce_scatter", "all_gather", "all_reduce")
SENT_COLLECTIVES = ("all_to_all", "send_recv", "broadcast")  # data that are sent only; simulated too
OTHER_COLLECTIVES = ("gather", "hypercube", "reduce", "scatter")  # read, but not simulated
OPERATORS = ("gemm", "gemm-rs", "gemm-ar", "ag-gemm", *COLLECTIVES)
MOVED = {"read": 1, "write": 1, "copy": 2, "add": 3}  # arrays of `bytes` that a pattern reads plus writes
SIGNALS = ("peer_flag", "peer_signal", "peer_barrier", "peer_grid_barrier")
PROBES = ("load", "read", "copy")
STREAMS = ("nothing", "read", "write", "copy")  # as bits: 1 reads, 2 writes
LATENCIES = ("l2_hit", "device_memory", "peer_memory", *SIGNALS)
MEMORIES = ("peer", "local")
ACCESSES = ("store", "load", "bulk_store")
CALLS = ("mm_rs", "ag_mm")
OPERATIONS = ("launch", "barrier", "order", "copy", "zero", "sum", "gemm")
MESHES = ("incast", "pull", "pulls_one_peer", "pulls_two_peers", "all_to_all_ring", "all_to_all_xor")
MEANS = ("copy", "load", "store", "bulk_store")
ALL_LANES = "all"
ORDERS = ("next", "own_first", "xor", "naive")  # of owners, by number in the kernel
LOCAL = "local"
EPILOGUES = ("fragments", "rows", "bulk")  # by number in the kernel
ACCESS_PATTERNS = ("contiguous", "tile_rows", "tile_scattered", "tile_fragments")
ROTATED = "rotated"
EXCHANGES = ("dispatch", "combine")
