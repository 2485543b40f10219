"""The kernels of functions of matrices: Schur form, Sylvester's equation, exponential, square root
and logarithm.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from pullback.compile.kernel.matrix_functions import LOG_NODES, LOG_NORM, PADE, PADE_NORM
from pullback.core.dtypes import DType
from pullback.runtime.cpu.linalg.lapack_code import Matrices, MatrixRecord
from pullback.runtime.cpu.llvm.builder import address
from pullback.runtime.cpu.llvm.values import PTR, Value, constant

__all__ = [
    "EXPM",
    "LOGM",
    "SCHUR",
    "SQRTM",
    "SYLVESTER",
    "expm",
    "logm",
    "schur",
    "sqrtm",
    "sylvester",
]

SCHUR = MatrixRecord(1, "n lwork")
SYLVESTER = MatrixRecord(5, "m n")
EXPM = MatrixRecord(1, "n")
SQRTM = LOGM = MatrixRecord(2, "n")


@functools.cache
def schur(dtype: DType) -> int:
    """x (n x n) -> T, then Z, both column after column, with x = Z T Z^H."""
    m = Matrices("schur", dtype, SCHUR)
    n, room = m["n"], m["lwork"]
    one = m.int(1)
    with m.each():
        z = m.at(m.out, n * n)
        work, chosen, count = m.elements(room), m.integers(n), m.integers(one)
        values = [m.elements(n)] if dtype.is_complex else [m.reals(n), m.reals(n)]
        more = (m.reals(n),) if dtype.is_complex else ()
        m.copy(m.out, (one, n), m.inputs[0], m.strides(0), n, n)
        with m.if_finite(m.out, n * n):
            none = constant(PTR, 0)
            info = m.call(
                "gees", "V", "N", none, n, m.out, n, count, *values, z, n, work, room, *more, chosen
            )
            m.fail_if_any(info)
    return address(m.code)


@functools.cache
def sylvester(dtype: DType, adjoint: bool) -> int:
    """a, b, q (m x n), and the results of `schur` for a and b -> X with a X + X b = q, or with the
    adjoints of both, row-major.

    The results of `schur` are dense; a and b are not looked at.
    """
    m = Matrices("sylvester", dtype, SYLVESTER)
    rows, columns = m["m"], m["n"]
    one = m.int(1)
    with m.each():
        _, _, q, left, right = m.inputs
        x, y = m.elements(rows * columns), m.elements(rows * columns)
        scale = m.reals(one)
        zl, zr = m.at(left, rows * rows), m.at(right, columns * columns)
        m.copy(x, (one, rows), q, m.strides(2), rows, columns)
        m.multiply("C", "N", (rows, columns, rows), (zl, rows), (x, rows), (y, rows))
        m.multiply("N", "N", (rows, columns, columns), (y, rows), (zr, columns), (x, rows))
        how = "N" if not adjoint else "C" if dtype.is_complex else "T"
        info = m.call(
            "trsyl", how, how, one, rows, columns, left, rows, right, columns, x, rows, scale
        )
        m.fail_if_any(info)
        factor = constant(m.real, 1.0) / m.code.load(scale, 0, m.real)
        m.multiply("N", "N", (rows, columns, rows), (zl, rows), (x, rows), (y, rows))
        m.multiply("N", "C", (rows, columns, columns), (y, rows), (zr, columns), (x, rows))
        with m.entries(rows, columns) as (i, j):
            parts = m.get(x, m.place(i, j, one, rows))
            m.put([p * factor for p in parts], m.out, m.place(i, j, columns, one))
    return address(m.code)


_MOST_HALVINGS = 1020  # about what the largest finite norm takes to get there


@functools.cache
def expm(dtype: DType) -> int:
    """x (n x n) -> exp(x), row-major.

    Fortran sees the transpose, whose exponential is the transpose.
    """
    m = Matrices("expm", dtype, EXPM)
    n = m["n"]
    one = m.int(1)
    with m.each():
        size = n * n
        a, a2, a4, a6, u, v = (m.elements(size) for _ in range(6))
        swaps = m.integers(n)
        m.copy(a, (n, one), m.inputs[0], m.strides(0), n, n)
        with m.if_finite(a, size):
            halvings = _halved(m, a, n)
            shape = (n, n, n)
            m.multiply("N", "N", shape, (a, n), (a, n), (a2, n))
            m.multiply("N", "N", shape, (a2, n), (a2, n), (a4, n))
            m.multiply("N", "N", shape, (a4, n), (a2, n), (a6, n))
            powers = (a6, a4, a2)
            c = [x / PADE[0] for x in PADE]
            _combine(m, u, n, powers, (c[13], c[11], c[9]))
            m.multiply("N", "N", shape, (a6, n), (u, n), (v, n))
            _combine(m, v, n, (v, *powers), (1.0, c[7], c[5], c[3]), c[1])
            m.multiply("N", "N", shape, (a, n), (v, n), (u, n))
            _combine(m, a, n, powers, (c[12], c[10], c[8]))
            m.multiply("N", "N", shape, (a6, n), (a, n), (v, n))
            _combine(m, v, n, (v, *powers), (1.0, c[6], c[4], c[2]), c[0])
            _combine(m, a, n, (v, u), (1.0, -1.0))
            _combine(m, m.out, n, (v, u), (1.0, 1.0))
            m.call("getrf", n, n, a, n, swaps)
            m.call("getrs", "N", n, n, a, n, swaps, m.out, n)
            with m.code.range(0, halvings):
                m.multiply("N", "N", shape, (m.out, n), (m.out, n), (u, n))
                m.copy(m.out, (n, one), u, (n, one), n, n)
    return address(m.code)


def _halved(m: Matrices, a: Value, n: Value) -> Value:
    """Divides a matrix by a power of 2 so that its norm is small; gives the exponent."""
    code = m.code
    largest = code.variable(constant(m.real, 0.0))
    magnitude = code.declare(_intrinsic(m, "fabs"), m.real, (m.real,))
    with code.range(0, n) as j:
        total = code.variable(constant(m.real, 0.0))
        with code.range(0, n) as i:
            for part in m.get(a, m.place(i, j, m.int(1), n)):
                total.set(total.get() + code.call(magnitude, (part,)))
        more = total.get() > largest.get()
        largest.set(code.select(more, total.get(), largest.get()))
    count, factor = code.variable(m.int(0)), code.variable(constant(m.real, 1.0))
    half = constant(m.real, 0.5)
    with code.loop() as leave:
        small = largest.get() <= constant(m.real, PADE_NORM)
        leave(small | (count.get() >= _MOST_HALVINGS))
        largest.set(largest.get() * half)
        factor.set(factor.get() * half)
        count.add(m.int(1))
    with code.range(0, n * n) as i:
        m.put([p * factor.get() for p in m.get(a, i)], a, i)
    return count.get()


def _intrinsic(m: Matrices, name: str) -> str:
    return f"llvm.{name}.f{8 * m.real_bytes}"


def _combine(
    m: Matrices,
    out: Value,
    n: Value,
    terms: Sequence[Value],
    factors: Sequence[float],
    diagonal: float = 0.0,
) -> None:
    """out = the sum of factors times matrices, and a multiple of the identity."""
    with m.code.range(0, n * n) as i:
        total = [constant(m.real, 0.0)] * m.parts
        for term, factor in zip(terms, factors, strict=True):
            scaled = [p * constant(m.real, factor) for p in m.get(term, i)]
            total = [x + y for x, y in zip(total, scaled, strict=True)]
        m.put(total, out, i)
    if diagonal:
        with m.code.range(0, n) as i:
            place = i * (n + 1)
            first, *rest = m.get(out, place)
            m.put([first + constant(m.real, diagonal), *rest], out, place)


# -- roots and logarithms, of complex matrices -----------------------------------------------------


def _root(m: Matrices, z: list[Value]) -> list[Value]:
    """The principal square root of a complex number."""
    code = m.code
    re, im = z
    zero, half = constant(m.real, 0.0), constant(m.real, 0.5)
    fabs = m.code.declare(_intrinsic(m, "fabs"), m.real, (m.real,))
    sqrt = m.code.declare(_intrinsic(m, "sqrt"), m.real, (m.real,))
    sign = m.code.declare(_intrinsic(m, "copysign"), m.real, (m.real, m.real))
    size = code.call(sqrt, (re * re + im * im,))
    large = code.call(sqrt, ((size + code.call(fabs, (re,))) * half,))
    none = code.equal(large, zero)
    safe = code.select(none, constant(m.real, 1.0), large)
    other = code.call(fabs, (im,)) * half / safe
    right = re >= zero
    first, second = code.select(right, large, other), code.select(right, other, large)
    return [first, code.call(sign, (second, im))]


def _quotient(m: Matrices, x: list[Value], y: list[Value]) -> list[Value]:
    """x / y, and 0 if both are 0."""
    code = m.code
    (p, q), (r, s) = x, y
    size = r * r + s * s
    numbers = (p * r + q * s, q * r - p * s)
    zero = constant(m.real, 0.0)
    nothing = code.equal(size + (p * p + q * q), zero)
    safe = code.select(nothing, constant(m.real, 1.0), size)
    return [v / safe for v in numbers]


def _triangular_root(m: Matrices, t: Value, n: Value) -> None:
    """Replaces an upper triangle (column after column) by its square root (Bjorck and Hammarling).

    By columns, from the diagonal up: an element needs those to its left and below it.
    """
    code, one = m.code, m.int(1)
    with code.range(0, n) as j:
        at = m.place(j, j, one, n)
        m.put(_root(m, m.get(t, at)), t, at)
        with code.range(0, j) as step:
            i = j - one - step
            at_ij = m.place(i, j, one, n)
            parts = [code.variable(p) for p in m.get(t, at_ij)]
            with code.range(i + one, j) as k:
                x = m.product(m.get(t, m.place(i, k, one, n)), m.get(t, m.place(k, j, one, n)))
                for part, p in zip(parts, x, strict=True):
                    part.set(part.get() - p)
            first, second = m.get(t, m.place(i, i, one, n)), m.get(t, at)
            total = [p + q for p, q in zip(first, second, strict=True)]
            m.put(_quotient(m, [p.get() for p in parts], total), t, at_ij)


def _conjugate_back(m: Matrices, t: Value, z: Value, work: Value, n: Value) -> None:
    """The result Z T Z^H, row-major."""
    one = m.int(1)
    shape = (n, n, n)
    m.multiply("N", "N", shape, (z, n), (t, n), (work, n))
    m.multiply("N", "C", shape, (work, n), (z, n), (t, n))
    m.copy(m.out, (n, one), t, (one, n), n, n)


@functools.cache
def sqrtm(dtype: DType) -> int:
    """x (n x n) and the result of `schur` -> the principal square root, row-major."""
    m = Matrices("sqrtm", dtype, SQRTM)
    n = m["n"]
    one = m.int(1)
    with m.each():
        size = n * n
        t, work = m.elements(size), m.elements(size)
        m.copy(t, (one, n), m.inputs[1], (one, n), n, n)
        _triangular_root(m, t, n)
        _conjugate_back(m, t, m.at(m.inputs[1], size), work, n)
    return address(m.code)


_MOST_ROOTS = 100  # of a number: far more bring every one next to 1


@functools.cache
def logm(dtype: DType) -> int:
    """x (n x n) and the result of `schur` -> the principal logarithm, row-major."""
    m = Matrices("logm", dtype, LOGM)
    n = m["n"]
    code, one = m.code, m.int(1)
    with m.each():
        size = n * n
        t, x, total, below = (m.elements(size) for _ in range(4))
        m.copy(t, (one, n), m.inputs[1], (one, n), n, n)
        roots = code.variable(m.int(0))
        with code.loop() as leave:
            far = _distance(m, t, n)
            near = ~(far > constant(m.real, LOG_NORM))
            leave(near | (roots.get() >= _MOST_ROOTS))
            _triangular_root(m, t, n)
            roots.add(one)
        _combine(m, x, n, (t,), (1.0,), -1.0)
        with code.range(0, size) as i:
            m.put(m.number(0.0), total, i)
        for node, weight in LOG_NODES:
            # t becomes x (1 + node x)^-1, by Z op(F) = x
            _combine(m, below, n, (x,), (node,), 1.0)
            m.copy(t, (n, one), x, (n, one), n, n)
            m.triangular_solve(below, n, t, n, "UN", "N")
            _combine(m, total, n, (total, t), (1.0, weight))
        factor = code.variable(constant(m.real, 1.0))
        with code.range(0, roots.get()):
            factor.set(factor.get() + factor.get())
        with code.range(0, size) as i:
            m.put([p * factor.get() for p in m.get(total, i)], total, i)
        _conjugate_back(m, total, m.at(m.inputs[1], size), x, n)
    return address(m.code)


def _distance(m: Matrices, t: Value, n: Value) -> Value:
    """The largest sum over a column of t - 1."""
    code, one = m.code, m.int(1)
    fabs = code.declare(_intrinsic(m, "fabs"), m.real, (m.real,))
    largest = code.variable(constant(m.real, 0.0))
    with code.range(0, n) as j:
        total = code.variable(constant(m.real, 0.0))
        with code.range(0, j + one) as i:
            re, im = m.get(t, m.place(i, j, one, n))
            unit = code.select(code.equal(i, j), constant(m.real, 1.0), constant(m.real, 0.0))
            for part in (re - unit, im):
                total.set(total.get() + code.call(fabs, (part,)))
        less = total.get() <= largest.get()
        largest.set(code.select(less, largest.get(), total.get()))
    return largest.get()
