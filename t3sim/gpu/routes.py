"""Where the stores of a kernel go, as a collectives library would program it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t3sim.gpu.kernel import codes
from t3sim.gpu.kernel.signals import NO_SIGNAL

NEIGHBOUR = -1  # distance of the GPU that T3's ring sends to: the one before this one


class StoreRoutes:
    """Where the stores of a producer kernel go: the address-space mapping of T3 section 4.4.

    Programmed once, before the kernel starts, by calls over workgroups (in T3, ranges of the output array).  Stores
    that nobody maps go through the L2 to own memory.  Another GPU is named by its *distance*:
    it is GPU (rank + distance) mod n.
    """

    def __init__(self, n_workgroups: int, counterparts: NDArray[np.int64] | None = None) -> None:
        """*counterparts*: for each workgroup the one that makes the same tile at the neighbour (default: the same)."""
        everyone = np.arange(n_workgroups)
        self._counterparts = everyone if counterparts is None else counterparts
        self.route = np.full(n_workgroups, codes.ROUTE_CACHED, np.int64)
        self.updates = np.zeros(n_workgroups, np.int64)  # per element until a wavefront tile triggers; 0: not tracked
        self.distance = np.zeros(n_workgroups, np.int64)  # distance of the GPU to which the tile is stored or sent
        self.to = everyone.copy()  # workgroup there whose tile it is; -1: a plain address
        self.address = np.zeros(n_workgroups, np.int64)  # that address, of the first granule of the tile
        self.pitch = np.zeros(n_workgroups, np.int64)  # granules from one row to the next, at that address
        self.signal = np.full(n_workgroups, NO_SIGNAL, np.int64)  # that each granule posts where it is stored
        self.store_bytes: int | None = None  # of one store to another GPU (a power of two); None: full packets
        self.dma_maps: list[tuple[int, int, int]] = []  # first workgroup, one past the last, tiles per block

    @property
    def is_fused(self) -> bool:
        """Return whether any store is mapped, so that output bypasses the L2."""
        return bool((self.route != codes.ROUTE_CACHED).any())

    def remote_map(
        self, workgroups: range, *, is_update: bool, distance: int = NEIGHBOUR, to: ArrayLike | None = None
    ) -> None:
        """Let stores of these workgroups become peer stores to tiles of the GPU at *distance*.

        *to* are the workgroups there that make these tiles (default: those that make the same tiles).
        """
        self.route[workgroups] = codes.ROUTE_REMOTE_UPDATE if is_update else codes.ROUTE_REMOTE_STORE
        self._send(workgroups, distance, to)

    def dma_map(
        self,
        workgroups: range,
        *,
        is_update: bool,
        updates_per_element: int,
        tiles_per_block: int,
        distance: int = NEIGHBOUR,
        to: ArrayLike | None = None,
    ) -> None:
        """Keep these stores local and send each block on once its elements are complete; *distance*, *to* as above."""
        self.track(workgroups, is_update=is_update, updates_per_element=updates_per_element)
        self._send(workgroups, distance, to)
        self.dma_maps.append((workgroups.start, workgroups.stop, tiles_per_block))

    def track(self, workgroups: range, *, is_update: bool, updates_per_element: int) -> None:
        """Keep these stores local and count them, without sending anything on."""
        self.route[workgroups] = codes.ROUTE_LOCAL_UPDATE if is_update else codes.ROUTE_LOCAL_STORE
        self.updates[workgroups] = updates_per_element

    def store_at(
        self,
        workgroups: range | NDArray[np.int64],
        *,
        distance: ArrayLike,
        address: ArrayLike,
        pitch: int,
        is_update: bool = False,
        signal: ArrayLike = NO_SIGNAL,
    ) -> None:
        """Let these workgroups store their tiles to plain addresses, of another GPU or (distance 0) of this one.

        *address* is where the first granule of each tile lies, *pitch* the granules from one row to the next.  Each
        granule posts *signal* there when it enters a DRAM queue.  All but *pitch* may be arrays, one entry a workgroup.
        """
        remote, own = (
            (codes.ROUTE_REMOTE_UPDATE, codes.ROUTE_LOCAL_UPDATE)
            if is_update
            else (codes.ROUTE_REMOTE_STORE, codes.ROUTE_LOCAL_STORE)
        )
        self.route[workgroups] = np.where(np.asarray(distance) == 0, own, remote)
        self.distance[workgroups] = distance
        self.to[workgroups] = -1
        self.address[workgroups] = address
        self.pitch[workgroups] = pitch
        self.signal[workgroups] = signal

    def _send(self, workgroups: range, distance: int, to: ArrayLike | None) -> None:
        self.distance[workgroups] = distance
        self.to[workgroups] = self._counterparts[workgroups] if to is None else to
