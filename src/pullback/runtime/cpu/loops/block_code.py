"""Maps over many blocks of a few elements, such as small transposed matrices: a block is written
out, with its places compiled in, and the axes outside of it are walked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache

from pullback.compile.kernel.forms import Map, MultiMap
from pullback.compile.program.nest import Nest
from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.writer import Function, IRModule
from pullback.runtime.cpu.loops import tiny_code
from pullback.runtime.cpu.loops.nest import (
    TILE_PARAMETERS,
    Axes,
    StreamParams,
    Streams,
    each_line,
    walk,
)

__all__ = ["code", "inner_axes", "params", "short_axes"]
__tuning__ = ("LARGEST", "SHORT", "WORTH")

LARGEST = 64  # elements of a block: a few vectors, and code that compiles in milliseconds
SHORT = 16  # elements from which on the innermost axis fills vectors by itself
WORTH = 2048  # elements from which on code for one shape of blocks pays

Strides = tuple[int, ...]


def inner_axes(kernel: Map | MultiMap, nest: Nest) -> int:
    """How many of the innermost axes of a map are a block, or 0: an axis stays outside."""
    count = min(short_axes(nest), len(nest.shape) - 1)
    suits = count > 1 and tiny_code.is_little(kernel, math.prod(nest.shape[-count:]))
    return count if suits else 0


def short_axes(nest: Nest, times: int = 1) -> int:
    """How many of the innermost axes of a nest, which is walked so often, are a block: two at
    least, or 0.
    """
    shape = nest.shape
    if len(shape) < 2 or nest.size * times < WORTH or shape[-1] >= SHORT:
        return 0
    count = 0
    while count < len(shape) and math.prod(shape[-count - 1 :]) <= LARGEST:
        count += 1
    return count if count > 1 else 0


@cache
def params(arrays: int) -> Streams:
    """The params of such a kernel."""
    return Streams(arrays)


@lru_cache(jit.KEPT)
def code(
    kernel: Map | MultiMap, dtypes: tuple[DType, ...], shape: Strides, strides: tuple[Strides, ...]
) -> int:
    """The address of the kernel whose units are blocks; strides in a block are in bytes."""
    return jit.compile_ir(_source(kernel, dtypes, shape, strides), ["kernel"])["kernel"]


def _source(
    kernel: Map | MultiMap,
    dtypes: Sequence[DType],
    shape: Sequence[int],
    strides: Sequence[Sequence[int]],
) -> str:
    module = IRModule()
    f = Function(module, "@tile", TILE_PARAMETERS, qualifiers="internal ")
    streams = params(len(dtypes))
    pointers = StreamParams(f, streams).pointers()
    steps = Axes("%records", "0", len(dtypes)).strides(f, 0)
    pairs = zip(strides, dtypes, strict=True)
    elements = [tuple(s // d.itemsize for s in own) for own, d in pairs]

    def row(offsets: list[str], _: str) -> None:
        starts = [f.offset(p, o) for p, o in zip(pointers, offsets, strict=True)]
        with f.loop("0", "%length") as at:
            places = [f.offset(p, f.mul(at.i, s)) for p, s in zip(starts, steps, strict=True)]
            tiny_code.write_map(f, kernel, shape, elements, places)

    each_line(f, len(dtypes), row)
    f.finish()
    f = Function(module, "@kernel")
    walk(f, StreamParams(f, streams).axes(len(dtypes)), "%lo", "%hi", "null", "@tile")
    f.finish()
    return module.text()
