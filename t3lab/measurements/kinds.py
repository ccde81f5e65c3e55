"""What each kind of measurement holds: its columns, their units, and the limits that no device can beat.

A file holds one kind; its header says which. Every time is a median over groups of back-to-back repetitions between
device events, the maximum over the GPUs that took part; ``min_us`` and ``max_us`` are over the groups. Any time column
``x_us`` may be accompanied by ``x_samples_us``, all its samples joined by ``;``.

Needs the standard library only: ``measure`` uses it on nodes where nothing else is installed. Pinned by
``tests/measurements/test_reading.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from t3lab.measurements import floors, words
from t3lab.measurements.columns import Column, Floor, Kind, Row
from t3sim.config.element_types import DEFAULT_TYPE, ELEMENT_TYPES, OUTPUTS


def _text(
    name: str, meaning: str, known: Collection[str] = (), *, is_detailed: bool = False, default: str | None = None
) -> Column:  # fmt: skip
    return Column(name, "text", "", meaning, True, known, is_detailed, default=default)


def _count(name: str, unit: str, meaning: str) -> Column:
    return Column(name, "count", unit, meaning, key=True)


def _whole(name: str, meaning: str, *, key: bool = False) -> Column:
    return Column(name, "whole", "ns" if name.endswith("_ns") else "", meaning, key)


def _time(name: str, meaning: str, *least: Floor) -> Column:
    return Column(name, "real", name.rpartition("_")[2], meaning, floors=least)


def _rate(name: str, unit: str, meaning: str, amount: Callable[[Row], float], factors: str) -> Column:
    return Column(name, "real", unit, f"{meaning} over time_us", amount=amount, factors=factors)


def _spread(*least: Floor) -> tuple[Column, ...]:
    """The median with its edges; *least* are the floors of the fastest."""
    return _time("time_us", "median"), _time("min_us", "fastest group", *least), EDGES[1]


EDGES = _time("min_us", "fastest group"), _time("max_us", "slowest group")
SUBLAYER = (
    _text("model", "model, - for a bare GEMM", default="-"),
    _text("sublayer", "OP, FC-2, FC-1, IP, - for a bare GEMM", default="-"),
    replace(_count("tp", "", "tensor-parallel degree that K was cut by; the ring may have fewer GPUs"), default=1),
)
GEMM = (
    _count("m", "elements", "rows of the output: tokens"),
    _count("n", "elements", "columns of the output"),
    _count("k", "elements", "inner dimension on one GPU"),
)
GPUS = _count("gpus", "", "GPUs of the ring")
LAYER = (*SUBLAYER, GPUS, *GEMM)
CHANNELS = Column("nccl_channels", "channels", "", "thread blocks NCCL was held to, auto: its own choice", key=True,
                  default="auto")  # fmt: skip
ARRAY = _count("bytes", "B", "full array")
RING_COLLECTIVE = _text("collective", ", ".join(words.COLLECTIVES), words.COLLECTIVES)
ANY_COLLECTIVE = _text(
    "collective",
    f"{', '.join((*words.COLLECTIVES, *words.SENT_COLLECTIVES))}; read, but not simulated:"
    f" {', '.join(words.OTHER_COLLECTIVES)}",
    (*words.COLLECTIVES, *words.SENT_COLLECTIVES, *words.OTHER_COLLECTIVES),
)  # fmt: skip
SCATTERED = (
    _text("order", "whose rows come first: next (own last), own_first, xor (own last), naive (row 0), or local: no"
          " stores to others", (*words.ORDERS, words.LOCAL)),
    _text("epilogue", "fragments (4 B a thread, as computed), rows (16 B a thread), bulk (512 B a row)",
          words.EPILOGUES),
)  # fmt: skip
TILE_COLUMNS = (
    _whole("wg", "workgroup in dispatch order", key=True),
    _whole("tile_row", "row of tiles"),
    _whole("tile_col", "column of tiles"),
    _whole("sm", "streaming multiprocessor"),
    _whole("start_ns", "start, after the first tile of the kernel"),
    _whole("mainloop_end_ns", "end of the K loop"),
    _whole("end_ns", "end of the stores"),
)
SM_CLOCK = Column("sm_mhz", "real", "MHz", "SM clock the driver reported under this load")
POWER = Column("power_w", "real", "W", "power the driver reported under this load")
TFLOPS = _rate("tflops", "TFLOP/s", "2 m n k", lambda row: floors.gemm_flops(row) / 1e6, "m, n, k")
RING_TIMES = (
    _time("time_us", "median", floors.collective_floor), *EDGES,
    _rate("busbw_gbps", "GB/s", "bytes that a GPU sends in a ring,", lambda row: floors.collective_bytes(row) / 1e3,
          "collective, gpus, bytes"),
)  # fmt: skip
READ_PLUS_WRITE = _rate(
    "read_plus_write_gbps", "GB/s", "bytes read plus bytes written,", lambda row: floors.memory_bytes(row) / 1e3,
    "pattern, bytes",
)  # fmt: skip
PER_DIRECTION = _rate("gbps_per_direction", "GB/s", "bytes", lambda row: float(row["bytes"]) / 1e3, "bytes")
ACCESSED = (
    _text("memory", "peer, local", words.MEMORIES),
    _count("access_bytes", "B", "of one instruction of a thread"),
    _count("threads", "", "of a workgroup"),
    _count("workgroups", "", "on one SM each as long as there are SMs"),
)
KERNEL = _text("kernel", "cublas, or tiled: the project's own kernel")
ELEMENT = _text(
    "element", f"type of the operands of the GEMM: {', '.join(ELEMENT_TYPES)}; empty: {DEFAULT_TYPE} or bf16",
    tuple(ELEMENT_TYPES), default="",
)  # fmt: skip
OUTPUT = _text(
    "output", "type of the output of the GEMM; empty: bf16, or fp16 with such operands", OUTPUTS, default="",
)  # fmt: skip
OPERANDS = _text(
    "operands", f"{words.ROTATED}: each call has others, which are not in the L2; empty: they are there if they fit",
    (words.ROTATED,), default="",
)  # fmt: skip


def _beside(other: str, meaning: str) -> tuple[Column, ...]:
    """A GEMM and a collective of its output: each alone, and each while the other one runs."""
    return (
        _time("gemm_alone_us", "GEMM alone", floors.gemm_floor),
        _time(f"{other}_alone_us", f"{meaning} alone", floors.output_floor),
        _time(f"gemm_with_{other}_us", "GEMM while the other runs", floors.gemm_floor),
        _time(f"{other}_with_gemm_us", f"{meaning} while the other runs", floors.output_floor),
    )


ROUTING = _text(
    "routing", "law of the routing: balanced, uniform, zipf_1, power_law_1.2, power_law_sampled_1.9, ...",
)  # fmt: skip
ROUTED = (
    _count("gpus", "", "GPUs that share the experts"),
    _count("tokens_per_gpu", "", "tokens of each GPU"),
    _count("hidden", "elements", "size of a token"),
    _count("top_k", "", "experts of a token"),
    _count("experts", "", "routed experts of all GPUs"),
    ROUTING,
)
WEIGHTS = _text("weights", "type of the weights, if it is another than `element`", tuple(ELEMENT_TYPES), default="")
HOSTS = _count("hosts", "", "hosts that the GPUs are in, each with as many; empty: one")
GROUPS = (
    _count("groups", "", "groups of experts, of which a token takes `top_groups`; empty: no such limit"),
    _count("top_groups", "", "groups that the experts of a token may come from"),
)
# As DeepEP's tests count: copies that stay on the GPU or on its host are counted too.
EXCHANGE_RATES = (
    _rate("row_gbps", "GB/s", "bytes of a token for each of its experts", lambda row: floors.rows_bytes(row) / 1e3,
          "tokens_per_gpu, hidden, top_k, element"),
    _rate("gpu_gbps", "GB/s", "bytes of a token for each GPU with experts of it, its own included,",
          lambda row: floors.gpus_bytes(row) / 1e3, "the routing, gpus, hidden, element"),
    _rate("host_gbps", "GB/s", "bytes of a token for each host with experts of it, its own included,",
          lambda row: floors.hosts_bytes(row) / 1e3, "the routing, hosts, hidden, element"),
)  # fmt: skip
SOURCE = _text("source", "who measured it: rows of one source are a table")


def _kind(name: str, meaning: str, *columns: Column, optional: tuple[Column, ...] = ()) -> Kind:
    return Kind(name, meaning, columns, optional)


_ALL = (
    _kind(
        "memory", "streaming kernels on one GPU; bytes of one array",
        _text("pattern", "read, write, copy, add (2 reads, 1 write); what else was done", words.MOVED,
              is_detailed=True),
        _count("bytes", "B", "one array"),
        _time("time_us", "median", floors.memory_floor),
        READ_PLUS_WRITE,
        optional=(*EDGES, SM_CLOCK),
    ),
    _kind(
        "latency",
        "one dependent load at a time (l2_hit, device_memory, peer_memory), one way of a flag to a peer (peer_flag,"
        " peer_signal: after data), or a barrier of two GPUs (one workgroup of each, or one on each SM)",
        _text("pattern", ", ".join(words.LATENCIES), words.LATENCIES),
        _count("working_set_bytes", "B", "what the chain runs over; data before a flag"),
        _time("time_ns", "median", floors.load_floor),
        _time("min_ns", "fastest"),
        _time("max_ns", "slowest"),
        optional=(SM_CLOCK,),
    ),
    _kind(
        "memory_contention", "a few SMs that load, read or copy device memory, while others stream it",
        _text("probe", "load (128 B each, one after the other), read, copy", words.PROBES),
        _count("probe_sms", "", "SMs that do so"),
        _count("bytes", "B", "of each of them"),
        _text("beside", ", ".join(words.STREAMS), words.STREAMS),
        _whole("beside_sms", "SMs that stream", key=True),
        *_spread(floors.probe_floor),
        Column("beside_gbps", "whole", "GB/s", "what these read and write meanwhile"),
    ),
    _kind(
        "launch", "kernels that do nothing",
        _text("pattern", "back_to_back: device time of each; graph; host: host time of a launch"),
        *_spread(),
    ),
    _kind(
        "gemm", "one GEMM on one GPU, repeated back-to-back",
        *SUBLAYER, *GEMM, *_spread(floors.gemm_floor), TFLOPS,
        optional=(KERNEL, SM_CLOCK, POWER, OPERANDS, ELEMENT, OUTPUT),
    ),
    _kind(
        "gemm_gaps", "one GEMM at a time, the GPU idle for gap_us before each",
        *SUBLAYER, *GEMM, _count("gap_us", "us", "idle interval before each"), *_spread(floors.gemm_floor), TFLOPS,
        optional=(KERNEL, SM_CLOCK, POWER, ELEMENT, OUTPUT),
    ),
    _kind(
        "gemm_sm_split", "the same GEMM on fewer SMs",
        *SUBLAYER, *GEMM, _count("sms", "", "SMs that it had"), _time("time_us", "median", floors.gemm_floor),
        optional=(KERNEL, *EDGES),
    ),
    _kind(
        "peer_copy", "copy engine between GPUs: uni, bidi (both ways), ring (each to its neighbour)",
        _text("pattern", "uni, bidi, ring"),
        _count("bytes", "B", "of each transfer"),
        _time("time_us", "median", lambda row, peaks: floors.over_links(float(row["bytes"]), peaks)),
        PER_DIRECTION,
        optional=EDGES,
    ),
    _kind(
        "peer_access", "some workgroups of one GPU store to, or load from, a peer's memory or their own GPU's",
        *ACCESSED,
        _text("access", "store, load, bulk_store (by the bulk copy engine of an SM)", words.ACCESSES),
        _text("pattern", "contiguous, or an FP16 tile of 128 x 256 in rows of 6 KiB (tile_rows: adjacent threads store"
              " adjacent pieces, tile_scattered: 16 B each, contiguous, half after half, tile_fragments: a warp 8 rows,"
              " 16 B of each, or 32)", words.ACCESS_PATTERNS),
        _count("bytes", "B", "of the array"),
        _time("time_us", "median", floors.access_floor),
        PER_DIRECTION,
        optional=EDGES,
    ),
    _kind(
        "store_bursts", "workgroups store a few KiB each, all at the same time, and wait until they have arrived",
        *ACCESSED,
        _count("burst_bytes", "B", "of each workgroup"),
        _time("issued_ns", "until a workgroup had issued its last store: median", floors.issue_floor),
        _time("all_issued_ns", "until the last workgroup had", floors.issue_floor),
        _time("time_ns", "until a fence of the last workgroup had returned", floors.burst_floor),
        _time("min_ns", "fastest launch"),
        _time("max_ns", "slowest launch"),
    ),
    _kind(
        "collectives",
        "a collective on all GPUs, by NCCL or another library; bytes of the full array (reduce-scatter input,"
        " all-gather output; what each GPU has for all in an all-to-all, a message)",
        ANY_COLLECTIVE, GPUS, ARRAY,
        CHANNELS,
        _text("nccl_proto", "protocol NCCL was held to, auto: its own choice", default="auto"),
        *RING_TIMES,
        optional=(
            _text("nccl_algo", "algorithm NCCL was held to, like Ring, Tree or NVLS; empty: its own choice"),
            _count("hosts", "", "hosts that the GPUs are in; empty: one"),
            _text("algorithm", "library or kernel of an all-reduce, as `collective.algorithm`; others are read, but not"
                  " simulated; empty: nccl"),
        ),
    ),
    _kind(
        "copy_engine_collectives", "a ring collective of copy-engine transfers and addition kernels",
        RING_COLLECTIVE, GPUS, ARRAY,
        *RING_TIMES,
        _text("mechanism", "copy-engine"),
    ),
    _kind(
        "sequential", "GEMM, then reduce-scatter, then all-gather of its output",
        *LAYER,
        _time("gemm_us", "GEMM alone", floors.gemm_floor),
        _time("rs_us", "reduce-scatter alone", floors.output_floor),
        _time("gemm_rs_us", "one after the other", floors.gemm_floor, floors.output_floor),
        _time("gemm_rs_ag_us", "all three", floors.gemm_floor),
    ),
    _kind(
        "operators", "one operator of a layer; read, GEMMs and collectives alone become rows of their own kinds",
        _text("op", f"{', '.join(words.OPERATORS)} (of an FP16 array of m x n)", words.OPERATORS),
        *GEMM[:2],
        _count("tp", "", "GPUs of the collective"),
        *_spread(floors.operator_floor),
        optional=(
            _whole("k", "inner dimension on one GPU; empty or 0 for a collective alone", key=True),
            _text("strategy", "how its GEMM and collective overlap, if they do: a strategy of t3sim"),
            _text("parameters", "of the strategy, like chunks=8;host=eager"),
            _text("tiling", "the kernel of its GEMM, if that is no library's: one of t3sim's"),
            OPERANDS,
            ELEMENT,
            OUTPUT,
            _text("source", "who measured it: rows of one source are a table"),
            _whole("runs", "in the loop that it was timed in, to warm up too; empty: more than the power limit allows"),
            _time("host_us", "that the host takes for a call, in a loop of them; empty: as in the provenance"),
        ),
    ),
    _kind(
        "async_tp",
        "PyTorch's decomposed overlap: fused matmul + reduce-scatter, all-gather + matmul, the same unfused",
        *LAYER,
        _time("mm_rs_us", "matmul and reduce-scatter in pieces", floors.gemm_floor, floors.output_floor),
        _time("ag_mm_us", "all-gather and matmul in pieces", floors.gemm_floor),
        _time("ag_then_mm_us", "all-gather, then matmul", floors.gemm_floor),
    ),
    _kind(
        "async_tp_trace", "one kernel, copy or launch of a call of PyTorch's decomposed overlap",
        *LAYER,
        _text("call", "mm_rs: matmul and reduce-scatter in pieces; ag_mm: all-gather and matmul", words.CALLS),
        _whole("gpu", "GPU that it ran on", key=True),
        _whole("repeat", "which of the calls", key=True),
        _whole("number", "in the order of their starts", key=True),
        Column("operation", "text", "", "what it does; order: a wait that puts both streams in order; launch: the"
               " host's call",
               known=words.OPERATIONS),
        _whole("stream", "or thread of the host, in the order in which they are seen first"),
        _whole("start_ns", "start, after the first one of the call on this GPU"),
        _whole("end_ns", "end"),
        Column("kernel", "text", "", "name of the kernel or copy"),
    ),
    _kind(
        "contention",
        "GEMM and NCCL reduce-scatter of its output looped on two streams: each alone, and both together",
        *LAYER, CHANNELS, *_beside("rs", "reduce-scatter"),
    ),
    _kind(
        "contention_sm_split", "the same, the GEMM in a green context of fewer SMs, NCCL on any",
        *LAYER, CHANNELS, _count("sms", "", "SMs that the GEMM had"), *_beside("rs", "reduce-scatter"),
    ),
    _kind(
        "transfers",
        "several lanes of transfers at once: incast to GPU 0, pulls by it, exchanges of all with all",
        _text("pattern", ", ".join(words.MESHES), words.MESHES),
        _text("means", "copy by engines; by SMs: load, store (16 B a thread), bulk_store (16 KiB a time)", words.MEANS),
        _text("ways", "one, or both: the same in the other direction too", ("one", "both")),
        _count("gpus", "", "GPUs that take part"),
        _text("lane", "all together, or the number of one; those of the other direction come last"),
        _count("bytes", "B", "of each transfer"),
        Column("transfers", "count", "", "of the lane, or of all, in a repetition"),
        _time("time_us", "median", floors.lanes_floor),
        _rate("gbps", "GB/s", "bytes of all its transfers", lambda row: floors.lanes_bytes(row) / 1e3,
              "bytes, transfers"),
        optional=EDGES,
    ),
    _kind(
        "scatter_orders", "one kernel that stores each tile to the GPU that owns its rows, all GPUs starting together",
        *LAYER,
        *SCATTERED,
        *_spread(floors.gemm_floor, floors.scattered_floor),
    ),
    _kind(
        "scatter_timelines", "one tile of such a kernel: where and when it was computed",
        *LAYER,
        *SCATTERED,
        _whole("gpu", "GPU that computed it", key=True),
        *TILE_COLUMNS,
    ),
    _kind(
        "engine_contention",
        "GEMM and a copy-engine ring collective of its output looped on two streams: alone, and both together",
        *LAYER,
        _text("collective", "reduce_scatter, with additions on the SMs, or all_gather, without", words.COLLECTIVES),
        *_beside("collective", "collective"),
    ),
    _kind(
        "fused_scatter", "one kernel that stores each tile to the GPU that owns its rows, then a local sum",
        *LAYER,
        _time("gemm_cublas_us", "the GEMM by cuBLAS", floors.gemm_floor),
        _time("gemm_triton_us", "the same kernel storing locally", floors.gemm_floor),
        _time("seq_us", "cuBLAS, then NCCL", floors.gemm_floor, floors.output_floor),
        _time("flux_us", "fused, each GPU starting at its neighbour's rows", floors.gemm_floor, floors.output_floor),
        _time("flux_noswz_us", "fused, all GPUs starting at row 0", floors.gemm_floor, floors.output_floor),
        _time("scatter_only_us", "flux without the sum", floors.output_floor),
        _time("scatter_only_noswz_us", "flux_noswz without the sum", floors.output_floor),
        _time("reduce_us", "the sum"),
    ),
    _kind(
        "grouped_gemm", "GEMMs of the experts of one GPU in one launch, repeated back-to-back",
        _count("tokens", "", "rows of all experts"), _count("experts", "", "GEMMs, each with its weights"),
        *GEMM[1:], ROUTING,
        _time("time_us", "median", floors.grouped_floor),
        optional=(*EDGES, _count("largest", "", "rows of the expert with most"), ELEMENT, WEIGHTS, OPERANDS, SOURCE,
                  _text("kernel", "library of configs/kernel, like torch-grouped; empty: that of the machine")),
    ),
    _kind(
        "dispatch_combine", "dispatch of tokens to the GPUs of their experts, or combine of what these computed",
        _text("exchange", ", ".join(words.EXCHANGES), words.EXCHANGES), *ROUTED,
        _text("kernel", "what did it, like deepep_normal or deepep_low_latency"),
        _time("time_us", "median", floors.exchange_floor),
        optional=(*EDGES, _whole("sms", "SMs that the kernel has", key=True),
                  HOSTS, *GROUPS, ELEMENT, SOURCE, *EXCHANGE_RATES),
    ),
    _kind(
        "moe", "a layer of routed experts on all GPUs: dispatch, two grouped GEMMs, combine",
        *ROUTED, _count("intermediate", "elements", "intermediate size of an expert, which is gated"),
        _text("kernel", "what did it, like mega_moe; or a strategy of t3sim"),
        _time("time_us", "median", floors.experts_floor),
        optional=(*EDGES, HOSTS, *GROUPS, ELEMENT, WEIGHTS, SOURCE,
                  _text("parameters", "of a strategy of t3sim, like compute_units=24")),
    ),
    _kind(
        "tile_timelines", "one output tile of one GEMM kernel: where and when it was computed",
        *SUBLAYER, *GEMM,
        _text("kernel", "gemm stores locally, scatter to the owners of the rows"),
        *TILE_COLUMNS,
        optional=(_count("tile_height", "elements", "rows of a tile"),
                  _count("tile_width", "elements", "columns of a tile")),
    ),
)  # fmt: skip
KINDS: dict[str, Kind] = {kind.name: kind for kind in _ALL}


def kind_of_header(header: tuple[str, ...]) -> Kind | str:
    """Return the kind whose files have this header (columns in any order), or why there is none."""
    names = set(header)
    if len(names) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        return f"column {twice!r} appears twice"
    needed = {kind.name: [column.name for column in kind.lacking(names) if not column.may_lack] for kind in _ALL}
    known = {kind.name: {*kind.by_name, *kind.sample_columns()} for kind in _ALL}
    fitting = [kind for kind in _ALL if not needed[kind.name] and names <= known[kind.name]]
    fitting.sort(key=lambda kind: len(kind.lacking(names)))
    if len(fitting) > 1 and len(fitting[0].lacking(names)) == len(fitting[1].lacking(names)):
        told_by = (f"{kind.name} has {', '.join(one.name for one in kind.lacking(names))}" for kind in fitting)
        return f"more than one kind of measurement has these columns: {'; '.join(told_by)}"
    if fitting:
        return fitting[0]
    nearest = max(_ALL, key=lambda kind: len(names & set(kind.names)) - len(needed[kind.name]))
    missing = needed[nearest.name]
    unknown = [name for name in header if name not in known[nearest.name]]
    parts = [f"missing {', '.join(missing)}"] if missing else []
    parts += [f"unknown {', '.join(unknown)[:120]}"] if unknown else []
    return f"no kind of measurement has these columns; the nearest is {nearest.name}: {'; '.join(parts)}"
