"""From what users pass (tensors, Python numbers, NumPy arrays, nested lists) to arrays."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import MOST_BYTES, Aval, Device, aval, check_size, default_device
from pullback.core.dtypes import DType
from pullback.core.errors import CopyError, DTypeError, ShapeError, TraceError
from pullback.ir import dlpack
from pullback.ir.array import Array, make
from pullback.ir.numbers import Number
from pullback.ir.op import REGISTRY
from pullback.ir.tracing import no_value, note_look, note_read

__all__ = [
    "SCALARS",
    "Exchanged",
    "as_array",
    "default_device",
    "fresh_scalar",
    "from_numpy",
    "in_range",
    "is_kept",
    "is_number",
    "is_numpy",
    "refuse_masked",
    "scalar",
    "shape_of",
    "sharing",
    "to_numpy",
]

MOST_NESTED = 64  # the axes that an array of NumPy's can have


@runtime_checkable
class Exchanged(Protocol):
    """An array of any library that exchanges memory with others."""

    def __dlpack__(self) -> Any: ...


SCALARS = (bool, int, float, complex)
_RAW = np.dtype("V2")  # what NumPy's files make of bfloat16, which they don't know


def from_numpy(array: np.ndarray, dev: Device | None = None, copy: bool = True) -> Any:
    """The array with the contents of a NumPy array; without `copy` it shares the memory."""
    dev = dev or default_device()
    dtype = dt.as_dtype(array.dtype)
    if array.dtype.byteorder == ">":
        array, copy = array.astype(array.dtype.newbyteorder("="), order="C"), False
    elif not array.flags.c_contiguous:
        array, copy = np.ascontiguousarray(array), False
    buf = dev.runtime.from_numpy(array, copy)
    return make(buf, aval(array.shape, dtype, dev))


def to_numpy(x: Array) -> np.ndarray:
    """The contents as a read-only NumPy array; on the CPU it shares the memory."""
    if x._aval.is_symbolic:
        raise no_value("numpy", x)
    note_look()
    return x._aval.device.runtime.to_numpy(x._buf, x._aval)


def is_number(value: Any) -> bool:
    """Whether `value` is a Python number, which takes its dtype from what stands beside it.

    So are NumPy's float64 and complex128 scalars, which are Python floats and complex numbers.
    """
    return isinstance(value, SCALARS)


def is_numpy(value: Any) -> bool:
    """Whether `value` is an array or a scalar of NumPy's, and no Python number."""
    return isinstance(value, (np.ndarray, np.generic)) and not is_number(value)


_scalars: dict[tuple, Any] = {}


def scalar(value: Any, dtype: DType, dev: Device, name: str = "scalar") -> Any:
    """A 0-d array of a Python number, for use as an operand: the common ones are kept, so it must
    not be given away.
    """
    if type(value) is Number:
        return value.as_array(dtype, dev)
    key = (_bits(value), type(value), dtype.name, dev)
    found = _scalars.get(key)
    if found is None:
        _check_range(value, dtype, name)
        found = fresh_scalar(value, dtype, dev)
        if len(_scalars) >= 1024:
            _scalars.clear()
        _scalars[key] = found
    return found


def fresh_scalar(value: Any, dtype: DType, dev: Device) -> Any:
    """A 0-d array of a Python number that fits the dtype."""
    return make(dev.runtime.scalar(value, dtype), _scalar_aval(dtype, dev))


@cache
def _scalar_aval(dtype: DType, dev: Device) -> Aval:
    return aval((), dtype, dev)


def is_kept(buf: Any) -> bool:
    """Whether a buffer is that of a kept number."""
    return any(kept._buf is buf for kept in _scalars.values())


def _bits(value: Any) -> Any:
    """A number as a key: -0.0 and 0.0 are equal, and NaN equals nothing, but their bits tell."""
    if isinstance(value, complex):
        return struct.pack("dd", value.real, value.imag)
    return struct.pack("d", value) if isinstance(value, float) else value


def _check_range(value: Any, dtype: DType, name: str) -> None:
    if dtype.is_integer and not isinstance(value, bool) and not in_range(value, dtype):
        raise DTypeError(
            f"{name}: {value} does not fit {dtype.name}. Cast the array to a wider dtype"
            " with astype."
        )


def in_range(value: Any, dtype: DType) -> bool:
    """Whether a number lies in the range of an integer dtype."""
    lowest, highest = _range(dtype)
    return lowest <= value <= highest


@cache
def _range(dtype: DType) -> tuple[int, int]:
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


def as_array(
    value: Any, name: str, *, dtype: DType | None = None, dev: Device | None = None
) -> Any:
    """`value` as an array; `name` is the operation that asks, for the error message."""
    if isinstance(value, Array):
        return value
    if is_number(value):
        if dtype is None:
            if type(value) is Number and value.kind is int:
                raise value.value_needed()  # a count, an index or a bound rather than an operand
            dtype = dt.bool_ if isinstance(value, bool) else dt.as_dtype(value.__class__)
        kept = scalar(value, dtype, dev or default_device(), name)
        return make(kept._buf, kept._aval)
    if isinstance(value, (list, tuple)):
        if (dtype is None or dtype in _FLOATS) and set(map(type, value)) == _ONLY_FLOATS:
            return _vector(value, dtype or dt.default_float(), dev or default_device())
        flat = _flattened(value, name)
        if any(isinstance(v, Array) for v in flat):
            return _stacked(value, name, dtype or _common_dtype(flat, name), dev)
    elif not isinstance(value, (np.generic, range)):
        note_read(value)
    return from_numpy(_numpy_of(value, name, dtype), dev)


_FLOATS = (dt.float32, dt.float64)
_ONLY_FLOATS = {float}


def _vector(values: Sequence[float], dtype: DType, dev: Device) -> Any:
    """An array of Python floats alone, which are the most common list."""
    return make(dev.runtime.vector(values, dtype), _vector_aval(len(values), dtype, dev))


@lru_cache(1024)
def _vector_aval(length: int, dtype: DType, dev: Device) -> Aval:
    return aval((length,), dtype, dev)


def sharing(value: Any, name: str, dtype: DType | None, dev: Device) -> Any:
    """`value`, the array of another library or an object with memory, as an array in its memory."""
    if is_number(value) or isinstance(value, (list, tuple, range, np.generic)):
        raise CopyError(
            f"{name}: numbers and lists have no memory to share, got {type(value).__name__} with"
            " copy=False."
        )
    note_read(value)
    array = _in_place(value, name)
    if dtype is not None and array.dtype != dtype.numpy:
        raise CopyError(f"{name}: a change of dtype needs a copy, got {array.dtype}.")
    if not (array.flags.c_contiguous and array.dtype.isnative):
        raise CopyError(
            f"{name}: memory in another order than row-major, or of another byte order, needs a"
            f" copy, got strides {array.strides} and dtype {array.dtype.str!r}."
        )
    _check_numeric(array, name)
    return from_numpy(array, dev, copy=False)


def _in_place(value: Any, name: str) -> np.ndarray:
    """The NumPy array in the memory of an array of another library."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        return dlpack.from_capsule(value, copy=False)
    if not hasattr(value, "__array__"):
        return _from_memory(value, name)
    try:
        return np.asarray(value, copy=False)
    except ValueError as error:
        first = str(error).partition("\n")[0]
        raise CopyError(f"{name}: {type(value).__name__} does not share: {first}") from None


def _from_memory(value: Any, name: str) -> np.ndarray:
    """The NumPy array in the memory of an object with the buffer protocol."""
    try:
        memory = memoryview(value)
    except TypeError:
        raise DTypeError(
            f"{name}: expected an array, a number or a nested list, got {type(value).__name__}."
        ) from None
    return np.asarray(memory)


def _numpy_of(value: Any, name: str, dtype: DType | None) -> np.ndarray:
    if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__array__"):
        refuse_masked((value,), name)
        array = np.asarray(value)
    elif isinstance(value, (list, tuple, range)):
        array = _from_nested(value, name, dtype)
    elif hasattr(value, "__dlpack__"):
        array = dlpack.from_capsule(value, copy=None)
    else:
        array = _from_memory(value, name)
    if array.dtype == _RAW:
        array = array.view(dt.bfloat16.numpy)
    if dtype is not None:
        array = array.astype(dtype.numpy, copy=False)
    _check_numeric(array, name)
    return array


def _check_numeric(array: np.ndarray, name: str) -> None:
    try:
        dt.as_dtype(array.dtype)
    except DTypeError:
        raise DTypeError(
            f"{name}: elements must be numbers or booleans, got NumPy dtype {array.dtype}."
        ) from None


def _from_nested(value: Any, name: str, dtype: DType | None) -> np.ndarray:
    """A nested list of numbers or arrays as NumPy; Python floats take the default float dtype,
    unless told otherwise.
    """
    flat = _flattened(value, name)
    refuse_masked(flat, name)
    integral = bool(flat) and all(type(v) in (int, bool) for v in flat)
    exact = dtype if integral and dtype is not None and dtype.is_integer else None
    try:
        array = np.asarray(value, None if exact is None else exact.numpy)
        if integral and dtype is None and array.dtype.kind in "fO":  # NumPy's, beyond int64
            array = np.asarray(value, np.uint64)
    except ValueError:
        raise ShapeError(
            f"{name}: the nested lists are ragged. Every row must have the same length."
        ) from None
    except OverflowError:
        kind = "int64 or uint64" if exact is None else exact.name
        raise DTypeError(f"{name}: an integer in the list does not fit {kind}.") from None
    if dtype is not None:
        return array
    if array.dtype == np.float64 and all(type(v) in (float, int, bool) for v in flat):
        return array.astype(dt.default_float().numpy)
    if array.dtype == np.complex128 and all(type(v) in SCALARS for v in flat):
        return array.astype(dt.as_dtype(complex).numpy)
    if array.size == 0 and not flat:
        return array.astype(dt.default_float().numpy)
    return array


def _flattened(value: Any, name: str) -> list[Any]:
    """What nested lists hold, in any order."""
    flat: list[Any] = []
    stack = [(value, 0)]
    while stack:
        v, depth = stack.pop()
        if not isinstance(v, (list, tuple)):
            flat.append(v)
        elif depth < MOST_NESTED:
            stack += [(x, depth + 1) for x in v]
        else:
            raise ShapeError(
                f"{name}: lists are nested at most {MOST_NESTED} deep, got more. Does one contain"
                " itself?"
            )
    return flat


def refuse_masked(values: Iterable[Any], name: str) -> None:
    """Raise for masked elements, which would count as others do."""
    for v in values:
        if isinstance(v, np.ndarray) and isinstance(v, np.ma.MaskedArray) and np.any(v.mask):
            raise DTypeError(
                f"{name}: a tensor has no mask, got a masked array with"
                f" {np.count_nonzero(v.mask)} masked elements. Pass filled(value), or the data and"
                " the mask by themselves."
            )


def _common_dtype(flat: list[Any], name: str) -> DType:
    """The dtype of a list that holds arrays; Python numbers take theirs from what is beside."""
    strong = [
        v._aval.dtype if isinstance(v, Array) else dt.as_dtype(np.asarray(v).dtype, name)
        for v in flat
        if not is_number(v)
    ]
    dtype = strong[0]
    for other in strong[1:]:
        dtype = dt.promote(dtype, other)
    for v in flat:
        if is_number(v):
            dtype = dt.of_scalar(v, dtype)
    return dtype


def _stacked(value: Any, name: str, dtype: DType, dev: Device | None) -> Any:
    """Nested lists of arrays and numbers as one array, connected to what the arrays came from."""
    if isinstance(value, (list, tuple)):
        rows = [_stacked(v, name, dtype, dev) for v in value]
        if not rows or any(r._aval.shape != rows[0]._aval.shape for r in rows):
            raise ShapeError(
                f"{name}: the nested lists are ragged. Every row must have the same length."
            )
        return REGISTRY["stack"].function(rows)
    array = as_array(value, name, dtype=None if isinstance(value, Array) else dtype, dev=dev)
    if array._aval.dtype is dtype:
        return array
    return REGISTRY["astype"].function(array, dtype)


def shape_of(value: Any, name: str) -> tuple[int, ...]:
    """A shape given as an int or a sequence of ints."""
    kind = value.__class__
    if kind is int and 0 <= value <= MOST_BYTES:
        return (value,)
    if kind is tuple:
        size = 1
        for n in value:
            if n.__class__ is not int or n <= 0:
                break
            size *= n
        else:
            if size <= MOST_BYTES:
                return value
    plain = kind is tuple and set(map(type, value)) == _ONLY_INTS
    shape = value if plain else tuple([_extent(n, name) for n in _dims(value)])
    if min(shape, default=0) < 0:
        raise ShapeError(f"{name}: a shape has no negative sizes, got {shape}.")
    check_size(shape, name=name)
    return shape


_ONLY_INTS = {int}


def _extent(n: Any, name: str) -> int:
    if isinstance(n, Array) and n._aval.is_symbolic:
        raise TraceError(
            f"{name}: a shape can't depend on a traced value, got {n._aval}. Give jit a Python"
            " integer."
        )
    integral = isinstance(n, Array) and n._aval.ndim == 0 and n._aval.dtype.is_integer
    if not integral and (isinstance(n, bool) or not isinstance(n, (int, np.integer))):
        raise DTypeError(f"{name}: a shape is made of integers, got {n!r}.")
    return int(n)  # type: ignore[arg-type]


def _dims(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Array) and value._aval.ndim == 0:
        return (value,)
    return tuple(value) if isinstance(value, Iterable) else (value,)
