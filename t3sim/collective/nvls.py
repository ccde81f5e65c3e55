"""NCCL's choice of collectives in the switch (NVLS), and of their pieces.

Source: NCCL 2.29, ``src/enqueue.cc`` (``calcCollChunking``) and ``src/graph/tuning.cc`` (latency and bandwidth).
Pinned by ``tests/collective/test_nvls.py``.
"""

from fractions import Fraction

from t3sim.collective.choice import expected_time
from t3sim.config.collective_kernel import NvlsSpec
from t3sim.config.machine import MachineSpec

KIB = 1 << 10
# Largest piece of an array that is smaller than this number of pieces on all channels.
PIECES = ((64, 64 * KIB), (8, 32 * KIB), (2, 16 * KIB))


def piece_bytes(spec: NvlsSpec, n_channels: int, n_gpus: int, size: int) -> int:
    """Return the bytes of a chunk that a channel takes at a time, of an array of *size* bytes."""
    piece = spec.piece
    for times, smaller in PIECES:
        if size < times * n_channels * n_gpus * piece:
            piece = min(piece, smaller)
    return piece


def takes_switch(machine: MachineSpec, op: str, n_gpus: int, size: int) -> bool:
    """Return whether NCCL expects an all-reduce of *size* bytes in the switch to be faster than its rings."""
    kernel, in_switch = machine.gpu.collective_kernel, expected_in_switch(machine, n_gpus, size)
    if op != "all-reduce" or kernel.expected is None or in_switch is None:
        return False
    return in_switch < expected_time(kernel, op, n_gpus, size)[1]


def expected_in_switch(machine: MachineSpec, n_gpus: int, size: int) -> Fraction | None:
    """Return what NCCL expects of an all-reduce in the switch (ps); None: it does not consider it."""
    nvls = machine.gpu.collective_kernel.nvls
    if nvls is None or machine.link.multicast is None or n_gpus < nvls.least_gpus:
        return None
    return nvls.expected.start + Fraction(size * 10**12, nvls.expected.bandwidth)
