"""The operands of an operation on elements: arrays of one dtype, which the operation accepts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType, default_float, promote
from pullback.core.errors import DTypeError
from pullback.ir.array import Array
from pullback.ir.convert import SCALARS, Exchanged, as_array, default_device, is_number, scalar
from pullback.ir.op import REGISTRY, bind

__all__ = ["is_operand", "promoted", "same_dtype"]

# What an operation accepts, by dtype kind, and what it says when it does not.
KINDS = {"b": "bool", "i": "integer", "u": "integer", "f": "floating", "c": "complex"}


def is_operand(name: str, x: Any) -> bool:
    """Whether an operator takes `x`: arrays and numbers, but no lists.

    An array of another library is refused here: its own operator would say less.
    """
    if isinstance(x, (Array, np.ndarray, np.generic, *SCALARS)):
        return True
    if isinstance(x, Exchanged):
        kind = f"{type(x).__module__}.{type(x).__name__}"
        raise DTypeError(
            f"{name}: expected a tensor or a number, got {kind}. Convert it with from_dlpack."
        )
    return False


def promoted(
    name: str, accepts: str, names: tuple[str, ...], unpromoted: tuple[str, ...], args: tuple
) -> list[Any]:
    """The operands as arrays of one dtype that the operation accepts; Python numbers stay as weak
    as possible.
    """
    given = [a if isinstance(a, Array) or is_number(a) else as_array(a, name) for a in args]
    first = next((a for a in given if isinstance(a, Array)), None)
    dev = default_device() if first is None else first._aval.device
    inside = [a for n, a in zip(names, given, strict=True) if n not in unpromoted]
    dtype = _accepted(name, accepts, _common_dtype(inside))
    result = []
    for n, a in zip(names, given, strict=True):
        if n in unpromoted:
            a = as_array(a, name, dev=dev)
        elif not isinstance(a, Array):
            a = scalar(a, dtype, dev, name)
        elif a._aval.dtype is not dtype:
            a = _cast(a, dtype)
        result.append(a)
    return result


def same_dtype(name: str, *xs: Any) -> list[Any]:
    """The operands as arrays of the dtype that they promote to; None stays None.

    A Python number takes its dtype from the arrays beside it, from its own digits.
    """
    if all([isinstance(x, Array) for x in xs]):
        dtype = xs[0]._aval.dtype
        if all([x._aval.dtype is dtype for x in xs]):
            return list(xs)
    given = [x if x is None or is_number(x) else as_array(x, name) for x in xs]
    present = [x for x in given if x is not None]
    dtype = _common_dtype(present)
    first = next((x for x in present if isinstance(x, Array)), None)
    dev = default_device() if first is None else first._aval.device
    return [
        x if x is None else _cast(x, dtype) if isinstance(x, Array) and x._aval.dtype is not dtype
        else as_array(x, name, dtype=dtype, dev=dev)
        for x in given
    ]  # fmt: skip


def _common_dtype(given: Sequence[Any]) -> DType:
    """The promoted dtype of arrays and Python numbers."""
    dtype = None
    for a in given:
        if isinstance(a, Array):
            dtype = a._aval.dtype if dtype is None else promote(dtype, a._aval.dtype)
    for a in given:
        if not isinstance(a, Array):
            own = dt.bool_ if isinstance(a, bool) else dt.as_dtype(a.__class__)
            dtype = own if dtype is None else dt.of_scalar(a, dtype)
    assert dtype is not None
    return dtype


def _accepted(name: str, accepts: str, dtype: DType) -> DType:
    """The dtype that an operation computes in, given its operands' promoted dtype."""
    if dtype.kind in accepts:
        return dtype
    if dtype.kind in "biu" and "f" in accepts and "i" not in accepts:
        return default_float()
    wanted = " or ".join(dict.fromkeys(KINDS[k] for k in accepts))
    article = "an" if wanted[0] in "aeiou" else "a"
    raise DTypeError(
        f"{name}: expected {article} {wanted} dtype, got {dtype.name}. Cast with astype."
    )


def _cast(x: Any, dtype: DType) -> Any:
    return bind(REGISTRY["astype"], x, dtype=dtype)
