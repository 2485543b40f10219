"""Counter-based random numbers: every function takes a key, and the same key gives the same
numbers"""

# Written by tools/stubs.py (`make stubs`).

from collections.abc import Sequence

from pullback.tensor import Tensor, _ArrayLike, _DTypeLike

def bernoulli(
    key: _ArrayLike, p: _ArrayLike, shape: int | Sequence[int] | None = None, /
) -> Tensor:
    """Booleans that are true with probability `p`; the shape defaults to that of `p`."""

def bits(key: _ArrayLike, shape: int | Sequence[int] = (), /, *, dtype: _DTypeLike = ...) -> Tensor:
    """Random bits, as uint32 or uint64."""

def choice(
    key: _ArrayLike,
    x: _ArrayLike,
    shape: int | Sequence[int] = (),
    /,
    *,
    replace: bool = True,
    p: _ArrayLike | None = None,
) -> Tensor:
    """Elements of `x` (or integers below it) chosen at random, along axis 0, with weights `p`."""

def exponential(
    key: _ArrayLike,
    shape: int | Sequence[int] | None = None,
    /,
    scale: _ArrayLike = 1.0,
    *,
    dtype: _DTypeLike | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Exponential random numbers with mean `scale`."""

def fold_in(key: _ArrayLike, data: int, /) -> Tensor:
    """The key for step `data`, an integer or a 0-d integer array, of a sequence that `key`
    starts.
    """

def gumbel(
    key: _ArrayLike,
    shape: int | Sequence[int] | None = None,
    /,
    loc: _ArrayLike = 0.0,
    scale: _ArrayLike = 1.0,
    *,
    dtype: _DTypeLike | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Gumbel random numbers `loc - scale * log(-log(u))`; logits plus these peak at a softmax
    draw.
    """

def key(seed: int, /) -> Tensor:
    """The key for a seed, an integer of up to 64 bits."""

def normal(
    key: _ArrayLike,
    shape: int | Sequence[int] | None = None,
    /,
    loc: _ArrayLike = 0.0,
    scale: _ArrayLike = 1.0,
    *,
    dtype: _DTypeLike | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Normal random numbers with mean `loc` and standard deviation `scale`."""

def permutation(key: _ArrayLike, x: _ArrayLike, /) -> Tensor:
    """The integers below `x` in random order, or the rows of the array `x`."""

def randint(
    key: _ArrayLike, shape: int | Sequence[int], /, low: int, high: int, *, dtype: _DTypeLike = ...
) -> Tensor:
    """Random integers in [low, high), each with the same probability to within 2**-32 of it."""

def split(key: _ArrayLike, n: int = 2, /) -> Tensor:
    """`n` new keys, as the rows of an array; use each once and the old one no more."""

def uniform(
    key: _ArrayLike,
    shape: int | Sequence[int] | None = None,
    /,
    low: _ArrayLike = 0.0,
    high: _ArrayLike = 1.0,
    *,
    dtype: _DTypeLike | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Uniform random numbers in [low, high); the shape defaults to that of the parameters."""
