"""What `flux-push` runs: between which barriers, in what order, in stores of what size."""

from __future__ import annotations

import pytest

from t3sim.errors import ConfigError
from t3sim.program.operations import Gemm
from t3sim.program.plan import Part
from t3sim.registry import encoded
from t3sim.strategies.flux import PARAMETERS, flux_push_part
from t3sim.system.simulate import simulate
from tests.harness.sublayers import point
from tests.program.strategies import operator


def part_of(**given: object) -> Part:
    """The fused part on four ranks."""
    return flux_push_part(operator(4), encoded(PARAMETERS, given))


@pytest.mark.parametrize(("given", "expected"), [({}, None), ({"store_bytes": 64}, 64)])
def test_the_size_of_its_stores(given: dict[str, int], expected: int | None) -> None:
    gemms = [one for p in part_of(**given).programs for one in p.operations if isinstance(one, Gemm)]
    assert [one.store_bytes for one in gemms] == [expected] * 4


def test_a_store_of_no_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="store_bytes: 0 is not a whole number of at least 1 or full_packets"):
        part_of(store_bytes=0)


def test_more_arrays_than_a_unit_may_load_lines_of_are_refused() -> None:
    """It would wait for its fourth operand for ever."""
    few = ("machine.link.topology=switch", "machine.link.ingress_buffer=16 KiB",
           "machine.gpu.collective_kernel.max_outstanding_lines=3")  # fmt: skip
    assert simulate(point("flux-push", *few, shape=(192, 64, 64), tp=3)).total > 0
    with pytest.raises(
        ConfigError, match=r"max_outstanding_lines: strategy flux-push: is 3, must be at least 4: `sum` adds up so many"
    ):
        simulate(point("flux-push", *few, shape=(256, 64, 64), tp=4))


def test_ranks_meet_before_the_first_store_and_behind_the_last() -> None:
    """Else one rank could store where another still adds up what was there."""
    for program in part_of().programs:
        assert [one.kind for one in program.operations] == ["barrier", "gemm", "barrier", "moves"]
