#!/usr/bin/env bash
# SimPy 4.1.1: waiting for "an item or a timeout" loses an item.
# Expected: after `yield store.get() | env.timeout(1)` ended by the timeout, an item that is put later goes to the next
#   process that asks for one.
# Observed: the request that lost the race stays in the queue of the store. It takes the next item ("first"), which then
#   belongs to an event that nobody waits for. The reader gets the second item, and the store is empty.
# Way out: `get.cancel()` if the request has not been triggered.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet simpy==4.1.1
"$folder/venv/bin/python" - <<'PYTHON'
import simpy

env = simpy.Environment()
store = simpy.Store(env)
received = []


def reader():
    yield store.get() | env.timeout(1)  # nothing is there: the timeout ends this
    received.append((yield store.get()))


def writer():
    yield env.timeout(2)
    yield store.put("first")
    yield env.timeout(2)
    yield store.put("second")


env.process(reader())
env.process(writer())
env.run()
print(f"put: first, second; received: {', '.join(received)}; left in the store: {len(store.items)}")
assert received == ["second"] and not store.items
PYTHON
