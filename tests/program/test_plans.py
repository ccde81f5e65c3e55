"""What the strategies of t3sim plan, and that their programs compute what they have to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from t3sim.config.experiment import GemmShape
from t3sim.errors import UsageError
from t3sim.program.contents import Tiles
from t3sim.program.operations import STORE, Gemm, Moves
from t3sim.program.operator import Operator
from t3sim.program.parts import collective_plan
from t3sim.program.plan import Bound, Part, Tree
from t3sim.program.verify import check_plan
from t3sim.registry import encoded
from t3sim.strategies import overlap_strategies
from t3sim.strategies.copy_engine_scatter import copy_engine_scatter
from t3sim.strategies.flux import PARAMETERS, flux_push
from t3sim.strategies.sequential import sequential
from t3sim.strategies.t3 import t3
from tests.harness.machines import machine
from tests.program import strategies
from tests.program.strategies import operator_of, with_engines, with_multicast

FLUX = encoded(PARAMETERS, {})
SCATTER = {"chunks": 1, "order": 0, "engines": 1, "local_rows": 0}
# That need equal shares, of rows or of tiles.
PICKY = ("flux", "copy-engine", "async", "te-", "wave", "distfuse", "sm-", "t3-direct", "t3-nvls", "multimem", "ace")
WHOLE = ("distfuse", "t3-nvls", "multimem-ar")  # that leave all of the output at every GPU, if it is asked for
VARIANTS = {
    "sequential": {"": {"all_reduce": 0, "collectives": 0}},
    "cu-split": {"": {"communication_units": 2}},
    "isolated-cu-split": {"": {"communication_units": 2}},
    "flux-push": {"": FLUX, ", naive": FLUX | {"order": 1}},
    "copy-engine-scatter": {
        "": SCATTER,
        ", 2 chunks": SCATTER | {"chunks": 2},
        ", 2 engines": {"chunks": 2, "order": 1, "engines": 2, "local_rows": 0},
        ", local rows copied": SCATTER | {"local_rows": 1},
    },
    "async-tp": {"": {"host": 0}},
    "te-p2p-rs": {"": {"streams": 3, "host": 0}},
    "te-pipelined-rs": {"": {"splits": 2, "communication_units": 1}},
    "wave-groups": {"": {"waves": 1, "communication_units": 1}},
    "flux-pull": {"": {"communication_units": 0}},
    "distfuse": {f", {n} shots": {"shots": n, "communication_units": 1} for n in (1, 2)},
    "sm-specialised": {"": {"chunks": 0, "communication_units": 1}},
    "t3-direct": {"": {"all_gather": 0, "blocks_in_flight": 2}},
    "t3-nvls": {"": {"blocks_in_flight": 2}},
    "multimem-rs": {"": {"communication_units": 0}, ", 1 unit": {"communication_units": 1}},
    "multimem-ar": {"": {"communication_units": 0}},
    "ace": {"": {"splits": 1}, ", 2 splits": {"splits": 2}},
}
PLANS = {
    name + variant: (overlap_strategies.get(name).plan, params)
    for name in overlap_strategies
    if {"gemm-rs", "gemm-ar"} & set(overlap_strategies.get(name).operators)
    for variant, params in VARIANTS.get(name, {"": {}}).items()
}


def operator(n: int) -> Operator:
    """Return an operator of GPUs behind a switch that adds up."""
    return replace(strategies.operator(n), machine=with_multicast(with_engines()))


def ragged(n: int) -> Operator:
    """26 workgroups, a column clipped: chunks of unlike shapes and numbers."""
    return operator_of(GemmShape(m=64 * 13, n=100, k=128), n)


def said(tree: Tree) -> object:
    """A tree in short."""
    if isinstance(tree, Part):
        return tree.name
    return (type(tree).__name__, *map(said, (tree.of,) if isinstance(tree, Bound) else tree.of))


def test_what_they_plan() -> None:
    op = operator(4)
    rest, near_memory = ("reduce-scatter", "all-gather"), "reduce-scatter, near memory"
    fused = ("InOrder", "fused", "all-gather")
    assert {name: said(plan(op, params).tree) for name, (plan, params) in PLANS.items()} == {
        "sequential": ("InOrder", "gemm", *rest),
        "ideal-overlap": ("InOrder", ("Bound", ("Longest", "gemm", rest[0])), rest[1]),
        "ideal-rs-nmc": ("InOrder", ("Bound", ("Longest", "gemm", near_memory)), rest[1]),
        "published-overlap": ("InOrder", ("Longest", "gemm", rest[0]), rest[1]),
        "published-rs-nmc": ("InOrder", ("Longest", "gemm", near_memory), rest[1]),
        "t3": fused,
        "t3-mca": fused,
        "cu-split": "GEMM and all-reduce, 2 compute units",
        "isolated-cu-split": (
            "Longest",
            "gemm, 2 compute units",
            ("InOrder", *(f"{part}, 2 compute units" for part in rest)),
        ),
        "flux-push": fused,
        "flux-push, naive": fused,
        "copy-engine-scatter": fused,
        "copy-engine-scatter, 2 chunks": fused,
        "copy-engine-scatter, 2 engines": fused,
        "copy-engine-scatter, local rows copied": fused,
        "async-tp": fused,
        "te-p2p-rs": fused,
        "te-pipelined-rs": fused,
        "wave-groups": fused,
        "flux-pull": fused,
        "distfuse, 1 shots": ("InOrder", "fused"),
        "distfuse, 2 shots": ("InOrder", "fused"),
        "sm-specialised": fused,
        "t3-direct": fused,
        "t3-nvls": fused,
        "multimem-rs": fused,
        "multimem-rs, 1 unit": fused,
        "multimem-ar": ("InOrder", "fused"),
        "ace": ("InOrder", "fused", "all-gather, engine"),
        "ace, 2 splits": ("InOrder", "fused", "all-gather, engine"),
    }
    assert said(sequential(operator(1), {}).tree) == ("InOrder", "gemm")


def test_isolated_parts_are_shared() -> None:
    op = operator(4)
    keys = [part.key for plan, params in PLANS.values() for part in plan(op, params).parts()]
    assert len(keys) == 88, "three each, four of cu-split, two of distfuse and multimem-ar"
    assert len(set(keys)) == 31, "GEMM, RS, RS near memory, AG, AG by an engine, three on some units, split, fused ones"


def test_what_runs_for_its_column_only() -> None:
    """What runs together is compared with: the GEMM alone, or each kernel alone on its compute units."""
    also = {name: [part.name for part in plan(operator(4), params).also] for name, (plan, params) in PLANS.items()}
    assert {name for name, parts in also.items() if parts == ["gemm"]} == {
        "t3", "t3-mca", "flux-push", "flux-push, naive", "copy-engine-scatter", "copy-engine-scatter, 2 chunks",
        "copy-engine-scatter, 2 engines", "copy-engine-scatter, local rows copied",
        "async-tp", "te-p2p-rs", "te-pipelined-rs", "wave-groups", "flux-pull",
        "distfuse, 1 shots", "distfuse, 2 shots", "sm-specialised", "t3-direct", "t3-nvls", "multimem-rs",
        "multimem-rs, 1 unit", "multimem-ar", "ace", "ace, 2 splits",
    }  # fmt: skip
    assert also["cu-split"] == [f"{part}, 2 compute units" for part in ("gemm", "reduce-scatter", "all-gather")]
    assert all(parts in ([], ["gemm"]) for name, parts in also.items() if name != "cu-split")


@pytest.mark.parametrize("name", PLANS)
def test_an_all_reduce_leaves_all_of_the_output_at_every_gpu(name: str) -> None:
    """Does an all-gather follow, or does what runs before it leave every tile, and not the own ones only?"""
    plan, params = PLANS[name]
    parts = plan(replace(operator(4), kind="gemm-ar"), params).parts()
    made = sum(len(one.workgroups) for one in parts[0].programs[0].outputs if isinstance(one, Tiles))
    is_whole = made == operator(4).tiles.n_workgroups
    if name.startswith("cu-split"):
        assert parts[0].role == "split", "of other data"
    else:
        assert is_whole == (name.startswith(WHOLE) or parts[0].role == "gemm")
        assert ("all_gather" in {part.role for part in parts}) == (not name.startswith(WHOLE))


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("preset", ["t3-tiny", "h200"])
def test_they_compute_what_they_have_to(name: str, n: int, preset: str) -> None:
    plan, params = PLANS[name]
    spec = with_multicast(with_engines()) if preset == "t3-tiny" else machine(preset)
    check_plan(plan(replace(operator(n), machine=spec), params))


@pytest.mark.parametrize("name", [name for name in PLANS if not name.startswith(PICKY)])
@pytest.mark.parametrize("n", [1, 3, 4, 8])
def test_so_they_do_with_chunks_of_unlike_shapes(name: str, n: int) -> None:
    plan, params = PLANS[name]
    for staggered in (True, False):
        check_plan(plan(replace(ragged(n), staggered=staggered), params))


@pytest.mark.parametrize(("strategy", "params"), [(flux_push, FLUX), (copy_engine_scatter, SCATTER)])
def test_owners_of_rows_share_tiles(strategy: Any, params: dict[str, int]) -> None:
    """832 rows are 834 with two of zeros: 278 for each of three GPUs, in tiles of 64."""
    check_plan(strategy(ragged(3).with_equal_rows(), params))
    with pytest.raises(UsageError, match="832 rows cannot be cut into 3 equal shares"):
        strategy(ragged(3), params)


def test_which_parts_need_every_gpu() -> None:
    op = operator(4)
    assert [part.difference is None for part in flux_push(op, FLUX).parts()] == [True] * 3
    assert [part.difference is None for part in flux_push(op, FLUX | {"order": 1}).parts()] == [False, True, True]


def test_which_parts_multiply_and_are_arbitrated() -> None:
    parts = {part.name: part for part in t3(operator(4), {}).parts()}
    spec = machine("h200")
    is_slower = {name: part.clocked(spec).gpu.compute_clock < spec.gpu.compute_clock for name, part in parts.items()}
    assert is_slower == {"fused": True, "all-gather": False, "gemm": True}
    assert {name for name, part in parts.items() if part.is_arbitrated} == {"fused"}


@pytest.mark.parametrize("op", ["reduce-scatter", "all-gather", "all-reduce"])
@pytest.mark.parametrize("preset", ["t3-150", "h200"])
@pytest.mark.parametrize("size", [1 << 13, (1 << 18) + 7, 1 << 22])
def test_collectives_alone_compute_what_they_have_to(op: str, preset: str, size: int) -> None:
    """With all protocols of the H200: small arrays carry flags between the data."""
    spec = machine(preset)
    plan = collective_plan(Operator(spec, 4, collective=op, size=size))
    check_plan(plan)
    kernel = plan.parts()[0].programs[0].operations[0]
    assert isinstance(kernel, Moves)
    assert (kernel.flags == (2, 1)) == (preset == "h200" and size < 1 << 20)


def test_orders_of_flux_push() -> None:
    """Next: rows of the next rank first and own last. Naive: all begin with the rows of one rank."""
    op = operator(4)
    first_owner = {}
    for word in (0, 1):
        programs = flux_push(op, FLUX | {"order": word}).parts()[0].programs
        kernels = [program.operations[1] for program in programs]  # behind a barrier
        assert all(isinstance(kernel, Gemm) for kernel in kernels)
        first_owner[word] = [(r + int(k.stores.distance[k.order[0]])) % 4 for r, k in enumerate(kernels)]
        assert all((k.stores.kind == STORE).all() for k in kernels)
    assert first_owner == {0: [1, 2, 3, 0], 1: [1, 1, 1, 1]}
