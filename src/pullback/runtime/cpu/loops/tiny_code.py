"""Maps and short reductions of a few elements: their places are compiled in, so nothing loops.

For compiled graphs, whose shapes do not change: a step of a loop is often made of such kernels.
`write_map` is what `block_code` makes of each of many such blocks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache

from pullback.compile.kernel.forms import Map, MultiMap, Reduce
from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr
from pullback.ir.scalar_walks import inline_nodes
from pullback.runtime.cpu import native
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.printer import convert, emit, vector_width
from pullback.runtime.cpu.llvm.records import NamedParams, Record
from pullback.runtime.cpu.llvm.writer import Function, IRModule, memory_type, of_width
from pullback.runtime.cpu.loops.tree_code import FoldWriter

__all__ = ["is_little", "map_stage", "map_suits", "reduce_stage", "reduce_suits", "write_map"]
__tuning__ = ("MOST", "MOST_NODES", "MOST_SOURCES")

MOST = 32  # elements of an output, or some more if there is little to do for them
MOST_NODES = 512  # vector operations of a kernel, written out
MOST_SOURCES = 4  # vectors that one is put together from; of more, elements are read one by one

Offsets = tuple[int, ...]
Strides = tuple[int, ...]


@cache
def _params(arrays: int) -> Record:
    return Record("array[arrays]", arrays=arrays)


def map_suits(kernel: Map | MultiMap, shape: Sequence[int]) -> bool:
    """Whether a map over `shape` is small enough."""
    size = math.prod(shape)
    return 0 < size <= MOST or (0 < size <= 4 * MOST and is_little(kernel, size))


def is_little(kernel: Map | MultiMap, size: int) -> bool:
    """Whether so many elements are little to do, written out."""
    bodies = kernel.bodies if isinstance(kernel, MultiMap) else (kernel.body,)
    nodes = len(inline_nodes([e for body in bodies for e in body]))
    return nodes * -(-size // 16) <= MOST_NODES // 4


def reduce_suits(kernel: Reduce, kept: int, reduced: int) -> bool:
    """Whether a reduction in sequence of `reduced` elements each is small enough."""
    nodes = len(inline_nodes((*kernel.element, *kernel.combine)))
    return 0 < kept <= MOST and reduced * nodes * -(-kept // 16) <= MOST_NODES


def map_stage(
    kernel: Map | MultiMap,
    shape: Sequence[int],
    slots: Sequence[int],
    strides: Sequence[Sequence[int]],
) -> native.Stage:
    """A map of arrays at `slots`, outputs first, with element strides over `shape`."""
    code = _map_code(kernel, tuple(shape), tuple(tuple(s) for s in strides))
    return native.Stage(code, 1, 1, _params(len(slots)).packed(array=slots))


def reduce_stage(
    kernel: Reduce,
    kept: Sequence[int],
    reduced: Sequence[int],
    slots: Sequence[int],
    strides: Sequence[Sequence[int]],
) -> native.Stage:
    """A reduction to the dense output `slots[0]`; strides as in `fold_stages.reduce_stages`."""
    code = _reduce_code(kernel, tuple(kept), tuple(reduced), tuple(tuple(s) for s in strides))
    return native.Stage(code, 1, 1, _params(len(slots)).packed(array=slots))


@lru_cache(jit.KEPT)
def _map_code(kernel: Map | MultiMap, shape: Strides, strides: tuple[Strides, ...]) -> int:
    module = IRModule()
    f = Function(module, "@kernel")
    write_map(f, kernel, shape, strides, _pointers(f, len(strides)))
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


def write_map(
    f: Function,
    kernel: Map | MultiMap,
    shape: Sequence[int],
    strides: Sequence[Sequence[int]],
    pointers: Sequence[str],
) -> None:
    """The code of a map of arrays at `pointers`, outputs first; strides are in elements."""
    bodies = kernel.bodies if isinstance(kernel, MultiMap) else (kernel.body,)
    outputs = kernel.outputs if isinstance(kernel, MultiMap) else (kernel.output,)
    roots = [e for body in bodies for e in body]
    dtypes = (*outputs, *kernel.inputs)
    places = [_places(shape, s, d.itemsize) for s, d in zip(strides, dtypes, strict=True)]
    count, widest = len(outputs), vector_width(roots, dtypes)
    sources = [
        _Source(f, d, p, at, widest)
        for d, p, at in zip(dtypes[count:], pointers[count:], places[count:], strict=True)
    ]
    for first, last, width in _chunks(math.prod(shape), widest):
        own = [p[first:last] for p in places]
        arrays = list(zip(sources, own[count:], strict=True))
        leaf = _leaf(f, arrays, tuple(range(first, last)), width)
        values = iter(emit(f, roots, width, leaf))
        for dtype, pointer, at, body in zip(outputs, pointers, own, bodies, strict=False):
            parts = [convert(f, next(values), e.dtype, dtype.real, width) for e in body]
            _store(f, dtype, pointer, at, parts, width)


@lru_cache(jit.KEPT)
def _reduce_code(
    kernel: Reduce, kept: Strides, reduced: Strides, strides: tuple[Strides, ...]
) -> int:
    module, fold = IRModule(), FoldWriter(kernel)
    f = Function(module, "@kernel")
    target, *pointers = _pointers(f, 1 + len(kernel.inputs))
    size, output = math.prod(kept), kernel.output
    pairs = list(zip(strides, kernel.inputs, strict=True))
    outer = [_places(kept, s[: len(kept)], d.itemsize) for s, d in pairs]
    inner = [_places(reduced, s[len(kept) :], d.itemsize) for s, d in pairs]
    roots = (*kernel.element, *kernel.combine, *kernel.finish)
    for first, last, width in _chunks(size, vector_width(roots, kernel.inputs)):
        total = fold.init(f, width)
        for j in range(math.prod(reduced)):
            moved = [
                tuple(p + q[j] for p in o[first:last]) for o, q in zip(outer, inner, strict=True)
            ]
            sources = [
                _Source(f, d, p, at, width)
                for d, p, at in zip(kernel.inputs, pointers, moved, strict=True)
            ]
            arrays = list(zip(sources, moved, strict=True))
            leaf = _leaf(f, arrays, (j,) * (last - first), width)
            total = fold.step(f, total, emit(f, kernel.element, width, leaf), width)
        at = tuple(k * output.itemsize for k in range(first, last))
        _store(f, output, target, at, fold.finish(f, total, width), width)
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


def _pointers(f: Function, count: int) -> list[str]:
    p = NamedParams(f, _params(count))
    return [p.pointer(("array", k)) for k in range(count)]


def _places(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Offsets:
    """The byte offsets of all elements, in row-major order."""
    steps = [[i * s * itemsize for i in range(n)] for n, s in zip(shape, strides, strict=True)]
    return tuple(sum(at) for at in itertools.product(*steps))


def _chunks(size: int, widest: int) -> Iterable[tuple[int, int, int]]:
    """First and last element of each vector, and its lanes: a power of two."""
    for first in range(0, size, widest):
        count = min(widest, size - first)
        yield first, first + count, 1 << (count - 1).bit_length()


class _Source:
    """An array that is read, where its elements are, and vectors of so many lanes at most."""

    def __init__(self, f: Function, dtype: DType, pointer: str, offsets: Offsets, lanes: int):
        self._f, self.dtype, self._pointer, self._lanes = f, dtype, pointer, lanes
        size, places = dtype.itemsize, sorted(set(offsets))
        whole = not dtype.is_complex and places[-1] - places[0] == (len(places) - 1) * size
        self._run = (places[0], len(places)) if whole else None

    def load(self, part: int, offsets: Offsets, width: int) -> str:
        """A part of the elements at these offsets; lanes without one repeat the last."""
        f, dtype = self._f, self.dtype.real
        offsets = tuple(o + part * dtype.itemsize for o in offsets)
        size, kind = dtype.itemsize, memory_type(dtype)
        if width > 1 and len(offsets) == width and _is_dense(offsets, size):
            place = f.offset(self._pointer, str(offsets[0]))
            value = f(f"load {of_width(kind, width)}, ptr {place}, align {size}")
        else:
            value = self._turned(offsets, width) or self._gathered(offsets, width)
        if dtype is not dt.bool_:
            return value
        zero = "0" if width == 1 else "zeroinitializer"
        return f(f"icmp ne {of_width(kind, width)} {value}, {zero}")

    def _turned(self, offsets: Offsets, width: int) -> str | None:
        """Elements of a few vectors that lie side by side, in another order."""
        if self._run is None or width == 1 or len(set(offsets)) == 1:
            return None
        first, count = self._run
        f, lanes, size = self._f, self._lanes, self.dtype.itemsize
        places = [(o - first) // size for o in _padded(offsets, width)]
        used = sorted({p // lanes for p in places})
        if len(used) > MOST_SOURCES:
            return None
        kind = memory_type(self.dtype)
        vector, made = of_width(kind, lanes), ""
        for number, k in enumerate(used):
            own = min(lanes, count - k * lanes)
            place = f.offset(self._pointer, str(first + k * lanes * size))
            value = f(f"load {of_width(kind, own)}, ptr {place}, align {size}")
            if own == 1:
                value = f.splat(value, kind, lanes)
            elif own < lanes:
                value = _shuffled(f, of_width(kind, own), value, "poison", range(own), lanes)
            if number == 0:
                order = [p % lanes if p // lanes == k else None for p in places]
                made = _shuffled(f, vector, value, "poison", order, lanes)
            else:
                order = [
                    lanes + p % lanes if p // lanes == k else lane if p // lanes < k else None
                    for lane, p in enumerate(places)
                ]
                made = _shuffled(f, vector, made, value, order, lanes)
        return made if width == lanes else _shuffled(f, vector, made, "poison", range(width), width)

    def _gathered(self, offsets: Offsets, width: int) -> str:
        """Elements one by one."""
        f, size, kind = self._f, self.dtype.real.itemsize, memory_type(self.dtype.real)
        ones = {
            o: f(f"load {kind}, ptr {f.offset(self._pointer, str(o))}, align {size}")
            for o in dict.fromkeys(offsets)
        }
        value = ones[offsets[0]]
        if width > 1 and len(ones) == 1:
            return f.splat(value, kind, width)
        if width > 1:
            vector, value = of_width(kind, width), "poison"
            for k, o in enumerate(_padded(offsets, width)):
                value = f(f"insertelement {vector} {value}, {kind} {ones[o]}, i64 {k}")
        return value


def _shuffled(
    f: Function, vector: str, x: str, y: str, order: Iterable[int | None], width: int
) -> str:
    """`width` lanes of x, followed by those of y, in an order; None, and what it lacks: any."""
    lanes = ["i32 poison" if k is None else f"i32 {k}" for k in order]
    lanes += ["i32 poison"] * (width - len(lanes))
    mask = f"<{width} x i32> <{', '.join(lanes)}>"
    return f(f"shufflevector {vector} {x}, {vector} {y}, {mask}")


def _leaf(
    f: Function, arrays: list[tuple[_Source, Offsets]], numbers: Offsets, width: int
) -> Callable[[Expr], str]:
    """What the expressions read: arrays with the offsets in them, and the index."""
    loaded: dict[tuple[int, int], str] = {}

    def leaf(e: Expr) -> str:
        if e.op == "index":
            values = _padded(numbers, width)
            return str(values[0]) if width == 1 else f"<{', '.join(f'i64 {v}' for v in values)}>"
        position, part = e.value  # type: ignore[misc]
        if (position, part) not in loaded:
            source, offsets = arrays[position]
            loaded[position, part] = source.load(part, offsets, width)
        return loaded[position, part]

    return leaf


def _padded(values: Sequence[int], width: int) -> list[int]:
    return [*values, *[values[-1]] * (width - len(values))]


def _is_dense(offsets: Offsets, itemsize: int) -> bool:
    return all(o == offsets[0] + k * itemsize for k, o in enumerate(offsets))


def _store(
    f: Function, dtype: DType, pointer: str, offsets: Offsets, parts: Sequence[str], width: int
) -> None:
    """Writes the parts of the elements that have an offset."""
    real = dtype.real
    size, kind = real.itemsize, memory_type(real)
    vector = of_width(kind, width)
    for p, value in enumerate(parts):
        if real is dt.bool_:
            value = f(f"zext {of_width('i1', width)} {value} to {vector}")
        dense = len(parts) == 1 and _is_dense(offsets, size)
        for first, count in _runs(len(offsets), dense):
            place = f.offset(pointer, str(offsets[first] + p * size))
            some = _part(f, value, kind, width, first, count)
            f.do(f"store {of_width(kind, count)} {some}, ptr {place}, align {size}")


def _runs(count: int, dense: bool) -> Iterable[tuple[int, int]]:
    """Start and length of what is stored at once: powers of two of a dense array."""
    first = 0
    while first < count:
        length = 1 << ((count - first).bit_length() - 1) if dense else 1
        yield first, length
        first += length


def _part(f: Function, value: str, kind: str, width: int, first: int, count: int) -> str:
    """Lanes `first` to `first + count` of a vector."""
    if count == width:
        return value
    vector = of_width(kind, width)
    if count == 1:
        return f(f"extractelement {vector} {value}, i64 {first}")
    mask = ", ".join(f"i32 {k}" for k in range(first, first + count))
    return f(f"shufflevector {vector} {value}, {vector} poison, <{count} x i32> <{mask}>")
