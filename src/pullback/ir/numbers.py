"""Python numbers that are arguments of a traced function: they stay as weak as a number is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.core.dtypes import DType
from pullback.core.errors import TraceError
from pullback.ir.array import Array
from pullback.ir.op import REGISTRY

__all__ = ["Moving", "NeedsValue", "Number"]

EXACT = 1 << 53  # integers up to here are floats without rounding


class NeedsValue(TraceError):
    """Something wants the value of an argument, so that the trace belongs to this value."""

    def __init__(self, places: frozenset[int]):
        super().__init__(
            "jit: the value of a Python number is needed while its function is traced for all"
            " values. Name the argument in static_argnames."
        )
        self.places = places


class Moving:
    """A number among the arguments of a call that is passed to compiled code as a 0-d array."""

    __slots__ = ("array", "kind", "place")

    def __init__(self, kind: type, place: int, array: Array):
        self.kind = kind
        self.place = place
        self.array = array


def _needs_value(self: Number, *args: Any, **kwargs: Any) -> Any:
    raise self.value_needed()


def _arithmetic(name: str, reflected: bool = False) -> Callable[[Number, Any], Any]:
    """Arithmetic with a number: where Python computes in float64 without errors, so do we."""

    def compute(self: Number, other: object) -> Any:
        if isinstance(other, Array):
            return NotImplemented
        operand, places = other, self.places
        if type(other) is Number:
            exact = other.kind is float and name != "divide"
            operand, places = other.array, places | other.places
        else:
            exact = type(other) is float or (type(other) is int and abs(other) <= EXACT)
            exact = exact and (name != "divide" or bool(other))
        if self.kind is not float or not exact:
            raise Number(float, None, places, self.needed).value_needed()
        operands = (operand, self.array) if reflected else (self.array, operand)
        return Number(float, REGISTRY[name].function(*operands), places, self.needed)

    return compute


class Number:
    """A float, an int or a complex number whose value comes with each call.

    It takes its dtype from the array it meets, as a Python number does, and floats may be added,
    subtracted and multiplied before. Whatever else is done to it needs the value. It says to be
    of the class of the number that it stands for, which `type` alone sees through. `needed`
    collects the places among the arguments of which somebody wanted the value.
    """

    __slots__ = ("array", "kind", "needed", "places")
    __array_ufunc__ = None  # NumPy leaves operators to us

    def __init__(self, kind: type, array: Any, places: frozenset[int], needed: set[int]):
        self.kind = kind
        self.array = array
        self.places = places
        self.needed = needed

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return self.kind

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(self.kind, name):
            raise AttributeError(f"{self.kind.__name__!r} object has no attribute {name!r}")
        raise self.value_needed()

    def value_needed(self) -> NeedsValue:
        """The error for whoever needs the value; noted, since user code may catch it."""
        self.needed.update(self.places)
        return NeedsValue(self.places)

    def as_array(self, dtype: DType, dev: Any) -> Any:
        """The 0-d array beside one of `dtype`, rounded once as the number itself would be."""
        kinds = "fc" if self.kind is float else "c" if self.kind is complex else "ifc"
        narrow = dtype.itemsize < (8 if dtype.kind in "ic" else 4)
        if self.array._aval.device is not dev or dtype.kind not in kinds or narrow:
            raise self.value_needed()
        return REGISTRY["astype"].function(self.array, dtype)

    __add__, __radd__ = _arithmetic("add"), _arithmetic("add", True)
    __sub__, __rsub__ = _arithmetic("subtract"), _arithmetic("subtract", True)
    __mul__, __rmul__ = _arithmetic("multiply"), _arithmetic("multiply", True)
    __truediv__ = _arithmetic("divide")

    def __neg__(self) -> Any:
        if self.kind is not float:
            raise self.value_needed()
        negative = REGISTRY["negative"].function(self.array)
        return Number(float, negative, self.places, self.needed)


_OTHERS = """
    bool float int complex index hash eq ne lt le gt ge str repr format round trunc floor ceil abs
    pos pow rpow mod rmod floordiv rfloordiv divmod rdivmod lshift rlshift rshift rrshift and rand
    or ror xor rxor invert reduce_ex array
"""
for _name in _OTHERS.split():
    setattr(Number, f"__{_name}__", _needs_value)


def _division_by(self: Number, other: Any) -> Any:
    if isinstance(other, Array):
        return NotImplemented
    raise self.value_needed()


Number.__rtruediv__ = _division_by  # type: ignore[attr-defined]
