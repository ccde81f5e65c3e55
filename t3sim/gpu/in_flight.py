"""Outstanding requests and messages of a GPU, read from its record without advancing it."""

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.gpu.core import GpuCore
from t3sim.gpu.units import codes
from t3sim.gpu.units.dram.dram_queue import KEY_SHIFT

FETCHED = (codes.REMOTE_READ, codes.CONTRIBUTION)


@cache
def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the kernel, and all functions that it calls, as plain Python."""
    plain = getattr(function, "py_func", function)
    names = plain.__globals__
    called = {name: uncompiled(names[name]) for name in plain.__code__.co_names if hasattr(names.get(name), "py_func")}
    return FunctionType(plain.__code__, {**names, **called})


IN_STREAM = -1  # in place of a bank: in the queue of its class, in front of the channel
QUEUED = np.dtype([(name, np.int64) for name in ("channel", "bank", "traffic_class", "kind", "tag", "place", "at")])


def has_queued(channels: Any) -> NDArray[np.bool_]:
    """Return whether each direction and bank of one channel or several has requests in the DRAM queue."""
    n_banks = channels["open_row"].shape[-1]
    firsts = channels["entries"]["next"][..., : 2 * n_banks]
    is_queued: NDArray[np.bool_] = firsts >= 2 * n_banks
    return is_queued.reshape(*firsts.shape[:-1], 2, n_banks)


def bank_lists(channels: NDArray[Any]) -> NDArray[np.intp]:
    """Return [3, n] the channel, the list and the entry of all in the DRAM queues of *channels*, each list by age.

    A list holds the requests of a direction and bank and has the number of its end (``dram_queue.end_of``).
    """
    following = channels["entries"]["next"]
    n_lists = 2 * channels["open_row"].shape[-1]
    channel, ends = np.nonzero(has_queued(channels).reshape(len(channels), n_lists))
    entry, found = following[channel, ends], [np.zeros((3, 0), np.intp)]
    while len(entry) and len(found) <= following.shape[1]:  # terminates even if a defect has closed the list to a ring
        found.append(np.stack([channel, ends, entry]))
        entry = following[channel, entry]
        goes_on = (entry != ends) & (entry >= 0)
        channel, ends, entry = channel[goes_on], ends[goes_on], entry[goes_on]
    places = np.concatenate(found, axis=1)
    return places[:, np.lexsort((places[1], places[0]))]


def queued_requests(core: GpuCore) -> NDArray[Any]:
    """Return every request in the stream queues and DRAM queues of a GPU (``QUEUED``), in order for each of them."""
    channels = core.state.view(np.ndarray)["channels"][0][: int(core.gpu.n_channels)]
    n_classes = len(core.traffic.queues)
    heads = channels["queue_head"][:, :n_classes]
    lengths = np.maximum(channels["queue_tail"][:, :n_classes] - heads, 0).ravel()
    channel, stream = np.divmod(np.repeat(np.arange(len(lengths)), lengths), n_classes)
    number = heads[channel, stream] + np.arange(len(channel)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    # As ``memory_controller.queued_request`` says.
    in_ring = (number - channels["ring_start"][channel, stream]) & channels["ring_mask"][channel]
    waiting = np.zeros(len(channel), QUEUED)
    waiting["channel"], waiting["bank"], waiting["traffic_class"] = channel, IN_STREAM, stream
    for name in ("tag", "place", "at"):
        waiting[name] = channels["requests"][name][channel, stream, in_ring]

    channel, ends, entry = bank_lists(channels)
    admitted, entries = np.zeros(len(channel), QUEUED), channels["entries"]
    admitted["channel"], admitted["bank"] = channel, ends % channels["open_row"].shape[-1]
    admitted["tag"] = entries["tag"][channel, entry]
    admitted["place"] = entries["row"][channel, entry].astype(np.int64) << codes.ROW_SHIFT
    admitted["place"] |= entries["place"][channel, entry]
    admitted["traffic_class"] = (admitted["place"] >> codes.CLASS_SHIFT) & codes.CLASS_MASK
    admitted["at"] = entries["key"][channel, entry] >> KEY_SHIFT

    found = np.concatenate([waiting, admitted])
    found["kind"] = found["place"] & codes.KIND_MASK
    return found[np.argsort(found["channel"], kind="stable")]


def arrived_messages(core: GpuCore) -> NDArray[Any]:
    """Return the messages in the inbox, then those that wait for the ingress port."""
    gpu, size = core.gpu, int(core.gpu.ingress_port.ring_size)
    parts = [core.inbox[np.arange(int(gpu.inbox_head), int(gpu.inbox_tail)) % len(core.inbox)]]
    for distance, peer in enumerate(core.peers if size else ()):
        places = np.arange(int(peer.data_head), int(peer.data_tail)) % size
        parts.append(core.arrivals[distance * size + places])
    return np.concatenate(parts)


def heads_of_ports(core: GpuCore) -> list[tuple[Any, list[Any]]]:
    """Return for each link port the heads of its queues: stores, DMA data."""
    return [
        (port, [waiting[0] for waiting in (core.unsent_stores(port), dma_data_of(core, port)) if len(waiting)])
        for port in core.ports
    ]


def dma_data_of(core: GpuCore, port: Any) -> NDArray[Any]:
    """Return the DMA data at a link port, in order: of the DMA engine, or what other GPUs load."""
    queue = core.tables.dma_queue
    n_places = len(queue) // len(core.ports)
    first = n_places * int(port.number)
    return queue[first + np.arange(int(port.dma_head), int(port.dma_tail)) % n_places]


def has_room_there(core: GpuCore, message: Any) -> bool:
    """Return whether the GPU that a message goes to has room for it in its ingress buffer."""
    if not core.gpu.ingress_port.is_there or message["kind"] >= codes.SIGNAL or message["kind"] == codes.CONTRIBUTION:
        return True
    return all(core.peers[distance].credits > 0 for distance in receivers_of(core, message))


def receivers_of(core: GpuCore, message: Any) -> list[int]:
    """Return the distances of the GPUs that a message goes to."""
    distance = int(message["distance"])
    return list(range(len(core.peers))) if distance == codes.EVERY else [distance]
