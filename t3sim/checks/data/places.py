"""Addresses of commands, and the order of several accesses to one address, as arrays."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
NOWHERE = -2  # instead of an item: the access belongs to none


class Turns:
    """Which item an access with a key is for: the first access for the first item of the key, and so on."""

    def __init__(self, parts: list[tuple[Ints, Ints]]) -> None:
        """*parts*: keys and their items, in the order of their turns."""
        none = np.zeros(0, np.int64)
        keys, items = (np.concatenate([none, *(part[i] for part in parts)]) for i in range(2))
        self._items = np.append(items[np.argsort(keys, kind="stable")], NOWHERE)
        self._keys, self._first, self._n = np.unique(np.sort(keys), return_index=True, return_counts=True)
        self._n_taken = np.zeros(len(self._keys), np.int64)

    def take(self, keys: Ints) -> Ints:
        """Return the items whose turn it is; ``NOWHERE`` where a key has none, or no more."""
        if not len(self._keys):
            return np.full(len(keys), NOWHERE)
        at = np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)
        turn = self._n_taken[at] + occurrence(keys)
        is_there = (self._keys[at] == keys) & (turn < self._n[at])
        np.add.at(self._n_taken, at[is_there], 1)
        return self._items[np.where(is_there, self._first[at] + turn, -1)]

    def left(self) -> Ints:
        """Return the keys of which not every item has been taken."""
        return self._keys[self._n_taken < self._n]


class Wire:
    """Granules on their way to one GPU; those for one place and signal arrive in the order in which they were sent."""

    def __init__(self, size: int, width: int) -> None:
        """*size* places, granules of *width* numbers."""
        self._first, self._last = np.full(size, -1), np.full(size, -1)
        self._next, self._signals = np.full(1, -1), np.zeros(1, np.int64)
        self._values = np.zeros((1, width), np.int64)
        self._n = 0

    def send(self, places: Ints, values: Ints, signals: Ints) -> None:
        """Put granules on the wire that post *signals*."""
        numbers = self._n + np.arange(len(places))
        self._n += len(places)
        while len(self._values) < self._n:
            self._values, self._signals = (np.concatenate([old, old]) for old in (self._values, self._signals))
            self._next = np.concatenate([self._next, np.full(len(self._next), -1)])
        self._values[numbers], self._signals[numbers] = values, signals
        turns = occurrence(places)
        for turn in range(int(turns.max(initial=-1)) + 1):
            a, number = places[turns == turn], numbers[turns == turn]
            is_alone = self._first[a] < 0
            self._first[a[is_alone]] = number[is_alone]
            self._next[self._last[a[~is_alone]]] = number[~is_alone]
            self._last[a] = number

    def take(self, places: Ints, signals: Ints) -> tuple[Ints, Ints, NDArray[np.bool_]]:
        """Return the values and signals of what arrives at different *places*, and whether there is anything.

        What posts *signals*, or, where nothing does, what was sent first.
        """
        numbers = self._first[places]
        is_there = numbers >= 0
        for index in np.flatnonzero(is_there & (self._signals[numbers] != signals)).tolist():
            numbers[index] = self._from_behind(int(places[index]), int(signals[index]))
        is_first = is_there & (numbers == self._first[places])
        self._first[places[is_first]] = self._next[numbers[is_first]]
        return self._values[numbers], self._signals[numbers], is_there

    def _from_behind(self, place: int, signal: int) -> int:
        """Return the first granule for *place* that posts *signal*, cut out of its chain; without one, the first."""
        before = first = int(self._first[place])
        number = int(self._next[first])
        while number >= 0 and self._signals[number] != signal:
            before, number = number, int(self._next[number])
        if number < 0:
            return first
        self._next[before] = self._next[number]
        if self._last[place] == number:
            self._last[place] = before
        return number

    def left(self) -> Ints:
        """Return the places for which something is still on the wire."""
        return np.flatnonzero(self._first >= 0)


def occurrence(keys: Ints) -> Ints:
    """Return for each entry how often its key has come before."""
    order = np.argsort(keys, kind="stable")
    is_first = np.diff(keys[order], prepend=keys[order[:1]] - 1) != 0
    starts = np.flatnonzero(is_first)
    rank = np.empty(len(keys), np.int64)
    rank[order] = np.arange(len(keys)) - np.repeat(starts, np.diff(starts, append=len(keys)))
    return rank


def running_maximum(values: Ints, keys: Ints) -> Ints:
    """Return for each entry the largest of the values, none below 0, of its key so far."""
    order = np.argsort(keys, kind="stable")
    group = np.cumsum(np.diff(keys[order], prepend=keys[order[:1]]) != 0)
    above = int(values.max(initial=0)) + 1  # of one group over all of those before
    found = np.empty(len(keys), np.int64)
    found[order] = np.maximum.accumulate(values[order] + group * above) - group * above
    return found


def granule_of(memory: Any, commands: NDArray[Any]) -> Ints:
    """Return the address of column commands from channel, bank, row and column: the address map, backwards."""
    interleave_bits = (memory.channel_interleave // memory.access).bit_length() - 1
    channel_bits = memory.n_channels.bit_length() - 1
    group_bits = memory.n_bank_groups.bit_length() - 1
    bank_bits = (memory.n_bank_groups * memory.banks_per_group).bit_length() - 1
    row_unit_bits = (memory.row // memory.channel_interleave).bit_length() - 1
    bank, row, column = commands["bank"], commands["row"], commands["column"]
    in_group_bits = bank_bits - group_bits
    spread = (bank & ((1 << in_group_bits) - 1)) << group_bits | bank >> in_group_bits
    above = row << row_unit_bits | column >> interleave_bits
    inside = above << bank_bits | (spread ^ row) & ((1 << bank_bits) - 1)
    low = (commands["channel"] ^ inside ^ (inside >> channel_bits)) & (memory.n_channels - 1)
    granule: Ints = (inside << channel_bits | low) << interleave_bits | column & ((1 << interleave_bits) - 1)
    return granule
