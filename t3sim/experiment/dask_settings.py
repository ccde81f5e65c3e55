"""How dask.distributed is set up, here and in the workers."""

from __future__ import annotations

import logging
from typing import Any

SILENT = logging.CRITICAL + 10  # what dask has to say of dying workers, `dask_workers` says for users

DASK_SETTINGS: dict[str, Any] = {
    "logging": {"distributed": SILENT},
    # A worker keeps no data, so there is nothing to spill; paused for what past phases took, it would wait forever.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.profile.enabled": False,
    "distributed.scheduler.allowed-failures": 2,
    "distributed.scheduler.work-stealing-interval": "200ms",
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.diagnostics.nvml": False,
}
