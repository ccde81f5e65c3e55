"""Values of a ring collective: whole numbers that are summed and passed on from step to step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from t3sim.checks.data.carried_run import UNTOUCHED, CarriedRun
from t3sim.checks.data.places import Ints, one_of
from t3sim.gpu.kernel import codes

if TYPE_CHECKING:
    from t3sim.collective.schedule import CollectiveProgram
    from t3sim.config.machine import MachineSpec
    from t3sim.gpu.core import GpuCore


class CarriedCollective(CarriedRun):
    """A ring collective on arrays of random whole numbers; *program* names granules by position."""

    def __init__(
        self, machine: MachineSpec, program: CollectiveProgram, cores: list[GpuCore], n_devices: int, seed: int
    ) -> None:
        """*cores* have *program* loaded, in order of device."""
        self.program, self.c = program, program.steps[0].n_granules
        n_chunks = 1 + max(max(*step.operands, step.destination) // self.c for step in program.steps)
        super().__init__(machine, n_devices, len(cores), 0, n_chunks * self.c)
        rng = np.random.default_rng(seed)
        self.is_gather = all(step.send_to == codes.TO_NEIGHBOUR and len(step.operands) == 1 for step in program.steps)
        self.has_near_memory = any(step.send_to == codes.TO_NEIGHBOUR_AS_UPDATE for step in program.steps)
        self.partial = rng.integers(-1000, 1000, (n_devices, n_devices, self.c, self.n_elements))  # [device, chunk]
        self.step_of = np.full(n_chunks, -1)
        for number, step in enumerate(program.steps):
            self.step_of[[operand // self.c for operand in step.operands]] = number
        for d in range(len(cores)):
            own = range(1) if self.is_gather else range(n_devices)
            for p in own:
                self.values[d, p * self.c : (p + 1) * self.c] = self.start(d, p)
                giver = (d + p) % n_devices if self.is_gather else d
                self.contributors[d, p * self.c : (p + 1) * self.c] = one_of(np.array([giver]))
        self.added = np.zeros((len(cores), len(program.steps), self.c, self.n_elements), np.int64)
        self.added_contributors = np.zeros((len(cores), len(program.steps), self.c), np.uint64)
        self.n_added = np.zeros((len(cores), len(program.steps), self.c), np.int64)
        if self.is_mirrored:
            for number, step in enumerate(program.steps):
                if step.send_to != codes.TO_LOCAL:
                    place = slice(step.destination, step.destination + self.c)
                    self.sent_values[0, place], self.sent_contributors[0, place] = self.result(1, number)
                    self.n_sent[0, place] = 1

    def start(self, device: int, position: int) -> Ints:
        """Return what *device* holds at *position* at the start: its own part, or for a gather a finished chunk."""
        chunk = (device + position) % self.n_devices
        held: Ints = self.partial[:, chunk].sum(axis=0) if self.is_gather else self.partial[device, chunk]
        return held

    def result(self, device: int, number: int) -> tuple[Ints, NDArray[np.uint64]]:
        """Return what step *number* of *device* makes: the sum of the parts of this and the GPUs before it."""
        chunk = (device + number) % self.n_devices
        if self.is_gather:
            return self.partial[:, chunk].sum(axis=0), np.full(self.c, one_of(np.array([chunk]))[0])
        givers = [(device + step) % self.n_devices for step in range(number + 1)]
        return self.partial[givers, chunk].sum(axis=0), np.full(self.c, one_of(np.array(givers)).sum())

    def _check_addresses(self, d: Ints, a: Ints, tags: Ints) -> None:
        destinations = np.array([step.destination for step in self.program.steps])
        wrong = destinations[-1 - tags] != a - a % self.c
        self._note(wrong, d, a, "a store at another place than its step says")

    def _execute_own(self, kind: int, d: Ints, a: Ints, tags: Ints) -> None:  # noqa: ARG002 - one signature for all
        if kind == codes.COLLECTIVE_READ:
            number, offset = self.step_of[a // self.c], a % self.c
            self._note(number < 0, d, a, "a read of what no step needs")
            np.add.at(self.added, (d, number, offset), self.values[d, a])
            np.add.at(self.added_contributors, (d, number, offset), self.contributors[d, a])
            np.add.at(self.n_added, (d, number, offset), 1)
        elif kind == codes.COLLECTIVE_WRITE:
            number = np.full(len(a), len(self.program.steps) - 1)
            values, contributors = self._take_sums(d, number, a)
            self._store(kind, d, a, values, contributors)
        else:
            self._note(np.ones(len(a), bool), d, a, "an access that a collective does not make")

    def _take_sums(self, d: Ints, number: Ints, a: Ints) -> tuple[Ints, NDArray[np.uint64]]:
        """Return the sums for granules *a* of steps *number*; each must have all its operands."""
        offset = a % self.c
        n_operands = np.array([len(step.operands) for step in self.program.steps])[number]
        self._note(self.n_added[d, number, offset] != n_operands, d, a, "a result without exactly its operands")
        return self.added[d, number, offset], self.added_contributors[d, number, offset]

    def _send(self, device: int, messages: NDArray[Any]) -> None:
        number, a = -1 - messages["tile"], np.array(messages["granule"])
        d = np.full(len(a), device)
        values, contributors = self._take_sums(d, number, a)
        self._receive(device, a, values, contributors)

    def due(self, device: int, a: Ints) -> tuple[Ints, NDArray[np.uint64]]:
        """See the base class."""
        values = np.zeros((len(a), self.n_elements), np.int64)
        contributors = np.zeros(len(a), np.uint64)
        for number, step in enumerate(self.program.steps):
            at = (a - a % self.c == step.destination) & (step.send_to != codes.TO_LOCAL)
            made, givers = self.result(device, number)
            values[at], contributors[at] = made[a[at] % self.c], givers[a[at] % self.c]
        return values, contributors

    def expected(self, device: int) -> tuple[Ints, NDArray[np.uint64]]:
        """See the base class: as at the start, with the results of the neighbour's steps and the local ones."""
        values, contributors = np.full_like(self.values[0], UNTOUCHED), np.zeros_like(self.contributors[0])
        n = self.n_devices
        for p in range(1 if self.is_gather else n):
            place = slice(p * self.c, (p + 1) * self.c)
            values[place] = self.start(device, p)
            contributors[place] = one_of(np.array([(device + p) % n if self.is_gather else device]))
        for number, step in enumerate(self.program.steps):
            place = slice(step.destination, step.destination + self.c)
            is_local = step.send_to == codes.TO_LOCAL
            made, givers = self.result(device if is_local else (device + 1) % n, number)
            if step.send_to == codes.TO_NEIGHBOUR_AS_UPDATE:
                made, givers = values[place] + made, contributors[place] + givers
            values[place], contributors[place] = made, givers
        return values, contributors

    def to_give(self, device: int) -> NDArray[np.bool_]:  # noqa: ARG002 - all devices alike
        """See the base class: the results of all steps that send."""
        is_sent = np.zeros(self.values.shape[1], bool)
        for step in self.program.steps:
            is_sent[step.destination : step.destination + self.c] |= step.send_to != codes.TO_LOCAL
        return is_sent
