"""The fuzzer: mutated inputs, each with limits on time, memory and what may come out.

    python -m tests.faults.fuzzing {config,trace} FOLDER --seed S --first I --cases N [--keep FOLDER] [--plant FAULT]

Case I of seed S is always the same.  What a case left on disk is kept if it fails, and one line on stdout says how to
repeat it.  ``--plant`` makes the loader misbehave at one case, which has to be noticed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

from tests.faults.mutations import (
    mutated_bytes,
    mutated_manifest,
    mutated_text,
    mutated_workgroups,
    override,
    plausible_override,
)

REPOSITORY = Path(__file__).resolve().parents[2]
CPU_LIMIT_S = 1.0
TRIES = 2  # for a case over the limit: a neighbour on the same core doubles the CPU time of one try, a hang lasts
BLOCKED_LIMIT_S = 60.0  # of wall time: something waits for what never comes
MEMORY_LIMIT_BYTES = 300 << 20  # above what the process needs once everything is imported
ADDRESS_SPACE_BYTES = 4 << 30
MAX_LINES = 10
MAX_CHARACTERS = 1100  # of a line
MAX_FAILURES = 5
PLANTED_AT = 3

PRESET_USES = {
    "machine": "machine: mine.yaml",
    "gpu": "machine: {preset: t3-150, gpu: mine.yaml}",
    "memory": "machine: {preset: t3-150, memory: mine.yaml}",
    "link": "machine: {preset: t3-150, link: mine.yaml}",
    "model": "machine: t3-150\nworkload: {model: mine.yaml, sublayer: FC-2, tp: 8}",
    "kernel": "machine: t3-150\ntiling: mine.yaml",
    "operators": "machine: t3-150\nworkload: {model: T-NLG, layer: prompt, tp: 8, operators: mine.yaml}",
}
EVERYTHING = """\
schema_version: 1
name: everything
description: &d all keys at once
machine:
  preset: t3-150
  name: mine
  link: {preset: ring-75, bandwidth: 100 GB/s, latency: 1 us}
  memory: {preset: hbm2-1tb, queue: {kind: split}, timing: {nRTW: 14}}
  gpu: {n_compute_units: {value: 104, origin: datasheet, source: *d}, l2: {capacity: 8 MiB}, dma: {read_ahead: chunk}}
workload: {gemm: {m: 4096, n: 2048, k: 512}, tp: 4}
tiling: {preset: gemm-128x128, prefetch_depth: 2}
strategy: t3-mca
arbitration: {policy: mca, threshold: auto, starvation_limit: 1000 cycles}
mode: mirrored
quantum: 500 ns
max_hours: 24
sweep:
  grid:
    workload.tp: [2, 4]
    strategy: [sequential, t3-mca]
"""
LAYER = """\
name: layer
machine: {preset: t3-tiny, gpu: {n_compute_units: 8}}
workload:
  {model: T-NLG, layer: training, attention: unfused, tokens: 2048, sequence: 1024, tp: 4, operators: {norm: 0.5}}
tiling: gemm-64x64
strategy: {name: cu-split, communication_units: 2}
sweep:
  grid:
    workload.layer: [prompt, training]
    strategy: [sequential, {name: cu-split, communication_units: 2}]
"""
HF_USE = "machine: t3-150\nworkload: {model: mine.json, layer: training, tokens: 2048, sequence: 1024, tp: 4}"
HF_CONFIGS = (
    (
        '{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,\n'
        ' "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "rope_scaling": {"factor": 8.0}}\n'
    ),
    (
        '{"model_type": "gpt2", "n_embd": 1600, "n_inner": null, "n_layer": 48, "n_head": 20, "resid_pdrop": 0.1,\n'
        ' "task_specific_params": {"text-generation": {"do_sample": true, "max_length": [50]}}}\n'
    ),
)
COLLECTIVE = """\
name: c
machine: t3-tiny
workload: {collective: {op: reduce-scatter, size: 96 MiB, gpus: 4}}
strategy: sequential
"""


class HangError(BaseException):
    """A case used more time than it may; nothing in the package may catch this."""


@contextmanager
def limits_of_time(cpu_limit_s: float, blocked_limit_s: float) -> Iterator[None]:
    """Raise HangError from whatever runs longer than allowed."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise HangError("waits" if number == signal.SIGALRM else "computes")

    signal.signal(signal.SIGPROF, stop)
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)
    signal.setitimer(signal.ITIMER_REAL, blocked_limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def limit_memory() -> None:
    """Let allocations fail long before the machine has none left; what counts is what a case really fills."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def peak_bytes() -> int:
    """Return the most memory that this process has filled so far."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux: ru_maxrss begins with what the parent has filled
        line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS: in bytes


def verdict(
    load: Callable[[], object],
    codes: tuple[int, ...],
    cpu_limit_s: float = CPU_LIMIT_S,
    blocked_limit_s: float = BLOCKED_LIMIT_S,
) -> str:
    """Return what is wrong with how *load* ended, or nothing: it returns, or raises an error of t3sim that is short."""
    from t3sim.cli._errors import message_lines
    from t3sim.errors import T3SimError

    try:
        with limits_of_time(cpu_limit_s, blocked_limit_s):
            load()
    except T3SimError as error:
        lines = message_lines(error)
        if error.exit_code not in codes:
            return f"exit code {error.exit_code}: {lines[0][:200]}"
        if not 1 <= len(lines) <= MAX_LINES or max(map(len, lines)) > MAX_CHARACTERS:
            return f"a message of {len(lines)} lines, the longest of {max(map(len, lines))} characters"
        if not all(line.isprintable() for line in lines):
            return "a message that can steer the terminal"
        "\n".join(lines).encode("utf-8")
    except HangError as error:
        return f"{error} for more than {cpu_limit_s if str(error) == 'computes' else blocked_limit_s} s"
    except MemoryError:
        return f"more than {ADDRESS_SPACE_BYTES >> 20} MiB asked for: {traceback.format_exc(limit=-3)}"
    except BaseException:  # noqa: BLE001 - whatever else comes out is the finding
        return f"traceback: {traceback.format_exc(limit=-6)}"
    return ""


class ConfigurationFuzzer:
    """Mutated experiments, and mutated presets and configs of models that an experiment names."""

    codes = (2, 3)

    def __init__(self, folder: Path) -> None:
        """*folder* is where the files of a case are written."""
        from t3sim.cli.config import value_rows
        from t3sim.experiment.planning.plan import load_experiment

        self.folder = folder
        self._load = load_experiment
        experiments = sorted(REPOSITORY.glob("experiments/*/experiment.yaml"))
        examples = sorted(REPOSITORY.glob("docs/examples/*/experiment.yaml"))
        self.experiments = [path.read_text(encoding="utf-8") for path in (*experiments, *examples)]
        # The sweep of all sublayers takes ten times as long as the others: two axes do as well.
        self.experiments = [text.replace("[OP, FC-2, FC-1, IP]", "[OP, FC-2]") for text in self.experiments]
        self.experiments += [EVERYTHING, EVERYTHING, COLLECTIVE, LAYER, LAYER]
        presets = sorted(REPOSITORY.glob("configs/*/*.yaml"))
        self.presets = [(path.parent.name, path.read_text(encoding="utf-8")) for path in presets]
        (folder / "e.yaml").write_text(EVERYTHING, encoding="utf-8")
        first = load_experiment(folder / "e.yaml")
        self.values = {row[0]: row[1] for row in value_rows(first.points[0], first.provenance[0])}
        self.assembled: set[str] = set()
        for path in REPOSITORY.glob("docs/examples/*/*.py"):
            shutil.copy(path, folder)

    def load(self, rng: random.Random) -> None:
        """Make a case and read it; if it is legal, show it and assemble its machine."""
        from t3sim.cli.config import summary, value_rows

        overrides = [override(self.values, rng) for _ in range(rng.choice((0, 0, 0, 0, 1, 2)))]
        kind_of_case = rng.random()
        if kind_of_case < 0.3:
            experiment = rng.choice(self.experiments).encode()
            overrides = [plausible_override(self.values, rng) for _ in range(rng.choice((1, 1, 2, 3)))]
        elif kind_of_case < 0.36:
            (self.folder / "mine.json").write_bytes(mutated_text(*rng.sample(HF_CONFIGS, 2), rng))
            experiment = f"name: e\n{HF_USE}\nstrategy: t3\n".encode()
        elif kind_of_case < 0.55:
            kind, text = rng.choice(self.presets)
            preset = mutated_text(text, rng.choice(self.presets)[1], rng)
            (self.folder / "mine.yaml").write_bytes(preset)
            use = PRESET_USES[kind]
            workload = "" if "workload" in use else "workload: {model: T-NLG, sublayer: FC-2, tp: 8}\n"
            experiment = f"name: e\n{use}\n{workload}strategy: t3\n".encode()
        else:
            text, other = rng.choice(self.experiments), rng.choice((*self.experiments, rng.choice(self.presets)[1]))
            experiment = mutated_text(text, other, rng)
        (self.folder / "e.yaml").write_bytes(experiment)
        (self.folder / "overrides.json").write_text(json.dumps(overrides), encoding="utf-8")
        planned = self._load(self.folder / "e.yaml", overrides)
        list(summary(planned))
        list(value_rows(planned.points[0], planned.provenance[0]))
        self._assemble(planned.points[0].machine)

    def _assemble(self, machine: Any) -> None:
        """Turn an accepted machine into the record of a GPU; to refuse it now would be late."""
        from t3sim.errors import T3SimError
        from t3sim.gpu.assemble import fill_record, layout_for
        from t3sim.gpu.ticks import TickBase
        from t3sim.gpu.units.state import empty_gpu

        values = machine.model_dump_json(exclude={"name"})
        if values in self.assembled:
            return
        self.assembled.add(values)
        try:
            fill_record(empty_gpu(layout_for(machine))[0], machine, TickBase.of(machine))
        except T3SimError as error:
            raise AssertionError(f"accepted, but cannot be assembled: {error}") from None


class TraceFuzzer:
    """Mutated tile traces: as a disk damages them, and as a faulty writer would."""

    codes = (3,)

    def __init__(self, folder: Path) -> None:
        """*folder* is where the files of a case are written."""
        from t3sim.config.experiment import GemmShape
        from t3sim.workload.tiling import make_tile_trace
        from t3sim.workload.trace_file import manifest_path, read_trace, write_trace
        from tests.faults.traces import GEMM, TILING, small_trace

        self.path = folder / "x.parquet"
        self.manifest = manifest_path(self.path)
        self._read = read_trace
        large = make_tile_trace(GemmShape(m=4000, n=3000, k=64), TILING, 8)
        self.bases = []
        for trace in (small_trace(), make_tile_trace(GEMM, TILING, 1), large):
            write_trace(self.path, trace, "the fuzzer")
            self.bases.append((trace, self.path.read_bytes(), self.manifest.read_text(encoding="utf-8")))
        self._read(self.path)

    def load(self, rng: random.Random) -> None:
        """Make a case and read it."""
        from t3sim.workload import trace_file
        from tests.faults import traces

        trace, parquet, manifest = rng.choice(self.bases)
        self.path.write_bytes(parquet)
        self.manifest.write_text(manifest, encoding="utf-8")
        kind = rng.randrange(6)
        if kind == 0:
            self.path.write_bytes(mutated_bytes(parquet, rng))
        elif kind in (1, 2):
            found: Any = traces.without_checksums(trace)
            self.path.write_bytes(mutated_bytes(found, rng))
        elif kind == 3:
            self.manifest.write_bytes(mutated_text(manifest, manifest, rng))
        elif kind == 4:
            found = mutated_manifest(manifest, rng)
            self.manifest.write_text(json.dumps(found), encoding="utf-8")
        else:
            bad = trace_file.TileTrace(
                trace.gemm, trace.tiling, trace.n_chunks, mutated_workgroups(trace.workgroups, rng)
            )
            with mock.patch.object(trace_file, "tile_problems", return_value=[]):
                trace_file.write_trace(self.path, bad, "the fuzzer")
        self._read(self.path)


def planted(fault: str) -> None:
    """Misbehave as a broken loader would."""
    if fault == "traceback":
        raise KeyError("planted")
    if fault == "hang":
        while True:
            time.process_time()
    if fault == "wait":
        time.sleep(3600)
    if fault == "hog":
        signal.setitimer(signal.ITIMER_PROF, 0)  # to fill it may take longer than a case may
        (b"x" * (MEMORY_LIMIT_BYTES + (64 << 20))).find(b"y")
    if fault == "long":
        from t3sim.cli import _errors
        from t3sim.errors import UsageError

        _errors.MAX_CHARACTERS = 5000
        raise UsageError("x" * 2000)
    if fault == "code":
        from t3sim.errors import ModelError

        raise ModelError("planted")
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)


def main() -> int:
    """Run the cases; return 1 if any fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["config", "trace"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for the files of failed cases, if not FOLDER")
    parser.add_argument("--plant", default="")
    parser.add_argument("--cpu-limit", type=float, default=CPU_LIMIT_S)
    parser.add_argument("--blocked-limit", type=float, default=BLOCKED_LIMIT_S)
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    work = folder / "work"
    work.mkdir()
    fuzzer: ConfigurationFuzzer | TraceFuzzer = (ConfigurationFuzzer if arguments.kind == "config" else TraceFuzzer)(
        work
    )
    for i in range(20):  # imports and caches
        verdict(lambda i=i: fuzzer.load(random.Random(f"warm {i}")), fuzzer.codes)  # type: ignore[misc]
    limit_memory()
    warnings.filterwarnings("ignore", "programs of .* ranks are not checked")  # of a plugin's strategy
    n_failures, base = 0, peak_bytes()
    with (folder / "case").open("w", encoding="ascii") as progress:
        for i in range(arguments.first, arguments.first + arguments.cases):
            progress.seek(0)
            progress.write(f"{i}\n")
            progress.flush()
            is_planted = arguments.plant and i == PLANTED_AT
            load = (lambda: planted(arguments.plant)) if is_planted else (
                lambda i=i: fuzzer.load(random.Random(f"{arguments.seed} {i}"))
            )  # fmt: skip
            for _ in range(TRIES):
                problem = verdict(load, fuzzer.codes, arguments.cpu_limit, arguments.blocked_limit)
                if not problem.startswith("computes"):
                    break
            if peak_bytes() - base > MEMORY_LIMIT_BYTES:
                problem = f"more than {MEMORY_LIMIT_BYTES >> 20} MiB filled; {problem}"
                base = peak_bytes()
            if problem:
                n_failures += 1
                kept = (arguments.keep or folder) / f"case-{i}"
                shutil.copytree(work, kept)
                repeat = f"python -m tests.faults.fuzzing {arguments.kind} FOLDER --seed {arguments.seed} --first {i}"
                print(f"case {i}: {problem}\n  its files: {kept}; repeat: {repeat}", flush=True)
                if n_failures >= MAX_FAILURES:
                    break
    return 1 if n_failures else 0


if __name__ == "__main__":
    sys.exit(main())
