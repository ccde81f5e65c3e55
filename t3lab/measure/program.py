"""Measure the GPUs of this node: ``t3sim measure``, or ``python -m t3lab.measure`` where only CuPy is.

Needs the standard library, NumPy and CuPy; NCCL for collectives; nothing else of t3sim. Each kind is written when it
is finished, with the provenance, so that what was measured before a fault is kept.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from t3lab.measure import async_tp, experts, gemm, memory, meshes, peers, rings, scatters
from t3lab.measure.device import FULL, QUICK, CannotMeasure, Lab, MissingHardware, Rows, count_gpus
from t3lab.measure.facts import provenance
from t3lab.measurements.kinds import KINDS
from t3lab.measurements.writing import write_measurements
from t3sim.errors import InputDataError, UsageError
from t3sim.files import prepare_folder, publish

Say = Callable[[str], None]

Programs = Mapping[str, Callable[[Lab], Rows]]

ONE_GPU: Programs = {
    "memory": memory.streaming,
    "latency": memory.latency,
    "launch": memory.launches,
    "memory_contention": memory.contention,
    "gemm": gemm.sustained,
    "gemm_gaps": gemm.with_gaps,
    "gemm_sm_split": gemm.fewer_sms,
    "tile_timelines": gemm.timelines,
}
SEVERAL_GPUS: Programs = {
    "peer_copy": rings.peer_copies,
    "peer_access": peers.accesses,
    "store_bursts": peers.bursts,
    "copy_engine_collectives": rings.engine_collectives,
    "engine_contention": rings.engine_contention,
    "transfers": meshes.transfers,
    "scatter_orders": scatters.orders,
    "scatter_timelines": scatters.timelines,
}
OF_NCCL = (
    "collectives",
    "sequential",
    "contention",
    "contention_sm_split",
)  # each number of channels needs a process of its own
# Only if they are named: most nodes have no PyTorch.
OF_PYTORCH: Programs = {async_tp.KIND: async_tp.traces, experts.KIND: experts.grouped_gemms}
MEASURABLE = (*ONE_GPU, *SEVERAL_GPUS, *OF_NCCL, *OF_PYTORCH)
CHANNELS = ("auto", "1", "2", "4", "8", "16", "24", "32")
QUICK_CHANNELS = ("auto", "4")
WORKER_SECONDS = 300
# Ring, as the simulator does it; no NVLink multicast, which adds in the switch and is not safe on every shared host.
NCCL_DEFAULTS = {"NCCL_ALGO": "Ring", "NCCL_NVLS_ENABLE": "0"}


def measure(
    kinds: Sequence[str],
    output: Path,
    *,
    n_gpus: int | None = None,
    quick: bool = False,
    channels: Sequence[str] = (),
    sessions: int = 1,
    say: Say = lambda _: None,
) -> list[Path]:
    """Measure *kinds* (all that the GPUs allow if empty) into CSV files and a provenance in *output*; return the files.

    *sessions*: how often what needs NCCL is measured, each time in new processes; their samples are kept together.

    Raises ``MissingHardware`` if nothing can be measured, and after the rest was measured and written if a part failed.
    """
    unknown = [kind for kind in kinds if kind not in MEASURABLE]
    if unknown:
        raise UsageError(f"unknown kind `{unknown[0]}` (known: {', '.join(MEASURABLE)})")
    wrong = [number for number in channels if number != "auto" and not (number.isascii() and number.isdigit())]
    if wrong:
        raise UsageError(f"--channels: `{wrong[0]}` is neither a whole number nor auto")
    if sessions < 1:
        raise UsageError(f"--sessions: is {sessions}, must be at least 1")
    for name, value in NCCL_DEFAULTS.items():
        os.environ.setdefault(name, value)
    effort = QUICK if quick else FULL
    lab = Lab(count_gpus() if n_gpus is None else n_gpus, effort)
    kinds = kinds or (*ONE_GPU, *((*SEVERAL_GPUS, *OF_NCCL) if lab.n_gpus > 1 else ()))
    books = _Books(output, provenance(lab, effort, sessions), say)
    for name in kinds:
        if name not in OF_NCCL:
            books.collect(name, {**ONE_GPU, **SEVERAL_GPUS, **OF_PYTORCH}[name](lab))
        books.finish(name)
    of_nccl = [name for name in OF_NCCL if name in kinds]
    for number in tuple(channels or (QUICK_CHANNELS if quick else CHANNELS)) * sessions:
        affected = rings.nccl_kinds(number, of_nccl)
        if affected:
            _by_worker(lab.n_gpus, number, affected, quick, books)
            for name in affected:
                books.finish(name)
    if "collectives" in of_nccl:
        books.facts["nccl_choices"] = _choices(lab.n_gpus)
        books.finish("collectives")
    if books.failures:
        reasons = (f"{why} (not measured: {', '.join(what)})" for why, what in books.failures.items())
        raise CannotMeasure("\n".join(reasons))
    return books.written


class _Books:
    """What was measured so far, what of it is on disk, and what failed."""

    def __init__(self, output: Path, facts: dict[str, Any], say: Say) -> None:
        self.facts = facts
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.written: list[Path] = []
        self.failures: dict[str, list[str]] = {}  # reason -> what was not measured for it
        self._accepted: dict[str, list[dict[str, Any]]] = {}
        self._output = output
        self._say = say

    def fail(self, what: str, reason: str) -> None:
        """Note what could not be measured."""
        reason = " ".join(reason.split())[:400]
        if what not in self.failures.setdefault(reason, []):
            self.failures[reason].append(what)

    def collect(self, name: str, found: Iterable[dict[str, Any]]) -> None:
        """Keep what is measured until the end or a fault: one kind's fault does not lose the others."""
        rows = self.rows.setdefault(name, [])
        try:
            rows.extend(found)
        except MissingHardware as error:
            self.fail(name, str(error))
        except Exception as error:  # noqa: BLE001 - CuPy's and CUDA's errors have no common base
            self.fail(name, f"{type(error).__name__}: {error}")

    def keep(self, name: str, row: dict[str, Any]) -> None:
        """Keep a row that a process has measured, with the samples of the same row from sessions before, if any."""
        rows, samples = self.rows.setdefault(name, []), KINDS[name].sample_columns().keys() & row.keys()
        names = row.keys() - samples
        before = next((one for one in rows if all(one.get(column) == row[column] for column in names)), None)
        if before is None:
            rows.append(row)
        else:
            before |= {column: before[column] + row[column] for column in samples}

    def finish(self, name: str) -> None:
        """Write the kind's rows with everything before; rows that cannot be true go where nothing reads them."""
        rows = self.rows.get(name)
        if not rows:
            return
        try:
            self.written = write_measurements(self._output, {**self._accepted, name: rows}, self.facts)
        except InputDataError as error:
            lines = str(error).splitlines()
            path = self._output / f"{name}.refused.txt"
            prepare_folder(self._output)
            publish({path: "".join(map(_json_line, rows)).encode()})
            self.fail(name, f"{lines[min(1, len(lines) - 1)].strip()}; the rows are kept in {path}, which is not read")
            return
        self._accepted[name] = rows
        self._say(f"{name}: {len(rows)} rows")


def _by_worker(n_gpus: int, channels: str, kinds: Sequence[str], quick: bool, books: _Books) -> None:
    """Measure in a process of its own, whose NCCL is held to *channels*."""
    is_auto = channels == "auto"
    settings = {} if is_auto else {"NCCL_MIN_NCHANNELS": channels, "NCCL_MAX_NCHANNELS": channels}
    arguments = [*kinds, "--channels", channels, *(["--quick"] if quick else [])]
    lines, log, failed = _worker(n_gpus, arguments, settings, debug={"NCCL_DEBUG": "INFO"} if is_auto else {})
    for line in lines:
        found = json.loads(line)
        if "nccl" in found:
            books.facts["nccl"] = found["nccl"]
        else:
            books.keep(found["kind"], found["row"])
    if log:
        words = ("NCCL version", "coll channels", "Channel 00", "set by environment")
        books.facts["nccl_log"] = _said([line for line in log if any(word in line for word in words)])[:24]
    if failed:
        books.fail(f"{', '.join(kinds)} with {channels} channels", failed)


def _choices(n_gpus: int) -> list[str]:
    """Return what NCCL's own log says of the protocol and channels that it takes for each collective and size."""
    debug = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "TUNING"}
    _, log, _ = _worker(n_gpus, ["--channels", "touch"], {}, debug)
    return _said([line for line in log if "Algo" in line and "Bytes" in line])


def _said(lines: Sequence[str]) -> list[str]:
    """What lines of NCCL's log say, each once."""
    return list(dict.fromkeys(line.split("NCCL INFO", 1)[-1].strip() for line in lines))


def _worker(
    n_gpus: int, arguments: Sequence[str], settings: Mapping[str, str], debug: Mapping[str, str]
) -> tuple[list[str], list[str], str]:
    """Run a process of its own; return the lines that it measured, those of NCCL's log if *debug* asks for one, and
    what went wrong: an empty text if nothing did.
    """
    with tempfile.TemporaryDirectory() as folder:
        rows, log = Path(folder, "rows"), Path(folder, "log")
        environment = {**os.environ, **settings, **debug} | ({"NCCL_DEBUG_FILE": str(log)} if debug else {})
        command = [sys.executable, "-m", "t3lab.measure", *arguments, "--gpus", str(n_gpus), "--worker", str(rows)]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=WORKER_SECONDS, check=False
            )
            said = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
            failed = said[-1][:300] if done.returncode else ""
        except subprocess.TimeoutExpired:
            failed = f"no end after {WORKER_SECONDS} s"
        found, logged = (
            path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
            for path in (rows, log)
        )
    return found, logged, failed


def _json_line(value: Any) -> str:
    """*value* as JSON; a number that is none becomes text, for the rules of the kind to refuse."""
    return json.dumps(_without_nan(value), allow_nan=False) + "\n"


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _without_nan(one) for key, one in value.items()}
    return [_without_nan(one) for one in value] if isinstance(value, list | tuple) else value


def _work(kinds: Sequence[str], n_gpus: int, quick: bool, channels: str, rows: Path) -> None:
    """What a worker process does: one line of JSON for each row, as soon as it is measured."""
    lab = Lab(n_gpus, QUICK if quick else FULL)
    if channels == "touch":
        rings.touch(lab)
        return
    number = rings.Nccl(lab).version
    version = {"nccl": f"{number // 10000}.{number // 100 % 100}.{number % 100}"}
    measured = ({"kind": kind, "row": row} for kind, row in rings.nccl_rows(lab, channels, kinds))
    with rows.open("w", encoding="utf-8", buffering=1) as stream:
        stream.writelines(map(_json_line, chain([version], measured)))


def list_kinds() -> str:
    """Return one line for each kind that can be measured."""
    width = max(len(name) for name in MEASURABLE)
    needs = dict.fromkeys((*SEVERAL_GPUS, *OF_NCCL), " (2 GPUs or more)")
    needs |= dict.fromkeys(OF_PYTORCH, " (2 GPUs or more, PyTorch; only if it is named)")
    return "\n".join(f"{name:<{width}}  {KINDS[name].meaning}{needs.get(name, '')}" for name in MEASURABLE)


def split_channels(text: str) -> list[str]:
    """Return the numbers of channels in ``auto,4,16``."""
    return [number.strip() for number in text.split(",") if number.strip()]


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of a bare node; returns its exit code: 0 done, 2 usage, 5 something is missing or failed."""
    parser = argparse.ArgumentParser(prog="python -m t3lab.measure", description="Measure this node's GPUs.")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="what to measure; everything if none is named")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs 0 to N - 1; all if not given")
    parser.add_argument("-o", "--output", type=Path, default=Path("measurements"), metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="few small points, to see whether everything works")
    parser.add_argument("--channels", default="", metavar="C,C", help=f"NCCL channels [{','.join(CHANNELS)}]")
    parser.add_argument("--sessions", type=int, default=1, metavar="N", help="new starts of NCCL to measure [1]")
    parser.add_argument("--list", action="store_true", help="list what can be measured")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.list:
        sys.stdout.write(list_kinds() + "\n")
        return 0
    try:
        if options.worker:
            _work(options.kinds, options.gpus, options.quick, options.channels, options.worker)
            return 0
        written = measure(
            options.kinds,
            options.output,
            n_gpus=options.gpus,
            quick=options.quick,
            channels=split_channels(options.channels),
            sessions=options.sessions,
            say=_say,
        )
    except (CannotMeasure, UsageError) as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.writelines(f"{path}\n" for path in written)
    return 0
