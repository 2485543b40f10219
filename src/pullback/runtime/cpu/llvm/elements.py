"""Elements and vectors of arrays in kernels, and copies of matrices between any strides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.writer import Function, IRModule, of_width, register

__all__ = [
    "Elements",
    "add_move",
    "call",
    "call_move",
    "lanes_of",
    "otherwise",
    "product",
]


def lanes_of(dtype: DType) -> int:
    """Elements of a vector."""
    return jit.host().vector_bits // (8 * dtype.itemsize)


class Elements:
    """Loads, stores and arithmetic of elements and vectors in one function."""

    def __init__(self, f: Function, dtype: DType):
        self.f, self.dtype, self.lanes = f, dtype, lanes_of(dtype)
        self.size, self.scalar = dtype.itemsize, register(dtype)
        self.type = of_width(self.scalar, self.lanes)

    def at(self, pointer: str, elements: str) -> str:
        return self.f.element(pointer, self.scalar, elements)

    def load(self, pointer: str) -> str:
        return self.f(f"load {self.type}, ptr {pointer}, align {self.size}")

    def store(self, value: str, pointer: str) -> None:
        self.f.do(f"store {self.type} {value}, ptr {pointer}, align {self.size}")

    def one(self, pointer: str) -> str:
        return self.f(f"load {self.scalar}, ptr {pointer}, align {self.size}")

    def store_one(self, value: str, pointer: str) -> None:
        self.f.do(f"store {self.scalar} {value}, ptr {pointer}, align {self.size}")

    def repeat(self, pointer: str) -> str:
        return self.f.splat(self.one(pointer), self.scalar, self.lanes)

    def fma(self, x: str, y: str, total: str) -> str:
        t = self.type
        name = f"llvm.fmuladd.v{self.lanes}f{8 * self.size}"
        function = self.f.module.intrinsic(name, t, t, t, t)
        return self.f(f"call {t} {function}({t} {x}, {t} {y}, {t} {total})")

    def pick(self, u: str, w: str, lanes: Sequence[int]) -> str:
        mask = f"<{len(lanes)} x i32> <{', '.join(f'i32 {k}' for k in lanes)}>"
        return self.f(f"shufflevector {self.type} {u}, {self.type} {w}, {mask}")

    def scatter(self, vector: str, pointer: str, step: str) -> None:
        """Stores the lanes of a vector, `step` elements apart."""
        for k in range(self.lanes):
            lane = self.f(f"extractelement {self.type} {vector}, i64 {k}")
            self.store_one(lane, self.at(pointer, self.f.mul(step, str(k))))

    def clear(self, pointer: str, elements: str) -> None:
        nbytes = self.f.mul(elements, str(self.size))
        fill = self.f.module.intrinsic("llvm.memset.p0.i64", "void", "ptr", "i8", "i64", "i1")
        self.f.do(f"call void {fill}(ptr {pointer}, i8 0, i64 {nbytes}, i1 false)")

    def fill(self, pointer: str, elements: str, value: str) -> None:
        """Writes the constant `value` to so many elements."""
        if value == "zeroinitializer":
            self.clear(pointer, elements)
            return
        with self.f.loop("0", elements) as i:
            self.store_one(value, self.at(pointer, i.i))

    def local(self, elements: str) -> str:
        """Memory on the stack, for as long as the function runs."""
        return self.f(f"alloca {self.scalar}, i64 {elements}, align 64")


def product(f: Function, *factors: str) -> str:
    total = factors[0]
    for factor in factors[1:]:
        total = f.mul(total, factor)
    return total


@contextmanager
def otherwise(f: Function, condition: str) -> Iterator[None]:
    """A block that runs unless the i1 `condition` holds."""
    with f.when(f(f"xor i1 {condition}, true")):
        yield


def call(
    f: Function, name: str, parameters: Sequence[tuple[str, str]], values: Sequence[str]
) -> None:
    """Calls a function of the module that has these parameters."""
    passed = ", ".join(f"{t} {v}" for (t, _), v in zip(parameters, values, strict=True))
    f.do(f"call void {name}({passed})")


# -- copies ----------------------------------------------------------------------------------------

_MOVE = (
    ("ptr", "%source"), ("i64", "%source_row"), ("i64", "%source_column"), ("ptr", "%target"),
    ("i64", "%target_row"), ("i64", "%target_column"), ("i64", "%rows"), ("i64", "%columns"),
)  # fmt: skip


def add_move(module: IRModule, dtype: DType) -> None:
    """The function @move: a matrix copied between any strides, fast where its columns are read
    side by side.
    """
    f = Function(module, "@move", _MOVE, qualifiers="internal ")
    v = Elements(f, dtype)
    inside, outside = f("icmp eq i64 %source_column, 1"), f("icmp eq i64 %target_column, 1")
    turned = f("icmp eq i64 %target_row, 1")
    along = f(f"and i1 {inside}, {outside}")
    across = f(f"and i1 {inside}, {f(f'xor i1 {outside}, true')}")
    for count in ("%rows", "%columns"):
        across = f(f"and i1 {across}, {f(f'icmp sge i64 {count}, {v.lanes}')}")
    with f.when(along), f.loop("0", "%rows") as row:
        source = v.at("%source", f.mul(row.i, "%source_row"))
        target = v.at("%target", f.mul(row.i, "%target_row"))
        whole = f(f"and i64 %columns, {-v.lanes}")
        with f.loop("0", whole, str(v.lanes)) as j:
            v.store(v.load(v.at(source, j.i)), v.at(target, j.i))
        with f.loop(whole, "%columns") as j:
            v.store_one(v.one(v.at(source, j.i)), v.at(target, j.i))
    with f.when(f(f"and i1 {across}, {turned}")):
        _move_squares(v, True)
    with f.when(f(f"and i1 {across}, {f(f'xor i1 {turned}, true')}")):
        _move_squares(v, False)
    with otherwise(f, f(f"or i1 {along}, {across}")):
        _move_each(v)
    f.finish()


def _move_squares(v: Elements, dense: bool) -> None:
    f = v.f
    bottom, right = (f.sub(f"%{n}", str(v.lanes)) for n in ("rows", "columns"))
    with f.loop("0", "%columns", str(v.lanes)) as j, f.loop("0", "%rows", str(v.lanes)) as i:
        _turn(v, f.minimum(i.i, bottom), f.minimum(j.i, right), dense)  # the last one overlaps


def _move_each(v: Elements) -> None:
    f = v.f
    with f.loop("0", "%rows") as i, f.loop("0", "%columns") as j:
        source = f.add(f.mul(i.i, "%source_row"), f.mul(j.i, "%source_column"))
        target = f.add(f.mul(i.i, "%target_row"), f.mul(j.i, "%target_column"))
        v.store_one(v.one(v.at("%source", source)), v.at("%target", target))


def _turn(v: Elements, i: str, j: str, dense: bool) -> None:
    """One square of as many rows and columns as a vector has lanes, transposed.

    `dense` says that the target's rows lie side by side.
    """
    f, half = v.f, v.lanes // 2
    rows = [f.mul(f.add(i, str(k)), "%source_row") for k in range(v.lanes)]
    vectors = [v.load(v.at("%source", f.add(row, j))) for row in rows]
    lower = [k for n in range(half) for k in (n, n + v.lanes)]
    upper = [k + half for k in lower]
    for _ in range(half.bit_length()):
        pairs = list(zip(vectors[:half], vectors[half:], strict=True))
        vectors = [v.pick(a, b, lanes) for a, b in pairs for lanes in (lower, upper)]
    for k, vector in enumerate(vectors):
        column = v.at("%target", f.mul(f.add(j, str(k)), "%target_column"))
        if dense:
            v.store(vector, v.at(column, i))
        else:
            v.scatter(vector, v.at(column, f.mul(i, "%target_row")), "%target_row")


def call_move(f: Function, source: Sequence[str], target: Sequence[str], *counts: str) -> None:
    """Calls @move; source and target are (pointer, row, column)."""
    call(f, "@move", _MOVE, (*source, *target, *counts))
