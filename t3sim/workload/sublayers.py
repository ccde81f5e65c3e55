"""The four sublayers "GEMM, then all-reduce" of a tensor-parallel transformer layer (T3 sections 2.3 and 5.2).

All four produce tokens x hidden; they differ in the length of the dot product
left to each GPU.  Transposed operands of the forward sublayers are not
modelled: they would only change kernel efficiency.
"""

from __future__ import annotations

from t3sim.config.experiment import GemmShape, ModelSpec

# (hidden-size multiple) of the dot product before slicing: output projection, second fully connected
# layer (both forward), input gradients of the first fully connected layer and of the QKV projection (backward).
K_FACTOR: dict[str, int] = {"OP": 1, "FC-2": 4, "FC-1": 4, "IP": 3}

SUBLAYERS: tuple[str, ...] = tuple(K_FACTOR)


def gemm_of(model: ModelSpec, sublayer: str, tp: int) -> GemmShape:
    """Return the GEMM that one of *tp* GPUs computes for *sublayer*.

    Raises ``ValueError`` if the dot product cannot be sliced evenly: T3
    slices in K exactly, and so do we.
    """
    if sublayer not in K_FACTOR:
        raise ValueError(f"unknown sublayer {sublayer!r}; known: {', '.join(SUBLAYERS)}")
    if tp < 1:
        raise ValueError(f"tp is {tp}; at least 1 GPU is needed")
    factor = K_FACTOR[sublayer]
    k, rest = divmod(factor * model.hidden, tp)
    if rest:
        multiple = "hidden" if factor == 1 else f"{factor} x hidden"
        raise ValueError(
            f"{model.name} {sublayer}: {multiple} ({factor * model.hidden}) is not divisible by tp ({tp}),"
            f" remainder {rest}"
        )
    return GemmShape(m=model.tokens, n=model.hidden, k=k)
