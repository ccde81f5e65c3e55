"""Options and fixtures of all suites.

Compiled kernels are kept in the user's cache, shared by all tests, so that each
layout is compiled once; a test of the cache itself takes ``own_cache_dir``.

``make test-deep`` sets ``T3SIM_DEEP``: campaigns then take all their cases instead of a fixed sample (``sample``),
and tests marked ``deep`` run as well.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parent.parent
DEEP = os.environ.get("T3SIM_DEEP") == "1"
T = TypeVar("T")

# Processes that tests start use each other's byte code, also where the environment says not to write it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Test processes run in parallel: threads of matrix products would wait for each other.  NumPy reads this once.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The same examples in every run: a failure is seen again by whoever looks for it.
settings.register_profile("t3sim", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("t3sim")


def sample(n_all: int, n_quick: int) -> int:
    """Return how many cases a campaign takes: the first *n_quick* of them, or all for ``make test-deep``."""
    return n_all if DEEP else n_quick


def of_each(function: Callable[[int], T], seeds: Iterable[int]) -> list[T]:
    """Return *function* of each seed, by a process for each core if this is ``make test-deep``."""
    if not DEEP:
        return list(map(function, seeds))
    with ProcessPoolExecutor(mp_context=get_context("forkserver")) as pool:
        return list(pool.map(function, seeds))


def cases(values: Iterable[Any], *quick: Any, n_names: int = 1) -> list[Any]:
    """Return parameters of a test: those of *quick* are taken in every run, the others by ``make test-deep`` only.

    A value is a tuple of *n_names* if the test is parametrised over more than one.
    """
    every = list(values)
    assert all(value in every for value in quick)
    rows = [(value, value if n_names > 1 else (value,)) for value in every]
    return [pytest.param(*row, marks=() if value in quick else pytest.mark.deep) for value, row in rows]


# What takes longest (seconds of CPU time beyond 5) comes first, so that no worker ends alone.  Files of a folder
# stay with one worker if they look at the same simulated phases.
FIRST = (
    "tests/smoke",
    "tests/shape",
    "tests/docs/test_documents_run.py",
    "tests/selfcheck/test_machines.py",
    "tests/golden/test_goldens.py",
    "tests/sweeps/test_workers.py",
    "tests/properties/test_determinism.py",
    "tests/measure/test_measure.py",
    "tests/notebooks",
    "tests/faults/test_misbehaving_code.py",
    "tests/faults/test_configuration.py",
    "tests/properties/test_metamorphic.py",
    "tests/faults/test_fuzz.py",
    "tests/explicit/test_results.py",
    "tests/explicit/test_agreement.py",
    "tests/explicit/test_unlike.py",
    "tests/selfcheck/test_selfcheck.py",
    "tests/sweeps/test_resume.py",
    "tests/sweeps/test_nobody_else.py",
    "tests/overlap/test_ag_gemm.py",
    "tests/overlap/test_pulls_of_tiles.py",
    "tests/advice/test_advise_command.py",
    "tests/checks/data/test_defects.py",
    "tests/faults/test_kernel_cache.py",
    "tests/docs/test_wheel.py",
)
TOGETHER = ("tests/smoke", "tests/shape")


def unit_of(nodeid: str) -> str:
    """Return the file or the folder whose tests one worker runs, one after the other."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in TOGETHER if file.startswith(f"{folder}/")), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal out such units, for ``--dist loadfile``."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Units(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    return Units(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put what takes longest first; leave out what is marked ``deep``, unless this is ``make test-deep``."""
    rank = {unit: i for i, unit in enumerate(FIRST)}
    items.sort(key=lambda item: rank.get(unit_of(item.nodeid), len(rank)))
    if DEEP:
        return
    left_out = [item for item in items if item.get_closest_marker("deep")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("deep")]


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking through all tests and modules again and again."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the golden files from this run instead of comparing with them; say why in the change",
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture
def own_cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty kernel cache, for the processes that this test starts."""
    folder = tmp_path / "kernel-cache"
    monkeypatch.setenv("T3SIM_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises, also where the tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="module")
def no_plugins_stay() -> Iterator[None]:
    """What a file's plugins register is gone after it: the next file sees the shipped strategies and policies."""
    from t3sim.gpu.arbitration import arbitration_policies
    from t3sim.strategies import overlap_strategies

    registries = (overlap_strategies, arbitration_policies)
    shipped = [dict(registry._entries) for registry in registries]
    yield
    for registry, entries in zip(registries, shipped, strict=True):
        registry._entries.clear()
        registry._entries.update(entries)
    for name in [name for name in sys.modules if name.startswith("t3sim_plugin_")]:
        del sys.modules[name]
