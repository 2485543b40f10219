"""New arrays: constants (views of one kept element, which take no memory), ranges, the identity."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import Device, default_device, device, repeated
from pullback.core.dtypes import DType, as_dtype, default_float
from pullback.core.errors import CopyError, DTypeError, ShapeError
from pullback.ir.array import Array, make
from pullback.ir.convert import as_array, is_number, scalar, shape_of, sharing
from pullback.ir.op import another, bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.families import composite
from pullback.ops.movement import broadcast_to, embed, reshape
from pullback.ops.parts import astype

__all__ = [
    "asarray", "constant", "device_at", "empty", "empty_like", "eye", "full", "full_like",
    "numpy_dtype", "ones", "ones_like", "zeros", "zeros_like",
]  # fmt: skip

find_device = device  # creation functions have a parameter of that name, as the standard says


def broadcasts(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether an array of `shape` broadcasts to another shape."""
    pairs = zip(shape[::-1], wanted[::-1], strict=False)
    return len(shape) <= len(wanted) and all(n in (1, m) for n, m in pairs)


def device_at(where: str | Device | None) -> Device:
    """The device that is named, or the one where new arrays are made."""
    return default_device() if where is None else find_device(where)


def constant(value: Any, shape: tuple[int, ...], dtype: DType, dev: Device) -> Any:
    """A constant array: one element, seen from everywhere."""
    x = scalar(value, dtype, dev)
    if not shape or x._aval.strides is None:
        return bind(broadcast_to.op, x, shape=shape) if shape else another(x)
    return make(x._buf, repeated(shape, dtype, dev))


def _filled(name: str, value: int, shape: Any, dtype: Any, device: Any) -> Any:
    """A constant array of the arguments that a user gives."""
    dtype = default_float() if dtype is None else as_dtype(dtype, name)
    dev = default_device() if device is None else find_device(device)
    return constant(value, shape_of(shape, name), dtype, dev)


def numpy_dtype(dtype: Any, default: Any) -> np.dtype:
    """The dtype that a reference is to compute."""
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
    oracle=lambda shape, dtype=None: np.zeros(shape, numpy_dtype(dtype, float)),
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
    return _filled("zeros", 0, shape, dtype, device)


@composite(
    oracle=lambda shape, dtype=None: np.ones(shape, numpy_dtype(dtype, float)),
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
    return _filled("ones", 1, shape, dtype, device)


@composite(
    oracle=lambda shape, dtype=None: np.zeros(shape, numpy_dtype(dtype, float)),
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
    return _filled("empty", 0, shape, dtype, device)


def _full_oracle(shape: Any, fill_value: Any, dtype: Any = None) -> np.ndarray:
    return np.full(shape, fill_value, None if dtype is None else numpy_dtype(dtype, float))


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
        return constant(fill_value, shape, wanted or own, device_at(device))
    x = as_array(fill_value, "full", dev=None if device is None else device_at(device))
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


def _eye_oracle(rows: int, columns: int | None = None, k: int = 0, dtype: Any = None) -> np.ndarray:
    return np.eye(rows, columns, k, numpy_dtype(dtype, float))


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
    dev = device_at(device)
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
            return sharing(obj, "asarray", wanted, device_at(device))
        return as_array(obj, "asarray", dtype=wanted, dev=device_at(device))
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
