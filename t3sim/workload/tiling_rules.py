"""The rules of a tiling: what a compute unit must hold, what the tracker can distinguish, and which shapes fit."""

import math

from t3sim.config.element_types import PARTIAL_SUM
from t3sim.config.experiment import GemmShape, TilingSpec
from t3sim.config.limits import MOST_PREFETCHED_SLICES, MOST_RESIDENT_WORKGROUPS
from t3sim.config.machine import MachineSpec
from t3sim.config.machine_checks import above_limits
from t3sim.config.trees import Finding
from t3sim.errors import UsageError
from t3sim.units import format_bytes
from t3sim.workload.operands import (
    SIXTEEN_BITS,
    bytes_of_a,
    bytes_of_b,
    k_slice_of,
    slice_row_bytes,
    slices_of,
)
from t3sim.workload.outputs import (
    LEAST_STORE,
    OUTPUT_PITCH_ALIGNMENT,
    output_bytes,
    output_name,
    output_of,
    stored_as,
    stored_columns,
    stored_wavefront_tile,
)

ACCUMULATOR_BYTES = PARTIAL_SUM.bits // 8
LANES_PER_WAVEFRONT = 64
MAX_MATRIX_BYTES = 1 << 40
MAX_WAVEFRONTS_PER_WORKGROUP = 8  # T3 section 4.2.1: 3-bit wavefront id
MAX_WORKGROUPS = 1 << 20  # an FP16 output of 32 GiB in tiles of 128 x 128; larger is a mistake in the shape


def transposed(gemm: GemmShape, tiling: TilingSpec) -> tuple[GemmShape, TilingSpec]:
    """Return the GEMM that makes the transposed output, stored the other way, and the tiling of the same tiles."""
    tiles = {name: getattr(tiling, name)[::-1] for name in ("workgroup_tile", "wavefront_tile")}
    shape: dict[str, int | str] = {"m": gemm.n, "n": gemm.m}
    if gemm.weights is not None:
        shape |= {"element": gemm.weights, "weights": gemm.element}
    return gemm.model_copy(update=shape), tiling.model_copy(update={**tiles, "column_major": not tiling.column_major})


def tile_findings(tiling: TilingSpec) -> list[Finding]:
    """Return what keeps wavefront tiles from filling a workgroup tile exactly, at most eight of them."""
    (rows, columns), (high, wide) = tiling.workgroup_tile, tiling.wavefront_tile
    if rows % high or columns % wide:
        message = f"is [{high}, {wide}], must divide `workgroup_tile`, [{rows}, {columns}], in rows and columns"
        return [("wavefront_tile", message)]
    n_wavefronts = math.prod(wavefront_grid(tiling))
    if n_wavefronts > MAX_WAVEFRONTS_PER_WORKGROUP:
        made = f"[{rows}, {columns}] of [{high}, {wide}] wavefront tiles makes {n_wavefronts} wavefronts"
        most = f"T3's tracker distinguishes at most {MAX_WAVEFRONTS_PER_WORKGROUP} in a workgroup"
        return [("workgroup_tile", f"{made}; {most}")]
    return []


def slice_bytes(tiling: TilingSpec) -> int:
    """Return what the slices of operands take that a workgroup stages."""
    return (tiling.prefetch_depth + 1) * sum(tiling.workgroup_tile) * slice_row_bytes(tiling)


def lds_of(tiling: TilingSpec, machine: MachineSpec) -> int:
    """Return the LDS that a workgroup takes: kernels that fill a larger one take what this machine has."""
    return min(tiling.lds or slice_bytes(tiling), machine.gpu.compute_unit.lds)


def tiling_findings(tiling: TilingSpec, machine: MachineSpec) -> list[Finding]:
    """Return what keeps a workgroup of this tiling from running on a compute unit of this machine."""
    findings = tile_findings(tiling)
    if findings and findings[0][0] == "wavefront_tile":
        return findings
    findings += above_limits(tiling)
    (rows, columns), (high, wide) = tiling.workgroup_tile, tiling.wavefront_tile
    unit, line, tile = machine.gpu.compute_unit, machine.gpu.l2.line, f"[{rows}, {columns}]"
    slices = slice_bytes(tiling)
    accumulators = rows * columns * ACCUMULATOR_BYTES
    for needed, holder, what in (
        (slices, "lds", "operand slices, (prefetch_depth + 1) x (rows + columns) x k_slice x 2 B"),
        (accumulators, "registers", "accumulators, rows x columns x 4 B"),
    ):
        if needed > getattr(unit, holder):
            has = f"`machine.gpu.compute_unit.{holder}` is {format_bytes(getattr(unit, holder))}"
            findings.append(("workgroup_tile", f"{tile} needs {format_bytes(needed)} for {what}; {has}"))
    if tiling.lds is not None and tiling.lds < slices:
        findings.append(("lds", f"is {format_bytes(tiling.lds)}, must hold its slices, {format_bytes(slices)}"))
    of_line = line * 8 // SIXTEEN_BITS
    whole_lines = f"of {line} B, {of_line} FP16 elements"
    if slice_row_bytes(tiling) != line:
        findings.append(("k_slice", f"is {tiling.k_slice}, must fill one L2 line {whole_lines}"))
    stored, name = (high, "rows") if tiling.column_major else (wide, "columns")
    if stored % of_line:
        findings.append(("wavefront_tile", f"is [{high}, {wide}], its {name} must fill L2 lines {whole_lines}"))
    if tiling.prefetch_depth > MOST_PREFETCHED_SLICES:
        findings.append(("prefetch_depth", f"is {tiling.prefetch_depth}, must be at most {MOST_PREFETCHED_SLICES}"))
    n_threads = math.prod(wavefront_grid(tiling)) * LANES_PER_WAVEFRONT
    if n_threads > unit.max_threads:
        message = f"{tile} runs {n_threads} threads; `machine.gpu.compute_unit.max_threads` is {unit.max_threads}"
        findings.append(("workgroup_tile", message))
    return findings


def resident_workgroups(machine: MachineSpec, tiling: TilingSpec) -> int:
    """Return workgroups resident on a CU: what LDS, registers and threads allow (at most four).

    Operand slices are staged in LDS, accumulators are FP32 in registers, a wavefront has 64 threads.  A persistent
    kernel has one workgroup for each CU.  Raises ``UsageError`` if no workgroup can run there.
    """
    unit = machine.gpu.compute_unit
    for path, message in tiling_findings(tiling, machine):
        raise UsageError(f"tiling.{path}: {message}")
    rows, columns = tiling.workgroup_tile
    n_threads = math.prod(wavefront_grid(tiling)) * LANES_PER_WAVEFRONT
    held = (
        unit.lds // lds_of(tiling, machine),
        unit.registers // (rows * columns * ACCUMULATOR_BYTES),
        unit.max_threads // n_threads,
    )
    return min(*held, 1 if tiling.persistent else MOST_RESIDENT_WORKGROUPS)


def size_findings(gemm: GemmShape, tiling: TilingSpec) -> list[Finding]:
    """Return why *gemm* has too many workgroups to simulate, or cannot be run with *tiling*."""
    n_tiles = math.prod(tile_grid(gemm, tiling))
    n_workgroups = n_tiles * tiling.split_k
    if n_workgroups > MAX_WORKGROUPS:
        shape = f"m {gemm.m}, n {gemm.n}, k {gemm.k}"
        return [("gemm", f"{shape}: {n_workgroups} workgroup tiles, at most {MAX_WORKGROUPS} are simulated")]
    return split_findings(gemm, tiling)


def stage_findings(gemm: GemmShape, tiling: TilingSpec, n_stages: int) -> list[Finding]:
    """Return why tiles of *gemm* cannot be made in that many stages: T3 sends on what the tiles of each one trigger."""
    n_tiles = math.prod(tile_grid(gemm, tiling))
    if n_stages <= n_tiles:
        return []
    return [("tp", f"is {n_stages}, but the output has {n_tiles} workgroup tiles; each chunk needs at least one")]


def split_findings(gemm: GemmShape, tiling: TilingSpec) -> list[Finding]:
    """Return why a kernel cannot split k of *gemm*."""
    if tiling.split_k == 1:
        return []
    n_slices, line = slices_of(gemm, tiling), output_of(gemm).n_elements(OUTPUT_PITCH_ALIGNMENT)
    if tiling.split_k > n_slices:
        has = f"k {gemm.k} has {n_slices} slices of {k_slice_of(gemm, tiling)}"
        return [("tiling.split_k", f"is {tiling.split_k}, but {has}; each panel needs at least one")]
    if output_of(gemm).scale_bits:
        message = f"is {tiling.split_k}, and no kernel that adds up partial sums scales blocks of {gemm.output}"
        return [("tiling.split_k", f"{message}; take 1")]
    across = tiling.workgroup_tile[not tiling.column_major]
    if across % line:
        lines = f"partial sums are added up line by line, of {line} elements of {output_name(gemm)}"
        return [("tiling.split_k", f"is {tiling.split_k}, and {lines}; tiles are {across} wide, take 1")]
    row = gemm.m if tiling.column_major else gemm.n
    if row % line:
        name, lower = "m" if tiling.column_major else "n", row // line * line
        nearest = f"{lower} or {lower + line}" if lower else f"{line}"
        needed = f"is {tiling.split_k}, and partial sums fill whole cache lines, of {line} elements"
        return [("tiling.split_k", f"{needed}; {name} is {row}, take {nearest}, or 1")]
    return []


def shape_findings(gemm: GemmShape, tiling: TilingSpec) -> list[Finding]:
    """Return what makes a GEMM too large to simulate, or keeps it from being run with *tiling*."""
    m, n, k = gemm.m, gemm.n, gemm.k
    for name, n_bytes in (
        ("output (m x n)", output_bytes(gemm)),
        ("first operand (m x k)", bytes_of_a(gemm, m * k)),
        ("second (k x n)", bytes_of_b(gemm, k * n)),
    ):
        if n_bytes > MAX_MATRIX_BYTES:
            return [("gemm", f"m {m}, n {n}, k {k}: the {name} has more than {format_bytes(MAX_MATRIX_BYTES)}")]
    return size_findings(gemm, tiling)


def check_tiling(tiling: TilingSpec) -> None:
    """Raise ``ValueError`` unless wavefront tiles fill a workgroup tile exactly, at most eight of them."""
    refuse(tile_findings(tiling), "tiling.")


def refuse(findings: list[Finding], section: str = "") -> None:
    """Raise ``ValueError`` with the first of *findings*, if there is one."""
    for path, message in findings:
        raise ValueError(f"{section}{path} {message}")


def tile_grid(gemm: GemmShape, tiling: TilingSpec) -> tuple[int, int]:
    """Return workgroup tiles of the output, (down, across)."""
    height, width = tiling.workgroup_tile
    return -(-gemm.m // height), -(-gemm.n // width)


def wavefront_grid(tiling: TilingSpec) -> tuple[int, int]:
    """Return wavefront tiles per full workgroup tile, (down, across)."""
    (rows, columns), (high, wide) = tiling.workgroup_tile, tiling.wavefront_tile
    return rows // high, columns // wide


def output_findings(gemm: GemmShape, tiling: TilingSpec) -> list[Finding]:
    """Return why a kernel cannot store the output of *gemm* in its type."""
    if tiling.column_major:
        gemm, tiling = transposed(gemm, tiling)
    element, (rows, columns), name = stored_as(gemm, tiling), tiling.workgroup_tile, output_name(gemm)
    if element.bits >= SIXTEEN_BITS:
        return []
    (high, wide), at_once = stored_wavefront_tile(tiling, element), stored_columns(tiling, element)
    if wide % at_once or at_once < element.n_elements(LEAST_STORE):
        has = f"{high} x {wide} elements of a tile of {rows} x {columns}"
        message = f"is {name}, and wavefronts that store {has} do not fill {LEAST_STORE} B of a row"
        return [("output", f"{message}; take another kernel")]
    ratio = element.stored_bits / element.bits
    if high % ratio.denominator or (wide % element.block and columns % element.block):
        message = f"is {name}, and the {high} x {wide} elements that a wavefront stores are not whole blocks"
        return [("output", f"{message}; take another kernel")]
    return []
