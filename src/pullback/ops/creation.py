"""New arrays: constants (views of one kept element, which take no memory), ranges, the identity."""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import Aval, Device, aval, default_device, device
from pullback.core.dtypes import DType, as_dtype, default_float
from pullback.core.errors import CopyError, DTypeError, ShapeError
from pullback.ir import scalar as sc
from pullback.ir.array import Array, make
from pullback.ir.convert import as_array, is_number, scalar, shape_of, sharing, to_numpy
from pullback.ir.lowering import Elementwise
from pullback.ir.op import REGISTRY, another, bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ir.scalar import Complex, Value
from pullback.ops.families import composite, primitive, sum_to
from pullback.ops.movement import broadcast_to, embed, reshape
from pullback.ops.parts import astype

__all__ = [
    "arange", "asarray", "empty", "empty_like", "eye", "full", "full_like", "linspace", "ones",
    "ones_like", "ramp", "zeros", "zeros_like",
]  # fmt: skip

find_device = device  # creation functions have a parameter of that name, as the standard says


def broadcasts(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether an array of `shape` broadcasts to another shape."""
    pairs = zip(shape[::-1], wanted[::-1], strict=False)
    return len(shape) <= len(wanted) and all(n in (1, m) for n, m in pairs)


def _at(where: str | Device | None) -> Device:
    return default_device() if where is None else find_device(where)


def constant(value: Any, shape: tuple[int, ...], dtype: DType, dev: Device) -> Any:
    """A constant array: one element, seen from everywhere."""
    x = scalar(value, dtype, dev)
    if shape == () or x._aval.is_symbolic:
        return another(x) if shape == () else bind(broadcast_to.op, x, shape=shape)
    return make(x._buf, _repeated(shape, dtype, dev))


@lru_cache(1024)
def _repeated(shape: tuple[int, ...], dtype: DType, dev: Device) -> Aval:
    """The aval of one element seen from everywhere."""
    return aval(shape, dtype, dev, (0,) * len(shape))


def _numpy_dtype(dtype: Any, default: Any) -> np.dtype:
    return as_dtype(default if dtype is None else dtype).numpy


def _shape_samples(*more: Any) -> Any:
    def samples(d: Draw) -> list[Sample]:
        shapes: list[Any] = [(2, 3), 4, (), (0, 2)]
        cases = [Sample((s, *more)) for s in shapes]
        return [*cases, Sample(((2, 2), *more), {"dtype": dt.int32})]

    return samples


def _shape_errors(*more: Any) -> Any:
    return lambda d: [
        Bad(((2, -1), *more), {}, ShapeError, "negative"),
        Bad(((2, 0.5), *more), {}, DTypeError, "integers"),
        Bad(((2,), *more), {"dtype": "float31"}, DTypeError, "unknown dtype"),
    ]


@composite(
    oracle=lambda shape, dtype=None: np.zeros(shape, _numpy_dtype(dtype, float)),
    samples=_shape_samples(),
    errors=_shape_errors(),
    differentiable=False,
    creates=True,
)
def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """An array of zeros; it takes no memory.

    >>> pb.zeros((2, 2))
    tensor([[0., 0.],
            [0., 0.]], float32, cpu)
    """
    dtype = default_float() if dtype is None else as_dtype(dtype, "zeros")
    return constant(0, shape_of(shape, "zeros"), dtype, _at(device))


@composite(
    oracle=lambda shape, dtype=None: np.ones(shape, _numpy_dtype(dtype, float)),
    samples=_shape_samples(),
    errors=_shape_errors(),
    differentiable=False,
    creates=True,
)
def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """An array of ones; it takes no memory.

    >>> pb.ones(3)
    tensor([1., 1., 1.], float32, cpu)
    """
    dtype = default_float() if dtype is None else as_dtype(dtype, "ones")
    return constant(1, shape_of(shape, "ones"), dtype, _at(device))


@composite(
    oracle=lambda shape, dtype=None: np.zeros(shape, _numpy_dtype(dtype, float)),
    samples=_shape_samples(),
    errors=_shape_errors(),
    differentiable=False,
    creates=True,
)
def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """An array to be filled later; it holds zeros, for nothing here is left uninitialised.

    >>> pb.empty((2, 3)).shape
    (2, 3)
    """
    dtype = default_float() if dtype is None else as_dtype(dtype, "empty")
    return constant(0, shape_of(shape, "empty"), dtype, _at(device))


def _full_oracle(shape: Any, fill_value: Any, dtype: Any = None) -> np.ndarray:
    return np.full(shape, fill_value, None if dtype is None else _numpy_dtype(dtype, float))


@composite(
    oracle=_full_oracle,
    samples=lambda d: [
        Sample(((2, 3), d.real())),
        Sample(((2, 3), 7)),
        Sample(((), True)),
        Sample(((0, 2), 1.5), {"dtype": dt.float64}),
    ],
    errors=_shape_errors(1.5),
    creates=True,
)
def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """An array filled with one value, a number or a 0-d array (which it is differentiable in).

    >>> pb.full((2,), 7)
    tensor([7, 7], int64, cpu)
    """
    shape = shape_of(shape, "full")
    wanted = None if dtype is None else as_dtype(dtype, "full")
    if is_number(fill_value):
        own = dt.bool_ if isinstance(fill_value, bool) else as_dtype(type(fill_value))
        return constant(fill_value, shape, wanted or own, _at(device))
    x = as_array(fill_value, "full", dev=None if device is None else _at(device))
    if not broadcasts(x._aval.shape, shape):
        raise ShapeError(f"full: a value of shape {x._aval.shape} does not broadcast to {shape}.")
    return broadcast_to(x if wanted is None else astype(x, wanted), shape)


def _like(name: str, x: Any, dtype: Any, where: Any) -> tuple[tuple[int, ...], DType, Device]:
    av = as_array(x, name)._aval
    chosen = av.dtype if dtype is None else as_dtype(dtype, name)
    return av.shape, chosen, av.device if where is None else find_device(where)


def _like_samples(*more: Any) -> Any:
    return lambda d: [
        Sample((d.real(2, 3), *more)),
        Sample((d.real(), *more)),
        Sample((d.integers(0, 2), *more), {"dtype": dt.float32}),
    ]


def _like_errors(*more: Any) -> Any:
    return lambda d: [
        Bad((object(), *more), {}, DTypeError, "expected an array"),
        Bad((d.real(2), *more), {"dtype": "float31"}, DTypeError, "unknown dtype"),
    ]


def _like_oracle(make: Any) -> Any:
    def oracle(x: np.ndarray, *more: Any, dtype: Any = None) -> np.ndarray:
        return make(x, *more, dtype=x.dtype if dtype is None else dtype.numpy)

    return oracle


@composite(
    oracle=_like_oracle(np.zeros_like), samples=_like_samples(), errors=_like_errors(), creates=True
)
def zeros_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Any:
    """Zeros with the shape, dtype and device of `x`.

    >>> pb.zeros_like(pb.tensor([1, 2]))
    tensor([0, 0], int64, cpu)
    """
    return constant(0, *_like("zeros_like", x, dtype, device))


@composite(
    oracle=_like_oracle(np.ones_like), samples=_like_samples(), errors=_like_errors(), creates=True
)
def ones_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Any:
    """Ones with the shape, dtype and device of `x`.

    >>> pb.ones_like(pb.tensor([1, 2]))
    tensor([1, 1], int64, cpu)
    """
    return constant(1, *_like("ones_like", x, dtype, device))


@composite(
    oracle=_like_oracle(np.zeros_like), samples=_like_samples(), errors=_like_errors(), creates=True
)
def empty_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Any:
    """An array to be filled later, with the shape, dtype and device of `x`; it holds zeros.

    >>> pb.empty_like(pb.tensor([1, 2])).shape
    (2,)
    """
    return constant(0, *_like("empty_like", x, dtype, device))


@composite(
    oracle=_like_oracle(np.full_like),
    samples=_like_samples(3),
    errors=_like_errors(3),
    creates=True,
)
def full_like(x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """An array filled with one value, with the shape, dtype and device of `x`.

    >>> pb.full_like(pb.tensor([1, 2]), 7)
    tensor([7, 7], int64, cpu)
    """
    shape, dtype, dev = _like("full_like", x, dtype, device)
    return full(shape, fill_value, dtype=dtype, device=dev)


# -- ranges ----------------------------------------------------------------------------------------


def _ramp_body(start: Value, step: Value, size: int) -> Value:
    part = start.re.dtype if isinstance(start, Complex) else start.dtype
    return start + step * sc.cast(sc.index(), part)


def _ramp_step_vjp(g: Any, step_aval: Aval, size: int) -> Any:
    dev = g._aval.device
    position = ramp(scalar(0, g._aval.dtype, dev), scalar(1, g._aval.dtype, dev), size)
    return sum_to(g * position, ())


def _ramp_batch(start: Any, step: Any, size: int) -> Any:
    dtype, dev = start._aval.dtype, start._aval.device
    index = bind(ramp.op, scalar(0, dtype, dev), scalar(1, dtype, dev), size=size)
    return reshape(start, (-1, 1)) + reshape(step, (-1, 1)) * index


@primitive(
    "start step",
    infer=lambda start, step, size: ((size,), start.dtype),
    lowering=Elementwise(_ramp_body),
    vjp={"start": lambda g: sum_to(g, ()), "step": _ramp_step_vjp},
    jvp="linear",
    batch=_ramp_batch,
    oracle=lambda start, step, size: start + np.arange(size).astype(np.asarray(step).dtype) * step,
    samples=lambda d: [
        Sample((d.real(), d.real(), 5)),
        Sample((d.real(), d.real(), 0)),
        Sample((np.int64(3), np.int64(-2), 4)),
    ],
    errors=lambda d: [
        Bad((d.real(2), d.real(), 5), {}, ShapeError, "0-d"),
        Bad((d.real(), np.int64(1), 5), {}, DTypeError, "same dtype"),
    ],
    namespace="primitive",
)
def ramp(start: Any, step: Any, /, size: int) -> Any:
    """`start + i * step` for i from 0 to `size` - 1, of 0-d arrays of one dtype.

    >>> pb.primitive.ramp(pb.tensor(1.0), pb.tensor(0.5), 3)
    tensor([1. , 1.5, 2. ], float32, cpu)
    """
    start, step = as_array(start, "ramp"), as_array(step, "ramp")
    if start._aval.ndim or step._aval.ndim:
        raise ShapeError(f"ramp: start and step must be 0-d, got {start._aval} and {step._aval}.")
    if start._aval.dtype is not step._aval.dtype:
        raise DTypeError(f"ramp: operands need the same dtype, got {start._aval}, {step._aval}.")
    return bind(ramp.op, start, step, size=size)


def positions(size: int, dev: Device) -> Any:
    """The int64 array 0, 1, ... size - 1."""
    return bind(ramp.op, scalar(0, dt.int64, dev), scalar(1, dt.int64, dev), size=size)


def _arange_oracle(start: Any, *more: Any, dtype: Any = None, **options: Any) -> np.ndarray:
    values = np.arange(start, *more, **options)
    default = float if values.dtype.kind == "f" else int
    return values.astype(_numpy_dtype(dtype, default))


@composite(
    oracle=_arange_oracle,
    samples=lambda d: [
        Sample((5,)),
        Sample((2, 7)),
        Sample((7, 2, -2)),
        Sample((0.0, 1.0, 0.25)),
        Sample((0,)),
        Sample((5, 2)),
        Sample((3,), {"dtype": dt.float64}),
        Sample((1,), {"stop": 9, "step": 3, "dtype": dt.uint8}),
    ],
    errors=lambda d: [
        Bad((1, 5, 0), {}, ShapeError, "step"),
        Bad(("a",), {}, DTypeError, "numbers"),
        Bad((5,), {"dtype": bool}, DTypeError, "bool"),
    ],
    differentiable=False,
    creates=True,
)
def arange(
    start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None
) -> Any:
    """`start + i * step` as long as it stays before `stop`; with one argument from 0 to it.

    >>> pb.arange(2, 8, 3)
    tensor([2, 5], int64, cpu)
    """
    if stop is None:
        start, stop = 0, start
    start, stop, step = (_number("arange", v) for v in (start, stop, step))
    if step == 0:
        raise ShapeError("arange: the step must not be 0.")
    integral = all(isinstance(v, int) for v in (start, stop, step))
    chosen = as_dtype((int if integral else float) if dtype is None else dtype, "arange")
    if chosen.kind not in "iuf":
        raise DTypeError(f"arange: expected an integer or floating dtype, got {chosen.name}.")
    size = -((start - stop) // step) if integral else ceil((stop - start) / step)
    dev = _at(device)
    if chosen.is_integer and not integral:
        start, step = int(start), int(start + step) - int(start)  # what NumPy does
    return bind(
        ramp.op, scalar(start, chosen, dev), _wrapped(step, chosen, dev), size=max(0, int(size))
    )


def _wrapped(step: Any, dtype: DType, dev: Device) -> Any:
    """The step as a 0-d array; a negative one of an unsigned dtype counts down by wrapping."""
    return scalar(step % (1 << 8 * dtype.itemsize) if dtype.kind == "u" else step, dtype, dev)


def _number(name: str, value: Any) -> int | float:
    """A real number given as a Python, NumPy or 0-d array number."""
    if isinstance(value, Array):
        value = to_numpy(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.size == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DTypeError(f"{name}: expected real numbers, got {value!r}.")
    return value


def _linspace_oracle(start: Any, stop: Any, num: int, dtype: Any = None, endpoint: bool = True):
    if dtype is not None:
        return np.linspace(start, stop, num, endpoint=endpoint, dtype=as_dtype(dtype).numpy)
    values = np.linspace(start, stop, num, endpoint=endpoint)
    if not isinstance(start, np.ndarray):
        return values.astype(as_dtype(complex if values.dtype.kind == "c" else float).numpy)
    return values


@composite(
    oracle=_linspace_oracle,
    samples=lambda d: [
        Sample((0.0, 1.0, 7)),
        Sample((d.real(), d.real(), 5)),
        Sample((d.real(), d.real(), 4), {"endpoint": False}),
        Sample((2, 3, 1), {"dtype": dt.float64}),
        Sample((2, 3, 0)),
        Sample((0, 10, 5), {"dtype": dt.int32}),
        Sample((0.0, 1 + 1j, 3)),
    ],
    errors=lambda d: [
        Bad((0.0, 1.0, -1), {}, ShapeError, "negative"),
        Bad((np.ones(2), 1.0, 5), {}, ShapeError, "0-d"),
    ],
    creates=True,
)
def linspace(
    start: Any,
    stop: Any,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: Any = None,
    endpoint: bool = True,
) -> Any:
    """`num` evenly spaced values from `start` to `stop`, which is left out if `endpoint` is false.

    >>> pb.linspace(0.0, 1.0, 3)
    tensor([0. , 0.5, 1. ], float32, cpu)
    """
    (num,) = shape_of(num, "linspace")
    chosen = None if dtype is None else as_dtype(dtype, "linspace")
    if chosen is not None and not chosen.is_inexact:
        exact = linspace(start, stop, num, dtype=dt.float64, device=device, endpoint=endpoint)
        return astype(REGISTRY["floor"].function(exact), chosen)
    start, stop = _ends(start, stop, chosen, _at(device))
    intervals = num - 1 if endpoint else num
    values = ramp(start, (stop - start) / max(intervals, 1), num)
    if not endpoint or num < 2:
        return values
    # the last value is `stop` itself, without rounding
    return embed(values, reshape(stop, (1,)), (num,), (num - 1,))


def _ends(start: Any, stop: Any, dtype: DType | None, dev: Device) -> tuple[Any, Any]:
    """Both ends as 0-d arrays of one floating dtype."""
    ends = [as_array(v, "linspace", dev=dev) for v in (start, stop)]
    if any(x._aval.ndim for x in ends):
        raise ShapeError("linspace: start and stop must be numbers or 0-d arrays.")
    if dtype is None:
        dtype = dt.promote(ends[0]._aval.dtype, ends[1]._aval.dtype)
        dtype = dtype if dtype.is_inexact else default_float()
    first, last = (
        scalar(v, dtype, dev)
        if v.__class__ in (int, float) and not dtype.is_complex
        else astype(x, dtype)
        for v, x in zip((start, stop), ends, strict=True)
    )
    return first, last


def _eye_oracle(rows: int, columns: int | None = None, k: int = 0, dtype: Any = None) -> np.ndarray:
    return np.eye(rows, columns, k, _numpy_dtype(dtype, float))


@composite(
    oracle=_eye_oracle,
    samples=lambda d: [
        Sample((3,)),
        Sample((2, 4), {"k": 1}),
        Sample((4, 2), {"k": -1, "dtype": dt.int64}),
        Sample((3,), {"k": 5}),
        Sample((3,), {"k": -5}),
        Sample((0,)),
    ],
    errors=lambda d: [Bad((-1,), {}, ShapeError, "negative")],
    differentiable=False,
    creates=True,
)
def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None
) -> Any:
    """Ones on the k-th diagonal (0: the main one, positive: above it) of a matrix of zeros.

    >>> pb.eye(2)
    tensor([[1., 0.],
            [0., 1.]], float32, cpu)
    """
    rows, columns = shape_of((n_rows, n_rows if n_cols is None else n_cols), "eye")
    dtype = default_float() if dtype is None else as_dtype(dtype, "eye")
    dev = _at(device)
    first, count = diagonal_span(rows, columns, k)
    zero, diagonal = scalar(0, dtype, dev), constant(1, (count,), dtype, dev)
    flat = embed(zero, diagonal, (rows * columns,), (first,), (columns + 1,))
    return reshape(flat, (rows, columns))


def diagonal_span(rows: int, columns: int, k: int) -> tuple[int, int]:
    """Where the k-th diagonal starts in the row-major elements of a matrix, and its length."""
    count = min(rows, columns - k) if k >= 0 else min(rows + k, columns)
    return (k if k >= 0 else -k * columns), max(0, count)


@composite(
    oracle=lambda obj, dtype=None, copy=None: np.asarray(
        obj, None if dtype is None else dtype.numpy
    ),
    samples=lambda d: [
        Sample((d.real(2, 3),)),
        Sample((d.real(2, 3),), {"dtype": dt.complex128}),
        Sample(([[1, 2], [3, 4]],), {"dtype": dt.float64}),
        Sample((True,)),
        Sample((d.integers(3),), {"copy": True}),
    ],
    errors=lambda d: [
        Bad((object(),), {}, DTypeError, "expected an array"),
        Bad(([[1, 2], [3]],), {}, ShapeError, "ragged"),
    ],
    returns_argument=True,
    creates=True,
)
def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Any:
    """`obj` (an array, a number, nested lists, or anything with `__array__`, DLPack or the buffer
    protocol) as an array.

    >>> pb.asarray([1, 2])
    tensor([1, 2], int64, cpu)

    A tensor is returned as it is, unless `copy` is true; anything else is copied. With `copy=False`
    the array of another library is shared, as by `from_dlpack`, and what needs a copy is an error.
    """
    wanted = None if dtype is None else as_dtype(dtype, "asarray")
    if not isinstance(obj, Array):
        if copy is False:
            return sharing(obj, "asarray", wanted, _at(device))
        return as_array(obj, "asarray", dtype=wanted, dev=_at(device))
    x: Any = obj
    if device is not None and find_device(device) is not x._aval.device:
        if copy is False:
            raise CopyError(f"asarray: a move from {x._aval.device} to {device} needs a copy.")
        x = x.to_device(device)
    if wanted is None or wanted is x._aval.dtype:
        return another(x) if copy and x is obj else x
    if copy is False:
        raise CopyError(f"asarray: a change of dtype needs a copy, got {x._aval.dtype.name}.")
    return astype(x, wanted)
