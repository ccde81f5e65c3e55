"""Results of nccl-tests (``all_reduce_perf -J file`` and its siblings) as rows of the kind ``collectives``.

The file has ``args`` (the command, as a list), ``env`` (``NAME=value`` texts), ``config`` (``nthreads``, ``ngpus``,
``devices``) and ``results``, each with ``size`` (bytes of the full array) and ``out_of_place`` and ``in_place``
objects of ``time`` (us), ``alg_bw``, ``bus_bw`` (GB/s) and ``nwrong``; with per-iteration timing also
``out_of_place_per_iter`` with ``times_us``. Written from src/util.cu of nccl-tests, file versions 1 and 2. Pinned by
``tests/measurements/test_nccl_tests.py``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from t3sim.files import parse_json
from t3sim.measurements.kinds import COLLECTIVES, Value, is_above_zero, ring_bytes

KNOWN_VERSIONS = (1, 2)
FACTOR_ERROR = 2e-6  # bandwidths are printed with six decimals


def collectives(content: bytes) -> Iterator[tuple[int, dict[str, Value]]]:
    """Yield the number (from 1) and the values of each result; raises ``ValueError`` saying what is not as expected.

    The out-of-place run counts, the in-place one where there is no other. The number of GPUs is the one that makes
    bus bandwidth out of algorithm bandwidth, since ``devices`` lists one GPU of each process only.
    """
    found = parse_json(content)
    if "results" not in found or "config" not in found:
        raise ValueError("not a result of nccl-tests: it has `config` and `results`")
    if found.get("version") not in KNOWN_VERSIONS:
        raise ValueError(f"version is {found.get('version')!r}; known are {KNOWN_VERSIONS[0]} and {KNOWN_VERSIONS[1]}")
    if found.get("errors"):
        raise ValueError(f"the run had errors: {found['errors']}")
    collective = _collective(found)
    entries = found.get("env", [])
    if not isinstance(entries, list):
        raise ValueError("`env` must be a list")
    environment = dict(str(entry).split("=", 1) for entry in entries if "=" in str(entry))
    lowest, highest = environment.get("NCCL_MIN_NCHANNELS"), environment.get("NCCL_MAX_NCHANNELS")
    settings: dict[str, Value] = {
        "nccl_channels": lowest if lowest is not None and lowest == highest else "auto",
        "nccl_proto": environment.get("NCCL_PROTO", "auto"),
    }
    results = found["results"]
    if not isinstance(results, list) or not results:
        raise ValueError("`results` must be a list with something in it")
    for number, result in enumerate(results, start=1):
        if not isinstance(result, dict):
            raise ValueError(f"result {number} must be an object")
        _number(result, "size", number)
    gpus = _gpus(found["config"], results, collective)
    for number, result in enumerate(results, start=1):
        n_bytes = _number(result, "size", number)
        side = "out_of_place" if isinstance(result.get("out_of_place"), dict) else "in_place"
        body = result.get(side)
        if not isinstance(body, dict):
            raise ValueError(f"result {number} has neither `out_of_place` nor `in_place`")
        if "time" not in body:
            raise ValueError(f"result {number} has no `time`; run without -C, which reports processor time")
        if body.get("nwrong") not in (None, 0, 0.0):
            raise ValueError(f"result {number} has {body['nwrong']} wrong elements")
        times = _times(result, side, body, number)
        time_us = statistics.median(times)
        yield number, {
            "collective": collective, "gpus": gpus, "bytes": int(n_bytes), **settings,
            "time_us": time_us, "min_us": min(times), "max_us": max(times),
            "busbw_gbps": ring_bytes(collective, gpus, n_bytes) / time_us / 1e3,
        }  # fmt: skip


def _collective(found: Mapping[str, Any]) -> str:
    """Return the collective that the program's name says."""
    arguments = found.get("args")
    program = str(arguments[0]) if isinstance(arguments, list) and arguments else ""
    name = program.rsplit("/", 1)[-1].removesuffix("_mpi").removesuffix("_perf")
    if name not in COLLECTIVES:
        raise ValueError(f"ran {program[:60]!r}; known are {', '.join(f'{known}_perf' for known in COLLECTIVES)}")
    return name


def _gpus(config: Any, results: list[Any], collective: str) -> int:
    """Return the number of ranks that the largest result's two bandwidths agree with."""
    if not isinstance(config, dict):
        raise ValueError("`config` must be an object")
    of_process = int(_number(config, "nthreads", 0)) * int(_number(config, "ngpus", 0))
    devices = config.get("devices")
    n_devices = len(devices) if isinstance(devices, list) else 1
    largest = max(results, key=lambda result: float(result["size"]))
    body = largest.get("out_of_place") or largest.get("in_place")
    if not isinstance(body, dict):
        raise ValueError("the largest result has neither `out_of_place` nor `in_place`")
    algorithm, bus = _number(body, "alg_bw", 0), _number(body, "bus_bw", 0)
    for gpus in dict.fromkeys((n_devices * of_process, n_devices, of_process)):
        if gpus > 1:
            factor = ring_bytes(collective, gpus, 1.0)
            if math.isclose(bus, factor * algorithm, rel_tol=1e-4, abs_tol=FACTOR_ERROR):
                return gpus
    raise ValueError(f"bus_bw {bus} over alg_bw {algorithm} fits none of {of_process} GPUs in {n_devices} processes")


def _times(result: Mapping[str, Any], side: str, body: Mapping[str, Any], number: int) -> list[float]:
    """Return the time of each iteration if they were kept, else the one average."""
    per_iteration = result.get(f"{side}_per_iter")
    if isinstance(per_iteration, dict) and isinstance(per_iteration.get("times_us"), list):
        kept = per_iteration["times_us"]
        if not kept or not all(map(is_above_zero, kept)):
            raise ValueError(f"result {number}: `times_us` must hold numbers above 0")
        return [float(value) for value in kept]
    return [_number(body, "time", number)]


def _number(holder: Any, name: str, number: int) -> float:
    value: Any = holder.get(name) if isinstance(holder, dict) else None
    if not is_above_zero(value):
        place = f"result {number}: " if number else ""
        raise ValueError(f"{place}`{name}` must be a number above 0, found {value!r}")
    return float(value)
