"""The cache of compiled code: an edit is always seen, damage is mended with one warning, never a wrong answer (N1).

The kernel function of these tests is a small one, added to a copy of the package: ``gap`` calls
``store_gap_same_group`` of another file.  Each probe is a process of its own, forked from one that has loaded Numba
and nothing of t3sim.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from t3sim.gpu.units import _kept
from tests.conftest import DEEP, REPOSITORY, cases
from tests.smoke.command_line import ONE_POINT

PROBE_SOURCE = '''"""A probe of the cache."""

from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.dram.near_memory import store_gap_same_group


@kernel
def gap(channel, kind):
    """A function whose callee is in another file."""
    return 1000 + store_gap_same_group(channel, kind)
'''
CALLEE = "t3sim/gpu/units/dram/near_memory.py"
EDIT = ("return channel.nCCDWL", "return channel.nCCDWL + 1")  # of the callee
OLD, NEW = 1013, 1014

PROBE = """
import json, sys, warnings
import numpy as np
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from t3sim.gpu.units.codes import UPDATE_BIT
    from t3sim.gpu.units.probe import gap
    channel = np.zeros(1, [("nCCDL", "i8"), ("nCCDWL", "i8")]).view(np.recarray)[0]
    channel.nCCDL, channel.nCCDWL = 6, 13
    answer = int(gap(channel, UPDATE_BIT))
n_hits = sum(gap.entry.stats.cache_hits.values()) if hasattr(gap, "entry") else 0
print(json.dumps([answer, n_hits, [str(w.message) for w in caught]]))
"""

# Reads lists of probes, one a line; starts all of a list at once; answers with how each ended and what it printed.
NURSERY = """
import json, os, sys, traceback
import numba
numba.njit(lambda number: number)(1)  # loads what compiles

def be_probe(code, environment, folder, pipe):
    status = 1
    try:
        os.dup2(pipe, 1)
        os.dup2(pipe, 2)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        exec(code, {"__name__": "__main__"})
        sys.stdout.flush()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)

def start(code, environment, folder):
    end, pipe = os.pipe()
    process = os.fork()
    if process == 0:
        be_probe(code, environment, folder, pipe)
    os.close(pipe)
    return process, open(end)

for line in sys.stdin:
    started = [start(*probe) for probe in json.loads(line)]
    printed = [output.read() for _, output in started]
    print(json.dumps([[os.waitpid(process, 0)[1], text] for (process, _), text in zip(started, printed)]), flush=True)
"""


class Probed(NamedTuple):
    """What one process found."""

    answer: int
    n_hits: int  # forms taken from the cache
    warnings: list[str]


class Workshop:
    """A copy of the package with the probe in it, and a cache of its own."""

    def __init__(self, folder: Path, nursery: subprocess.Popen[str]) -> None:
        self.package = folder / "package"
        self.cache = folder / "cache"
        self.nursery = nursery

    def environment(self, **extra: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.package), "T3SIM_CACHE_DIR": str(self.cache), **extra}

    def probes(self, n: int, prelude: str = "", **extra: str) -> list[Probed]:
        """Start *n* probes at once."""
        probe = (prelude + PROBE, self.environment(**extra), str(self.package))
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        self.nursery.stdin.write(json.dumps([probe] * n) + "\n")
        self.nursery.stdin.flush()
        found = []
        for status, printed in json.loads(self.nursery.stdout.readline()):
            assert status == 0, printed
            found.append(Probed(*json.loads(printed)))
        return found

    def probe(self, prelude: str = "", **extra: str) -> Probed:
        return self.probes(1, prelude, **extra)[0]

    def replace(self, name: str, old: str, new: str) -> None:
        """Edit a file of the package, and leave its times as they were: a tool may do that."""
        path = self.package / name
        text, status = path.read_text(encoding="utf-8"), path.stat()
        assert text.count(old) == 1
        path.write_text(text.replace(old, new), encoding="utf-8")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def files(self) -> list[Path]:
        """What lies in the cache."""
        return sorted(self.cache.rglob("*.nbc"))


@pytest.fixture(scope="module")
def nursery() -> Iterator[subprocess.Popen[str]]:
    """The process that probes are forked from."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", NURSERY], stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def used(nursery: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a workshop in which one process has compiled the probe, to copy from."""
    folder = tmp_path_factory.mktemp("used")
    workshop = Workshop(folder, nursery)
    for name in ("t3sim", "configs"):
        shutil.copytree(REPOSITORY / name, workshop.package / name, ignore=shutil.ignore_patterns("__pycache__"))
    (workshop.package / "t3sim/gpu/units/probe.py").write_text(PROBE_SOURCE, encoding="utf-8")
    assert workshop.probe() == (OLD, 0, [])
    assert len(workshop.files()) == 2  # of the function and of its callee
    return folder


@pytest.fixture
def workshop(used: Path, nursery: subprocess.Popen[str], tmp_path: Path) -> Workshop:
    """A workshop with a filled cache."""
    shutil.copytree(used, tmp_path, dirs_exist_ok=True)
    return Workshop(tmp_path, nursery)


@pytest.fixture
def fresh(workshop: Workshop) -> Workshop:
    """A workshop without a cache."""
    shutil.rmtree(workshop.cache)
    return workshop


class TestEdits:
    def test_edited_callee_in_another_file_gives_the_new_answer(self, workshop: Workshop) -> None:
        assert workshop.probe() == (OLD, 1, [])
        workshop.replace(CALLEE, *EDIT)
        assert workshop.probe() == (NEW, 0, [])
        workshop.replace(CALLEE, *reversed(EDIT))
        assert workshop.probe() == (OLD, 1, []), "the old one is still there, under its own digest"

    def test_copies_of_the_package_do_not_disturb_each_other(self, workshop: Workshop, tmp_path: Path) -> None:
        other = Workshop(tmp_path / "other", workshop.nursery)
        shutil.copytree(workshop.package, other.package)
        other.cache = workshop.cache
        other.replace(CALLEE, *EDIT)
        assert [workshop.probe(), other.probe()] == [(OLD, 1, []), (NEW, 0, [])]
        assert [workshop.probe(), other.probe()] == [(OLD, 1, []), (NEW, 1, [])]

    def test_every_compiled_file_is_in_the_digest(self, workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_kept, "PACKAGE", workshop.package / "t3sim")
        seen = {_kept.source_digest()}
        for folder in _kept.COMPILED_FOLDERS:
            for path in sorted((workshop.package / "t3sim" / folder).rglob("*.py")):
                path.write_bytes(path.read_bytes() + b"\n")
                assert _kept.source_digest() not in seen, path
                seen.add(_kept.source_digest())
        assert len(seen) > 15


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def garble(path: Path) -> None:
    path.write_bytes(bytes(255 - byte for byte in path.read_bytes()))


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "truncated": cut_short,
    "one bit flipped": flip_a_bit,
    "garbled": garble,
    "empty": lambda path: path.write_bytes(b""),
    "a folder": become_a_folder,
}


class TestDamage:
    @pytest.mark.parametrize("name", DAMAGE if DEEP else ["one bit flipped", "a folder"])
    def test_damaged_files_are_compiled_anew_with_one_warning(self, name: str, workshop: Workshop) -> None:
        damage = DAMAGE[name]
        for path in workshop.files():
            damage(path)
        answer, n_hits, warnings = workshop.probe()
        assert (answer, n_hits) == (OLD, 0)
        assert len(warnings) == 1
        assert "what is damaged is compiled anew" in warnings[0]
        if damage is not become_a_folder:
            assert workshop.probe() == (OLD, 1, [])

    def test_a_pickle_that_t3sim_did_not_write_is_never_opened(self, workshop: Workshop, tmp_path: Path) -> None:
        """Neither without a seal nor under a seal that does not match."""
        tripwire = tmp_path / "tripwire"

        class Trap:
            def __reduce__(self) -> tuple[Any, ...]:
                return (os.mkdir, (str(tripwire),))

        trap = pickle.dumps(Trap())
        for seal in (b"", bytes(32), hashlib.sha256(b"").digest()):
            for path in workshop.files():
                path.write_bytes(seal + trap)
            probed = workshop.probe()
            assert (probed.answer, len(probed.warnings)) == (OLD, 1)
        assert not tripwire.exists()
        pickle.loads(trap)  # canary: opening it would have been noticed
        assert tripwire.exists()


FULL_DISK = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
"""


class TestCallees:
    def test_a_callee_comes_from_the_cache_into_another_entry(self, workshop: Workshop) -> None:
        """Is the form for callers, which has no machine code, taken from the cache and linked?"""
        entry, callee = sorted(workshop.files(), key=lambda path: "near_memory" in path.name)
        assert "-inner-" in callee.name
        written = callee.stat().st_mtime_ns
        entry.unlink()
        assert workshop.probe() == (OLD, 0, [])
        assert callee.stat().st_mtime_ns == written
        assert workshop.probe() == (OLD, 1, [])


class TestPlaces:
    def test_a_file_is_in_the_way_of_the_folder(self, fresh: Workshop) -> None:
        fresh.cache.write_text("a file", encoding="utf-8")
        answer, n_hits, warnings = fresh.probe()
        assert (answer, n_hits, len(warnings)) == (OLD, 0, 1)
        assert warnings[0].startswith("no kernel cache (")
        assert warnings[0].endswith("; the kernel is compiled anew in each process")
        assert fresh.cache.read_text(encoding="utf-8") == "a file"

    def test_the_disk_is_full(self, fresh: Workshop) -> None:
        answer, n_hits, warnings = fresh.probe(FULL_DISK)
        assert (answer, n_hits, len(warnings)) == (OLD, 0, 1)
        assert "cannot be written to the kernel cache" in warnings[0]
        assert fresh.probe() == (OLD, 0, [])
        assert [path.name for path in fresh.cache.rglob("*.tmp")] == []

    @pytest.mark.parametrize("mode", cases([0o777, 0o770, 0o720], 0o720))
    def test_a_folder_that_others_can_write_is_not_used(self, workshop: Workshop, mode: int) -> None:
        (folder,) = workshop.cache.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        folder.chmod(mode)
        answer, n_hits, warnings = workshop.probe()
        assert (answer, n_hits) == (OLD, 0)
        assert warnings == [
            f"no kernel cache ({folder} can be written by others); the kernel is compiled anew in each process"
        ]

    @pytest.mark.parametrize(("mode", "is_used"), [(0o755, True), (0o1777, True), (0o777, False), (0o775, False)])
    def test_a_folder_that_others_can_exchange_is_not_used(
        self, mode: int, is_used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not even behind a link, and however private the folder itself is."""
        (tmp_path / "shared" / "mine").mkdir(parents=True, mode=0o700)
        (tmp_path / "shared").chmod(mode)
        (tmp_path / "link").symlink_to(tmp_path / "shared" / "mine")
        monkeypatch.setenv("T3SIM_CACHE_DIR", str(tmp_path / "link"))
        if is_used:
            assert _kept.cache_directory() == tmp_path / "shared" / "mine" / _kept.source_digest()
        else:
            with pytest.warns(UserWarning, match=f"no kernel cache .{tmp_path / 'shared'} can be written by others"):
                assert _kept.cache_directory() is None

    def test_the_command_line_says_it_in_one_line(self, fresh: Workshop) -> None:
        fresh.cache.write_text("a file", encoding="utf-8")
        (fresh.package / "e.yaml").write_text(ONE_POINT + "arbitration: round_robin\n", encoding="utf-8")
        command = [sys.executable, "-m", "t3sim", "run", "e.yaml"]
        with subprocess.Popen(
            command,
            env=fresh.environment(),
            cwd=fresh.package,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as run:
            assert run.stdout is not None
            while not (line := run.stdout.readline()).startswith("compiling "):
                assert line
            run.kill()
            _, said = run.communicate()
        assert len(said.splitlines()) == 1
        assert said.startswith("t3sim: warning: no kernel cache (")


POLICY = """
from t3sim.gpu.units._jit import kernel
from helper import preferred

@kernel
def choose(channel):
    return preferred(channel)

@kernel
def pick_stream(channel, now):
    return choose(channel)
"""
HELPER = """
from t3sim.gpu.units._jit import kernel

@kernel
def preferred(channel):
    return 0
"""
ASK_POLICY = """
import numba
from t3sim.gpu.compiled import compiled_policy
from t3sim.gpu.units._ask import ask
from t3sim.gpu.units.state import Layout, empty_gpu
from policy import pick_stream

@numba.njit
def asked(pick_stream, channel):
    return ask(pick_stream, channel, 0)

print(asked(compiled_policy(pick_stream, Layout()), empty_gpu(Layout())[0].channels[0]))
"""


def test_edited_helper_of_a_policy_is_seen(tmp_path: Path) -> None:
    """Numba's own cache looks at the file of `choose` only."""
    (tmp_path / "policy.py").write_text(POLICY, encoding="utf-8")
    env = {
        **os.environ,
        "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{tmp_path}",
        "T3SIM_CACHE_DIR": str(tmp_path / "cache"),
        "NUMBA_CACHE_DIR": str(tmp_path / "numba"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    found = []
    for helper in (HELPER, HELPER.replace("return 0", "return 1")):
        (tmp_path / "helper.py").write_text(helper, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-c", ASK_POLICY], env=env, cwd=tmp_path, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.split()[-1])
    assert found == ["0", "1"]
