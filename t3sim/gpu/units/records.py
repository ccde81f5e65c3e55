"""Records of 64-bit integers, of which the state of a GPU is made."""

import numpy as np

CACHE_LINE = 64  # bytes, of the machine that simulates


def record_dtype(*fields):
    """Return a record of 64-bit integers: a field is a name, or a name and a shape; others are as in NumPy.

    A field as long as a cache line is aligned to one: cache misses are much of the time of the loop.
    """
    described = {"names": [], "formats": [], "offsets": [], "aligned": True}
    end, widest = 0, 1
    for field in fields:
        name, *form = (field,) if isinstance(field, str) else field
        if not form or isinstance(form[0], tuple):
            form.insert(0, "i8")
        dtype = np.dtype(tuple(form) if len(form) > 1 else form[0])
        alignment = CACHE_LINE if dtype.itemsize >= CACHE_LINE else dtype.base.alignment
        offset = end + -end % alignment
        for key, value in (("names", name), ("formats", dtype), ("offsets", offset)):
            described[key].append(value)
        end, widest = offset + dtype.itemsize, max(widest, alignment)
    return np.dtype({**described, "itemsize": end + -end % widest})
