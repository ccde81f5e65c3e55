"""Which GPUs a program reaches, and that only network interfaces reach those of other nodes."""

from collections.abc import Iterator

import numpy as np

from t3sim.errors import UsageError
from t3sim.program.operations import NIC, Barrier, Gemm, Moves, Operation, Program


def reached_by(program: Program) -> set[int]:
    """Return the distances of all GPUs that *program* stores at, tells or loads from, and that answer its loads."""
    found: set[int] = set()
    for operation in program.operations:
        loaded = _loaded(operation, program.ranks.per_node)
        answering = {int(program.ranks.back(distance)) for distance in loaded}
        found |= {*_told(operation, program.n), *_stored(operation, program), *loaded, *answering}
    return found - {0}


def refuse_beyond_node(program: Program) -> None:
    """Raise ``UsageError`` if something else than a network interface stores at, or loads from, another node."""
    ranks = program.ranks
    for operation in program.operations if ranks.n_nodes > 1 else ():
        if isinstance(operation, Moves) and operation.engine is not None and operation.engine >= NIC:
            continue
        if any(distance >= ranks.per_node for distance in _stored(operation, program)) or _loads_wrap(
            operation, ranks.per_node
        ):
            where = f"the {ranks.per_node} GPUs of their own node"
            raise UsageError(
                f"machine.link.gpus_per_node: operation `{operation.name}`: compute units and engines reach {where};"
                " what goes to other nodes is sent by a network interface, from memory"
            )


def _told(operation: Operation, n: int) -> set[int]:
    """Return the distances of the GPUs that *operation* posts to when it ends."""
    return set(range(n)) if isinstance(operation, Barrier) else {post.distance % n for post in operation.posts}


def _stored(operation: Operation, program: Program) -> set[int]:
    """Return the distances of the GPUs that *operation* stores at."""
    n = program.n
    if isinstance(operation, Gemm):
        return {*np.unique(operation.stores.distance % n).tolist(), *(one.distance % n for one in operation.forwards)}
    if not isinstance(operation, Moves):
        return set()
    sent = operation.steps[operation.steps["send"] >= 0]
    to_one = np.unique(sent["distance"][sent["is_multicast"] == 0] % n).tolist()
    return {*to_one, *(range(program.ranks.per_node) if (sent["is_multicast"] > 0).any() else ())}


def _loaded(operation: Operation, per_node: int) -> set[int]:
    """Return the distances of the GPUs whose memory *operation* reads."""
    return {distance % per_node for distance in _sources(operation)} - {0}


def _sources(operation: Operation) -> Iterator[int]:
    """Yield the distances of the GPUs that operands of *operation* lie on, not yet wrapped around."""
    if not isinstance(operation, Moves):
        return
    steps = operation.steps[operation.steps["is_reduced"] == 0]
    for j in range(int(steps["n_operands"].max(initial=0))):
        have = steps[steps["n_operands"] > j]
        yield from np.unique(have["source"] + j * have["source_stride"]).tolist()


def _loads_wrap(operation: Operation, per_node: int) -> bool:
    """Return whether a step of *operation* has operands on GPUs of another node, or more of them than the node has."""
    if not isinstance(operation, Moves):
        return False
    steps = operation.steps[operation.steps["is_reduced"] == 0]
    is_several = (steps["source_stride"] != 0) & (steps["n_operands"] > per_node)
    return bool((is_several | (steps["source"] >= per_node)).any())
