"""`Tensor`, the array that users hold. Its arithmetic and most methods come from the registry of"""

# Written by tools/stubs.py (`make stubs`).

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from pullback.autodiff.hooks import Hook
from pullback.core.avals import Device
from pullback.core.dtypes import DType
from pullback.ir.array import Array, Node
from pullback.ops.index_plans import scatter_plan

class Tensor(Array):
    """A differentiable array. Make one with `pb.tensor`; see the documentation of `pb` for the
    operations.
    """
    def __hash__(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def device(self) -> Device: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def T(self) -> Tensor:
        """The transpose of a matrix."""
    @property
    def mT(self) -> Tensor:
        """The transpose of the last two axes."""
    @property
    def real(self) -> Tensor:
        """The real part; that of a real tensor is equal to it."""
    @property
    def imag(self) -> Tensor:
        """The imaginary part of a complex tensor."""
    def __repr__(self) -> str: ...
    def __format__(self, spec: str) -> str: ...
    def numpy(self) -> np.ndarray:
        """A read-only NumPy array; the tensor must not be tracked (`detach` it first)."""
    def __array__(
        self, dtype: _DTypeLike | None = None, copy: bool | None = None
    ) -> np.ndarray: ...
    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """NumPy's functions of elements are ours."""
    def __array_function__(self, function: Any, types: Any, args: tuple, kwargs: dict) -> Any:
        """NumPy's other functions are ours where there is one, or are given NumPy arrays."""
    def __dir__(self) -> list[str]: ...
    def to(self, target: Any) -> Any:
        """The tensor with a dtype, or on a device."""
    def cpu(self) -> Any:
        """The tensor on the CPU."""
    def numel(self) -> int:
        """The number of elements."""
    def copy(self) -> Any:
        """A tensor of its own with the same elements, connected to this one's history."""
    def transpose(self, *axes: Any) -> Any:
        """The axes in reverse order, or in the order of `axes`, a permutation of all of them."""
    def dot(self, other: Any) -> Any:
        """The product of two vectors or matrices, or by a number, as NumPy and PyTorch have it."""
    def item(self) -> Any:
        """The only element, as a Python number."""
    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers."""
    def __bool__(self) -> bool: ...
    def __int__(self) -> int: ...
    def __float__(self) -> float: ...
    def __complex__(self) -> complex: ...
    def __index__(self) -> int: ...
    def __round__(self, digits: int | None = None) -> Any:
        """The nearest whole numbers, or numbers with so many decimal digits, as a tensor."""
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Tensor]: ...
    def __contains__(self, value: Any) -> bool: ...
    def __getitem__(self, key: Any) -> Tensor: ...
    def __setitem__(self, key: Any, value: Any) -> None: ...
    @property
    def requires_grad(self) -> bool:
        """Whether operations on this tensor are recorded for derivatives."""
    @requires_grad.setter
    def requires_grad(self, value: bool) -> None: ...
    @property
    def is_leaf(self) -> bool:
        """Whether the tensor was made by the user, and not computed from tracked tensors."""
    @property
    def grad_fn(self) -> Node | Any:
        """The recorded operation that computed this tensor: `name`, `inputs`, `input_grad_fns`,
        `saved_tensors`.
        """
    @property
    def grad(self) -> Tensor | Any:
        """The accumulated gradient of a leaf, or of an intermediate after `retain_grad`."""
    @grad.setter
    def grad(self, value: Tensor | None) -> None: ...
    def backward(
        self, gradient: Any = None, *, retain_graph: bool | None = None, create_graph: bool = False
    ) -> None:
        """Add the derivatives of this tensor, weighted by `gradient` (1 for a single element),
        to `.grad` of the leaves.
        """
    def retain_grad(self) -> None:
        """Keep the gradient of this intermediate in `.grad`, as for a leaf."""
    def register_hook(self, hook: Callable[[Any], Any]) -> Hook:
        """Call `hook(gradient)` when this tensor's gradient is known; a returned tensor
        replaces it.
        """
    def detach(self) -> Tensor:
        """The same values, cut off from the recorded graph."""
    def clone(self) -> Tensor:
        """The same values as a new tensor, connected to this one; nothing is copied, since
        buffers never change.
        """
    def to_device(self, where: str | Device, /, *, stream: Any = None) -> Tensor:
        """The tensor on another device."""
    def __array_namespace__(self, *, api_version: str | None = None) -> Any: ...
    def __dlpack__(
        self,
        /,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule of a copy: consumers may write, and not all of them heed a read-only flag."""
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory of a GPU, to be read only."""
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __reduce__(self) -> Any: ...
    def __copy__(self) -> Tensor: ...
    def __deepcopy__(self, memo: dict) -> Tensor: ...
    def __abs__(self, /) -> Tensor: ...
    def __add__(self, other: _Operand, /) -> Tensor: ...
    def __and__(self, other: _Operand, /) -> Tensor: ...
    def __eq__(self, other: _Operand, /) -> Tensor: ...  # pyright: ignore[reportIncompatibleMethodOverride]
    def __floordiv__(self, other: _Operand, /) -> Tensor: ...
    def __ge__(self, other: _Operand, /) -> Tensor: ...
    def __gt__(self, other: _Operand, /) -> Tensor: ...
    def __iadd__(self, other: _Operand, /) -> Tensor: ...
    def __iand__(self, other: _Operand, /) -> Tensor: ...
    def __ifloordiv__(self, other: _Operand, /) -> Tensor: ...
    def __ilshift__(self, other: _Operand, /) -> Tensor: ...
    def __imatmul__(self, other: _Operand, /) -> Tensor: ...
    def __imod__(self, other: _Operand, /) -> Tensor: ...
    def __imul__(self, other: _Operand, /) -> Tensor: ...
    def __invert__(self, /) -> Tensor: ...
    def __ior__(self, other: _Operand, /) -> Tensor: ...
    def __ipow__(self, other: _Operand, /) -> Tensor: ...
    def __irshift__(self, other: _Operand, /) -> Tensor: ...
    def __isub__(self, other: _Operand, /) -> Tensor: ...
    def __itruediv__(self, other: _Operand, /) -> Tensor: ...
    def __ixor__(self, other: _Operand, /) -> Tensor: ...
    def __le__(self, other: _Operand, /) -> Tensor: ...
    def __lshift__(self, other: _Operand, /) -> Tensor: ...
    def __lt__(self, other: _Operand, /) -> Tensor: ...
    def __matmul__(self, other: _Operand, /) -> Tensor: ...
    def __mod__(self, other: _Operand, /) -> Tensor: ...
    def __mul__(self, other: _Operand, /) -> Tensor: ...
    def __ne__(self, other: _Operand, /) -> Tensor: ...  # pyright: ignore[reportIncompatibleMethodOverride]
    def __neg__(self, /) -> Tensor: ...
    def __or__(self, other: _Operand, /) -> Tensor: ...
    def __pos__(self, /) -> Tensor: ...
    def __pow__(self, other: _Operand, /) -> Tensor: ...
    def __radd__(self, other: _Operand, /) -> Tensor: ...
    def __rand__(self, other: _Operand, /) -> Tensor: ...
    def __rfloordiv__(self, other: _Operand, /) -> Tensor: ...
    def __rlshift__(self, other: _Operand, /) -> Tensor: ...
    def __rmatmul__(self, other: _Operand, /) -> Tensor: ...
    def __rmod__(self, other: _Operand, /) -> Tensor: ...
    def __rmul__(self, other: _Operand, /) -> Tensor: ...
    def __ror__(self, other: _Operand, /) -> Tensor: ...
    def __rpow__(self, other: _Operand, /) -> Tensor: ...
    def __rrshift__(self, other: _Operand, /) -> Tensor: ...
    def __rshift__(self, other: _Operand, /) -> Tensor: ...
    def __rsub__(self, other: _Operand, /) -> Tensor: ...
    def __rtruediv__(self, other: _Operand, /) -> Tensor: ...
    def __rxor__(self, other: _Operand, /) -> Tensor: ...
    def __sub__(self, other: _Operand, /) -> Tensor: ...
    def __truediv__(self, other: _Operand, /) -> Tensor: ...
    def __xor__(self, other: _Operand, /) -> Tensor: ...
    def abs(self) -> Tensor:
        """The absolute value, or the modulus of a complex number; its derivative at 0 is 0."""
    def acos(self) -> Tensor:
        """The arc cosine, in [0, pi]; its derivative at 1 and -1 is infinite."""
    def acosh(self) -> Tensor:
        """The nonnegative inverse of cosh; its derivative at 1 is infinite."""
    def add(self, y: _ArrayLike, /) -> Tensor:
        """`x + y`; for booleans the logical or."""
    def all(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """Whether every element along `axis` (None: all axes) is true, that is not 0."""
    def allclose(
        self, y: _ArrayLike, /, *, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
    ) -> Tensor:
        """Whether all elements are close, as `isclose` says it."""
    def amax(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """The largest element along `axis` (None: all axes), NaN if there is one."""
    def amin(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """The smallest element along `axis` (None: all axes), NaN if there is one."""
    def any(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """Whether an element along `axis` (None: all axes) is true, that is not 0."""
    def arccos(self) -> Tensor:
        """The arc cosine, in [0, pi]; its derivative at 1 and -1 is infinite."""
    def arccosh(self) -> Tensor:
        """The nonnegative inverse of cosh; its derivative at 1 is infinite."""
    def arcsin(self) -> Tensor:
        """The arc sine, in [-pi/2, pi/2]; its derivative at 1 and -1 is infinite."""
    def arcsinh(self) -> Tensor:
        """The inverse of sinh."""
    def arctan(self) -> Tensor:
        """The arc tangent, in [-pi/2, pi/2]."""
    def arctanh(self) -> Tensor:
        """The inverse of tanh."""
    def argmax(self, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
        """The position of the first largest element along `axis` (None: of the flattened
        array).
        """
    def argmin(self, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
        """The position of the first smallest element along `axis` (None: of the flattened
        array).
        """
    def argsort(self, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Tensor:
        """The positions that sort the array along `axis`; always stable, NaN after all numbers."""
    def asin(self) -> Tensor:
        """The arc sine, in [-pi/2, pi/2]; its derivative at 1 and -1 is infinite."""
    def asinh(self) -> Tensor:
        """The inverse of sinh."""
    def astype(
        self, dtype: _DTypeLike, /, *, copy: bool = True, device: _DeviceLike | None = None
    ) -> Tensor:
        """The array with its elements converted to `dtype`; complex to real keeps the real
        part.
        """
    def atan(self) -> Tensor:
        """The arc tangent, in [-pi/2, pi/2]."""
    def atan2(self, x: _ArrayLike, /) -> Tensor:
        """The angle of the point (x, y), in [-pi, pi]; its derivative at the origin is 0."""
    def atanh(self) -> Tensor:
        """The inverse of tanh."""
    def bmm(self, y: _ArrayLike, /) -> Tensor:
        """The product of matrices in the last two axes, over broadcast batches."""
    def broadcast_to(self, shape: int | Sequence[int]) -> Tensor:
        """The array repeated along new and size-1 axes until it has `shape`; it takes no
        memory.
        """
    def ceil(self) -> Tensor:
        """The smallest integer that is not below x."""
    def clamp(self, min: _ArrayLike | None = None, max: _ArrayLike | None = None) -> Tensor:
        """x limited to [min, max]; a bound may be None, a number or an array, and a NaN stays
        NaN.
        """
    def clip(self, min: _ArrayLike | None = None, max: _ArrayLike | None = None) -> Tensor:
        """x limited to [min, max]; a bound may be None, a number or an array, and a NaN stays
        NaN.
        """
    def conj(self) -> Tensor:
        """The complex conjugate; real arrays are unchanged."""
    def conjugate(self) -> Tensor:
        """The complex conjugate; real arrays are unchanged."""
    def cos(self) -> Tensor:
        """The cosine."""
    def cosh(self) -> Tensor:
        """The hyperbolic cosine."""
    def count_nonzero(
        self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False
    ) -> Tensor:
        """How many elements along `axis` (None: all axes) are not 0."""
    def cummax(self, axis: int) -> Tensor:
        """The maximum so far along `axis`, NaN from the first NaN on."""
    def cummin(self, axis: int) -> Tensor:
        """The minimum so far along `axis`, NaN from the first NaN on."""
    def cumprod(
        self, axis: int | None = None, *, dtype: _DTypeLike | None = None, reverse: bool = False
    ) -> Tensor:
        """The running product along `axis` (None: of the flattened array), from the end with
        `reverse`.
        """
    def cumsum(
        self, axis: int | None = None, *, dtype: _DTypeLike | None = None, reverse: bool = False
    ) -> Tensor:
        """The running sum along `axis` (None: of the flattened array), from the end with
        `reverse`.
        """
    def cumulative_prod(
        self,
        axis: int | None = None,
        *,
        dtype: _DTypeLike | None = None,
        include_initial: bool = False,
    ) -> Tensor:
        """The running product along `axis`, after a 1 if `include_initial`; 1-D arrays need no
        axis.
        """
    def cumulative_sum(
        self,
        axis: int | None = None,
        *,
        dtype: _DTypeLike | None = None,
        include_initial: bool = False,
    ) -> Tensor:
        """The running sum along `axis`, with a 0 first if `include_initial`; 1-D arrays need no
        axis.
        """
    def deg2rad(self) -> Tensor:
        """Degrees as radians: `x pi / 180`."""
    def diag(self, k: int = 0) -> Tensor:
        """The matrix with a 1-D array on its k-th diagonal, or the k-th diagonal of a matrix."""
    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
        """The diagonal of the matrices that two axes span, as the last axis of the result."""
    def diff(
        self,
        *,
        axis: int = -1,
        n: int = 1,
        prepend: _ArrayLike | None = None,
        append: _ArrayLike | None = None,
    ) -> Tensor:
        """The `n`-th differences `x[i + 1] - x[i]` along `axis`, of `prepend`, `x` and `append`
        joined (with `n=0` it is `x`).
        """
    def digamma(self) -> Tensor:
        """The derivative of lgamma."""
    def div(self, y: _ArrayLike, /) -> Tensor:
        """`x / y`; integers are divided as floats."""
    def divide(self, y: _ArrayLike, /) -> Tensor:
        """`x / y`; integers are divided as floats."""
    def eq(self, y: _ArrayLike, /) -> Tensor:
        """`x == y`."""
    def erf(self) -> Tensor:
        """The error function: 2 / sqrt(pi) times the integral of `exp(-t**2)` from 0 to x."""
    def erfc(self) -> Tensor:
        """`1 - erf(x)`, accurate for large x."""
    def erfinv(self) -> Tensor:
        """The inverse of erf."""
    def exp(self) -> Tensor:
        """e to the power of x."""
    def exp2(self) -> Tensor:
        """2 to the power of x."""
    def expm1(self) -> Tensor:
        """`exp(x) - 1`, accurate for small x."""
    def flatten(self, start_axis: int = 0, end_axis: int = -1) -> Tensor:
        """The array with the axes from `start_axis` to `end_axis` joined into one."""
    def flip(self, axis: int | Sequence[int] | None = None) -> Tensor:
        """The array with the order of elements reversed along the axes given; along all by
        default.
        """
    def floor(self) -> Tensor:
        """The largest integer that is not above x."""
    def floor_divide(self, y: _ArrayLike, /) -> Tensor:
        """`x // y`, the quotient rounded down; an integer divided by 0 gives 0, as in NumPy."""
    def fmod(self, y: _ArrayLike, /) -> Tensor:
        """The remainder of the division rounded towards zero, with the sign of x, as C's fmod."""
    def ge(self, y: _ArrayLike, /) -> Tensor:
        """`x >= y`."""
    def greater(self, y: _ArrayLike, /) -> Tensor:
        """`x > y`."""
    def greater_equal(self, y: _ArrayLike, /) -> Tensor:
        """`x >= y`."""
    def gt(self, y: _ArrayLike, /) -> Tensor:
        """`x > y`."""
    def hypot(self, y: _ArrayLike, /) -> Tensor:
        """`sqrt(x**2 + y**2)` without overflow on the way; its derivative at the origin is 0."""
    def isclose(
        self, y: _ArrayLike, /, *, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
    ) -> Tensor:
        """Whether `abs(x - y) <= atol + rtol * abs(y)`, or x and y are equal."""
    def isfinite(self) -> Tensor:
        """Whether x is neither infinite nor NaN."""
    def isinf(self) -> Tensor:
        """Whether x is infinite, in one part at least."""
    def isnan(self) -> Tensor:
        """Whether x is NaN, in one part at least."""
    def le(self, y: _ArrayLike, /) -> Tensor:
        """`x <= y`."""
    def less(self, y: _ArrayLike, /) -> Tensor:
        """`x < y`."""
    def less_equal(self, y: _ArrayLike, /) -> Tensor:
        """`x <= y`."""
    def lgamma(self) -> Tensor:
        """The logarithm of the absolute value of the gamma function."""
    def log(self) -> Tensor:
        """The natural logarithm; of complex numbers the principal one."""
    def log10(self) -> Tensor:
        """The logarithm to base 10."""
    def log1p(self) -> Tensor:
        """`log(1 + x)`, accurate for small x."""
    def log2(self) -> Tensor:
        """The logarithm to base 2."""
    def logaddexp(self, y: _ArrayLike, /) -> Tensor:
        """`log(exp(x) + exp(y))` without overflow."""
    def logcumsumexp(self, axis: int, *, reverse: bool = False) -> Tensor:
        """The running `log(sum(exp(x)))` along `axis`, from the end with `reverse`, without
        overflow.
        """
    def logical_and(self, y: _ArrayLike, /) -> Tensor:
        """Whether both x and y are not zero."""
    def logical_not(self) -> Tensor:
        """Whether x is zero."""
    def logical_or(self, y: _ArrayLike, /) -> Tensor:
        """Whether x or y is not zero."""
    def logical_xor(self, y: _ArrayLike, /) -> Tensor:
        """Whether exactly one of x and y is not zero."""
    def logsumexp(
        self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False
    ) -> Tensor:
        """`log(sum(exp(x)))` along `axis` (None: all axes), without overflow."""
    def lt(self, y: _ArrayLike, /) -> Tensor:
        """`x < y`."""
    def masked_fill(self, mask: _ArrayLike, value: _ArrayLike, /) -> Tensor:
        """The array with `value` where the mask is true; the mask broadcasts to its shape."""
    def masked_select(self, mask: _ArrayLike, /) -> Tensor:
        """The elements of `x` where `mask` is true, in row-major order; both broadcast."""
    def matmul(self, y: _ArrayLike, /) -> Tensor:
        """The product of matrices in the last two axes, over broadcast batches."""
    def max(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """The largest element along `axis` (None: all axes), NaN if there is one."""
    def maximum(self, y: _ArrayLike, /) -> Tensor:
        """The larger of x and y, NaN if one of them is; a tie shares the derivative evenly."""
    def mean(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """The mean of the elements along `axis` (None: all axes); NaN where there are none."""
    def median(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """The middle element along `axis` (None: all axes), or the mean of the middle two."""
    def min(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """The smallest element along `axis` (None: all axes), NaN if there is one."""
    def minimum(self, y: _ArrayLike, /) -> Tensor:
        """The smaller of x and y, NaN if one of them is; a tie shares the derivative evenly."""
    def mm(self, y: _ArrayLike, /) -> Tensor:
        """The product of matrices in the last two axes, over broadcast batches."""
    def moveaxis(self, source: int | Sequence[int], destination: int | Sequence[int], /) -> Tensor:
        """The array with the axes `source` moved to the positions `destination`, the others in
        order.
        """
    def movedim(self, source: int | Sequence[int], destination: int | Sequence[int], /) -> Tensor:
        """The array with the axes `source` moved to the positions `destination`, the others in
        order.
        """
    def mul(self, y: _ArrayLike, /) -> Tensor:
        """`x * y`; for booleans the logical and."""
    def multiply(self, y: _ArrayLike, /) -> Tensor:
        """`x * y`; for booleans the logical and."""
    def mv(self, y: _ArrayLike, /) -> Tensor:
        """The product of matrices in the last two axes, over broadcast batches."""
    def nan_to_num(
        self, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
    ) -> Tensor:
        """The array with numbers in place of NaN and of infinities: by default 0 and the
        largest ones.
        """
    def nanmean(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """The mean of the elements that are no NaN; NaN where there are none."""
    def nansum(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """The sum of the elements that are no NaN."""
    def ne(self, y: _ArrayLike, /) -> Tensor:
        """`x != y`; true for NaN."""
    def neg(self) -> Tensor:
        """`-x`."""
    def negative(self) -> Tensor:
        """`-x`."""
    def nonzero(self) -> tuple[Tensor, ...]:
        """The positions of the elements that are not zero, in row-major order: an array for
        each axis.
        """
    def not_equal(self, y: _ArrayLike, /) -> Tensor:
        """`x != y`; true for NaN."""
    def outer(self, y: _ArrayLike, /) -> Tensor:
        """The matrix `x[i] * y[j]` of two vectors."""
    def permute(self, axes: int | Sequence[int], *more: int) -> Tensor:
        """The array with its axes reordered: axis k of the result is axis `axes[k]` of `x`."""
    def pow(self, y: _ArrayLike, /) -> Tensor:
        """`x**y`, with `0**0 = 1`; integers stay integers, and their overflow wraps."""
    def prod(
        self,
        axis: int | Sequence[int] | None = None,
        *,
        dtype: _DTypeLike | None = None,
        keepdims: bool = False,
    ) -> Tensor:
        """The product of the elements along `axis` (None: all axes), differentiable at zeros
        too.
        """
    def ptp(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """The largest minus the smallest element along `axis` (None: all axes)."""
    def quantile(
        self,
        q: Any,
        /,
        axis: int | Sequence[int] | None = None,
        *,
        keepdims: bool = False,
        method: str = "linear",
    ) -> Tensor:
        """The value below which a fraction `q` of the elements along `axis` lie."""
    def rad2deg(self) -> Tensor:
        """Radians as degrees: `180 x / pi`."""
    def ravel(self, start_axis: int = 0, end_axis: int = -1) -> Tensor:
        """The array with the axes from `start_axis` to `end_axis` joined into one."""
    def reciprocal(self) -> Tensor:
        """`1 / x`."""
    def remainder(self, y: _ArrayLike, /) -> Tensor:
        """`x % y`, with the sign of y; an integer modulo 0 gives 0, as in NumPy."""
    def repeat(self, repeats: Sequence[int] | _ArrayLike, /, axis: int | None = None) -> Tensor:
        """Each element (or slice along `axis`) repeated in place, all or each its own number of
        times.
        """
    def repeat_interleave(
        self, repeats: Sequence[int] | _ArrayLike, /, axis: int | None = None
    ) -> Tensor:
        """Each element (or slice along `axis`) repeated in place, all or each its own number of
        times.
        """
    def reshape(self, shape: int | Sequence[int], *more: int, copy: bool | None = None) -> Tensor:
        """The same elements, in row-major order, with another shape; one size may be -1: the
        rest.
        """
    def roll(self, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Tensor:
        """The array moved along an axis, what leaves at the end coming back at the start."""
    def rot90(self, k: int = 1, axes: tuple[int, int] = ...) -> Tensor:
        """The array turned k times by 90 degrees, from the first of the axes towards the
        second.
        """
    def round(self, decimals: int = 0) -> Tensor:
        """x rounded to a number of decimals, half to even."""
    def rsqrt(self) -> Tensor:
        """`1 / sqrt(x)`."""
    def scatter(
        self,
        indices: _ArrayLike | scatter_plan,
        updates: _ArrayLike,
        /,
        axis: int = 0,
        mode: str = "set",
        *,
        include_self: bool = True,
    ) -> Tensor:
        """A copy of `x` with `updates` put at `indices` along `axis`: what `take` reads is
        written.
        """
    def scatter_add(
        self,
        indices: _ArrayLike | scatter_plan,
        updates: _ArrayLike,
        /,
        axis: int = 0,
        *,
        exact: bool = False,
    ) -> Tensor:
        """A copy of `x` with `updates` added at `indices` along `axis`; every duplicate counts."""
    def searchsorted(
        self, x2: _ArrayLike, /, *, side: str = "left", sorter: _ArrayLike | None = None
    ) -> Tensor:
        """The positions in the sorted array `x1` at which the elements of `x2` would keep it
        sorted.
        """
    def sigmoid(self) -> Tensor:
        """The logistic function `1 / (1 + exp(-x))`."""
    def sign(self) -> Tensor:
        """-1, 0 or 1 by the sign of x; `x / abs(x)` for complex numbers, and 0 at 0."""
    def sin(self) -> Tensor:
        """The sine."""
    def sinh(self) -> Tensor:
        """The hyperbolic sine."""
    def sort(self, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Tensor:
        """The elements in order along `axis`, NaN after all numbers (first when descending)."""
    def split(self, indices_or_sections: int | Sequence[int], /, axis: int = 0) -> list[Tensor]:
        """The array cut along an axis: into equal parts, or before each of the positions given."""
    def sqrt(self) -> Tensor:
        """The square root; its derivative at 0 is infinite."""
    def square(self) -> Tensor:
        """`x * x`."""
    def squeeze(self, axis: int | Sequence[int] | None = None) -> Tensor:
        """The array without the axes of size 1 that `axis` names, or (without `axis`) without
        any.
        """
    def std(
        self,
        axis: int | Sequence[int] | None = None,
        *,
        correction: float = 0.0,
        keepdims: bool = False,
    ) -> Tensor:
        """The standard deviation, the square root of `var`; where it is 0 so is its derivative."""
    def sub(self, y: _ArrayLike, /) -> Tensor:
        """`x - y`."""
    def subtract(self, y: _ArrayLike, /) -> Tensor:
        """`x - y`."""
    def sum(
        self,
        axis: int | Sequence[int] | None = None,
        *,
        dtype: _DTypeLike | None = None,
        keepdims: bool = False,
    ) -> Tensor:
        """The sum of the elements along `axis` (None: all axes); integers and bools add up in
        64 bits.
        """
    def swapaxes(self, axis1: int, axis2: int, /) -> Tensor:
        """The array with two axes exchanged."""
    def swapdims(self, axis1: int, axis2: int, /) -> Tensor:
        """The array with two axes exchanged."""
    def take(self, indices: _ArrayLike | scatter_plan, /, axis: int | None = None) -> Tensor:
        """The slices of `x` at `indices` along `axis`; without an axis, elements of the flat
        array.
        """
    def take_along_axis(self, indices: _ArrayLike, /, axis: int = -1) -> Tensor:
        """`out[i, j, k] = x[i, indices[i, j, k], k]` (here along axis 1): one index for each
        element.
        """
    def tan(self) -> Tensor:
        """The tangent."""
    def tanh(self) -> Tensor:
        """The hyperbolic tangent."""
    def tile(self, repetitions: int | Sequence[int], /) -> Tensor:
        """The whole array repeated along each axis."""
    def topk(self, k: int, axis: int = -1, *, largest: bool = True, sorted: bool = True) -> TopK:
        """The `k` largest (or smallest) elements along `axis`, in order, and their positions."""
    def tril(self, *, k: int = 0) -> Tensor:
        """The lower triangle of matrices: zeros above the k-th diagonal."""
    def triu(self, *, k: int = 0) -> Tensor:
        """The upper triangle of matrices: zeros below the k-th diagonal."""
    def trunc(self) -> Tensor:
        """x rounded towards zero."""
    def unbind(self, axis: int = 0) -> tuple[Tensor, ...]:
        """The slices of the array along an axis, as a tuple."""
    def unsqueeze(self, axis: int = 0) -> Tensor:
        """The array with new axes of size 1; `axis` is where they are in the result."""
    def var(
        self,
        axis: int | Sequence[int] | None = None,
        *,
        correction: float = 0.0,
        keepdims: bool = False,
    ) -> Tensor:
        """The sum of squared distances to the mean along `axis` (None: all), over n -
        `correction`.
        """
    def view(self, shape: int | Sequence[int], *more: int, copy: bool | None = None) -> Tensor:
        """The same elements, in row-major order, with another shape; one size may be -1: the
        rest.
        """

def tensor(
    data: Any,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor with the given contents: a number, nested lists, a NumPy array, or anything with
    `__array__` or DLPack.
    """

def from_dlpack(
    x: Any, /, *, device: _DeviceLike | None = None, copy: bool | None = None
) -> Tensor:
    """A tensor of the data of another library's array, sharing its memory, on the CPU or a GPU."""

class TopK(NamedTuple):
    """The k largest (or smallest) elements, and where they were."""

    values: Tensor
    indices: Tensor

class _HasArray(Protocol):
    def __array__(self) -> np.ndarray: ...

class _HasDLPack(Protocol):
    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

_HasMemory: TypeAlias = _HasDLPack | bytes | bytearray | memoryview | array[Any]
_Operand: TypeAlias = Tensor | bool | int | float | complex | np.ndarray | np.generic
_ArrayLike: TypeAlias = _Operand | _HasArray | _HasMemory | list[Any] | tuple[Any, ...] | range
_DTypeLike: TypeAlias = DType | str | type | np.dtype
_DeviceLike: TypeAlias = Device | str
