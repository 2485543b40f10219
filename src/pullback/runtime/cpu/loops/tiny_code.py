"""Maps and short reductions of a few elements: their places are compiled in, so nothing loops.

For compiled graphs, whose shapes do not change: a step of a loop is often made of such kernels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from pullback.compile.kernel.forms import Map, MultiMap, Reduce
from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr
from pullback.ir.scalar_walks import inline_nodes
from pullback.runtime.cpu import native
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.printer import convert, emit, vector_width
from pullback.runtime.cpu.llvm.writer import Function, IRModule, memory_type, of_width
from pullback.runtime.cpu.loops.tree_code import FoldWriter

__all__ = ["map_stage", "map_suits", "reduce_stage", "reduce_suits"]
__tuning__ = ("MOST", "MOST_NODES")

MOST = 32  # elements of an output, or some more if there is little to do for them
MOST_NODES = 512  # vector operations of a kernel, written out

Offsets = tuple[int, ...]
Strides = tuple[int, ...]


def map_suits(kernel: Map | MultiMap, shape: Sequence[int]) -> bool:
    """Whether a map over `shape` is small enough."""
    size = math.prod(shape)
    if not MOST < size <= 4 * MOST:
        return 0 < size <= MOST
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
    return native.Stage(code, 1, 1, tuple(slots))


def reduce_stage(
    kernel: Reduce,
    kept: Sequence[int],
    reduced: Sequence[int],
    slots: Sequence[int],
    strides: Sequence[Sequence[int]],
) -> native.Stage:
    """A reduction to the dense output `slots[0]`; strides as in `fold_stages.reduce_stages`."""
    code = _reduce_code(kernel, tuple(kept), tuple(reduced), tuple(tuple(s) for s in strides))
    return native.Stage(code, 1, 1, tuple(slots))


@lru_cache(jit.KEPT)
def _map_code(kernel: Map | MultiMap, shape: Strides, strides: tuple[Strides, ...]) -> int:
    bodies = kernel.bodies if isinstance(kernel, MultiMap) else (kernel.body,)
    outputs = kernel.outputs if isinstance(kernel, MultiMap) else (kernel.output,)
    roots = [e for body in bodies for e in body]
    dtypes = (*outputs, *kernel.inputs)
    module = IRModule()
    f = Function(module, "@kernel")
    pointers = _pointers(f, len(dtypes))
    places = [_places(shape, s, d.itemsize) for s, d in zip(strides, dtypes, strict=True)]
    for first, last, width in _chunks(math.prod(shape), vector_width(roots, dtypes)):
        own = [p[first:last] for p in places]
        count = len(outputs)
        arrays = list(zip(dtypes[count:], pointers[count:], own[count:], strict=True))
        leaf = _leaf(f, arrays, tuple(range(first, last)), width)
        values = iter(emit(f, roots, width, leaf))
        for dtype, pointer, at, body in zip(outputs, pointers, own, bodies, strict=False):
            parts = [convert(f, next(values), e.dtype, dtype.real, width) for e in body]
            _store(f, dtype, pointer, at, parts, width)
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


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
            arrays = list(zip(kernel.inputs, pointers, moved, strict=True))
            leaf = _leaf(f, arrays, (j,) * (last - first), width)
            total = fold.step(f, total, emit(f, kernel.element, width, leaf), width)
        at = tuple(k * output.itemsize for k in range(first, last))
        _store(f, output, target, at, fold.finish(f, total, width), width)
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


def _pointers(f: Function, count: int) -> list[str]:
    slots = [f.int_at("%params", k) for k in range(count)]
    return [f(f"load ptr, ptr {f.element('%ptrs', 'ptr', s)}") for s in slots]


def _places(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Offsets:
    """The byte offsets of all elements, in row-major order."""
    steps = [[i * s * itemsize for i in range(n)] for n, s in zip(shape, strides, strict=True)]
    return tuple(sum(at) for at in itertools.product(*steps))


def _chunks(size: int, widest: int) -> Iterable[tuple[int, int, int]]:
    """First and last element of each vector, and its lanes: a power of two."""
    for first in range(0, size, widest):
        count = min(widest, size - first)
        yield first, first + count, 1 << (count - 1).bit_length()


def _leaf(
    f: Function, arrays: list[tuple[DType, str, Offsets]], numbers: Offsets, width: int
) -> Callable[[Expr], str]:
    """What the expressions read: arrays as (dtype, pointer, offsets), and the index."""
    loaded: dict[tuple[int, int], str] = {}

    def leaf(e: Expr) -> str:
        if e.op == "index":
            values = _padded(numbers, width)
            return str(values[0]) if width == 1 else f"<{', '.join(f'i64 {v}' for v in values)}>"
        position, part = e.value  # type: ignore[misc]
        if (position, part) not in loaded:
            dtype, pointer, offsets = arrays[position]
            moved = tuple(o + part * dtype.real.itemsize for o in offsets)
            loaded[position, part] = _load(f, dtype.real, pointer, moved, width)
        return loaded[position, part]

    return leaf


def _padded(values: Sequence[int], width: int) -> list[int]:
    return [*values, *[values[-1]] * (width - len(values))]


def _is_dense(offsets: Offsets, itemsize: int) -> bool:
    return all(o == offsets[0] + k * itemsize for k, o in enumerate(offsets))


def _load(f: Function, dtype: DType, pointer: str, offsets: Offsets, width: int) -> str:
    """Elements of a real dtype as a register; lanes without an offset repeat the last one."""
    size, kind = dtype.itemsize, memory_type(dtype)
    vector = of_width(kind, width)
    if width > 1 and len(offsets) == width and _is_dense(offsets, size):
        value = f(f"load {vector}, ptr {f.offset(pointer, str(offsets[0]))}, align {size}")
    else:
        ones = {
            o: f(f"load {kind}, ptr {f.offset(pointer, str(o))}, align {size}")
            for o in dict.fromkeys(offsets)
        }
        value = ones[offsets[0]]
        if width > 1 and len(ones) == 1:
            value = f.splat(value, kind, width)
        elif width > 1:
            value = "poison"
            for k, o in enumerate(_padded(offsets, width)):
                value = f(f"insertelement {vector} {value}, {kind} {ones[o]}, i64 {k}")
    if dtype is not dt.bool_:
        return value
    return f(f"icmp ne {vector} {value}, {'0' if width == 1 else 'zeroinitializer'}")


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
