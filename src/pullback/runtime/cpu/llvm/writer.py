"""Writing LLVM IR as text: modules, functions, counted loops, loads and stores of elements.

Values in registers differ from values in memory in one respect: a bool is an `i1` in a register and
a byte in memory. float16 and bfloat16 are 16 bits of integer in both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.dtypes import DType

__all__ = [
    "Function",
    "IRModule",
    "LoopOperand",
    "OpenLoop",
    "literal",
    "memory_type",
    "of_width",
    "register",
]

KERNEL_PARAMETERS = (
    ("ptr", "%params"), ("ptr", "%ptrs"), ("i64", "%lo"), ("i64", "%hi"), ("ptr", "%error"),
)  # fmt: skip
_ATTRIBUTES = 'attributes #0 = { nounwind "prefer-vector-width"="512" }\n'
_FLOATS = {"float32": "float", "float64": "double"}


def register(dtype: DType) -> str:
    """The LLVM type of one element in a register."""
    if dtype is dt.bool_:
        return "i1"
    return _FLOATS.get(dtype.name) or f"i{8 * dtype.itemsize}"


def memory_type(dtype: DType) -> str:
    """The LLVM type of one element in memory."""
    return "i8" if dtype is dt.bool_ else register(dtype)


def of_width(scalar: str, width: int) -> str:
    """The vector type of `width` scalars; a width of 1 is the scalar itself."""
    return scalar if width == 1 else f"<{width} x {scalar}>"


def literal(value: object, dtype: DType) -> str:
    """The constant as LLVM writes it; floats as bits, so that nothing is lost."""
    if dtype is dt.bool_:
        return "true" if value else "false"
    if dtype in (dt.float16, dt.bfloat16):
        return str(int(np.array(value, dtype.numpy).view(np.uint16)))
    if dtype.is_float:
        with np.errstate(over="ignore"):
            wide = float(np.float32(value)) if dtype is dt.float32 else float(value)  # type: ignore[arg-type]
        return f"0x{struct.unpack('<Q', struct.pack('<d', wide))[0]:016X}"
    return str(int(value))  # type: ignore[call-overload]


class IRModule:
    """A module under construction; `memo` is for functions that writers share."""

    def __init__(self):
        self.memo: dict[object, str] = {}
        self._declarations: dict[str, str] = {}
        self._globals: dict[tuple[str, str], str] = {}
        self._functions: list[str] = []
        self._names = 0

    def name(self, stem: str) -> str:
        self._names += 1
        return f"@{stem}{self._names}"

    def intrinsic(self, name: str, result: str, *parameters: str) -> str:
        """Declare an intrinsic and return its name."""
        self._declarations[name] = f"declare {result} @{name}({', '.join(parameters)})"
        return f"@{name}"

    def constants(self, element: str, values: Sequence[str]) -> str:
        """The address of a constant array."""
        body = f"[{len(values)} x {element}] [{', '.join(f'{element} {v}' for v in values)}]"
        key = (element, body)
        if key not in self._globals:
            self._globals[key] = self.name("table")
        return self._globals[key]

    def add(self, text: str) -> None:
        self._functions.append(text)

    def text(self) -> str:
        tables = [
            f"{name} = private unnamed_addr constant {body}, align 64"
            for (_, body), name in self._globals.items()
        ]
        parts = [*self._declarations.values(), *tables, *self._functions, _ATTRIBUTES]
        return "\n".join(parts)


@dataclass
class OpenLoop:
    """An open loop: its counter, its carried values, and what the body sets before it closes."""

    i: str
    carried: list[str]
    step: str
    next: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    done: str = ""  # the label after an endless loop


class Function:
    """A function under construction, block after block."""

    def __init__(
        self,
        module: IRModule,
        name: str,
        parameters: Sequence[tuple[str, str]] = KERNEL_PARAMETERS,
        result: str = "void",
        qualifiers: str = "",
        attributes: str = "#0",
    ):
        self.module = module
        self.name = name
        self.current = "entry"
        self._lines: list[str] = []
        self._allocas: list[str] = []
        self._names = 0
        signature = ", ".join(f"{t} {n}" for t, n in parameters)
        self._head = f"define {qualifiers}{result} {name}({signature}) {attributes} {{\nentry:"

    def finish(self, value: str = "void") -> None:
        """Return `value` and add the function to its module."""
        self.do(f"ret {value}")
        self.close()

    def close(self, order: Sequence[str] = ()) -> None:
        """Add the function, all of whose blocks have ended, to its module.

        `order`: that of the blocks after the first, if not the one in which they were written.
        """
        lines = self._lines
        if order:
            starts = [k for k, line in enumerate(lines) if line[0] != " "]
            ends = [*starts[1:], len(lines)]
            blocks = {lines[a][:-1]: lines[a:b] for a, b in zip(starts, ends, strict=True)}
            lines = [*lines[: starts[0]], *(line for label in order for line in blocks[label])]
        self.module.add("\n".join([self._head, *self._allocas, *lines, "}"]))

    def fresh(self) -> str:
        self._names += 1
        return f"%v{self._names}"

    def label(self) -> str:
        self._names += 1
        return f"b{self._names}"

    def __call__(self, instruction: str) -> str:
        """Append an instruction and return the name of its value."""
        name = self.fresh()
        self._lines.append(f"  {name} = {instruction}")
        return name

    def do(self, instruction: str) -> None:
        self._lines.append(f"  {instruction}")

    def block(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self.current = label

    def array(self, element: str, count: int) -> str:
        """The address of an array on the stack."""
        return self.local(f"[{count} x {element}]", 64)

    def local(self, kind: str, align: int | None = None) -> str:
        """The address of memory on the stack."""
        name = self.fresh()
        self._allocas.append(f"  {name} = alloca {kind}{f', align {align}' if align else ''}")
        return name

    # Arithmetic on int64, with the trivial cases folded away.
    def add(self, a: str, b: str) -> str:
        if a == "0" or b == "0":
            return b if a == "0" else a
        return self(f"add i64 {a}, {b}")

    def sub(self, a: str, b: str) -> str:
        return a if b == "0" else self(f"sub i64 {a}, {b}")

    def mul(self, a: str, b: str) -> str:
        if a == "0" or b == "0":
            return "0"
        return self(f"mul i64 {a}, {b}")

    def minimum(self, a: str, b: str) -> str:
        return self(f"select i1 {self(f'icmp slt i64 {a}, {b}')}, i64 {a}, i64 {b}")

    def divmod(self, a: str, b: str) -> tuple[str, str]:
        quotient = self(f"udiv i64 {a}, {b}")
        return quotient, self.sub(a, self.mul(quotient, b))

    def offset(self, pointer: str, nbytes: str) -> str:
        """The address `nbytes` further."""
        return pointer if nbytes == "0" else self(f"getelementptr i8, ptr {pointer}, i64 {nbytes}")

    def element(self, pointer: str, kind: str, i: str) -> str:
        """The address of element `i` of an array of LLVM type `kind`."""
        return pointer if i == "0" else self(f"getelementptr {kind}, ptr {pointer}, i64 {i}")

    def int_at(self, pointer: str, i: str | int) -> str:
        """The int64 at position `i` of an int64 array."""
        return self(f"load i64, ptr {self.element(pointer, 'i64', str(i))}")

    def pointer_in(self, slot: str) -> str:
        """The pointer in a slot, in a kernel."""
        return self(f"load ptr, ptr {self.element('%ptrs', 'ptr', slot)}")

    def splat(self, value: str, scalar: str, width: int) -> str:
        """`value` in every lane."""
        if width == 1:
            return value
        vector = of_width(scalar, width)
        one = self(f"insertelement {vector} poison, {scalar} {value}, i64 0")
        zeros = f"<{width} x i32> zeroinitializer"
        return self(f"shufflevector {vector} {one}, {vector} poison, {zeros}")

    def copy(self, target: str, source: str, nbytes: str) -> None:
        """Copy bytes between places that do not overlap."""
        memcpy = self.module.intrinsic("llvm.memcpy.p0.p0.i64", "void", "ptr", "ptr", "i64", "i1")
        self.do(f"call void {memcpy}(ptr {target}, ptr {source}, i64 {nbytes}, i1 false)")

    def prefetch(self, pointer: str, written: bool = False, near: int = 3) -> None:
        """Bring a line to the first cache, or with `near` 2 to the second."""
        prefetch = self.module.intrinsic("llvm.prefetch.p0", "void", "ptr", "i32", "i32", "i32")
        self.do(f"call void {prefetch}(ptr {pointer}, i32 {int(written)}, i32 {near}, i32 1)")

    @contextmanager
    def loop(
        self, start: str, stop: str, step: str = "1", carried: Sequence[tuple[str, str]] = ()
    ) -> Iterator[OpenLoop]:
        """`for i in range(start, stop, step)`; `carried` are pairs of type and initial value.

        The body sets `next` (and may set `step`); afterwards `results` holds the last values.
        """
        entry, body, done = self.current, self.label(), self.label()
        enter = self(f"icmp slt i64 {start}, {stop}")
        self.do(f"br i1 {enter}, label %{body}, label %{done}")
        self.block(body)
        state = OpenLoop(self.fresh(), [self.fresh() for _ in carried], step)
        at = len(self._lines)
        yield state
        after = self(f"add i64 {state.i}, {state.step}")
        again = self(f"icmp slt i64 {after}, {stop}")
        latch = self.current
        self.do(f"br i1 {again}, label %{body}, label %{done}")
        names = [state.i, *state.carried]
        firsts = [("i64", start), *carried]
        nexts = [after, *state.next]
        self._lines[at:at] = [
            f"  {name} = phi {kind} [ {first}, %{entry} ], [ {following}, %{latch} ]"
            for name, (kind, first), following in zip(names, firsts, nexts, strict=True)
        ]
        self.block(done)
        state.results = [
            self(f"phi {kind} [ {first}, %{entry} ], [ {following}, %{latch} ]")
            for (kind, first), following in zip(carried, state.next, strict=True)
        ]

    @contextmanager
    def endless(self, carried: Sequence[tuple[str, str]]) -> Iterator[OpenLoop]:
        """A loop that its body leaves by a jump to `done`; the values carried then are the results.

        `carried` are pairs of type and initial value; the body sets `next`.
        """
        entry, head = self.current, self.label()
        names = [self.fresh() for _ in carried]
        state = OpenLoop("", names, "", done=self.label())
        self.do(f"br label %{head}")
        self.block(head)
        at = len(self._lines)
        yield state
        latch = self.current
        self.do(f"br label %{head}")
        self._lines[at:at] = [
            f"  {name} = phi {kind} [ {first}, %{entry} ], [ {following}, %{latch} ]"
            for name, (kind, first), following in zip(names, carried, state.next, strict=True)
        ]
        self.block(state.done)
        state.results = names

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """A block that runs if the i1 `condition` holds."""
        then, done = self.label(), self.label()
        self.do(f"br i1 {condition}, label %{then}, label %{done}")
        self.block(then)
        yield
        self.do(f"br label %{done}")
        self.block(done)


@dataclass(frozen=True)
class LoopOperand:
    """How the elements of an array lie along the innermost loop.

    `step` is "unit" (dense), "zero" (one element for all) or "any" (`stride` bytes apart).
    """

    dtype: DType
    step: str

    @property
    def parts(self) -> int:
        return 2 if self.dtype.is_complex else 1

    def at(self, f: Function, pointer: str, i: str, stride: str) -> str:
        """The address of element `i` counted from `pointer`."""
        if self.step == "zero":
            return pointer
        nbytes = str(self.dtype.itemsize) if self.step == "unit" else stride
        return f.offset(pointer, f.mul(i, nbytes))

    def load(self, f: Function, pointer: str, stride: str, width: int) -> list[str]:
        """The parts of `width` elements from `pointer` on, as registers."""
        part = self.dtype.real
        if width > 1 and self.step == "unit":
            values = self._load_dense(f, pointer, part, width)
        else:
            size, kind = part.itemsize, memory_type(part)
            lanes = width if self.step == "any" else 1
            starts = [f.offset(pointer, f.mul(str(k), stride)) for k in range(lanes)]
            values = []
            for p in range(self.parts):
                value = [
                    f(f"load {kind}, ptr {f.offset(s, str(p * size))}, align {size}")
                    for s in starts
                ]
                values.append(_pack(f, value, kind, width))
        if part is not dt.bool_:
            return values
        return [f(f"icmp ne {of_width('i8', width)} {v}, zeroinitializer") if width > 1
                else f(f"icmp ne i8 {v}, 0") for v in values]  # fmt: skip

    def _load_dense(self, f: Function, pointer: str, part: DType, width: int) -> list[str]:
        vector = of_width(memory_type(part), width * self.parts)
        whole = f(f"load {vector}, ptr {pointer}, align {part.itemsize}")
        if self.parts == 1:
            return [whole]
        return [
            f(f"shufflevector {vector} {whole}, {vector} poison, {_mask(range(p, 2 * width, 2))}")
            for p in range(2)
        ]

    def store(
        self, f: Function, pointer: str, stride: str, values: Sequence[str], width: int
    ) -> None:
        """Write the parts of `width` elements from `pointer` on."""
        part = self.dtype.real
        size, kind = part.itemsize, memory_type(part)
        vector = of_width(kind, width)
        if part is dt.bool_:
            values = [f(f"zext {of_width('i1', width)} {v} to {vector}") for v in values]
        if width > 1 and self.step == "unit":
            value = values[0]
            if self.parts == 2:
                order = [k for lane in range(width) for k in (lane, lane + width)]
                value = f(
                    f"shufflevector {vector} {values[0]}, {vector} {values[1]}, {_mask(order)}"
                )
                vector = of_width(kind, 2 * width)
            f.do(f"store {vector} {value}, ptr {pointer}, align {size}")
            return
        for lane in range(width):
            start = f.offset(pointer, f.mul(str(lane), stride))
            for p, value in enumerate(values):
                one = value if width == 1 else f(f"extractelement {vector} {value}, i64 {lane}")
                f.do(f"store {kind} {one}, ptr {f.offset(start, str(p * size))}, align {size}")


def _pack(f: Function, lanes: Sequence[str], kind: str, width: int) -> str:
    """The lanes as one vector; a single lane is repeated."""
    if len(lanes) == 1:
        return f.splat(lanes[0], kind, width)
    vector, value = of_width(kind, width), "poison"
    for k, lane in enumerate(lanes):
        value = f(f"insertelement {vector} {value}, {kind} {lane}, i64 {k}")
    return value


def _mask(lanes: Sequence[int] | range) -> str:
    return f"<{len(lanes)} x i32> <{', '.join(f'i32 {k}' for k in lanes)}>"
