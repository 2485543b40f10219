"""Pullback: arrays in which every operation can be differentiated, to any order, with the same
bits"""

# Written by tools/stubs.py (`make stubs`).

import builtins
from collections.abc import Sequence
from typing import Any, NamedTuple

from pullback import debug as debug
from pullback import fft as fft
from pullback import linalg as linalg
from pullback import nn as nn
from pullback import optim as optim
from pullback import primitive as primitive
from pullback import random as random
from pullback import signal as signal
from pullback import train as train
from pullback.autodiff.check import check_grad as check_grad
from pullback.autodiff.custom import custom_vjp as custom_vjp
from pullback.autodiff.custom_jvp import custom_jvp as custom_jvp
from pullback.autodiff.reverse import enable_grad as enable_grad
from pullback.autodiff.reverse import no_grad as no_grad
from pullback.callbacks import pure_callback as pure_callback
from pullback.compiled import jit as jit
from pullback.control import cond as cond
from pullback.control import fori_loop as fori_loop
from pullback.control import scan as scan
from pullback.control import while_loop as while_loop
from pullback.core.avals import Device as Device
from pullback.core.avals import default_device as default_device
from pullback.core.avals import device as device
from pullback.core.avals import set_default_device as set_default_device
from pullback.core.dtypes import DType as DType
from pullback.core.dtypes import bfloat16 as bfloat16
from pullback.core.dtypes import bool_ as bool
from pullback.core.dtypes import complex64 as complex64
from pullback.core.dtypes import complex128 as complex128
from pullback.core.dtypes import default_float as default_float
from pullback.core.dtypes import float16 as float16
from pullback.core.dtypes import float32 as float32
from pullback.core.dtypes import float64 as float64
from pullback.core.dtypes import int8 as int8
from pullback.core.dtypes import int16 as int16
from pullback.core.dtypes import int32 as int32
from pullback.core.dtypes import int64 as int64
from pullback.core.dtypes import set_default_float as set_default_float
from pullback.core.dtypes import uint8 as uint8
from pullback.core.dtypes import uint16 as uint16
from pullback.core.dtypes import uint32 as uint32
from pullback.core.dtypes import uint64 as uint64
from pullback.core.errors import AxisError as AxisError
from pullback.core.errors import CopyError as CopyError
from pullback.core.errors import DeviceError as DeviceError
from pullback.core.errors import DTypeError as DTypeError
from pullback.core.errors import ExchangeError as ExchangeError
from pullback.core.errors import FileFormatError as FileFormatError
from pullback.core.errors import GradientError as GradientError
from pullback.core.errors import LinAlgError as LinAlgError
from pullback.core.errors import MemoryBudgetError as MemoryBudgetError
from pullback.core.errors import NonFiniteError as NonFiniteError
from pullback.core.errors import PullbackError as PullbackError
from pullback.core.errors import RetraceWarning as RetraceWarning
from pullback.core.errors import ShapeError as ShapeError
from pullback.core.errors import TraceError as TraceError
from pullback.core.precision import get_matmul_precision as get_matmul_precision
from pullback.core.precision import matmul_precision as matmul_precision
from pullback.core.precision import set_matmul_precision as set_matmul_precision
from pullback.core.pytrees import map_tree as map_tree
from pullback.core.pytrees import register_pytree as register_pytree
from pullback.curvature import divergence as divergence
from pullback.curvature import gnvp as gnvp
from pullback.curvature import hutchinson_diagonal as hutchinson_diagonal
from pullback.curvature import hutchinson_trace as hutchinson_trace
from pullback.curvature import laplacian as laplacian
from pullback.files import load as load
from pullback.files import save as save
from pullback.implicit import custom_linear_solve as custom_linear_solve
from pullback.implicit import custom_root as custom_root
from pullback.implicit import fixed_point as fixed_point
from pullback.jacobians import hessian as hessian
from pullback.jacobians import jacfwd as jacfwd
from pullback.jacobians import jacobian as jacobian
from pullback.jacobians import jacrev as jacrev
from pullback.jacobians import linear_transpose as linear_transpose
from pullback.jacobians import linearize as linearize
from pullback.mapping import vmap as vmap
from pullback.module import Module as Module
from pullback.ops.index_plans import scatter_plan as scatter_plan
from pullback.profiling import profile as profile
from pullback.settings import config as config
from pullback.settings import get_num_threads as get_num_threads
from pullback.settings import get_printoptions as get_printoptions
from pullback.settings import printoptions as printoptions
from pullback.settings import set_num_threads as set_num_threads
from pullback.settings import set_printoptions as set_printoptions
from pullback.sparse_jacobians import SparseMatrix as SparseMatrix
from pullback.sparse_jacobians import jacobian_sparsity as jacobian_sparsity
from pullback.sparse_jacobians import sparse_jacobian as sparse_jacobian
from pullback.standard import __array_namespace_info__ as __array_namespace_info__
from pullback.standard import broadcast_shapes as broadcast_shapes
from pullback.standard import can_cast as can_cast
from pullback.standard import isdtype as isdtype
from pullback.standard import make_finfo as finfo
from pullback.standard import make_iinfo as iinfo
from pullback.standard import result_type as result_type
from pullback.tape import Graph as Graph
from pullback.tape import GraphNode as GraphNode
from pullback.tape import trace as trace
from pullback.taylor import jet as jet
from pullback.tensor import Tensor as Tensor
from pullback.tensor import _ArrayLike, _DeviceLike, _DTypeLike
from pullback.tensor import from_dlpack as from_dlpack
from pullback.tensor import tensor as tensor
from pullback.transforms import checkpoint as checkpoint
from pullback.transforms import grad as grad
from pullback.transforms import hvp as hvp
from pullback.transforms import jvp as jvp
from pullback.transforms import stop_gradient as stop_gradient
from pullback.transforms import value_and_grad as value_and_grad
from pullback.transforms import vjp as vjp

__array_api_version__: str
__version__: str
e: float
inf: float
nan: float
newaxis: None
pi: float
__all__ = [
    "AxisError",
    "CopyError",
    "DType",
    "DTypeError",
    "Device",
    "DeviceError",
    "ExchangeError",
    "FileFormatError",
    "GradientError",
    "Graph",
    "GraphNode",
    "LinAlgError",
    "MemoryBudgetError",
    "Module",
    "NonFiniteError",
    "PullbackError",
    "RetraceWarning",
    "ShapeError",
    "SparseMatrix",
    "Tensor",
    "TraceError",
    "__array_api_version__",
    "__array_namespace_info__",
    "__version__",
    "abs",
    "acos",
    "acosh",
    "add",
    "all",
    "allclose",
    "angle",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "asarray",
    "asin",
    "asinh",
    "astype",
    "atan",
    "atan2",
    "atanh",
    "average",
    "bfloat16",
    "bincount",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "block",
    "bool",
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "can_cast",
    "cbrt",
    "ceil",
    "check_grad",
    "checkpoint",
    "clip",
    "column_stack",
    "complex64",
    "complex128",
    "concat",
    "cond",
    "config",
    "conj",
    "convolve",
    "copysign",
    "corrcoef",
    "correlate",
    "cos",
    "cosh",
    "count_nonzero",
    "cov",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "cumulative_prod",
    "cumulative_sum",
    "cumulative_trapezoid",
    "custom_jvp",
    "custom_linear_solve",
    "custom_root",
    "custom_vjp",
    "debug",
    "default_device",
    "default_float",
    "deg2rad",
    "degrees",
    "device",
    "diag",
    "diag_embed",
    "diagonal",
    "diff",
    "digamma",
    "digitize",
    "divergence",
    "divide",
    "dstack",
    "e",
    "einsum",
    "empty",
    "empty_like",
    "enable_grad",
    "equal",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expand_dims",
    "expm1",
    "eye",
    "fft",
    "finfo",
    "fixed_point",
    "flatten",
    "flip",
    "fliplr",
    "flipud",
    "float16",
    "float32",
    "float64",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "fori_loop",
    "from_dlpack",
    "full",
    "full_like",
    "gather_nd",
    "geomspace",
    "get_matmul_precision",
    "get_num_threads",
    "get_printoptions",
    "gnvp",
    "grad",
    "gradient",
    "greater",
    "greater_equal",
    "heaviside",
    "hessian",
    "histogram",
    "histogram2d",
    "histogramdd",
    "hstack",
    "hutchinson_diagonal",
    "hutchinson_trace",
    "hvp",
    "hypot",
    "iinfo",
    "imag",
    "index_add",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "interp",
    "isclose",
    "isdtype",
    "isfinite",
    "isin",
    "isinf",
    "isnan",
    "jacfwd",
    "jacobian",
    "jacobian_sparsity",
    "jacrev",
    "jet",
    "jit",
    "jvp",
    "laplacian",
    "ldexp",
    "less",
    "less_equal",
    "lgamma",
    "linalg",
    "linear_transpose",
    "linearize",
    "linspace",
    "load",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logaddexp2",
    "logcumsumexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logspace",
    "logsumexp",
    "map_tree",
    "masked_fill",
    "masked_select",
    "matmul",
    "matmul_precision",
    "matrix_transpose",
    "max",
    "maximum",
    "mean",
    "median",
    "meshgrid",
    "min",
    "minimum",
    "moveaxis",
    "multiply",
    "nan",
    "nan_to_num",
    "nanargmax",
    "nanargmin",
    "nancumprod",
    "nancumsum",
    "nanmax",
    "nanmean",
    "nanmedian",
    "nanmin",
    "nanpercentile",
    "nanprod",
    "nanquantile",
    "nanstd",
    "nansum",
    "nanvar",
    "negative",
    "newaxis",
    "nextafter",
    "nn",
    "no_grad",
    "nonzero",
    "not_equal",
    "ones",
    "ones_like",
    "optim",
    "outer",
    "pad",
    "percentile",
    "permute_dims",
    "pi",
    "polyadd",
    "polyder",
    "polyfit",
    "polygamma",
    "polyint",
    "polymul",
    "polysub",
    "polyval",
    "positive",
    "pow",
    "primitive",
    "printoptions",
    "prod",
    "profile",
    "ptp",
    "pure_callback",
    "put",
    "put_along_axis",
    "quantile",
    "rad2deg",
    "radians",
    "random",
    "real",
    "reciprocal",
    "register_pytree",
    "remainder",
    "repeat",
    "reshape",
    "result_type",
    "roll",
    "roots",
    "rot90",
    "round",
    "rsqrt",
    "save",
    "scan",
    "scatter",
    "scatter_add",
    "scatter_plan",
    "searchsorted",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_sum",
    "set_default_device",
    "set_default_float",
    "set_matmul_precision",
    "set_num_threads",
    "set_printoptions",
    "sigmoid",
    "sign",
    "signal",
    "signbit",
    "sin",
    "sinc",
    "sinh",
    "sort",
    "sparse_jacobian",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "stop_gradient",
    "subtract",
    "sum",
    "swapaxes",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "tensor",
    "tensordot",
    "tile",
    "topk",
    "trace",
    "train",
    "trapezoid",
    "tril",
    "triu",
    "trunc",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "unstack",
    "unwrap",
    "value_and_grad",
    "var",
    "vecdot",
    "vjp",
    "vmap",
    "vstack",
    "where",
    "while_loop",
    "xlogy",
    "zeros",
    "zeros_like",
]

class TopK(NamedTuple):
    """The k largest (or smallest) elements, and where they were."""

    values: Tensor
    indices: Tensor

class UniqueAll(NamedTuple):
    """The distinct elements, where each is first, which one each element is, and how often."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor

class UniqueCounts(NamedTuple):
    """The distinct elements in order, and how often each occurs."""

    values: Tensor
    counts: Tensor

class UniqueInverse(NamedTuple):
    """The distinct elements in order, and which one each element is."""

    values: Tensor
    inverse_indices: Tensor

def abs(x: _ArrayLike, /) -> Tensor:
    """The absolute value, or the modulus of a complex number; its derivative at 0 is 0."""

def acos(x: _ArrayLike, /) -> Tensor:
    """The arc cosine, in [0, pi]; its derivative at 1 and -1 is infinite."""

def acosh(x: _ArrayLike, /) -> Tensor:
    """The nonnegative inverse of cosh; its derivative at 1 is infinite."""

def add(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """`x + y`; for booleans the logical or."""

def all(
    x: _ArrayLike, /, axis: int | Sequence[int] | None = None, *, keepdims: builtins.bool = False
) -> Tensor:
    """Whether every element along `axis` (None: all axes) is true, that is not 0."""

def allclose(
    x: _ArrayLike,
    y: _ArrayLike,
    /,
    *,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: builtins.bool = False,
) -> Tensor:
    """Whether all elements are close, as `isclose` says it."""

def angle(x: _ArrayLike, /) -> Tensor:
    """The argument of a complex array, in (-pi, pi]; its derivative at 0 is 0."""

def any(
    x: _ArrayLike, /, axis: int | Sequence[int] | None = None, *, keepdims: builtins.bool = False
) -> Tensor:
    """Whether an element along `axis` (None: all axes) is true, that is not 0."""

def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
    requires_grad: builtins.bool = False,
) -> Tensor:
    """`start + i * step` as long as it stays before `stop`; with one argument from 0 to it."""

def argmax(x: _ArrayLike, /, axis: int | None = None, *, keepdims: builtins.bool = False) -> Tensor:
    """The position of the first largest element along `axis` (None: of the flattened array)."""

def argmin(x: _ArrayLike, /, axis: int | None = None, *, keepdims: builtins.bool = False) -> Tensor:
    """The position of the first smallest element along `axis` (None: of the flattened array)."""

def argsort(
    x: _ArrayLike,
    /,
    axis: int = -1,
    *,
    descending: builtins.bool = False,
    stable: builtins.bool = True,
) -> Tensor:
    """The positions that sort the array along `axis`; always stable, NaN after all numbers."""

def asarray(
    obj: Any,
    /,
    *,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
    copy: builtins.bool | None = None,
    requires_grad: builtins.bool = False,
) -> Tensor:
    """`obj` (an array, a number, nested lists, or anything with `__array__`, DLPack or the
    buffer protocol) as an array.
    """

def asin(x: _ArrayLike, /) -> Tensor:
    """The arc sine, in [-pi/2, pi/2]; its derivative at 1 and -1 is infinite."""

def asinh(x: _ArrayLike, /) -> Tensor:
    """The inverse of sinh."""

def astype(
    x: _ArrayLike,
    dtype: _DTypeLike,
    /,
    *,
    copy: builtins.bool = True,
    device: _DeviceLike | None = None,
) -> Tensor:
    """The array with its elements converted to `dtype`; complex to real keeps the real part."""

def atan(x: _ArrayLike, /) -> Tensor:
    """The arc tangent, in [-pi/2, pi/2]."""

def atan2(y: _ArrayLike, x: _ArrayLike, /) -> Tensor:
    """The angle of the point (x, y), in [-pi, pi]; its derivative at the origin is 0."""

def atanh(x: _ArrayLike, /) -> Tensor:
    """The inverse of tanh."""

def average(
    x: _ArrayLike,
    /,
    weights: _ArrayLike | None = None,
    axis: int | Sequence[int] | None = None,
    *,
    keepdims: builtins.bool = False,
) -> Tensor:
    """The mean along `axis` (None: all axes) in which elements count by their weights."""

def bincount(
    x: _ArrayLike | scatter_plan,
    /,
    weights: _ArrayLike | None = None,
    *,
    minlength: int = 0,
    length: int | None = None,
) -> Tensor:
    """How often each number from 0 on occurs in `x`, or the sum of its weights."""

def bitwise_and(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """The bits that x and y share; the logical and of booleans."""

def bitwise_invert(x: _ArrayLike, /) -> Tensor:
    """The bits of x inverted; the logical not of booleans."""

def bitwise_left_shift(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """`x << y`; bits shifted out are lost, and a count beyond the width leaves 0."""

def bitwise_or(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """The bits of x and those of y; the logical or of booleans."""

def bitwise_right_shift(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """`x >> y`, with copies of the sign bit; a count beyond the width leaves nothing but those."""

def bitwise_xor(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """The bits in which x and y differ."""

def block(arrays: Any, /) -> Tensor:
    """An array of blocks in nested lists: the innermost lists are joined along the last axis."""

def broadcast_arrays(*arrays: _ArrayLike) -> tuple[Tensor, ...]:
    """The arrays, each broadcast to the shape that all of them broadcast to."""

def broadcast_to(x: _ArrayLike, /, shape: int | Sequence[int]) -> Tensor:
    """The array repeated along new and size-1 axes until it has `shape`; it takes no memory."""

def cbrt(x: _ArrayLike, /) -> Tensor:
    """The real cube root, negative for negative x."""

def ceil(x: _ArrayLike, /) -> Tensor:
    """The smallest integer that is not below x."""

def clip(x: _ArrayLike, /, min: _ArrayLike | None = None, max: _ArrayLike | None = None) -> Tensor:
    """x limited to [min, max]; a bound may be None, a number or an array, and a NaN stays NaN."""

def column_stack(arrays: Sequence[_ArrayLike], /) -> Tensor:
    """The arrays side by side; those with one axis are columns."""

def concat(arrays: Sequence[_ArrayLike], /, axis: int | None = 0) -> Tensor:
    """The arrays joined along an axis, in their common dtype; `axis=None` flattens them first."""

def conj(x: _ArrayLike, /) -> Tensor:
    """The complex conjugate; real arrays are unchanged."""

def convolve(a: _ArrayLike, v: _ArrayLike, /, mode: str = "full") -> Tensor:
    """The convolution of two sequences, `sum over j of a[j] v[k - j]`, by sums of products."""

def copysign(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """The magnitude of x with the sign bit of y; the derivative at x = 0 is 0."""

def corrcoef(x: _ArrayLike, /, y: _ArrayLike | None = None, rowvar: builtins.bool = True) -> Tensor:
    """The correlations of variables, one in each row: covariances over standard deviations."""

def correlate(a: _ArrayLike, v: _ArrayLike, /, mode: str = "valid") -> Tensor:
    """The correlation of two sequences, `sum over j of a[j + k] conj(v[j])`, by sums of
    products.
    """

def cos(x: _ArrayLike, /) -> Tensor:
    """The cosine."""

def cosh(x: _ArrayLike, /) -> Tensor:
    """The hyperbolic cosine."""

def count_nonzero(
    x: _ArrayLike, /, axis: int | Sequence[int] | None = None, *, keepdims: builtins.bool = False
) -> Tensor:
    """How many elements along `axis` (None: all axes) are not 0."""

def cov(
    m: _ArrayLike,
    /,
    y: _ArrayLike | None = None,
    rowvar: builtins.bool = True,
    bias: builtins.bool = False,
    ddof: int | None = None,
    fweights: _ArrayLike | None = None,
    aweights: _ArrayLike | None = None,
) -> Tensor:
    """The covariances of variables, one in each row: sums of products over n - 1 (n if `bias`)."""

def cummax(x: _ArrayLike, /, axis: int) -> Tensor:
    """The maximum so far along `axis`, NaN from the first NaN on."""

def cummin(x: _ArrayLike, /, axis: int) -> Tensor:
    """The minimum so far along `axis`, NaN from the first NaN on."""

def cumprod(
    x: _ArrayLike,
    /,
    axis: int | None = None,
    *,
    dtype: _DTypeLike | None = None,
    reverse: builtins.bool = False,
) -> Tensor:
    """The running product along `axis` (None: of the flattened array), from the end with
    `reverse`.
    """

def cumsum(
    x: _ArrayLike,
    /,
    axis: int | None = None,
    *,
    dtype: _DTypeLike | None = None,
    reverse: builtins.bool = False,
) -> Tensor:
    """The running sum along `axis` (None: of the flattened array), from the end with `reverse`."""

def cumulative_prod(
    x: _ArrayLike,
    /,
    axis: int | None = None,
    *,
    dtype: _DTypeLike | None = None,
    include_initial: builtins.bool = False,
) -> Tensor:
    """The running product along `axis`, after a 1 if `include_initial`; 1-D arrays need no
    axis.
    """

def cumulative_sum(
    x: _ArrayLike,
    /,
    axis: int | None = None,
    *,
    dtype: _DTypeLike | None = None,
    include_initial: builtins.bool = False,
) -> Tensor:
    """The running sum along `axis`, with a 0 first if `include_initial`; 1-D arrays need no
    axis.
    """

def cumulative_trapezoid(
    y: _ArrayLike,
    /,
    x: _ArrayLike | None = None,
    dx: float = 1.0,
    axis: int = -1,
    initial: int | None = None,
) -> Tensor:
    """The integrals from the first sample to each later one, by the trapezoidal rule."""

def deg2rad(x: _ArrayLike, /) -> Tensor:
    """Degrees as radians: `x pi / 180`."""

def degrees(x: _ArrayLike, /) -> Tensor:
    """The same as `rad2deg`."""

def diag(x: _ArrayLike, /, k: int = 0) -> Tensor:
    """The matrix with a 1-D array on its k-th diagonal, or the k-th diagonal of a matrix."""

def diag_embed(x: _ArrayLike, /, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices with the rows of `x` on a diagonal, `offset` above the main one."""

def diagonal(x: _ArrayLike, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The diagonal of the matrices that two axes span, as the last axis of the result."""

def diff(
    x: _ArrayLike,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: _ArrayLike | None = None,
    append: _ArrayLike | None = None,
) -> Tensor:
    """The `n`-th differences `x[i + 1] - x[i]` along `axis`, of `prepend`, `x` and `append`
    joined (with `n=0` it is `x`).
    """

def digamma(x: _ArrayLike, /) -> Tensor:
    """The derivative of lgamma."""

def digitize(x: _ArrayLike, bins: _ArrayLike, /, right: builtins.bool = False) -> Tensor:
    """The number of the bin of each value: i where `bins[i - 1] <= x < bins[i]`."""

def divide(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """`x / y`; integers are divided as floats."""

def dstack(arrays: Sequence[_ArrayLike], /) -> Tensor:
    """The arrays one behind the other, along the third axis."""

def einsum(subscripts: str | _ArrayLike, /, *operands: _ArrayLike | Sequence[int]) -> Tensor:
    """The sum of products that `subscripts` spell: labels absent from the output are summed
    over.
    """

def empty(
    shape: int | Sequence[int],
    *,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
    requires_grad: builtins.bool = False,
) -> Tensor:
    """An array to be filled later; it holds zeros, for nothing here is left uninitialised."""

def empty_like(
    x: _ArrayLike,
    /,
    *,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
    requires_grad: builtins.bool = False,
) -> Tensor:
    """An array to be filled later, with the shape, dtype and device of `x`; it holds zeros."""

def equal(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """`x == y`."""

def erf(x: _ArrayLike, /) -> Tensor:
    """The error function: 2 / sqrt(pi) times the integral of `exp(-t**2)` from 0 to x."""

def erfc(x: _ArrayLike, /) -> Tensor:
    """`1 - erf(x)`, accurate for large x."""

def erfinv(x: _ArrayLike, /) -> Tensor:
    """The inverse of erf."""

def exp(x: _ArrayLike, /) -> Tensor:
    """e to the power of x."""

def exp2(x: _ArrayLike, /) -> Tensor:
    """2 to the power of x."""

def expand_dims(x: _ArrayLike, /, axis: int = 0) -> Tensor:
    """The array with new axes of size 1; `axis` is where they are in the result."""

def expm1(x: _ArrayLike, /) -> Tensor:
    """`exp(x) - 1`, accurate for small x."""

def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
    requires_grad: builtins.bool = False,
) -> Tensor:
    """Ones on the k-th diagonal (0: the main one, positive: above it) of a matrix of zeros."""

def flatten(x: _ArrayLike, /, start_axis: int = 0, end_axis: int = -1) -> Tensor:
    """The array with the axes from `start_axis` to `end_axis` joined into one."""

def flip(x: _ArrayLike, /, axis: int | Sequence[int] | None = None) -> Tensor:
    """The array with the order of elements reversed along the axes given; along all by default."""

def fliplr(x: _ArrayLike, /) -> Tensor:
    """The array with its second axis backwards."""

def flipud(x: _ArrayLike, /) -> Tensor:
    """The array with its first axis backwards."""

def floor(x: _ArrayLike, /) -> Tensor:
    """The largest integer that is not above x."""

def floor_divide(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """`x // y`, the quotient rounded down; an integer divided by 0 gives 0, as in NumPy."""

def fmax(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """The larger of x and y, or the one that is not NaN; the derivative of a tie goes to x."""

def fmin(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """The smaller of x and y, or the one that is not NaN; the derivative of a tie goes to x."""

def fmod(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """The remainder of the division rounded towards zero, with the sign of x, as C's fmod."""

def full(
    shape: int | Sequence[int],
    fill_value: _ArrayLike,
    *,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
    requires_grad: builtins.bool = False,
) -> Tensor:
    """An array filled with one value, a number or a 0-d array (which it is differentiable in)."""

def full_like(
    x: _ArrayLike,
    /,
    fill_value: int,
    *,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
    requires_grad: builtins.bool = False,
) -> Tensor:
    """An array filled with one value, with the shape, dtype and device of `x`."""

def gather_nd(x: _ArrayLike, indices: _ArrayLike, /) -> Tensor:
    """`x[indices[..., 0], indices[..., 1], ...]`: the last axis of `indices` holds positions."""

def geomspace(
    start: _ArrayLike,
    stop: _ArrayLike,
    /,
    num: int = 50,
    *,
    endpoint: builtins.bool = True,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
    requires_grad: builtins.bool = False,
) -> Tensor:
    """`num` numbers from `start` to `stop`, each the same multiple of the one before it."""

def gradient(
    f: _ArrayLike,
    /,
    *spacing: _ArrayLike,
    axis: int | Sequence[int] | None = None,
    edge_order: int = 1,
) -> Tensor | Any:
    """The slope of a sampled function along each axis, by differences of second order inside."""

def greater(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """`x > y`."""

def greater_equal(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """`x >= y`."""

def heaviside(x1: _ArrayLike, x2: _ArrayLike, /) -> Tensor:
    """0 for negative `x1`, 1 for positive ones, and `x2` at 0."""

def histogram(
    x: _ArrayLike,
    /,
    bins: _ArrayLike = 10,
    range: tuple[float, float] | None = None,
    weights: Any = None,
    density: builtins.bool = False,
) -> tuple[Tensor, Tensor]:
    """How many elements of `x` fall in each bin, or the sum of their weights; and the bins'
    edges.
    """

def histogram2d(
    x: _ArrayLike,
    y: _ArrayLike,
    /,
    bins: int = 10,
    range: Any = None,
    weights: Any = None,
    density: builtins.bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """`histogramdd` of points with coordinates `x` and `y`: the counts, and the edges of both."""

def histogramdd(
    sample: _ArrayLike,
    /,
    bins: int | Sequence[int] | Sequence[_ArrayLike] = 10,
    range: Any = None,
    weights: Any = None,
    density: builtins.bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """How many points, one in each row, fall in each bin of a grid; and the edges on each axis."""

def hstack(arrays: Sequence[_ArrayLike], /) -> Tensor:
    """The arrays side by side: along the second axis, or the only one."""

def hypot(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """`sqrt(x**2 + y**2)` without overflow on the way; its derivative at the origin is 0."""

def imag(x: _ArrayLike, /) -> Tensor:
    """The imaginary part of a complex array."""

def index_add(
    x: _ArrayLike,
    indices: _ArrayLike | scatter_plan,
    updates: _ArrayLike,
    /,
    axis: int = 0,
    alpha: float = 1,
) -> Tensor:
    """`scatter_add` of `alpha * updates`."""

def interp(
    x: _ArrayLike,
    xp: _ArrayLike,
    fp: _ArrayLike,
    /,
    left: float | None = None,
    right: float | None = None,
    period: float | None = None,
) -> Tensor:
    """The piecewise linear function through the points (xp, fp), at `x`; `xp` must increase."""

def isclose(
    x: _ArrayLike,
    y: _ArrayLike,
    /,
    *,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: builtins.bool = False,
) -> Tensor:
    """Whether `abs(x - y) <= atol + rtol * abs(y)`, or x and y are equal."""

def isfinite(x: _ArrayLike, /) -> Tensor:
    """Whether x is neither infinite nor NaN."""

def isin(x1: _ArrayLike, x2: _ArrayLike, /, *, invert: builtins.bool = False) -> Tensor:
    """Whether each element of `x1` is one of those of `x2`; NaN equals nothing."""

def isinf(x: _ArrayLike, /) -> Tensor:
    """Whether x is infinite, in one part at least."""

def isnan(x: _ArrayLike, /) -> Tensor:
    """Whether x is NaN, in one part at least."""

def ldexp(x1: _ArrayLike, x2: _ArrayLike, /) -> Tensor:
    """`x1 * 2**x2` for integers `x2`, exact unless it leaves the range of the dtype."""

def less(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """`x < y`."""

def less_equal(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """`x <= y`."""

def lgamma(x: _ArrayLike, /) -> Tensor:
    """The logarithm of the absolute value of the gamma function."""

def linspace(
    start: _ArrayLike,
    stop: _ArrayLike,
    /,
    num: int,
    *,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
    endpoint: builtins.bool = True,
    requires_grad: builtins.bool = False,
) -> Tensor:
    """`num` evenly spaced values from `start` to `stop`, which is left out if `endpoint` is
    false.
    """

def log(x: _ArrayLike, /) -> Tensor:
    """The natural logarithm; of complex numbers the principal one."""

def log10(x: _ArrayLike, /) -> Tensor:
    """The logarithm to base 10."""

def log1p(x: _ArrayLike, /) -> Tensor:
    """`log(1 + x)`, accurate for small x."""

def log2(x: _ArrayLike, /) -> Tensor:
    """The logarithm to base 2."""

def logaddexp(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """`log(exp(x) + exp(y))` without overflow."""

def logaddexp2(x1: _ArrayLike, x2: _ArrayLike, /) -> Tensor:
    """The logarithm to base 2 of the sum `2**x1 + 2**x2`, without overflow."""

def logcumsumexp(x: _ArrayLike, /, axis: int, *, reverse: builtins.bool = False) -> Tensor:
    """The running `log(sum(exp(x)))` along `axis`, from the end with `reverse`, without
    overflow.
    """

def logical_and(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """Whether both x and y are not zero."""

def logical_not(x: _ArrayLike, /) -> Tensor:
    """Whether x is zero."""

def logical_or(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """Whether x or y is not zero."""

def logical_xor(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """Whether exactly one of x and y is not zero."""

def logspace(
    start: _ArrayLike,
    stop: _ArrayLike,
    /,
    num: int = 50,
    *,
    endpoint: builtins.bool = True,
    base: float = 10.0,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
    requires_grad: builtins.bool = False,
) -> Tensor:
    """`num` numbers from `base**start` to `base**stop`, whose logarithms are evenly spaced."""

def logsumexp(
    x: _ArrayLike, /, axis: int | Sequence[int] | None = None, *, keepdims: builtins.bool = False
) -> Tensor:
    """`log(sum(exp(x)))` along `axis` (None: all axes), without overflow."""

def masked_fill(x: _ArrayLike, mask: _ArrayLike, value: _ArrayLike, /) -> Tensor:
    """The array with `value` where the mask is true; the mask broadcasts to its shape."""

def masked_select(x: _ArrayLike, mask: _ArrayLike, /) -> Tensor:
    """The elements of `x` where `mask` is true, in row-major order; both broadcast."""

def matmul(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """The product of matrices in the last two axes, over broadcast batches."""

def matrix_transpose(x: _ArrayLike, /) -> Tensor:
    """The array with its last two axes exchanged."""

def max(
    x: _ArrayLike, /, axis: int | Sequence[int] | None = None, *, keepdims: builtins.bool = False
) -> Tensor:
    """The largest element along `axis` (None: all axes), NaN if there is one."""

def maximum(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """The larger of x and y, NaN if one of them is; a tie shares the derivative evenly."""

def mean(
    x: _ArrayLike, /, axis: int | Sequence[int] | None = None, *, keepdims: builtins.bool = False
) -> Tensor:
    """The mean of the elements along `axis` (None: all axes); NaN where there are none."""

def median(
    x: _ArrayLike, /, axis: int | Sequence[int] | None = None, *, keepdims: builtins.bool = False
) -> Tensor:
    """The middle element along `axis` (None: all axes), or the mean of the middle two."""

def meshgrid(*arrays: _ArrayLike, indexing: str = "xy") -> tuple[Tensor, ...]:
    """The coordinates of a grid whose axes are the given 1-D arrays."""

def min(
    x: _ArrayLike, /, axis: int | Sequence[int] | None = None, *, keepdims: builtins.bool = False
) -> Tensor:
    """The smallest element along `axis` (None: all axes), NaN if there is one."""

def minimum(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """The smaller of x and y, NaN if one of them is; a tie shares the derivative evenly."""

def moveaxis(
    x: _ArrayLike, source: int | Sequence[int], destination: int | Sequence[int], /
) -> Tensor:
    """The array with the axes `source` moved to the positions `destination`, the others in
    order.
    """

def multiply(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """`x * y`; for booleans the logical and."""

def nan_to_num(
    x: _ArrayLike, /, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """The array with numbers in place of NaN and of infinities: by default 0 and the largest
    ones.
    """

def nanargmax(
    x: _ArrayLike, /, axis: int | None = None, *, keepdims: builtins.bool = False
) -> Tensor:
    """The position of the largest element that is no NaN."""

def nanargmin(
    x: _ArrayLike, /, axis: int | None = None, *, keepdims: builtins.bool = False
) -> Tensor:
    """The position of the smallest element that is no NaN."""

def nancumprod(x: _ArrayLike, /, axis: int | None = None) -> Tensor:
    """The running product along `axis`, or of the flat array, in which NaN counts as 1."""

def nancumsum(x: _ArrayLike, /, axis: int | None = None) -> Tensor:
    """The running sum along `axis`, or of the flat array, to which NaN adds nothing."""

def nanmax(
    x: _ArrayLike, /, axis: int | Sequence[int] | None = None, *, keepdims: builtins.bool = False
) -> Tensor:
    """The largest element that is no NaN; NaN where all are."""

def nanmean(
    x: _ArrayLike, /, axis: int | Sequence[int] | None = None, *, keepdims: builtins.bool = False
) -> Tensor:
    """The mean of the elements that are no NaN; NaN where there are none."""

def nanmedian(
    x: _ArrayLike, /, axis: int | Sequence[int] | None = None, *, keepdims: builtins.bool = False
) -> Tensor:
    """The median of the elements that are no NaN."""

def nanmin(
    x: _ArrayLike, /, axis: int | Sequence[int] | None = None, *, keepdims: builtins.bool = False
) -> Tensor:
    """The smallest element that is no NaN; NaN where all are."""

def nanpercentile(
    x: _ArrayLike,
    q: float,
    /,
    axis: int | Sequence[int] | None = None,
    *,
    keepdims: builtins.bool = False,
    method: str = "linear",
) -> Tensor:
    """`nanquantile` at q percent."""

def nanprod(
    x: _ArrayLike, /, axis: int | Sequence[int] | None = None, *, keepdims: builtins.bool = False
) -> Tensor:
    """The product of the elements that are no NaN."""

def nanquantile(
    x: _ArrayLike,
    q: Any,
    /,
    axis: int | Sequence[int] | None = None,
    *,
    keepdims: builtins.bool = False,
    method: str = "linear",
) -> Tensor:
    """The quantile of the elements that are no NaN: see `quantile`."""

def nanstd(
    x: _ArrayLike,
    /,
    axis: int | Sequence[int] | None = None,
    *,
    correction: float = 0.0,
    keepdims: builtins.bool = False,
) -> Tensor:
    """The standard deviation of the elements that are no NaN: see `std`."""

def nansum(
    x: _ArrayLike, /, axis: int | Sequence[int] | None = None, *, keepdims: builtins.bool = False
) -> Tensor:
    """The sum of the elements that are no NaN."""

def nanvar(
    x: _ArrayLike,
    /,
    axis: int | Sequence[int] | None = None,
    *,
    correction: float = 0.0,
    keepdims: builtins.bool = False,
) -> Tensor:
    """The variance of the elements that are no NaN: see `var`."""

def negative(x: _ArrayLike, /) -> Tensor:
    """`-x`."""

def nextafter(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """The next number after x of its dtype in the direction of y; differentiated as x itself."""

def nonzero(x: _ArrayLike, /) -> tuple[Tensor, ...]:
    """The positions of the elements that are not zero, in row-major order: an array for each
    axis.
    """

def not_equal(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """`x != y`; true for NaN."""

def ones(
    shape: int | Sequence[int],
    *,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
    requires_grad: builtins.bool = False,
) -> Tensor:
    """An array of ones; it takes no memory."""

def ones_like(
    x: _ArrayLike,
    /,
    *,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
    requires_grad: builtins.bool = False,
) -> Tensor:
    """Ones with the shape, dtype and device of `x`."""

def outer(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """The matrix `x[i] * y[j]` of two vectors."""

def pad(
    x: _ArrayLike, /, pad_width: Any, mode: str = "constant", constant_values: _ArrayLike = 0
) -> Tensor:
    """The array with `pad_width` new elements before and after it on each axis."""

def percentile(
    x: _ArrayLike,
    q: Any,
    /,
    axis: int | Sequence[int] | None = None,
    *,
    keepdims: builtins.bool = False,
    method: str = "linear",
) -> Tensor:
    """`quantile` at q percent."""

def permute_dims(x: _ArrayLike, /, axes: int | Sequence[int], *more: int) -> Tensor:
    """The array with its axes reordered: axis k of the result is axis `axes[k]` of `x`."""

def polyadd(a1: _ArrayLike, a2: _ArrayLike, /) -> Tensor:
    """The sum of two polynomials."""

def polyder(p: _ArrayLike, /, m: int = 1) -> Tensor:
    """The coefficients of the m-th derivative of a polynomial."""

def polyfit(
    x: _ArrayLike, y: _ArrayLike, deg: int, /, *, rcond: Any = None, w: _ArrayLike | None = None
) -> Tensor:
    """The coefficients of the polynomial of degree `deg` with the least sum of squares of `w *
    (polyval(p, x) - y)`; of each column of `y`, if it has columns.
    """

def polygamma(n: int, x: _ArrayLike, /) -> Tensor:
    """The derivative of order n of digamma, for a Python integer n up to 128."""

def polyint(p: _ArrayLike, /, m: int = 1, k: float = 0.0) -> Tensor:
    """The coefficients of the m-th integral of a polynomial, each with the constant `k`."""

def polymul(a1: _ArrayLike, a2: _ArrayLike, /) -> Tensor:
    """The product of two polynomials."""

def polysub(a1: _ArrayLike, a2: _ArrayLike, /) -> Tensor:
    """The difference of two polynomials."""

def polyval(p: _ArrayLike, x: _ArrayLike, /) -> Tensor:
    """The polynomial `p[0] x^(n - 1) + ... + p[n - 1]` at `x`, by Horner's rule."""

def positive(x: _ArrayLike, /) -> Tensor:
    """`x` itself, as a new array."""

def pow(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """`x**y`, with `0**0 = 1`; integers stay integers, and their overflow wraps."""

def prod(
    x: _ArrayLike,
    /,
    axis: int | Sequence[int] | None = None,
    *,
    dtype: _DTypeLike | None = None,
    keepdims: builtins.bool = False,
) -> Tensor:
    """The product of the elements along `axis` (None: all axes), differentiable at zeros too."""

def ptp(
    x: _ArrayLike, /, axis: int | Sequence[int] | None = None, *, keepdims: builtins.bool = False
) -> Tensor:
    """The largest minus the smallest element along `axis` (None: all axes)."""

def put(
    x: _ArrayLike, indices: _ArrayLike | scatter_plan, values: _ArrayLike, /, mode: str = "set"
) -> Tensor:
    """A copy of `x` with `values` at the row-major positions `indices`; modes as in `scatter`."""

def put_along_axis(
    x: _ArrayLike, indices: _ArrayLike, values: _ArrayLike, /, axis: int = -1, mode: str = "set"
) -> Tensor:
    """A copy of `x` with `values` where `take_along_axis` would read; modes as in `scatter`."""

def quantile(
    x: _ArrayLike,
    q: Any,
    /,
    axis: int | Sequence[int] | None = None,
    *,
    keepdims: builtins.bool = False,
    method: str = "linear",
) -> Tensor:
    """The value below which a fraction `q` of the elements along `axis` lie."""

def rad2deg(x: _ArrayLike, /) -> Tensor:
    """Radians as degrees: `180 x / pi`."""

def radians(x: _ArrayLike, /) -> Tensor:
    """The same as `deg2rad`."""

def real(x: _ArrayLike, /) -> Tensor:
    """The real part of a complex array."""

def reciprocal(x: _ArrayLike, /) -> Tensor:
    """`1 / x`."""

def remainder(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """`x % y`, with the sign of y; an integer modulo 0 gives 0, as in NumPy."""

def repeat(
    x: _ArrayLike, repeats: Sequence[int] | _ArrayLike, /, axis: int | None = None
) -> Tensor:
    """Each element (or slice along `axis`) repeated in place, all or each its own number of
    times.
    """

def reshape(
    x: _ArrayLike, /, shape: int | Sequence[int], *more: int, copy: builtins.bool | None = None
) -> Tensor:
    """The same elements, in row-major order, with another shape; one size may be -1: the rest."""

def roll(
    x: _ArrayLike, /, shift: int | Sequence[int], axis: int | Sequence[int] | None = None
) -> Tensor:
    """The array moved along an axis, what leaves at the end coming back at the start."""

def roots(p: _ArrayLike, /) -> Tensor:
    """The complex roots of the polynomial `p[0] x^(n - 1) + ... + p[n - 1]`: the eigenvalues of
    its companion matrix, in the order of LAPACK.
    """

def rot90(x: _ArrayLike, /, k: int = 1, axes: tuple[int, int] = ...) -> Tensor:
    """The array turned k times by 90 degrees, from the first of the axes towards the second."""

def round(x: _ArrayLike, /, decimals: int = 0) -> Tensor:
    """x rounded to a number of decimals, half to even."""

def rsqrt(x: _ArrayLike, /) -> Tensor:
    """`1 / sqrt(x)`."""

def scatter(
    x: _ArrayLike,
    indices: _ArrayLike | scatter_plan,
    updates: _ArrayLike,
    /,
    axis: int = 0,
    mode: str = "set",
    *,
    include_self: builtins.bool = True,
) -> Tensor:
    """A copy of `x` with `updates` put at `indices` along `axis`: what `take` reads is written."""

def scatter_add(
    x: _ArrayLike,
    indices: _ArrayLike | scatter_plan,
    updates: _ArrayLike,
    /,
    axis: int = 0,
    *,
    exact: builtins.bool = False,
) -> Tensor:
    """A copy of `x` with `updates` added at `indices` along `axis`; every duplicate counts."""

def searchsorted(
    x1: _ArrayLike, x2: _ArrayLike, /, *, side: str = "left", sorter: _ArrayLike | None = None
) -> Tensor:
    """The positions in the sorted array `x1` at which the elements of `x2` would keep it
    sorted.
    """

def segment_max(
    x: _ArrayLike, segment_ids: _ArrayLike | scatter_plan, /, num_segments: int | None = None
) -> Tensor:
    """The largest rows of `x` by segment; without rows, the least value of the dtype."""

def segment_mean(
    x: _ArrayLike, segment_ids: _ArrayLike | scatter_plan, /, num_segments: int | None = None
) -> Tensor:
    """The means of the rows of `x` by segment; a segment without rows is 0."""

def segment_min(
    x: _ArrayLike, segment_ids: _ArrayLike | scatter_plan, /, num_segments: int | None = None
) -> Tensor:
    """The smallest rows of `x` by segment; without rows, the greatest value of the dtype."""

def segment_prod(
    x: _ArrayLike, segment_ids: _ArrayLike | scatter_plan, /, num_segments: int | None = None
) -> Tensor:
    """The products of the rows of `x` by segment; a segment without rows is 1."""

def segment_sum(
    x: _ArrayLike, segment_ids: _ArrayLike | scatter_plan, /, num_segments: int | None = None
) -> Tensor:
    """The sums of the rows of `x` by segment: `out[s]` adds the rows with `segment_ids == s`."""

def sigmoid(x: _ArrayLike, /) -> Tensor:
    """The logistic function `1 / (1 + exp(-x))`."""

def sign(x: _ArrayLike, /) -> Tensor:
    """-1, 0 or 1 by the sign of x; `x / abs(x)` for complex numbers, and 0 at 0."""

def signbit(x: _ArrayLike, /) -> Tensor:
    """Whether the sign bit is set; -0.0 has one."""

def sin(x: _ArrayLike, /) -> Tensor:
    """The sine."""

def sinc(x: _ArrayLike, /) -> Tensor:
    """`sin(pi x) / (pi x)`, 1 at 0; its derivatives of every order exist at 0, too."""

def sinh(x: _ArrayLike, /) -> Tensor:
    """The hyperbolic sine."""

def sort(
    x: _ArrayLike,
    /,
    axis: int = -1,
    *,
    descending: builtins.bool = False,
    stable: builtins.bool = True,
) -> Tensor:
    """The elements in order along `axis`, NaN after all numbers (first when descending)."""

def split(
    x: _ArrayLike, indices_or_sections: int | Sequence[int], /, axis: int = 0
) -> list[Tensor]:
    """The array cut along an axis: into equal parts, or before each of the positions given."""

def sqrt(x: _ArrayLike, /) -> Tensor:
    """The square root; its derivative at 0 is infinite."""

def square(x: _ArrayLike, /) -> Tensor:
    """`x * x`."""

def squeeze(x: _ArrayLike, /, axis: int | Sequence[int] | None = None) -> Tensor:
    """The array without the axes of size 1 that `axis` names, or (without `axis`) without any."""

def stack(arrays: Sequence[_ArrayLike], /, axis: int = 0) -> Tensor:
    """The arrays, of one shape, side by side along a new axis."""

def std(
    x: _ArrayLike,
    /,
    axis: int | Sequence[int] | None = None,
    *,
    correction: float = 0.0,
    keepdims: builtins.bool = False,
) -> Tensor:
    """The standard deviation, the square root of `var`; where it is 0 so is its derivative."""

def subtract(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """`x - y`."""

def sum(
    x: _ArrayLike,
    /,
    axis: int | Sequence[int] | None = None,
    *,
    dtype: _DTypeLike | None = None,
    keepdims: builtins.bool = False,
) -> Tensor:
    """The sum of the elements along `axis` (None: all axes); integers and bools add up in 64
    bits.
    """

def swapaxes(x: _ArrayLike, axis1: int, axis2: int, /) -> Tensor:
    """The array with two axes exchanged."""

def take(x: _ArrayLike, indices: _ArrayLike | scatter_plan, /, axis: int | None = None) -> Tensor:
    """The slices of `x` at `indices` along `axis`; without an axis, elements of the flat array."""

def take_along_axis(x: _ArrayLike, indices: _ArrayLike, /, axis: int = -1) -> Tensor:
    """`out[i, j, k] = x[i, indices[i, j, k], k]` (here along axis 1): one index for each
    element.
    """

def tan(x: _ArrayLike, /) -> Tensor:
    """The tangent."""

def tanh(x: _ArrayLike, /) -> Tensor:
    """The hyperbolic tangent."""

def tensordot(x1: _ArrayLike, x2: _ArrayLike, /, *, axes: Any = 2) -> Tensor:
    """The sum of products over the last `axes` axes of `x1` and the first of `x2`."""

def tile(x: _ArrayLike, repetitions: int | Sequence[int], /) -> Tensor:
    """The whole array repeated along each axis."""

def topk(
    x: _ArrayLike,
    /,
    k: int,
    axis: int = -1,
    *,
    largest: builtins.bool = True,
    sorted: builtins.bool = True,
) -> TopK:
    """The `k` largest (or smallest) elements along `axis`, in order, and their positions."""

def trapezoid(
    y: _ArrayLike, /, x: _ArrayLike | None = None, dx: float = 1.0, axis: int = -1
) -> Tensor:
    """The integral of samples `y` at places `x`, or `dx` apart, by the trapezoidal rule."""

def tril(x: _ArrayLike, /, *, k: int = 0) -> Tensor:
    """The lower triangle of matrices: zeros above the k-th diagonal."""

def triu(x: _ArrayLike, /, *, k: int = 0) -> Tensor:
    """The upper triangle of matrices: zeros below the k-th diagonal."""

def trunc(x: _ArrayLike, /) -> Tensor:
    """x rounded towards zero."""

def unique_all(x: _ArrayLike, /) -> UniqueAll:
    """The distinct elements, sorted, where each is first, which one each element is, and how
    often.
    """

def unique_counts(x: _ArrayLike, /) -> UniqueCounts:
    """The distinct elements in order, and how often each occurs."""

def unique_inverse(x: _ArrayLike, /) -> UniqueInverse:
    """The distinct elements in order, and which one each element is."""

def unique_values(x: _ArrayLike, /) -> Tensor:
    """The distinct elements in order."""

def unstack(x: _ArrayLike, /, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices of the array along an axis, as a tuple."""

def unwrap(
    p: _ArrayLike,
    /,
    discont: float | None = None,
    axis: int = -1,
    *,
    period: float = 6.283185307179586,
) -> Tensor:
    """Phases moved by whole periods, so that neighbours differ by half a period at most."""

def var(
    x: _ArrayLike,
    /,
    axis: int | Sequence[int] | None = None,
    *,
    correction: float = 0.0,
    keepdims: builtins.bool = False,
) -> Tensor:
    """The sum of squared distances to the mean along `axis` (None: all), over n - `correction`."""

def vecdot(x1: _ArrayLike, x2: _ArrayLike, /, axis: int = -1) -> Tensor:
    """The dot product `sum(conj(x1) * x2)` along `axis`, over broadcast batches."""

def vstack(arrays: Sequence[_ArrayLike], /) -> Tensor:
    """The arrays one below the other; those with one axis are rows."""

def where(condition: _ArrayLike, x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """`x` where the condition holds (is not zero), elsewhere `y`."""

def xlogy(x: _ArrayLike, y: _ArrayLike, /) -> Tensor:
    """`x * log(y)`, and 0 where x is 0, whatever y is."""

def zeros(
    shape: int | Sequence[int],
    *,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
    requires_grad: builtins.bool = False,
) -> Tensor:
    """An array of zeros; it takes no memory."""

def zeros_like(
    x: _ArrayLike,
    /,
    *,
    dtype: _DTypeLike | None = None,
    device: _DeviceLike | None = None,
    requires_grad: builtins.bool = False,
) -> Tensor:
    """Zeros with the shape, dtype and device of `x`."""
