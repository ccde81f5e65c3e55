"""Choice of the kernel of a library for a GEMM: the one whose last workgroup is expected to end first.

The tiles of an output are worked off in waves, one for each compute unit at a time, and the last wave takes as long as
a full one.  A tile of *r* x *c* costs a compute unit, for each element of k, *r c* multiply-adds and the loads of
*r + c* operand elements, of which a part is not hidden (``operand_cost``); a small tile takes as long as its loads
(``load_cost``).  The number of waves times this is the length of the schedule; the kernel with the shortest is chosen.

A library may split k as often as compute units are left for the panels: each takes its share of the slices, and the
schedule includes the kernel after it that adds up the partial sums (``partial_sums``).  Without that k plays no part.

A library may have rules instead, by rows and columns: the first that holds names the kernel, which does not split k.
It may have a single kernel for an element type (``only_kernel``).

Leaves out the cost of storing a tile.  Pinned by ``tests/workload/test_kernel_choice.py``.
"""

import math

from t3sim.config.experiment import GemmShape, KernelLibrarySpec, Kernels, TilingSpec
from t3sim.config.machine import MachineSpec
from t3sim.workload.operands import k_slice_of, slices_of
from t3sim.workload.tiling_rules import output_findings, split_findings, tile_grid, tiling_findings


def chosen_kernel(library: KernelLibrarySpec, gemm: GemmShape, n_compute_units: int) -> tuple[str, int]:
    """Return the name of the kernel that *library* runs *gemm* with on *n_compute_units*, and into what it splits k.

    Of equally long schedules, the one of fewer workgroups, then of larger tiles, then of wider ones.
    """
    storing = {name: one for name, one in library.kernels.items() if not output_findings(gemm, one)}
    if storing and len(storing) < len(library.kernels):
        library = library.model_copy(update={"kernels": storing})
    if library.only_kernel.get(gemm.element) in library.kernels:
        return library.only_kernel[gemm.element], 1
    if library.rules:
        return ruled_kernel(library, gemm.m, gemm.n), 1

    def merit(candidate: tuple[str, int]) -> tuple[float, ...]:
        tiling = split(library.kernels[candidate[0]], candidate[1])
        rows, columns = tiling.workgroup_tile
        n_workgroups = math.prod(tile_grid(gemm, tiling)) * tiling.split_k
        return schedule_length(tiling, library, gemm, n_compute_units), n_workgroups, -rows * columns, -columns

    candidates = [(name, one.split_k) for name, one in library.kernels.items()]
    sums = library.partial_sums
    for name, one in library.kernels.items() if sums is not None else ():
        n_panels = slices_of(gemm, one) // (sums.least_slices if sums else 1)
        most = min(n_compute_units // math.prod(tile_grid(gemm, one)), n_panels)
        candidates += [(name, n) for n in range(2, most + 1) if not split_findings(gemm, split(one, n))]
    return min(candidates, key=merit)


def ruled_kernel(library: KernelLibrarySpec, rows: int, columns: int) -> str:
    """Return the name of the kernel that the rules of *library* have for so many rows and columns.

    Rules for kernels that the library lacks, since no compute unit holds them, are passed over.
    """
    for rule in library.rules:
        is_for_all = rule.rows is None and rule.columns is None
        if rule.kernel in library.kernels and (
            is_for_all or rows <= (rule.rows or 0) or columns <= (rule.columns or 0)
        ):
            return rule.kernel
    return list(library.kernels)[-1]


def split(tiling: TilingSpec, n_panels: int) -> TilingSpec:
    """Return the kernel that splits k into that many panels."""
    return tiling if tiling.split_k == n_panels else tiling.model_copy(update={"split_k": n_panels})


def schedule_length(tiling: TilingSpec, library: KernelLibrarySpec, gemm: GemmShape, n_compute_units: int) -> float:
    """Return how long *gemm* takes, in multiply-adds of a compute unit for each 16 bits of k."""
    n_waves = -(-math.prod(tile_grid(gemm, tiling)) * tiling.split_k // n_compute_units)
    length = n_waves * tile_cost(tiling, library)
    sums = library.partial_sums
    if tiling.split_k == 1 or sums is None:
        return length
    n_slices = slices_of(gemm, tiling)
    of_panel = -(-n_slices // tiling.split_k) / n_slices
    n_sums = -(-gemm.m * gemm.n * tiling.split_k // n_compute_units)
    k = gemm.k * tiling.k_slice / k_slice_of(gemm, tiling)
    return length * of_panel + (sums.launch + sums.element * n_sums) / k


def tile_cost(tiling: TilingSpec, library: KernelLibrarySpec) -> int:
    """Return what a tile costs a compute unit, in multiply-adds for each 16 bits of k."""
    rows, columns = tiling.workgroup_tile
    n_operands = rows + columns
    return max(rows * columns + (library.operand_cost or 0) * n_operands, library.load_cost * n_operands)


def without_split(kernels: Kernels) -> Kernels:
    """Return the library that does not split k, and the kernel as it is."""
    if isinstance(kernels, KernelLibrarySpec) and kernels.partial_sums is not None:
        return kernels.model_copy(update={"partial_sums": None})
    return kernels


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
    name, n_panels = chosen_kernel(kernels, gemm, n_compute_units)
    return split(kernels.kernels[name], n_panels)
