"""Result row of one point: its phases, and the mapping of their counters to columns."""

from t3sim.collective.ranks import Ranks
from t3sim.config.experiment import WorkloadSpec
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.results.record import RunRecord
from t3sim.strategies import Phase
from t3sim.system.simulate import SimulationResult, summed

EXCHANGES = ("all_reduce", "all_to_all", "send_receive", "broadcast")  # roles of collectives of one kernel


def record_of(result: SimulationResult) -> RunRecord:
    """Return the result row of one point (comparisons with other points are left to ``derive``)."""
    run, us = result.run, result.ticks.to_us
    workload, layer = run.workload, run.workload.layer
    m, n, k = _shape_of(workload)
    reserved = run.strategy_params.get("communication_units") or None
    gemm_phase, fused, split = result.phase("gemm"), result.phase("fused"), result.phase("split")
    reduce_scatter, all_gather = result.phase("reduce_scatter"), result.phase("all_gather")
    exchange = summed([result.phase(role) for role in EXCHANGES])
    together = fused or split
    # The kernels of a layer of experts that is not fused, one after the other.
    stages = summed(result.phases) if workload.operator == "moe" and together is None else None
    policy = run.arbitration.policy if run.arbitration is not None and together is not None else None
    producer = together or stages or gemm_phase
    if together is not None:  # some GEMMs of a layer of generation have nothing to overlap with
        plain = [one.by_role.get("gemm") for one in result.sublayers if not {"fused", "split"} & one.by_role.keys()]
        producer = summed([*plain, together])
    alone = [gemm_phase, reduce_scatter] if together is None and stages is None else [producer]
    gathers = [all_gather, exchange] if split is None else []  # else it is part of the split run
    phases = [phase for phase in (*alone, *gathers) if phase is not None]

    def total(counter: str, *parts: Phase | None) -> int:
        return sum(int(part.counters[counter]) for part in parts if part is not None)

    def time_of(phase: Phase | None) -> float | None:
        return None if phase is None else us(phase.ticks)

    # A collective of compute units bypasses the L2: what it reads and writes alone is what it does in a split run.
    # The one in a fused run is the reduce-scatter of the output, or the all-gather of A; in a layer of experts it is
    # all other movements of data.  Collectives of one kernel that are neither count as a reduce-scatter.
    is_gathered = workload.operator == "ag-gemm"
    scatter = fused if fused is not None and not is_gathered else stages or summed([reduce_scatter, exchange])
    gather = fused if fused is not None and is_gathered else all_gather
    counters = producer.counters if producer is not None else {}
    accesses = counters.get("l2_accesses", 0)
    n_gpus = workload.collective.gpus if workload.collective is not None else workload.tp
    has_nodes = Ranks.of(n_gpus, run.machine.link.gpus_per_node).n_nodes > 1
    return RunRecord(
        model=workload.model, sublayer=sublayer_name(workload), layer=layer.kind if layer else None,
        tp=n_gpus,
        m=m, n=n, k=k,
        machine=run.machine.name, strategy=run.strategy, arbitration=policy,
        mca_threshold=_threshold_text(policy, together), mode=run.mode,
        gemm_compute_units=run.machine.gpu.n_compute_units - reserved if reserved and stages is None else None,
        communication_units=reserved,
        time_us=us(result.total),
        operator_us=us(result.operator) if result.operator is not None else None,
        gemm_us=time_of(gemm_phase), rs_us=time_of(reduce_scatter), ag_us=time_of(all_gather), fused_us=time_of(fused),
        others_us=us(result.others) if result.others is not None else None,
        tokens_per_s=layer.model.tokens * 1e6 / us(result.total) if layer and layer.kind == "generation" else None,
        dram_gemm_read_bytes=total("operand_read_bytes", producer) if producer else None,
        dram_gemm_write_bytes=total("output_write_bytes", producer) if producer else None,
        dram_rs_read_bytes=total("comm_read_bytes", scatter), dram_rs_write_bytes=total("comm_write_bytes", scatter),
        dram_ag_read_bytes=total("comm_read_bytes", gather), dram_ag_write_bytes=total("comm_write_bytes", gather),
        link_bytes=total("link_bytes", *phases),
        nic_bytes=total("nic_bytes", *phases) if has_nodes else None,
        l2_hit_rate=counters["l2_hits"] / accesses if accesses else None,
        tracker_peak_entries=total("tracker_peak_entries", fused), tracker_stalls=total("tracker_stalls", fused),
        dma_commands=total("dma_commands", fused), mem_requests=total("mem_requests", *phases),
        workgroup_spread=gemm_phase.counters["workgroup_spread"] if gemm_phase else None,
        workgroup_spread_fused=together.counters["workgroup_spread"] if together else None,
        wall_s=result.wall_s,
    )  # fmt: skip


def _shape_of(workload: WorkloadSpec) -> tuple[int | None, int | None, int | None]:
    """Return the columns ``m``, ``n`` and ``k``: of a layer tokens and hidden size, of experts the width too."""
    gemm, layer, experts = workload.gemm, workload.layer, workload.experts
    if gemm is not None:
        return gemm.m, gemm.n, gemm.k
    if layer is not None:
        return layer.model.tokens, layer.model.hidden, None
    if experts is not None:
        return experts.tokens_per_gpu * experts.gpus, experts.hidden, experts.local_intermediate
    return None, None, None


def sublayer_name(workload: WorkloadSpec) -> str | None:
    """Return how results call a sublayer: AG if its A is gathered, AR or A2A if an all-reduce or all-to-all follows."""
    if workload.operator in ("gemm-rs", "moe"):
        return workload.sublayer
    operator = {"ag-gemm": "AG", "gemm-a2a": "A2A"}.get(workload.operator, "AR")
    return operator if workload.sublayer is None else f"{operator} {workload.sublayer}"


def _threshold_text(policy: str | None, together: Phase | None) -> str | None:
    """Return the threshold in force as text: a number, or ``none`` for no limit; None if *policy* shows none."""
    if policy is None or arbitration_policies.get(policy).threshold is None:
        return None
    if together is None or "mca_threshold" not in together.counters:  # sublayers of a layer that differ in it
        return None
    threshold = together.counters["mca_threshold"]
    return "none" if threshold is None else str(threshold)
