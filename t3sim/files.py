"""Atomic reading and writing of files, and strict JSON.

Every file t3sim leaves behind goes through ``publish``: written next to its destination, flushed to disk, then renamed
over it.  A full disk or a killed process leaves the old files as they were.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from t3sim.errors import EnvironmentFailure, InputDataError

# The causes a user can act on, in words; others are given as the system words them.
_CAUSES = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "no right to write there",
    errno.EPERM: "no right to write there",
    errno.EIO: "the disk reports an input/output error",
    errno.ENAMETOOLONG: "the name is too long",
    errno.EMFILE: "too many open files",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "it is a folder",
    errno.ENOENT: "the folder does not exist",
}


def cause_in_words(error: OSError) -> str:
    """Return why a system call failed, with the system's own name for it."""
    name = errno.errorcode.get(error.errno or 0, "")
    words = _CAUSES.get(error.errno or 0) or (os.strerror(error.errno) if error.errno else str(error))
    return f"{words} ({name})" if name else words


def publish(contents: Mapping[Path, bytes]) -> None:
    """Write all files or none of them, as far as one process can: all are on disk before the first is renamed.

    Raises ``EnvironmentFailure`` naming the file and the cause; then every
    file that existed before is intact and no temporary file is left.
    """
    path = Path()
    try:
        with _taking_places(contents) as temporary:
            for path, content in contents.items():
                _write_through(temporary[path], content)
    except OSError as error:
        raise EnvironmentFailure(f"{error.filename2 or path}: cannot write: {cause_in_words(error)}") from error


@contextmanager
def publishing(*paths: Path) -> Iterator[list[IO[bytes]]]:
    """Yield a file for each of *paths*, to be written piece by piece; all take their places at the end.

    None does if the block raises something; see ``publish``.  Raises ``EnvironmentFailure``.
    """
    try:
        with _taking_places(paths) as temporary, ExitStack() as stack:
            streams: list[IO[bytes]] = [stack.enter_context(one.open("wb")) for one in temporary.values()]
            yield streams
            for stream in streams:
                stream.flush()
                os.fsync(stream.fileno())
    except OSError as error:
        raise EnvironmentFailure(f"{', '.join(map(str, paths))}: cannot write: {cause_in_words(error)}") from error


@contextmanager
def _taking_places(paths: Iterable[Path]) -> Iterator[dict[Path, Path]]:
    """Yield the file to write for each of *paths*; all are renamed at the end, none if something is raised."""
    temporary = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in paths}
    try:
        yield temporary
        for path, written in temporary.items():
            os.replace(written, path)  # noqa: PTH105 - the primitive the promise rests on
        for folder in {path.parent for path in temporary}:
            _flush_folder(folder)
    finally:
        for written in temporary.values():
            written.unlink(missing_ok=True)


def prepare_folder(directory: str | Path) -> Path:
    """Create *directory* and prove that files can be written and renamed in it; raises ``EnvironmentFailure``."""
    folder = Path(directory)
    probe = folder / f".probe.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _write_through(probe, b"t3sim\n")
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        if isinstance(error, FileExistsError):
            error = NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        raise EnvironmentFailure(f"{folder}: cannot write here: {cause_in_words(error)}") from error
    return folder


def read_limited(path: Path, limit_bytes: int, *, shown_as: str) -> bytes:
    """Return the content of a regular file of at most *limit_bytes*; raises ``InputDataError`` naming *shown_as*."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise InputDataError(f"{shown_as}: is {kind}")
        if status.st_size > limit_bytes:
            raise InputDataError(f"{shown_as}: {status.st_size} bytes; at most {limit_bytes} are read")
        with path.open("rb") as stream:
            content = stream.read(limit_bytes + 1)
    except FileNotFoundError:
        raise InputDataError(f"{shown_as}: no such file") from None
    except PermissionError:
        raise InputDataError(f"{shown_as}: no right to read it") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        cause = cause_in_words(error) if isinstance(error, OSError) else "a file name cannot contain a NUL character"
        raise InputDataError(f"{shown_as}: cannot read: {cause}") from error
    if len(content) > limit_bytes:
        raise InputDataError(f"{shown_as}: grew beyond {limit_bytes} bytes while being read")
    return content


MAX_JSON_DEPTH = 50
MAX_JSON_DIGITS = 100  # of a number


def parse_json(content: bytes, *, finite: bool = True, list_as: str | None = None) -> dict[str, Any]:
    """Return the object that a file of JSON holds, or its list as the value of *list_as*; raises ``ValueError``.

    Refused as well: a key twice in an object, numbers that are too long or, unless *finite* is false, ``Infinity`` and
    ``NaN``, which Python writes; more than 50 levels.
    """
    try:
        found = json.loads(
            content.decode("utf-8-sig"), object_pairs_hook=_without_duplicates,
            parse_constant=_refused_number if finite else float, parse_int=_short_integer,
        )  # fmt: skip
        is_too_deep = _depth(found) > MAX_JSON_DEPTH
    except UnicodeDecodeError as error:
        raise ValueError(f"byte 0x{content[error.start]:02x} is not UTF-8") from None
    except RecursionError:
        is_too_deep = True
    except ValueError as error:
        raise ValueError(f"not valid JSON: {one_line(error)}") from None
    if is_too_deep:
        raise ValueError(f"nested deeper than {MAX_JSON_DEPTH} levels")
    if isinstance(found, list) and list_as is not None:
        found = {list_as: found}
    if not isinstance(found, dict):
        raise ValueError("must hold an object")
    return found


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"key `{name[:60]}` appears twice")
        found[name] = value
    return found


def _depth(value: Any) -> int:
    """Return how many objects and lists lie in each other."""
    children = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, children), default=0) if isinstance(value, dict | list) else 0


def _refused_number(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _short_integer(text: str) -> int:
    if len(text) > MAX_JSON_DIGITS:
        raise ValueError(f"a number of {len(text)} characters is too long")
    return int(text)


def one_line(error: Exception) -> str:
    """Return the message of *error* as one line of at most 200 characters."""
    return " ".join(str(error).split())[:200]


def _write_through(path: Path, content: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _flush_folder(folder: Path) -> None:
    """Make renames in *folder* durable, where the system can."""
    with suppress(OSError):  # some network file systems refuse; the renames themselves are done
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
