"""Hand-written kernels: functions over `values`, variables and loops, on top of `writer`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.values import (
    I1,
    I32,
    I64,
    PTR,
    UNSIGNED,
    VOID,
    Number,
    Type,
    Value,
    constant,
    undefined,
    vector,
    written,
)
from pullback.runtime.cpu.llvm.writer import Function, IRModule

__all__ = ["Callee", "Code", "IRModule", "Variable", "address", "index_params", "kernel", "offsets"]


class Callee(NamedTuple):
    """A function of the module, or an external one."""

    name: str
    result: Type
    types: tuple[Type, ...]


class Variable:
    """A mutable local, which LLVM turns into a register."""

    def __init__(self, code: Code, initial: Value):
        self._code, self._type = code, initial.type
        self._place = code.local(initial.type)
        self.set(initial)

    def get(self) -> Value:
        return self._code.read(self._place, self._type)

    def set(self, value: Value) -> None:
        self._code.write(value, self._place)

    def add(self, value: Number) -> None:
        self.set(self.get() + value)


class Code:
    """The body of one function under construction."""

    def __init__(
        self,
        module: IRModule,
        name: str,
        types: Sequence[Type],
        result: Type = VOID,
        qualifiers: str = "",
        attributes: str = "",
    ):
        self.module = module
        self.callee = Callee(name, result, tuple(types))
        self.args = [Value(f"%a{k}", t, self) for k, t in enumerate(types)]
        parameters = [(str(a.type), a.text) for a in self.args]
        self.f = Function(module, f"@{name}", parameters, str(result), qualifiers, attributes)
        self._open = True  # the block has not been left
        self._labels: list[str] = []

    def _label(self) -> str:
        self._labels.append(self.f.label())
        return self._labels[-1]

    # -- instructions ------------------------------------------------------------------------------

    def made(self, instruction: str, type_: Type) -> Value:
        """The result of an instruction."""
        return Value(self.f(instruction), type_, self)

    def int(self, value: int, type_: Type = I64) -> Value:
        return Value(str(value), type_, self)

    def constant(self, type_: Type, value: float | Sequence[float]) -> Value:
        """See `constant`; two of these can be added."""
        return Value(constant(type_, value).text, type_, self)

    def select(self, condition: Value, x: Value, y: Value) -> Value:
        return self.made(f"select {condition.type} {condition}, {x.type} {x}, {y.type} {y}", x.type)

    def minimum(self, x: Value, y: Value) -> Value:
        return self.select(x < y, x, y)

    def _compared(self, name: str, x: Value, y: Number) -> Value:
        y = y if isinstance(y, Value) else constant(x.type, y)
        return self.made(f"{name} {x.type} {x}, {y}", vector(I1, x.type.count))

    def equal(self, x: Value, y: Number) -> Value:
        return self._compared("fcmp oeq" if x.type.is_float else "icmp eq", x, y)

    def differ(self, x: Value, y: Number) -> Value:
        return self._compared("fcmp une" if x.type.is_float else "icmp ne", x, y)

    def unsigned(self, sign: str, x: Value, y: Number) -> Value:
        """A comparison of integers without a sign."""
        return self._compared(f"icmp {UNSIGNED[sign]}", x, y)

    def signed(self, sign: str, x: Value, y: Value) -> Value:
        """A comparison as the operators make it."""
        return {"<": x.__lt__, "<=": x.__le__, ">": x.__gt__, ">=": x.__ge__}[sign](y)

    def apart(self, x: Value, y: Value) -> Value:
        """Whether floats differ, and none is NaN."""
        return self._compared("fcmp one", x, y)

    def is_nan(self, x: Value) -> Value:
        return self._compared("fcmp uno", x, x)

    def ashr(self, x: Value, y: Value) -> Value:
        """Shifted to the right, with copies of the sign."""
        return self.made(f"ashr {x.type} {x}, {y}", x.type)

    def shuffled(self, x: Value, y: Value, order: Sequence[int]) -> Value:
        """The lanes of x, followed by those of y, in an order."""
        count, element = x.type.count, x.type.element
        if len(order) == 1:
            return self.lane(*((x, order[0]) if order[0] < count else (y, order[0] - count)))
        if count == 1:
            made = undefined(vector(element, len(order)))
            for lane, k in enumerate(order):
                made = self._with_lane(made, (x, y)[k], lane)
            return made
        places = constant(vector(I32, len(order)), order)
        return self.made(
            f"shufflevector {x.type} {x}, {y.type} {y}, {places.type} {places}",
            vector(element, len(order)),
        )

    def _with_lane(self, x: Value, lane: Value, k: int) -> Value:
        return self.made(f"insertelement {x.type} {x}, {lane.type} {lane}, i32 {k}", x.type)

    def lane(self, x: Value, k: int) -> Value:
        if x.type.count == 1:
            return x
        return self.made(f"extractelement {x.type} {x}, i32 {k}", x.type.element)

    def spread(self, x: Value, lanes: int) -> Value:
        """A value in every lane."""
        if lanes == 1:
            return x
        one = self._with_lane(undefined(vector(x.type, lanes)), x, 0)
        return self.shuffled(one, one, [0] * lanes)

    def call(self, function: Callee, args: Sequence[Value]) -> Value:
        given = ", ".join(f"{a.type} {a}" for a in args)
        text = f"call {function.result} @{function.name}({given})"
        if function.result is not VOID:
            return self.made(text, function.result)
        self.f.do(text)
        return Value("", VOID)

    def declare(self, name: str, result: Type, types: Sequence[Type]) -> Callee:
        """An external function."""
        self.module.intrinsic(name, str(result), *map(str, types))
        return Callee(name, result, tuple(types))

    def intrinsic(self, name: str, *args: Value) -> Value:
        """A function of LLVM on values of one type."""
        type_ = args[0].type
        kind = f"{'f' if type_.is_float else 'i'}{type_.width}"
        suffix = kind if type_.count == 1 else f"v{type_.count}{kind}"
        return self.call(self.declare(f"llvm.{name}.{suffix}", type_, [type_] * len(args)), args)

    def zeros(self, which: str, x: Value) -> Value:
        """How many bits are 0 before the first one ("ctlz"), or after the last one ("cttz")."""
        function = self.declare(f"llvm.{which}.i{x.type.width}", x.type, (x.type, I1))
        return self.call(function, (x, self.int(0, I1)))

    # -- memory ------------------------------------------------------------------------------------

    def at(self, pointer: Value, index: Number, type_: Type) -> Value:
        """The address of element `index` of an array of `type_`."""
        return self.made(f"getelementptr {type_}, ptr {pointer}, i64 {index}", PTR)

    def read(self, place: Value, type_: Type, align: int | None = None) -> Value:
        """What is at an address."""
        end = f", align {align}" if align else ""
        return self.made(f"load {type_}, ptr {place}{end}", type_)

    def write(
        self, value: Value, place: Value, align: int | None = None, far: bool = False
    ) -> None:
        """Put a value at an address; if `far`, around the caches."""
        end = f", align {align}" if align else ""
        once = ", !nontemporal !{i32 1}" if far else ""
        self.f.do(f"store {value.type} {value}, ptr {place}{end}{once}")

    def load(self, pointer: Value, index: Number, type_: Type, align: int | None = None) -> Value:
        return self.read(self.at(pointer, index, type_), type_, align)

    def store(self, value: Value, pointer: Value, index: Number) -> None:
        self.write(value, self.at(pointer, index, value.type))

    def local(self, type_: Type, count: int = 0, align: int | None = None) -> Value:
        """Memory on the stack: of one value, or an array of so many."""
        return Value(
            self.f.local(f"[{count} x {type_}]" if count else str(type_), align), PTR, self
        )

    def memory(self, type_: Type, count: Value) -> Value:
        """Memory on the stack from here on."""
        return self.made(f"alloca {type_}, {count.type} {count}, align 64", PTR)

    def constants(self, type_: Type, values: Sequence[float]) -> Value:
        """The address of constants."""
        return Value(self.module.constants(str(type_), [written(type_, v) for v in values]), PTR)

    def fence(self) -> None:
        """What was written around the caches is seen by other threads before what follows."""
        self.f.do("fence seq_cst")

    # -- control -----------------------------------------------------------------------------------

    def variable(self, initial: Value) -> Variable:
        return Variable(self, initial)

    def leave(self, value: Value | None = None) -> None:
        """Return from the function."""
        self.f.do("ret void" if value is None else f"ret {value.type} {value}")
        self._open = False

    def _jump(self, label: str) -> None:
        if self._open:
            self.f.do(f"br label %{label}")
        self._open = False

    def _fork(self, condition: Value, yes: str, no: str, likely: bool | None = None) -> None:
        weights = {True: (99, 1), False: (1, 99)}
        end = ""
        if likely is not None:
            often, seldom = weights[likely]
            end = f', !prof !{{!"branch_weights", i32 {often}, i32 {seldom}}}'
        self.f.do(f"br i1 {condition}, label %{yes}, label %{no}{end}")
        self._open = False

    def _block(self, label: str) -> None:
        self.f.block(label)
        self._open = True

    @contextmanager
    def when(self, condition: Value, likely: bool | None = None) -> Iterator[None]:
        """What is inside happens if the condition holds."""
        then, done = self._label(), self._label()
        self._fork(condition, then, done, likely)
        self._block(then)
        yield
        self._jump(done)
        self._block(done)

    @contextmanager
    def either(
        self, condition: Value, likely: bool | None = None
    ) -> Iterator[tuple[AbstractContextManager[None], AbstractContextManager[None]]]:
        """Two contexts: for what happens if the condition holds, and if it does not."""
        yes, no, done = (self._label() for _ in range(3))
        self._fork(condition, yes, no, likely)

        @contextmanager
        def branch(label: str) -> Iterator[None]:
            self._block(label)
            yield
            self._jump(done)

        yield branch(yes), branch(no)
        self._block(done)

    @contextmanager
    def range(self, start: Value | int, stop: Value | int) -> Iterator[Value]:
        """A loop over the int64 values of [start, stop)."""
        index = self.variable(self.int(start) if isinstance(start, int) else start)
        with self.loop() as leave:
            i = index.get()
            leave(i >= stop)
            yield i
            index.set(i + 1)

    @contextmanager
    def loop(self) -> Iterator[Callable[[Value], None]]:
        """An endless loop; call what it yields with a condition to leave."""
        head, done = self._label(), self._label()
        self._jump(head)
        self._block(head)

        def leave(condition: Value) -> None:
            rest = self._label()
            self._fork(condition, done, rest)
            self._block(rest)

        yield leave
        self._jump(head)
        self._block(done)

    def finish(self) -> Callee:
        """Ends the function, and puts it into its module."""
        if self._open:
            self.leave()
        self.f.close(self._labels)
        return self.callee


def index_params(shape: Sequence[int], *strides: Sequence[int]) -> tuple[int, ...]:
    """Params of an index over `shape`: how many dimensions, then extent and strides of each."""
    dims = [dim for dim in zip(shape, *strides, strict=True) if dim[0] != 1]
    return (len(dims), *(v for dim in reversed(dims) for v in dim))


def offsets(code: Code, first: int, index: Value, operands: int) -> list[Value]:
    """Element offsets of a flat `index` in each operand; `index_params` are from `first` on."""
    params = code.args[0]
    rest, found = code.variable(index), [code.variable(code.int(0)) for _ in range(operands)]
    with code.range(0, code.load(params, first, I64)) as i:
        dim = code.at(params, i * (operands + 1), I64)
        extent, *strides = (code.load(dim, first + 1 + j, I64) for j in range(operands + 1))
        position = rest.get() % extent
        rest.set(rest.get() // extent)
        for offset, stride in zip(found, strides, strict=True):
            offset.add(position * stride)
    return [offset.get() for offset in found]


def kernel(module: IRModule, name: str) -> Code:
    """A stage kernel: (params, ptrs, lo, hi, error)."""
    return Code(module, name, (PTR, PTR, I64, I64, PTR))


def address(code: Code, plain_loops: bool = False) -> Any:
    """Ends the kernel `code`, compiles its module and returns where it is.

    `plain_loops`: they are fast as they are written.
    """
    name = code.finish().name
    text = code.module.text()
    return jit.compile_ir(text, [name], optimise=True, plain_loops=plain_loops)[name]
