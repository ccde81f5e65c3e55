"""What a row moves and computes, the least time that takes on any device, and what a row may not state."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import numpy as np

from t3lab.measurements.columns import ANY_DEVICE, Column, Kind, Peaks, Row, Value
from t3lab.measurements.words import ALL_LANES, COLLECTIVES, LOCAL, MOVED
from t3sim.config.element_types import DEFAULT_TYPE, ELEMENT_TYPES

ROUNDING = 0.01  # files round times to 10 ns and rates to two digits; a wrong rate is off by far more than 1 %
ROUNDING_ABSOLUTE = 0.0101  # of a rate or time that was rounded to two digits
MOST_MATRIX_RATE = {16: 1.0, 32: 0.5, 8: 2.0, 4: 6.0}  # of any device, relative to 16 bits, by the bits of an element


def gemm_flops(row: Row) -> float:
    """Return floating-point operations of the row's GEMM."""
    return 2.0 * float(row["m"]) * float(row["n"]) * float(row.get("k", 0))  # of an operator, k may be missing


def ring_bytes(collective: str, gpus: int, n_bytes: float) -> float:
    """Return bytes that one GPU sends in a collective over an array of *n_bytes* (all GPUs' shards together).

    Of a ring collective; of others what nccl-tests takes for the bus bandwidth.
    """
    if collective in {"broadcast", "hypercube", "reduce", "send_recv"}:
        return n_bytes
    share = (gpus - 1) / gpus * n_bytes
    return 2 * share if collective == "all_reduce" else share


def collective_bytes(row: Row) -> float:
    """Return bytes that one GPU sends in the row's collective."""
    return ring_bytes(str(row["collective"]), int(row["gpus"]), float(row["bytes"]))


def memory_bytes(row: Row) -> float:
    """Return bytes that a streaming kernel reads plus writes."""
    return MOVED.get(str(row["pattern"]).split()[0], 0) * float(row["bytes"])


def rows_bytes(row: Row) -> float:
    """Return bytes of a token for each expert that it chooses."""
    return float(row["tokens_per_gpu"]) * int(row["top_k"]) * _token_bytes(row)


def gpus_bytes(row: Row) -> float:
    """Return bytes of a token for each GPU that has experts of it, its own included."""
    return _bytes_of_copies(row, int(row["gpus"]))


def hosts_bytes(row: Row) -> float:
    """Return bytes of a token for each host that has experts of it, its own included."""
    return _bytes_of_copies(row, int(row.get("hosts", 1)))


def _token_bytes(row: Row) -> float:
    element = ELEMENT_TYPES[str(row.get("element") or DEFAULT_TYPE)]
    return float(row["hidden"]) * float(element.stored_bits) / 8


def _bytes_of_copies(row: Row, n_places: int) -> float:
    names = "tokens_per_gpu", "top_k", "experts", "groups", "top_groups"
    numbers = tuple(int(row[name]) if row.get(name) else None for name in names)
    return _copies(n_places, str(row["routing"]), numbers) * _token_bytes(row)


@cache
def _copies(n_places: int, routing: str, numbers: tuple[int | None, ...]) -> int:
    """Return how many copies the tokens of a GPU have if each has one for each of the equal places of its experts."""
    from t3sim.config.experts import experts_spec, routing_called  # measuring runs without pydantic
    from t3sim.workload.routings import routing_of

    tokens, top_k, n_experts, groups, top_groups = numbers
    experts = experts_spec(
        n_experts=n_experts, top_k=top_k, hidden=1, intermediate=1, tokens_per_gpu=tokens, ep=1, groups=groups,
        top_groups=top_groups, routing=routing_called(routing),
    )  # fmt: skip
    place = np.sort(routing_of(experts).experts[0] * n_places // experts.n_experts, axis=1)
    return len(place) + int((np.diff(place, axis=1) > 0).sum())


def gemm_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """A GEMM is not faster than its operations at the peak rate (of the SMs that it had)."""
    is_known = peaks is not ANY_DEVICE  # else the most SMs are of one device, the highest rate of another
    rate = peaks.matrix_tflops * (min(1.0, float(row.get("sms", peaks.sms)) / peaks.sms) if is_known else 1.0)
    element = ELEMENT_TYPES.get(str(row.get("element") or DEFAULT_TYPE))
    rate *= MOST_MATRIX_RATE.get(16 if element is None else element.bits, 1.0)
    least = gemm_flops(row) / rate / 1e6
    return least, f"at {rate:.0f} TFLOP/s the GEMM takes {least:.2f} us"


def over_links(n_bytes: float, peaks: Peaks) -> tuple[float, str]:
    """Return the least time of *n_bytes* over the links of a GPU."""
    least = n_bytes / peaks.link_gbps / 1e3
    return least, f"at {peaks.link_gbps:.0f} GB/s it takes {least:.2f} us"


def output_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """The reduce-scatter of a GEMM's FP16 output is not faster than the links."""
    return over_links(ring_bytes("reduce_scatter", int(row["gpus"]), 2.0 * float(row["m"]) * float(row["n"])), peaks)


def scattered_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """Tiles that are stored at their owners cross the links; stored locally they do not."""
    return (0.0, "") if row["order"] == LOCAL else output_floor(row, peaks)


def collective_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """A GPU sends at least its part once; an all-reduce in the switch sends the array once instead of twice a ring."""
    return over_links(min(collective_bytes(row), float(row["bytes"])), peaks)


def operator_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """What is overlapped takes no less than the longer of both; the all-gather is of A, which may be small."""
    if row["op"] in COLLECTIVES:
        return collective_floor(collective_of(row), peaks)
    return gemm_floor(row, peaks)


def collective_of(row: Row) -> dict[str, Value]:
    """Return the collective, its GPUs and bytes, of a row of the kind ``operators`` that has nothing else."""
    return {"collective": row["op"], "gpus": row["tp"], "bytes": 2 * int(row["m"]) * int(row["n"])}


def lanes_bytes(row: Row) -> float:
    """Return bytes of all transfers of a lane."""
    return float(row["transfers"]) * float(row["bytes"])


def lanes_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """What goes through one port one way: all of it, half if half goes the other way, or what each GPU sends."""
    ports = 1 if row["lane"] != ALL_LANES else int(row["gpus"]) if "all_to_all" in str(row["pattern"]) else 0
    return over_links(lanes_bytes(row) / (ports or (2 if row["ways"] == "both" else 1)), peaks)


def memory_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """What is in the L2 at the start need not be read, and what is in it at the end is not written yet."""
    moved = memory_bytes(row)
    least = max((moved - 2 * peaks.l2_bytes) / peaks.memory_gbps, moved / peaks.l2_gbps) / 1e3
    return least, f"with what the L2 can hold it takes {least:.2f} us"


def probe_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """What one SM moves goes through its path to the L2."""
    return _through_sms(float(row["bytes"]), 1, peaks)


def access_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """A peer's memory is behind the links; local memory, and all that an SM moves, goes through its path to the L2."""
    if row["memory"] == "peer":
        return over_links(float(row["bytes"]), peaks)
    return _through_sms(float(row["bytes"]), min(float(row["workgroups"]), peaks.sms), peaks)


def issue_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """A workgroup issues no faster than its path to the L2 takes."""
    least, why = _through_sms(float(row["burst_bytes"]), 1, peaks)
    return 1e3 * least, why


def burst_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """All bursts are there at the end; and a fence is not faster than a load."""
    least, why = access_floor({**row, "bytes": float(row["burst_bytes"]) * float(row["workgroups"])}, peaks)
    return max((1e3 * least, why), load_floor(row, peaks))


def _through_sms(n_bytes: float, sms: float, peaks: Peaks) -> tuple[float, str]:
    """No more than a line of 128 B a cycle and SM."""
    least = n_bytes / sms / 128 / peaks.clock_mhz
    return least, f"at 128 B a cycle of each of {sms:.0f} SMs it takes {least:.2f} us"


def load_floor(_: Row, peaks: Peaks) -> tuple[float, str]:
    """No load through an L2 comes back within 50 cycles of the fastest clock."""
    least = 50e3 / peaks.clock_mhz
    return least, f"50 cycles are {least:.1f} ns"


def impossible(kind: Kind, row: Row, peaks: Peaks) -> Iterator[str]:
    """Yield what no device can have measured in a row whose values have the right types, one sentence each."""
    columns = [column for name, column in kind.by_name.items() if name in row]
    unknown = list(_unknown_texts(columns, row))
    yield from unknown
    yield from _contradictions(row)
    yield from _beyond_device(row, peaks)
    if unknown:
        return  # what such a row moves is unknown
    for column in columns:
        value = row[column.name]
        for floor in column.floors:
            least, why = floor(row, peaks)
            if float(value) < least:
                name = column.name.replace("min_", "time_") if row.get("time_us") == value else column.name
                than = "any device" if peaks is ANY_DEVICE else "peak"
                is_in_ms = column.unit == "us" and 20 * float(value) < least <= 1000 * float(value)
                yield f"{name} is {value}, faster than {than}: {why}{'; are these milliseconds?' if is_in_ms else ''}"
        if column.amount is not None and not math.isnan(float(value)):  # NaN: not measured yet
            expected = column.amount(row) / float(row["time_us"])
            if not math.isclose(float(value), expected, rel_tol=ROUNDING, abs_tol=ROUNDING_ABSOLUTE):
                yield f"{column.name} is {value}; {column.factors} and time_us make {expected:.2f}"


def _unknown_texts(columns: list[Column], row: Row) -> Iterator[str]:
    for column in columns:
        value = str(row[column.name])
        named = value.split(maxsplit=1)[0] if column.is_detailed else value
        if column.known and named not in column.known:
            what = "its first word must be one of" if column.is_detailed else "known are"
            yield f"{column.name} is {value!r}; {what} {', '.join(column.known)}"


def _contradictions(row: Row) -> Iterator[str]:
    """Yield columns of a row that are not in the right order, and rings of one GPU."""
    for unit in ("us", "ns"):
        if f"min_{unit}" in row:
            low, middle, high = (float(row[f"{name}_{unit}"]) for name in ("min", "time", "max"))
            if middle < low or high < middle:
                yield f"time_{unit} {middle} is not between min_{unit} {low} and max_{unit} {high}"
    if "mainloop_end_ns" in row:
        start, computed, end = (int(row[name]) for name in ("start_ns", "mainloop_end_ns", "end_ns"))
        if not start < computed <= end:
            yield f"start_ns {start}, mainloop_end_ns {computed} and end_ns {end} are not in this order"
    if "gpus" in row and ("collective" in row or "transfers" in row) and int(row["gpus"]) < 2:
        yield f"gpus is {row['gpus']}; a {'transfer' if 'transfers' in row else 'collective'} has at least 2"
    if "op" in row and row["op"] != "gemm" and int(row["tp"]) < 2:
        yield f"tp is {row['tp']}; {row['op']} has at least 2"
    if "top_k" in row:
        gpus, top_k, experts = int(row["gpus"]), int(row["top_k"]), int(row["experts"])
        if top_k > experts:
            yield f"top_k is {top_k}; there are {experts} experts"
        if experts % gpus:
            yield f"gpus is {gpus}, which does not divide experts, {experts}"
    if "largest" in row and not int(row["tokens"]) <= int(row["largest"]) * int(row["experts"]) <= _all_of(row):
        yield f"largest is {row['largest']}; {row['experts']} experts have {row['tokens']} rows"
    if "op" in row and row["op"] not in COLLECTIVES and not int(row.get("k", 0)):
        yield f"k is missing or 0; {row['op']} has at least 1"


def _all_of(row: Row) -> int:
    """Return what the largest expert times their number can be at most: all rows at one."""
    return int(row["tokens"]) * int(row["experts"])


def _beyond_device(row: Row, peaks: Peaks) -> Iterator[str]:
    """Yield SMs and clocks that the device does not have."""
    # Cycles over nanoseconds of two counters: they agree to a few parts in a million.
    if float(row.get("sm_mhz", 0)) > 1.001 * peaks.clock_mhz:
        yield f"sm_mhz is {row['sm_mhz']}; the highest clock is {peaks.clock_mhz:.0f}"
    for name, highest in (("sm", peaks.sms - 1), ("sms", peaks.sms)):
        if int(row.get(name, 0)) > highest:
            yield f"{name} is {row[name]}; the device has {peaks.sms:.0f}"


def _rows_floor(n_flops: float, row: Row, peaks: Peaks) -> tuple[float, str]:
    """GEMMs of rows of experts are not faster than their operations at the peak rate."""
    element = ELEMENT_TYPES.get(str(row.get("element") or DEFAULT_TYPE))
    rate = peaks.matrix_tflops * MOST_MATRIX_RATE.get(16 if element is None else element.bits, 1.0)
    return n_flops / rate / 1e6, f"at {rate:.0f} TFLOP/s the GEMMs take {n_flops / rate / 1e6:.2f} us"


def grouped_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """GEMMs of experts are not faster than their operations at the peak rate."""
    return _rows_floor(2.0 * float(row["tokens"]) * float(row["n"]) * float(row["k"]), row, peaks)


def experts_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """An even share of the rows of all GPUs; gated experts have three matrices."""
    rows = float(row["tokens_per_gpu"]) * float(row["top_k"])
    return _rows_floor(6.0 * rows * float(row["hidden"]) * float(row["intermediate"]), row, peaks)


def exchange_floor(row: Row, peaks: Peaks) -> tuple[float, str]:
    """Of an even routing, each token leaves its GPU at least once, unless its expert is there."""
    if str(row["routing"]) not in ("balanced", "uniform"):
        return 0.0, ""
    element = ELEMENT_TYPES.get(str(row.get("element") or "nvfp4"))
    n_bytes = float(row["tokens_per_gpu"]) * float(row["hidden"]) * (4 if element is None else element.bits) / 8
    return over_links((int(row["gpus"]) - 1) / int(row["gpus"]) * n_bytes, peaks)
