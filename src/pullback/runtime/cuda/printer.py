"""Scalar expressions as CUDA C: statements that one thread runs for one element.

The meaning is the scalar language's, to the bit, when compiled with `nvrtc.OPTIONS`: integers wrap
(they are computed unsigned), float to integer saturates, a zero divisor gives 0. Only the bits of a
NaN are the device's own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr
from pullback.ir.scalar_walks import LEAVES, inline_nodes, operands_before

__all__ = ["PRELUDE", "Source", "emit", "literal", "register", "storage"]

_HALVES = (dt.float16, dt.bfloat16)
_TYPES = {
    "bool": "bool", "int8": "signed char", "int16": "short", "int32": "int", "int64": "long long",
    "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned int",
    "uint64": "unsigned long long", "float16": "unsigned short", "bfloat16": "unsigned short",
    "float32": "float", "float64": "double",
}  # fmt: skip
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^",
    "shl": "<<", "shr": ">>", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_CALLS = {
    "fma": "fma", "sqrt": "sqrt", "abs": "fabs", "copysign": "copysign",
    "floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "rint",
}  # fmt: skip
_TO_BITS = {dt.float32: "__float_as_int", dt.float64: "__double_as_longlong"}
_FROM_BITS = {dt.float32: "__int_as_float", dt.float64: "__longlong_as_double"}

PRELUDE = r"""
#define PB_DEVICE static __device__ __forceinline__

template <typename T, typename F> PB_DEVICE T pb_to_signed(F x, F limit, T low, T high) {
  return x != x ? T(0) : x >= limit ? high : x <= -limit ? low : T(x);
}
template <typename T, typename F> PB_DEVICE T pb_to_unsigned(F x, F limit, T high) {
  return x > F(0) ? (x >= limit ? high : T(x)) : T(0);
}
PB_DEVICE float pb_from_bfloat16(unsigned short x) { return __int_as_float((int)x << 16); }
PB_DEVICE float pb_from_float16(unsigned short x) {
  const int magnitude = (x & 0x7fff) << 13;
  const int scaled = __float_as_int(__int_as_float(magnitude) * 0x1p+112f);
  const int value = magnitude >= (0x7c00 << 13) ? magnitude | 0x7f800000 : scaled;
  return __int_as_float(value | (int)((unsigned)(x & 0x8000) << 16));
}
PB_DEVICE unsigned short pb_to_bfloat16(float x) {
  const unsigned bits = (unsigned)__float_as_int(x), high = bits >> 16;
  return (unsigned short)(x != x ? high | 0x40 : (bits + 0x7fff + (high & 1)) >> 16);
}
PB_DEVICE unsigned short pb_to_float16(float x) {
  const unsigned bits = (unsigned)__float_as_int(x), magnitude = bits & 0x7fffffff;
  const unsigned normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Adding 0.5 makes the float adder round at the place where subnormal halves end.
  const unsigned small = __float_as_int(__int_as_float((int)magnitude) + 0.5f) - 0x3f000000u;
  unsigned value = magnitude < (113u << 23) ? small : normal;
  value = magnitude >= (143u << 23) ? 0x7c00u : value;
  value = magnitude > 0x7f800000u ? 0x7e00u : value;
  return (unsigned short)(value | ((bits >> 16) & 0x8000));
}
// float64 as float32 with the last bit set where inexact, so that rounding again is right.
PB_DEVICE float pb_round_to_odd(double x) {
  const float near = (float)x;
  const double back = near;
  const int bits = __float_as_int(near);
  const int odd = (fabs(back) > fabs(x) ? bits - 1 : bits) | 1;
  return __int_as_float(back < x || back > x ? odd : bits);
}
"""


def register(dtype: DType) -> str:
    """The C type of one (real) element in a register."""
    return _TYPES[dtype.name]


def storage(dtype: DType) -> str:
    """The C type of one element in memory."""
    if dtype is dt.bool_:
        return "unsigned char"
    if dtype.is_complex:
        return "float2" if dtype.real is dt.float32 else "double2"
    return _TYPES[dtype.name]


def literal(value: object, dtype: DType) -> str:
    """The constant in C; floats in hexadecimal, so that nothing is lost."""
    if dtype is dt.bool_:
        return "true" if value else "false"
    if dtype in _HALVES:
        return f"(unsigned short){int(np.array(value, dtype.numpy).view(np.uint16))}"
    if dtype.is_float:
        return _float_literal(float(value), dtype)  # type: ignore[arg-type]
    number, bits = int(value), 8 * dtype.itemsize  # type: ignore[call-overload]
    if dtype.kind == "u":
        return f"({register(dtype)}){number % (1 << bits)}ULL"
    if number == -(1 << 63):
        return "(-9223372036854775807LL - 1)"
    return f"({register(dtype)})({number}{'LL' if bits == 64 else ''})"


def _float_literal(value: float, dtype: DType) -> str:
    single = dtype is dt.float32
    with np.errstate(over="ignore"):
        value = float(np.float32(value)) if single else value
    if math.isfinite(value):
        text = value.hex() + ("f" if single else "")
        return f"({text})" if text.startswith("-") else text
    kind = np.int32 if single else np.int64
    bits = int(np.array(value, dtype.numpy).view(kind))
    return f"{_FROM_BITS[dtype]}({literal(bits, dt.int32 if single else dt.int64)})"


class Source:
    """A translation unit under construction; equal parts are written once."""

    def __init__(self):
        self._parts: dict[str, str] = {}

    def add(self, name: str, text: str) -> None:
        """Add a part unless one of that name is there; the name stands for the contents."""
        self._parts.setdefault(name, text)

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def table(self, dtype: DType, values: Sequence[object]) -> str:
        """The name of a constant array."""
        body = ", ".join(literal(v, dtype) for v in values)
        kind = register(dtype)
        name = "pb_table_" + hashlib.sha256(f"{kind}{body}".encode()).hexdigest()[:12]
        # Threads read different places, which constant memory would serialise.
        self.add(name, f"static __device__ const {kind} {name}[{len(values)}] = {{{body}}};")
        return name

    def text(self) -> str:
        """The whole source."""
        return "\n".join([PRELUDE, *self._parts.values(), ""])


def emit(
    source: Source,
    roots: Sequence[Expr],
    leaf: Callable[[Expr], str],
    other: Callable[[Expr, Sequence[str]], str] | None = None,
) -> tuple[list[str], list[str]]:
    """Statements that compute `roots`, and their names; `leaf` names what is given.

    `other` may have an expression of its own for an instruction on operands of these names.
    """
    writer = _Writer(source, leaf, other)
    values: dict[Expr, str] = {}
    writer.block(roots, values, "  ")
    return writer.lines, [values[r] for r in roots]


class _Writer:
    """Writes statements; a nested block sees the values of the blocks around it."""

    def __init__(
        self,
        source: Source,
        leaf: Callable[[Expr], str],
        other: Callable[[Expr, Sequence[str]], str] | None = None,
    ):
        self.source = source
        self.leaf = leaf
        self.other = other
        self.lines: list[str] = []
        self._names = 0

    def block(self, roots: Sequence[Expr], values: dict[Expr, str], indent: str) -> None:
        """Compute `roots` into `values`."""
        inline = set(inline_nodes(roots))
        stack: list[tuple[Expr, bool]] = [(r, False) for r in reversed(roots)]
        while stack:
            e, ready = stack.pop()
            if e in values:
                continue
            if e.op in LEAVES:
                values[e] = self.leaf(e)
            elif e.op == "const":
                values[e] = literal(e.value, e.dtype)
            elif not ready:
                stack.append((e, True))
                stack.extend((a, False) for a in reversed(operands_before(e, inline)))
            elif e.op == "rare":
                values[e] = self.rare(e, values, indent)
            else:
                operands = [values[a] for a in e.args]
                own = self.other(e, operands) if self.other else ""
                text = own or self.expression(e, operands)
                values[e] = self.define(e.dtype, text, indent, "const ")

    def define(self, dtype: DType, text: str, indent: str, qualifier: str = "") -> str:
        name = f"v{self._names}"
        self._names += 1
        self.lines.append(f"{indent}{qualifier}{register(dtype)} {name} = {text};")
        return name

    def rare(self, e: Expr, values: Mapping[Expr, str], indent: str) -> str:
        """`fast`, replaced in a branch by a call: what is hardly run is to cost no registers."""
        condition, slow, fast = e.args
        name = self.define(e.dtype, values[fast], indent)
        function, operands = self.apart(slow, values)
        call = f"{name} = {function}({', '.join(operands)})"
        self.lines.append(f"{indent}if ({values[condition]}) {call};")
        return name

    def apart(self, root: Expr, values: Mapping[Expr, str]) -> tuple[str, list[str]]:
        """A function that computes `root`, equal for equal ones, and the values it is given."""
        given: dict[Expr, str] = {}
        seen: set[Expr] = set()
        stack = [root]
        while stack:
            e = stack.pop()
            if e in seen or e.op == "const":
                continue
            seen.add(e)
            if e in values or e.op in LEAVES:
                given[e] = f"p{len(given)}"
            else:
                stack.extend(e.args)
        writer = _Writer(self.source, self.leaf)
        inner = dict(given)
        writer.block([root], inner, "  ")
        parameters = ", ".join(f"const {register(e.dtype)} {p}" for e, p in given.items())
        body = "\n".join([f"({parameters}) {{", *writer.lines, f"  return {inner[root]};", "}"])
        head = f"static __device__ __noinline__ {register(root.dtype)}"
        name = "pb_apart_" + hashlib.sha256((head + body).encode()).hexdigest()[:12]
        self.source.add(name, f"{head} {name}{body}")
        return name, [values.get(e) or self.leaf(e) for e in given]

    def expression(self, e: Expr, operands: list[str]) -> str:
        """The C expression of an instruction whose operands have names."""
        kind, op = e.dtype, e.op
        if op == "select":
            return "{} ? {} : {}".format(*operands)
        if op == "cast":
            return convert(operands[0], e.args[0].dtype, kind)
        if op == "bitcast":
            return _bitcast(operands[0], e.args[0].dtype, kind)
        if op == "table":
            return f"{self.source.table(kind, e.value)}[{operands[0]}]"  # type: ignore[arg-type]
        if op in _COMPARISONS:
            return f" {_INFIX[op]} ".join(operands)
        if kind.is_float:
            return _float_expression(op, kind, operands)
        return _integer_expression(e, kind, operands)


def _float_expression(op: str, kind: DType, operands: list[str]) -> str:
    if op == "neg":
        return f"-{operands[0]}"
    if op in _CALLS:
        suffix = "f" if kind is dt.float32 else ""
        return f"{_CALLS[op]}{suffix}({', '.join(operands)})"
    return f" {_INFIX[op]} ".join(operands)


def _integer_expression(e: Expr, kind: DType, operands: list[str]) -> str:
    """Wrapping arithmetic: C leaves signed overflow undefined, so it is done unsigned."""
    op, c = e.op, register(kind)
    if op in ("quot", "rem"):
        return _division(e, kind, *operands)
    if op == "not":
        return f"!{operands[0]}" if kind is dt.bool_ else f"({c})~{operands[0]}"
    if op == "shr":
        return f"({c})({operands[0]} >> {operands[1]})"
    unsigned = "unsigned long long" if kind.itemsize == 8 else "unsigned int"
    wide = [f"({unsigned}){o}" for o in operands]
    if op == "neg":
        return f"({c})(0 - {wide[0]})"
    if op == "abs":
        x = operands[0]
        return x if kind.kind != "i" else f"{x} < 0 ? ({c})(0 - {wide[0]}) : {x}"
    if op == "shl":
        return f"({c})({wide[0]} << {operands[1]})"
    return f"({c})({wide[0]} {_INFIX[op]} {wide[1]})"


def _division(e: Expr, kind: DType, a: str, b: str) -> str:
    """Division that neither traps nor overflows: the divisors 0 and -1 are answered apart."""
    c, sign = register(kind), "/" if e.op == "quot" else "%"
    plain = f"({c})({a} {sign} {b})"
    divisor = e.args[1]
    if divisor.op == "const" and divisor.value not in (0, -1):
        return plain
    zero = f"({c})0"
    if kind.kind == "u":
        return f"{b} == 0 ? {zero} : {plain}"
    unsigned = "unsigned long long" if kind.itemsize == 8 else "unsigned int"
    negated = f"({c})(0 - ({unsigned}){a})" if e.op == "quot" else zero
    return f"{b} == 0 ? {zero} : {b} == -1 ? {negated} : {plain}"


def _bitcast(x: str, source: DType, target: DType) -> str:
    if source in _TO_BITS:
        return f"({register(target)}){_TO_BITS[source]}({x})"
    if target in _FROM_BITS:
        middle = register(dt.int32 if target is dt.float32 else dt.int64)
        return f"{_FROM_BITS[target]}(({middle}){x})"
    return f"({register(target)}){x}"


def convert(x: str, source: DType, target: DType) -> str:
    """`x` of dtype `source` as `target`: C's conversion, saturating from float to integer."""
    if source is target:
        return x
    if source in _HALVES:
        return convert(f"pb_from_{source.name}({x})", dt.float32, target)
    if target in _HALVES:
        if source.itemsize < 4 or source is dt.float32:
            return f"pb_to_{target.name}({convert(x, source, dt.float32)})"
        return f"pb_to_{target.name}(pb_round_to_odd({convert(x, source, dt.float64)}))"
    if target is dt.bool_:
        return f"{x} != 0"
    if source.is_float and target.is_integer:
        return _saturated(x, source, target)
    return f"({register(target)}){x}"


def _saturated(x: str, source: DType, target: DType) -> str:
    bits, c, f = 8 * target.itemsize, register(target), register(source)
    if target.kind == "u":
        limit, high = literal(2.0**bits, source), literal((1 << bits) - 1, target)
        return f"pb_to_unsigned<{c}, {f}>({x}, {limit}, {high})"
    limit = literal(2.0 ** (bits - 1), source)
    low, high = (literal(v, target) for v in (-(1 << (bits - 1)), (1 << (bits - 1)) - 1))
    return f"pb_to_signed<{c}, {f}>({x}, {limit}, {low}, {high})"
