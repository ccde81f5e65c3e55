"""The memories of the simulated GPUs while one kernel runs, whatever it is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.checks.data.places import Ints, granule_of, occurrence
from t3sim.config.machine import MachineSpec
from t3sim.errors import UsageError
from t3sim.gpu.device import Device
from t3sim.gpu.kernel import codes
from t3sim.workload.tiling import ELEMENT_BYTES

UNTOUCHED = -77  # what lies where nothing is ever stored
GUARD_GRANULES = 64  # behind the array
MAX_DEVICES = 16  # contributors are kept in 64 bits
MAX_BYTES = 1 << 31
COLUMN_COMMANDS = (codes.RD, codes.WR, codes.UPD)
MAX_PROBLEMS = 20


class CarriedRun:
    """The memories of the simulated GPUs while one kernel runs; addresses are granules.

    ``values`` [device, granule, element] covers the granules from ``base`` on.  Behind the elements of a granule stands
    who contributed to it, so that both are stored, added up and sent alike.  What a GPU puts on the wire for a granule
    of its neighbour is kept beside it.
    """

    def __init__(self, machine: MachineSpec, n_devices: int, n_simulated: int, base: int, n_granules: int) -> None:
        """*n_simulated* is 1 (mirrored) or *n_devices*."""
        if n_devices > MAX_DEVICES:
            raise UsageError(f"real values are carried for at most {MAX_DEVICES} GPUs, not {n_devices}")
        self.n_devices, self.n_simulated = n_devices, n_simulated
        self.base, self.n_elements = base, machine.memory.access // ELEMENT_BYTES
        size = n_granules + GUARD_GRANULES
        needed = 4 * n_simulated * size * self.n_elements * 8
        if needed > MAX_BYTES:
            raise UsageError(
                f"carrying real values needs about {needed / 2**30:.1f} GiB, at most {MAX_BYTES / 2**30:.0f} are used;"
                " take a smaller workload"
            )
        self.untouched = np.append(np.full(self.n_elements, UNTOUCHED), 0)
        self.values = np.tile(self.untouched, (n_simulated, size, 1))
        self.sent_values = np.zeros_like(self.values)
        self.n_sent = np.zeros((n_simulated, size), np.int64)
        self.n_arrived = np.zeros((n_simulated, size), np.int64)
        self.n_given = np.zeros((n_simulated, size), np.int64)  # put on the wire, by address at the neighbour
        self.problems: list[str] = []
        self.n_events = 0  # column commands replayed
        self.n_values = 0  # elements compared
        self._memory = machine.memory
        self._noted_at = -1
        self._commands: list[tuple[int, NDArray[Any]]] = []
        self._messages: list[tuple[int, NDArray[Any]]] = []

    @property
    def is_mirrored(self) -> bool:
        """Return whether one GPU stands for all."""
        return self.n_simulated < self.n_devices

    # --- listening to the machine ----------------------------------------------------------------

    def follow(self, n: int, device: Device) -> None:
        """Take the DRAM commands and the messages of *device*, which is number *n*; its link is wired."""
        send = device.egress

        def tap(messages: NDArray[Any]) -> None:
            self._settle_before(int(device.env.now))
            self.take_messages(n, messages)
            if send is not None:
                send(messages)

        def read(commands: NDArray[Any]) -> None:
            self._settle_before(int(device.env.now))
            self.take_commands(n, commands)

        device.egress = tap
        device.core.stream_commands(read)

    def _settle_before(self, now: int) -> None:
        """Replay what was noted at an earlier moment before anything newer is noted."""
        if now != self._noted_at:
            self.settle()
            self._noted_at = now

    def take_commands(self, device: int, commands: NDArray[Any]) -> None:
        """Note DRAM commands of *device*, in the order of each channel."""
        chosen = commands[np.isin(commands["command"], COLUMN_COMMANDS)]
        if len(chosen):
            self._commands.append((device, chosen.copy()))

    def take_messages(self, device: int, messages: NDArray[Any]) -> None:
        """Note granules that *device* put on the wire."""
        self._messages.append((device, messages.copy()))

    def settle(self) -> None:
        """Replay what has been noted; what was sent meanwhile arrives later, so commands go first."""
        if self._commands:
            devices = np.concatenate([np.full(len(c), d) for d, c in self._commands])
            self._replay(devices, np.concatenate([c for _, c in self._commands]))
            self._commands = []
        for device, messages in self._messages:
            self._send(device, messages)
        self._messages = []

    def _replay(self, devices: Ints, commands: NDArray[Any]) -> None:
        """Execute column commands; those of one granule one after another, of different ones together."""
        self.n_events += len(commands)
        granules = granule_of(self._memory, commands) - self.base
        kinds, tags = commands["kind"], commands["tag"]
        is_operand = kinds == codes.OPERAND_READ
        is_outside = (granules < 0) | (granules >= self.values.shape[1])
        self._note(is_outside & ~is_operand, devices, granules, "a command outside the array")
        self._note(is_operand & ~is_outside, devices, granules, "an operand read inside the output")
        kept = ~is_outside & ~is_operand
        devices, granules, kinds, tags = devices[kept], granules[kept], kinds[kept], tags[kept]
        rank = occurrence(devices * self.values.shape[1] + granules)
        self.delay_dependent(rank, kinds, devices, granules)
        for turn in range(int(rank.max(initial=-1)) + 1):
            for kind in np.unique(kinds[rank == turn]):
                at = (rank == turn) & (kinds == kind)
                self._execute(int(kind), devices[at], granules[at], tags[at])

    def _execute(self, kind: int, d: Ints, a: Ints, tags: Ints) -> None:
        """Execute commands of one kind on different granules *a* of the devices *d*."""
        if kind in (codes.INCOMING_UPDATE, codes.INCOMING_WRITE):
            self._check_addresses(d, a, tags)
            self._note(self.n_sent[d, a] <= self.n_arrived[d, a], d, a, "an arrival that nobody sent")
            self.n_arrived[d, a] += 1
            self._store(kind, d, a, self.sent_values[d, a])
        else:
            self._execute_own(kind, d, a, tags)

    def _store(self, kind: int, d: Ints, a: Ints, values: Ints) -> None:
        """Write, or for updates add, *values* at granules *a* of the devices *d*."""
        if kind & codes.UPDATE_BIT:
            self.values[d, a] += values
        else:
            self.values[d, a] = values

    def _receive(self, device: int, a: Ints, values: Ints) -> None:
        """Keep what *device* sends until the neighbour stores it; mirrored: compare it with what it has to be."""
        np.add.at(self.n_given[device], a, 1)
        if self.is_mirrored:
            wrong = (values != self.due(device, a)).any(axis=1)
            self._note(wrong, np.full(len(a), device), a, "a granule sent with the wrong value or contributors")
            return
        r = np.full(len(a), (device - 1) % self.n_devices)
        self.sent_values[r, a] = values
        np.add.at(self.n_sent, (r, a), 1)

    def _note(self, wrong: NDArray[np.bool_], devices: Ints, granules: Ints, what: str) -> None:
        """Write down where *wrong* is true, the first few times."""
        for i in np.flatnonzero(wrong)[: MAX_PROBLEMS - len(self.problems)]:
            self.problems.append(f"gpu[{devices[i]}]: {what} (granule {int(granules[i]) + self.base})")

    # --- what a kernel does ----------------------------------------------------------------------

    def delay_dependent(self, rank: Ints, kinds: Ints, d: Ints, a: Ints) -> None:
        """Raise the *rank* of a command that needs what one of another granule in the same batch reads."""

    def take_dirty_lines(self) -> None:
        """Store what the L2 keeps instead of the memory (``l2.at_kernel_end: keep``); most kernels leave nothing."""

    def _check_addresses(self, d: Ints, a: Ints, tags: Ints) -> None:
        """Note arrivals that are stored elsewhere than their message says."""
        raise NotImplementedError

    def _execute_own(self, kind: int, d: Ints, a: Ints, tags: Ints) -> None:
        """Execute commands that belong to the GPU itself."""
        raise NotImplementedError

    def _send(self, device: int, messages: NDArray[Any]) -> None:
        """Keep the values of granules that were put on the wire."""
        raise NotImplementedError

    def due(self, device: int, a: Ints) -> Ints:
        """Return the values that *device* has to send for granules *a*."""
        raise NotImplementedError

    def expected(self, device: int) -> Ints:
        """Return the whole memory of *device* as NumPy computes it."""
        raise NotImplementedError

    def to_give(self, device: int) -> NDArray[np.bool_]:
        """Return which granules *device* has to send, by address at the neighbour; each goes once."""
        raise NotImplementedError

    def check(self) -> list[str]:
        """Return what is wrong after the run, ``MAX_PROBLEMS`` lines at most; none if every memory is as due."""
        self.settle()
        self.take_dirty_lines()
        self.n_values = 0
        for d in range(self.n_simulated):
            differs = self.values[d] != self.expected(d)
            wrong = differs[:, :-1].any(axis=1)
            self.n_values += wrong.size * self.n_elements
            places = np.arange(len(wrong))
            device = np.full(len(wrong), d)
            self._note(wrong, device, places, "a wrong value")
            self._note(~wrong & differs[:, -1], device, places, "the wrong contributors")
            self._note(self.n_arrived[d] != self.n_sent[d], device, places, "sent and stored unequally often")
            self._note(self.n_given[d] != self.to_give(d), device, places, "not sent exactly as often as due")
        return self.problems
