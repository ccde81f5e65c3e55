"""CUDA kernels of the measurements (``cuda/``), compiled by NVRTC on the device's own node; they include no header."""

import re
from pathlib import Path

# In this order: the first one declares what the others use.
FILES = ("common", "streaming", "latency", "memory_contention", "peer_access", "signals", "tiled_gemm")
SOURCE = "\n".join((Path(__file__).parent / "cuda" / f"{name}.cu").read_text(encoding="utf-8") for name in FILES)

TILE = (128, 256)  # rows and columns of an output tile of tiled_gemm
TILED_THREADS = 256
TILED_SHARED_BYTES = 4 * (128 * 40 + 32 * 264) * 2

NAMES = tuple(re.findall(r"__global__ void (?:__launch_bounds__\(.*?\) )?(\w+)\(", SOURCE))
