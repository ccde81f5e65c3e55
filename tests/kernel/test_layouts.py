"""How many compiled kernels there are: machines of any size share few layouts, and a result does not tell which."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from t3lab.cli.validate import machine_of
from t3sim.config.limits import MOST_BANKS_OF_A_CHANNEL
from t3sim.config.presets import preset_names
from t3sim.gpu.assemble import capacities_of, layout_for
from t3sim.gpu.compiled import compiled_advance, is_compiled
from t3sim.gpu.core import GpuCore
from t3sim.gpu.units import _compiler, _kept
from t3sim.gpu.units.state import Layout, empty_gpu
from tests.conftest import REPOSITORY
from tests.kernel.small import core_of, trace_of, with_gemm

HBM3 = Layout(n_dram_banks=MOST_BANKS_OF_A_CHANNEL)
compiled_only = pytest.mark.skipif(_kept.IS_INTERPRETED, reason="interpreted, a machine has exactly what it uses")


@compiled_only
def test_shipped_machines_share_four_layouts() -> None:
    """Memories of eight stacks have 128 channels, each of two of the hardware; MI300X more than 288 compute units."""
    found = {name: layout_for(machine_of(name, ())) for name in preset_names("machine")}
    of_hopper = {"a100", "a100-40g", "h100", "h200", "h800", "h20", "l40s"}
    assert {name for name, layout in found.items() if layout == HBM3} == of_hopper
    wide = HBM3._replace(n_channels=256)
    assert {name for name, layout in found.items() if layout == wide} == {"mi355x", "b200", "b300", "gb200", "gb300"}
    assert set(found.values()) == {Layout(), HBM3, wide, wide._replace(n_compute_units=1152)}


@compiled_only
@pytest.mark.parametrize("machine", ["t3-150", "h200"])
@pytest.mark.parametrize(
    "override",
    [f"machine.gpu.l2.capacity={capacity}" for capacity in ("2 MiB", "32 MiB", "128 MiB", "256 MiB")]
    + [f"machine.gpu.n_compute_units={n}" for n in (1, 108, 256)]
    + [f"machine.memory.n_channels={n}" for n in (2, 64)]
    + ["machine.memory.queue.entries=256", "machine.gpu.tracker.n_sets=512"],
)
def test_sweeps_of_a_size_compile_once(machine: str, override: str) -> None:
    overrides = ["machine.gpu.l2.capacity=64 MiB", "machine.gpu.l2.associativity=16", override]
    overrides += ["machine.gpu.l2.n_partitions=1"] if "n_channels" in override else []
    assert layout_for(machine_of(machine, overrides)) == layout_for(machine_of(machine, ()))


@compiled_only
def test_a_machine_beyond_every_capacity_gets_a_layout_that_holds_it() -> None:
    """Canary of the test above: a size beyond a capacity is another layout."""
    larger = layout_for(machine_of("t3-150", ["machine.gpu.n_compute_units=289"]))
    assert larger == Layout(n_compute_units=1152)
    assert layout_for(machine_of("t3-150", ["machine.gpu.l2.capacity=512 MiB"])).n_l2_sets >= (512 << 20) // 128 // 16
    assert all(c >= used for c, used in zip(larger, capacities_of(machine_of("t3-150", ())), strict=True))
    ways = layout_for(machine_of("t3-150", ["machine.gpu.l2.associativity=1024"]))
    assert ways.n_l2_sets * ways.l2_associativity == Layout().n_l2_sets * Layout().l2_associativity


def results_in(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[int], bytes]:
    """Return end, counters of the channels and time series of a GEMM that misses and evicts, in *layout*."""
    monkeypatch.setattr("t3sim.gpu.core.layout_for", lambda *_: layout)
    core: GpuCore = with_gemm(trace_of(192, 256, 200))
    assert core.advance(1 << 40)
    counters = np.asarray(core.gpu.channels["n_commands"][: core.used.n_channels]).ravel().tolist()
    return core.kernel_end_at, counters, core.series.tobytes()


@compiled_only
@pytest.mark.deep  # compiles a second layout
def test_no_result_depends_on_the_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly what the machine uses is compared by the tests that run interpreted and compiled."""
    assert results_in(HBM3, monkeypatch) == results_in(Layout(), monkeypatch)


def test_idle_values_reach_as_far_as_a_machine_uses_its_layout() -> None:
    used = capacities_of(machine_of("t3-tiny", ()))
    part, whole = empty_gpu(Layout(), used)[0], empty_gpu(used)[0]
    for name in ("open_row", "hit_key", "stalled_head", "now", "idle_reason", "free_entry"):
        if name != "free_entry":  # numbered through the capacity
            assert (part.channels[name][: used.n_channels] == whole.channels[name].flat[0]).all(), name
        assert not part.channels[name][used.n_channels :].any(), name
    assert (part.l2.tags[: used.n_l2_sets] == -1).all()
    assert not part.l2.tags[used.n_l2_sets :].any()
    assert part.l2.n_free_waiters == used.n_waiters == len(set(part.l2.free_waiter[: used.n_waiters].tolist()))


@compiled_only
def test_the_cache_knows_which_layouts_it_has() -> None:
    """After the first GPU of a machine its layout is compiled, and a layout that nobody used is not."""
    assert is_compiled(core_of().layout)
    assert not is_compiled(Layout(n_slots=16))


ASK_FOR_FORMS = """
from numba.core.caching import NullCache
from t3sim.gpu import compiled
from t3sim.gpu.units import _compiler, _inner
from t3sim.gpu.units.loop import advance
from t3sim.gpu.units.state import Layout

class Linked(Exception): pass

def finalize(library): raise Linked

asked, plain = {}, _compiler.KernelDispatcher.get_call_template

def note(function, args, kws):
    asked[function.py_func.__name__] = tuple(map(_compiler.widened, args))
    return plain(function, args, kws)

_compiler.KernelDispatcher.get_call_template, _inner.EntryLibrary.finalize = note, finalize
entry = advance.entry
entry._cache = NullCache()
try:
    entry.compile(compiled.argument_types(Layout()))
except Linked:
    for one in compiled.called_by_the_loop():
        name = one.py_func.__name__
        print(name, compiled.types_of(one, Layout()) == asked[name])
"""


@compiled_only
@pytest.mark.skipif(_compiler.CACHE_DIRECTORY is None, reason="there is no kernel cache")
def test_two_processes_compile_the_forms_that_the_loop_asks_for() -> None:
    """Does the loop find what another process has compiled for it, and is that most of what it calls?"""
    compiled_advance(Layout())
    done = subprocess.run(
        [sys.executable, "-c", ASK_FOR_FORMS], cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=True
    )
    forms = dict(line.split() for line in done.stdout.splitlines())
    assert set(forms.values()) == {"True"}
    assert {"advance_channels", "advance_compute_units", "dispatch_workgroups", "transmit", "end_operations"} < set(
        forms
    )
