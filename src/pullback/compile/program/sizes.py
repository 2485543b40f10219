"""Sizes that note what is computed from them, and what is decided by them.

Python code that plans a program runs on them as on integers: arithmetic gives further sizes, and
whatever needs a number at once (a condition, a range, an index) gets that of the sizes at hand and
leaves an event on the tape. Where all events come out the same for other sizes, the code would have
gone the same way with these: what it computed is then a function of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

from pullback.core.interning import Unhashed

__all__ = ["Event", "Size", "Tape", "Unsized", "as_one", "named_in"]

Number = int | float


class Unsized(Exception):
    """What is done with sizes can't be written as a function of them."""


class Event(NamedTuple):
    """What an expression came out as, and the names in it."""

    text: str
    names: tuple[str, ...]
    outcome: Any


class Tape:
    """The names of what was given and computed, and events in their order."""

    def __init__(self) -> None:
        self.inputs: list[str] = []
        self.definitions: dict[str, tuple[str, tuple[str, ...]]] = {}  # text, and names in it
        self.events: list[Event] = []
        self.scope: dict[str, Any] = {}  # what definitions refer to besides
        self._known: set[str] = set()  # texts of events
        self._named: dict[str, Size] = {}  # by text

    def given(self, value: int, low: int | None) -> Size:
        """A size that is not computed, and never below `low`."""
        name = f"n{len(self.inputs)}"
        self.inputs.append(name)
        return Size(self, value, 1, (name,), low)

    def named(self, value: Number, low: int | None, pattern: str, *parts: Size | Number) -> Size:
        """A size that is computed: the pattern is Python with {} for each part."""
        text = pattern.format(*[p.text if isinstance(p, Size) else repr(p) for p in parts])
        found = self._named.get(text)
        if found is None:
            name = f"v{len(self.definitions)}"
            self.definitions[name] = (text, named_in(parts))
            found = self._named[text] = Size(self, value, 1, (name,), low)
        return found

    def known(self, value: Any) -> str:
        """What stands for something that is no size: a number, or a name that all tapes share."""
        if value.__class__ in (int, bool):
            return repr(value)
        name = f"k{id(value)}"
        self.scope[name] = value
        return name

    def event(self, outcome: Any, pattern: str, *parts: Size | Number) -> Any:
        """Note what an expression came out as."""
        text = pattern.format(*[p.text if isinstance(p, Size) else repr(p) for p in parts])
        if text not in self._known:
            self._known.add(text)
            self.events.append(Event(text, named_in(parts), outcome))
        return outcome

    def end(self) -> None:
        """Forget what only further computing would need."""
        self._known.clear()
        self._named.clear()


def as_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that gives a named tuple of sizes, so that what it decides is no event: for other
    sizes it is called again.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = [a for a in (*args, *kwargs.values()) if isinstance(a, Size)]
        if not given:
            return function(*args, **kwargs)
        tape, names, values = given[0].tape, [], []
        for a in args:
            names.append("{}" if isinstance(a, Size) else tape.known(a))
            values.append(a.value if isinstance(a, Size) else a)
        for name, a in kwargs.items():
            if isinstance(a, Size):
                raise Unsized("only positions are looked at")
            names.append(f"{name}={tape.known(a)}")
        found = function(*values, **kwargs)
        text = f"{tape.known(function)}({', '.join(names)})"
        whole = tape.named(0, None, text, *[a for a in args if isinstance(a, Size)])
        return type(found)(*[tape.named(v, None, f"{{}}[{k}]", whole)
                             for k, v in enumerate(found)])  # fmt: skip

    return call


def named_in(parts: Any) -> tuple[str, ...]:
    """The names in some sizes, of which some may be numbers."""
    return tuple(dict.fromkeys(n for p in parts if isinstance(p, Size) for n in p.names))


class Size:
    """A factor times the product of `names`, which has the value `value` at present.

    It is never below `low`, if that is not None, whatever sizes are given.
    """

    __slots__ = ("factor", "low", "names", "tape", "text", "value")

    def __init__(
        self, tape: Tape, value: Number, factor: int, names: tuple[str, ...], low: int | None
    ):
        self.tape, self.value, self.factor, self.names, self.low = tape, value, factor, names, low
        product = " * ".join(names if factor == 1 else (str(factor), *names))
        self.text = product if len(names) == 1 and factor == 1 else f"({product})"

    # -- arithmetic: further sizes -----------------------------------------------------------------

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Size):
            names = tuple(sorted(self.names + other.names))
            low = _least(self, other, lambda a, b: a * b)
            factor = self.factor * other.factor
            return Size(self.tape, self.value * other.value, factor, names, low)
        if other.__class__ is not int and other.__class__ is not bool:
            return self.tape.named(self.value * other, None, "{} * {}", self, other) if (
                other.__class__ is float) else NotImplemented  # fmt: skip
        if other == 0 or other == 1:
            return self if other else 0
        low = self.low * other if self.low is not None and other > 0 else None
        return Size(self.tape, self.value * other, self.factor * int(other), self.names, low)

    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return self * -1

    def __pos__(self) -> Any:
        return self

    def __add__(self, other: Any) -> Any:
        if other.__class__ is int and other == 0:
            return self
        return _binary("+", self, other, _least(self, other, lambda a, b: a + b))

    def __radd__(self, other: Any) -> Any:
        return self if other.__class__ is int and other == 0 else _binary(
            "+", other, self, _least(self, other, lambda a, b: a + b))  # fmt: skip

    def __sub__(self, other: Any) -> Any:
        if other.__class__ is int and other == 0:
            return self
        low = self.low - other if self.low is not None and other.__class__ is int else None
        return _binary("-", self, other, low)

    def __rsub__(self, other: Any) -> Any:
        return _binary("-", other, self)

    def __floordiv__(self, other: Any) -> Any:
        if other.__class__ is int and other > 0:
            if other == 1:
                return self
            return _binary("//", self, other, None if self.low is None else self.low // other)
        positive = isinstance(other, Size) and (other.low or 0) > 0 and (self.low or -1) >= 0
        return _binary("//", self, other, 0 if positive else None)

    def __rfloordiv__(self, other: Any) -> Any:
        return _binary("//", other, self, 0 if _positive(self) and other >= 0 else None)

    def __mod__(self, other: Any) -> Any:
        return _binary("%", self, other, 0 if _positive(other) else None)

    def __rmod__(self, other: Any) -> Any:
        return _binary("%", other, self, 0 if _positive(self) else None)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __truediv__(self, other: Any) -> Any:
        low = 0 if self.low is not None and self.low >= 0 and _positive(other) else None
        return _binary("/", self, other, low)

    def __rtruediv__(self, other: Any) -> Any:
        return _binary("/", other, self)

    def __lshift__(self, other: Any) -> Any:
        return _binary("<<", self, other)

    def __rlshift__(self, other: Any) -> Any:
        return _binary("<<", other, self)

    def __rshift__(self, other: Any) -> Any:
        return _binary(">>", self, other)

    def __rrshift__(self, other: Any) -> Any:
        return _binary(">>", other, self)

    def __and__(self, other: Any) -> Any:
        return _binary("&", self, other)

    def __rand__(self, other: Any) -> Any:
        return _binary("&", other, self)

    def __or__(self, other: Any) -> Any:
        return _binary("|", self, other)

    def __ror__(self, other: Any) -> Any:
        return _binary("|", other, self)

    def __abs__(self) -> Any:
        return self.tape.named(abs(self.value), 0, "abs({})", self)

    def __ceil__(self) -> Any:
        return self.tape.named(-int(-self.value // 1), self.low, "ceil({})", self)

    def __floor__(self) -> Any:
        return self.tape.named(int(self.value // 1), self.low, "floor({})", self)

    def bit_length(self) -> Any:
        """As of an integer."""
        return self.tape.named(int(self.value).bit_length(), 0, "({}).bit_length()", self)

    # -- decisions: events -------------------------------------------------------------------------

    def __bool__(self) -> bool:
        if _positive(self):
            return True
        return self.tape.event(self.value != 0, "{} != 0", self)

    def __eq__(self, other: object) -> Any:
        return self._compared("==", other)

    def __ne__(self, other: object) -> Any:
        found = self._compared("==", other)
        return found if found is NotImplemented else not found

    def __lt__(self, other: Any) -> Any:
        return self._compared("<", other)

    def __ge__(self, other: Any) -> Any:
        found = self._compared("<", other)
        return found if found is NotImplemented else not found

    def __gt__(self, other: Any) -> Any:
        return self._compared(">", other)

    def __le__(self, other: Any) -> Any:
        found = self._compared(">", other)
        return found if found is NotImplemented else not found

    def _compared(self, sign: str, other: Any) -> Any:
        if isinstance(other, Size):
            if other.text == self.text:
                return sign == "=="
            value, least = other.value, None
        elif isinstance(other, (int, float)):
            value, least = other, self.low
        else:
            return NotImplemented
        if least is not None:  # what is true of all sizes that may be given
            if sign != ">" and (least > value or (least == value and sign == "<")):
                return False
            if sign == ">" and least > value:
                return True
        outcome = _COMPARED[sign](self.value, value)
        return self.tape.event(outcome, f"{{}} {sign} {{}}", self, other)

    def __index__(self) -> int:
        if self.value.__class__ is not int:
            raise Unsized("a float where an integer is needed")
        return self.tape.event(self.value, "{}", self)

    def __int__(self) -> int:
        return int(self.tape.event(self.value, "{}", self))

    __trunc__ = __int__

    def __float__(self) -> float:
        return float(self.tape.event(self.value, "{}", self))

    def __repr__(self) -> str:
        return repr(self.tape.event(self.value, "{}", self))

    def __format__(self, spec: str) -> str:
        return format(self.tape.event(self.value, "{}", self), spec)

    def __hash__(self) -> int:
        raise Unhashed("a size stands for many numbers")


_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
}
_COMPUTED: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "/": lambda a, b: a / b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
}


def _binary(sign: str, a: Any, b: Any, low: int | None = None) -> Any:
    tape = a.tape if isinstance(a, Size) else b.tape
    values = [x.value if isinstance(x, Size) else x for x in (a, b)]
    if not all([isinstance(v, (int, float)) for v in values]):
        return NotImplemented
    return tape.named(_COMPUTED[sign](*values), low, f"({{}} {sign} {{}})", a, b)


def _least(a: Size, b: Any, join: Callable[[int, int], int]) -> int | None:
    """What the sum or product of two is never below, if neither is ever negative."""
    other = b.low if isinstance(b, Size) else b if b.__class__ is int else None
    if a.low is None or other is None or a.low < 0 or other < 0:
        return None
    return join(a.low, other)


def _positive(x: Any) -> bool:
    """Whether a number or size is above zero whatever sizes are given."""
    low = x.low if isinstance(x, Size) else x
    return low is not None and low > 0
