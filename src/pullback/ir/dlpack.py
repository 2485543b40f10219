"""DLPack: memory shared with other libraries, through NumPy's exchange of it.

NumPy has no bfloat16. Such an array travels as 16-bit integers in NumPy's hands, and its label in
the structure that the capsule holds says what it is.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.errors import CopyError, DTypeError, ExchangeError

__all__ = ["CPU", "CUDA", "Relabelled", "capsule_of", "from_capsule", "label_bfloat16"]

CPU = (1, 0)  # the device, as DLPack numbers it
CUDA = 2  # the kind of its GPUs
UNSIGNED, BFLOAT = 1, 4
KINDS = {0, UNSIGNED, 2, BFLOAT, 5, 6}  # of elements: integers, floats, complex, bool
IS_COPIED = 2  # a flag: the memory was made for the consumer
VERSION = (1, 0)  # the newest version that NumPy of every supported release speaks


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("kind", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )  # and more that nobody here reads


class _Unversioned(ctypes.Structure):
    _fields_ = (("tensor", _Tensor),)  # likewise


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_LAYOUTS = {b"dltensor": _Unversioned, b"dltensor_versioned": _Versioned}
_name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
_address_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _contents(capsule: Any) -> Any:
    """The structure in a capsule, to read and to write."""
    name = _name_of(capsule)
    if name not in _LAYOUTS:
        raise ExchangeError(
            f"from_dlpack: expected a fresh DLPack capsule, got one named {name!r}."
        )
    return _LAYOUTS[name].from_address(_address_in(capsule, name))


def capsule_of(array: np.ndarray, max_version: tuple[int, int] | None, copied: bool) -> Any:
    """A capsule of a writable array, of a version that the consumer knows."""
    versioned = max_version is not None and tuple(max_version) >= VERSION
    wide = array.dtype == dt.bfloat16.numpy if array.dtype.kind == "V" else False
    plain = array.view(np.uint16) if wide else array
    capsule = plain.__dlpack__(max_version=VERSION) if versioned else plain.__dlpack__()
    contents = _contents(capsule)
    if wide:
        contents.tensor.kind = BFLOAT
    if versioned and copied:
        contents.flags |= IS_COPIED
    return capsule


def label_bfloat16(capsule: Any) -> Any:
    """The capsule of 16-bit integers, as one of bfloat16."""
    _contents(capsule).tensor.kind = BFLOAT
    return capsule


class Relabelled:
    """A producer of DLPack, its bfloat16 labelled as integers so that NumPy and CuPy take it."""

    def __init__(self, producer: Any):
        self.producer = producer
        self.is_bfloat16 = False

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.producer.__dlpack__(**options)
        tensor = _contents(capsule).tensor
        if tensor.kind not in KINDS:
            raise DTypeError(
                "from_dlpack: elements must be numbers or booleans, got DLPack's kind"
                f" {tensor.kind} with {tensor.bits} bits."
            )
        self.is_bfloat16 = (tensor.kind, tensor.bits) == (BFLOAT, 16)
        if self.is_bfloat16:
            tensor.kind = UNSIGNED
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.producer.__dlpack_device__()


def from_capsule(producer: Any, copy: bool | None) -> np.ndarray:
    """The array that a producer of DLPack offers; it shares the memory if `copy` is not true."""
    relabelled = Relabelled(producer)
    array = np.from_dlpack(relabelled, copy=False) if copy is False else np.from_dlpack(relabelled)
    if copy is False and not array.flags.c_contiguous:
        raise CopyError(
            f"from_dlpack: memory that is not in row-major order must be copied, got shape"
            f" {array.shape} with strides {array.strides}. Leave out copy=False."
        )
    return array.view(dt.bfloat16.numpy) if relabelled.is_bfloat16 else array
