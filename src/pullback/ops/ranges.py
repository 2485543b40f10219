"""Evenly spaced numbers."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import Aval, Device
from pullback.core.dtypes import DType, as_dtype, default_float
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir import scalar as sc
from pullback.ir.array import Array
from pullback.ir.convert import as_array, scalar, shape_of, to_numpy
from pullback.ir.lowering import Elementwise
from pullback.ir.op import REGISTRY, bind
from pullback.ir.samples import Bad, Sample
from pullback.ir.scalar import Complex, Value
from pullback.ops.creation import device_at, numpy_dtype
from pullback.ops.families import composite, primitive, sum_to
from pullback.ops.movement import embed, reshape
from pullback.ops.parts import astype

__all__ = ["arange", "linspace", "positions", "ramp"]


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
    return values.astype(numpy_dtype(dtype, default))


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
    dev = device_at(device)
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
    start, stop = _ends(start, stop, chosen, device_at(device))
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
