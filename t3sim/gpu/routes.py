"""Where the stores of a kernel go, as a collectives library would program it."""

from __future__ import annotations

import numpy as np

from t3sim.gpu.kernel import codes


class StoreRoutes:
    """Where the stores of a producer kernel go: the address-space mapping of T3 section 4.4.

    Programmed once, before the kernel starts, by calls over ranges of workgroups (in T3, ranges of
    the output array).  Stores that nobody maps go through the L2 to own memory.
    """

    def __init__(self, n_workgroups: int) -> None:
        self.route = np.full(n_workgroups, codes.ROUTE_CACHED, np.int64)
        self.updates = np.zeros(n_workgroups, np.int64)  # per element until a wavefront tile triggers; 0: not tracked
        self.dma_maps: list[tuple[int, int, int]] = []  # first workgroup, one past the last, tiles per block

    @property
    def is_fused(self) -> bool:
        """Return whether any store is mapped, so that output bypasses the L2."""
        return bool((self.route != codes.ROUTE_CACHED).any())

    def remote_map(self, workgroups: range, *, is_update: bool) -> None:
        """Let stores of these workgroups become peer stores at the neighbour."""
        self.route[workgroups.start : workgroups.stop] = (
            codes.ROUTE_REMOTE_UPDATE if is_update else codes.ROUTE_REMOTE_STORE
        )

    def dma_map(self, workgroups: range, *, is_update: bool, updates_per_element: int, tiles_per_block: int) -> None:
        """Keep these stores local and send each block to the neighbour once its elements are complete."""
        self.track(workgroups, is_update=is_update, updates_per_element=updates_per_element)
        self.dma_maps.append((workgroups.start, workgroups.stop, tiles_per_block))

    def track(self, workgroups: range, *, is_update: bool, updates_per_element: int) -> None:
        """Keep these stores local and count them, without sending anything on."""
        route = codes.ROUTE_LOCAL_UPDATE if is_update else codes.ROUTE_LOCAL_STORE
        self.route[workgroups.start : workgroups.stop] = route
        self.updates[workgroups.start : workgroups.stop] = updates_per_element
