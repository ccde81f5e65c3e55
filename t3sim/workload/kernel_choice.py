"""Which kernel of a library runs a GEMM: the one whose last workgroup should end first.

The tiles of an output are worked off in waves, one for each compute unit at a time, and the last wave takes as long as
a full one.  A tile of *r* x *c* costs a compute unit, for each element of k, *r c* multiply-adds and the loads of
*r + c* operand elements, of which a part is not hidden (``operand_cost``).  So many waves times this is the length of
the schedule; the kernel with the shortest is chosen.  It does not depend on k.

Leaves out split-K, and the cost of a launch and of storing a tile.  Pinned by
``tests/workload/test_kernel_choice.py``.
"""

import math

from t3sim.config.experiment import GemmShape, KernelLibrarySpec, Kernels, TilingSpec
from t3sim.config.machine import MachineSpec
from t3sim.workload.tiling import tile_grid, tiling_findings


def chosen_kernel(library: KernelLibrarySpec, gemm: GemmShape, n_compute_units: int) -> str:
    """Return the name of the kernel that *library* runs *gemm* with on *n_compute_units*.

    Of equally long schedules, the one of fewer tiles, then of larger tiles, then of wider ones.
    """

    def merit(name: str) -> tuple[int, ...]:
        rows, columns = library.kernels[name].workgroup_tile
        n_tiles = math.prod(tile_grid(gemm, library.kernels[name]))
        length = schedule_length(library.kernels[name], library.operand_cost, gemm, n_compute_units)
        return length, n_tiles, -rows * columns, -columns

    return min(library.kernels, key=merit)


def schedule_length(tiling: TilingSpec, operand_cost: int, gemm: GemmShape, n_compute_units: int) -> int:
    """Return how long *gemm* takes, in multiply-adds of a compute unit for each element of k."""
    rows, columns = tiling.workgroup_tile
    n_waves = -(-math.prod(tile_grid(gemm, tiling)) // n_compute_units)
    return n_waves * (rows * columns + operand_cost * (rows + columns))


def fitting_kernels(kernels: Kernels, machine: MachineSpec) -> Kernels:
    """Return a library for *machine*: kernels with no more slices than a compute unit holds, and none that it cannot.

    As it is if a unit can hold none of them.
    """
    if isinstance(kernels, TilingSpec):
        return kernels
    given = {name: fitting_kernel(one, machine) for name, one in kernels.kernels.items()}
    fitting = {name: one for name, one in given.items() if one is not None}
    return kernels.model_copy(update={"kernels": fitting}) if fitting else kernels


def fitting_kernel(tiling: TilingSpec, machine: MachineSpec) -> TilingSpec | None:
    """Return *tiling* with as many slices loaded ahead as a compute unit of *machine* holds; None: not even one."""
    for depth in range(tiling.prefetch_depth, 0, -1):
        fewer = tiling.model_copy(update={"prefetch_depth": depth})
        if not tiling_findings(fewer, machine):
            return fewer
    return None


def tiling_of(kernels: Kernels, gemm: GemmShape, n_compute_units: int) -> TilingSpec:
    """Return the tiling of *gemm*: the one that there is, or of the kernel that the library chooses."""
    if isinstance(kernels, TilingSpec):
        return kernels
    return kernels.kernels[chosen_kernel(kernels, gemm, n_compute_units)]
