"""Primitives that are not part of the public API: what the public functions are made of, for the"""

# Written by tools/stubs.py (`make stubs`).

from collections.abc import Sequence
from typing import Any

from pullback.core.dtypes import DType
from pullback.tensor import Tensor, _ArrayLike, _DTypeLike

def at_least(x: _ArrayLike, low: _ArrayLike, /) -> Tensor:
    """x, or the bound where x is below it."""

def at_most(x: _ArrayLike, high: _ArrayLike, /) -> Tensor:
    """x, or the bound where x is above it."""

def barrier(x: _ArrayLike, after: _ArrayLike, /) -> Tensor:
    """`x` itself; a compiled function does not have it before the 0-d array `after` is known."""

def between(x: _ArrayLike, low: _ArrayLike, high: _ArrayLike, /) -> Tensor:
    """x, or the bound that it is beyond; the upper bound wins where they are the wrong way
    round.
    """

def call_host(f: Any, shape: int | Sequence[int], dtype: _DTypeLike, /, *xs: _ArrayLike) -> Tensor:
    """`f(*xs)` by a function of NumPy arrays that returns one of the given shape and dtype."""

def child_keys(key: _ArrayLike, start: int, shape: int | Sequence[int], purpose: int, /) -> Tensor:
    """The keys of so many counters from `start` on; the last axis of `shape` has their two
    words.
    """

def cofactors(x: _ArrayLike, /) -> Tensor:
    """The matrix of cofactors of square matrices: the derivative of the determinant."""

def conv(
    x: _ArrayLike,
    w: _ArrayLike,
    /,
    *,
    stride: int | Sequence[int] = 1,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "channels_first",
) -> Tensor:
    """The sums of `x` under a kernel at all its places: `dT/dy`."""

def conv_dw(
    x: _ArrayLike,
    y: _ArrayLike,
    /,
    *,
    kernel: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "channels_first",
) -> Tensor:
    """The sums of products of `x` and `y` for every place in a kernel of that shape: `dT/dw`."""

def conv_dx(
    y: _ArrayLike,
    w: _ArrayLike,
    /,
    *,
    size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "channels_first",
) -> Tensor:
    """The transpose of `conv` for inputs with spatial axes of `size`: `dT/dx`."""

def det_phase(x: _ArrayLike, /) -> Tensor:
    """The determinant divided by its size; 0 where it is 0."""

def dft(x: _ArrayLike, /, axis: int = -1, *, inverse: bool = False, factor: float = 1.0) -> Tensor:
    """The sums of `w**(j k) x[j]` over the axis, times a factor; w is exp(-2 pi i / n), or its
    conjugate if `inverse`.
    """

def embed(
    base: _ArrayLike,
    x: _ArrayLike,
    /,
    shape: int | Sequence[int],
    starts: int | Sequence[int],
    steps: int | Sequence[int] | None = None,
) -> Tensor:
    """`base` broadcast to `shape`, with `x` in the box from `starts` with the given steps."""

def gather(x: _ArrayLike, /, *indices: _ArrayLike) -> Tensor:
    """`x` read at the positions that integer arrays give; negative ones count from the end."""

def getitem(x: _ArrayLike, key: Any, /) -> Tensor:
    """The part of `x` that a key selects, by NumPy's rules."""

def integer_power(x: _ArrayLike, n: int, /) -> Tensor:
    """`x**n` for a Python integer n, by repeated multiplication."""

def irdft(x: _ArrayLike, /, axis: int = -1, *, n: int, factor: float = 1.0) -> Tensor:
    """The n real sums over k of `conj(w)**(j k) x[k]`, where the second half of the
    coefficients are the conjugates of the first, times a factor.
    """

def known_svdvals(x: _ArrayLike, /) -> Tensor:
    """The singular values, taken from factors that are there for something else."""

def log_det(x: _ArrayLike, /) -> Tensor:
    """The logarithm of the size of the determinant."""

def philox(
    c0: _ArrayLike,
    c1: _ArrayLike,
    c2: _ArrayLike,
    c3: _ArrayLike,
    k0: _ArrayLike,
    k1: _ArrayLike,
    /,
    word: int,
) -> Tensor:
    """One of the four words of Philox4x32-10 for a counter and a key, elementwise."""

def pick(x: _ArrayLike, index: _ArrayLike, /, *, layout: str = "channels_first") -> Tensor:
    """The elements of each batch and channel of `x` at the places that `index` gives."""

def place(
    y: _ArrayLike,
    index: _ArrayLike,
    /,
    *,
    size: int | Sequence[int],
    layout: str = "channels_first",
) -> Tensor:
    """Zeros with spatial axes of `size`, and `y` added at the places that `index` gives."""

def place_below(count: _ArrayLike, q: float, /, *, method: str = "linear") -> Tensor:
    """The number of the element below the fraction `q` of sorted elements, by how many there
    are.
    """

def place_beyond(count: _ArrayLike, q: float, dtype: DType, /, *, method: str = "linear") -> Tensor:
    """How far beyond that element the fraction lies, as a part of the way to the next one."""

def power(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """`x**y` elementwise for arrays of one dtype."""

def ramp(start: _ArrayLike, step: _ArrayLike, /, size: int) -> Tensor:
    """`start + i * step` for i from 0 to `size` - 1, of 0-d arrays of one dtype."""

def rdft(x: _ArrayLike, /, axis: int = -1, *, factor: float = 1.0) -> Tensor:
    """The first `n // 2 + 1` of the n sums of `w**(j k) x[j]` over the axis of a real array,
    times a factor; the others are their conjugates.
    """

def require(
    x: _ArrayLike,
    flags: _ArrayLike,
    /,
    caller: str,
    fact: str,
    subject: str = "the matrix",
    error: str = "LinAlgError",
) -> Tensor:
    """The array as it is, if all flags are set; else an error that `caller` raises, of the
    subject at the place of the flag.
    """

def rint(x: _ArrayLike, /) -> Tensor:
    """The nearest integer, the even one of two; complex numbers are rounded by parts."""

def running_position(x: _ArrayLike, /, axis: int, *, sense: int = 1) -> Tensor:
    """Where the maximum (`sense` 1) or minimum (-1) so far was last attained along `axis`."""

def scatter_add(x: _ArrayLike, updates: _ArrayLike, /, *indices: _ArrayLike) -> Tensor:
    """`x` with the updates added at the positions given; sums are taken in order, always the
    same.
    """

def scatter_add_exact(x: _ArrayLike, updates: _ArrayLike, /, *indices: _ArrayLike) -> Tensor:
    """`scatter_add` whose sums are exact before they are rounded: no order can change their
    bits.
    """

def scatter_max(x: _ArrayLike, updates: _ArrayLike, /, *indices: _ArrayLike) -> Tensor:
    """The largest of `x` and the updates at each place; a NaN wins."""

def scatter_min(x: _ArrayLike, updates: _ArrayLike, /, *indices: _ArrayLike) -> Tensor:
    """The smallest of `x` and the updates at each place; a NaN wins."""

def scatter_mul(x: _ArrayLike, updates: _ArrayLike, /, *indices: _ArrayLike) -> Tensor:
    """`x` multiplied by the updates at the positions given."""

def scatter_set(x: _ArrayLike, updates: _ArrayLike, /, *indices: _ArrayLike) -> Tensor:
    """`x` with the updates written at the positions given; the last of several writes stays."""

def setitem(x: _ArrayLike, key: Any, value: _ArrayLike, /) -> Tensor:
    """`x` with the selected part replaced by `value`; of several writes to a place the last
    stays.
    """

def slice(
    x: _ArrayLike,
    /,
    starts: int | Sequence[int],
    shape: int | Sequence[int],
    steps: int | Sequence[int] | None = None,
) -> Tensor:
    """The box of `x` from `starts` with `shape` elements, `steps` apart (negative: backwards)."""

def unit_normal(
    key: _ArrayLike, shape: int | Sequence[int] = (), /, *, dtype: _DTypeLike | None = None
) -> Tensor:
    """Normal random numbers with mean 0 and standard deviation 1."""

def unit_uniform(
    key: _ArrayLike, shape: int | Sequence[int] = (), /, *, dtype: _DTypeLike | None = None
) -> Tensor:
    """Uniform random numbers in [0, 1)."""

def window_argmax(
    x: _ArrayLike,
    /,
    *,
    kernel: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    layout: str = "channels_first",
) -> Tensor:
    """The index of the largest element under each place of a window, the first of equal ones."""

def window_max(
    x: _ArrayLike,
    /,
    *,
    kernel: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    layout: str = "channels_first",
) -> Tensor:
    """The largest element under each place of a window; NaN if there is one."""
