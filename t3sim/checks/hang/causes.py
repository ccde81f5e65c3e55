"""The graph of a machine that hangs, made of what its units declare, and why each of them waits."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import filterfalse

from t3sim.checks.hang.progress import is_in_reach, moments, rotation_ticks
from t3sim.checks.hang.wait_graph import WaitGraph
from t3sim.gpu.in_flight import HungGpu, counted
from t3sim.gpu.kernel import codes
from t3sim.gpu.wait_edges import NOTHING, all_waits, senders, work_left

Waits = Iterator[tuple[str, str, str]]  # part, what it waits for or NOTHING, why


def graph_of(gpus: Sequence[HungGpu]) -> WaitGraph:
    """Return who waits for whom in all of *gpus*; its roots are ``NAME.kernel``."""
    graph = WaitGraph()
    by_name = {gpu.name: gpu for gpu in gpus}
    for gpu in gpus:
        gpu.all_gpus = [by_name[name] for name in gpu.others] or [gpu]
    for gpu in gpus:
        sources = [*all_waits(gpu), *accounts_not_settled(gpu), *moments_out_of_reach(gpu)]
        upstream = {link: by_name[name] for link, name in gpu.links.items() if name in by_name}
        sources += [*ready_heads(gpu, sources), *link_waits(gpu, upstream)]
        for part, on, why in [*sources, *kernel_waits(gpu, sources)]:
            if on == NOTHING:
                graph.fault(instance(gpu, part), why)
            else:
                graph.wait(instance(gpu, part), instance(gpu, on), why)
    return graph


def instance(gpu: HungGpu, part: str) -> str:
    """Return the instance name of a part of *gpu*, or of another part that has one already."""
    return part if part in gpu.links or part.startswith("gpu[") else f"{gpu.name}.{part}"


def accounts_not_settled(gpu: HungGpu) -> Waits:
    """A unit waits for the places of what it counts; it is at fault if it counts more than there is."""
    under_way = gpu.under_way()
    for part, n, what, nowhere, details in gpu.accounts():
        places = under_way[part, what] if n > 0 else Counter()
        yield from ((part, place, f"{counted(k, what)}{details}") for place, k in places.items() if k)
        lost = n - sum(places.values())
        if lost > 0:
            yield part, NOTHING, f"counts {counted(lost, what)}{details}, but {nowhere}"


def moments_out_of_reach(gpu: HungGpu) -> Waits:
    """A unit is at fault if it waits for a moment farther ahead than this machine plans."""
    for part, at, what in filterfalse(partial(is_in_reach, gpu.core), moments(gpu.core)):
        if gpu.gpu.is_busy:
            when = "which never comes" if at >= codes.NEVER else f"at tick {at:,}, farther than this machine plans"
            yield part, NOTHING, f"waits for {what}, {when}"


def ready_heads(gpu: HungGpu, waits: Sequence[tuple[str, str, str]]) -> Waits:
    """An arbiter is at fault if its policy does not serve a head that could enter the DRAM queue."""
    period = int(gpu.gpu.memory_ticks)
    for part, on, _ in waits:
        if on.endswith(".arbiter"):
            head = next(q for q in gpu.queued if q.part == part)
            waited, word = gpu.core.now // period - head.at, gpu.core.traffic.names[head.traffic_class]
            if waited * period > rotation_ticks(gpu.core):
                yield on, NOTHING, f"the policy has not served a ready {word} request for {waited:,} memory cycles"


def link_waits(gpu: HungGpu, upstream: Mapping[str, HungGpu]) -> Waits:
    """The wires that lead to *gpu*: have they lost something, or have the senders something left?"""
    unfetched = sum(gpu.tables.loads.values()) - int(gpu.gpu.n_fetched)  # what it still has to get by its own loads
    missing = int(gpu.gpu.expected_inbound - gpu.gpu.n_inbound) - unfetched
    lost = gpu.n_delivered - int(gpu.gpu.n_inbound) - len(gpu.inbox)
    for link in gpu.links if lost > 0 else ():
        yield link, NOTHING, f"{counted(lost, 'granule')} it delivered never reached the inbox of {gpu.name}"
    if not upstream or missing <= 0:
        return
    left = {link: list(senders(sender)) for link, sender in upstream.items()}
    for link, sender in upstream.items():
        yield from ((link, instance(sender, part), why) for part, why in left[link])
        if not any(left.values()) and not len(gpu.inbox):
            expects = f"{gpu.name} expects {counted(missing, 'more granule')}"
            yield link, NOTHING, f"{expects}, but its neighbour has nothing left to send"


def kernel_waits(gpu: HungGpu, waits: Sequence[tuple[str, str, str]]) -> Waits:
    """The end of the running kernel waits for every part that waits, of those in which it has something left."""
    requests = Counter(q.part for q in gpu.queued)
    left = work_left(gpu)
    for part in dict.fromkeys(part for part, _, _ in waits):
        why = left.get(re.sub(r"\d+", "", part))
        if why and part in requests:
            yield "kernel", part, f"{counted(requests[part], 'request')} {why}"
        elif why and not part.endswith(gpu.core.traffic.queues):
            yield "kernel", part, why
