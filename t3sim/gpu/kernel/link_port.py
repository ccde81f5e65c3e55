"""The sending end of a ring link: granules leave one after another at the link rate.

Models: serialisation (integer arithmetic in fractions of a tick, so the rate is exact) and a
bounded buffer in front of the wire that holds back the stores of compute units.  DMA data are
limited by the engine's read-ahead instead.  The wire's latency belongs to ``network.link``.
Pinned by tests/kernel/test_link_port.py.
"""

from t3sim.gpu.kernel._jit import kernel


@kernel
def granules_queued(port, now):
    """Return how many granules have been accepted and are not yet on the wire at tick *now*."""
    backlog = port.free_at_scaled - now * port.scale
    if backlog <= 0:
        return 0
    return (backlog + port.granule_cost - 1) // port.granule_cost


@kernel
def has_buffer_room(port, n_granules, now):
    """Return whether the buffer takes *n_granules* more stores."""
    return granules_queued(port, now) + n_granules <= port.buffer_granules


@kernel
def send_granule(gpu, outbox, kind, tile, granule, ready_at):
    """Queue one granule that is ready at tick *ready_at*; it is complete at the far end of the wire at ``at`` + latency."""
    port = gpu.link_port
    start = max(port.free_at_scaled, ready_at * port.scale)
    port.free_at_scaled = start + port.granule_cost
    port.busy_scaled += port.granule_cost
    port.n_sent += 1
    message = outbox[gpu.n_outbox]
    message.at = (port.free_at_scaled + port.scale - 1) // port.scale
    message.kind = kind
    message.tile = tile
    message.granule = granule
    gpu.n_outbox += 1
