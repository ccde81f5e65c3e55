"""Provenance of measurements: device, driver, versions, clocks, topology, date, peaks."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from t3lab.measure.device import REST_S, Effort, Lab
from t3lab.measurements.columns import ANY_DEVICE, H100, H200, Peaks

NOT_TOLD = "not reported by the device"
QUERIES = (
    "clocks.max.sm", "clocks.max.memory", "clocks.sm", "clocks.memory", "power.limit", "power.draw",
    "temperature.gpu", "persistence_mode",
)  # fmt: skip
KNOWN_PEAKS: Mapping[str, Peaks] = {"NVIDIA H200": H200, "NVIDIA H100 80GB HBM3": H100}


def provenance(lab: Lab, effort: Effort, sessions: int) -> dict[str, Any]:
    """Return everything known about the node, and how it is measured; the date in UTC."""
    runtime = lab.cp.cuda.runtime
    name = runtime.getDeviceProperties(0)["name"]
    device = name.decode() if isinstance(name, bytes) else str(name)
    return {
        "schema_version": 1,
        "device": device,
        "gpus": lab.n_gpus,
        "sms": lab.n_sms,
        "l2_bytes": lab.l2_bytes,
        "driver": _asked("driver_version"),
        "cuda": _version(int(runtime.runtimeGetVersion())),
        "cuda_of_driver": _version(int(runtime.driverGetVersion())),
        "nccl": NOT_TOLD,
        "cupy": str(lab.cp.__version__),
        "python": platform.python_version(),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "clocks": {name: _asked(name) for name in QUERIES},
        "topology": _lines(_nvidia_smi("topo", "-m")),
        "links": _lines(_nvidia_smi("nvlink", "-s", "-i", "0")),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith("NCCL_")},
        "rest_ms": round(1000 * REST_S),  # before each group of loops concurrently
        "method": {
            "sessions": sessions,  # of what needs NCCL
            "groups": effort.groups,
            "group_us": effort.group_us,
            "data": "FP16, random, inputs rotated so that none is in the L2 when its turn comes",
            "time": "between device events, queued behind a gate; a sample is the mean of one group, maximum over GPUs",
            "beside": "the first repetition of a concurrent loop is not timed; the GPUs rest before each group",
        },
        # Of an unknown device, limits above every device with its own SMs and L2.
        "peaks": asdict(KNOWN_PEAKS.get(device) or replace(ANY_DEVICE, sms=lab.n_sms, l2_bytes=lab.l2_bytes)),
    }


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _asked(query: str) -> str:
    """What nvidia-smi answers for the first GPU."""
    text = _nvidia_smi(f"--query-gpu={query}", "--format=csv,noheader")
    return text.splitlines()[0].strip() if text else NOT_TOLD


def _lines(text: str) -> list[str]:
    """The lines of a table without colours, indents, its legend and what identifies one device."""
    plain = re.sub("\x1b\\[[0-9;]*m| \\(UUID: [^)]*\\)", "", text.partition("Legend:")[0])
    return [" ".join(line.split()) for line in plain.splitlines() if line.strip()]


def _nvidia_smi(*arguments: str) -> str:
    """Return what nvidia-smi prints, nothing if it is not there or fails. It only reads."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout if done.returncode == 0 else ""
