"""A process that tries to run code through ports of this machine, without the certificate of the run.

``python -m tests.sweeps.intruder USER FOLDER PORT...`` makes a folder in FOLDER for each way that works, and prints the
ports that greet or show pages without TLS.  It imports everything first: another user may not be able to read it.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import socket
import sys
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from distributed import Client, Security
from distributed.core import rpc
from distributed.protocol.pickle import dumps

PATIENCE_S = 3
SAME_USER = "-"


async def as_client(address: str, security: Security, mark: Path) -> None:
    async with Client(address, security=security, timeout=PATIENCE_S, asynchronous=True) as client:
        await client.submit(os.mkdir, mark.with_name(f"{mark.name}-submit"), pure=False)


async def directly(operation: str, address: str, security: Security, mark: Path) -> None:
    arguments = security.get_connection_args("client")
    async with rpc(address, connection_args=arguments, timeout=PATIENCE_S) as server:
        path = mark.with_name(f"{mark.name}-{operation}")
        await getattr(server, operation)(function=dumps(os.mkdir), args=dumps((path,)), kwargs=dumps({}))


async def attempt(way: Coroutine[None, None, None]) -> None:
    with suppress(Exception):
        await asyncio.wait_for(way, 2 * PATIENCE_S)


async def intrude(folder: Path, ports: list[int]) -> None:
    ways, own_certificate = [], Security.temporary()
    for port in ports:
        for scheme, security in (("tcp", Security()), ("tls", own_certificate)):
            address, mark = f"{scheme}://127.0.0.1:{port}", folder / f"{port}-{scheme}"
            ways += [
                as_client(address, security, mark),
                directly("run", address, security, mark),  # of a worker
                directly("run_function", address, security, mark),  # of a scheduler
            ]
    await asyncio.gather(*map(attempt, ways))


def answer(port: int, request: bytes) -> bytes:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.sendall(request)
        return connection.recv(4096)
    return b""


def main(user: str, folder: str, *ports: str) -> None:
    if user != SAME_USER:
        entry = pwd.getpwnam(user)
        os.setgroups([])
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    numbers = [int(port) for port in ports]
    asyncio.run(intrude(Path(folder), numbers))
    with ThreadPoolExecutor(len(numbers)) as pool:  # most of it is waiting
        said = list(pool.map(lambda port: answer(port, b""), numbers))
        shown = list(pool.map(lambda port: answer(port, b"GET /health HTTP/1.0\r\n\r\n"), numbers))
    greeting = [port for port, text in zip(numbers, said, strict=True) if b"pickle-protocol" in text]
    pages = [port for port, text in zip(numbers, shown, strict=True) if b" 200 OK" in text.split(b"\r\n")[0]]
    print(json.dumps([os.getuid(), greeting, pages]))


if __name__ == "__main__":
    main(*sys.argv[1:])
