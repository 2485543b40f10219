"""Scalar expressions as LLVM IR, for one element or for a vector of elements.

Both widths use the same instruction sequence and no fast-math flags, so an element has the same
bits in the vector loop and in the tail. Nothing is contracted: only `fma` fuses.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

import llvmlite.binding as llvm

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr, topological
from pullback.ir.scalar_walks import LEAVES, inline_nodes, inline_operands
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.writer import (
    Function,
    IRModule,
    LoopOperand,
    literal,
    of_width,
    register,
)

__all__ = [
    "convert",
    "counter",
    "emit",
    "uniform",
    "vector_width",
]

VECTOR_BYTES = 64  # of an AVX-512 register; LLVM splits vectors for narrower ones
_HALVES = (dt.float16, dt.bfloat16)
_ROUNDING = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "rint"}
_ORDERED = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


def has_half_conversion() -> bool:
    """Whether the host converts float16 in hardware."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        return bool(llvm.get_host_cpu_features().get("f16c", False))
    return platform.machine().lower() in ("arm64", "aarch64")


HARDWARE_HALF = has_half_conversion()


def vector_width(roots: Iterable[Expr], dtypes: Iterable[DType]) -> int:
    """Elements per vector, so that the widest type in use fills `VECTOR_BYTES`."""
    widest = max(
        [d.real.itemsize for d in dtypes] + [e.dtype.itemsize for e in inline_nodes(roots)]
    )
    return min(32, VECTOR_BYTES // widest)


def emit(
    f: Function,
    roots: Sequence[Expr],
    width: int,
    leaf: Callable[[Expr], str],
    known: Mapping[Expr, str] | None = None,
) -> list[str]:
    """The values of `roots`; `leaf` gives loads, indices, accumulators, `known` what is at hand."""
    values: dict[Expr, str] = dict(known or {})
    inline = set(inline_nodes(roots))
    writer = _InstructionWriter(f, width, values)
    stack: list[tuple[Expr, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        e, ready = stack.pop()
        if e in values:
            continue
        if e.op in LEAVES:
            values[e] = leaf(e)
        elif ready:
            values[e] = writer.write(e, inline)
        else:
            stack.append((e, True))
            stack.extend((a, False) for a in reversed(_operands(e, inline)))
    return [values[r] for r in roots]


def _operands(e: Expr, inline: Collection[Expr]) -> Sequence[Expr]:
    if e.op != "rare":
        return e.args
    return [e.args[0], e.args[2], *_frontier(e.args[1], inline)]


def _frontier(slow: Expr, inline: Collection[Expr]) -> list[Expr]:
    """What the slow side of a `rare` is computed from: values evaluated anyway, and leaves."""
    found: dict[Expr, None] = {}
    seen: set[Expr] = set()
    stack = [slow]
    while stack:
        e = stack.pop()
        if e in seen or e.op == "const":
            continue
        seen.add(e)
        if e in inline or e.op in LEAVES:
            found[e] = None
        else:
            stack.extend(reversed(e.args))
    return list(found)


class _InstructionWriter:
    """Writes instructions of one width into one function."""

    def __init__(self, f: Function, width: int, values: dict[Expr, str]):
        self.f = f
        self.width = width
        self.values = values

    def type(self, dtype: DType) -> str:
        return of_width(register(dtype), self.width)

    def constant(self, value: object, dtype: DType) -> str:
        text = literal(value, dtype)
        return text if self.width == 1 else f"splat ({register(dtype)} {text})"

    def intrinsic(self, name: str, dtype: DType, *operands: str, extra: str = "") -> str:
        """Call an intrinsic whose operands and result all have `dtype`."""
        kind = self.type(dtype)
        types = [kind] * len(operands) + (["i1"] if extra else [])
        callee = self.f.module.intrinsic(f"llvm.{name}.{self.suffix(dtype)}", kind, *types)
        arguments = ", ".join([f"{kind} {o}" for o in operands] + ([extra] if extra else []))
        return self.f(f"call {kind} {callee}({arguments})")

    def suffix(self, dtype: DType) -> str:
        stem = f"{'f' if dtype.is_float else 'i'}{8 * dtype.itemsize}"
        return stem if self.width == 1 else f"v{self.width}{stem}"

    def write(self, e: Expr, inline: Collection[Expr]) -> str:
        """Emit `e`, whose operands have values."""
        if e.op == "const":
            return self.constant(e.value, e.dtype)
        if e.op == "rare":
            return self.rare(e, inline)
        operands = [self.values[a] for a in e.args]
        if e.op in _ORDERED:
            return self.compare(e.op, e.args[0].dtype, *operands)
        method = getattr(self, f"op_{e.op}", None)
        if method is not None:
            return method(e, *operands)
        return self.simple(e, operands)

    def compare(self, op: str, dtype: DType, a: str, b: str) -> str:
        if dtype.is_float:
            return self.f(f"fcmp {_ORDERED[op]} {self.type(dtype)} {a}, {b}")
        sign = "" if op in ("eq", "ne") else "s" if dtype.kind == "i" else "u"
        return self.f(f"icmp {sign}{op} {self.type(dtype)} {a}, {b}")

    def simple(self, e: Expr, operands: Sequence[str]) -> str:
        """The instructions that LLVM has under (nearly) the same name."""
        kind, joined = self.type(e.dtype), ", ".join(operands)
        if e.op in _ROUNDING:
            return self.intrinsic(_ROUNDING[e.op], e.dtype, *operands)
        if e.op in ("fma", "sqrt", "copysign"):
            return self.intrinsic(e.op, e.dtype, *operands)
        if e.op in ("add", "sub", "mul", "div"):
            return self.f(f"{'f' if e.dtype.is_float else ''}{e.op} {kind} {joined}")
        name = {"shr": "ashr" if e.dtype.kind == "i" else "lshr"}.get(e.op, e.op)
        return self.f(f"{name} {kind} {joined}")

    def op_neg(self, e: Expr, x: str) -> str:
        kind = self.type(e.dtype)
        if e.dtype.is_float:
            return self.f(f"fneg {kind} {x}")
        return self.f(f"sub {kind} {self.constant(0, e.dtype)}, {x}")

    def op_abs(self, e: Expr, x: str) -> str:
        if e.dtype.is_float:
            return self.intrinsic("fabs", e.dtype, x)
        return self.intrinsic("abs", e.dtype, x, extra="i1 false") if e.dtype.kind == "i" else x

    def op_not(self, e: Expr, x: str) -> str:
        ones = True if e.dtype is dt.bool_ else -1
        return self.f(f"xor {self.type(e.dtype)} {x}, {self.constant(ones, e.dtype)}")

    def op_select(self, e: Expr, condition: str, a: str, b: str) -> str:
        kind = self.type(e.dtype)
        return self.f(f"select {self.type(dt.bool_)} {condition}, {kind} {a}, {kind} {b}")

    def op_quot(self, e: Expr, a: str, b: str) -> str:
        return self.divide(e, a, b, "div")

    def op_rem(self, e: Expr, a: str, b: str) -> str:
        return self.divide(e, a, b, "rem")

    def divide(self, e: Expr, a: str, b: str, name: str) -> str:
        """Division that can't trap: the divisors 0 and -1 are answered without dividing."""
        kind, zero = self.type(e.dtype), self.constant(0, e.dtype)
        sign = "s" if e.dtype.kind == "i" else "u"
        divisor = e.args[1]
        if divisor.op == "const" and divisor.value not in (0, -1):
            return self.f(f"{sign}{name} {kind} {a}, {b}")
        flags, one = self.type(dt.bool_), self.constant(1, e.dtype)
        by_zero = special = self.f(f"icmp eq {kind} {b}, {zero}")
        negated = zero
        by_minus = None
        if sign == "s":
            by_minus = self.f(f"icmp eq {kind} {b}, {self.constant(-1, e.dtype)}")
            special = self.f(f"or {flags} {by_zero}, {by_minus}")
            negated = self.f(f"sub {kind} {zero}, {a}") if name == "div" else zero
        safe = self.f(f"select {flags} {special}, {kind} {one}, {kind} {b}")
        result = self.f(f"{sign}{name} {kind} {a}, {safe}")
        if by_minus is not None:
            result = self.f(f"select {flags} {by_minus}, {kind} {negated}, {kind} {result}")
        return self.f(f"select {flags} {by_zero}, {kind} {zero}, {kind} {result}")

    def op_bitcast(self, e: Expr, x: str) -> str:
        before, after = self.type(e.args[0].dtype), self.type(e.dtype)
        return x if before == after else self.f(f"bitcast {before} {x} to {after}")

    def op_cast(self, e: Expr, x: str) -> str:
        return convert(self.f, x, e.args[0].dtype, e.dtype, self.width)

    def op_table(self, e: Expr, position: str) -> str:
        kind, f = register(e.dtype), self.f
        values = [literal(v, e.dtype) for v in e.value]  # type: ignore[attr-defined]
        address = f.module.constants(kind, values)
        wide = convert(f, position, e.args[0].dtype, dt.int64, self.width)
        if self.width == 1:
            return f(f"load {kind}, ptr {f.element(address, kind, wide)}")
        result = "poison"
        for lane in range(self.width):
            at = f(f"extractelement {self.type(dt.int64)} {wide}, i64 {lane}")
            one = f(f"load {kind}, ptr {f.element(address, kind, at)}")
            result = f(f"insertelement {self.type(e.dtype)} {result}, {kind} {one}, i64 {lane}")
        return result

    def rare(self, e: Expr, inline: Collection[Expr]) -> str:
        """`fast`, and a branch to the slow function if any lane asks for it."""
        f, kind = self.f, self.type(e.dtype)
        condition, fast = self.values[e.args[0]], self.values[e.args[2]]
        free = _frontier(e.args[1], inline)
        callee = _slow_function(f.module, e.args[1], free)
        arguments = [(self.type(a.dtype), self.values[a]) for a in free]
        anywhere = condition
        if self.width > 1:
            callee = _slow_lanes(f.module, callee, e, free, self.width)
            arguments = [(self.type(dt.bool_), condition), (kind, fast), *arguments]
            name, flags = f"llvm.vector.reduce.or.v{self.width}i1", self.type(dt.bool_)
            reduce_or = f.module.intrinsic(name, "i1", flags)
            anywhere = f(f"call i1 {reduce_or}({flags} {condition})")
        before, slow, done = f.current, f.label(), f.label()
        seldom = '!prof !{!"branch_weights", i32 1, i32 10000}'
        f.do(f"br i1 {anywhere}, label %{slow}, label %{done}, {seldom}")
        f.block(slow)
        passed = ", ".join(f"{t} {v}" for t, v in arguments)
        result = f(f"call {kind} {callee}({passed})")
        f.do(f"br label %{done}")
        f.block(done)
        return f(f"phi {kind} [ {fast}, %{before} ], [ {result}, %{slow} ]")


_slow: dict[tuple[Hashable, ...], tuple[str, str, list[str]]] = {}


def _slow_function(module: IRModule, slow: Expr, free: Sequence[Expr]) -> str:
    """A scalar function that computes `slow` from the values `free`, whatever these are.

    It is compiled once for all kernels; its symbol names its version, as cached code needs it.
    """
    key = tuple(_structure(slow, free))
    if key not in _slow:
        own = IRModule()
        known = {a: f"%a{k}" for k, a in enumerate(free)}
        parameters = [(register(a.dtype), n) for a, n in known.items()]
        kind = register(slow.dtype)
        f = Function(own, "@slow", parameters, kind)
        (value,) = emit(f, [slow], 1, known.__getitem__, known)
        f.finish(f"{kind} {value}")
        text = own.text()
        symbol = f"pullback_slow_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        jit.add_symbol(symbol, jit.compile_ir(text, ["slow"])["slow"])
        _slow[key] = symbol, kind, [t for t, _ in parameters]
    symbol, kind, types = _slow[key]
    return module.intrinsic(symbol, kind, *types)


def _structure(root: Expr, free: Sequence[Expr]) -> Iterator[Hashable]:
    """What `root` does with the values `free`: equal for the same function of other values."""
    number: dict[Expr, int] = {}
    for k, e in enumerate(free):
        number[e] = k
        yield e.dtype
    for k, e in enumerate(topological(root, number), len(free)):
        number[e] = k
        # the digits tell 0.0 from -0.0
        yield e.op, e.dtype, repr(e.value), *[number[a] for a in e.args]


def _slow_lanes(module: IRModule, scalar: str, e: Expr, free: Sequence[Expr], width: int) -> str:
    """A function that replaces the lanes of `fast` whose condition holds by the scalar function."""
    key = ("lanes", scalar, width)
    if key in module.memo:
        return module.memo[key]
    name = module.memo[key] = module.name("lanes")
    kind, one = of_width(register(e.dtype), width), register(e.dtype)
    flags = of_width("i1", width)
    types = [register(a.dtype) for a in free]
    parameters = [(flags, "%condition"), (kind, "%fast")]
    parameters += [(of_width(t, width), f"%a{k}") for k, t in enumerate(types)]
    f = Function(module, name, parameters, kind, "internal ")
    with f.loop("0", str(width), carried=[(kind, "%fast")]) as lane:
        needed = f(f"extractelement {flags} %condition, i64 {lane.i}")
        before, slow, done = f.current, f.label(), f.label()
        f.do(f"br i1 {needed}, label %{slow}, label %{done}")
        f.block(slow)
        arguments = [
            f"{t} {f(f'extractelement {of_width(t, width)} %a{k}, i64 {lane.i}')}"
            for k, t in enumerate(types)
        ]
        value = f(f"call {one} {scalar}({', '.join(arguments)})")
        changed = f(f"insertelement {kind} {lane.carried[0]}, {one} {value}, i64 {lane.i}")
        f.do(f"br label %{done}")
        f.block(done)
        merged = f(f"phi {kind} [ {lane.carried[0]}, %{before} ], [ {changed}, %{slow} ]")
        lane.next = [merged]
    f.finish(f"{kind} {lane.results[0]}")
    return name


def convert(f: Function, x: str, source: DType, target: DType, width: int) -> str:
    """`x` of dtype `source` as `target`: C's conversion, saturating from float to integer."""
    if source is target:
        return x
    if source in _HALVES:
        wide = _widen_half(f, x, source, width)
        return convert(f, wide, dt.float32, target, width)
    if target in _HALVES:
        exact = source.itemsize < 4 or source is dt.float32
        middle = dt.float32 if exact else dt.float64
        return _narrow(f, convert(f, x, source, middle, width), middle, target, width)
    before, after = (of_width(register(d), width) for d in (source, target))
    if target is dt.bool_:
        compare = "fcmp une" if source.is_float else "icmp ne"
        zero = "0.0" if source.is_float else "0"
        return f(f"{compare} {before} {x}, {zero if width == 1 else 'zeroinitializer'}")
    if before == after:
        return x
    if source.is_float and target.is_integer:
        sign = "s" if target.kind == "i" else "u"
        dims = "" if width == 1 else f"v{width}"
        suffix = f"{dims}i{8 * target.itemsize}.{dims}f{8 * source.itemsize}"
        callee = f.module.intrinsic(f"llvm.fpto{sign}i.sat.{suffix}", after, before)
        return f(f"call {after} {callee}({before} {x})")
    return f(f"{_conversion(source, target)} {before} {x} to {after}")


def _conversion(source: DType, target: DType) -> str:
    wider = target.itemsize > source.itemsize
    if source.is_float:
        return "fpext" if wider else "fptrunc"
    if target.is_float:
        return "sitofp" if source.kind == "i" else "uitofp"
    if source is dt.bool_:
        return "zext"
    return "trunc" if not wider else "sext" if source.kind == "i" else "zext"


class _Bits:
    """Bit tricks on vectors of one width, for conversions that the host has no instruction for."""

    def __init__(self, f: Function, width: int):
        self.f = f
        self.width = width

    def type(self, scalar: str) -> str:
        return of_width(scalar, self.width)

    def const(self, scalar: str, value: int | str) -> str:
        return str(value) if self.width == 1 else f"splat ({scalar} {value})"

    def op(self, name: str, a: str, b: int | str, scalar: str = "i32") -> str:
        right = self.const(scalar, b) if isinstance(b, int) else b
        return self.f(f"{name} {self.type(scalar)} {a}, {right}")

    def cast(self, name: str, x: str, before: str, after: str) -> str:
        return self.f(f"{name} {self.type(before)} {x} to {self.type(after)}")

    def select(self, condition: str, a: str, b: str) -> str:
        kind = self.type("i32")
        return self.f(f"select {self.type('i1')} {condition}, {kind} {a}, {kind} {b}")


def _widen_half(f: Function, x: str, source: DType, width: int) -> str:
    """float16 or bfloat16 bits as float32."""
    b = _Bits(f, width)
    if source is dt.float16 and HARDWARE_HALF:
        return b.cast("fpext", b.cast("bitcast", x, "i16", "half"), "half", "float")
    bits = b.cast("zext", x, "i16", "i32")
    if source is dt.bfloat16:
        return b.cast("bitcast", b.op("shl", bits, 16), "i32", "float")
    magnitude = b.op("shl", b.op("and", bits, 0x7FFF), 13)
    scaled = b.op("fmul", b.cast("bitcast", magnitude, "i32", "float"),
                  b.const("float", "0x46F0000000000000"), "float")  # 2**112  # fmt: skip
    special = b.op("icmp uge", magnitude, 0x7C00 << 13)
    finite = b.cast("bitcast", scaled, "float", "i32")
    value = b.select(special, b.op("or", magnitude, 0x7F800000), finite)
    sign = b.op("shl", b.op("and", bits, 0x8000), 16)
    return b.cast("bitcast", b.op("or", value, sign), "i32", "float")


def _narrow(f: Function, x: str, source: DType, target: DType, width: int) -> str:
    """float32 or float64 as float16 or bfloat16 bits, rounded once, half to even."""
    b = _Bits(f, width)
    if source is dt.float64:
        x = _round_to_odd(b, x)
    if target is dt.float16 and HARDWARE_HALF:
        return b.cast("bitcast", b.cast("fptrunc", x, "float", "half"), "half", "i16")
    bits = b.cast("bitcast", x, "float", "i32")
    high = b.op("lshr", bits, 16)
    if target is dt.bfloat16:
        nan = b.f(f"fcmp uno {b.type('float')} {x}, {x}")
        even = b.op("add", b.op("add", bits, 0x7FFF), b.op("and", high, 1))
        value = b.select(nan, b.op("or", high, 0x40), b.op("lshr", even, 16))
        return b.cast("trunc", value, "i32", "i16")
    value = b.op("or", _half_magnitude(b, b.op("and", bits, 0x7FFFFFFF)), b.op("and", high, 0x8000))
    return b.cast("trunc", value, "i32", "i16")


def _half_magnitude(b: _Bits, magnitude: str) -> str:
    """The float16 bits of a nonnegative float32 given as bits."""
    odd = b.op("and", b.op("lshr", magnitude, 13), 1)
    rounded = b.op("add", b.op("add", magnitude, 0xFFF - (112 << 23)), odd)
    normal = b.op("lshr", rounded, 13)
    # Adding 0.5 makes the float adder round at the place where subnormal halves end.
    shifted = b.op("fadd", b.cast("bitcast", magnitude, "i32", "float"),
                   b.const("float", "0x3FE0000000000000"), "float")  # fmt: skip
    small = b.op("sub", b.cast("bitcast", shifted, "float", "i32"), 0x3F000000)
    value = b.select(b.op("icmp ult", magnitude, 113 << 23), small, normal)
    value = b.select(b.op("icmp uge", magnitude, 143 << 23), b.const("i32", 0x7C00), value)
    return b.select(b.op("icmp ugt", magnitude, 0x7F800000), b.const("i32", 0x7E00), value)


def _round_to_odd(b: _Bits, x: str) -> str:
    """float64 as float32 with the last bit set where inexact, so that rounding again is right."""
    near = b.cast("fptrunc", x, "double", "float")
    back = b.cast("fpext", near, "float", "double")
    absolute = []
    kind = b.type("double")
    suffix = "f64" if b.width == 1 else f"v{b.width}f64"
    fabs = b.f.module.intrinsic(f"llvm.fabs.{suffix}", kind, kind)
    for v in (back, x):
        absolute.append(b.f(f"call {kind} {fabs}({kind} {v})"))
    bits = b.cast("bitcast", near, "float", "i32")
    above = b.f(f"fcmp ogt {kind} {absolute[0]}, {absolute[1]}")
    towards_zero = b.select(above, b.op("sub", bits, 1), bits)
    inexact = b.f(f"fcmp one {kind} {back}, {x}")
    return b.cast("bitcast", b.select(inexact, b.op("or", towards_zero, 1), bits), "i32", "float")


def uniform(roots: Sequence[Expr], operands: Sequence[LoopOperand]) -> list[Expr]:
    """The largest expressions that depend on repeated operands and constants only."""
    varying: dict[Expr, bool] = {}
    for e in _in_order(roots):
        if e.op == "load":
            varying[e] = operands[e.value[0]].step != "zero"  # type: ignore[index]
        else:
            varying[e] = e.op in LEAVES or any(varying[a] for a in e.args)
    nodes = inline_nodes(roots)
    used = {a for e in nodes if varying[e] for a in inline_operands(e)}.union(roots)
    return [e for e in nodes if e in used and not varying[e] and e.op != "const"]


def _in_order(roots: Sequence[Expr]) -> list[Expr]:
    """All expressions under `roots`, operands first."""
    done: dict[Expr, int] = {}
    for root in roots:
        done.update((e, 0) for e in topological(root, done))
    return list(done)


def counter(f: Function, first: str, step: str, width: int) -> str:
    """`first, first + step, ...` in the lanes, int64."""
    if width == 1:
        return first
    kind = f"<{width} x i64>"
    lanes = f"<{', '.join(f'i64 {k}' for k in range(width))}>"
    scaled = f(f"mul {kind} {f.splat(step, 'i64', width)}, {lanes}")
    return f(f"add {kind} {f.splat(first, 'i64', width)}, {scaled}")
