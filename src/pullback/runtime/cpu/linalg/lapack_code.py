"""What the kernels of linear algebra are written with: a loop over the matrices of a batch, copies
between layouts, and calls of Fortran.

Fortran takes every argument by address, matrices column after column, and the length of each
character argument at the end. A matrix with a NaN or an infinity is not given to a routine: its
result is filled with NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pullback.core import dtypes
from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm.builder import IRModule, kernel, offsets
from pullback.runtime.cpu.llvm.records import Record, Word
from pullback.runtime.cpu.llvm.values import (
    DOUBLE,
    FLOAT,
    I1,
    I8,
    I32,
    I64,
    PTR,
    VOID,
    Value,
    constant,
    integer,
)

__all__ = ["PREFIX", "Matrices", "MatrixRecord"]

PREFIX = "pullback_lapack_"  # of the names under which IR finds the library's functions
LETTERS = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
TILE = 32  # columns that a transposing copy takes at once: as many cache lines are open


class MatrixRecord(Record):
    """The params of a kernel over matrices: the work area of a task has so many bytes, a task so
    many matrices (`grain`) and a result so many elements; `sizes` are the kernel's own.

    The index of the batch follows. All strides count elements.
    """

    def __init__(self, operands: int, sizes: str):
        super().__init__(
            "out operand[operands] work",
            f"nbytes grain code result {sizes} (row_stride column_stride)[operands]",
            operands=operands,
        )
        self.operands, self.sizes = operands, sizes.split()


class Matrices:
    """A kernel under construction whose units are the matrices of a batch; `matrices["n"]` is a
    size among its params.
    """

    def __init__(
        self, name: str, dtype: DType, record: MatrixRecord, out_complex: bool | None = None
    ):
        self.dtype, self.record, self.operands = dtype, record, record.operands
        self.module = IRModule()
        self.code = kernel(self.module, name)
        self.parts = 2 if dtype.is_complex else 1
        self._out_parts = 1 + (dtype.is_complex if out_complex is None else out_complex)
        self.real = FLOAT if dtype.real is dtypes.float32 else DOUBLE
        self.real_bytes = 4 if dtype.real is dtypes.float32 else 8
        self._work, self._bytes, self._grain, self._code, self._result = (
            self._param(word) for word in ("work", "nbytes", "grain", "code", "result")
        )
        self._sizes = {size: self._param(size) for size in record.sizes}

    def __getitem__(self, size: str) -> Value:
        return self._sizes[size]

    def _param(self, word: Word) -> Value:
        return self.record.loaded(self.code, word)

    def int(self, value: int) -> Value:
        return self.code.int(value)

    @contextmanager
    def each(self) -> Iterator[None]:
        """The loop over matrices: inside are `index`, `out`, `inputs` and the work area."""
        code = self.code
        _, ptrs, lo, hi, _ = code.args
        task = lo // self._grain
        base = code.load(ptrs, self._work, PTR)
        area = code.at(base, task * self._bytes, I8)
        slots: list[Word] = ["out", *(("operand", k) for k in range(self.operands))]
        bases = [code.load(ptrs, self._param(slot), PTR) for slot in slots]
        with code.range(lo, hi) as index:
            self.index = index
            self._area, self._used = area, self.int(0)
            self._out_reals = self._result * self._out_parts
            self.out = code.at(bases[0], index * self._out_reals, self.real)
            found = offsets(code, len(self.record), index, self.operands)
            self.inputs = [self.at(p, o) for p, o in zip(bases[1:], found, strict=True)]
            yield

    def strides(self, operand: int) -> tuple[Value, Value]:
        """The strides of rows and columns of an operand."""
        return self._param(("row_stride", operand)), self._param(("column_stride", operand))

    def work(self, nbytes: Value) -> Value:
        """The next bytes of the work area, at a multiple of 64."""
        pointer = self.code.at(self._area, self._used, I8)
        rounded = (nbytes + 63) & -64
        self._used = self._used + rounded
        return pointer

    def elements(self, count: Value) -> Value:
        """A work area of so many elements."""
        return self.work(count * (self.parts * self.real_bytes))

    def reals(self, count: Value) -> Value:
        return self.work(count * self.real_bytes)

    def integers(self, count: Value) -> Value:
        return self.work(count * 4)

    # -- elements --------------------------------------------------------------------------------

    def at(self, pointer: Value, index: Value) -> Value:
        """The address of an element."""
        return self.code.at(pointer, index * self.parts, self.real)

    def get(self, pointer: Value, index: Value) -> list[Value]:
        """The parts of an element."""
        place = self.at(pointer, index)
        return [self.code.load(place, k, self.real) for k in range(self.parts)]

    def put(self, parts: list[Value], pointer: Value, index: Value) -> None:
        place = self.at(pointer, index)
        for k, part in enumerate(parts):
            self.code.store(part, place, k)

    def number(self, value: float) -> list[Value]:
        """A constant as the parts of an element."""
        return [self.code.constant(self.real, v) for v in (value, 0.0)][: self.parts]

    def conjugate(self, parts: list[Value]) -> list[Value]:
        return parts if self.parts == 1 else [parts[0], -parts[1]]

    def product(self, x: list[Value], y: list[Value]) -> list[Value]:
        """The product of two elements."""
        if self.parts == 1:
            return [x[0] * y[0]]
        (p, q), (r, s) = x, y
        return [p * r - q * s, p * s + q * r]

    def place(self, i: Value, j: Value, rows: Value, columns: Value) -> Value:
        """The offset of element (i, j) by strides."""
        return i * rows + j * columns

    # -- matrices --------------------------------------------------------------------------------

    @contextmanager
    def entries(self, rows: Value, columns: Value) -> Iterator[tuple[Value, Value]]:
        """A loop over (i, j) by tiles of columns, row by row inside of them."""
        code, step = self.code, self.int(TILE)
        tiles = (columns + (TILE - 1)) // step
        with code.range(0, tiles) as tile:
            start = tile * step
            stop = code.minimum(start + step, columns)
            with code.range(0, rows) as i, code.range(start, stop) as j:
                yield i, j

    def copy(
        self,
        target: Value,
        target_strides: tuple[Value, Value],
        source: Value,
        source_strides: tuple[Value, Value],
        rows: Value,
        columns: Value,
        conjugate: bool = False,
    ) -> None:
        """target[i, j] = source[i, j]."""
        with self.entries(rows, columns) as (i, j):
            parts = self.get(source, self.place(i, j, *source_strides))
            parts = self.conjugate(parts) if conjugate else parts
            self.put(parts, target, self.place(i, j, *target_strides))

    def symmetric(
        self, target: Value, strides: tuple[Value, Value], operand: int, n: Value
    ) -> None:
        """target = (x + x^H) / 2 of an operand."""
        half = constant(self.real, 0.5)
        own = self.strides(operand)
        x = self.inputs[operand]
        with self.entries(n, n) as (i, j):
            one = self.get(x, self.place(i, j, *own))
            other = self.conjugate(self.get(x, self.place(j, i, *own)))
            mean = [p * half + q * half for p, q in zip(one, other, strict=True)]
            self.put(mean, target, self.place(i, j, *strides))

    def clear(self, target: Value, count: Value) -> None:
        """`count` elements become 0."""
        with self.code.range(0, count) as i:
            self.put(self.number(0.0), target, i)

    def oddities(self, source: Value, count: Value) -> Value:
        """1 if among `count` elements is a NaN or an infinity, else 0."""
        code = self.code
        word = integer(8 * self.real_bytes)
        exponent = code.int(0x7F800000 if self.real_bytes == 4 else 0x7FF << 52, word)
        bad = code.variable(code.int(0, I32))
        with code.range(0, count * self.parts) as i:
            bits = code.load(source, i, word) & exponent
            bad.set(bad.get() | code.equal(bits, exponent).zext(I32))
        return bad.get().zext(I64)

    @contextmanager
    def if_finite(self, source: Value, count: Value, result: Value | None = None) -> Iterator[None]:
        """Does what is inside if `count` elements are numbers; else the result, or as many of its
        elements as are said, become NaN.
        """
        code = self.code
        fine = code.equal(self.oddities(source, count), 0)
        with code.either(fine) as (then, otherwise):
            with otherwise:
                parts = self._out_reals if result is None else result * self.parts
                with code.range(0, parts) as i:
                    code.store(constant(self.real, float("nan")), self.out, i)
            with then:
                yield

    # -- calls -----------------------------------------------------------------------------------

    def fail_if_any(self, value: Value) -> None:
        """Ends the kernel with an error about this matrix if the value is positive."""
        self.fail_if(value > 0, value)

    def fail_if(self, condition: Value, value: Value) -> None:
        """Ends the kernel with an error about this matrix if the condition holds."""
        code, error = self.code, self.code.args[4]
        with code.when(condition):
            code.store(self.index, error, 1)
            code.store(value, error, 2)
            code.store(self._code, error, 0)
            code.leave()

    def call(self, routine: str, *args: Value | str) -> Value:
        """Calls a routine of LAPACK with characters, int64 values and addresses; gives `info`."""
        info = self._fortran(routine, (*args, self.int(0)))[-1]
        return self.code.read(info, I32).sext(I64)

    def _fortran(self, routine: str, args: Sequence[Value | str]) -> list[Value]:
        """Calls the routine of this dtype; gives the addresses of its arguments."""
        code = self.code
        passed, lengths = [], []
        for a in args:
            if isinstance(a, str):
                passed.append(self._character(a))
                lengths.append(self.int(1))
            elif a.type == I64:
                slot = code.local(I32)
                code.write(a.trunc(I32), slot)
                passed.append(slot)
            else:
                passed.append(a)
        name = f"{PREFIX}{LETTERS[self.dtype.name]}{routine}"
        types = (*[PTR] * len(passed), *[I64] * len(lengths))
        code.call(code.declare(name, VOID, types), (*passed, *lengths))
        return passed

    def multiply(
        self,
        left: str,
        right: str,
        sizes: tuple[Value, Value, Value],
        x: tuple[Value, Value],
        y: tuple[Value, Value],
        out: tuple[Value, Value],
    ) -> None:
        """out = op(x) op(y), all column after column, as address and distance of columns; `sizes`
        are rows, columns and the inner one.
        """
        args = (left, right, *sizes, self._one(), *x, *y, self._zero(), *out)
        self._fortran("gemm", args)

    def triangular_solve(
        self, factor: Value, rows: Value, out: Value, columns: Value, how: str, diagonal: str
    ) -> None:
        """Solves Z op(F) = X^T for Z, where X (row-major) and then Z^T are at `out`.

        `how` names the triangle of F and the operation, `diagonal` is "U" for ones there.
        """
        sizes, one = (columns, rows), self._one()
        args = ("R", *how, diagonal, *sizes, one, factor, rows, out, columns)
        self._fortran("trsm", args)

    def _one(self) -> Value:
        """The address of 1."""
        return self.code.constants(self.real, [1.0, 0.0])

    def _zero(self) -> Value:
        """The address of 0."""
        return self.code.constants(self.real, [0.0, 0.0])

    def _character(self, letter: str) -> Value:
        """The address of a character."""
        return self.code.constants(I8, [ord(letter)])

    def zero_on_diagonal(self, factor: Value, n: Value, step: Value) -> Value:
        """1 + the position of the first 0 on the diagonal of n x n elements, or 0."""
        code = self.code
        found = code.variable(self.int(0))
        with code.range(0, n) as k:
            i = n - 1 - k
            parts = self.get(factor, i * step)
            zero = code.int(1, I1)
            for part in parts:
                zero = zero & code.equal(part, constant(self.real, 0.0))
            found.set(code.select(zero, i + 1, found.get()))
        return found.get()
