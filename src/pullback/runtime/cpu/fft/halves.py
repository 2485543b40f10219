"""Real transforms of even length n as complex ones of h = n / 2 points, and of odd length.

The real numbers x are taken as complex ones, `z[j] = x[2j] + i x[2j + 1]`. With Z their transform,
Z[h] = Z[0] and w = exp(-2 pi i / n) the transform of x is

    X[k] = (Z[k] + conj Z[h - k]) / 2 - i w^k (Z[k] - conj Z[h - k]) / 2,  k = 0 ... h

and backwards, without a factor,

    Z[k] = (X[k] + conj X[h - k]) + i w^-k (X[k] - conj X[h - k]),  k = 0 ... h - 1.

The imaginary parts of X[0] and X[h] count as zero. For how steps are called see `passes`.
"""

from __future__ import annotations

import functools

from pullback.compile.kernel.codelets import ComplexPair
from pullback.core.dtypes import DType
from pullback.runtime.cpu.fft.codelets import ComplexLanes
from pullback.runtime.cpu.fft.moves import (
    interleaved,
    pair_masks,
    parted,
    parts_of,
    real_arg,
    splat_arg,
    store_part,
)
from pullback.runtime.cpu.fft.passes import step_function
from pullback.runtime.cpu.llvm.records import Params, Record
from pullback.runtime.cpu.llvm.writer import Function

__all__ = [
    "COPY",
    "HALF_ELEMENTS",
    "HALF_ROW",
    "TIMES",
    "WHOLE_ELEMENTS",
    "WHOLE_ROW",
    "copy_function",
    "half_elements",
    "half_row",
    "times_row",
    "whole_elements",
    "whole_row",
]


# Of n points, or h = n / 2; `roots` are those for k = 0 ... h, `swap` the bytes to the imaginary
# parts in the results' first vector, `length` the numbers of a part, factors of points a float64.
HALF_ELEMENTS = Record("", "half roots swap")
HALF_ROW = Record("", "half roots length factor")
WHOLE_ELEMENTS = Record("", "n swap")
WHOLE_ROW = Record("", "n factor")
COPY = Record("", "nbytes")
# After `count` numbers of the result there are zeros, `total` in all; `before` and `after` say
# whether to exchange real and imaginary parts.
TIMES = Record("", "count total table length factor before after")


def _halved(
    v: ComplexLanes,
    z: ComplexPair,
    mirrored: ComplexPair,
    root: ComplexPair,
    back: bool,
) -> ComplexPair:
    """One result from Z[k] and Z[h - k] (or X), by the formulas above; `root` has the factors."""
    a = ComplexPair(v.add(z.re, mirrored.re), v.sub(z.im, mirrored.im))
    b = ComplexPair(v.sub(z.re, mirrored.re), v.add(z.im, mirrored.im))
    if not back:
        half = v.number(0.5)
        a = ComplexPair(v.mul(a.re, half), v.mul(a.im, half))
    turned = v.times(b, root)
    return ComplexPair(v.add(a.re, turned.re), v.add(a.im, turned.im))


def _ends(v: ComplexLanes, first: str, last: str, back: bool) -> tuple[ComplexPair, ComplexPair]:
    """X[0] and X[h] from the parts of Z[0]; or Z[0] (and nothing) from their real parts."""
    total, difference = v.add(first, last), v.sub(first, last)
    zero = "zeroinitializer"
    return (
        (ComplexPair(total, difference), ComplexPair(zero, zero))
        if back
        else (ComplexPair(total, zero), ComplexPair(difference, zero))
    )


@functools.cache
def half_elements(dtype: DType, back: bool) -> int:
    """The formulas on elements."""

    def write(f: Function, v: ComplexLanes, p: Params) -> None:
        half, swap, table = p["half"], p["swap"], p.address("roots")
        unswapped = f.sub(str(v.nbytes), swap)

        def at(pointer: str, k: str) -> str:
            return f.offset(pointer, f.mul(k, str(v.element)))

        def keep(value: ComplexPair, k: str) -> None:
            v.store(value.re, f.offset(at("%target", k), swap))
            v.store(value.im, f.offset(at("%target", k), unswapped))

        zero = v.fetch("%source")
        other = v.fetch(at("%source", half)).re if back else zero.im
        first, last = _ends(v, zero.re, other, back)
        with f.loop("1", half) as k:
            z, mirrored = (v.fetch(at("%source", i)) for i in (k.i, f.sub(half, k.i)))
            root = v.spread(f.offset(table, f.mul(k.i, str(2 * v.size))))
            keep(_halved(v, z, mirrored, root, back), k.i)
        keep(first, "0")
        if not back:
            keep(last, half)

    return step_function(dtype, HALF_ELEMENTS, write)


@functools.cache
def half_row(dtype: DType, back: bool) -> int:
    """The formulas on complex numbers in a row, for one part of it."""

    def write(f: Function, v: ComplexLanes, p: Params) -> None:
        half, length, table = p["half"], p["length"], p.address("roots")
        factor = splat_arg(p, v, "factor")
        start = f.add(f.mul("%part", length), "1")
        stop = f.minimum(f.add(start, length), half)
        ones = "splat (i1 true)"
        backwards = list(range(v.lanes - 1, -1, -1))

        def at(pointer: str, k: str) -> str:
            return f.offset(pointer, f.mul(k, str(2 * v.size)))

        def scaled(value: ComplexPair) -> ComplexPair:
            return ComplexPair(v.mul(value.re, factor), v.mul(value.im, factor))

        def load(pointer: str, masks: list[str | None]) -> ComplexPair:
            far = f.offset(pointer, str(v.nbytes))
            pair = [v.load(p, m) for p, m in zip((pointer, far), masks, strict=True)]
            return ComplexPair(*parted(f, v, *pair))

        def body(k: str, rest: str | None) -> None:
            ahead: list[str | None] = [None, None]
            behind: list[str | None] = [None, None]
            if rest is not None:
                twice = f.mul(rest, "2")
                ahead = [v.mask(twice), v.mask(f.sub(twice, str(v.lanes)))]
                missing = f.sub(str(2 * v.lanes), twice)
                gaps = [v.mask(missing), v.mask(f.sub(missing, str(v.lanes)))]
                behind = [f(f"xor <{v.lanes} x i1> {gap}, {ones}") for gap in gaps]
            z, root = scaled(load(at("%source", k), ahead)), load(at(table, k), ahead)
            mirror = f.sub(f.sub(half, k), str(v.lanes - 1))
            m = scaled(load(at("%source", mirror), behind))
            m = ComplexPair(v.pick(m.re, m.re, backwards), v.pick(m.im, m.im, backwards))
            value = _halved(v, z, m, root, back)
            to = at("%target", k)
            for x, place, mask in zip(
                interleaved(f, v, *value), (to, f.offset(to, str(v.nbytes))), ahead, strict=True
            ):
                store_part(f, v, x, place, mask)

        parts_of(f, v, start, stop, body)

        with f.when(f("icmp eq i64 %part, 0")):
            _write_ends(f, v, half, factor, back)

    return step_function(dtype, HALF_ROW, write)


def _write_ends(f: Function, v: ComplexLanes, half: str, factor: str, back: bool) -> None:
    """The first number of a row and the one in the middle, which are no pair of others."""

    def at(pointer: str, k: str, part: int) -> str:
        return f.offset(pointer, f.add(f.mul(k, str(2 * v.size)), str(part * v.size)))

    def number(k: str, part: int) -> str:
        value = f(f"load {v.scalar}, ptr {at('%source', k, part)}, align {v.size}")
        return v.mul(f.splat(value, v.scalar, v.lanes), factor)

    other = number(half, 0) if back else number("0", 1)
    ends = _ends(v, number("0", 0), other, back)
    for value, k in zip(ends[: 1 if back else 2], ("0", half), strict=False):
        for part, x in enumerate(value):
            one = f(f"extractelement {v.type} {x}, i64 0")
            f.do(f"store {v.scalar} {one}, ptr {at('%target', k, part)}, align {v.size}")


@functools.cache
def whole_elements(dtype: DType) -> int:
    """All n elements from the first half of them, for odd n: those of a real array's transform."""

    def write(f: Function, v: ComplexLanes, p: Params) -> None:
        n, swap = p["n"], p["swap"]
        unswapped = f.sub(str(v.nbytes), swap)

        def keep(re: str, im: str, k: str) -> None:
            to = f.offset("%target", f.mul(k, str(v.element)))
            v.store(re, f.offset(to, swap))
            v.store(im, f.offset(to, unswapped))

        middle = f(f"udiv i64 {f.add(n, '1')}, 2")
        with f.loop("1", middle) as k:
            value = v.fetch(f.offset("%source", f.mul(k.i, str(v.element))))
            keep(value.re, value.im, k.i)
            keep(value.re, v.neg(value.im), f.sub(n, k.i))
        keep(v.fetch("%source").re, "zeroinitializer", "0")

    return step_function(dtype, WHOLE_ELEMENTS, write)


@functools.cache
def whole_row(dtype: DType) -> int:
    """The same for complex numbers in a row."""

    def write(f: Function, v: ComplexLanes, p: Params) -> None:
        n, factor = p["n"], real_arg(p, v, "factor")

        def at(pointer: str, k: str) -> str:
            return f.offset(pointer, f.mul(k, str(2 * v.size)))

        def keep(re: str, im: str, k: str) -> None:
            to = at("%target", k)
            f.do(f"store {v.scalar} {re}, ptr {to}, align {v.size}")
            f.do(f"store {v.scalar} {im}, ptr {f.offset(to, str(v.size))}, align {v.size}")

        def part(k: str, i: int) -> str:
            place = f.offset(at("%source", k), str(i * v.size))
            value = f(f"load {v.scalar}, ptr {place}, align {v.size}")
            return f(f"fmul {v.scalar} {value}, {factor}")

        middle = f(f"udiv i64 {f.add(n, '1')}, 2")
        with f.loop("1", middle) as k:
            re, im = part(k.i, 0), part(k.i, 1)
            keep(re, im, k.i)
            keep(re, f(f"fneg {v.scalar} {im}"), f.sub(n, k.i))
        keep(part("0", 0), "0.0", "0")

    return step_function(dtype, WHOLE_ROW, write)


@functools.cache
def copy_function(dtype: DType) -> int:
    """Copies bytes."""

    def write(f: Function, v: ComplexLanes, p: Params) -> None:
        f.copy("%target", "%source", p["nbytes"])

    return step_function(dtype, COPY, write)


@functools.cache
def times_row(dtype: DType) -> int:
    """Products of complex numbers in a row with a table, for one part of the row."""

    def write(f: Function, v: ComplexLanes, p: Params) -> None:
        count, total, table = p["count"], p["total"], p.address("table")
        length, factor = p["length"], splat_arg(p, v, "factor")
        before, after = (f(f"icmp ne i64 {p[name]}, 0") for name in ("before", "after"))
        start = f.mul("%part", length)
        end = f.minimum(f.add(start, length), total)
        stop = f.minimum(end, count)

        def at(pointer: str, k: str) -> str:
            return f.offset(pointer, f.mul(k, str(2 * v.size)))

        def exchanged(value: ComplexPair, condition: str) -> ComplexPair:
            return ComplexPair(
                f(f"select i1 {condition}, {v.type} {value.im}, {v.type} {value.re}"),
                f(f"select i1 {condition}, {v.type} {value.re}, {v.type} {value.im}"),
            )

        def body(k: str, rest: str | None) -> None:
            masks = pair_masks(v, rest)
            pairs = []
            for pointer in ("%source", table):
                place = at(pointer, k)
                halves = (place, f.offset(place, str(v.nbytes)))
                loaded = [v.load(p, m) for p, m in zip(halves, masks, strict=True)]
                pairs.append(ComplexPair(*parted(f, v, *loaded)))
            value = v.times(exchanged(pairs[0], before), pairs[1])
            value = exchanged(ComplexPair(v.mul(value.re, factor), v.mul(value.im, factor)), after)
            to = at("%target", k)
            for x, place, mask in zip(
                interleaved(f, v, *value), (to, f.offset(to, str(v.nbytes))), masks, strict=True
            ):
                store_part(f, v, x, place, mask)

        parts_of(f, v, start, stop, body)
        rest = f.sub(end, start)
        empty = f.sub(end, stop)
        first = f(f"select i1 {f(f'icmp slt i64 {empty}, {rest}')}, i64 {stop}, i64 {start}")
        with f.loop(first, end) as k:
            place = at("%target", k.i)
            f.do(f"store <2 x {v.scalar}> zeroinitializer, ptr {place}, align {v.size}")

    return step_function(dtype, TIMES, write)
