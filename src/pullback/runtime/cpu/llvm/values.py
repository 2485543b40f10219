"""Numbers of a kernel under construction: typed values with operators.

A Python number beside a `Value` is a constant of its type. For `//`, `%` and `>>` integers have no
sign, for `<` and its relatives they have one. Comparisons of floats are false for NaN.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Protocol, TypeAlias

__all__ = [
    *("DOUBLE", "FLOAT", "HALF", "I1", "I8", "I16", "I32", "I64", "I128", "PTR", "VOID"),
    *("UNSIGNED", "Number", "Type", "Value", "constant", "integer", "undefined", "vector"),
    "written",
]


class Type:
    """A type of LLVM: a scalar, or a vector of `count` elements. There is one of each."""

    __slots__ = ("count", "element", "is_float", "text", "width")

    def __init__(self, text: str, width: int, is_float: bool = False):
        self.text, self.width, self.is_float = text, width, is_float
        self.element, self.count = self, 1

    def __str__(self) -> str:
        return self.text


@cache
def integer(width: int) -> Type:
    """The integers of so many bits."""
    return Type(f"i{width}", width)


@cache
def vector(element: Type, count: int) -> Type:
    """The type of so many lanes; of one, it is the element itself."""
    if count == 1:
        return element
    made = Type(f"<{count} x {element}>", element.width, element.is_float)
    made.element, made.count = element, count
    return made


I1, I8, I16, I32, I64, I128 = (integer(bits) for bits in (1, 8, 16, 32, 64, 128))
HALF, FLOAT, DOUBLE = (Type(*t, True) for t in (("half", 16), ("float", 32), ("double", 64)))
PTR, VOID = Type("ptr", 64), Type("void", 0)


class Maker(Protocol):
    """What instructions are added to."""

    def made(self, instruction: str, type_: Type, /) -> Value:
        """The result of an instruction."""
        ...


class Value:
    """A number in a register, or a constant."""

    __slots__ = ("code", "text", "type")

    def __init__(self, text: str, type_: Type, code: Maker | None = None):
        self.text, self.type, self.code = text, type_, code

    def __str__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        raise TypeError("Value: what a kernel will compute is not known while it is written.")

    def _with(self, name: str, x: Number, y: Number) -> Value:
        """An instruction on this value and another number."""
        x, y = (v if isinstance(v, Value) else constant(self.type, v) for v in (x, y))
        code = x.code or y.code
        assert code is not None
        return code.made(f"{name} {self.type} {x}, {y}", self.type)

    def _arithmetic(self, name: str, x: Number, y: Number) -> Value:
        return self._with("f" + name if self.type.is_float else name, x, y)

    def __add__(self, other: Number) -> Value:
        return self._arithmetic("add", self, other)

    def __radd__(self, other: Number) -> Value:
        return self._arithmetic("add", other, self)

    def __sub__(self, other: Number) -> Value:
        return self._arithmetic("sub", self, other)

    def __rsub__(self, other: Number) -> Value:
        return self._arithmetic("sub", other, self)

    def __mul__(self, other: Number) -> Value:
        return self._arithmetic("mul", self, other)

    def __rmul__(self, other: Number) -> Value:
        return self._arithmetic("mul", other, self)

    def __truediv__(self, other: Number) -> Value:
        return self._with("fdiv", self, other)

    def __rtruediv__(self, other: Number) -> Value:
        return self._with("fdiv", other, self)

    def __floordiv__(self, other: Number) -> Value:
        return self._with("udiv", self, other)

    def __mod__(self, other: Number) -> Value:
        return self._with("urem", self, other)

    def __lshift__(self, other: Number) -> Value:
        return self._with("shl", self, other)

    def __rlshift__(self, other: Number) -> Value:
        return self._with("shl", other, self)

    def __rshift__(self, other: Number) -> Value:
        return self._with("lshr", self, other)

    def __and__(self, other: Number) -> Value:
        return self._with("and", self, other)

    def __or__(self, other: Number) -> Value:
        return self._with("or", self, other)

    def __xor__(self, other: Number) -> Value:
        return self._with("xor", self, other)

    def __invert__(self) -> Value:
        return self._with("xor", self, -1)

    def __neg__(self) -> Value:
        if not self.type.is_float:
            return self._with("sub", 0, self)
        assert self.code is not None
        return self.code.made(f"fneg {self.type} {self}", self.type)

    def _cast(self, how: str, type_: Type) -> Value:
        if self.type is type_:
            return self
        assert self.code is not None
        return self.code.made(f"{how} {self.type} {self} to {type_}", type_)

    def zext(self, type_: Type) -> Value:
        return self._cast("zext", type_)

    def sext(self, type_: Type) -> Value:
        return self._cast("sext", type_)

    def trunc(self, type_: Type) -> Value:
        return self._cast("trunc", type_)

    def bitcast(self, type_: Type) -> Value:
        return self._cast("bitcast", type_)

    def fpext(self, type_: Type) -> Value:
        return self._cast("fpext", type_)

    def fptrunc(self, type_: Type) -> Value:
        return self._cast("fptrunc", type_)

    def sitofp(self, type_: Type) -> Value:
        return self._cast("sitofp", type_)

    def fptosi(self, type_: Type) -> Value:
        return self._cast("fptosi", type_)

    def _compared(self, how: str, other: Number) -> Value:
        name = f"fcmp o{how}" if self.type.is_float else f"icmp s{how}"
        found = self._with(name, self, other)
        found.type = vector(I1, self.type.count)
        return found

    def __lt__(self, other: Number) -> Value:
        return self._compared("lt", other)

    def __le__(self, other: Number) -> Value:
        return self._compared("le", other)

    def __gt__(self, other: Number) -> Value:
        return self._compared("gt", other)

    def __ge__(self, other: Number) -> Value:
        return self._compared("ge", other)


Number: TypeAlias = Value | int | float
UNSIGNED = {"<": "ult", "<=": "ule", ">": "ugt", ">=": "uge"}


def written(type_: Type, value: float) -> str:
    """A scalar as LLVM writes it; floats as the bits of a float64, so that nothing is lost."""
    if type_ is PTR:
        return "null"
    if not type_.is_float:
        return str(int(value))
    if type_ is FLOAT:
        (value,) = struct.unpack("<f", struct.pack("<f", value))
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def constant(type_: Type, value: float | Sequence[float]) -> Value:
    """A constant; of a vector, one number for all lanes or one for each."""
    if type_.count == 1:
        assert not isinstance(value, Sequence)
        return Value(written(type_, value), type_)
    if not isinstance(value, Sequence):
        if not value and struct.pack("<d", value) == bytes(8):
            return Value("zeroinitializer", type_)
        value = [value] * type_.count
    own = type_.element
    return Value(f"<{', '.join(f'{own} {written(own, v)}' for v in value)}>", type_)


def undefined(type_: Type) -> Value:
    """Any value."""
    return Value("undef", type_)
