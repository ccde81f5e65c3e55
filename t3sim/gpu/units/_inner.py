"""Functions that are compiled for their callers, and become machine code only as part of these.

Numba makes each function ready to be called by itself: wrappers for Python and C, a module of its own with all that it
calls, optimised, and machine code.  For the 220 functions of the kernel, which call each other, that is half of the
time of a compilation.  Here a function keeps its code with no more than its own simplifications.  What is called from
Python, an entry, links the functions that it reaches and is optimised as a whole, which gives a loop as fast.

Uses what ``numba.core`` does not promise to keep: ``tests/faults/test_kernel_cache.py`` shows whether it still holds.
"""

import llvmlite.binding as llvm
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.runtime import rtsys

INNER = "inner"  # the form of a library in Numba's caches, in addition to "object" and "bitcode"


class InnerLibrary(JITCodeLibrary):
    """The code of one function, and the libraries of those that it calls."""

    kept_at = None  # the name of its file in the kernel cache

    @property
    def codegen(self):
        """The function needs no environment of its own: it never runs alone."""
        return self

    def set_env(self, env_name, env):
        """Do nothing: see ``codegen``."""

    def finalize(self):
        """Include the code of callees that are no functions of the kernel; export the functions that callers link."""
        self._raise_if_finalized()
        for library in self._linking_libraries:
            if not isinstance(library, InnerLibrary) and library is not rtsys.library:  # entries have the runtime
                self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        passes = llvm.create_new_module_pass_manager()
        # Leftover addresses of this process would keep the function out of the cache.
        passes.add_global_dead_code_eliminate_pass()
        passes.run(self._final_module, self._codegen._module_pass_manager()[1])
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == llvm.Linkage.external:
                function.linkage = "linkonce_odr"
        self._finalize_dynamic_globals()
        self._finalized = True

    def callees(self):
        """Return the libraries of the functions of the kernel that this one calls."""
        return list(dict.fromkeys(library for library in self._linking_libraries if isinstance(library, InnerLibrary)))

    def reached(self):
        """Return this library and all that it reaches, callers before callees."""
        seen, order = set(), []

        def visit(library):
            """Append *library* after all that it reaches."""
            seen.add(library)
            for callee in library.callees():
                if callee not in seen:
                    visit(callee)
            order.append(library)

        visit(self)
        return order[::-1]

    def get_pointer_to_function(self, name):
        """Return 0: there is no machine code."""
        self._ensure_finalized()
        return 0

    def _get_module_for_linking(self):
        """Return the code of this function and of all that it reaches, for an entry to link."""
        self._ensure_finalized()
        if self._shared_module is None:
            # Linking drops a function that nothing calls yet, so callers come first.
            module = self._final_module.clone()
            for library in self.reached()[1:]:
                module.link_in(library._final_module, preserve=True)
            self._shared_module = module
        return self._shared_module

    def serialize_using_object_code(self):
        """Return the cached form of this library: its code and the files of its callees."""
        self._ensure_finalized()
        return self.name, INNER, (self._final_module.as_bitcode(), [callee.kept_at for callee in self.callees()])

    @classmethod
    def rebuilt(cls, codegen, kept, library_at):
        """Return the cached library; *library_at* returns that of a callee, given its file."""
        name, _, (bitcode, callees) = kept
        library = cls(codegen, name)
        library._final_module = llvm.parse_bitcode(bitcode)
        library._linking_libraries = [library_at(place) for place in callees]
        library._finalized = True
        return library


class EntryLibrary(JITCodeLibrary):
    """The code of an entry and of all that it reaches."""

    def _optimize_final_module(self):
        """Optimise as Numba does, but let the optimiser know that nothing else can call the functions in here.

        So a function with one caller becomes a part of it, and what it does not use of its arguments is not passed: an
        array is seven words.
        """
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == llvm.Linkage.linkonce_odr:
                function.linkage = "internal"
        super()._optimize_final_module()


class EntryCompiler(Compiler):
    """Numba's compiler with an ``EntryLibrary`` for the function."""

    library_class = EntryLibrary

    def __init__(self, typingctx, targetctx, library, args, return_type, flags, locals):  # noqa: A002 - Numba's word
        """As Numba calls it; *library* is None."""
        super().__init__(typingctx, targetctx, library, args, return_type, flags, locals)
        self.state.library = self.library_class(self.state.targetctx.codegen(), self.library_class.__name__)
        self.state.library.enable_object_caching()


class InnerCompiler(EntryCompiler):
    """Numba's compiler with an ``InnerLibrary`` for the function."""

    library_class = InnerLibrary

    def _compile_bytecode(self):
        """Leave the number of this process out of the symbol: callers in another process link it by name.

        What is left is its module, its own name and the types of its arguments, of which records are named after their
        content (``_compiler``): no two forms have the same.
        """
        self.state.func_id.unique_id = 0
        return super()._compile_bytecode()
