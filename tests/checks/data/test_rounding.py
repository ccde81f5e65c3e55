"""Are carried values rounded to the element type where they are stored or sent, and nowhere else?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from t3sim.checks.data import CarriedProgram
from t3sim.checks.data.rounding import rounded
from t3sim.config.element_types import ELEMENT_TYPES, ElementName
from t3sim.config.experiment import GemmShape
from t3sim.selfcheck.data_cases import TILINGS, DataCase, run_case
from tests.checks.data.test_defects import run_with

N = 4
RING = DataCase(
    "reduce-scatter", N, GemmShape(m=64, n=64, k=64, element="bf16"), TILINGS[0], machine=0, is_mirrored=False, seed=5
)


def as_bf16(values: np.ndarray) -> np.ndarray:
    """Round as hardware does: to nearest even in the upper half of an FP32 number."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return (((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) << 16).astype(np.uint32).view(np.float32).astype(np.int64)


def test_rounding_is_that_of_the_formats() -> None:
    """As NumPy's FP16, FP32's upper half, and E4M3 by hand; halfway cases to even."""
    values = np.concatenate([np.arange(-5000, 5001), np.random.default_rng(1).integers(-60000, 60000, 2000)])
    assert (rounded(values, ELEMENT_TYPES["fp16"].significand) == values.astype(np.float16).astype(np.int64)).all()
    assert (rounded(values, ELEMENT_TYPES["bf16"].significand) == as_bf16(values)).all()
    assert (rounded(values, ELEMENT_TYPES["fp32"].significand) == values).all()
    given = np.array([0, 1, -15, 16, 17, 18, 19, -27, 31, 33, 100, 232, 440, 447])
    e4m3 = [0, 1, -15, 16, 16, 18, 20, -28, 32, 32, 96, 224, 448, 448]
    assert rounded(given, ELEMENT_TYPES["fp8"].significand).tolist() == e4m3


@pytest.mark.parametrize("element", ["fp16", "bf16", "fp8"])
def test_a_ring_rounds_at_every_hop(element: ElementName) -> None:
    """The closed form: a chunk starts at the rank behind its owner, and each rank adds its own part to what came."""
    bits = ELEMENT_TYPES[element].significand
    values = run_case(replace(RING, shape=RING.shape.model_copy(update={"element": element})))
    assert values.problems == []
    elements, parts = values.elements, rounded(values.elements.parts, bits)
    differs = 0
    for owner in range(N):
        for output in values.flows[owner].program.outputs:
            names, _ = elements.named(output, owner)  # type: ignore[arg-type]
            found = values.values[owner, values.map.span(output.first, output.n_granules)]  # type: ignore[union-attr]
            path = [(owner - 1 - i) % N for i in range(N)]
            total = parts[path[0], names]
            for rank in path[1:]:
                total = rounded(total + parts[rank, names], bits)
            assert (found[:, elements.typed] == total).all()
            differs += int((total != parts[:, names].sum(axis=0)).sum())
    assert differs  # in a type that rounds


@pytest.mark.parametrize("is_mirrored", [False, True])
@pytest.mark.parametrize("kind", ["fused mca", "flux-push next", "all-gather", "channelled all-reduce with flags"])
def test_sums_are_off_by_their_roundings_only(kind: str, is_mirrored: bool) -> None:
    shape = GemmShape(m=4 * 64, n=128, k=70, element="bf16")
    values = run_case(replace(RING, kind=kind, shape=shape, is_mirrored=is_mirrored))
    assert values.problems == []


def test_a_sum_in_too_few_bits_is_noticed() -> None:
    """Stores that keep four bits of BF16 numbers."""

    def coarser(values: CarriedProgram, _: object) -> None:
        values._rounded = lambda found: np.where(  # type: ignore[method-assign]
            np.arange(found.shape[-1]) // values.elements.n_elements == 1, rounded(found, 3), found
        )

    assert any("its roundings" in line for line in run_with(RING, coarser))
