"""How Numba compiles a function of the kernel, and the cache that keeps what was compiled (``_kept`` says where).

Numba numbers record types as they come up in a process and puts the number into the symbols of what it compiles. Code
of two layouts that two processes kept would have the same symbols, and a third one that loads both would call one
for the other. Here a record type is named after its content.

Numba unpickles whatever a cache file holds.  Here each file starts with the digest of its content, so a
damaged one is compiled anew, with one warning; a folder that others can write or exchange is not used.
"""

import hashlib
import os
import pickle
import warnings
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numba
from llvmlite import binding as llvm
from llvmlite import ir
from numba.core.caching import NullCache
from numba.core.ccallback import CFunc
from numba.core.compiler import CompileResult, compile_result
from numba.core.registry import CPUDispatcher
from numba.core.runtime import _nrt_python
from numba.core.serialize import dumps
from numba.core.typing.templates import infer, infer_global, make_intrinsic_template
from numba.np import arrayobj

from t3sim.gpu.units._ask import ask
from t3sim.gpu.units._inner import INNER, EntryCompiler, InnerCompiler, InnerLibrary
from t3sim.gpu.units._kept import HAS_BOUNDSCHECK, PACKAGE, cache_directory, is_cached


def mangled(record):
    """Return the name of a record type and a digest of its content, for symbols."""
    return "Record", (int(hashlib.sha256(record.name.encode()).hexdigest()[:15], 16),)


numba.types.Record.mangling_args = property(mangled)
# Numba spells a record type out in each pass over each function, with all that is nested in it: 6 % of the time to
# compile. Its name says the same, and is kept.
numba.types.Record.__repr__ = lambda record: record.name

numbas_index = arrayobj.fix_integer_index


def index_into(context, builder, index_type, index, length):
    """Return the place that *index* names in an array: in the kernel, which counts no references, itself.

    Numba, like Python, counts a negative index from the end. The kernel has none; the test took 6 % of the time.
    """
    if context.enable_nrt:
        return numbas_index(context, builder, index_type, index, length)
    return context.cast(builder, index, index_type, numba.types.intp)


arrayobj.fix_integer_index = index_into

CACHE_DIRECTORY = cache_directory()


@cache
def announce_runtime():
    """Let machine code from the cache find the functions of Numba's runtime.

    Numba does so when it loads all that it compiles with, which takes 39 MB and 0.1 s.
    """
    for name, address in _nrt_python.c_helpers.items():
        llvm.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


class KernelCache(NullCache):
    """The compiled forms of one function, as Numba asks for them: one sealed file for each signature.

    There is no index, so two processes that write at once leave one whole file, whichever comes last.  Of a cache
    that does nothing it keeps what there is nothing to do for: a function has this cache or none, and the folder
    changes with the sources.
    """

    has_warned = False  # once for all functions of a process
    libraries: dict[str, Any] = {}  # noqa: RUF012 - of this process: what inner functions were kept as, by file

    def __init__(self, function, *, is_entry):
        """Name the files after the place of *function* in the package, and after its form."""
        path = Path(function.__code__.co_filename).resolve().relative_to(PACKAGE).with_suffix("")
        name = f"{function.__qualname__}-{function.__code__.co_firstlineno}{'' if is_entry else f'-{INNER}'}"
        self._name = ".".join((*path.parts, name))

    def load_overload(self, sig, target_context):
        """Return the compiled form for a signature, or None if it is not kept or damaged."""
        key = self._key(sig, target_context.codegen())
        path = self._path(key)
        try:
            kept_key, parts = self._content(path)
            if kept_key != key:
                return None
            if parts[0][1] == INNER:
                target_context.refresh()
                return self._inner(path.name, parts, target_context)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"{path} in the kernel cache cannot be read ({error}); what is damaged is compiled anew")
            return None
        announce_runtime()
        return CompileResult._rebuild(target_context, *parts)  # noqa: SLF001

    @staticmethod
    def _content(path):
        """Return what a file holds; OSError: it is not what was written."""
        sealed = path.read_bytes()
        seal, content = sealed[: hashlib.sha256().digest_size], sealed[hashlib.sha256().digest_size :]
        if hashlib.sha256(content).digest() != seal:
            raise OSError("it is not what was written")
        return pickle.loads(content)

    @classmethod
    def _inner(cls, name, parts, target_context):
        """Return the compiled form of an inner function from what its file *name* holds."""
        _, fndesc, environment, signature, objectmode, lifted, annotation, reload_init, _ = parts
        library = cls._library_at(name, target_context, parts[0])
        return compile_result(
            target_context=target_context, typing_context=target_context.typing_context, library=library,
            environment=environment, entry_point=target_context.get_executable(library, fndesc, environment),
            fndesc=fndesc, type_annotation=annotation, signature=signature, objectmode=objectmode, lifted=lifted,
            reload_init=reload_init, referenced_envs=(),
        )  # fmt: skip

    @classmethod
    def _library_at(cls, name, target_context, kept=None):
        """Return the code that the file *name* holds (*kept*, if that has been read), and all that it reaches."""
        if name not in cls.libraries:
            kept = cls._content(CACHE_DIRECTORY / name)[1][0] if kept is None else kept
            library = InnerLibrary.rebuilt(
                target_context.codegen(), kept, lambda callee: cls._library_at(callee, target_context)
            )
            library.kept_at = name
            cls.libraries[name] = library
        return cls.libraries[name]

    def save_overload(self, sig, data):
        """Keep a compiled form: written to a temporary file and renamed, so that it is complete or absent."""
        if data.library.has_dynamic_globals:  # addresses of this process
            return
        key = self._key(sig, data.codegen)
        path = self._path(key)
        if isinstance(data.library, InnerLibrary):
            if None in [callee.kept_at for callee in data.library.callees()]:
                return
            data.library.kept_at = path.name
            self.libraries[path.name] = data.library
        unannotated = data._replace(type_annotation="")  # types of all variables, in words: most of the file
        content = dumps((key, unannotated._reduce()))  # noqa: SLF001
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
        """Return what identifies a compiled form."""
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


class KernelDispatcher(CPUDispatcher):
    """A function of the kernel: compiled callers include its code; Python calls an entry made of it."""

    def __init__(self, function):
        """*function* is one that the digest covers."""
        super().__init__(function, {}, {**options(function), **WITHOUT_WRAPPERS}, pipeline_class=InnerCompiler)
        keep(self, function, is_entry=False)

    @cached_property
    def entry(self):
        """Return the same function with its wrappers and machine code, compiled with all that it calls."""
        return self._entry(options(self.py_func))

    @cached_property
    def brief_entry(self):
        """Return the entry of a function of a microsecond: it keeps the GIL, since reacquiring it may take longer."""
        return self._entry({**options(self.py_func), "nogil": False})

    def _entry(self, of_numba):
        """Return the dispatcher of the function, with options of Numba."""
        entry = CPUDispatcher(self.py_func, {}, of_numba, pipeline_class=EntryCompiler)
        return keep(entry, self.py_func, is_entry=True)

    def get_call_template(self, args, kws):
        """As Numba asks for the form that takes *args*: one for all integers, constants or not, of any width."""
        return super().get_call_template(tuple(map(widened, args)), kws)

    def __call__(self, *arguments):
        """Call the entry."""
        return self.entry(*arguments)


def widened(argument):
    """Return the type as which a function of the kernel takes an *argument* that another one passes."""
    argument = numba.types.unliteral(argument)
    return numba.types.int64 if isinstance(argument, numba.types.Integer) else argument


WITHOUT_WRAPPERS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def options(function):
    """Return Numba's options: integers only, no fast-math, releases the GIL.

    The kernel's own functions allocate nothing and count no references: their arguments outlive the call, and counting
    (one atomic operation for each array passed on) took a fifth of the time.
    """
    return {"nopython": True, "nogil": True, "_nrt": not is_cached(function), "boundscheck": HAS_BOUNDSCHECK}


def keep(compiled, function, *, is_entry):
    """Keep compiled forms of *function* under the source digest, if that covers it; return *compiled*."""
    if CACHE_DIRECTORY is not None and is_cached(function):
        compiled._cache = KernelCache(function, is_entry=is_entry)  # noqa: SLF001
    return compiled


def dispatcher(function):
    """Return Numba's dispatcher of *function*; one outside of the kernel is an entry."""
    if is_cached(function):
        return KernelDispatcher(function)
    return CPUDispatcher(function, {}, options(function), pipeline_class=EntryCompiler)


class Address(int):
    """Address of the machine code of a function that ``ask`` can call; keeps that code alive."""

    code: CFunc


def callback(function, signature):
    """Compile *function*, or read it from the cache; return its address."""
    compiled = keep(CFunc(function, signature, locals={}, options={}), function, is_entry=True)
    compiled.compile()
    address = Address(compiled.address)
    address.code = compiled
    return address


def type_of_ask(typing_context, policy, channel, now):
    """Return the signature of ``ask`` in compiled code, where *policy* is an address, and what emits the call."""

    def generate(context, builder, signature, values):
        """Emit the call."""
        address, *arguments = values
        kind = ir.FunctionType(ir.IntType(64), [value.type for value in arguments])
        return builder.call(builder.inttoptr(address, kind.as_pointer()), arguments)

    return numba.types.int64(numba.types.int64, channel, numba.types.int64), generate


infer_global(ask, numba.types.Function(infer(make_intrinsic_template(ask, type_of_ask, "ask"))))


def is_kept(function, argument_types):
    """Return whether the entry of *function* for *argument_types* need not be compiled any more."""
    entry = function.entry
    if argument_types in entry.overloads:
        return True
    return CACHE_DIRECTORY is not None and entry._cache.is_kept(argument_types, entry.targetctx)  # noqa: SLF001
