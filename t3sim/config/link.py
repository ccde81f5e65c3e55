"""Specs of what connects GPUs: links, switches with multicast, network interfaces."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from t3sim.config.element_types import ADDED_IN_HARDWARE, ReducedName
from t3sim.config.spec import AtMost, Bytes, BytesPerSecond, Count, LinesInFlight, PicosecondsAboveZero, Spec, Unit


class MulticastSpec(Spec):
    """What a switch does for all GPUs at once (NVLink SHARP): stores to every GPU, loads of sums over all GPUs.

    A multicast store crosses the sender's egress port once, and the ingress port of every GPU.  For a load of a sum,
    every GPU sends its own granule to the switch, and one sum crosses the ingress port of the requesting GPU.
    """

    packet_payload: Bytes | None = Field(
        None,
        description="Maximum payload of a multicast store, of a contribution to a sum and of a sum. If omitted, as of "
        "other packets.",
    )
    reduction_bandwidth: BytesPerSecond = Field(
        description="Rate at which the reduction unit in front of a GPU's port produces sums."
    )
    table: Annotated[Bytes, AtMost(1 << 24)] = Field(
        description="Maximum sums in flight for one GPU: capacity of the switch's table of outstanding reductions."
    )
    elements: tuple[ReducedName, ...] = Field(
        ADDED_IN_HARDWARE, description="Element types that the switch adds up; it carries all others as they are."
    )

    @model_serializer(mode="wrap")
    def _without_default_types(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if name != "elements" or self.adds_more}

    @property
    def adds_more(self) -> bool:
        """Whether other types are added up than those of most switches."""
        return self.elements != ADDED_IN_HARDWARE


class NicSpec(Spec):
    """The network interface of a GPU, which connects it with the GPUs of all other nodes.

    It reads the memory of the GPU itself (GPUDirect), message after message, and stores into the memory there.
    """

    bandwidth: BytesPerSecond = Field(description="Payload bandwidth of the network interface in each direction.")
    latency: Annotated[PicosecondsAboveZero, AtMost(10**12)] = Field(
        description="Latency from the network interface's read on one GPU to the memory controller of the other."
    )
    message_rate: Annotated[Count, AtMost(10**12), Unit("messages/s")] = Field(
        description="Maximum number of messages that the network interface starts in a second."
    )
    queue_pairs: Annotated[Count, AtMost(16)] = Field(
        4, description="Number of messages that the network interface reads from memory at the same time."
    )
    max_outstanding_lines: LinesInFlight = Field(
        256, description="Maximum lines of a message that are read but not stored yet."
    )


class LinkSpec(Spec):
    """What connects a GPU to others; the latency is from the store or DMA read to the memory controller there.

    ``topology`` names a fabric (``t3sim.fabric``).  ``ring``: one direction of a link to the neighbour.  ``switch``: a
    port to, and one from, a switch that leads to every GPU, both of this bandwidth.  ``mesh``: a link to each other
    GPU, each of this bandwidth.  ``two-level``: nodes, inside which GPUs are connected by a switch, or by a mesh if
    they have several ports, and a network interface for each GPU.  A store of b bytes goes in packets of at most
    ``packet_payload`` bytes, each with a header; ``bandwidth`` is the rate of data in full packets (without headers, in
    any).
    """

    bandwidth: BytesPerSecond = Field(
        description="Payload bandwidth of the link in each direction, with full packets of `packet_payload` bytes; "
        "headers come on top. Copy engines with larger packets exceed it."
    )
    latency: Annotated[PicosecondsAboveZero, AtMost(10**12)] = Field(
        description="Latency from a store or DMA read on one GPU to the memory controller of the other."
    )
    egress_buffer: Annotated[Bytes, AtMost(1 << 24)] = Field(
        description="Capacity of the sender's buffer for outgoing stores."
    )
    topology: str = Field(
        "ring",
        description="Topology: `ring`, a link to one neighbour; `switch`, a port to a switch that connects all GPUs; "
        "`mesh`, a link to each other GPU; `two-level`, nodes of `gpus_per_node` GPUs and network interfaces (`nic`); "
        "or a fabric of a plugin.",
    )
    ports: Annotated[Count, AtMost(7)] = Field(
        1, description="Number of ports of a GPU to other GPUs of its node, each of `bandwidth`: the links of a mesh."
    )
    nodes: Annotated[Count, Unit("nodes")] | None = Field(
        None, description="Number of nodes. If omitted, as many as the GPUs of the workload fill."
    )
    gpus_per_node: Annotated[Count, Unit("GPUs")] | None = Field(
        None, description="Number of GPUs of a node. If omitted, all GPUs are on one node."
    )
    nic: NicSpec | None = Field(
        None, description="Network interface of each GPU to other nodes. If omitted, GPUs have none."
    )
    ingress_buffer: Annotated[Bytes, AtMost(1 << 26)] | None = Field(
        None, description="Maximum data in flight from one GPU to another through a switch, a mesh or a network."
    )
    packet_payload: Bytes | None = Field(
        None, description="Maximum payload of a packet. If omitted, the link has no packets."
    )
    packet_header: Bytes | None = Field(None, description="Header bytes of each packet, on top of its payload.")
    multicast: MulticastSpec | None = Field(
        None, description="Multicast and reduction in the switch. If omitted, the switch has neither."
    )
    max_gpus: Annotated[Count, Unit("GPUs")] | None = Field(
        None,
        description="Number of GPUs that the links connect, of one host or NVLink domain. If omitted, any number.",
    )

    @property
    def n_ports(self) -> int:
        """Return the ports of a GPU, that to its network interface among them."""
        return self.ports + (self.nic is not None)
