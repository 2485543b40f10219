"""Linear algebra: the functions of the standard's `linalg` extension that there are so far."""

# Written by tools/stubs.py (`make stubs`).

from collections.abc import Sequence

from pullback.tensor import Tensor, _ArrayLike

def vector_norm(
    x: _ArrayLike,
    /,
    *,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    ord: float = 2,
) -> Tensor:
    """The norm `sum(abs(x)**ord) ** (1/ord)` along `axis` (None: all axes), with derivative 0
    at 0.
    """
