"""Causes of endless waits in symbolic execution: missing posts, or circular waits."""

from t3sim.program.verify.follow import Following
from t3sim.program.verify.ledger import Number, waits_of
from t3sim.program.verify.threads import Blocked


def note_missing_posts(following: Following) -> None:
    """Note waits for more than is ever posted."""
    ledger, words = following.ledger, following.words
    for r, program in enumerate(following.programs):
        for i, operation in enumerate(program.operations):
            for signal, at_least, at in sorted(set(waits_of(operation, following.ranks))):
                most = ledger.most(ledger.at(r, at), signal)
                if at_least > most:
                    message = f"{words.operation((r, i))} {words.waits(signal, at_least, at)}"
                    following.findings.add("waits", f"{message}, but only {most} {'is' if most == 1 else 'are'} posted")


def note_circle(following: Following) -> None:
    """Note which operations wait for each other."""
    for thread in following.running:
        if thread.blocked is None or not thread.blocked.what:
            continue
        path, texts = [thread.number], [thread.blocked.what]
        while (after := waited_for(following, path[-1])) is not None:
            again = " again" if after in path else ""
            texts.append(f"which needs {following.words.operation(after)}{again}")
            if again:
                break
            path.append(after)
        following.findings.add("waits", ", ".join(texts))
        return


def waited_for(following: Following, number: Number) -> Number | None:
    """Return an operation that has not ended and that *number* waits for; None if unknown."""
    r, i = number
    program = following.programs[r]
    stream = program.streams()[program.operations[i].stream]
    first = next(k for k in stream if (r, k) not in following.ended)
    if first != i:
        return r, first
    of_stream = [t for t in following.running if t.number[0] == r and t.number[1] in stream and t.parent is None]
    of_operation = [t for t in following.running if t.number == number and t.parent is not None]
    for thread in of_operation + of_stream:
        found = None if thread.blocked is None else poster(following, thread.blocked)
        if found is not None:
            return found
    return None


def poster(following: Following, blocked: Blocked) -> Number | None:
    """Return an operation that has not ended and could end this wait."""
    key = blocked.key
    assert isinstance(key, tuple)
    candidates: list[Number] = []
    if key[0] == "signal":
        candidates = sorted(following.ledger.posters[key[1]].get(key[2], ()))
    elif key[0] == "barrier":
        absent = [r for r in range(len(following.programs)) if r not in following.arrived[key]]
        for r in absent:
            operations = following.programs[r].operations
            candidates += [(r, i) for i, operation in enumerate(operations) if operation.name == key[1]]
    return next((number for number in candidates if number not in following.ended), None)
