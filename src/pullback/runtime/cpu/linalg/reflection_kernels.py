"""The leaf of the tiled QR factorisation: reflections of at most `LEAF` columns."""

from __future__ import annotations

import functools
from collections.abc import Callable

from pullback.compile.kernel.factor_order import FAINT, LEAF, SUMS
from pullback.core.dtypes import DType
from pullback.runtime.cpu.linalg.leaf_code import Leaf
from pullback.runtime.cpu.llvm.records import Record

__all__ = ["householder_kernel"]

HOUSEHOLDER = Record("a v t", "m n at column v_at v_column t_at t_row")


@functools.cache
def householder_kernel(dtype: DType) -> int:
    """R of a few columns in place of their upper triangle, the reflections' vectors V with ones on
    the diagonal, which are clear above it, and T: their product is 1 - V T V^T. A unit is a matrix.
    """
    leaf = Leaf(dtype, HOUSEHOLDER)
    f, p, kind = leaf.f, leaf.p, leaf.kind
    m, n = p["m"], p["n"]
    products = f.array(kind, LEAF)
    with f.loop("%lo", "%hi") as item:
        a_at, v_at, t_at = p.offsets(item.i, 3)
        a = f.offset(p.pointers[0], f.add(a_at, p["at"]))
        vectors = f.offset(p.pointers[1], f.add(v_at, p["v_at"]))
        t = f.offset(p.pointers[2], f.add(t_at, p["t_at"]))
        with f.loop("0", n) as j:
            own = leaf.at(a, (j.i, p["column"]))
            reflector = leaf.at(vectors, (j.i, p["v_column"]))
            tau = _reflector(leaf, own, reflector, j.i, m)
            with f.loop(f.add(j.i, "1"), n) as k:
                other = leaf.at(a, (k.i, p["column"]))
                total = leaf.scalar("fmul", tau, _dot(leaf, reflector, other, j.i, m))
                _take(leaf, reflector, other, leaf.negative(total), j.i, m)
            # T's column j is - tau T V^T v_j above the diagonal.
            with f.loop("0", j.i) as k:
                before = leaf.at(vectors, (k.i, p["v_column"]))
                product = _dot(leaf, before, reflector, j.i, m)
                leaf.store(product, leaf.element(products, k.i))
            with f.loop("0", n) as k:
                row = leaf.at(t, (k.i, p["t_row"]))
                with f.loop(k.i, j.i, carried=[(kind, leaf.number(0.0))]) as i:
                    factor = leaf.load(leaf.element(row, i.i))
                    product = leaf.load(leaf.element(products, i.i))
                    i.next = [leaf.fma(factor, product, i.carried[0])]
                found = leaf.negative(leaf.scalar("fmul", tau, i.results[0]))
                diagonal = f(f"icmp eq i64 {k.i}, {j.i}")
                below = f(f"icmp sgt i64 {k.i}, {j.i}")
                found = leaf.select(diagonal, tau, found)
                found = leaf.select(below, leaf.number(0.0), found)
                leaf.store(found, leaf.element(row, j.i))
    return leaf.finish()


def _reflector(leaf: Leaf, own: str, reflector: str, j: str, m: str) -> str:
    """The reflection that leaves nothing of column j below its row j: its vector, and tau."""
    f, v, kind = leaf.f, leaf.v, leaf.kind
    zero, one = leaf.number(0.0), leaf.number(1.0)
    below = f.add(j, "1")

    def largest(places: list[str], mask: str | None, carried: list[str]) -> list[str]:
        most = carried[0]
        for i in places:
            size = v.unary("fabs", v.load(leaf.element(own, i), mask))
            larger = f(f"fcmp ogt {v.type} {size}, {most}")
            most = f(f"select <{v.lanes} x i1> {larger}, {v.type} {size}, {v.type} {most}")
        return [most]

    (most,) = leaf.column(below, m, [(v.type, "zeroinitializer")], largest)
    rest = leaf.reduced("fmax", most)
    alpha = leaf.load(leaf.element(own, j))
    # What is not finite has something to reflect, so that it goes on as NaN.
    some = f(f"fcmp une {kind} {rest}, {zero}")
    size = leaf.unary("fabs", alpha)
    scale = leaf.select(f(f"fcmp ogt {kind} {size}, {rest}"), size, rest)
    scale = leaf.select(some, scale, one)
    faint = f(f"fcmp olt {kind} {scale}, {leaf.number(FAINT[leaf.dtype.name])}")
    lift = leaf.select(faint, leaf.number(1 / FAINT[leaf.dtype.name]), one)
    with f.when(faint):
        _multiply(leaf, own, lift, below, m)
    alpha, scale = (leaf.scalar("fmul", x, lift) for x in (alpha, scale))
    wide = leaf.splat(scale)

    def scaled_down(i: str, mask: str | None) -> tuple[str, str]:
        value = v.divide(v.load(leaf.element(own, i), mask), wide)
        return value, value

    square = _products(leaf, below, m, scaled_down)
    ratio = leaf.scalar("fdiv", alpha, scale)
    norm = leaf.scalar("fmul", scale, leaf.unary("sqrt", leaf.fma(ratio, ratio, square)))
    positive = f(f"fcmp oge {kind} {alpha}, {zero}")
    beta = leaf.select(positive, leaf.negative(norm), norm)
    beta = leaf.select(some, beta, alpha)
    tau = leaf.scalar("fdiv", leaf.scalar("fsub", beta, alpha), leaf.select(some, beta, one))
    divisor = leaf.splat(leaf.select(some, leaf.scalar("fsub", alpha, beta), one))

    def scaled(places: list[str], mask: str | None, _: list[str]) -> list[str]:
        for i in places:
            value = v.divide(v.load(leaf.element(own, i), mask), divisor)
            leaf.put(value, leaf.element(reflector, i), mask)
        return []

    leaf.column(below, m, [], scaled)
    leaf.store(one, leaf.element(reflector, j))
    leaf.store(leaf.scalar("fdiv", beta, lift), leaf.element(own, j))
    return tau


def _multiply(leaf: Leaf, x: str, factor: str, start: str, stop: str) -> None:
    """x *= factor."""
    v, wide = leaf.v, leaf.splat(factor)

    def body(places: list[str], mask: str | None, _: list[str]) -> list[str]:
        for i in places:
            place = leaf.element(x, i)
            leaf.put(v.multiply(v.load(place, mask), wide), place, mask)
        return []

    leaf.column(start, stop, [], body)


def _dot(leaf: Leaf, x: str, y: str, start: str, stop: str) -> str:
    v = leaf.v
    return _products(
        leaf, start, stop,
        lambda i, mask: (v.load(leaf.element(x, i), mask), v.load(leaf.element(y, i), mask)),
    )  # fmt: skip


def _products(
    leaf: Leaf, start: str, stop: str, pair: Callable[[str, str | None], tuple[str, str]]
) -> str:
    """The sum of products: SUMS vectors of sums in turns, which are joined by halves."""
    v = leaf.v

    def body(places: list[str], mask: str | None, carried: list[str]) -> list[str]:
        sums = [v.fma(*pair(i, mask), s) for i, s in zip(places, carried, strict=False)]
        return [*sums, *carried[len(sums) :]]

    sums = leaf.column(start, stop, [(v.type, "zeroinitializer")] * SUMS, body)
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [v.add(x, y) for x, y in zip(sums[:half], sums[half:], strict=True)]
    return leaf.reduced("fadd", sums[0])


def _take(leaf: Leaf, x: str, y: str, factor: str, start: str, stop: str) -> None:
    """y += factor x."""
    v, wide = leaf.v, leaf.splat(factor)

    def body(places: list[str], mask: str | None, _: list[str]) -> list[str]:
        for i in places:
            place = leaf.element(y, i)
            total = v.fma(v.load(leaf.element(x, i), mask), wide, v.load(place, mask))
            leaf.put(total, place, mask)
        return []

    leaf.column(start, stop, [], body)
