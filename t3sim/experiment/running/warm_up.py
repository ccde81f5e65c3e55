"""Imports for the process from which workers are forked: dask, the simulator and the loaded kernel."""

import dask

from t3sim.experiment.running.dask_settings import DASK_SETTINGS

dask.config.set(DASK_SETTINGS)

import distributed  # noqa: E402, F401 - it reads the settings of its log when it is imported

import t3sim.experiment.running.dask_workers  # noqa: E402, F401
from t3sim.gpu.compiled import compiled_advance, is_compiled  # noqa: E402
from t3sim.gpu.units.state import Layout  # noqa: E402

if is_compiled(Layout()):  # the kernel of most machines; a worker compiles or loads any other
    compiled_advance(Layout())
