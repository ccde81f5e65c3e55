"""Rows about routed experts: the layer that they are of, and the strategy that represents the kernel of a library."""

from __future__ import annotations

from typing import Any

from t3lab.measurements.samples import Measurement
from t3lab.validation.bench import Bench
from t3lab.validation.kinds.hosts import check_hosts
from t3lab.validation.kinds.operators import given_parameters
from t3lab.validation.point import NotSimulatedError
from t3sim.config.experiment import Kernels
from t3sim.config.experts import ExpertsSpec, experts_spec, routing_called
from t3sim.config.machine import MachineSpec
from t3sim.config.presets import load_kernels
from t3sim.registry import unknown_name
from t3sim.strategies import in_order, overlap_strategies
from t3sim.workload.kernel_choice import fitting_kernels

Params = tuple[tuple[str, int | str], ...]
# Kernels of libraries, and the strategy that has their form.
STRATEGIES = {
    "deepep_normal": "moe-sequential",
    "deepep_high_throughput": "moe-sequential",
    "deepep_low_latency": "moe-low-latency",
    "one_sided": "moe-low-latency",
    "mori_low_latency": "moe-low-latency",
    "triton_distributed": "moe-sequential",
    "split_two_kernels": "moe-sequential",
    "mega_moe": "moe-fused",
    "fused_one_kernel": "moe-fused",
    "fused_expert_waves": "moe-fused",
    "fused_lag_ordered": "moe-fused",
}
# DeepEP's tests time a dispatch whose layout is that of an earlier one (tests/test_intranode.py, its cached handle).
# TensorRT-LLM's one-sided kernels send a token once to a GPU.
PARAMETERS: dict[str, Params] = {"deepep_normal": (("layout", "cached"),), "one_sided": (("row_for", "gpu"),)}
# Libraries of the grouped GEMMs between kernels of other libraries, for machines that have its tiles.
LIBRARIES = {"deepep_high_throughput": "deepgemm-hopper"}
UNITS = "communication_units"  # the parameter of a strategy for the SMs of dispatch and combine


def experts_of_row(row: Measurement, machine: MachineSpec, **more: Any) -> ExpertsSpec:
    """Return the layer that *row* is of; raises ``ValueError`` if there is no such one, or not on *machine*."""
    check_hosts(row, machine)
    gpus = int(row["gpus"])
    groups = {name: int(row[name]) for name in ("groups", "top_groups") if row.values.get(name)}
    return experts_spec(
        n_experts=int(row["experts"]), top_k=int(row["top_k"]), hidden=int(row["hidden"]), ep=gpus,
        tokens_per_gpu=int(row["tokens_per_gpu"]), routing=routing_called(str(row["routing"])), **groups, **more,
    )  # fmt: skip


def kernels_of_layer(row: Measurement, bench: Bench) -> Kernels:
    """Return the kernels of the grouped GEMMs of *row*: those that go with its library, or those of the machine."""
    name = LIBRARIES.get(str(row["kernel"]))
    return bench.kernels if name is None else fitting_kernels(load_kernels(name), bench.machine)


def strategy_of_row(row: Measurement, machine: MachineSpec) -> tuple[str, Params]:
    """Return the strategy that has the form of the kernel of *row*, and its parameters that the row states."""
    kernel = str(row["kernel"])
    name = STRATEGIES.get(kernel, kernel)
    known = [entry.name for entry in in_order() if "moe" in entry.operators]
    if name not in known:
        raise NotSimulatedError(unknown_name("kernel", kernel, [*known, *STRATEGIES]))
    entry = overlap_strategies.get(name)
    params = (*PARAMETERS.get(kernel, ()), *given_parameters(str(row.values.get("parameters", ""))))
    sms = int(row.values.get("sms", 0))
    if sms and UNITS in entry.parameters:
        params = (*params, (UNITS, min(sms, machine.gpu.n_compute_units)))
    entry.encode(dict(params))
    return name, params
