"""NumPy's functions on tensors: `np.sin(x)` and `np.sum(x, axis=0)` are the library's own
functions, so that derivatives survive.

What has no counterpart is given NumPy arrays, and gives some, where no gradient would be lost.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from pullback.core import pytrees
from pullback.core.errors import DTypeError, GradientError
from pullback.ir.array import Array, mode
from pullback.ir.op import REGISTRY, another

__all__ = ["call_function", "call_ufunc"]

# -- element by element ----------------------------------------------------------------------------

# NumPy's universal functions under other names than ours.
UFUNCS = {
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "conjugate": "conj",
    "fabs": "abs",
    "float_power": "pow",
    "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift",
    "power": "pow",
    "right_shift": "bitwise_right_shift",
    "rint": "round",
    "true_divide": "divide",
    "vecdot": "vecdot",
}
REDUCTIONS = {
    "add": "sum",
    "bitwise_or": "any",
    "logical_and": "all",
    "logical_or": "any",
    "maximum": "max",
    "minimum": "min",
    "multiply": "prod",
}
ACCUMULATIONS = {"add": "cumulative_sum", "multiply": "cumulative_prod"}


def call_ufunc(ufunc: np.ufunc, method: str, inputs: tuple, options: dict[str, Any]) -> Any:
    """`ufunc(*inputs)`, or its reduction or accumulation, by our function of that meaning."""
    name = ufunc.__name__
    said = f"np.{name}" if method == "__call__" else f"np.{name}.{method}"
    if any(o is not None for o in options.pop("out", ())):
        raise DTypeError(
            f"{said}: a result can't be written into a NumPy array. Leave out=... away, and write"
            " a = a + x for a += x."
        )
    if method == "outer" and not options and len(inputs) == 2 and np.ndim(inputs[1]):
        x, y = inputs
        x = _ours("reshape")(x, (*np.shape(x), *[1] * np.ndim(y)))
        return call_ufunc(ufunc, "__call__", (x, y), {})
    if method == "__call__" and name in PAIRS and not options:
        return PAIRS[name](*inputs)
    tables = {"__call__": UFUNCS, "reduce": REDUCTIONS, "accumulate": ACCUMULATIONS}
    ours = tables.get(method, {}).get(name, name if method == "__call__" else "")
    if ours not in REGISTRY:
        return _by_numpy(said, getattr(ufunc, method), inputs, options)
    if method == "__call__":
        dtype = options.pop("dtype", None)
        _refuse(said, options)
        out = REGISTRY[ours].function(*inputs)
        return out if dtype is None else REGISTRY["astype"].function(out, dtype)
    x, *rest = inputs
    axis = options.pop("axis", rest[0] if rest else 0)
    keepdims = {"keepdims": True} if options.pop("keepdims", False) else {}
    _refuse(said, options)
    return REGISTRY[ours].function(x, axis=axis, **keepdims)


def _divmod(x: Any, y: Any) -> tuple[Any, Any]:
    return _ours("floor_divide")(x, y), _ours("remainder")(x, y)


def _modf(x: Any) -> tuple[Any, Any]:
    whole = _ours("trunc")(x)
    # An infinity has no fraction, but for the zero of its sign.
    fraction = _ours("where")(_ours("isinf")(x), 0.0, x - whole)
    return _ours("copysign")(fraction, x), whole


# Universal functions of two results.
PAIRS: dict[str, Callable[..., Any]] = {"divmod": _divmod, "modf": _modf}


def _refuse(said: str, options: dict[str, Any]) -> None:
    for name, value in options.items():
        if value is not None and value is not np._NoValue:
            raise DTypeError(f"{said}: {name} is not supported for tensors, got {value!r}.")


# -- functions -------------------------------------------------------------------------------------

# NumPy's functions that ours of the same name do the work of, by module. Those that are in no
# table have no counterpart of the same meaning.
SAME = {
    "numpy": """
        all allclose angle any argmax argmin argsort average bincount block
        broadcast_arrays broadcast_to clip column_stack convolve corrcoef correlate
        count_nonzero cov cumulative_prod cumulative_sum diag diagonal diff digitize
        dstack einsum empty_like expand_dims flip fliplr flipud full_like gradient
        histogram hstack interp isclose isin linspace matrix_transpose max mean median
        meshgrid min moveaxis nan_to_num nanargmax nanargmin nancumprod nancumsum nanmax
        nanmean nanmedian nanmin nanpercentile nanprod nanquantile nanstd nansum nanvar
        nonzero ones_like outer pad percentile permute_dims polyadd polyder polyint
        polymul polysub polyval prod ptp quantile repeat reshape roll rot90 round
        searchsorted sinc sort stack std sum swapaxes take_along_axis tensordot
        tile trapezoid tril triu unstack unwrap var vstack where zeros_like
    """,
    "numpy.linalg": """
        cholesky cross det diagonal eig eigh eigvals eigvalsh inv matmul matrix_norm matrix_power
        matrix_rank matrix_transpose multi_dot outer pinv qr slogdet solve svd svdvals tensordot
        trace vecdot vector_norm
    """,
    "numpy.fft": """
        fft ifft rfft irfft fftn ifftn rfftn irfftn hfft ihfft fftshift ifftshift
    """,
}
RENAMED = {"amax": "max", "amin": "min", "around": "round", "concatenate": "concat"}
# What NumPy calls our keywords.
KEYWORDS = {"a_min": "min", "a_max": "max", "ddof": "correction"}


def _ours(name: str) -> Callable[..., Any]:
    return REGISTRY[name].function


def _flat(x: Any) -> Any:
    return _ours("reshape")(x, (-1,))


def _transpose(a: Any, axes: Any = None) -> Any:
    return _ours("permute_dims")(a, tuple(range(np.ndim(a)))[::-1] if axes is None else axes)


def _squeeze(a: Any, axis: Any = None) -> Any:
    ones = tuple(d for d, n in enumerate(np.shape(a)) if n == 1)
    return _ours("squeeze")(a, ones if axis is None else axis)


def _take(a: Any, indices: Any, axis: Any = None) -> Any:
    return _ours("take")(_flat(a) if axis is None else a, indices, axis=axis or 0)


def _cumsum(a: Any, axis: Any = None, dtype: Any = None) -> Any:
    return _ours("cumsum")(_flat(a) if axis is None else a, axis or 0, dtype=dtype)


def _cumprod(a: Any, axis: Any = None, dtype: Any = None) -> Any:
    return _ours("cumprod")(_flat(a) if axis is None else a, axis or 0, dtype=dtype)


def _dot(a: Any, b: Any) -> Any:
    if np.ndim(a) == 0 or np.ndim(b) == 0:
        return _ours("multiply")(a, b)
    return _ours("tensordot")(a, b, axes=([-1], [-2 if np.ndim(b) > 1 else -1]))


def _inner(a: Any, b: Any) -> Any:
    if np.ndim(a) == 0 or np.ndim(b) == 0:
        return _ours("multiply")(a, b)
    return _ours("tensordot")(a, b, axes=([-1], [-1]))


def _vdot(a: Any, b: Any) -> Any:
    return _ours("vecdot")(_flat(a), _flat(b))


def _trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    return _ours("sum")(_ours("diagonal")(a, offset, axis1, axis2), axis=-1)


def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    import_module("pullback.linalg")
    if axis is None and ord is None:
        return _ours("linalg.vector_norm")(x, keepdims=keepdims)
    axes = tuple(range(np.ndim(x))) if axis is None else np.atleast_1d(axis).tolist()
    if len(axes) == 1:
        order = 2 if ord is None else ord
        return _ours("linalg.vector_norm")(x, axis=axes[0], keepdims=keepdims, ord=order)
    order = "fro" if ord is None else ord
    matrices = _ours("moveaxis")(x, tuple(axes), (-2, -1))
    norm = _ours("linalg.matrix_norm")(matrices, keepdims=keepdims, ord=order)
    return _ours("moveaxis")(norm, (-2, -1), tuple(axes)) if keepdims else norm


def _real(val: Any) -> Any:
    return val.real


def _imag(val: Any) -> Any:
    return val.imag if val._aval.dtype.is_complex else _ours("zeros_like")(val)


def _copy(a: Any) -> Any:
    return another(a)


def _append(arr: Any, values: Any, axis: Any = None) -> Any:
    parts = (arr, values) if axis is not None else (_flat(arr), _flat(values))
    return _ours("concat")(parts, axis=axis or 0)


def _delete(arr: Any, obj: Any, axis: int | None = None) -> Any:
    arr = _flat(arr) if axis is None else arr
    left = np.delete(np.arange(np.shape(arr)[axis or 0]), np.asarray(obj))
    return _ours("take")(arr, left, axis=axis or 0)


def _cross(a: Any, b: Any, axis: int = -1) -> Any:
    import_module("pullback.linalg")
    return _ours("linalg.cross")(a, b, axis=axis)


def _kron(a: Any, b: Any) -> Any:
    import_module("pullback.linalg")
    return _ours("linalg.kron")(a, b)


def _array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    if not isinstance(indices_or_sections, (int, np.integer)):
        return _split(ary, indices_or_sections, axis)
    n, parts = ary.shape[axis], int(indices_or_sections)
    sizes = [n // parts + (i < n % parts) for i in range(parts)]
    return _split(ary, np.cumsum(sizes)[:-1].tolist(), axis)


def _split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    where = indices_or_sections
    if not isinstance(where, (int, np.integer)):
        where = np.asarray(where).tolist()
    return list(_ours("split")(ary, where, axis=axis))


def _hsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    return _split(ary, indices_or_sections, 0 if np.ndim(ary) == 1 else 1)


def _vsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    return _split(ary, indices_or_sections, 0)


def _dsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    return _split(ary, indices_or_sections, 2)


def _atleast(ndim: int) -> Callable[..., Any]:
    def atleast(*arys: Any) -> Any:
        shaped = tuple(_ours("reshape")(a, _padded(np.shape(a), ndim)) for a in arys)
        return shaped[0] if len(shaped) == 1 else shaped

    return atleast


def _padded(shape: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    """A shape with axes of size 1 where NumPy puts them."""
    if len(shape) >= ndim:
        return shape
    if ndim == 3 and len(shape) == 2:
        return (*shape, 1)
    return (1, *shape, 1)[:3] if ndim == 3 and shape else (1,) * (ndim - len(shape)) + shape


SPECIAL: dict[str, Callable[..., Any]] = {
    "numpy.append": _append,
    "numpy.array_split": _array_split,
    "numpy.atleast_1d": _atleast(1),
    "numpy.atleast_2d": _atleast(2),
    "numpy.atleast_3d": _atleast(3),
    "numpy.copy": _copy,
    "numpy.cross": _cross,
    "numpy.cumprod": _cumprod,
    "numpy.cumsum": _cumsum,
    "numpy.delete": _delete,
    "numpy.dot": _dot,
    "numpy.dsplit": _dsplit,
    "numpy.hsplit": _hsplit,
    "numpy.imag": _imag,
    "numpy.inner": _inner,
    "numpy.kron": _kron,
    "numpy.linalg.norm": _norm,
    "numpy.ravel": _flat,
    "numpy.real": _real,
    "numpy.split": _split,
    "numpy.squeeze": _squeeze,
    "numpy.take": _take,
    "numpy.trace": _trace,
    "numpy.transpose": _transpose,
    "numpy.vdot": _vdot,
    "numpy.vsplit": _vsplit,
}


@cache
def _counterpart(full: str) -> Callable[..., Any] | None:
    """Our function for one of NumPy's; its namespace is imported for it."""
    if full in SPECIAL:
        return SPECIAL[full]
    home, _, name = full.rpartition(".")
    if home == "numpy" and name in RENAMED:
        return _ours(RENAMED[name])
    if name not in SAME.get(home, "").split():
        return None
    namespace = home.removeprefix("numpy").removeprefix(".")
    return vars(import_module(f"pullback.{namespace}"))[name] if namespace else _ours(name)


def call_function(function: Callable[..., Any], args: tuple, options: dict[str, Any]) -> Any:
    """A function of NumPy's by ours of that meaning."""
    if function in (np.shape, np.ndim, np.size):
        return function.__wrapped__(*args, **options)  # type: ignore[attr-defined]
    full = f"{function.__module__}.{function.__name__}"
    said = full.replace("numpy", "np", 1)
    ours = _counterpart(full)
    if ours is None:
        return _by_numpy(said, function, args, options)
    leading, keywords = _arguments(said, function, ours, args, options)
    return ours(*leading, **keywords)


def _arguments(
    said: str, function: Any, ours: Any, args: tuple, options: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call of NumPy's for our function: arrays by position, the rest by name."""
    theirs = inspect.signature(function)
    parameters = inspect.signature(ours).parameters
    leading: list[Any] = []
    keywords: dict[str, Any] = {}
    for name, value in theirs.bind(*args, **options).arguments.items():
        expected, own = theirs.parameters[name], KEYWORDS.get(name, name)
        if expected.kind is expected.VAR_POSITIONAL:
            leading += value
        elif expected.kind is expected.VAR_KEYWORD:
            keywords |= value
        elif _is_default(value, expected.default):
            continue
        elif own in parameters and parameters[own].kind is not expected.POSITIONAL_ONLY:
            keywords[own] = value
        elif expected.default is expected.empty or expected.kind is expected.POSITIONAL_ONLY:
            leading.append(value)
        else:
            raise DTypeError(f"{said}: {name} is not supported for tensors, got {value!r}.")
    return leading, keywords


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, (str, bool, int)) and value == default)


def _by_numpy(said: str, function: Any, args: tuple, options: dict[str, Any]) -> Any:
    """The function itself, of NumPy arrays."""

    def array(x: Any) -> Any:
        if not isinstance(x, Array):
            return x
        if x._node is not None and mode.recording:
            raise GradientError(
                f"{said}: the tensor requires a gradient, and NumPy would lose it. Use a"
                " function of pullback, or call detach() first."
            )
        return x.numpy()  # type: ignore[attr-defined]

    args, options = pytrees.map_tree(array, (args, options))
    return function(*args, **options)
