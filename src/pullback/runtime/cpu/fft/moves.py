"""Steps that bring numbers from arrays into the elements of a transform, and back.

A swapped step exchanges real and imaginary parts: between two of these a transform is an inverse.
For how steps are called see `passes`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from pullback.core.dtypes import DType
from pullback.runtime.cpu.fft.codelets import ComplexLanes
from pullback.runtime.cpu.fft.passes import step_function
from pullback.runtime.cpu.llvm.records import Params, Record
from pullback.runtime.cpu.llvm.vectors import squared
from pullback.runtime.cpu.llvm.writer import Function

__all__ = [
    "MOVE",
    "TURN",
    "interleaved",
    "move_function",
    "pair_masks",
    "parted",
    "parts_of",
    "real_arg",
    "splat_arg",
    "store_part",
    "turn_function",
]


# `count`: numbers in a row, -1 for as many as there are lanes; `pitch`: bytes from row to row;
# `swap`: bytes to the imaginary parts in the elements' first vector; `factor`: a float64, for the
# way in; `apart`: bytes from a row of real parts to that of the imaginary ones, 0 if they are zero
# and dropped.
MOVE = Record("", "rows count pitch swap factor apart")
TURN = Record("", "count pitch swap factor")


def real_arg(p: Params, v: ComplexLanes, name: str) -> str:
    """A float64 among the args, in the dtype of the parts."""
    value = p.f(f"load double, ptr {p.place(name)}")
    return p.f(f"fptrunc double {value} to float") if v.scalar == "float" else value


def splat_arg(p: Params, v: ComplexLanes, name: str) -> str:
    """The same in every lane."""
    return p.f.splat(real_arg(p, v, name), v.scalar, v.lanes)


def interleaved(f: Function, v: ComplexLanes, a: str, b: str) -> tuple[str, str]:
    """Real and imaginary parts as two vectors of complex numbers."""
    n = v.lanes
    order = [k for lane in range(n) for k in (lane, n + lane)]
    return v.pick(a, b, order[:n]), v.pick(a, b, order[n:])


def parted(f: Function, v: ComplexLanes, a: str, b: str) -> tuple[str, str]:
    """The even and the odd lanes of two vectors."""
    n = v.lanes
    return v.pick(a, b, range(0, 2 * n, 2)), v.pick(a, b, range(1, 2 * n, 2))


def pair_masks(v: ComplexLanes, rest: str | None) -> list[str | None]:
    """The masks of the two vectors that so many complex numbers fill; None where all are filled."""
    if rest is None:
        return [None, None]
    twice = v.f.mul(rest, "2")
    return [v.mask(twice), v.mask(v.f.sub(twice, str(v.lanes)))]


def store_part(f: Function, v: ComplexLanes, value: str, pointer: str, mask: str | None) -> None:
    """Stores the lanes of a mask, or all."""
    if mask is None:
        v.store(value, pointer)
        return
    bits = f"<{v.lanes} x i1>"
    name = f"llvm.masked.store.{v.suffix}.p0"
    function = f.module.intrinsic(name, "void", v.type, "ptr", "i32", bits)
    f.do(f"call void {function}({v.type} {value}, ptr {pointer}, i32 {v.size}, {bits} {mask})")


def parts_of(
    f: Function, v: ComplexLanes, start: str, stop: str, body: Callable[[str, str | None], None]
) -> None:
    """Call `body(first, rest)` for each vector of the numbers from start to stop.

    `rest` is how many there are in the last one; None where it is full.
    """
    count = f.sub(stop, start)
    with f.when(f(f"icmp sgt i64 {count}, 0")):
        whole = f.add(start, f.mul(f(f"sdiv i64 {count}, {v.lanes}"), str(v.lanes)))
        with f.loop(start, whole, str(v.lanes)) as i:
            body(i.i, None)
        rest = f.sub(stop, whole)
        with f.when(f(f"icmp sgt i64 {rest}, 0")):
            body(whole, rest)


@functools.cache
def move_function(dtype: DType, out: bool, planar: bool) -> int:
    """Rows of an array to rows of elements, or back if `out`.

    `planar`: the real parts are a row of real numbers, and so are the imaginary parts, if there are
    any.
    """

    def write(f: Function, v: ComplexLanes, p: Params) -> None:
        rows, given, pitch, swap = p["rows"], p["count"], p["pitch"], p["swap"]
        count = f(f"select i1 {f(f'icmp slt i64 {given}, 0')}, i64 %lanes, i64 {given}")
        factor = "" if out else splat_arg(p, v, "factor")
        apart = p["apart"] if planar else "0"
        vectors = f(f"sdiv i64 {f.add(count, str(v.lanes - 1))}, {v.lanes}")
        unswapped = f.sub(str(v.nbytes), swap)
        array, elements = ("%target", "%source") if out else ("%source", "%target")
        line = f.mul(vectors, str(v.element))
        with f.loop("0", rows) as row:
            there = f.offset(array, f.mul(row.i, pitch))
            here = f.offset(elements, f.mul(row.i, line))

            def body(first: str, rest: str | None) -> None:
                element = f.offset(here, f.mul(first, str(2 * v.size)))
                places = (f.offset(element, swap), f.offset(element, unswapped))
                if planar:
                    _planar(f, v, out, places, v.at(there, first), rest, apart, factor)
                else:
                    at = f.offset(there, f.mul(first, str(2 * v.size)))
                    _complex(f, v, out, places, at, rest, factor)

            parts_of(f, v, "0", count, body)

    return step_function(dtype, MOVE, write)


def _complex(
    f: Function,
    v: ComplexLanes,
    out: bool,
    places: tuple[str, str],
    there: str,
    rest: str | None,
    factor: str,
) -> None:
    far = f.offset(there, str(v.nbytes))
    masks = pair_masks(v, rest)
    if out:
        pair = interleaved(f, v, v.load(places[0]), v.load(places[1]))
        for value, place, mask in zip(pair, (there, far), masks, strict=True):
            store_part(f, v, value, place, mask)
        return
    loaded = [v.load(p, mask) for p, mask in zip((there, far), masks, strict=True)]
    for value, place in zip(parted(f, v, *loaded), places, strict=True):
        v.store(v.mul(value, factor), place)


def _planar(
    f: Function,
    v: ComplexLanes,
    out: bool,
    places: tuple[str, str],
    there: str,
    rest: str | None,
    apart: str,
    factor: str,
) -> None:
    mask = None if rest is None else v.mask(rest)
    has = f(f"icmp ne i64 {apart}, 0")
    far = f.offset(there, apart)
    if out:
        store_part(f, v, v.load(places[0]), there, mask)
        with f.when(has):
            store_part(f, v, v.load(places[1]), far, mask)
        return
    v.store(v.mul(v.load(there, mask), factor), places[0])
    imaginary = v.mul(v.load(far, mask), factor)
    zero = f"select i1 {has}, {v.type} {imaginary}, {v.type} zeroinitializer"
    v.store(f(zero), places[1])


@functools.cache
def turn_function(dtype: DType, out: bool, real: bool) -> int:
    """Rows of an array to the lanes of elements, one row for each lane, or back if `out`.

    The numbers are complex, or if `real` the imaginary parts are
    zero and dropped.
    """

    def write(f: Function, v: ComplexLanes, p: Params) -> None:
        count, pitch, swap = p["count"], p["pitch"], p["swap"]
        factor = "" if out else splat_arg(p, v, "factor")
        unswapped = f.sub(str(v.nbytes), swap)
        scalars = count if real else f.mul(count, "2")
        last = f.sub("%lanes", "1")
        rows = [f.mul(f.minimum(str(k), last), pitch) for k in range(v.lanes)]
        array, elements = ("%target", "%source") if out else ("%source", "%target")

        def body(first: str, rest: str | None) -> None:
            mask = None if rest is None else v.mask(rest)
            at = v.at(array, first)
            here = f.offset(elements, f.mul(first, str((2 if real else 1) * v.nbytes)))
            places = []
            for k in range(v.lanes):
                element = f.offset(here, str((k if real else k // 2) * v.element))
                imaginary = not real and k % 2
                places.append(f.offset(element, unswapped if imaginary else swap))
                if real and not out:
                    v.store("zeroinitializer", f.offset(element, unswapped))
            if not out:
                vectors = [v.load(f.offset(at, row), mask) for row in rows]
                for value, place in zip(squared(v, vectors), places, strict=True):
                    v.store(v.mul(value, factor), place)
                return
            vectors = squared(v, [v.load(place) for place in places])
            for k, value in enumerate(vectors):
                with f.when(f(f"icmp slt i64 {k}, %lanes")):
                    to = f.offset(at, f.mul(str(k), pitch))
                    store_part(f, v, value, to, mask)

        parts_of(f, v, "0", scalars, body)

    return step_function(dtype, TURN, write)
