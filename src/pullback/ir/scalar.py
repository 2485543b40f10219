"""The scalar language: what a kernel computes for one element.

An `Expr` is an immutable, interned, typed tree. It has no control flow, so a printer may emit it
for one element, for a vector of elements or for a GPU thread. Interning makes equal subexpressions
the same object: printers get common-subexpression elimination for free.

Only bool, integers, float32 and float64 are computed with. float16 and bfloat16 appear in loads and
casts alone; complex numbers are pairs (`Complex`).

The arithmetic is IEEE and nothing is contracted or reassociated behind our back: a fused
multiply-add happens where `fma` is written and nowhere else, so an expression has the same bits
alone and inside a fused kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.core.interning import Interned

__all__ = [
    "Complex",
    "Expr",
    "Value",
    "abs_",
    "acc",
    "bitcast",
    "cast",
    "ceil",
    "const",
    "copysign",
    "floor",
    "fma",
    "index",
    "load",
    "logical_not",
    "rare",
    "rint",
    "select",
    "sqrt",
    "substituted",
    "table",
    "text",
    "trunc",
]

Number = bool | int | float

# name -> number of operands. Printers cover exactly this table.
INSTRUCTIONS = {
    "const": 0,  # value: a Python number of the expression's dtype
    "load": 0,  # value: (operand position, part); part 1 is the imaginary half of a complex element
    "index": 0,  # the row-major linear index of the output element, int64
    "acc": 0,  # value: (side, position): accumulator of the "a" (earlier) or "b" (later) side
    "add": 2, "sub": 2, "mul": 2, "neg": 1,
    "div": 2,  # floats only
    "quot": 2, "rem": 2,  # integers only, truncating; a zero divisor gives 0, never a trap
    "fma": 3, "sqrt": 1, "abs": 1, "copysign": 2,
    "floor": 1, "ceil": 1, "trunc": 1, "rint": 1,  # rint: half to even
    "and": 2, "or": 2, "xor": 2, "not": 1,  # bool and integers
    "shl": 2, "shr": 2,  # shr is arithmetic on signed, logical on unsigned; counts are in range
    "eq": 2, "ne": 2, "lt": 2, "le": 2, "gt": 2, "ge": 2,  # IEEE: on NaN only ne is true
    "select": 3,  # condition (bool), if true, if false
    "cast": 1,  # C conversion; float to integer saturates and NaN gives 0; to bool is `!= 0`
    "bitcast": 1,  # same width
    "table": 1,  # value: a tuple of constants; operand: an in-range integer index
    "rare": 3,  # condition, slow, fast: a select whose `slow` is evaluated out of line
}  # fmt: skip

_interned: Interned[Expr] = Interned()


class Expr:
    """One typed scalar computation; build it with operators and the functions of this module."""

    __slots__ = ("__weakref__", "args", "dtype", "op", "value")

    op: str
    args: tuple[Expr, ...]
    dtype: DType
    value: object

    # Arithmetic takes Python numbers as constants of the other side's dtype.
    def __add__(self, other: Expr | Number) -> Expr:
        return _binary("add", self, other)

    def __radd__(self, other: Number) -> Expr:
        return _binary("add", other, self)

    def __sub__(self, other: Expr | Number) -> Expr:
        return _binary("sub", self, other)

    def __rsub__(self, other: Number) -> Expr:
        return _binary("sub", other, self)

    def __mul__(self, other: Expr | Number) -> Expr:
        return _binary("mul", self, other)

    def __rmul__(self, other: Number) -> Expr:
        return _binary("mul", other, self)

    def __truediv__(self, other: Expr | Number) -> Expr:
        return _binary("div", self, other)

    def __rtruediv__(self, other: Number) -> Expr:
        return _binary("div", other, self)

    def __and__(self, other: Expr | Number) -> Expr:
        return _binary("and", self, other)

    def __or__(self, other: Expr | Number) -> Expr:
        return _binary("or", self, other)

    def __xor__(self, other: Expr | Number) -> Expr:
        return _binary("xor", self, other)

    def __lshift__(self, other: Expr | Number) -> Expr:
        return _binary("shl", self, other)

    def __rshift__(self, other: Expr | Number) -> Expr:
        return _binary("shr", self, other)

    def __neg__(self) -> Expr:
        return _make("neg", (self,), self.dtype)

    def __invert__(self) -> Expr:
        return _make("not", (self,), self.dtype)

    # Comparisons build expressions, so an Expr is never compared for equality: use `is`.
    def __lt__(self, other: Expr | Number) -> Expr:
        return _compare("lt", self, other)

    def __le__(self, other: Expr | Number) -> Expr:
        return _compare("le", self, other)

    def __gt__(self, other: Expr | Number) -> Expr:
        return _compare("gt", self, other)

    def __ge__(self, other: Expr | Number) -> Expr:
        return _compare("ge", self, other)

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return _compare("eq", self, other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return _compare("ne", self, other)  # type: ignore[arg-type]

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError("a scalar expression has no truth value; use select")

    def __repr__(self) -> str:
        return text(self)


def _make(op: str, args: tuple[Expr, ...], dtype: DType, value: object = None) -> Expr:
    assert len(args) == INSTRUCTIONS[op], f"{op} takes {INSTRUCTIONS[op]} operands"
    # repr tells 0.0 from -0.0 and 1 from True, which == does not
    key = (op, tuple(map(id, args)), dtype, repr(value))
    found = _interned.get(key)
    if found is None:
        found = Expr()
        found.op, found.args, found.dtype, found.value = op, args, dtype, value
        return _interned.add(key, found)
    return found


def const(value: Number, dtype: DType) -> Expr:
    """A literal of the given dtype."""
    kind = dtype.kind
    value = bool(value) if kind == "b" else float(value) if kind == "f" else int(value)
    return _make("const", (), dtype, value)


def _pair(a: Expr | Number, b: Expr | Number) -> tuple[Expr, Expr]:
    if not isinstance(a, Expr):
        assert isinstance(b, Expr)
        a = const(a, b.dtype)
    if not isinstance(b, Expr):
        b = const(b, a.dtype)
    assert a.dtype is b.dtype, f"scalar operands differ: {a.dtype.name}, {b.dtype.name}"
    return a, b


def _binary(op: str, a: Expr | Number, b: Expr | Number) -> Expr:
    x, y = _pair(a, b)
    return _make(op, (x, y), x.dtype)


def _compare(op: str, a: Expr | Number, b: Expr | Number) -> Expr:
    return _make(op, _pair(a, b), dt.bool_)


def load(position: int, dtype: DType, part: int = 0) -> Expr:
    """Operand `position` of the kernel at the current element; `dtype` is that of one part."""
    return _make("load", (), dtype, (position, part))


def index() -> Expr:
    """The linear index of the element being computed."""
    return _make("index", (), dt.int64)


def acc(side: str, position: int, dtype: DType) -> Expr:
    """Accumulator `position` of side "a" (earlier elements) or "b" (later ones) of a combine."""
    return _make("acc", (), dtype, (side, position))


def quot(a: Expr, b: Expr | Number) -> Expr:
    """Integer division, rounding towards zero; 0 where `b` is 0."""
    return _binary("quot", a, b)


def rem(a: Expr, b: Expr | Number) -> Expr:
    """Remainder of `quot`; 0 where `b` is 0."""
    return _binary("rem", a, b)


def fma(a: Expr, b: Expr | Number, c: Expr | Number) -> Expr:
    """`a * b + c` with one rounding."""
    a, y = _pair(a, b)
    _, z = _pair(a, c)
    return _make("fma", (a, y, z), a.dtype)


def _unary(op: str) -> Callable[[Expr], Expr]:
    def build(x: Expr) -> Expr:
        return _make(op, (x,), x.dtype)

    build.__name__ = build.__qualname__ = op
    return build


sqrt, abs_, floor, ceil, trunc, rint = map(
    _unary, ("sqrt", "abs", "floor", "ceil", "trunc", "rint")
)


def copysign(magnitude: Expr | Number, sign: Expr | Number) -> Expr:
    """`|magnitude|` with the sign bit of `sign`."""
    return _binary("copysign", magnitude, sign)


def logical_not(x: Expr) -> Expr:
    return _make("not", (x,), dt.bool_)


def select(condition: Expr, a: Expr | Number, b: Expr | Number) -> Expr:
    """`a` where the condition holds, else `b`; both are evaluated."""
    x, y = _pair(a, b)
    return _make("select", (condition, x, y), x.dtype)


def rare(condition: Expr, slow: Expr, fast: Expr) -> Expr:
    """`slow` where the condition holds, else `fast`; `slow` costs nothing while no element needs
    it.
    """
    x, y = _pair(slow, fast)
    return _make("rare", (condition, x, y), x.dtype)


def cast(x: Expr, dtype: DType) -> Expr:
    """`x` converted to `dtype`."""
    return x if x.dtype is dtype else _make("cast", (x,), dtype)


def bitcast(x: Expr, dtype: DType) -> Expr:
    """The bits of `x` read as `dtype`."""
    assert x.dtype.itemsize == dtype.itemsize
    return x if x.dtype is dtype else _make("bitcast", (x,), dtype)


def table(values: tuple[Number, ...], position: Expr, dtype: DType) -> Expr:
    """`values[position]`; the caller keeps the position in range."""
    return _make("table", (position,), dtype, tuple(values))


class Complex:
    """A complex element as its two parts; supports the operators that bodies need."""

    __slots__ = ("im", "re")

    def __init__(self, re: Expr, im: Expr):
        self.re = re
        self.im = im

    @staticmethod
    def of(x: Value | Number, like: Complex) -> Complex:
        if isinstance(x, Complex):
            return x
        zero = const(0.0, like.re.dtype)
        return Complex(x if isinstance(x, Expr) else const(x, like.re.dtype), zero)

    def __add__(self, other: Value | Number) -> Complex:
        o = Complex.of(other, self)
        return Complex(self.re + o.re, self.im + o.im)

    def __sub__(self, other: Value | Number) -> Complex:
        o = Complex.of(other, self)
        return Complex(self.re - o.re, self.im - o.im)

    def __rsub__(self, other: Value | Number) -> Complex:
        return Complex.of(other, self) - self

    def __mul__(self, other: Value | Number) -> Complex:
        if isinstance(other, Complex):
            return Complex(
                self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re
            )
        return Complex(self.re * other, self.im * other)

    __radd__ = __add__
    __rmul__ = __mul__

    def __truediv__(self, other: Value | Number) -> Complex:
        if not isinstance(other, Complex):
            return Complex(self.re / other, self.im / other)
        return _complex_quotient(self, other)

    def __neg__(self) -> Complex:
        return Complex(-self.re, -self.im)

    def conj(self) -> Complex:
        return Complex(self.re, -self.im)

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        o = Complex.of(other, self)  # type: ignore[arg-type]
        return (self.re == o.re) & (self.im == o.im)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return logical_not(self == other)

    __hash__ = object.__hash__


def _complex_quotient(a: Complex, b: Complex) -> Complex:
    """Smith's algorithm: scales by the larger part, so that no square overflows."""
    swap = abs_(b.re) < abs_(b.im)
    big, small = select(swap, b.im, b.re), select(swap, b.re, b.im)
    ratio = small / big
    scale = fma(small, ratio, big)
    re = select(swap, fma(a.re, ratio, a.im), fma(a.im, ratio, a.re)) / scale
    im = select(swap, fma(a.im, ratio, -a.re), fma(-a.re, ratio, a.im)) / scale
    zero = big == 0.0  # each part over zero, as C and NumPy have it
    return Complex(select(zero, a.re / b.re, re), select(zero, a.im / b.re, im))


Value = Expr | Complex


def text(*roots: Expr) -> str:
    """The expressions as numbered lines, equal for equal expressions: a key for code caches."""
    number: dict[Expr, int] = {}
    lines: list[str] = []
    for root in roots:
        for e in topological(root, number):
            value = "" if e.value is None else f" {e.value!r}"
            args = " ".join(f"%{number[a]}" for a in e.args)
            number[e] = len(number)
            lines.append(f"%{number[e]} = {e.op}.{e.dtype.name}{value} {args}".rstrip())
    lines.append("ret " + " ".join(f"%{number[r]}" for r in roots))
    return "\n".join(lines)


def substituted(
    roots: Sequence[Expr], leaf: Callable[[Expr], Expr], kind: str = "load"
) -> tuple[Expr, ...]:
    """The expressions with `leaf(e)` in place of every load `e`, or of what is of another kind."""
    done: dict[Expr, Expr] = {}
    for root in roots:
        for e in topological(root, {}):
            if e in done:
                continue
            args = tuple(done[a] for a in e.args)
            same = all(a is b for a, b in zip(args, e.args, strict=True))
            done[e] = (
                leaf(e) if e.op == kind else e if same else _make(e.op, args, e.dtype, e.value)
            )
    return tuple(done[r] for r in roots)


def topological(root: Expr, done: dict[Expr, int]) -> list[Expr]:
    """The expressions under `root` that are not in `done`, operands first, without recursion."""
    order: list[Expr] = []
    seen: set[int] = set()
    stack: list[tuple[Expr, bool]] = [(root, False)]
    while stack:
        e, expanded = stack.pop()
        if expanded:
            order.append(e)
        elif id(e) not in seen and e not in done:
            seen.add(id(e))
            stack.append((e, True))
            stack.extend((a, False) for a in reversed(e.args))
    return order
