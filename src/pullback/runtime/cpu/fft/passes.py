"""Passes over the elements of a transform; an element is a vector of complex numbers.

Each function is called as `f(args, source, target, lanes, part)`: `args` are a record of its own,
whose tables are addresses, and nobody needs the source afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from pullback.compile.kernel.codelets import ComplexPair, transform
from pullback.compile.kernel.fft_order import FINE_ROWS
from pullback.core.dtypes import DType
from pullback.runtime.cpu.fft.codelets import ComplexLanes
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.records import Params, Record
from pullback.runtime.cpu.llvm.vectors import squared
from pullback.runtime.cpu.llvm.writer import Function, IRModule

__all__ = ["PARAMETERS", "PASS", "TWIST", "pass_function", "step_function", "twist_function"]

PARAMETERS = (
    ("ptr", "%args"), ("ptr", "%source"), ("ptr", "%target"), ("i64", "%lanes"), ("i64", "%part"),
)  # fmt: skip


# `roots`: a table, unless nothing is turned.
PASS = Record("", "groups span roots")
# `across`: vectors of a row; steps count elements from column to column, and from a block of rows
# to the next; `pitch`: vectors of a row of roots.
TWIST = Record("", "rows across column_step block_step roots fine_roots pitch")


def step_function(
    dtype: DType, record: Record, write: Callable[[Function, ComplexLanes, Params], None]
) -> int:
    """The address of a compiled step of a transform, whose args are those of the record."""
    module = IRModule()
    f = Function(module, "@step", PARAMETERS)
    write(f, ComplexLanes(f, dtype), Params(f, record, "%args"))
    f.finish()
    return jit.compile_ir(module.text(), ["step"])["step"]


@functools.cache
def pass_function(dtype: DType, radix: int, turned: bool) -> int:
    """Transforms of `radix` points, of m groups and the span s.

    The points of transform (p, q) are `source[q + s (p + m k)]`, its results are
    `target[q + s (radix p + j)]`, times root j of group p if `turned`.
    """

    def write(f: Function, v: ComplexLanes, p: Params) -> None:
        groups, span = p["groups"], p["span"]
        table = p.address("roots") if turned else "null"
        step = f.mul(span, str(v.element))
        stride = f.mul(step, groups)
        with f.loop("0", groups) as group:
            first = f.offset("%source", f.mul(group.i, step))
            last = f.offset("%target", f.mul(f.mul(group.i, str(radix)), step))
            here = f.offset(table, f.mul(group.i, str((radix - 1) * 2 * v.size)))
            with f.loop("0", step, str(v.element)) as q:
                start, end = f.offset(first, q.i), f.offset(last, q.i)
                points = [v.fetch(f.offset(start, f.mul(str(k), stride))) for k in range(radix)]
                for j, value in enumerate(transform(v, points)):
                    if turned and j:
                        root = v.spread(f.offset(here, str((j - 1) * 2 * v.size)))
                        value = v.times(value, root)
                    v.keep(value, f.offset(end, f.mul(str(j), step)))

    return step_function(dtype, PASS, write)


@functools.cache
def twist_function(dtype: DType, fine: bool) -> int:
    """Turns rows of vectors into columns of vectors, times roots.

    The roots lie as the elements do. If `fine` there is one column, `part` is its place in the
    tables, and an element is multiplied by a product of roots: that of row r // 16 and the fine one
    of row r % 16.
    """

    def write(f: Function, v: ComplexLanes, p: Params) -> None:
        rows, across = p["rows"], p["across"]
        column_step, block_step = p["column_step"], p["block_step"]
        tables = [p.address("roots"), p.address("fine_roots")]
        pitch = p["pitch"]
        size, lanes = str(v.element), str(v.lanes)
        last = f.sub(rows, "1")

        def at(table: str, row: str, column: str) -> ComplexPair:
            return v.fetch(f.offset(table, f.mul(f.add(f.mul(row, pitch), column), size)))

        with f.loop("0", rows, lanes) as block, f.loop("0", across) as column:
            number = f(f"udiv i64 {block.i}, {lanes}")
            turned: list[ComplexPair] = []
            for k in range(v.lanes):
                row = f.minimum(f.add(block.i, str(k)), last)
                place = f.mul(f.add(f.mul(row, across), column.i), size)
                value = v.fetch(f.offset("%source", place))
                if fine:
                    coarse, rest = f.divmod(f.add(block.i, str(k)), str(FINE_ROWS))
                    coarse = f.minimum(coarse, f(f"udiv i64 {last}, {FINE_ROWS}"))
                    root = v.times(at(tables[0], coarse, "%part"), at(tables[1], rest, "%part"))
                    value = v.times(value, root)
                else:
                    made = v.times(value, at(tables[0], row, column.i))
                    if k == 0:  # the first row is left as it is, like in a pass
                        first = f(f"icmp eq i64 {block.i}, 0")
                        made = ComplexPair(
                            *(
                                f(f"select i1 {first}, {v.type} {x}, {v.type} {y}")
                                for x, y in zip(value, made, strict=True)
                            )
                        )
                    value = made
                turned.append(value)
            parts = [squared(v, [getattr(t, name) for t in turned]) for name in ("re", "im")]
            to = f.offset("%target", f.mul(f.mul(number, block_step), size))
            base = f.mul(column.i, lanes)
            for c, (re, im) in enumerate(zip(*parts, strict=True)):
                place = f.mul(f.mul(f.add(base, str(c)), column_step), size)
                v.keep(ComplexPair(re, im), f.offset(to, place))

    return step_function(dtype, TWIST, write)
