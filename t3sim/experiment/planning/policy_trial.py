"""Test of a user's arbitration policy before the simulation, in the interpreter, which checks bounds.

Compiled code checks none: a policy that writes outside its scratch space would change the simulated machine, or end the
process.  So a separate process calls the policy, interpreted, with channels in many states, and compares each channel
before and after.  The states are drawn at random: a policy that misbehaves in a rare one may pass.

``python -m t3sim.experiment.planning.policy_trial`` is that process: it reads from stdin what to try, and writes what
it found.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from functools import cache
from typing import Any

import numpy as np

from t3sim.config.experiment import RunSpec
from t3sim.errors import PluginError, frames_of, home_of, is_of_a_user
from t3sim.experiment.planning.plugins import load_plugins
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.arbitration.user_code import is_policy_of_a_user
from t3sim.gpu.traffic import classes_in_words
from t3sim.gpu.units import codes
from t3sim.gpu.units.dram.memory_controller import head_is_ready
from t3sim.gpu.units.state import Layout, empty_gpu
from t3sim.system.user_code import PATIENCE_S

N_SEQUENCES, CALLS_PER_SEQUENCE = 100, 20  # of states that follow one another, as the policy's scratch does
MORE_WITH_CHECKS = 10
LONGEST_STEP = 200  # cycles between two calls


@dataclass(frozen=True)
class Trial:
    """What to try: a policy with its parameters on channels of one kind."""

    plugins: tuple[str, ...]
    policy: str
    values: tuple[int, ...]  # of its parameters
    queue_entries: int
    is_split: bool
    stream_entries: int
    n_sequences: int
    limit_s: float
    n_classes: int = 2  # of traffic; T3's


def try_policies(points: Iterable[RunSpec], *, has_checks: bool) -> None:
    """Try each policy of a user that *points* may run; raises ``PluginError`` for the first that misbehaves."""
    for trial in dict.fromkeys(trial for run in points for trial in trials_of(run, has_checks=has_checks)):
        found = outcome_of(trial)
        if found is not None:
            raise PluginError(*found)


def trials_of(run: RunSpec, *, has_checks: bool) -> Iterable[Trial]:
    """Yield the trials of a point, which has loaded its plugins: it may run any policy that they register."""
    memory = run.machine.memory
    for name in arbitration_policies if run.plugins else ():
        policy, given = arbitration_policies.get(name), run.arbitration
        if is_policy_of_a_user(policy.pick_stream):
            values = policy.encode(given.params if given is not None and given.policy == name else {})
            queue = (memory.queue.entries, memory.queue.kind == "split", memory.stream_queue_entries)
            n_sequences = N_SEQUENCES * (MORE_WITH_CHECKS if has_checks else 1)
            yield Trial(run.plugins, name, tuple(values), *queue, n_sequences, PATIENCE_S)


@cache
def outcome_of(trial: Trial) -> tuple[str, int, str] | None:
    """Return where a policy misbehaved and how; None if it did not.  Runs the trial in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "t3sim.experiment.planning.policy_trial"],
        input=json.dumps(astuple(trial), allow_nan=False),
        env={**os.environ, "T3SIM_INTERPRETED": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 0:
        found = json.loads(done.stdout.splitlines()[-1])
        return None if found is None else (str(found[0]), int(found[1]), str(found[2]))
    home = home_of(arbitration_policies.get(trial.policy).pick_stream)
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return (*home, f"policy `{trial.policy}` ends its process with {how} when it is tried")


class Channel:
    """One channel in states that follow one another at random."""

    def __init__(self, trial: Trial, rng: np.random.Generator) -> None:
        ring = 1 << (trial.stream_entries - 1).bit_length()
        sizes = {"queue_entries": trial.queue_entries, "stream_queue_entries": ring, "n_classes": trial.n_classes}
        self.state = empty_gpu(Layout(*(1 for _ in Layout._fields))._replace(**sizes))
        self.record = self.state[0].channels[0]
        self.trial, self.rng, self.now = trial, rng, 0
        self.record.queue_capacity, self.record.is_split = trial.queue_entries, trial.is_split
        self.record.stream_capacity, self.record.n_classes = trial.stream_entries, trial.n_classes
        self.record.policy_params[: len(trial.values)] = trial.values
        self.record.queue_head[:] = self.record.queue_tail[:] = rng.integers(0, 1 << 20, trial.n_classes)

    def move_on(self) -> bool:
        """Draw the next state; return whether the policy would be called in it."""
        record, rng, trial = self.record, self.rng, self.trial
        self.now += int(rng.integers(1, LONGEST_STEP))
        record.now = self.now
        most = trial.queue_entries
        reads = int(rng.integers(0, most + 1))
        record.occupancy[:] = reads, int(rng.integers(0, (most if trial.is_split else most - reads) + 1))
        for stream in range(trial.n_classes):
            record.queue_head[stream] += int(rng.integers(0, 3))
            length = int(rng.integers(0, trial.stream_entries + 1)) if rng.random() < 0.8 else 0
            record.queue_tail[stream] = max(int(record.queue_tail[stream]), int(record.queue_head[stream]))
            if record.queue_tail[stream] - record.queue_head[stream] < length:
                record.queue_tail[stream] = record.queue_head[stream] + length
        requests = record.requests.view(np.ndarray)
        requests["at"] = self.now - rng.integers(-LONGEST_STEP // 4, 10 * LONGEST_STEP, requests.shape)
        requests["place"] = rng.choice([codes.OPERAND_READ, codes.WRITE_BIT], requests.shape)
        record.stalled = sum(1 << stream for stream in range(trial.n_classes) if rng.random() < 0.1)
        record.last_stream = int(rng.integers(trial.n_classes))
        record.last_served_at[:] = rng.integers(self.now + 1, size=trial.n_classes)
        record.last_comm_at = max(record.last_served_at[codes.COMM :], default=0)
        record.producer_done = int(rng.integers(2))
        record.first_stage_occupancy = int(rng.integers(-1, 100 * most + 1))
        record.first_stage_length, record.lead = int(rng.integers(300)), int(rng.integers(-200, 300))
        return any(head_is_ready(record, stream, self.now) for stream in range(trial.n_classes))


def found_in(trial: Trial) -> tuple[str, int, str] | None:
    """Try a policy in this process, which is to be interpreted; return where it misbehaves and how."""
    load_plugins(trial.plugins)
    if trial.policy not in arbitration_policies:
        return None
    pick_stream = arbitration_policies.get(trial.policy).pick_stream
    home, name = home_of(pick_stream), f"policy `{trial.policy}`"
    rng = np.random.default_rng(0)
    try:
        with np.errstate(divide="raise", invalid="raise"):  # compiled code raises too
            for _ in range(trial.n_sequences):
                channel = Channel(trial, rng)
                for _ in range(CALLS_PER_SEQUENCE):
                    problem = problem_of_call(pick_stream, channel) if channel.move_on() else None
                    if problem is not None:
                        return (*home, f"{name} {problem}")
    except Exception as error:  # noqa: BLE001 - whatever a user's code raises is the finding
        path, line, text = PluginError.of(error, name, home).args
        function = next((f" (in `{f.name}`)" for f in reversed(frames_of(error)) if is_of_a_user(f.filename)), "")
        return path, line, text + function
    return None


def problem_of_call(pick_stream: Any, channel: Channel) -> str | None:
    """Call the policy once; return what is wrong with what it did or returned."""
    before = channel.record.copy()
    picked = pick_stream(channel.record, channel.now)
    fields = [name for name in before.dtype.names if name != "policy_scratch"]
    changed = [name for name in fields if not np.array_equal(before[name], channel.record[name])]
    if changed:
        return f"writes `{'`, `'.join(changed)}` of its channel; it may write only `policy_scratch`"
    if isinstance(picked, bool) or not isinstance(picked, (int, np.integer)):
        return f"returned {picked!r}, not COMPUTE, COMM or NO_STREAM"
    n_classes = channel.trial.n_classes
    is_stream = 0 <= picked < n_classes
    if picked != codes.NO_STREAM and not (is_stream and head_is_ready(channel.record, int(picked), channel.now)):
        allowed = classes_in_words(n_classes)
        return f"picked {picked}, which is not ready; it must return {allowed} with a ready head, or NO_STREAM"
    return None


def main() -> None:
    """Try what stdin asks for; write what was found, as JSON, in the last line of stdout."""
    trial = Trial(*json.load(sys.stdin))

    def give_up(*_signal_and_frame: object) -> None:
        """Raise inside the policy, so that the traceback names its line."""
        raise TimeoutError(f"it has not come back for {trial.limit_s:g} s")

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, trial.limit_s)
    sys.stdout.write(f"\n{json.dumps(found_in(trial), allow_nan=False)}\n")


if __name__ == "__main__":
    main()
