"""Records that are copied as a whole are what NumPy copies field by field."""

import numpy as np
import pytest

from t3sim.arrays import chosen, copied, joined, opaque
from t3sim.gpu.units.table_rows import MESSAGE

GAPS = np.dtype({"names": ["a", "b"], "formats": ["i2", ("f8", 3)], "offsets": [2, 8], "itemsize": 40})


def filled(dtype: np.dtype[np.void], n: int, seed: int = 1) -> np.ndarray:
    """Return records of random bytes, gaps included."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 255, n * dtype.itemsize, np.uint8).view(dtype)


@pytest.mark.parametrize("dtype", [MESSAGE, GAPS])
@pytest.mark.parametrize("step", [1, 3])
def test_what_is_chosen_and_joined_is_what_numpy_chooses(dtype: np.dtype[np.void], step: int) -> None:
    records = filled(dtype, 60)[::step]
    is_wanted = np.random.default_rng(2).random(len(records)) < 0.3
    places = np.flatnonzero(is_wanted)[::-1]
    pairs = [
        (copied(records), records), (chosen(records, is_wanted), records[is_wanted]),
        (chosen(records, places), records[places]),
        (joined([records, records[:2]]), np.concatenate([records, records[:2]])),
    ]  # fmt: skip
    for ours, numpys in pairs:
        assert ours.dtype == dtype
        for name in dtype.names or ():
            np.testing.assert_array_equal(ours[name].tobytes(), numpys[name].tobytes())


def test_copies_are_copies_and_views_are_views() -> None:
    records = filled(MESSAGE, 5)
    first = int(records["at"][0])
    for copy in (copied(records), chosen(records, np.ones(5, bool)), joined([records])):
        copy["at"] = first + 1
    assert records["at"][0] == first
    opaque(records)[0] = np.zeros(1, MESSAGE).tobytes()
    assert records["at"][0] == 0
