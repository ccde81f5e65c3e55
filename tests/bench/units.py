"""Where the time of the loop goes: visits and cycles of each unit, in a build of the kernel that counts them.

    python -m tests.bench.units [OVERRIDE ...]

simulates the fused part of T-NLG FC-2 at TP 8, or of what the overrides make of it, and prints the figures as JSON.
The functions in ``UNITS`` are what a unit does at a time; each is compiled inside one that reads the processor's cycle
counter before and after.  A unit's cycles are without those of the units that it calls.  The counting itself takes
about a third of the time of a run: what compares is the shares of units, not their sum.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

UNITS = {
    "advance": "loop, and what is not below",
    "start_operations": "command processor",
    "end_operations": "command processor",
    "receive_messages": "mailbox",
    "serve_arrivals": "ingress port",
    "issue_reads": "DMA engine",
    "arm_triggered": "DMA engine",
    "dispatch_workgroups": "workgroup dispatcher",
    "advance_moves": "move kernels",
    "advance_workgroups": "compute unit, GEMM",
    "load_line": "L2, load",
    "store_line": "L2, store",
    "fill_granule": "L2, fill",
    "advance_channel": "memory controller",
    "count_store": "tracker",
    "serve_column_bus": "DRAM channel, column bus",
    "serve_row_bus": "DRAM channel, row bus",
    "transmit": "link port",
}
# Of each function: its visits and its own cycles.  Behind them: cycles of what the function that runs now has called.
COUNTS = np.zeros((len(UNITS) + 1, 2), np.int64)


def address_of(row: int) -> int:
    """Return the address of a row of ``COUNTS``, which compiled code has as a constant."""
    return int(COUNTS[row:].ctypes.data)


@intrinsic
def cycle(typing_context: Any) -> Any:
    """Return the processor's cycle counter."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        counter = builder.module.declare_intrinsic("llvm.readcyclecounter", fnty=ir.FunctionType(ir.IntType(64), []))
        return builder.call(counter, [])

    return types.int64(), generate


@intrinsic
def read(typing_context: Any, address: Any) -> Any:
    """Return the 64-bit word at *address*."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()))

    return types.int64(types.int64), generate


@intrinsic
def write(typing_context: Any, address: Any, value: Any) -> Any:
    """Put *value* into the 64-bit word at *address*."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


COUNTING = """
def {name}({arguments}):
    outer = read({inner})
    write({inner}, 0)
    begin = cycle()
    result = counted({arguments})
    spent = cycle() - begin
    write({visits}, read({visits}) + 1)
    write({cycles}, read({cycles}) + spent - read({inner}))
    write({inner}, outer + spent)
    return result
"""


def counting(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel's decorator, which counts the visits and cycles of ``UNITS``."""

    def decorate(function: Any) -> Any:
        compiled, name = kernel(function), function.__name__
        if name not in UNITS:
            return compiled
        code = function.__code__
        source = COUNTING.format(
            name=name, arguments=", ".join(code.co_varnames[: code.co_argcount]),
            visits=address_of(list(UNITS).index(name)), cycles=address_of(list(UNITS).index(name)) + 8,
            inner=address_of(len(UNITS)),
        )  # fmt: skip
        names = {"counted": compiled, "cycle": cycle, "read": read, "write": write}
        exec(compile(source, code.co_filename, "exec"), names)
        return kernel(names[name])

    return decorate


def counts(*overrides: str) -> dict[str, Any]:
    """Simulate the fused sublayer on a kernel that counts; only in a process that has not imported the kernel."""
    if any(name.startswith("t3sim.gpu.units.") for name in sys.modules):
        raise RuntimeError("the kernel has been imported already, without the counting")
    from t3sim.gpu.units import _compiler, _jit

    _compiler.CACHE_DIRECTORY = None  # the sources do not tell that it counts
    _jit.kernel = counting(_jit.kernel)
    from tests.bench import costs

    figures = costs.fused("none", *overrides)
    rows = {name: {"unit": unit, "visits": int(COUNTS[i, 0]), "cycles": int(COUNTS[i, 1])}
            for i, (name, unit) in enumerate(UNITS.items())}  # fmt: skip
    return {"n_requests": figures["n_requests"], "functions": rows}


if __name__ == "__main__":
    print(json.dumps(counts(*sys.argv[1:])))
