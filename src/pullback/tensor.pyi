"""`Tensor`, the array that users hold. Its arithmetic and most methods come from the registry of"""

# Written by tools/stubs.py (`make stubs`).

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from pullback.core.avals import Device
from pullback.core.dtypes import DType
from pullback.ir.array import Array, Node
from pullback.ir.op import Public
from pullback.ops.index_plans import scatter_plan

class Hook:
    """A registered hook; `remove()` takes it away."""
    def __init__(self, hooks: dict[int, Callable], key: int) -> None: ...
    def remove(self) -> None: ...

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
    def __getattr__(self, name: str) -> Any: ...
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
    def all(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """Whether every element along `axis` (None: all axes) is true, that is not 0."""
    def any(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """Whether an element along `axis` (None: all axes) is true, that is not 0."""
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
    def astype(
        self, dtype: _DTypeLike, /, *, copy: bool = True, device: _DeviceLike | None = None
    ) -> Tensor:
        """The array with its elements converted to `dtype`; complex to real keeps the real
        part.
        """
    def broadcast_to(self, shape: int | Sequence[int]) -> Tensor:
        """The array repeated along new and size-1 axes until it has `shape`; it takes no
        memory.
        """
    def ceil(self) -> Tensor:
        """The smallest integer that is not below x."""
    def clip(self, min: _ArrayLike | None = None, max: _ArrayLike | None = None) -> Tensor:
        """x limited to [min, max]; a bound may be None, a number or an array, and a NaN stays
        NaN.
        """
    def conj(self) -> Tensor:
        """The complex conjugate; real arrays are unchanged."""
    def cos(self) -> Tensor:
        """The cosine."""
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
    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
        """The diagonal of the matrices that two axes span, as the last axis of the result."""
    def exp(self) -> Tensor:
        """e to the power of x."""
    def flatten(self, start_axis: int = 0, end_axis: int = -1) -> Tensor:
        """The array with the axes from `start_axis` to `end_axis` joined into one."""
    def flip(self, axis: int | Sequence[int] | None = None) -> Tensor:
        """The array with the order of elements reversed along the axes given; along all by
        default.
        """
    def floor(self) -> Tensor:
        """The largest integer that is not above x."""
    def log(self) -> Tensor:
        """The natural logarithm; of complex numbers the principal one."""
    def masked_fill(self, mask: _ArrayLike, value: _ArrayLike, /) -> Tensor:
        """The array with `value` where the mask is true; the mask broadcasts to its shape."""
    def masked_select(self, mask: _ArrayLike, /) -> Tensor:
        """The elements of `x` where `mask` is true, in row-major order; both broadcast."""
    def max(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """The largest element along `axis` (None: all axes), NaN if there is one."""
    def mean(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """The mean of the elements along `axis` (None: all axes); NaN where there are none."""
    def min(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """The smallest element along `axis` (None: all axes), NaN if there is one."""
    def moveaxis(self, source: int | Sequence[int], destination: int | Sequence[int], /) -> Tensor:
        """The array with the axes `source` moved to the positions `destination`, the others in
        order.
        """
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
    def ravel(self, start_axis: int = 0, end_axis: int = -1) -> Tensor:
        """The array with the axes from `start_axis` to `end_axis` joined into one."""
    def repeat(self, repeats: Sequence[int] | _ArrayLike, /, axis: int | None = None) -> Tensor:
        """Each element (or slice along `axis`) repeated in place, all or each its own number of
        times.
        """
    def reshape(self, shape: int | Sequence[int], *more: int, copy: bool | None = None) -> Tensor:
        """The same elements, in row-major order, with another shape; one size may be -1: the
        rest.
        """
    def roll(self, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Tensor:
        """The array moved along an axis, what leaves at the end coming back at the start."""
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
    def sigmoid(self) -> Tensor:
        """The logistic function `1 / (1 + exp(-x))`."""
    def sin(self) -> Tensor:
        """The sine."""
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
    def take(self, indices: _ArrayLike | scatter_plan, /, axis: int | None = None) -> Tensor:
        """The slices of `x` at `indices` along `axis`; without an axis, elements of the flat
        array.
        """
    def tan(self) -> Tensor:
        """The tangent."""
    def tanh(self) -> Tensor:
        """The hyperbolic tangent."""
    def tile(self, repetitions: int | Sequence[int], /) -> Tensor:
        """The whole array repeated along each axis."""
    def tril(self, *, k: int = 0) -> Tensor:
        """The lower triangle of matrices: zeros above the k-th diagonal."""
    def triu(self, *, k: int = 0) -> Tensor:
        """The upper triangle of matrices: zeros below the k-th diagonal."""
    def trunc(self) -> Tensor:
        """x rounded towards zero."""
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
    """A tensor of the data of another library's array, sharing its memory on the CPU."""

def install_methods(entries: dict[str, Public]) -> None:
    """Give Tensor the methods that operations declare: operators with their reflected and
    in-place forms, and names.
    """

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
