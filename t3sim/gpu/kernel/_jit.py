"""The one decorator of the kernel, and where its compiled code is kept.

Numba does not notice that a callee in another file was edited and would go on
using the old machine code.  The cache folder therefore carries a digest of all
compiled sources and of the versions that compile them, so an edit means a new folder.
Functions of other files (a user's policy and its helpers) are in no digest: each process compiles them.

Numba numbers record types as they come up in a process and puts the number into the symbols of what it compiles. Code
of two layouts that two processes kept would have the same symbols, and a third one that loads both would call one
for the other. Here a record type is named after its content.

Numba unpickles whatever a cache file holds.  Here each file starts with the digest of its content, so a
damaged one is compiled anew, with one warning; a folder that others can write or exchange is not used.

``T3SIM_INTERPRETED=1`` runs the same functions as plain Python: same bits, slow.
``T3SIM_CACHE_DIR`` moves the cache; ``T3SIM_BOUNDSCHECK=1`` compiles with bounds checks,
``T3SIM_LEDGER=0`` without the ledger.
"""

import hashlib
import os
import pickle
import stat
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

IS_INTERPRETED = os.environ.get("T3SIM_INTERPRETED", "") == "1"
PACKAGE = Path(__file__).resolve().parents[2]
COMPILED_FOLDERS = ("gpu/kernel", "gpu/arbitration", "checks/dram")  # of the package: where compiled code is kept of
IS_COUNTING = os.environ.get("T3SIM_LEDGER", "") != "0"  # see ledger.py
HAS_BOUNDSCHECK = os.environ.get("T3SIM_BOUNDSCHECK", "") == "1"
WRITABLE_BY_OTHERS = 0o022  # mode bits


def source_digest():
    """Return the digest of everything that decides the machine code: sources, versions, flags."""
    digest = hashlib.sha256()
    for folder in COMPILED_FOLDERS:
        for path in sorted((PACKAGE / folder).glob("*.py")):
            digest.update(f"{folder}/{path.name}".encode())
            digest.update(path.read_bytes())
    if not IS_INTERPRETED:
        import numba
        import numpy as np

        versions = f"{numba.__version__} {np.__version__} {sys.version_info[:3]}"
        digest.update(f"{versions} {HAS_BOUNDSCHECK} {IS_COUNTING}".encode())
    return digest.hexdigest()[:16]


def cache_directory():
    """Return the folder of the compiled code for these sources; None, with a warning, if there is no safe one."""
    try:
        root = os.environ.get("T3SIM_CACHE_DIR")
        if root is None:
            base = os.environ.get("XDG_CACHE_HOME")
            root = (Path(base) if base else Path.home() / ".cache") / "t3sim"
        folder = (Path(root) / source_digest()).resolve()  # a link could be changed later
        for place in (*reversed(folder.parents), folder):
            if not place.exists():
                place.mkdir(mode=0o700, exist_ok=True)
        refuse_what_others_can_write(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} cannot be written")
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        warnings.warn(f"no kernel cache ({error}); the kernel is compiled anew in each process", stacklevel=2)
        return None
    return folder


def refuse_what_others_can_write(folder):
    """Raise PermissionError if another user can write *folder*, or exchange it or a folder above it.

    The folders above may belong to the system, and may be writable with the sticky bit, like /tmp.
    """
    me, system = os.geteuid(), Path("/").stat().st_uid
    above = [(place, (me, system), stat.S_ISVTX) for place in folder.parents]
    for place, owners, exception in ((folder, (me,), 0), *above):
        status = place.stat()
        is_writable = status.st_mode & WRITABLE_BY_OTHERS and not status.st_mode & exception
        if is_writable or status.st_uid not in owners:
            raise PermissionError(f"{place} can be written by others")


def is_cached(function):
    """Return whether the digest covers all of *function*, so that its compiled form may be kept."""
    folder = Path(function.__code__.co_filename).resolve().parent
    return function.__closure__ is None and any(folder == PACKAGE / name for name in COMPILED_FOLDERS)


if IS_INTERPRETED:
    CACHE_DIRECTORY = None

    def kernel(function: F) -> F:
        """Leave *function* as it is: interpreted mode."""
        return function

else:
    import numba
    from numba.core.caching import NullCache
    from numba.core.ccallback import CFunc
    from numba.core.compiler import CompileResult
    from numba.core.serialize import dumps

    def mangled(record):
        """Return the name of a record type and what tells it from others, for symbols."""
        return "Record", (int(hashlib.sha256(record.name.encode()).hexdigest()[:15], 16),)

    numba.types.Record.mangling_args = property(mangled)

    CACHE_DIRECTORY = cache_directory()

    class KernelCache(NullCache):
        """The compiled forms of one function, as Numba asks for them: one sealed file for each signature.

        There is no index, so two processes that write at once leave one whole file, whichever comes last.  Of a cache
        that does nothing it keeps what there is nothing to do for: a function has this cache or none, and the folder
        changes with the sources.
        """

        has_warned = False  # once for all functions of a process

        def __init__(self, function):
            """Name the files after the place of *function* in the package."""
            path = Path(function.__code__.co_filename).resolve().relative_to(PACKAGE).with_suffix("")
            self._name = ".".join((*path.parts, f"{function.__qualname__}-{function.__code__.co_firstlineno}"))

        def load_overload(self, sig, target_context):
            """Return the compiled form for a signature, or None if it is not kept or damaged."""
            target_context.refresh()
            key = self._key(sig, target_context.codegen())
            path = self._path(key)
            try:
                sealed = path.read_bytes()
                seal, content = sealed[: hashlib.sha256().digest_size], sealed[hashlib.sha256().digest_size :]
                if hashlib.sha256(content).digest() != seal:
                    raise OSError("it is not what was written")
            except FileNotFoundError:
                return None
            except OSError as error:
                self._warn(f"{path} in the kernel cache cannot be read ({error}); what is damaged is compiled anew")
                return None
            kept_key, parts = pickle.loads(content)
            return CompileResult._rebuild(target_context, *parts) if kept_key == key else None  # noqa: SLF001

        def save_overload(self, sig, data):
            """Keep a compiled form: written beside its place and renamed, so that it is there whole or not at all."""
            if data.library.has_dynamic_globals:  # addresses of this process
                return
            key = self._key(sig, data.codegen)
            path = self._path(key)
            content = dumps((key, data._reduce()))  # noqa: SLF001
            temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            try:
                temporary.write_bytes(hashlib.sha256(content).digest() + content)
                temporary.replace(path)
            except OSError as error:
                with suppress(OSError):
                    temporary.unlink()
                self._warn(f"{path} cannot be written to the kernel cache ({error}); it is compiled anew next time")

        def is_kept(self, sig, target_context):
            """Return whether there is a file of the compiled form for a signature, damaged or not."""
            return self._path(self._key(sig, target_context.codegen())).is_file()

        def _key(self, sig, codegen):
            """Return what tells a compiled form from all others."""
            return self._name, sig, codegen.magic_tuple()

        def _path(self, key):
            """Where the compiled form for *key* is kept."""
            return CACHE_DIRECTORY / f"{self._name}-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc"

        @classmethod
        def _warn(cls, message):
            """Warn of the first trouble with the cache."""
            if not cls.has_warned:
                cls.has_warned = True
                warnings.warn(message, stacklevel=2)

    def kernel(function: F) -> F:
        """Compile *function* lazily: integers only, no fast-math, releases the GIL, kept under the source digest.

        The kernel's own functions allocate nothing and count no references: what they are given outlives the call, and
        the counting, one atomic operation for each array handed on, was a fifth of the time.
        """
        is_own = is_cached(function)
        compiled = numba.njit(nogil=True, _nrt=not is_own, boundscheck=HAS_BOUNDSCHECK)(function)
        if CACHE_DIRECTORY is not None and is_own:
            compiled._cache = KernelCache(function)  # noqa: SLF001
        return compiled

    def callback(function, signature):
        """Compile *function* as a function value that a kernel can call, or read it from the cache."""
        compiled = CFunc(function, signature, locals={}, options={})
        if CACHE_DIRECTORY is not None and is_cached(function):
            compiled._cache = KernelCache(function)  # noqa: SLF001
        compiled.compile()
        return compiled

    def is_kept(function, argument_types):
        """Return whether the form of *function*, a kernel, for *argument_types* need not be compiled any more."""
        if argument_types in function.overloads:
            return True
        return CACHE_DIRECTORY is not None and function._cache.is_kept(argument_types, function.targetctx)  # noqa: SLF001
