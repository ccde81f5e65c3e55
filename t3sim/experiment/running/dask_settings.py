"""Settings of dask.distributed, here and in the workers, and access control.

Any process that connects to a scheduler or a worker can run code as its user, and every user of a machine can connect
to its loopback interface.  The scheduler and the workers of a run therefore listen on that interface only, and accept
only TLS connections with the certificate that the driver made for this run.  Its key is in no file that others can
read, in no argument and not in the environment: workers get it through a pipe.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.util import get_temp_dir
from typing import TYPE_CHECKING, Any

import dask

from t3sim.errors import EnvironmentFailure

if TYPE_CHECKING:
    from distributed import Security

SILENT = logging.CRITICAL + 10  # what dask has to say of dying workers, `dask_workers` says for users
LOOPBACK = "127.0.0.1"
WEB_ADDRESS = f"{LOOPBACK}:0"  # dask always starts a web server; it has no pages here
ENCRYPTED = ("tls://", "wss://")
CONNECT_S = 5  # to a scheduler

DASK_SETTINGS: dict[str, Any] = {
    "logging": {"distributed": SILENT},
    # A worker keeps no data, so there is nothing to spill; paused for what past phases took, it would wait forever.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.profile.enabled": False,
    # Looks at its own event loop and memory, 50 and 10 times a second by default, take 1 % of two cores.
    "distributed.admin.tick.interval": "1s",
    "distributed.worker.memory.monitor-interval": "1s",
    "distributed.scheduler.allowed-failures": 2,
    "distributed.scheduler.work-stealing-interval": "200ms",
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.diagnostics.nvml": False,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}


def private_settings() -> dask.config.set:
    """Set up dask for the length of a context, with its scratch folder in one that only this user can write.

    Dask imports modules from that folder, and by default shares ``/tmp/dask-scratch-space`` with the user who created
    it.
    """
    import distributed  # noqa: F401 - its defaults come first: they would end with the context, and no second run start

    return dask.config.set({**DASK_SETTINGS, "temporary-directory": get_temp_dir()})


def credentials_for(address: str) -> Security:
    """Return what the user's configuration of dask says about TLS, after a connection to the scheduler at *address*.

    Raises ``EnvironmentFailure`` if there is no connection.  A ``Client`` that fails to connect leaves a traceback on
    stderr when it is deleted, so it is made only for a scheduler that answers.
    """
    from distributed import Security
    from distributed.comm.core import connect

    security = Security()
    try:
        arguments = security.get_connection_args("client")
    except OSError as error:
        raise EnvironmentFailure(f"the TLS files of dask's settings cannot be used: {error}: {security}") from error
    if address.startswith(ENCRYPTED) and arguments["ssl_context"] is None:
        raise EnvironmentFailure(
            f"{address} needs certificates, and dask's settings name none: set DASK_DISTRIBUTED__COMM__TLS__CA_FILE, "
            "DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT and DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY"
        )

    async def greet() -> None:
        comm = await asyncio.wait_for(connect(address, timeout=CONNECT_S, **arguments), CONNECT_S + 1)
        await comm.close()

    try:
        with ThreadPoolExecutor(1) as thread:  # the caller's thread may have an event loop: a notebook has
            thread.submit(asyncio.run, greet()).result()
    except (OSError, ValueError, RuntimeError) as error:
        reason: BaseException = error
        while reason.__cause__ is not None:
            reason = reason.__cause__
        raise EnvironmentFailure(f"the workers of {address}: cannot be reached: {str(reason) or error}") from error
    return security
