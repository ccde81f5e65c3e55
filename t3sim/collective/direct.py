"""All-reduce kernels that load directly from other GPUs, as libraries launch them, and which one a library chooses.

Sources: PyTorch 2.11, ``torch/csrc/distributed/c10d/CUDASymmetricMemoryOps.cu`` (launch limits of one-shot and
two-shot); TensorRT-LLM 1.3, ``allReduceFusionKernels.cu`` (one-shot kernel, launches) and ``customAllReduceUtils.h``
(which kernel for which array); vLLM 0.24, ``csrc/custom_all_reduce.cuh`` (block limit 36, 512 threads; one stage for
two GPUs, below 512 KiB on four and below 256 KiB on up to eight) and
``vllm/distributed/device_communicators/all_reduce_utils.py`` (sizes).
Pinned by ``tests/collective/test_direct.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from t3sim.config.element_types import ADDED_IN_HARDWARE
from t3sim.config.machine import MachineSpec
from t3sim.errors import UsageError
from t3sim.units import format_bytes

THREAD_BYTES = 16  # a load or store of a thread
KIB, MIB = 1 << 10, 1 << 20

Form = Literal["one-shot", "one-shot push", "two-shot push", "two-shot pull", "multimem"]


@dataclass(frozen=True)
class DirectKernel:
    """A kernel of a library.

    ``form``: *one-shot*, each GPU adds up the whole array, which it loads, or (*push*) which the others have stored at
    it without a barrier; *two-shot*, each adds up its own chunk and stores the sums
    at the others (*push*) or loads theirs (*pull*); *multimem*, each loads the sums of its chunk from the switch, and
    stores them at all GPUs by multicast.  ``max_workgroups``: the largest launch.  ``threads`` of a
    workgroup: each loads 16 B from every GPU at a time.  ``counts_array``: workgroups are counted for the whole array,
    not for what one GPU adds up.  ``has_library_barrier``: a barrier costs what the host library's barrier kernel does
    (``gpu.host.barrier``), not only a flag.  ``copies``: other kernels copy the input into symmetric memory before, and
    the result out of it afterwards.  ``elements``: types that it adds up.
    """

    form: Form
    max_workgroups: int
    threads: int
    counts_array: bool = False
    has_library_barrier: bool = False
    copies: bool = False
    elements: tuple[str, ...] = ADDED_IN_HARDWARE
    least_threads: int | None = None  # of a workgroup, where workgroups are made smaller to occupy all compute units

    def fitted(self, array_bytes: int, n_compute_units: int) -> DirectKernel:
        """Return the kernel as it is launched for an array: no more workgroups than compute units."""
        threads, most = self.least_threads or self.threads, min(self.max_workgroups, n_compute_units)
        while threads < self.threads and array_bytes > most * threads * THREAD_BYTES:
            threads *= 2
        return replace(self, threads=threads, max_workgroups=most)

    def n_workgroups(self, array_bytes: int, n: int) -> int:
        """Return the workgroups for an array on *n* GPUs: one for each round of its threads, up to the limit."""
        is_whole = self.counts_array or self.form.startswith("one-shot")
        reduced = array_bytes if is_whole else -(-array_bytes // n)
        return max(min(-(-reduced // (self.threads * THREAD_BYTES)), self.max_workgroups), 1)

    def fence(self, machine: MachineSpec) -> int:
        """Return the picoseconds that a barrier of this kernel takes besides its flags.

        A barrier kernel of the library lasts as long as an empty kernel and such a barrier.
        """
        gpu = machine.gpu
        if not self.has_library_barrier or gpu.host is None:
            return 0
        return max(gpu.host.barrier - gpu.kernel_launch - gpu.compute_unit.flag_latency, 0)


KERNELS: dict[str, DirectKernel] = {
    "pytorch-one-shot": DirectKernel("one-shot", 8, 512, has_library_barrier=True),
    "pytorch-two-shot": DirectKernel("two-shot push", 24, 512, has_library_barrier=True),
    "vllm-one-stage": DirectKernel("one-shot", 36, 512, counts_array=True),
    "vllm-two-stage": DirectKernel("two-shot pull", 36, 512, counts_array=True),
    "pytorch-multimem": DirectKernel("multimem", 8, 1024),
    "vllm-multimem": DirectKernel("multimem", 8, 1024, copies=True),
    "trtllm-one-shot": DirectKernel("one-shot push", 1 << 10, 512, least_threads=128),
}
NCCL, VLLM, TRTLLM = "nccl", "vllm", "trtllm"
RING, NVLS, TREE = "nccl-ring", "nccl-nvls", "nccl-tree"
LEVELS = ("direct", "hierarchical")  # on one node, and on several
# What an experiment may name: NCCL, which chooses among its own; a kernel; libraries that choose by size.
ALGORITHMS = (NCCL, VLLM, TRTLLM, *KERNELS, RING, NVLS, TREE, *LEVELS)
OF_TRTLLM = tuple(name for name in KERNELS if name.startswith(TRTLLM))
# By operation, the others of them that it has besides NCCL's choice; operations that are not listed have none.
FORCED: dict[str, tuple[str, ...]] = {
    "all-reduce": ALGORITHMS[1:],
    "reduce-scatter": (RING, NVLS, *LEVELS),
    "all-gather": (RING, NVLS, *LEVELS),
}
# Those that choose for themselves, or that an application calls by name.
LIBRARIES = tuple(
    name for name in ALGORITHMS if not name.startswith((f"{VLLM}-", f"{NCCL}-", TRTLLM)) and name not in LEVELS
)

# Bytes below which vLLM takes its own kernel rather than another library, by compute capability and number of GPUs;
# no more than its buffers, and only for these numbers of GPUs (``custom_all_reduce.py``).
VLLM_LIMITS = {
    "9.0": {2: 64 * MIB, 4: 32 * MIB, 6: MIB // 2, 8: MIB // 4},
    "10.0": {2: 2 * MIB, 4: 2 * MIB, 6: MIB, 8: MIB},
    "10.3": {2: 4 * MIB, 4: 4 * MIB, 6: 8 * MIB, 8: 4 * MIB},
}
VLLM_BUFFER = 8 * MIB
VLLM_GPUS = (2, 4, 6, 8)
# TensorRT-LLM's choice for 2^i rows of 4096 elements of 16 bits, from 8 KiB on: its one-shot or two-shot kernel, NCCL.
TRTLLM_CHOICES = {
    "9.0": {2: "1212" + 7 * "1", 4: "1112222122", 8: "1111112222"},
    "10.0": {2: 11 * "1", 4: 9 * "1" + "2", 8: 8 * "1" + "22"},
}
TRTLLM_ROW = 8 * KIB
# From there on it takes PyTorch's multimem kernel for arrays of fewer bytes (``symm_mem.py``).
VLLM_MULTIMEM = {
    "9.0": {4: 32 * MIB, 6: 64 * MIB, 8: 64 * MIB},
    "10.0": {6: 128 * MIB, 8: 128 * MIB},
    "10.3": {6: 128 * MIB, 8: 128 * MIB},
}


def vllm_limit(machine: MachineSpec, n: int) -> int:
    """Return the bytes of an array from which on vLLM does not take a custom kernel for an all-reduce of *n* GPUs."""
    return min(VLLM_LIMITS.get(machine.gpu.compute_capability or "", {}).get(n, VLLM_BUFFER), VLLM_BUFFER)


def trtllm_kernel(machine: MachineSpec, n: int, size: int) -> DirectKernel | None:
    """Return the kernel that TensorRT-LLM takes; None: NCCL.  ``UsageError`` for its two-shot kernel."""
    capability = machine.gpu.compute_capability or ""
    choices = TRTLLM_CHOICES["10.0" if capability.startswith("10.") else "9.0"].get(n, "")
    number = max(size // TRTLLM_ROW, 1).bit_length() - 1
    choice = choices[number : number + 1]
    if choice == "2" and number >= n.bit_length() - 1:  # it needs a row for each GPU
        raise UsageError(
            f"workload: {format_bytes(size)} on {n} GPUs are reduced by TensorRT-LLM's two-shot kernel, which is not "
            "simulated; take `trtllm-one-shot`, `vllm` or `nccl`"
        )
    return KERNELS["trtllm-one-shot"] if choice else None


def kernel_of(algorithm: str, machine: MachineSpec, n: int, size: int) -> DirectKernel | None:
    """Return the kernel that *algorithm* runs on *n* GPUs for an array of *size* bytes; None: NCCL does it."""
    if algorithm == TRTLLM:
        return trtllm_kernel(machine, n, size)
    if algorithm != VLLM:
        return KERNELS.get(algorithm)
    if n not in VLLM_GPUS or size >= vllm_limit(machine, n):
        most = VLLM_MULTIMEM.get(machine.gpu.compute_capability or "", {}).get(n, 0)
        return KERNELS["vllm-multimem"] if size < most and machine.link.multicast is not None else None
    is_one_stage = n == 2 or size < (512 if n <= 4 else 256) * KIB
    return KERNELS["vllm-one-stage" if is_one_stage else "vllm-two-stage"]
