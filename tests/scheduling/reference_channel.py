"""A slow, obvious twin of one DRAM channel: it ticks every cycle and looks at every request.

Shares no code with the simulator.  What may follow what is written as one table of pairs of
commands, checked against the time of the last command of each sort in each scope.
Requests are (at, kind, bank, row, column, stream), kinds as flags: 8 store, 16 near-memory update.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ACT, PRE, RD, WR, UPD, REF, REFPB = "ACT", "PRE", "RD", "WR", "UPD", "REF", "REF of a bank"
STORES = (WR, UPD)
COMPUTE = 0
ALL_BANKS = -1
CHECKED_READS = (1, 2)  # of the DMA engine and of a collective: nobody else orders them behind stores
AUTO, WITHOUT_LIMIT = -1, 1 << 60


@dataclass(frozen=True)
class Rules:
    """The channel: timings in cycles, its queue, its arbiter."""

    t: Mapping[str, int]
    capacity: int = 64
    is_split: bool = False
    high_watermark: int = 51
    low_watermark: int = 13
    write_capacity: int = 64  # of split queues
    write_age: int = 0
    writes_per_drain: int = 0  # 0: without limit
    read_age: int = 0  # 0: without limit
    turnaround_to_writes: int = 0
    policy: str = "round_robin"
    threshold: int = AUTO
    starvation_limit: int = 1000
    producer_done: bool = False
    first_stage_occupancy: int = -1
    first_stage_length: int = 0
    lead: int = 0
    slot: int = 16  # a head that could not move is asked again at the start of the next slot
    n_banks: int = 16
    banks_per_group: int = 4
    n_classes: int = 2
    most_lead: int = 100  # of pace, and of MCA without a threshold of its own
    half_full: float = 0.5  # a first stage above it takes turns
    half_length: int = 50  # or one below it


@dataclass(eq=False)
class Access:
    """A request."""

    at: int
    kind: int
    bank: int
    row: int
    column: int
    stream: int

    @property
    def is_store(self) -> bool:
        return bool(self.kind & 8)

    @property
    def command(self) -> str:
        return RD if not self.is_store else UPD if self.kind & 16 else WR


def pair_rules(t: Mapping[str, int]) -> dict[str, list[tuple[str, str, int]]]:
    """For each command: (earlier command, scope, cycles that must lie between)."""
    data_end = t["nCWL"] + t["nBL"]
    column = [(ACT, "bank", t["nRCDWR"]), (RD, "channel", t["nRTW"])]
    for store, same_group, other_group in ((WR, "nCCDL", "nCCDS"), (UPD, "nCCDWL", "nCCDWS")):
        column += [(store, "group", t[same_group]), (store, "channel", t[other_group])]
    read = [(ACT, "bank", t["nRCDRD"]), (RD, "channel", t["nCCDS"]), (RD, "group", t["nCCDL"])]
    for store, same_group, other_group in ((WR, "nCCDL", "nCCDS"), (UPD, "nCCDWL", "nCCDWS")):
        read.append((store, "channel", max(data_end + t["nWTRS"], t[other_group])))
        read.append((store, "group", max(data_end + t["nWTRL"], t[same_group])))
    return {
        RD: read,
        WR: column,
        UPD: column,
        PRE: [(ACT, "bank", t["nRAS"]), (RD, "bank", t["nRTP"])]
        + [(store, "bank", data_end + t["nWR"]) for store in STORES],
        ACT: [
            (PRE, "bank", t["nRP"]), (ACT, "bank", t["nRC"]), (ACT, "group", t["nRRDL"]), (ACT, "channel", t["nRRDS"]),
            (REF, "channel", t["nRFC"]), (REFPB, "bank", t["nRFCpb"]), (REFPB, "channel", t["nRREFD"]),
        ],
        REFPB: [
            (PRE, "bank", t["nRP"]), (ACT, "bank", t["nRC"]), (ACT, "group", t["nRRDL"]), (ACT, "channel", t["nRRDS"]),
            (REFPB, "bank", t["nRFCpb"]), (REFPB, "channel", t["nRREFD"]),
        ],
        REF: [(PRE, "bank", t["nRP"]), (ACT, "bank", t["nRC"]), (REF, "channel", t["nRFC"])],
    }  # fmt: skip


@dataclass
class ReferenceChannel:
    """One channel; ``run`` returns its commands as (cycle, command, bank, row)."""

    rules: Rules
    now: int = 0
    queue: list[Access] = field(default_factory=list)
    log: list[tuple[int, str, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pairs = pair_rules(self.rules.t)
        self.open_row: list[int | None] = [None] * self.rules.n_banks
        self.last: dict[tuple[str, str, int], int] = {}
        self.activates: deque[int] = deque(maxlen=4)
        self.streams: list[deque[Access]] = [deque() for _ in range(self.rules.n_classes)]
        self.is_stalled = [False] * self.rules.n_classes
        self.is_draining = False
        self.is_read_waiting = False
        self.held_since = self.stores_from = 0
        self.n_in_turn = 0
        self.is_owed = False
        self.last_stream = COMPUTE
        self.last_at = [0] * self.rules.n_classes
        self.n_refreshes = 0
        self.refreshed: int | None = None  # the bank whose turn it is, if banks are refreshed one by one
        self.is_open_there = False
        self.refresh_at = self.rules.t["nREFI"] // (self.rules.n_banks if self.rules.t["nRFCpb"] else 1)

    # --- what may be issued ----------------------------------------------------------------------

    def scopes(self, bank: int) -> list[tuple[str, int]]:
        return [("bank", bank), ("group", bank // self.rules.banks_per_group), ("channel", 0)]

    def earliest(self, command: str, bank: int) -> int:
        """The first cycle at which *command* to *bank* breaks no rule."""
        index = dict(self.scopes(bank))
        cycles = [
            self.last.get((before, scope, index[scope]), -(10**9)) + gap for before, scope, gap in self.pairs[command]
        ]
        if command == ACT and len(self.activates) == 4:
            cycles.append(self.activates[0] + self.rules.t["nFAW"])
        return max(cycles)

    def issue(self, command: str, bank: int, row: int, at: int) -> None:
        """Note a command; PRE and REF of all banks count for each of them."""
        self.log.append((at, REF if command == REFPB else command, bank, row))
        for each in range(self.rules.n_banks) if bank == ALL_BANKS else (bank,):
            for scope, index in self.scopes(each):
                self.last[command, scope, index] = at
        if command == ACT:
            self.activates.append(at)

    # --- one cycle, step by step -------------------------------------------------------------------

    def refresh(self) -> None:
        """Close all rows as soon as that is legal, then refresh."""
        is_open = [bank for bank, row in enumerate(self.open_row) if row is not None]
        if is_open:
            at = max(self.now, *(self.earliest(PRE, bank) for bank in is_open))
            self.issue(PRE, ALL_BANKS, -1, at)
        at = max(self.now, *(self.earliest(REF, bank) for bank in range(self.rules.n_banks)))
        self.issue(REF, ALL_BANKS, -1, at)
        self.open_row = [None] * self.rules.n_banks
        self.refresh_at += self.rules.t["nREFI"]

    def begin_refresh(self) -> None:
        """The next bank is due: nothing goes to it until it is refreshed."""
        self.refreshed = self.n_refreshes % self.rules.n_banks
        self.n_refreshes += 1
        self.is_open_there = self.open_row[self.refreshed] is not None
        self.open_row[self.refreshed] = None

    def go_on_with_refresh(self, bank: int) -> bool:
        """Close the bank that is due, then refresh it; return whether this cycle was used for that."""
        command = PRE if self.is_open_there else REFPB
        if self.earliest(command, bank) > self.now:
            return False
        self.issue(command, bank, -1, self.now)
        if command == REFPB:
            self.refreshed = None
            due_at = (self.n_refreshes + 1) * self.rules.t["nREFI"] // self.rules.n_banks
            self.refresh_at = max(due_at, self.now + 1)
        self.is_open_there = False
        return True

    def is_ready(self, stream: int) -> bool:
        """Whether the head of *stream* has arrived and the DRAM queue has room for it."""
        if not self.streams[stream] or self.streams[stream][0].at > self.now or self.is_stalled[stream]:
            return False
        head = self.streams[stream][0]
        rivals = [a for a in self.queue if not self.rules.is_split or a.is_store == head.is_store]
        is_in_own_queue = self.rules.is_split and head.is_store
        return len(rivals) < (self.rules.write_capacity if is_in_own_queue else self.rules.capacity)

    def choose_stream(self) -> int | None:
        """The arbiter: which ready stream goes next; None holds a ready one back."""
        ready = [stream for stream in range(self.rules.n_classes) if self.is_ready(stream)]
        is_auto = self.rules.policy == "mca" and self.rules.threshold == AUTO
        if self.rules.policy == "round_robin" or (is_auto and self.takes_turns()):
            return min(ready, key=lambda stream: (stream - self.last_stream - 1) % self.rules.n_classes)
        if self.rules.policy == "compute_first":
            return ready[0]
        is_paced = is_auto or self.rules.policy == "pace"
        is_late = is_paced and self.rules.lead > self.rules.most_lead
        threshold = WITHOUT_LIMIT if is_paced else self.rules.threshold
        for stream in ready:
            waited = self.now - max(self.last_at[stream], self.streams[stream][0].at)
            if stream != COMPUTE and (is_late or waited > self.rules.starvation_limit):
                return stream
        if ready[0] == COMPUTE or self.rules.producer_done or len(self.queue) < threshold:
            return ready[0]
        return None

    def takes_turns(self) -> bool:
        """Whether the first stage is not over, filled more than half of the queue or was shorter than half."""
        rules = self.rules
        is_full = rules.first_stage_occupancy > rules.half_full * 100 * rules.capacity
        return rules.first_stage_occupancy < 0 or is_full or rules.first_stage_length < rules.half_length

    def admit(self) -> None:
        """Move heads into the DRAM queue while the arbiter picks one; a read waits for a store to its address."""
        if self.now % self.rules.slot == 0:
            self.is_stalled = [False] * self.rules.n_classes
        while any(map(self.is_ready, range(self.rules.n_classes))):
            stream = self.choose_stream()
            if stream is None:
                return
            if self.must_wait_for_store(self.streams[stream][0]):
                self.is_stalled[stream] = True
                self.is_read_waiting = self.rules.write_age > 0
                continue
            if self.must_wait_for_other_stream(stream):
                self.is_stalled[stream] = True
                continue
            access = self.streams[stream].popleft()
            if access.kind in CHECKED_READS:
                self.is_read_waiting = False
            if access.is_store != self.is_draining and not any(a.is_store == access.is_store for a in self.queue):
                self.held_since = self.now
            self.queue.append(access)
            self.last_stream = stream
            self.last_at[stream] = self.now

    def must_wait_for_store(self, head: Access) -> bool:
        place = (head.bank, head.row, head.column)
        stores = {(a.bank, a.row, a.column) for a in self.queue if a.is_store}
        return head.kind in CHECKED_READS and place in stores

    def must_wait_for_other_stream(self, stream: int) -> bool:
        """Whether a store to the address of the read, older than it, is in front of the DRAM queue elsewhere."""
        head = self.streams[stream][0]
        others = [a for other, waiting in enumerate(self.streams) if other != stream for a in waiting]
        place = (head.bank, head.row, head.column)
        older = {(a.bank, a.row, a.column) for a in others if a.is_store and a.at < head.at}
        return head.kind in CHECKED_READS and place in older

    def choose_direction(self) -> None:
        """Split queue: drain stores from the high to the low watermark, of age, or for a read that waits.

        A drain that is cut short while reads wait leaves them a turn of as many as their queue holds.  With an age of
        reads it is cut short when one has waited so long and the stores are few enough.
        """
        was_draining, turn = self.is_draining, self.rules.writes_per_drain
        stores = sum(a.is_store for a in self.queue)
        reads = len(self.queue) - stores
        if self.is_draining:
            is_wanted = stores >= self.rules.low_watermark or reads == 0 or self.is_read_waiting
            is_over = self.rules.write_age > 0 and reads > 0 and 0 < turn <= self.n_in_turn
            may_be_cut = reads > 0 and stores <= self.rules.high_watermark and not self.is_read_waiting
            is_late = 0 < self.rules.read_age <= self.now - self.held_since and may_be_cut and self.n_in_turn > 0
            self.is_draining = stores > 0 and is_wanted and not is_over and not is_late
        else:
            is_old = self.now >= self.held_since + self.rules.write_age if self.rules.write_age else reads == 0
            may_begin = reads == 0 or not self.is_owed or self.n_in_turn >= self.rules.capacity
            is_high = stores > self.rules.high_watermark and may_begin
            self.is_draining = is_high or (is_old and stores > 0) or self.is_read_waiting
        if self.is_draining != was_draining:
            self.n_in_turn = 0
            self.held_since = self.now
            self.stores_from = self.now + self.rules.turnaround_to_writes
            self.is_owed = self.rules.write_age > 0 and stores >= self.rules.low_watermark

    def served(self) -> list[Access]:
        """Requests that may be chosen now, oldest first."""
        return [a for a in self.queue if not self.rules.is_split or a.is_store == self.is_draining]

    def issue_column(self) -> None:
        """The oldest row hit that may issue now."""
        for access in self.served():
            at = max(self.earliest(access.command, access.bank), self.stores_from * access.is_store)
            if self.open_row[access.bank] == access.row and at <= self.now:
                self.issue(access.command, access.bank, access.row, self.now)
                self.queue.remove(access)
                self.n_in_turn += 1
                return

    def issue_row(self) -> None:
        """Activate or precharge for the oldest request that needs it; a row that is still wanted stays open."""
        served = [a for a in self.served() if a.bank != self.refreshed]
        hit_banks = {a.bank for a in served if self.open_row[a.bank] == a.row}
        for access in served:
            bank, open_row = access.bank, self.open_row[access.bank]
            if bank in hit_banks:
                continue
            command = ACT if open_row is None else PRE
            if self.earliest(command, bank) <= self.now:
                self.issue(command, bank, access.row if open_row is None else open_row, self.now)
                self.open_row[bank] = access.row if open_row is None else None
                return

    def cycle(self) -> None:
        """One cycle of the memory clock."""
        if self.now == self.refresh_at and self.refresh_at:
            self.begin_refresh() if self.rules.t["nRFCpb"] else self.refresh()
        is_row_bus_taken = self.refreshed is not None and self.go_on_with_refresh(self.refreshed)
        self.admit()
        if self.rules.is_split:
            self.choose_direction()
        self.issue_column()
        if not is_row_bus_taken:
            self.issue_row()
        self.now += 1

    def run(self, requests: Sequence[Sequence[Any]]) -> list[tuple[int, str, int, int]]:
        """Serve all *requests*, in order per stream; return the commands."""
        for request in requests:
            access = Access(*request)
            self.streams[access.stream].append(access)
        while self.queue or any(self.streams):
            self.cycle()
        return self.log
