"""Runs with shipped results: random small ones, parts on a machine of every preset, and sublayers."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from t3sim.config.experiment import ArbitrationSpec, GemmShape, OperatorKind, RunSpec, WorkloadSpec
from t3sim.selfcheck.data_cases import TILINGS, DataCase, loaded, machine_from, random_case
from t3sim.selfcheck.preset_cases import digests_of, machine_presets, run_and_digest
from t3sim.system.simulate import simulate

N_RANDOM = 14
H200 = (  # an eighth of its units, and a link to match
    "{preset: h200, gpu: {n_compute_units: 16, l2: {capacity: 3840 KiB, n_banks: 8}, collective_kernel: {channels: 4}},"
    " memory: {n_channels: 4}, link: {bandwidth: 40 GB/s}}"
)
CROWDED = "{preset: t3-tiny, memory: {n_channels: 1}, link: {bandwidth: 40 GB/s}}"  # the memory is its bottleneck
SHAPE = GemmShape(m=1024, n=512, k=128)
TP = 4
MCA = ArbitrationSpec(policy="mca", params={"threshold": 5})
FEW_UNITS = {"communication_units": 4}
OF_H200: Mapping[OperatorKind, Mapping[str, Mapping[str, int]]] = {  # strategies and their parameters
    "gemm-rs": {
        "sequential": {},
        "async-tp": {},
        "te-p2p-rs": {},
        "te-pipelined-rs": FEW_UNITS,
        "wave-groups": FEW_UNITS,
        "sm-specialised": FEW_UNITS,
        "flux-push": {},
        "flux-pull": {},
        "copy-engine-scatter": {},
    },
    "gemm-ar": {"distfuse": FEW_UNITS},
    "ag-gemm": {"flux-ag": {}, "async-tp-ag": {}, "te-ring-ag": {}},
}
OF_CROWDED: Mapping[str, tuple[Mapping[str, int], ArbitrationSpec | None]] = {
    "t3": ({}, None),
    "t3-mca": ({}, MCA),
    "cu-split": ({"communication_units": 2}, None),
}


def sublayers() -> Iterator[tuple[str, RunSpec]]:
    """Yield a sublayer under each strategy that simulates programs of its own, with its name."""
    for operator, of_strategy in OF_H200.items():
        for strategy, params in of_strategy.items():
            yield f"{strategy} on a small h200", sublayer(H200, strategy, params, operator)
    for strategy, (params, policy) in OF_CROWDED.items():
        yield f"{strategy} on a crowded t3-tiny", sublayer(CROWDED, strategy, params, arbitration=policy)


def sublayer(
    machine: str,
    strategy: str,
    params: Mapping[str, int],
    operator: OperatorKind = "gemm-rs",
    arbitration: ArbitrationSpec | None = None,
) -> RunSpec:
    """Return the GEMM of these sublayers with its collective, under *strategy*."""
    return RunSpec(
        experiment="known results",
        machine=machine_from(machine),
        workload=WorkloadSpec(gemm=SHAPE, tp=TP, operator=operator, tiling=TILINGS[0]),
        strategy=strategy,
        strategy_params=dict(params),
        arbitration=arbitration,
    )


def sublayer_digest(run: RunSpec) -> str:
    """Return the time of *run*, and a digest of the counters and times of its phases."""
    result = simulate(run)
    phases = [
        (phase.name, phase.at, phase.end, phase.sent, {**phase.counters, "workgroup_spread": None})
        for phase in result.phases
    ]
    return f"{result.total} ticks, {hashlib.sha256(json.dumps(phases, allow_nan=False).encode()).hexdigest()[:16]}"


def known_runs() -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the name of each run, and what runs it and returns the digest of its results."""
    for case in map(random_case, range(N_RANDOM)):
        yield str(case), partial(random_digest, case)
    for preset in machine_presets():
        yield f"parts of sublayers on a small {preset}", partial(preset_digest, preset)
    for name, run in sublayers():
        yield name, partial(sublayer_digest, run)


def random_digest(case: DataCase) -> str:
    """Return the digest of a random case."""
    return run_and_digest(loaded(case))


def preset_digest(preset: str) -> str:
    """Return the digests of the parts on a small machine of *preset*."""
    return " ".join(digests_of(preset))
