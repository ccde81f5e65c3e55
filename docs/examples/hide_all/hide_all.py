"""A user's own overlap strategy: a limit in which the all-gather is hidden behind the GEMM as well."""

from t3sim.plugins import Plan, all_gather_part, gemm_part, in_order, longest, reduce_scatter_part, strategy


@strategy("hide-all", kind="estimate")
def hide_all(op, _params):
    """The longer of the GEMM and the whole all-reduce with near-memory updates; a limit, not a design."""
    all_reduce = in_order(reduce_scatter_part(op, has_near_memory=True), all_gather_part(op))
    return Plan(longest(gemm_part(op), all_reduce))
