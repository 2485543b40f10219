"""Hand-written kernels: the C signature of a stage, mutable variables and loops over LLVM IR."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from llvmlite import ir

from pullback.runtime.cpu.llvm import jit

__all__ = [
    *("I1", "I8", "I32", "I64", "PTR", "VOID", "Value"),
    *("Code", "address", "index_params", "kernel", "offsets"),
]

I1, I8, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
PTR = ir.PointerType()
VOID = ir.VoidType()
Value: TypeAlias = Any  # llvmlite has no types that a checker could use


class Variable:
    """A mutable local, which LLVM turns into a register."""

    def __init__(self, code: Code, type_: ir.Type, initial: Value):
        with code.b.goto_entry_block():
            self._slot = code.b.alloca(type_)
        self._b, self._type = code.b, type_
        self.set(initial)

    def get(self) -> Value:
        return self._b.load(self._slot, typ=self._type)

    def set(self, value: Value) -> None:
        self._b.store(value, self._slot)

    def add(self, value: Value) -> None:
        self.set(self._b.add(self.get(), value))


class Code:
    """The body of one function under construction; `b` is its IRBuilder."""

    def __init__(
        self, module: ir.Module, name: str, types: Sequence[ir.Type], result: ir.Type = VOID
    ):
        self.module = module
        self.function = ir.Function(module, ir.FunctionType(result, types), name)
        self.args: Any = self.function.args
        self.b: Any = ir.IRBuilder(self.function.append_basic_block("entry"))
        # The entry block holds the variables alone, so that they can be added at any time.
        body = self.function.append_basic_block("body")
        self.b.branch(body)
        self.b.position_at_end(body)

    def int(self, value: int, type_: ir.Type = I64) -> ir.Constant:
        return ir.Constant(type_, value)

    def variable(self, initial: Value) -> Variable:
        return Variable(self, initial.type, initial)

    def at(self, pointer: Value, index: Value, type_: ir.Type) -> Value:
        """The address of element `index` of an array of `type_`."""
        return self.b.gep(pointer, [index], source_etype=type_)

    def load(
        self, pointer: Value, index: Value | int, type_: ir.Type, align: int | None = None
    ) -> Value:
        index = self.int(index) if isinstance(index, int) else index
        return self.b.load(self.at(pointer, index, type_), typ=type_, align=align)

    def store(self, value: Value, pointer: Value, index: Value | int) -> None:
        index = self.int(index) if isinstance(index, int) else index
        self.b.store(value, self.at(pointer, index, value.type))

    def minimum(self, x: Value, y: Value) -> Value:
        return self.b.select(self.b.icmp_signed("<", x, y), x, y)

    @contextmanager
    def range(self, start: Value | int, stop: Value | int) -> Iterator[Value]:
        """A loop over the int64 values of [start, stop)."""
        start = self.int(start) if isinstance(start, int) else start
        stop = self.int(stop) if isinstance(stop, int) else stop
        index = self.variable(start)
        with self.loop() as leave:
            i = index.get()
            leave(self.b.icmp_signed(">=", i, stop))
            yield i
            index.set(self.b.add(i, self.int(1)))

    @contextmanager
    def loop(self):
        """An endless loop; call what it yields with a condition to leave."""
        head = self.function.append_basic_block("loop")
        done = self.function.append_basic_block("done")
        self.b.branch(head)
        self.b.position_at_end(head)

        def leave(condition: Value) -> None:
            rest = self.function.append_basic_block("rest")
            self.b.cbranch(condition, done, rest)
            self.b.position_at_end(rest)

        yield leave
        self.b.branch(head)
        self.b.position_at_end(done)

    def declare(self, name: str, result: ir.Type, types: Sequence[ir.Type]) -> ir.Function:
        """An external function, or the one of that name that the module already has."""
        if name in self.module.globals:
            return self.module.globals[name]
        return ir.Function(self.module, ir.FunctionType(result, types), name)

    def internal(self) -> ir.Function:
        """Makes this a function that only its module sees, and ends it."""
        self.function.linkage = "internal"
        self.b.ret_void()
        return self.function


def index_params(shape: Sequence[int], *strides: Sequence[int]) -> tuple[int, ...]:
    """Params of an index over `shape`: how many dimensions, then extent and strides of each."""
    dims = [dim for dim in zip(shape, *strides, strict=True) if dim[0] != 1]
    return (len(dims), *(v for dim in reversed(dims) for v in dim))


def offsets(code: Code, first: int, index: Value, operands: int) -> list[Value]:
    """Element offsets of a flat `index` in each operand; `index_params` are from `first` on."""
    b, params = code.b, code.args[0]
    rest, found = code.variable(index), [code.variable(code.int(0)) for _ in range(operands)]
    with code.range(0, code.load(params, first, I64)) as i:
        dim = code.at(params, b.mul(i, code.int(operands + 1)), I64)
        extent, *strides = (code.load(dim, first + 1 + j, I64) for j in range(operands + 1))
        position = b.urem(rest.get(), extent)
        rest.set(b.udiv(rest.get(), extent))
        for offset, stride in zip(found, strides, strict=True):
            offset.add(b.mul(position, stride))
    return [offset.get() for offset in found]


def kernel(module: ir.Module, name: str) -> Code:
    """A stage kernel: (params, ptrs, lo, hi, error)."""
    return Code(module, name, (PTR, PTR, I64, I64, PTR))


def address(code: Code, plain_loops: bool = False) -> int:
    """Ends the kernel `code`, compiles its module and returns where it is.

    `plain_loops`: they are fast as they are written.
    """
    code.b.ret_void()
    name = code.function.name
    made = jit.compile_ir(str(code.module), [name], optimise=True, plain_loops=plain_loops)
    return made[name]
