"""What a trace of a function depends on, and the arrays and numbers among its arguments."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pullback.core import dtypes, pytrees
from pullback.core.avals import Aval, _defaults, default_device, symbolic
from pullback.core.errors import DTypeError
from pullback.core.precision import get_matmul_precision
from pullback.ir.convert import as_array, from_numpy, is_numpy
from pullback.ir.numbers import Moving
from pullback.ir.tracing import Static
from pullback.tensor import Tensor

__all__ = ["KnownNumbers", "NumberKey", "canonical", "context", "moved", "take", "take_all"]

_WIDEST = {float: np.float64, int: np.int64, complex: np.complex128}
_NUMBERS = {float: float, int: int, complex: complex, np.float64: float, np.complex128: complex}


def take(x: Any, arrays: list[Any], key: list[Any]) -> None:
    """Append the arrays of an argument, and what the trace depends on besides their contents."""
    cls = x.__class__
    if cls is Tensor:
        arrays.append(x)
        key.append(x._aval)
    elif cls is tuple or cls is list:
        key += (cls, len(x))
        take_all(x, arrays, key)
    elif cls is dict:
        key += (cls, tuple(x))
        take_all(x.values(), arrays, key)
    elif is_numpy(x):
        array = as_array(x, "jit")
        arrays.append(array)
        key.append(array._aval)
    elif cls in _NUMBERS:
        if type(x) is cls:
            key.append(NumberKey(_NUMBERS[cls], repr(x)))
        else:  # an argument of the function that is being traced
            arrays.append(x.array)
            key.append(x.array._aval)
    elif isinstance(x, Static):
        key.append(_static_key(x.value))
    elif isinstance(x, Moving):
        arrays.append(x.array)
        key.append(x.kind)
    else:
        parts = pytrees._children(x)
        if parts is None:
            key.append(_static_key(x))
        else:
            key.append(pytrees.Structure(cls, parts[1], ()))
            take_all(parts[0], arrays, key)


class NumberKey(NamedTuple):
    """What a trace depends on if a Python number is static: 1, 1.0, 0.0 and -0.0 all differ."""

    kind: type
    text: str


class KnownNumbers:
    """What is known of the numbers among arguments that are otherwise alike.

    `first` are those of the first call. Those that changed since are `moving`, arguments of a trace
    for all values, but for those whose value was needed, which are `fixed`.
    """

    def __init__(self, first: Sequence[NumberKey]):
        self.first = first
        self.moving: set[int] = set()
        self.fixed: set[int] = set()

    def compare(self, numbers: Sequence[NumberKey]) -> None:
        """Note which numbers differ from those of the first call."""
        pairs = enumerate(zip(numbers, self.first, strict=True))
        self.moving |= {i for i, (now, then) in pairs if now != then} - self.fixed

    def fix(self, places: Iterable[int]) -> None:
        """Note that traces need these values."""
        self.fixed.update(places)
        self.moving -= self.fixed


def take_all(xs: Iterable[Any], arrays: list[Any], key: list[Any]) -> None:
    for x in xs:
        if x.__class__ is Tensor:  # here, to save a call for most
            arrays.append(x)
            key.append(x._aval)
        else:
            take(x, arrays, key)


def context() -> tuple[Any, Any, str]:
    """What a trace depends on besides arguments: the dtype of floats, the place of new arrays, the
    precision of products.
    """
    stack = _defaults.stack
    place = stack[-1] if stack else _defaults.base
    return dtypes._default_float, place, get_matmul_precision()


def _static_key(x: Any) -> tuple[type, Any]:
    """A key that tells 1, 1.0 and True apart, and 0.0 from -0.0, and finds NaN again."""
    if isinstance(x, (float, complex)):
        return x.__class__, repr(x)
    if x.__class__ is tuple:
        return tuple, tuple([_static_key(v) for v in x])
    try:
        hash(x)
    except TypeError:
        raise DTypeError(
            "jit: an argument that is neither an array nor a container is a static value and must"
            f" be hashable, got {type(x).__name__}. If it holds arrays, use register_pytree."
        ) from None
    return x.__class__, x


def canonical(key: Sequence[Any]) -> tuple:
    """The key without strides, which a trace does not depend on."""
    return tuple(symbolic(k.shape, k.dtype, k.device) if isinstance(k, Aval) else k for k in key)


def moved(
    args: tuple, kwargs: dict, places: Container[int], arrays: Sequence[Any]
) -> tuple[tuple, dict]:
    """The arguments with the numbers at `places`, counted among numbers, as 0-d arrays."""
    device = arrays[0]._aval.device if arrays else default_device()
    leaves, structure = pytrees.flatten((args, kwargs))
    count = 0
    for i, x in enumerate(leaves):
        kind = _NUMBERS.get(type(x))
        if kind is not None:
            if count in places and (kind is not int or -(1 << 63) <= x < 1 << 63):
                array = from_numpy(np.asarray(x, _WIDEST[kind]), device)
                leaves[i] = Moving(kind, count, array)
            count += 1
    return pytrees.unflatten(structure, leaves)
