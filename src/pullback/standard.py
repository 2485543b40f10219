"""The data type functions and the inspection API of the Python Array API standard."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import default_device, devices
from pullback.core.avals import device as as_device
from pullback.core.dtypes import DType, as_dtype
from pullback.core.errors import DTypeError, briefly
from pullback.ir.array import Array
from pullback.ir.convert import is_number, shape_of
from pullback.ops import families

__all__ = [
    "__array_namespace_info__", "broadcast_shapes", "can_cast", "finfo", "iinfo", "isdtype",
    "result_type",
]  # fmt: skip


class finfo(NamedTuple):  # noqa: N801  (the standard's name)
    """The limits of a floating dtype."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class iinfo(NamedTuple):  # noqa: N801  (the standard's name)
    """The limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def _dtype_of(x: Any, name: str) -> DType:
    return x._aval.dtype if isinstance(x, Array) else as_dtype(x, name)


def make_finfo(dtype: Any, /) -> finfo:
    """The limits of a floating or complex dtype (of its parts).

    >>> pb.finfo(pb.float32).bits
    32
    """
    d = _dtype_of(dtype, "finfo").real
    if not d.is_float:
        raise DTypeError(f"finfo: expected a floating dtype, got {d.name}.")
    if d is dt.bfloat16:
        return finfo(16, 2.0**-7, float(2**128 - 2**120), -float(2**128 - 2**120), 2.0**-126, d)
    i = np.finfo(d.numpy)
    return finfo(i.bits, float(i.eps), float(i.max), float(i.min), float(i.smallest_normal), d)


def make_iinfo(dtype: Any, /) -> iinfo:
    """The limits of an integer dtype.

    >>> pb.iinfo(pb.int8).max
    127
    """
    d = _dtype_of(dtype, "iinfo")
    if not d.is_integer:
        raise DTypeError(f"iinfo: expected an integer dtype, got {d.name}.")
    i = np.iinfo(d.numpy)
    return iinfo(i.bits, int(i.max), int(i.min), d)


@briefly
def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype of the result of an operation on these arrays, dtypes and Python numbers.

    >>> pb.result_type(pb.int8, pb.uint8)
    pullback.int16
    """
    strong = [x for x in arrays_and_dtypes if not is_number(x)]
    if not strong:
        raise DTypeError("result_type: needs at least one array or dtype.")
    result = _dtype_of(strong[0], "result_type")
    for x in strong[1:]:
        result = dt.promote(result, _dtype_of(x, "result_type"))
    for x in arrays_and_dtypes:
        if is_number(x):
            result = dt.of_scalar(x, result)
    return result


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether promotion can lead from one dtype to the other.

    >>> pb.can_cast(pb.int8, pb.int16), pb.can_cast(pb.float32, pb.int64)
    (True, False)
    """
    source, target = _dtype_of(from_, "can_cast"), as_dtype(to, "can_cast")
    try:
        return dt.promote(source, target) is target
    except DTypeError:
        return False


_KINDS = {
    "bool": "b",
    "signed integer": "i",
    "unsigned integer": "u",
    "integral": "iu",
    "real floating": "f",
    "complex floating": "c",
    "numeric": "iufc",
}


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind: a name from the standard, a dtype, or a tuple of these.

    >>> pb.isdtype(pb.float32, "real floating"), pb.isdtype(pb.int8, ("bool", pb.int8))
    (True, True)
    """
    d = as_dtype(dtype, "isdtype")
    if isinstance(kind, tuple):
        return any(isdtype(d, k) for k in kind)
    if isinstance(kind, str) and kind in _KINDS:
        return d.kind in _KINDS[kind]
    return d is as_dtype(kind, "isdtype")


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that arrays of these shapes broadcast to; without any, that of a number.

    >>> pb.broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    named = [shape_of(s, "broadcast_shapes") for s in shapes]
    return families.broadcast_shapes("broadcast_shapes", (), *named)


# The standard's dtypes: it lists no others, so float16 and bfloat16 are not among them.
_LISTED = tuple(d for d in dt.ALL if d not in (dt.float16, dt.bfloat16))


class NamespaceInfo:
    """What the standard's inspection API asks for; without a device, about the default one."""

    def capabilities(self) -> dict[str, Any]:
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> Any:
        return default_device()

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        _device_or_default(device)  # the defaults are the same on every device that there is
        return {
            "real floating": dt.default_float(),
            "complex floating": as_dtype(complex),
            "integral": dt.int64,
            "indexing": dt.int64,
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        held = _device_or_default(device).runtime.dtypes
        found = [d for d in _LISTED if d in held]
        return {d.name: d for d in found if kind is None or isdtype(d, kind)}

    def devices(self) -> tuple[Any, ...]:
        return devices()


def _device_or_default(device: Any) -> Any:
    return default_device() if device is None else as_device(device)


def __array_namespace_info__() -> NamespaceInfo:  # noqa: N807  (the standard's name)
    """The inspection API of the standard.

    >>> pb.__array_namespace_info__().default_dtypes()["integral"]
    pullback.int64
    """
    return NamespaceInfo()
