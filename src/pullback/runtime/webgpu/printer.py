"""Scalar expressions as WGSL: statements that one thread runs for one element.

The meaning is the scalar language's, to the bit. WGSL lets compilers rearrange floats, and they do,
so every float result passes through `pb_f`, whose inside no compiler can know. Integers of 64 bits
and float64 are pairs of words, and functions of the library: see the files in wgsl/.

Names that end in _exact are WGSL's own or a function of the library: `arithmetic` chooses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.core.errors import DTypeError
from pullback.ir.scalar import Expr
from pullback.ir.scalar_walks import LEAVES, inline_nodes, operands_before
from pullback.runtime.webgpu.machine import REGISTERS, Machine, from_register, is_long

__all__ = [
    "MISSING",
    "Source",
    "check_dtype",
    "emit",
    "item",
    "literal",
    "loaded",
    "register",
    "stored",
]

MISSING = (dt.float64, dt.complex128)  # in memory: registers may hold float64 as pairs of words
_TYPES = {
    "bool": "bool", "int8": "i32", "int16": "i32", "int32": "i32", "uint8": "u32",
    "uint16": "u32", "uint32": "u32", "float16": "u32", "bfloat16": "u32", "float32": "f32",
    "int64": "vec2<u32>", "uint64": "vec2<u32>", "float64": "vec2<u32>",
}  # fmt: skip
_HALVES = {"float16": "f16", "bfloat16": "bf16"}
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_ROUNDINGS = {"trunc": 0, "floor": 1, "ceil": 2, "rint": 3}  # as `f64_rounded` numbers them
_ROUND_32 = {"trunc": "trunc", "floor": "floor", "ceil": "ceil", "rint": "round"}


def register(dtype: DType) -> str:
    """The WGSL type of one (real) element in a register; half floats are their bits."""
    return _TYPES[dtype.name]


def check_dtype(name: str, dtype: DType) -> None:
    """Raise for a dtype that no GPU has here."""
    if dtype in MISSING:
        other = "float32" if dtype is dt.float64 else "complex64"
        raise DTypeError(
            f"{name}: webgpu has no {dtype.name}. Use {other}, as in pb.tensor(..., dtype="
            f'"{other}", device="webgpu"), or the CPU.'
        )


def item(dtype: DType) -> str:
    """The kind of an element in memory: see `stages.Binding`."""
    return f"u{8 * dtype.itemsize}"


def is_wide(dtype: DType) -> bool:
    """Whether values are pairs of words."""
    return register(dtype) == "vec2<u32>"


def literal(value: object, dtype: DType) -> str:
    """The constant; floats as bits that no compiler knows."""
    if dtype is dt.bool_:
        return "true" if value else "false"
    with np.errstate(over="ignore"):
        # Python's integers may be those of an unsigned dtype, or negative: both wrap
        raw = (
            np.array(value, dtype.numpy).tobytes()
            if dtype.is_float
            else (int(value) % (1 << 64)).to_bytes(8, "little")  # type: ignore[call-overload]
        )
    if is_wide(dtype):
        low, high = np.frombuffer(raw[:8], np.uint32).tolist()
        return f"vec2<u32>({low}u, {high}u)"
    if dtype is dt.float32:
        return f"pb_c({int.from_bytes(raw, 'little')}u)"
    if dtype.name in _HALVES:
        return f"{int.from_bytes(raw, 'little')}u"
    number = int(value)  # type: ignore[call-overload]
    if dtype.kind == "u":
        return f"{number % (1 << 8 * dtype.itemsize)}u"
    return "bitcast<i32>(0x80000000u)" if number == -(1 << 31) else f"({number})"


def loaded(text: str, dtype: DType) -> str:
    """The value in a register of a real element that was read as `item` says."""
    name = dtype.name
    if dtype is dt.bool_:
        return f"({text} != 0u)"
    if name in ("int8", "int16"):
        count = 32 - 8 * dtype.itemsize
        return f"((bitcast<i32>({text}) << {count}u) >> {count}u)"
    if name in ("int32", "float32"):
        return f"bitcast<{register(dtype)}>({text})"
    return text


def stored(text: str, dtype: DType) -> str:
    """The item of a real element from its value in a register."""
    if dtype is dt.bool_:
        return f"select(0u, 1u, {text})"
    if dtype.kind == "i" and dtype.itemsize < 4:
        return f"(bitcast<u32>({text}) & {(1 << 8 * dtype.itemsize) - 1}u)"
    if dtype.name in ("int32", "float32"):
        return f"bitcast<u32>({text})"
    return text


class Source:
    """A WGSL text under construction; equal parts are written once."""

    def __init__(self):
        self._parts: dict[str, str] = {}

    def add(self, name: str, text: str) -> None:
        """Add a part unless one of that name is there; the name stands for the contents."""
        self._parts.setdefault(name, text)

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def table(self, dtype: DType, values: Sequence[object]) -> str:
        """The name of a constant array of words, or pairs of them."""
        wide = is_wide(dtype)
        raw = np.array(values, dtype.numpy)
        if not wide:
            kind = f"u{dtype.itemsize}" if dtype.is_float else dtype.numpy
            raw = raw.view(kind).astype(np.int64) % (1 << 32)
        words = raw.view(np.uint32).reshape(-1, 2).tolist() if wide else raw.tolist()
        body = ", ".join(f"vec2<u32>({w[0]}u, {w[1]}u)" if wide else f"{w}u" for w in words)
        kind = "vec2<u32>" if wide else "u32"
        name = "pb_table_" + hashlib.sha256(f"{kind}{body}".encode()).hexdigest()[:12]
        self.add(name, f"const {name} = array<{kind}, {len(values)}>({body});")
        return name

    def text(self) -> str:
        """The whole source."""
        return "\n".join(self._parts.values())


def emit(
    source: Source, roots: Sequence[Expr], leaf: Callable[[Expr], str], plain: bool = False
) -> tuple[list[str], list[str]]:
    """Statements that compute `roots`, and their names; `leaf` names what is given.

    `plain`: long chains of float64 are statements too, for adapters where each is an instruction.
    """
    writer = _Writer(source, leaf, plain)
    values: dict[Expr, str] = {}
    writer.block(roots, values, "  ")
    return writer.lines, [values[r] for r in roots]


class _Writer:
    """Writes statements; a nested block sees the values of the blocks around it."""

    def __init__(self, source: Source, leaf: Callable[[Expr], str], plain: bool):
        self.source = source
        self.leaf = leaf
        self.plain = plain
        self.lines: list[str] = []
        self._names = 0

    def block(self, roots: Sequence[Expr], values: dict[Expr, str], indent: str) -> None:
        """Compute `roots` into `values`."""
        inline = set(inline_nodes(roots))
        nodes = self.ordered(roots, inline, values)
        start = 0
        for k, e in enumerate([*nodes, None]):
            if e is None or e.op == "rare":
                used = {a for later in nodes[k:] for a in operands_before(later, inline)}
                self.chain(nodes[start:k], used.union(roots), values, indent)
                start = k + 1
            if e is not None and e.op == "rare":
                values[e] = self.rare(e, values, indent)

    def ordered(
        self, roots: Sequence[Expr], inline: Collection[Expr], values: dict[Expr, str]
    ) -> list[Expr]:
        """What is to be computed, one after the other; leaves and constants get their texts."""
        found: dict[Expr, None] = {}
        stack: list[tuple[Expr, bool]] = [(r, False) for r in reversed(roots)]
        while stack:
            e, ready = stack.pop()
            if e in values or e in found:
                continue
            if e.op in LEAVES:
                values[e] = self.leaf(e)
            elif e.op == "const":
                values[e] = literal(e.value, e.dtype)
            elif ready:
                found[e] = None
            else:
                stack.append((e, True))
                stack.extend((a, False) for a in reversed(operands_before(e, inline)))
        return list(found)

    def chain(
        self, nodes: Sequence[Expr], used: Collection[Expr], values: dict[Expr, str], indent: str
    ) -> None:
        """Compute expressions in their order; those that are `used` later have names then."""
        if is_long(nodes) and not self.plain:
            kept = [e for e in nodes if e in used]
            machine = Machine(nodes, values, kept, self.expression)
            if machine.count <= REGISTERS:
                table, text = machine.table()
                self.source.add(table, text)
                name = f"r{self._names}"
                self.lines += [indent + line for line in machine.lines(name, table)]
                for e in kept:
                    text = from_register(f"{name}[{machine.places[e]}]", e.dtype)
                    values[e] = self.define(e.dtype, text, indent)
                return
        for e in nodes:
            text = self.expression(e, [values[a] for a in e.args])
            values[e] = self.define(e.dtype, text, indent)

    def define(self, dtype: DType, text: str, indent: str, kind: str = "let") -> str:
        name = f"v{self._names}"
        self._names += 1
        self.lines.append(f"{indent}{kind} {name}: {register(dtype)} = {text};")
        return name

    def rare(self, e: Expr, values: Mapping[Expr, str], indent: str) -> str:
        """`fast`, replaced in a branch."""
        condition, slow, fast = e.args
        name = self.define(e.dtype, values[fast], indent, "var")
        self.lines.append(f"{indent}if ({values[condition]}) {{")
        inner = dict(values)
        self.block([slow], inner, indent + "  ")
        self.lines.append(f"{indent}  {name} = {inner[slow]};")
        self.lines.append(f"{indent}}}")
        return name

    def expression(self, e: Expr, operands: list[str]) -> str:
        """The expression of an instruction whose operands have names."""
        kind, op = e.dtype, e.op
        if op == "select":
            condition, yes, no = operands
            return f"select({no}, {yes}, {condition})"
        if op == "cast":
            return convert(operands[0], e.args[0].dtype, kind)
        if op == "bitcast":
            return _bitcast(operands[0], e.args[0].dtype, kind)
        if op == "table":
            return self.entry(e, operands[0])
        if op in _COMPARISONS:
            return _comparison(e, operands)
        if kind is dt.bool_:
            return _truth(op, operands)
        if kind.is_float:
            return _float_expression(op, kind, operands)
        return _integer_expression(op, kind, operands)

    def entry(self, e: Expr, position: str) -> str:
        """An entry of a table."""
        name = self.source.table(e.dtype, e.value)  # type: ignore[arg-type]
        at = f"{position}.x" if is_wide(e.args[0].dtype) else f"u32({position})"
        text = f"{name}[{at}]"
        if e.dtype is dt.float32:
            return f"pb_c({text})"
        return f"bitcast<i32>({text})" if register(e.dtype) == "i32" else text


def _comparison(e: Expr, operands: list[str]) -> str:
    op, kind = e.op, e.args[0].dtype
    a, b = operands
    if op in ("ge", "gt"):
        a, b, op = b, a, {"ge": "le", "gt": "lt"}[op]
    if kind.is_float and e.args[0] is e.args[1] and op in ("eq", "ne"):
        test = f"f{8 * kind.itemsize}_is_number({a})"
        return test if op == "eq" else f"!{test}"
    if is_wide(kind):
        name = {"f": "f64", "i": "i64", "u": "u64"}[kind.kind]
        if op in ("eq", "ne"):
            test = f"{name if kind.is_float else 'u64'}_eq({a}, {b})"
            return test if op == "eq" else f"!{test}"
        return f"{name}_{op}({a}, {b})"
    if kind is dt.bool_ and op in ("lt", "le"):
        return f"(!{a} && {b})" if op == "lt" else f"(!{a} || {b})"
    if op == "ne" and kind.is_float:  # Naga's != is false where an operand is NaN
        return f"!({a} == {b})"
    return f"({a} {_INFIX[op]} {b})"


def _truth(op: str, operands: list[str]) -> str:
    if op == "not":
        return f"!{operands[0]}"
    a, b = operands
    if op in ("and", "mul"):
        return f"({a} && {b})"
    return f"({a} != {b})" if op == "xor" else f"({a} || {b})"


def _float_expression(op: str, kind: DType, operands: list[str]) -> str:
    given = ", ".join(operands)
    if is_wide(kind):
        if op in _ROUNDINGS:
            return f"f64_rounded({given}, {_ROUNDINGS[op]}u)"
        return f"f64_{op}({given})"
    if op in ("neg", "abs", "copysign"):
        return f"f32_{op}({given})"
    if op in ("fma", "div", "sqrt"):
        return f"f32_{op}_exact({given})"
    if op in _ROUND_32:
        return f"pb_f({_ROUND_32[op]}({given}))"
    return f"pb_f({f' {_INFIX[op]} '.join(operands)})"


def _integer_expression(op: str, kind: DType, operands: list[str]) -> str:
    """Wrapping arithmetic."""
    if is_wide(kind):
        return _wide_integer(op, kind, operands)
    c = register(kind)
    if op in ("quot", "rem"):
        text = f"{c}_{op}({operands[0]}, {operands[1]})"
    elif op == "abs":
        text = f"abs({operands[0]})" if kind.kind == "i" else operands[0]
    elif op == "not":
        text = f"(~{operands[0]})"
    elif op == "neg":
        text = f"(0{'' if c == 'i32' else 'u'} - {operands[0]})"
    elif op in ("shl", "shr"):
        text = f"({operands[0]} {'<<' if op == 'shl' else '>>'} u32({operands[1]}))"
    else:
        text = f"({operands[0]} {_INFIX[op]} {operands[1]})"
    return _wrapped(text, kind)


def _wrapped(text: str, kind: DType) -> str:
    """The value of a register as one of its dtype."""
    if kind.itemsize == 4:
        return text
    if kind.kind == "u":
        return f"({text} & {(1 << 8 * kind.itemsize) - 1}u)"
    count = 32 - 8 * kind.itemsize
    return f"(({text} << {count}u) >> {count}u)"


def _wide_integer(op: str, kind: DType, operands: list[str]) -> str:
    signed = kind.kind == "i"
    a = operands[0]
    if op in ("and", "or", "xor"):
        return f"({a} {_INFIX[op]} {operands[1]})"
    if op == "not":
        return f"(~{a})"
    if op == "abs":
        return f"i64_abs({a})" if signed else a
    if op in ("shl", "shr"):
        name = "i64_shr" if signed and op == "shr" else f"u64_{op}"
        return f"{name}({a}, {operands[1]}.x)"
    if op in ("quot", "rem"):
        return f"{'i64' if signed else 'u64'}_{op}({a}, {operands[1]})"
    return f"u64_{op}({', '.join(operands)})"


def _bitcast(x: str, source: DType, target: DType) -> str:
    if is_wide(source):
        return x
    raw = stored(x, source)
    return loaded(f"({raw} ^ pb_zero())" if target is dt.float32 else raw, target)


def convert(x: str, source: DType, target: DType) -> str:
    """`x` of dtype `source` as `target`: C's conversion, saturating from float to integer."""
    if source is target:
        return x
    if source.name in _HALVES:
        return convert(f"f32_from_{_HALVES[source.name]}({x})", dt.float32, target)
    if target.name in _HALVES:
        narrow = source is dt.bool_ or source.itemsize < 4 or source is dt.float32
        if narrow:
            single = convert(x, source, dt.float32)
        else:
            single = f"f64_to_f32_odd({convert(x, source, dt.float64)})"
        return f"f32_to_{_HALVES[target.name]}({single})"
    if target is dt.bool_:
        return _is_true(x, source)
    if source is dt.bool_:
        return f"select({literal(0, target)}, {literal(1, target)}, {x})"
    if target.is_float:
        return _to_float(x, source, target)
    if source.is_float:
        return _from_float(x, source, target)
    return _between_integers(x, source, target)


def _is_true(x: str, source: DType) -> str:
    if source is dt.float32:
        return f"((bitcast<u32>({x}) << 1u) != 0u)"  # a comparison may flush subnormal numbers
    if source is dt.float64:
        return f"!f64_is_zero({x})"
    if is_wide(source):
        return f"(({x}.x | {x}.y) != 0u)"
    return f"({x} != {literal(0, source)})"


def _short(kind: DType) -> str:
    """The library's name of a dtype in a register."""
    if is_wide(kind):
        return {"f": "f64", "i": "i64", "u": "u64"}[kind.kind]
    return register(kind)


def _to_float(x: str, source: DType, target: DType) -> str:
    if source.is_float:
        return f"f64_from_f32({x})" if target is dt.float64 else f"f64_to_f32({x})"
    if target is dt.float32:
        return f"f32_from_{_short(source)}({x})"
    wide = x if is_wide(source) else _between_integers(x, source, dt.int64)
    return f"f64_from_{'u64' if source is dt.uint64 else 'i64'}({wide})"


def _from_float(x: str, source: DType, target: DType) -> str:
    text = f"{_short(source)}_to_{_short(target)}({x})"
    if target.itemsize >= 4:
        return text
    bits = 8 * target.itemsize
    if target.kind == "u":
        return f"min({text}, {(1 << bits) - 1}u)"
    return f"clamp({text}, {-(1 << bits - 1)}, {(1 << bits - 1) - 1})"


def _between_integers(x: str, source: DType, target: DType) -> str:
    if is_wide(target):
        if is_wide(source):
            return x
        return f"i64_from_i32({x})" if source.kind == "i" else f"vec2<u32>({x}, 0u)"
    raw = f"{x}.x" if is_wide(source) else x
    have = "u32" if is_wide(source) else register(source)
    want = register(target)
    return _wrapped(raw if have == want else f"bitcast<{want}>({raw})", target)
