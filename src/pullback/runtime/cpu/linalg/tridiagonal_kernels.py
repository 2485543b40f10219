"""Eigenvalues and eigenvectors of real matrices of some rows, one matrix after the other: they are
made tridiagonal by reflections, and diagonal by rotations with implicit shifts (QL).

The order is that of `compile.kernel.eigen_order`, where the steps are explained. The results are
packed as those of `lapack_kernels` are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from pullback.compile.kernel.eigen_order import NOTHING, SWEEPS
from pullback.compile.kernel.factor_order import SUMS, VECTOR_BYTES
from pullback.core.dtypes import DType
from pullback.runtime.cpu.linalg.lapack_code import Matrices, MatrixRecord
from pullback.runtime.cpu.llvm.builder import address
from pullback.runtime.cpu.llvm.values import Value, constant, integer, vector

__all__ = ["EIGH", "eigh", "elements", "row_of"]

EIGH = MatrixRecord(1, "n row")  # `row`: elements of a row in the work area
_LINES = 7  # rows of numbers that are worked in, beside two matrices


def row_of(dtype: DType, n: int) -> int:
    """Elements of a row in the work area: whole vectors."""
    lanes = VECTOR_BYTES // dtype.itemsize
    return -(-n // lanes) * lanes


def elements(dtype: DType, n: int, vectors: bool) -> tuple[int, ...]:
    """The work areas of a matrix."""
    row = row_of(dtype, n)
    return (n * row, n * row if vectors else 0, *[row] * _LINES)


@functools.cache
def eigh(dtype: DType, vectors: bool) -> int:
    """x (n x n) -> eigenvalues in increasing order, then eigenvectors column after column; without
    `vectors` the eigenvalues alone.
    """
    m = Matrices("eigh", dtype, EIGH)
    n, row = m["n"], m["row"]
    one = m.int(1)
    with m.each():
        a = m.elements(n * row)
        q = m.elements(n * row if vectors else m.int(0))
        lines = [m.elements(row) for _ in range(_LINES)]
        m.clear(a, n * row)
        m.symmetric(a, (row, one), 0, n)
        with m.if_finite(a, n * row):
            t = _Tridiagonal(m, a, q, lines)
            power = t.scale()
            t.reduce()
            if vectors:
                t.collect()
            t.rotate(vectors)
            t.sort(vectors)
            t.give(power, vectors)
    return address(m.code, plain_loops=True)


class _Tridiagonal:
    """The kernel's steps; `lines` are rows of numbers."""

    def __init__(self, m: Matrices, a: Value, q: Value, lines: list[Value]):
        self.m, self.code, self.real = m, m.code, m.real
        self.n, self.row = m["n"], m["row"]
        self.lanes = VECTOR_BYTES // m.real_bytes
        self.vector = vector(self.real, self.lanes)
        self.a, self.q = a, q
        self.u, self.w, self.tau, self.d, self.e, self.c, self.s = lines

    # -- numbers and vectors -----------------------------------------------------------------------

    def number(self, value: float) -> Value:
        return self.code.constant(self.real, value)

    def get(self, line: Value, i: Value) -> Value:
        return self.code.load(line, i, self.real)

    def put(self, value: Value, line: Value, i: Value) -> None:
        self.code.store(value, line, i)

    def line(self, matrix: Value, i: Value) -> Value:
        """Row i of a matrix in the work area."""
        return self.code.at(matrix, i * self.row, self.real)

    def place(self, line: Value, k: Value) -> Value:
        """Where vector k of a row is."""
        return self.code.at(line, k * self.lanes, self.real)

    def read(self, line: Value, k: Value) -> Value:
        return self.code.read(self.place(line, k), self.vector, self.m.real_bytes)

    def write(self, value: Value, line: Value, k: Value) -> None:
        self.code.write(value, self.place(line, k), self.m.real_bytes)

    def fused(self, x: Value, y: Value, z: Value) -> Value:
        return self.code.intrinsic("fma", x, y, z)

    def spread(self, x: Value) -> Value:
        return self.code.spread(x, self.lanes)

    def whole(self, count: Value) -> Value:
        """How many vectors so many elements take."""
        return (count + (self.lanes - 1)) // self.lanes

    def groups(self, count: Value, body: Callable[[list[Value]], None]) -> None:
        """The body for the places of all of `count` vectors, SUMS at a time, then of the rest."""
        code = self.code
        with code.range(0, count // SUMS) as g:
            body([g * SUMS + k for k in range(SUMS)])
        rest = count % SUMS
        for r in range(1, SUMS):
            with code.when(code.equal(rest, r)):
                body([count - (r - k) for k in range(r)])

    def joined(self, x: Value, join: Callable[[Value, Value], Value]) -> Value:
        """The lanes of a vector as one, by halves."""
        width = x.type.count
        while width > 1:
            width //= 2
            low = self.code.shuffled(x, x, list(range(width)))
            x = join(low, self.code.shuffled(x, x, list(range(width, 2 * width))))
        return x

    def dot(self, x: Value, y: Value, vectors: Value) -> Value:
        """The sum of products: SUMS vectors of sums in turns, which are joined by halves."""
        code = self.code
        sums = [code.variable(code.constant(self.vector, 0.0)) for _ in range(SUMS)]
        whole = vectors // SUMS

        def add(total: int, k: Value) -> None:
            value = self.fused(self.read(x, k), self.read(y, k), sums[total].get())
            sums[total].set(value)

        with code.range(0, whole) as g:
            for k in range(SUMS):
                add(k, g * SUMS + k)
        with code.range(whole * SUMS, vectors) as k:
            add(0, k)
        left = [s.get() for s in sums]
        while len(left) > 1:
            half = len(left) // 2
            left = [p + r for p, r in zip(left[:half], left[half:], strict=True)]
        return self.joined(left[0], lambda p, r: p + r)

    def combined(self, matrix: Value, factors: Value, count: Value, out: Value) -> None:
        """out = the sum of the first `count` rows of a matrix, each by its factor, in sequence."""
        code = self.code

        def group(places: list[Value]) -> None:
            sums = [code.variable(code.constant(self.vector, 0.0)) for _ in places]
            with code.range(0, count) as j:
                factor, line = self.spread(self.get(factors, j)), self.line(matrix, j)
                for k, total in zip(places, sums, strict=True):
                    total.set(self.fused(self.read(line, k), factor, total.get()))
            for k, total in zip(places, sums, strict=True):
                self.write(total.get(), out, k)

        self.groups(self.whole(count), group)

    def before(self, x: Value, k: Value, end: Value) -> Value:
        """Vector k of a row with 0 from element `end` on."""
        word = vector(integer(64), self.lanes)
        first = self.code.spread(k * self.lanes, self.lanes)
        places = first + constant(word, list(range(self.lanes)))
        inside = places < self.code.spread(end, self.lanes)
        return self.code.select(inside, x, self.code.constant(self.vector, 0.0))

    def larger(self, x: Value, y: Value) -> Value:
        return self.code.select(x < y, y, x)

    def size(self, x: Value) -> Value:
        return self.code.intrinsic("fabs", x)

    # -- steps -------------------------------------------------------------------------------------

    def scale(self) -> Value:
        """Divides the matrix by the power of 2 below its largest element, and gives that; by the
        least normal number if there is none.
        """
        code, m = self.code, self.m
        most = code.variable(code.constant(self.vector, 0.0))
        count = self.n * self.row // self.lanes
        with code.range(0, count) as k:
            most.set(self.larger(most.get(), self.size(self.read(self.a, k))))
        largest = self.joined(most.get(), self.larger)
        word = integer(8 * m.real_bytes)
        mask = constant(word, 0x7F800000 if m.real_bytes == 4 else 0x7FF << 52)
        power = (largest.bitcast(word) & mask).bitcast(self.real)
        least = self.number(float(np.finfo(m.dtype.numpy).tiny))
        power = self.larger(power, least)
        self._divide(self.a, power, count)
        return power

    def reduce(self) -> None:
        """Makes the matrix tridiagonal, from its last row to its first: `d` and `e` are its
        diagonal and what is beside it; row i of `a` becomes the vector of its reflection.
        """
        code, m = self.code, self.m
        with code.range(0, self.n - 1) as step:
            i = self.n - 1 - step
            line = self.line(self.a, i)
            self.put(self.get(line, i), self.d, i)
            tau = self._reflector(line, i)
            self.put(tau, self.tau, i)
            with code.when(code.differ(tau, self.number(0.0))):
                self._reflect(tau, i)
        zero = m.int(0)
        self.put(self.get(self.a, zero), self.d, zero)

    def _reflector(self, line: Value, i: Value) -> Value:
        """The reflection that leaves of the first i elements of a row the last one: its vector, in
        their place and in `u`, and its factor.
        """
        code, zero, one = self.code, self.number(0.0), self.number(1.0)
        vectors, last = self.whole(i), i - 1
        alpha = self.get(line, last)
        most = code.variable(code.constant(self.vector, 0.0))
        with code.range(0, vectors) as k:
            x = self.before(self.read(line, k), k, last)
            self.write(x, self.u, k)
            most.set(self.larger(most.get(), self.size(x)))
        rest = self.joined(most.get(), self.larger)
        some = code.differ(rest, zero)
        scale = code.select(some, self.larger(self.size(alpha), rest), one)
        self._divide(self.u, scale, vectors)
        # Beside their scale numbers have all their digits, however small they are.
        alpha = alpha / scale
        square = self.fused(alpha, alpha, self.dot(self.u, self.u, vectors))
        norm = code.intrinsic("sqrt", square)
        beta = code.select(some, code.select(alpha >= zero, -norm, norm), alpha)
        self._divide(self.u, code.select(some, alpha - beta, one), vectors)
        self.put(one, self.u, last)
        with code.range(0, vectors) as k:
            self.write(self.read(self.u, k), line, k)
        self.put(beta * scale, self.e, last)
        return (beta - alpha) / code.select(some, beta, one)

    def _divide(self, line: Value, divisor: Value, vectors: Value) -> None:
        wide = self.spread(divisor)
        with self.code.range(0, vectors) as k:
            self.write(self.read(line, k) / wide, line, k)

    def _reflect(self, tau: Value, i: Value) -> None:
        """Reflects the first i rows and columns: what is taken from them is u w^T + w u^T."""
        code, vectors = self.code, self.whole(i)
        self.combined(self.a, self.u, i, self.w)
        wide = self.spread(tau)
        with code.range(0, vectors) as k:
            self.write(self.before(self.read(self.w, k) * wide, k, i), self.w, k)
        along = tau * self.number(-0.5) * self.dot(self.u, self.w, vectors)
        wide = self.spread(along)
        with code.range(0, vectors) as k:
            value = self.fused(wide, self.read(self.u, k), self.read(self.w, k))
            self.write(value, self.w, k)

        def group(places: list[Value]) -> None:
            us, ws = ([self.read(line, k) for k in places] for line in (self.u, self.w))
            with code.range(0, i) as j:
                u, w = (self.spread(-self.get(line, j)) for line in (self.u, self.w))
                line = self.line(self.a, j)
                for k, x, y in zip(places, us, ws, strict=True):
                    value = self.fused(w, x, self.read(line, k))
                    self.write(self.fused(u, y, value), line, k)

        self.groups(vectors, group)

    def collect(self) -> None:
        """The product of the reflections, transposed, in place of `a`."""
        code, m, one = self.code, self.m, self.m.int(1)
        m.clear(self.q, self.n * self.row)
        with code.range(0, self.n) as i:
            self.put(self.number(1.0), self.line(self.q, i), i)
        with code.range(2, self.n) as i:
            tau = self.get(self.tau, i)
            with code.when(code.differ(tau, self.number(0.0))):
                line, wide = self.line(self.a, i), self.spread(tau)
                self.combined(self.q, line, i, self.w)
                with code.range(0, self.whole(i)) as k:
                    self.write(self.read(self.w, k) * wide, self.w, k)
                self._take(line, i)
        m.copy(self.a, (one, self.row), self.q, (self.row, one), self.n, self.n)

    def _take(self, line: Value, i: Value) -> None:
        """Takes w by the factors in a row from the first i rows of `q`."""

        def group(places: list[Value]) -> None:
            ws = [self.read(self.w, k) for k in places]
            with self.code.range(0, i) as j:
                factor, own = self.spread(-self.get(line, j)), self.line(self.q, j)
                for k, x in zip(places, ws, strict=True):
                    self.write(self.fused(factor, x, self.read(own, k)), own, k)

        self.groups(self.whole(i), group)

    def _is_small(self, k: Value) -> Value:
        """Whether the element beside the diagonal is nothing beside its neighbours."""
        bound = self.size(self.get(self.d, k)) + self.size(self.get(self.d, k + 1))
        bound = bound * self.number(float(np.finfo(self.m.dtype.numpy).eps))
        least = self.number(2 * NOTHING[self.m.dtype.name] ** 0.5)
        return self.size(self.get(self.e, k)) <= self.larger(bound, least)

    def rotate(self, vectors: bool) -> None:
        """Makes the tridiagonal matrix diagonal; the rows of `a` become eigenvectors."""
        code, m = self.code, self.m
        left = code.variable(self.n * SWEEPS)
        with code.range(0, self.n) as start, code.loop() as leave:
            end = code.variable(start)
            with code.loop() as stop:
                stop(end.get() >= self.n - 1)
                stop(self._is_small(end.get()))
                end.add(1)
            last = end.get()
            leave(code.equal(last, start))
            m.fail_if(code.equal(left.get(), 0), last - start)
            left.add(-1)
            first = self._sweep(start, last)
            if vectors:
                self._turn(first, last)

    def _sweep(self, start: Value, last: Value) -> Value:
        """One sweep of rotations from `last` to `start`, and the row at which it ended."""
        code, one, zero = self.code, self.number(1.0), self.number(0.0)
        d, e = self.d, self.e
        beside, own = self.get(e, start), self.get(d, start)
        half = (self.get(d, start + 1) - own) / (beside * self.number(2.0))
        root = code.intrinsic("sqrt", self.fused(half, half, one))
        shift = beside / (half + code.intrinsic("copysign", root, half))
        g = code.variable(self.get(d, last) - own + shift)
        sine, cosine, p = code.variable(one), code.variable(one), code.variable(zero)
        at = code.variable(last - 1)
        nothing = self.number(NOTHING[self.m.dtype.name])
        with code.loop() as stop:
            k = at.get()
            stop(k < start)
            f, b = sine.get() * self.get(e, k), cosine.get() * self.get(e, k)
            square = self.fused(f, f, g.get() * g.get())
            stop(square < nothing)
            r = code.intrinsic("sqrt", square)
            self.put(r, e, k + 1)
            s, c = f / r, g.get() / r
            rest = self.get(d, k + 1) - p.get()
            t = self.fused(self.get(d, k) - rest, s, (c + c) * b)
            p.set(s * t)
            self.put(rest + p.get(), d, k + 1)
            g.set(self.fused(c, t, -b))
            self.put(c, self.c, k)
            self.put(s, self.s, k)
            sine.set(s)
            cosine.set(c)
            at.add(-1)
        with code.when(at.get() >= start):  # the block falls into two
            self.put(cosine.get() * self.get(e, at.get()), e, at.get())
        first = at.get() + 1
        self.put(self.get(d, first) - p.get(), d, first)
        self.put(code.select(first > start, zero, g.get()), e, first)
        self.put(zero, e, last)
        return first

    def _turn(self, first: Value, last: Value) -> None:
        """The rotations of a sweep on the rows of `a`."""
        code = self.code

        def group(places: list[Value]) -> None:
            line = self.line(self.a, last)
            held = [code.variable(self.read(line, k)) for k in places]
            with code.range(0, last - first) as step:
                i = last - 1 - step
                c, s = (self.spread(self.get(line, i)) for line in (self.c, self.s))
                own, below = self.line(self.a, i), self.line(self.a, i + 1)
                for k, carried in zip(places, held, strict=True):
                    x, y = self.read(own, k), carried.get()
                    self.write(self.fused(s, x, c * y), below, k)
                    carried.set(self.fused(c, x, -(s * y)))
            line = self.line(self.a, first)
            for k, carried in zip(places, held, strict=True):
                self.write(carried.get(), line, k)

        self.groups(self.whole(self.n), group)

    def sort(self, vectors: bool) -> None:
        """Eigenvalues in increasing order, each with its row: the least of the rest comes next."""
        code = self.code
        with code.range(0, self.n) as i:
            least = code.variable(i)
            with code.range(i + 1, self.n) as k:
                smaller = self.get(self.d, k) < self.get(self.d, least.get())
                least.set(code.select(smaller, k, least.get()))
            other = least.get()
            with code.when(code.differ(other, i)):
                here, there = self.get(self.d, i), self.get(self.d, other)
                self.put(there, self.d, i)
                self.put(here, self.d, other)
                if vectors:
                    own, found = self.line(self.a, i), self.line(self.a, other)
                    with code.range(0, self.whole(self.n)) as k:
                        x, y = self.read(own, k), self.read(found, k)
                        self.write(y, own, k)
                        self.write(x, found, k)

    def give(self, power: Value, vectors: bool) -> None:
        """The result."""
        code, m, one = self.code, self.m, self.m.int(1)
        with code.range(0, self.n) as i:
            self.put(self.get(self.d, i) * power, m.out, i)
        if vectors:
            out = m.at(m.out, self.n)
            m.copy(out, (self.n, one), self.a, (self.row, one), self.n, self.n)
