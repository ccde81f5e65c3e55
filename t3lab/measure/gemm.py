"""FP16 GEMMs of one GPU: cuBLAS and the tiled kernel of this package; sustained, one at a time, on fewer SMs."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product, starmap
from typing import Any, NamedTuple

import numpy as np

from t3lab.measure.device import ROTATED_SETS, Lab, Readings, Rows, Work, medians
from t3lab.measure.kernels import TILE, TILED_SHARED_BYTES, TILED_THREADS

MAX_RELATIVE_ERROR = 1e-3  # FP32 sums rounded to FP16 once lie near 3e-4; a wrong index lies near 1
SUSTAINED = 15.0  # times the usual group: long enough for the clock to settle under load


class Shape(NamedTuple):
    """A GEMM of a model's sublayer, or a bare one (model and sublayer ``-``, tp 1)."""

    model: str
    sublayer: str
    tp: int
    m: int
    n: int
    k: int

    def tiles(self) -> tuple[int, int]:
        """Tiles of the tiled kernel, (down, across)."""
        return -(-self.m // TILE[0]), -(-self.n // TILE[1])


# Hidden size and tokens as in configs/model, which needs libraries to read; tests/measure holds the two together.
MODELS = {
    "Mega-GPT-2": (3072, 16384),
    "T-NLG": (4256, 8192),
    "GPT-3": (12288, 2048),
    "PALM": (18432, 2048),
    "MT-NLG": (20480, 2048),
}
K_FACTORS = {"OP": 1, "FC-2": 4, "FC-1": 4, "IP": 3}  # K over hidden / tp; FC-1 and IP are those of the backward pass


def sublayer(model: str, name: str, tp: int) -> Shape:
    """Return a sublayer's GEMM, K rounded down to a multiple of 8 so that rows start at 16 bytes."""
    hidden, tokens = MODELS[model]
    return Shape(model, name, tp, tokens, hidden, K_FACTORS[name] * hidden // tp // 8 * 8)


def sublayers(models: Sequence[str], names: Sequence[str], degrees: Sequence[int]) -> tuple[Shape, ...]:
    """Return the GEMMs of all of these, the degrees of one sublayer after each other."""
    return tuple(starmap(sublayer, product(models, names, degrees)))


BARE = tuple(
    Shape("-", "-", 1, m, n, k)
    for m, n, k in (
        (512, 512, 4096), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192),
        (1024, 8192, 8192), (8192, 1024, 8192), (16384, 4096, 512), (4224, 2048, 4096), (33792, 256, 4096),
    )
)  # fmt: skip
TRAINING = sublayers(("Mega-GPT-2", "T-NLG"), ("OP", "FC-2", "IP"), (4, 8, 16, 32))
LARGE = sublayers(("GPT-3", "PALM", "MT-NLG"), ("OP", "FC-2", "IP"), (8, 32))
SHAPES = (*TRAINING, *LARGE, *BARE)
FEW = (sublayer("T-NLG", "OP", 8), sublayer("T-NLG", "FC-2", 8), sublayer("Mega-GPT-2", "FC-2", 8))
QUICK_SHAPES = (sublayer("T-NLG", "OP", 16), BARE[1])
SM_COUNTS = (132, 128, 120, 112, 104, 96, 80, 64, 48, 32, 16, 8)
GAPS_US = (500, 20000)


class Operands:
    """Random A, B and poisoned C of one shape on one GPU, in as many sets as keep inputs out of the L2."""

    def __init__(self, lab: Lab, shape: Shape, gpu: int = 0) -> None:
        self.shape = shape
        of_set = 2 * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n)
        n_sets = max(ROTATED_SETS, -(-4 * lab.l2_bytes // of_set))
        with lab.on(gpu):
            self.sets = [
                (
                    lab.random_halves((shape.m, shape.k), seed=2 * i + 1000 * gpu),
                    lab.random_halves((shape.k, shape.n), seed=2 * i + 1 + 1000 * gpu),
                    lab.cp.full((shape.m, shape.n), np.nan, dtype=np.float16),
                )
                for i in range(n_sets)
            ]
        lab.synchronize()

    def __getitem__(self, repetition: int) -> tuple[Any, Any, Any]:
        return self.sets[repetition % len(self.sets)]

    def check(self, lab: Lab) -> None:
        """Compare some rows of set 0's output, on GPU 0, with FP32 sums; raises ``ArithmeticError``."""
        a, b, c = self.sets[0]
        rows = np.random.default_rng(7).choice(self.shape.m, size=min(64, self.shape.m), replace=False)
        with lab.on(0):
            expected = a[rows].astype(np.float32) @ b.astype(np.float32)
            found = c[rows].astype(np.float32)
            error = float(lab.cp.linalg.norm(found - expected) / lab.cp.linalg.norm(expected))
        if not error < MAX_RELATIVE_ERROR:
            raise ArithmeticError(f"{self.shape}: relative error {error:.2g} against FP32 sums")


class Cublas:
    """``C = A B`` by cuBLAS: FP16, FP32 sums, row-major."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._library = importlib.import_module("cupy_backends.cuda.libs.cublas")
        self._one, self._zero = np.ones(1, dtype=np.float32), np.zeros(1, dtype=np.float32)

    def __call__(self, a: Any, b: Any, c: Any) -> None:
        """Queue it on the current stream."""
        library, half = self._library, self._lab.cp.cuda.runtime.CUDA_R_16F
        m, k = a.shape
        n = b.shape[1]
        handle = self._lab.cp.cuda.device.get_cublas_handle()
        one, zero = self._one.ctypes.data, self._zero.ctypes.data
        # cuBLAS stores columns together: it computes the transpose, C' = B' A'.
        library.gemmEx(
            handle, library.CUBLAS_OP_N, library.CUBLAS_OP_N, n, m, k, one, b.data.ptr, half, n, a.data.ptr, half, k,
            zero, c.data.ptr, half, n, library.CUBLAS_COMPUTE_32F, library.CUBLAS_GEMM_DEFAULT,
        )  # fmt: skip


def tiled(lab: Lab, operands: Operands, i: int, *, workgroups: int | None = None, record: Any = None) -> None:
    """Queue the tiled kernel on the current stream, one workgroup a tile or *workgroups* that stay."""
    shape = operands.shape
    down, across = shape.tiles()
    sizes = (np.int32(size) for size in (shape.m, shape.n, shape.k, across, down * across))
    arguments = (*operands[i], *sizes, np.uintp(0) if record is None else record)
    grid = down * across if workgroups is None else min(workgroups, down * across)
    lab.launch("tiled_gemm", grid, TILED_THREADS, arguments, TILED_SHARED_BYTES)


def _works(lab: Lab, operands: Operands) -> dict[str, Work]:
    cublas = Cublas(lab)
    return {
        "cublas": lab.queueing(lambda i: cublas(*operands[i])),
        "tiled": lab.queueing(partial(tiled, lab, operands)),
    }


def checked(lab: Lab, operands: Operands, work: Work) -> Work:
    """Run *work* once on poisoned output, compare, and return it."""
    operands.sets[0][2].fill(np.nan)
    lab.synchronize()
    work(0)
    lab.synchronize()
    operands.check(lab)
    return work


def sustained(lab: Lab) -> Rows:
    """Back-to-back GEMMs, with clock and power; all shapes by cuBLAS, some by the tiled kernel."""

    def of_shape(shape: Shape) -> Rows:
        operands = Operands(lab, shape)
        for kernel, work in _works(lab, operands).items():
            if kernel == "tiled" and not (lab.effort.quick or shape in FEW or shape.model == "-"):
                continue
            readings: Readings = []
            samples = lab.samples(checked(lab, operands, work), longer=SUSTAINED, readings=readings)
            yield {**shape._asdict(), "time_samples_us": samples, "kernel": kernel, **medians(readings)}

    yield from lab.each(SHAPES, QUICK_SHAPES, of_shape)


def with_gaps(lab: Lab) -> Rows:
    """One GEMM at a time by cuBLAS, the GPU idle before each: the time at the clock of a cool, idle chip."""

    def of_shape(shape: Shape) -> Rows:
        operands = Operands(lab, shape)
        work = checked(lab, operands, _works(lab, operands)["cublas"])

        def timed(i: int, gap_us: int, readings: Readings) -> float:
            work(i)
            lab.synchronize()
            time.sleep(gap_us / 1e6)
            return lab.group(lab.own_streams([0]), lambda _: work(i + 1), 1, readings)

        for gap_us in GAPS_US:
            readings: Readings = []
            samples = [timed(i, gap_us, readings) for i in range(3 if lab.effort.quick else 15)]
            found = {"gap_us": gap_us, "time_samples_us": samples, "kernel": "cublas", **medians(readings)}
            yield {**shape._asdict(), **found}

    yield from lab.each(SHAPES, QUICK_SHAPES, of_shape)


def fewer_sms(lab: Lab) -> Rows:
    """The same GEMM on fewer SMs: cuBLAS in a green context where the driver offers one, and the tiled kernel."""
    counts = (lab.n_sms, 64) if lab.effort.quick else tuple(n for n in SM_COUNTS if n <= lab.n_sms)

    def of_shape(shape: Shape) -> Rows:
        operands = Operands(lab, shape)
        cublas = Cublas(lab)

        def row(kernel: str, sms: int, queue: Work, stream: Any) -> dict[str, Any]:
            work = checked(lab, operands, lab.queueing(queue, stream))
            samples = lab.samples(work, [(0, stream)])
            return {**shape._asdict(), "sms": sms, "kernel": kernel, "time_samples_us": samples}

        for sms in counts:
            with green_stream(lab, sms) as stream:
                if stream is not None:
                    yield row("cublas", sms, lambda i: cublas(*operands[i]), stream)
            yield row("tiled", sms, partial(tiled, lab, operands, workgroups=sms), lab.streams[0])

    yield from lab.each(FEW, QUICK_SHAPES[:1], of_shape)


@contextmanager
def green_stream(lab: Lab, sms: int, gpu: int = 0) -> Iterator[Any]:
    """A stream that has *sms* SMs of a GPU, by a green context; None if cuda-bindings or the driver has none.

    With all SMs it is the lab's own stream.
    """
    stream = lab.streams[gpu] if sms == lab.n_sms else None
    driver: Any = None
    context = None
    if stream is None:
        try:
            driver = importlib.import_module("cuda.bindings.driver")
            context = _green_context(driver, sms, gpu)
            non_blocking = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
            stream = lab.cp.cuda.ExternalStream(int(_done(driver.cuGreenCtxStreamCreate(context, non_blocking, 0))))
        except (ImportError, RuntimeError, AttributeError):
            pass
    try:
        yield stream
    finally:
        lab.synchronize()
        if context is not None:
            driver.cuGreenCtxDestroy(context)


def _green_context(driver: Any, sms: int, gpu: int) -> Any:
    """A green context of exactly *sms* SMs of a GPU; raises ``RuntimeError``."""
    device = _done(driver.cuDeviceGet(gpu))
    whole = _done(driver.cuDeviceGetDevResource(device, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
    groups, found, _ = _done(driver.cuDevSmResourceSplitByCount(1, whole, 0, sms))
    if found != 1 or groups[0].sm.smCount != sms:
        raise RuntimeError(f"no group of {sms} SMs")
    description = _done(driver.cuDevResourceGenerateDesc([groups[0]], 1))
    flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    return _done(driver.cuGreenCtxCreate(description, device, flags))


def _done(result: tuple[Any, ...]) -> Any:
    if int(result[0]) != 0:
        raise RuntimeError(str(result[0]))
    return result[1] if len(result) == 2 else result[1:]


def tile_rows(record: Any, places: Sequence[tuple[int, ...]]) -> list[dict[str, int]]:
    """Return what the kernel recorded of each tile: its workgroup and place, SM, and times after the first start."""
    found = record.get().astype(np.int64)
    found[:, 1:] -= found[:, 1].min()
    names = ("wg", "tile_row", "tile_col", "sm", "start_ns", "mainloop_end_ns", "end_ns")
    rows = enumerate(zip(places, found.tolist(), strict=True))
    return [dict(zip(names, (wg, *place, *times), strict=True)) for wg, (place, times) in rows]


def timelines(lab: Lab) -> Rows:
    """Each tile of one run of the tiled kernel: its SM, start, end of the K loop and end."""

    def of_shape(shape: Shape) -> Rows:
        operands = Operands(lab, shape)
        down, across = shape.tiles()
        lab.samples(checked(lab, operands, _works(lab, operands)["tiled"]))
        with lab.on(0):
            record = lab.cp.zeros((down * across, 4), dtype=np.uint64)
            lab.synchronize()
            tiled(lab, operands, 1, record=record)
            lab.synchronize()
            tiles = tile_rows(record, list(np.ndindex(down, across)))
        where = {**shape._asdict(), "kernel": "tiled", "tile_height": TILE[0], "tile_width": TILE[1]}
        yield from (where | tile for tile in tiles)

    yield from lab.each((*FEW, sublayer("GPT-3", "FC-2", 32)), QUICK_SHAPES[:1], of_shape)
