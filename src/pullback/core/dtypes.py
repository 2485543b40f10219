"""The dtypes, and the one promotion rule: the Array API table, widened where it is silent.

The standard leaves three cases open. An integer with a float gives the float dtype
(as in PyTorch and JAX, so that an index never widens a float32 computation); float16 with
bfloat16 gives float32; uint64 with a signed integer is an error, because no integer holds both.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache, lru_cache

import numpy as np

from pullback.core.errors import DTypeError

__all__ = [
    "ALL",
    "DType",
    "as_dtype",
    "bfloat16",
    "bool_",
    "complex64",
    "complex128",
    "default_float",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "promote",
    "set_default_float",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]


class DType:
    """An element type. It equals its name, as in `x.dtype == "float32"`, and has its hash.

    It equals NumPy's dtypes and scalar types of that name as well, as these do among each other;
    their hashes differ, so what is looked up in a dict has to be one of the two kinds. There is one
    object per type, and `is` tells them apart too.
    """

    __slots__ = ("_hash", "itemsize", "kind", "name", "rank", "real")

    def __init__(self, name: str, kind: str, itemsize: int, rank: int):
        self.name = name
        self._hash = hash(name)
        self.kind = kind  # b(ool) i(nt) u(nsigned) f(loat) c(omplex)
        self.itemsize = itemsize
        self.rank = rank  # position among its kind, narrow to wide
        self.real: DType = self  # the dtype of the real part

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return self.name == other
        if isinstance(other, np.dtype) or (
            isinstance(other, type) and issubclass(other, np.generic)
        ):
            return _name_of(other) == self.name
        return NotImplemented

    def __repr__(self) -> str:
        return f"pullback.{self.name}"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self):
        return (as_dtype, (self.name,))

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_complex(self) -> bool:
        return self.kind == "c"

    @property
    def is_inexact(self) -> bool:
        return self.kind in "fc"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def numpy(self) -> np.dtype:
        """The NumPy dtype with the same layout (bfloat16 comes from ml_dtypes)."""
        return _numpy_dtype(self.name)

    @property
    def dtype(self) -> np.dtype:
        """The same, where NumPy looks for it: its functions take a DType for a dtype."""
        return self.numpy


@lru_cache
def _numpy_dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        import ml_dtypes  # noqa: PLC0415  (only the programs that use bfloat16 pay for it)

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


bool_ = DType("bool", "b", 1, 0)
int8, int16, int32, int64 = (DType(f"int{8 << i}", "i", 1 << i, i) for i in range(4))
uint8, uint16, uint32, uint64 = (DType(f"uint{8 << i}", "u", 1 << i, i) for i in range(4))
float16 = DType("float16", "f", 2, 0)
bfloat16 = DType("bfloat16", "f", 2, 0)
float32 = DType("float32", "f", 4, 1)
float64 = DType("float64", "f", 8, 2)
complex64 = DType("complex64", "c", 8, 1)
complex128 = DType("complex128", "c", 16, 2)
complex64.real, complex128.real = float32, float64

ALL = (
    bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
    float16, bfloat16, float32, float64, complex64, complex128,
)  # fmt: skip
_BY_NAME = {d.name: d for d in ALL}
_SIGNED = (int8, int16, int32, int64)
_COMPLEX_OF = {float16: complex64, bfloat16: complex64, float32: complex64, float64: complex128}
_default_float = float32


def default_float() -> DType:
    """The dtype of Python floats, and of floating functions of integers."""
    return _default_float


def set_default_float(dtype: DType | str) -> None:
    """Make `dtype` (float32 or float64) the dtype of Python floats."""
    global _default_float
    dtype = as_dtype(dtype)
    if dtype not in (float32, float64):
        raise DTypeError(
            f"set_default_float: the default must be float32 or float64, got {dtype.name}."
        )
    _default_float = dtype


def as_dtype(spec: object, op: str = "dtype") -> DType:
    """The DType that `spec` (a DType, a name, a NumPy dtype or a Python type) stands for."""
    if isinstance(spec, DType):
        return spec
    if spec is bool:
        return bool_
    if spec is int:
        return int64
    if spec is float:
        return _default_float
    if spec is complex:
        return _COMPLEX_OF[_default_float]
    name = spec if isinstance(spec, str) else _name_of(spec) if isinstance(spec, Hashable) else ""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise DTypeError(
            f"{op}: unknown dtype, got {spec!r}. Use one of {', '.join(_BY_NAME)}."
        ) from None


@lru_cache(maxsize=256)
def _name_of(spec: Hashable) -> str:
    """The name of a NumPy dtype or scalar type (slow to ask NumPy for)."""
    try:
        return np.dtype(spec).name  # pyright: ignore[reportArgumentType, reportCallIssue]
    except TypeError:
        return repr(spec)


@cache
def promote(a: DType, b: DType) -> DType:
    """The dtype of the result of an operation on arrays of dtypes `a` and `b`."""
    if a is b:
        return a
    kinds = {a.kind, b.kind}
    if "b" in kinds:
        return a if b is bool_ else b
    if "c" in kinds:
        reals = [d.real for d in (a, b) if d.is_inexact]
        wide = reals[0] if len(reals) == 1 else promote(*reals)
        return _COMPLEX_OF[wide]
    if "f" in kinds:
        if kinds != {"f"}:
            return a if a.is_float else b
        if a.rank == b.rank:
            return float32  # float16 with bfloat16
        return a if a.rank > b.rank else b
    if a.kind == b.kind:
        return a if a.rank > b.rank else b
    signed, unsigned = (a, b) if a.kind == "i" else (b, a)
    if unsigned is uint64:
        raise DTypeError(
            f"promote: no integer dtype holds both {a.name} and {b.name}. Cast one with astype."
        )
    return _SIGNED[max(signed.rank, unsigned.rank + 1)]


def of_scalar(value: bool | int | float | complex, other: DType) -> DType:
    """The dtype of a Python scalar beside an array of dtype `other`: as weak as possible."""
    if isinstance(value, (bool, np.bool_)):
        return other
    if isinstance(value, int):
        return int64 if other is bool_ else other
    if isinstance(value, float):
        return other if other.is_inexact else _default_float
    if other.is_complex:
        return other
    return _COMPLEX_OF[other if other.is_float else _default_float]
