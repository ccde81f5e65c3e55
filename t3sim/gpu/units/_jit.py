"""The one decorator of the kernel.

Numba is imported with the first function that is compiled or taken from the cache (``_compiler``), not with the
package: commands that simulate nothing do without.
"""

from collections.abc import Callable
from functools import cached_property, update_wrapper
from typing import Any, TypeVar

from t3sim.gpu.units._kept import IS_INTERPRETED

F = TypeVar("F", bound=Callable[..., Any])


class KernelFunction:
    """A function of the kernel, or a user's policy or a helper of it: Numba is imported when it is used."""

    def __init__(self, function):
        """*function*: the Python function, which is called in interpreted mode and compiled otherwise."""
        update_wrapper(self, function)
        self.py_func = function

    @cached_property
    def compiled(self):
        """Numba's dispatcher of the function."""
        from t3sim.gpu.units import _compiler

        return _compiler.dispatcher(self.py_func)

    @property
    def _numba_type_(self):
        """Its type, which Numba asks for when it compiles a function that calls this one."""
        return self.compiled._numba_type_

    @property
    def entry(self):
        """The same function with machine code, for Python to call."""
        return self.compiled.entry

    @property
    def brief_entry(self):
        """The entry of a function that takes a microsecond."""
        return self.compiled.brief_entry

    def compile(self, argument_types):
        """Compile the function for callers in the kernel that pass *argument_types*."""
        return self.compiled.compile(argument_types)

    def __call__(self, *arguments):
        """Call the compiled function."""
        return self.compiled(*arguments)


def kernel(function: F) -> F:
    """Compile *function* when it is first used; in interpreted mode leave it unchanged."""
    return function if IS_INTERPRETED else KernelFunction(function)
