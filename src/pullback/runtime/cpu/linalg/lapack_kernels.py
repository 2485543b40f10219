"""The kernels of factorisations and solutions: one matrix after the other through LAPACK.

`pullback.linalg` says what each result holds. Results that Fortran makes are kept column after
column, and the caller looks at them through transposing views.
"""

from __future__ import annotations

import functools

from pullback.core.dtypes import DType
from pullback.runtime.cpu.linalg.lapack_code import Matrices, MatrixRecord
from pullback.runtime.cpu.llvm.builder import IRModule, address, kernel
from pullback.runtime.cpu.llvm.records import Record
from pullback.runtime.cpu.llvm.values import I8, I32, I64, PTR, Value, constant

__all__ = [
    "CHOLESKY",
    "DET",
    "EIG",
    "EIGH",
    "LDL",
    "LU",
    "LU_SOLVE",
    "QR",
    "REQUIRED",
    "SOLVE_TRIANGULAR",
    "SVD",
    "cholesky",
    "det",
    "eig",
    "eigh",
    "ldl",
    "lu",
    "lu_solve",
    "qr",
    "require",
    "solve_triangular",
    "svd",
]


# Sizes are those of the matrices, and of the work areas of LAPACK by its names for them.
CHOLESKY = MatrixRecord(1, "n")
SOLVE_TRIANGULAR = MatrixRecord(2, "n k")
LU = MatrixRecord(1, "m n")
LU_SOLVE = MatrixRecord(3, "n k")
DET = MatrixRecord(2, "n")
QR = MatrixRecord(1, "m n q r lwork")
LDL = MatrixRecord(1, "n lwork")
EIGH = MatrixRecord(1, "n lwork lrwork liwork")
SVD = MatrixRecord(1, "m n lwork lrwork")
EIG = MatrixRecord(1, "n lwork")
REQUIRED = Record("flags", "code")


def _least(m: Matrices, x: Value, y: Value) -> Value:
    return m.code.minimum(x, y)


@functools.cache
def cholesky(dtype: DType) -> int:
    """x (n x n) -> L, row-major."""
    m = Matrices("cholesky", dtype, CHOLESKY)
    n = m["n"]
    one = m.int(1)
    with m.each():
        m.symmetric(m.out, (n, one), 0, n)
        with m.if_finite(m.out, n * n):
            # Row-major L is the transpose, for Fortran, of the upper factor of the conjugate.
            info = m.call("potrf", "U", n, m.out, n)
            m.fail_if_any(info)
            with m.code.range(0, n) as i, m.code.range(i + one, n) as j:
                m.put(m.number(0.0), m.out, m.place(i, j, n, one))
    return address(m.code)


@functools.cache
def solve_triangular(dtype: DType, lower: bool, unit: bool) -> int:
    """a (n x n), b (n x k) -> the solution, row-major."""
    m = Matrices("solve_triangular", dtype, SOLVE_TRIANGULAR)
    n, k = m["n"], m["k"]
    one = m.int(1)
    with m.each():
        a = m.elements(n * n)
        m.copy(a, (n, one), m.inputs[0], m.strides(0), n, n)
        m.copy(m.out, (k, one), m.inputs[1], m.strides(1), n, k)
        if not unit:
            found = m.zero_on_diagonal(a, n, n + one)
            m.fail_if_any(found)
        how = "UN" if lower else "LN"  # Fortran sees the transpose
        m.triangular_solve(a, n, m.out, k, how, "U" if unit else "N")
    return address(m.code)


@functools.cache
def lu(dtype: DType) -> int:
    """x (m x n) -> LU column after column, the rows exchanged, the permutation.

    Row i of the product L U is the row of x that the permutation has at i.
    """
    m = Matrices("lu", dtype, LU)
    rows, columns = m["m"], m["n"]
    one = m.int(1)
    with m.each():
        swaps = m.integers(_least(m, rows, columns))
        m.copy(m.out, (one, rows), m.inputs[0], m.strides(0), rows, columns)
        size = rows * columns
        last = m.at(m.out, size)
        order = m.at(last, rows)
        m.clear(last, rows)
        with m.code.range(0, rows) as i:
            m.put(_whole(m, i), order, i)
        with m.if_finite(m.out, size, size):
            m.call("getrf", rows, columns, m.out, rows, swaps)
            with m.code.range(0, _least(m, rows, columns)) as i:
                row = m.code.load(swaps, i, I32).sext(I64) - one
                m.put(_whole(m, row), last, i)
                _swap(m, order, i, row)
    return address(m.code)


def _whole(m: Matrices, value: Value) -> list[Value]:
    """An integer as an element."""
    return [value.sitofp(m.real), *m.number(0.0)[1:]]


def _exchange(m: Matrices, x: Value, width: Value, swaps: Value, n: Value, back: bool) -> None:
    """Exchanges rows of x (row-major) as the numbers at `swaps` say, first to last or back."""
    code, one = m.code, m.int(1)
    with m.code.range(0, n) as step:
        i = n - one - step if back else step
        row = m.get(swaps, i)[0].fptosi(I64)
        with code.when(code.differ(row, i)), m.code.range(0, width) as j:
            _swap(m, x, m.place(i, j, width, one), m.place(row, j, width, one))


@functools.cache
def lu_solve(dtype: DType, adjoint: bool) -> int:
    """a, b (n x k) and the result of `lu` -> A^-1 b or A^-H b, row-major.

    The factor is dense; a is not looked at.
    """
    m = Matrices("lu_solve", dtype, LU_SOLVE)
    n, k = m["n"], m["k"]
    one = m.int(1)
    with m.each():
        _, right, factor = m.inputs
        swaps = m.at(factor, n * n)
        found = m.zero_on_diagonal(factor, n, n + one)
        m.fail_if_any(found)
        # Fortran sees X^T: A^-1 b comes from X^T U^T L^T, A^-H b from conj(X)^T U, then L.
        m.copy(m.out, (k, one), right, m.strides(1), n, k, conjugate=adjoint)
        if adjoint:
            m.triangular_solve(factor, n, m.out, k, "UN", "N")
            m.triangular_solve(factor, n, m.out, k, "LN", "U")
            _exchange(m, m.out, k, swaps, n, back=True)
            m.copy(m.out, (k, one), m.out, (k, one), n, k, conjugate=True)
        else:
            _exchange(m, m.out, k, swaps, n, back=False)
            m.triangular_solve(factor, n, m.out, k, "LT", "U")
            m.triangular_solve(factor, n, m.out, k, "UT", "N")
    return address(m.code)


@functools.cache
def det(dtype: DType) -> int:
    """x and the result of `lu` -> the determinant.

    The factor is dense; x is not looked at.
    """
    m = Matrices("det", dtype, DET)
    n = m["n"]
    code = m.code
    with m.each():
        packed = m.inputs[1]
        total = [m.code.variable(p) for p in m.number(1.0)]
        with m.code.range(0, n) as i:
            pivot = m.get(packed, i * (n + 1))
            row = m.get(packed, n * n + i)[0]
            moved = code.differ(row, i.sitofp(m.real))
            pivot = [code.select(moved, -p, p) for p in pivot]
            product = m.product([t.get() for t in total], pivot)
            for t, p in zip(total, product, strict=True):
                t.set(p)
        m.put([t.get() for t in total], m.out, m.int(0))
    return address(m.code)


@functools.cache
def qr(dtype: DType) -> int:
    """x (m x n) -> Q (m x q) column after column, then R (r x n) row-major.

    q is as large as there are columns of Q wanted, and r as large as q; k = min(m, n).
    """
    m = Matrices("qr", dtype, QR)
    rows, columns, q, r, room = (m[name] for name in ("m", "n", "q", "r", "lwork"))
    one = m.int(1)
    with m.each():
        least = _least(m, rows, columns)
        a = m.elements(rows * columns)
        tau, work = m.elements(least), m.elements(room)
        m.copy(a, (one, rows), m.inputs[0], m.strides(0), rows, columns)
        with m.if_finite(a, rows * columns):
            m.call("geqrf", rows, columns, a, rows, tau, work, room)
            m.copy(m.out, (one, rows), a, (one, rows), rows, least)
            triangle = m.at(m.out, rows * q)
            m.clear(triangle, r * columns)
            with m.code.range(0, least) as i, m.code.range(i, columns) as j:
                m.put(m.get(a, m.place(i, j, one, rows)), triangle, m.place(i, j, columns, one))
            name = "ungqr" if dtype.is_complex else "orgqr"
            m.call(name, rows, q, least, m.out, rows, tau, work, room)
    return address(m.code)


@functools.cache
def ldl(dtype: DType) -> int:
    """x (n x n) -> L and D, row after row, then the permutation, as numbers.

    LAPACK gives the blocks of D and the columns of L, and the exchange that came before each block,
    negative for blocks of two. Exchanges move the columns of L before them too.
    """
    m = Matrices("ldl", dtype, LDL)
    n, room = m["n"], m["lwork"]
    code, one = m.code, m.int(1)
    with m.each():
        a, work, swaps = m.elements(n * n), m.elements(room), m.integers(n)
        lower, middle = m.out, m.at(m.out, n * n)
        order = m.at(middle, n * n)
        m.symmetric(a, (one, n), 0, n)
        m.clear(m.out, m._result)
        with code.range(0, n) as i:
            m.put(m.number(1.0), lower, m.place(i, i, n, one))
            m.put(_whole(m, i), order, i)
        with m.if_finite(a, n * n, n * n * 2):
            routine = "hetrf" if dtype.is_complex else "sytrf"
            singular = m.call(routine, "L", n, a, n, swaps, work, room)
            # By blocks LAPACK leaves what it was given in a column that has become zero. With the
            # least room it takes column after column.
            with code.when(code.differ(singular, 0)):
                m.symmetric(a, (one, n), 0, n)
                m.call(routine, "L", n, a, n, swaps, work, one)
            column = code.variable(m.int(0))
            with code.loop() as leave:
                k = column.get()
                leave(k >= n)
                swap = code.load(swaps, k, I32).sext(I64)
                double = swap < 0
                width = code.select(double, m.int(2), one)
                end = k + width
                last = end - one
                with code.range(k, end) as j:
                    with code.range(j, end) as i:
                        value = m.get(a, m.place(i, j, one, n))
                        m.put(m.conjugate(value), middle, m.place(j, i, n, one))
                        m.put(value, middle, m.place(i, j, n, one))
                    with code.range(end, n) as i:
                        value = m.get(a, m.place(i, j, one, n))
                        m.put(value, lower, m.place(i, j, n, one))
                other = code.select(double, 0 - swap, swap) - one
                with code.range(0, k) as j:
                    _swap(m, lower, m.place(last, j, n, one), m.place(other, j, n, one))
                _swap(m, order, last, other)
                column.set(end)
            # Of a matrix of low rank, rounding may leave pivots of nearly nothing.
            m.fail_if_any(m.oddities(m.out, n * n * 2))
    return address(m.code)


def _swap(m: Matrices, x: Value, here: Value, there: Value) -> None:
    """Exchanges two elements."""
    first, second = m.get(x, here), m.get(x, there)
    m.put(second, x, here)
    m.put(first, x, there)


def _spread(m: Matrices, reals: Value, out: Value, count: Value) -> None:
    """Real numbers as elements."""
    with m.code.range(0, count) as i:
        m.put([m.code.load(reals, i, m.real), *m.number(0.0)[1:]], out, i)


@functools.cache
def eigh(dtype: DType, vectors: bool) -> int:
    """x (n x n) -> eigenvalues, then eigenvectors column after column; without `vectors` only the
    real eigenvalues.
    """
    complex_values = dtype.is_complex and vectors
    m = Matrices("eigh", dtype, EIGH, complex_values)
    n, room, real_room, integer_room = (m[name] for name in ("n", "lwork", "lrwork", "liwork"))
    one = m.int(1)
    with m.each():
        values = m.reals(n) if complex_values else m.out
        a = m.at(m.out, n) if vectors else m.elements(n * n)
        work, integers = m.elements(room), m.integers(integer_room)
        more = (m.reals(real_room), real_room) if dtype.is_complex else ()
        m.symmetric(a, (one, n), 0, n)
        with m.if_finite(a, n * n):
            job = "V" if vectors else "N"
            name = "heevd" if dtype.is_complex else "syevd"
            info = m.call(
                name, job, "L", n, a, n, values, work, room, *more, integers, integer_room
            )
            m.fail_if_any(info)
            if complex_values:
                _spread(m, values, m.out, n)
    return address(m.code)


@functools.cache
def svd(dtype: DType, job: str) -> int:
    """x (m x n) -> the singular values, then U and V^H row-major; job "N": only the real singular
    values, "S": the first k columns and rows, "A": all.
    """
    complex_values = dtype.is_complex and job != "N"
    m = Matrices("svd", dtype, SVD, complex_values)
    rows, columns, room, real_room = m["m"], m["n"], m["lwork"], m["lrwork"]
    code, one, zero = m.code, m.int(1), m.int(0)
    with m.each():
        least = _least(m, rows, columns)
        values = m.reals(least) if complex_values else m.out
        a = m.elements(rows * columns)
        work, integers = m.elements(room), m.integers(least * 8)
        more = (m.reals(real_room),) if dtype.is_complex else ()
        m.copy(a, (columns, one), m.inputs[0], m.strides(0), rows, columns)
        with m.if_finite(a, rows * columns):
            # Fortran sees the transpose, V* S U^T: each factor comes out row-major.
            left = least if job == "S" else rows
            if job == "N":
                u = vh = a
            else:
                u = m.at(m.out, least)
                vh = m.at(u, rows * left)
            info = m.call(
                "gesdd", job, columns, rows, a, columns, values, vh, columns, u, left, work, room,
                *more, integers,
            )  # fmt: skip
            m.fail_if(code.differ(info, zero), info)
            if complex_values:
                _spread(m, values, m.out, least)
    return address(m.code)


@functools.cache
def eig(dtype: DType, vectors: bool) -> int:
    """x (n x n) -> complex eigenvalues, then eigenvectors column after column."""
    m = Matrices("eig", dtype, EIG, True)
    n, room = m["n"], m["lwork"]
    one = m.int(1)
    job = "V" if vectors else "N"
    with m.each():
        a, work, unused = m.elements(n * n), m.elements(room), m.elements(one)
        real, imag = m.reals(n), m.reals(n)
        vr = unused
        if vectors:
            vr = m.at(m.out, n) if dtype.is_complex else m.elements(n * n)
        m.copy(a, (one, n), m.inputs[0], m.strides(0), n, n)
        with m.if_finite(a, n * n):
            values = (m.out,) if dtype.is_complex else (real, imag)
            more = (real,) if dtype.is_complex else ()  # room for 2 n, with what follows it
            info = m.call("geev", "N", job, n, a, n, *values, unused, one, vr, n, work, room, *more)
            m.fail_if_any(info)
            if not dtype.is_complex:
                _join(m, m.out, real, imag, n)
                if vectors:
                    _join_vectors(m, m.code.at(m.out, n * 2, m.real), vr, imag, n)
    return address(m.code)


def _join(m: Matrices, out: Value, real: Value, imag: Value, count: Value) -> None:
    """Complex numbers from their parts."""
    with m.code.range(0, count) as j:
        at = j * 2
        m.code.store(m.code.load(real, j, m.real), out, at)
        m.code.store(m.code.load(imag, j, m.real), out, at + 1)


def _join_vectors(m: Matrices, out: Value, vectors: Value, imag: Value, n: Value) -> None:
    """Complex columns from real ones: of a conjugate pair (the one with the positive imaginary part
    of its eigenvalue is first) real and imaginary part stand side by side.
    """
    code, one, none = m.code, m.int(1), constant(m.real, 0.0)
    with code.range(0, n) as j:
        part = code.load(imag, j, m.real)
        is_real, is_second = code.equal(part, none), part < none
        first = code.select(is_second, j - one, j)
        other = code.select(is_real, j, first + one)
        with code.range(0, n) as i:
            x = code.load(vectors, first * n + i, m.real)
            y = code.load(vectors, other * n + i, m.real)
            y = code.select(is_real, none, code.select(is_second, -y, y))
            at = (j * n + i) * 2
            code.store(x, out, at)
            code.store(y, out, at + one)


@functools.cache
def require() -> int:
    """Looks for the first byte that is 0 among `units`; its params are `REQUIRED`."""
    code = kernel(IRModule(), "require")
    _, ptrs, lo, hi, error = code.args
    flags = code.load(ptrs, REQUIRED.loaded(code, "flags"), PTR)
    with code.range(lo, hi) as i:
        unset = code.equal(code.load(flags, i, I8), 0)
        with code.when(unset):
            code.store(i, error, 1)
            code.store(code.int(0), error, 2)
            code.store(REQUIRED.loaded(code, "code"), error, 0)
            code.leave()
    return address(code)
