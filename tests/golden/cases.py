"""The small runs whose results are stored: machines x strategies x topologies x modes, and what libraries run.

Each case is an experiment of one point (``overrides``: as behind ``-s``); all of them take about 15 seconds of CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Case = Mapping[str, Any]  # an experiment without its name, and `overrides`

TINY = {"preset": "t3-tiny"}
TINY_SWITCH = {
    **TINY,
    "link": {"topology": "switch", "ingress_buffer": "1 KiB"},
    "gpu": {"copy_engines": {"number": 1, "startup": "1 us", "bandwidth": "20 GB/s", "max_outstanding_lines": 16}},
}
TINY_SPLIT = {**TINY, "memory": {"queue": {"kind": "split"}}}
TINY_HELD = {**TINY, "memory": {"queue": {"kind": "split", "write_age": "300 ns", "read_age": "300 ns"}}}
TINY_PARTITIONS = {**TINY, "gpu": {"l2": {"n_partitions": 2, "crossing_latency": "7 cycles"}}}
TINY_MULTICAST = {
    **TINY,
    "link": {
        "topology": "switch", "ingress_buffer": "512 KiB",
        "multicast": {"reduction_bandwidth": "150 GB/s", "table": "16 KiB"},
    },
}  # fmt: skip
TINY_CROWDED = {**TINY, "memory": {"n_channels": 1}, "link": {"bandwidth": "40 GB/s"}}  # its memory is the bottleneck
TINY_TRACKER = {**TINY, "gpu": {"tracker": {"n_sets": 4, "entries_per_set": 16}}}
T3_150 = {
    "preset": "t3-150",
    "gpu": {"n_compute_units": 8, "l2": {"capacity": "1 MiB", "n_banks": 8}},
    "memory": {"n_channels": 4},
    "link": {"bandwidth": "20 GB/s"},
}


def few_units(preset: str, capacity: str, n_channels: int = 4) -> dict[str, Any]:
    """Return *preset* with an eighth of its units, memory channels and L2, and a link to match."""
    return {
        "preset": preset,
        "gpu": {
            "n_compute_units": 16,
            "l2": {"capacity": capacity, "n_banks": 2 * n_channels},
            "collective_kernel": {"channels": 4},
        },
        "memory": {"n_channels": n_channels},
        "link": {"bandwidth": "40 GB/s"},
    }


H200 = few_units("h200", "3840 KiB")
H100 = few_units("h100", "3 MiB")
A100 = few_units("a100", "2560 KiB")
MI355X = {  # as its GPUs were before they were a mesh: compute units and memory are what these cases are of
    **few_units("mi355x", "2 MiB", 8), "link": {"bandwidth": "40 GB/s", "topology": "switch", "ports": 1},
}  # fmt: skip

EVEN = {"gemm": {"m": 512, "n": 320, "k": 200}, "tp": 4}
RAGGED = {"gemm": {"m": 512, "n": 331, "k": 200}, "tp": 3}
WHOLE_ROWS = {"gemm": {"m": 1024, "n": 256, "k": 128}, "tp": 4}
LARGER = {"gemm": {"m": 2048, "n": 512, "k": 256}, "tp": 4}
TILES = {"tiling": "gemm-64x64"}
UNITS = {"communication_units": 4}
EXPLICIT = {"mode": "explicit"}


def gemm(machine: Case, strategy: str, workload: Case, *, params: Case | None = None, **more: Any) -> dict[str, Any]:
    """Return the case of a GEMM and its collective, by one kernel whatever library the machine names."""
    case = {"machine": machine, "workload": workload, "strategy": {"name": strategy, **(params or {})}}
    return {**case, "tiling": "gemm-256x128", **more}


def ring(
    machine: Case, op: str, size: str, gpus: int = 4, *, algorithm: str | None = None, **more: Any
) -> dict[str, Any]:
    """Return the case of a collective on its own."""
    collective = {"op": op, "size": size, "gpus": gpus, **({"algorithm": algorithm} if algorithm else {})}
    return {"machine": machine, "workload": {"collective": collective}, "strategy": "sequential", **more}


def channels(machine: Case, n: int, protocol: str) -> dict[str, Any]:
    """Return *machine* with collectives in *n* channels by *protocol*: it is expected to be the fastest."""
    never, always = ({"start": at, "step": at, "bandwidth": "1000 GB/s"} for at in ("1 ms", "0 ns"))
    kernel: dict[str, Any] = {"channels": n, "expected": always if protocol == "simple" else never}
    for other in ("low_latency", "low_latency_128"):
        kernel[other] = {"expected": always if protocol == other else never}
    return {**machine, "gpu": {**machine.get("gpu", {}), "collective_kernel": kernel}}


def of_t3() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what the T3 study compares, on rings of its machine and of the machine for tests."""
    for strategy in ("sequential", "t3", "t3-mca", "ideal-overlap", "ideal-rs-nmc", "published-overlap"):
        yield f"t3-tiny ring {strategy}", gemm(TINY, strategy, RAGGED, **TILES)
    for strategy in ("sequential", "t3", "t3-mca"):
        yield f"t3-tiny ring {strategy} explicit", gemm(TINY, strategy, RAGGED, **TILES, **EXPLICIT)
        yield f"t3-tiny ring {strategy} split queue", gemm(TINY_SPLIT, strategy, EVEN, **TILES)
        yield f"t3-tiny ring {strategy} crowded", gemm(TINY_CROWDED, strategy, EVEN, **TILES)
        yield f"t3-150 ring {strategy}", gemm(T3_150, strategy, LARGER)
    for strategy, policy in (
        ("t3", {"policy": "compute_first"}),
        ("t3", {"policy": "pace"}),
        ("t3-mca", {"policy": "mca", "threshold": 5}),
        ("t3-mca", {"policy": "mca", "threshold": 5, "starvation_limit": "20 cycles"}),
    ):
        name = " ".join(map(str, policy.values()))
        yield f"t3-tiny ring t3 crowded {name}", gemm(TINY_CROWDED, strategy, EVEN, **TILES, arbitration=policy)
    yield "t3-tiny ring t3 partitions", gemm(TINY_PARTITIONS, "t3", EVEN, **TILES)
    yield "t3-tiny ring t3 held writes", gemm(TINY_HELD, "t3", EVEN, **TILES)
    yield "t3-tiny ring t3 small tracker", gemm(TINY_TRACKER, "t3", EVEN, **TILES)
    for name, change in (("GPU", "gpu[1].compute_clock=1 GHz"), ("link", "link[2].bandwidth=5 GB/s")):
        slow = gemm(TINY, "t3", EVEN, **TILES, **EXPLICIT, overrides=[f"machine.{change}"])
        yield f"t3-tiny ring t3 one slow {name} explicit", slow
    yield "t3-tiny ring cu-split", gemm(TINY, "cu-split", EVEN, **TILES, params={"communication_units": 2})
    yield "t3-150 ring t3-mca explicit", gemm(T3_150, "t3-mca", LARGER, **EXPLICIT)
    for op in ("reduce-scatter", "all-gather", "all-reduce"):
        yield f"t3-tiny ring {op}", ring(TINY, op, "96 KiB")
        yield f"t3-150 ring {op}", ring(T3_150, op, "1 MiB")


def of_software() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what runs today, behind switches: all strategies, on the machine for tests and on GPUs with few units."""
    for strategy in ("flux-push", "flux-pull", "copy-engine-scatter", "async-tp", "te-p2p-rs"):
        for mode in ("mirrored", "explicit"):
            yield f"t3-tiny switch {strategy} {mode}", gemm(TINY_SWITCH, strategy, WHOLE_ROWS, **TILES, mode=mode)
    naive = {"order": "naive"}
    yield (
        "t3-tiny switch flux-push naive",
        gemm(TINY_SWITCH, "flux-push", WHOLE_ROWS, params=naive, **TILES, **EXPLICIT),
    )
    for strategy in (
        "sequential", "async-tp", "te-p2p-rs", "flux-push", "flux-pull", "copy-engine-scatter", "t3", "t3-mca",
        "ideal-overlap",
    ):  # fmt: skip
        yield f"h200 switch {strategy}", gemm(H200, strategy, LARGER)
    for strategy in ("te-pipelined-rs", "wave-groups", "sm-specialised"):
        yield f"h200 switch {strategy}", gemm(H200, strategy, LARGER, params=UNITS)
    for strategy in ("sequential", "flux-push", "async-tp"):
        yield f"h200 switch {strategy} explicit", gemm(H200, strategy, LARGER, **EXPLICIT)
    gathered = {**LARGER, "operator": "ag-gemm"}
    for strategy in ("sequential", "flux-ag", "async-tp-ag", "te-ring-ag"):
        yield f"h200 switch ag-gemm {strategy}", gemm(H200, strategy, gathered)
    yield "h200 switch ag-gemm sm-specialised", gemm(H200, "sm-specialised", gathered, params=UNITS)
    reduced = {**LARGER, "operator": "gemm-ar"}
    yield "h200 switch gemm-ar sequential", gemm(H200, "sequential", reduced)
    yield "h200 switch gemm-ar distfuse", gemm(H200, "distfuse", reduced, params=UNITS)
    for name, machine in (("h100", H100), ("a100", A100), ("mi355x", MI355X)):
        for strategy in ("sequential", "flux-push"):
            yield f"{name} switch {strategy}", gemm(machine, strategy, LARGER)


def of_switches() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what needs links to all GPUs, or a switch that adds up, and engines of hardware that is not there."""
    all_reduce, gathered = ({**WHOLE_ROWS, "operator": kind} for kind in ("gemm-ar", "ag-gemm"))
    one_unit = {"communication_units": 1}
    for name, strategy, workload, params in (
        ("t3-direct", "t3-direct", WHOLE_ROWS, {}),
        ("t3-direct triggered all-gather", "t3-direct", all_reduce, {"all_gather": "triggered"}),
        ("t3-nvls", "t3-nvls", WHOLE_ROWS, {}),
        ("t3-nvls all-reduce", "t3-nvls", all_reduce, {}),
        ("multimem-rs", "multimem-rs", WHOLE_ROWS, {}),
        ("multimem-ar", "multimem-ar", all_reduce, one_unit),
        ("multimem-ag", "multimem-ag", gathered, one_unit),
        ("ace", "ace", WHOLE_ROWS, {"splits": 2}),
    ):
        yield f"t3-tiny multicast {name}", gemm(TINY_MULTICAST, strategy, workload, params=params, **TILES)
    yield "h200 switch t3-nvls all-reduce", gemm(H200, "t3-nvls", {**LARGER, "operator": "gemm-ar"})
    yield "h200 switch multimem-rs", gemm(H200, "multimem-rs", LARGER)
    few_channels = {**H200, "gpu": {**H200["gpu"], "collective_kernel": {"channels": 4, "nvls": {"channels": 4}}}}
    in_switch = gemm(few_channels, "sequential", LARGER, params={"collectives": "switch"})
    yield "h200 switch sequential in the switch", in_switch


def of_nodes() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield strategies on two nodes, and on four with one GPU each."""
    nic = {"bandwidth": "10 GB/s", "latency": "3 us", "message_rate": 100_000_000}
    nodes, single = (
        {**H200, "link": {**H200["link"], "topology": "two-level", "gpus_per_node": each, "nic": nic}}
        for each in (2, 1)
    )
    for strategy, operator, params in (
        ("t3", "gemm-rs", {}),
        ("t3-direct", "gemm-ar", {"all_gather": "triggered"}),
        ("flux-push", "gemm-rs", UNITS),
        ("copy-engine-scatter", "gemm-rs", {}),
        ("flux-ag", "ag-gemm", {}),
        ("wave-groups", "gemm-rs", UNITS),
        ("ideal-rs-nmc", "gemm-rs", {}),
    ):
        workload = {**LARGER, "operator": operator}
        yield f"h200 nodes {strategy}", gemm(nodes, strategy, workload, params=params)
    yield "h200 nodes t3 one GPU each", gemm(single, "t3", LARGER)


def of_experts() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield layers of experts: balanced, and with unlike loads on every GPU."""
    layer = {"n_experts": 16, "top_k": 3, "hidden": 512, "intermediate": 256, "tokens_per_gpu": 48, "ep": 4}
    params = {"moe-sequential": UNITS, "moe-two-batch": UNITS}
    uniform = {**layer, "routing": {"kind": "uniform"}}
    for strategy in ("moe-sequential", "moe-low-latency", "moe-fused", "moe-two-batch", "moe-t3"):
        workload = {"operator": "moe", "experts": layer}
        yield f"h200 switch {strategy}", gemm(H200, strategy, workload, params=params.get(strategy))
    nic = {"bandwidth": "50 GB/s", "latency": "3 us", "message_rate": 100_000_000}
    link = {"topology": "two-level", "gpus_per_node": 2, "nic": nic}
    for strategy in ("moe-sequential", "moe-low-latency"):
        workload, machine = {"operator": "moe", "experts": uniform}, {**H200, "link": {**H200.get("link", {}), **link}}
        yield f"h200 nodes {strategy}", gemm(machine, strategy, workload, params=params.get(strategy))
    for strategy in ("moe-sequential", "moe-fused"):
        workload = {"operator": "moe", "experts": uniform}
        yield (
            f"h200 switch {strategy} explicit",
            gemm(H200, strategy, workload, params=params.get(strategy), **EXPLICIT),
        )


def of_libraries() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield rings of NCCL by protocol and number of channels, and a GEMM in panels of k, on whole GPUs."""
    whole = {"preset": "h200"}
    for protocol in ("simple", "low_latency", "low_latency_128"):
        for n in (1, 4, 24):
            op = "all-reduce" if n == 4 else "reduce-scatter"
            yield f"h200 {op} {protocol} {n} channels", ring(channels(whole, n, protocol), op, "256 KiB")
    retained = {"preset": "h200", "gpu": {"l2": {"retention": "128 KiB"}}}
    yield "h200 reduce-scatter short retention", ring(channels(retained, 4, "simple"), "reduce-scatter", "1 MiB")
    yield "h200 all-gather explicit", ring(whole, "all-gather", "1 MiB", 2, **EXPLICIT)
    in_switch = {**H200, "gpu": {**H200["gpu"], "collective_kernel": {"channels": 4, "nvls": {"channels": 2}}}}
    yield "h200 NVLS all-reduce", ring(in_switch, "all-reduce", "1 MiB", 5, algorithm="nccl-nvls")
    yield "t3-tiny trees of three nodes", ring(
        {"preset": "t3-tiny", "gpu": {"n_compute_units": 8},
         "link": {"topology": "two-level", "gpus_per_node": 2, "ingress_buffer": "16 KiB",
         "nic": {"bandwidth": "2 GB/s", "latency": "1 us", "message_rate": 2000000}}},
        "all-reduce", "24 KiB", 6, algorithm="nccl-tree", **EXPLICIT,
    )  # fmt: skip
    yield (
        "h200 NVLS reduce-scatter explicit",
        ring(in_switch, "reduce-scatter", "256 KiB", 3, algorithm="nccl-nvls", **EXPLICIT),
    )
    yield "h200 multimem all-reduce", ring(in_switch, "all-reduce", "1 MiB", algorithm="vllm-multimem")
    panels = {
        "preset": "gemm-256x128",
        "workgroup_tile": [128, 128],
        "wavefront_tile": [64, 64],
        "k_slice": 64,
        "split_k": 4,
    }
    one = {"gemm": {"m": 256, "n": 256, "k": 2048}, "tp": 1}
    yield "h200 Triton epilogue", gemm(H200, "sequential", one, tiling="triton-128x256")
    yield "h200 split-k", gemm(H200, "sequential", one, tiling=panels)


CASES: dict[str, dict[str, Any]] = dict(
    [*of_t3(), *of_software(), *of_switches(), *of_nodes(), *of_experts(), *of_libraries()]
)
