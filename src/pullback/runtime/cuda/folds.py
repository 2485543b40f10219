"""Reduce and Accumulate kernels as CUDA C, with the tree of the CPU: the same bits on both.

The tree is that of `order.tree`. Blocks are joined level by level: block b takes in block
b + 2**level where 2**(level + 1) divides b. The walks over it are in `fold_walks`.

    NAME_sequence (out, in_0 .., Nest<K> kept, Nest<K> reduced)
    NAME_rows     (out, partials, in_0 .., Nest<K> kept, Nest<K> reduced, groups, per_group)
    NAME_wide_W   (out, partials, in_0 .., store_0 .., Nest<K + S> kept, length, groups, per_group)
    NAME_small_W  (out, partials, in_0 .., Nest<K> kept, length, groups, per_group)
    NAME_columns_W(out, partials, in_0 .., store_0 .., Nest<K + S> kept, Steps<K + S> steps, length,
                   across, by_output, by_block)
    NAME_join     (out, partials, outputs, count)
    NAME_lanes    (out, partials, chains, outputs, blocks)
    NAME_merge    (out, next, partials, long long count)

K is the number of inputs, `kept` and `reduced` their axes; the output is dense. In place of `out`
there are several outputs if several reductions are one kernel. S is the number of arrays that it
stores beside. W says for each
input whether neighbours are read at once ("u"), one by one ("s") or are the same element ("z"),
in capitals if they are at the places of the first input of that letter, then how many of them a
thread has. `sequence` takes any grid.

A thread of `rows` and `wide` has a lane of a block of the tree, or some that lie side by
side, and a team of threads all its lanes. A unit is one output and a group of `per_group` blocks, a
power of two of at most as many as a thread block has teams, which does as many units as fit.
A thread block of `small` has one unit: its threads make elements, which teams of them fold.
A thread of `columns` has a lane of a block of the tree, of one output or of some side by side;
accumulator b of output i is at `i * by_output + b * by_block`. With one group, or block, these
write outputs, else accumulators.
These `merge` joins: a thread block takes up to MERGE of the `count` accumulators of an output,
which follow each other, and writes the output if that is all of them. `join` has a thread for each
output, whose at most JOINED accumulators are as far apart as there are outputs. `lanes` joins the
LANES accumulators of each block of the tree, output by output in `chains`, and up to JOINED blocks;
it writes outputs if that is all of them, else accumulators for `join` or `merge`. Running folds are
in `scans`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pullback.compile.kernel.forms import Accumulate
from pullback.ir.scalar import Expr
from pullback.runtime.cuda.fold_kernels import Fold, results_of, stores_of
from pullback.runtime.cuda.fold_walks import FOLD, small_blocks, walk_code
from pullback.runtime.cuda.kernels import (
    HEAVY,
    NEST,
    arguments,
    leaf_of,
    name_of,
    parts,
    stored,
    weight,
)
from pullback.runtime.cuda.printer import Source, emit, register, storage
from pullback.runtime.cuda.scans import LINE, scan_code

__all__ = [
    "accumulator_bytes",
    "accumulator_size",
    "fold_code",
    "fold_functions",
    "lane_width",
    "usual_walks",
]

VECTOR_BYTES = 16  # of the widest load that a thread has
MOST_LANES = 8  # side by side, whose accumulators a thread has in registers


def accumulator_bytes(kernel: Fold) -> int:
    """Room for the accumulators of one output: at least the size of the struct."""
    return 8 * len(kernel.init)


def accumulator_size(kernel: Fold) -> int:
    """The size of the struct of accumulators."""
    end, widest = 0, 1
    for e in kernel.init:
        size = e.dtype.itemsize
        end, widest = -(-end // size) * size + size, max(widest, size)
    return -(-end // widest) * widest


def _cost(kernel: Fold) -> int:
    """The instructions of an element."""
    stores = [e for _, body in stores_of(kernel) for e in body]
    return weight((*kernel.element, *kernel.combine, *stores))


def lane_width(kernel: Fold) -> int:
    """The lanes, a power of two, that a thread has side by side."""
    if not kernel.inputs or _cost(kernel) >= HEAVY:
        return 1
    widest = max(d.itemsize for d in (*kernel.inputs, *(d for d, _ in stores_of(kernel))))
    return max(1, min(VECTOR_BYTES // widest, MOST_LANES // len(kernel.init)))


def usual_walks(kernel: Fold) -> tuple[str, ...]:
    """The walks over any arrays, and those over dense ones."""
    if isinstance(kernel, Accumulate):
        return ("scan", "lines_turned", "lines_straight")
    every = "u" * len(kernel.inputs)
    small = (f"small_{every}",) if every and small_blocks(kernel) else ()
    wide, columns = (f"{walk}_{every}{lane_width(kernel)}" for walk in ("wide", "columns"))
    return ("sequence", "rows", wide, *small, columns, "join", "merge")


def fold_code(source: Source, kernel: Fold, walks: Sequence[str] = ()) -> str:
    """Add these walks of a Reduce or Accumulate kernel, the usual ones if none, to `source`.

    Returns its name.
    """
    name = name_of(kernel)
    source.add("pb_nest", NEST)
    source.add("pb_fold", FOLD)
    if name not in source:
        functions = fold_functions(source, kernel, name)
        if kernel.inputs:
            functions.append(_element(source, kernel, name))
        source.add(name, "\n".join(functions))
    for walk in walks or usual_walks(kernel):
        if isinstance(kernel, Accumulate):
            source.add("pb_line", LINE)
            source.add(f"{name}_{walk}", scan_code(kernel, name, walk))
        else:
            source.add(f"{name}_{walk}", walk_code(kernel, name, walk, _cost(kernel)))
    return name


def fold_functions(source: Source, kernel: Fold, name: str) -> list[str]:
    """The accumulators as a struct, and what is done with them as functions."""
    dtypes = [e.dtype for e in kernel.init]
    members = " ".join(f"{register(d)} x{k};" for k, d in enumerate(dtypes))
    acc = f"{name}_acc"
    return [
        f"struct {acc} {{ {members} }};",
        _function(source, f"{acc} {name}_init()", kernel.init, acc),
        _function(
            source, f"{acc} {name}_combine(const {acc} a, const {acc} b)", kernel.combine, acc
        ),
        _finish(source, kernel, name),
        *_shuffles(kernel, name),
    ]


def _element(source: Source, kernel: Fold, name: str) -> str:
    """The accumulators of an element; what is computed beside goes to references."""
    stores = stores_of(kernel)
    roots = [parts(body, dtype) for dtype, body in stores]
    read = leaf_of(kernel.inputs, "j")
    lines, names = emit(source, [*kernel.element, *(e for own in roots for e in own)], read)
    rest = iter(names[len(kernel.element) :])
    kept = [
        stored(f"o{k}", dtype, [next(rest) for _ in own])
        for k, ((dtype, _), own) in enumerate(zip(stores, roots, strict=True))
    ]
    given = "".join(f", {storage(d)}& o{k}" for k, (d, _) in enumerate(stores))
    head = f"{name}_element({arguments(kernel.inputs)}const long long j{given})"
    made = f"  return {name}_acc{{{', '.join(names[: len(kernel.element)])}}};"
    return "\n".join([f"PB_DEVICE {name}_acc {head} {{", *lines, *kept, made, "}"])


def _function(source: Source, head: str, roots: Sequence[Expr], acc: str) -> str:
    """A function that returns accumulators."""
    lines, names = emit(source, roots, _member)
    return "\n".join(
        [f"PB_DEVICE {head} {{", *lines, f"  return {acc}{{{', '.join(names)}}};", "}"]
    )


def _member(e: Expr) -> str:
    side, position = e.value  # type: ignore[misc]
    return f"{side}.x{position}"


def _finish(source: Source, kernel: Fold, name: str) -> str:
    results = results_of(kernel)
    roots = [parts(body, dtype) for dtype, body in results]
    lines, names = emit(source, [e for own in roots for e in own], _member)
    outs = ", ".join(f"{storage(d)}& out{k}" for k, (d, _) in enumerate(results))
    rest = iter(names)
    ends = [
        stored(f"out{k}", dtype, [next(rest) for _ in own])
        for k, ((dtype, _), own) in enumerate(zip(results, roots, strict=True))
    ]
    head = f"PB_DEVICE void {name}_finish(const {name}_acc a, {outs}) {{"
    return "\n".join([head, *lines, *ends, "}"])


def _shuffles(kernel: Fold, name: str) -> list[str]:
    """Functions that read the accumulators of the thread that is `by` further, or of the one of a
    number, among `width` threads.
    """
    given = f"const {name}_acc& a"
    heads = {
        f"{name}_down({given}, const int by, const int width)": "down_sync({}, by, width)",
        f"{name}_of({given}, const int from, const int width)": "sync({}, from, width)",
    }
    found = []
    for head, call in heads.items():
        values = []
        for k, e in enumerate(kernel.init):
            wide = "int" if e.dtype.itemsize < 4 else register(e.dtype)
            moved = "__shfl_" + call.format(f"0xffffffffu, ({wide})a.x{k}")
            values.append(f"({register(e.dtype)}){moved}")
        found.append(f"PB_DEVICE {name}_acc {head} {{ return {name}_acc{{{', '.join(values)}}}; }}")
    return found
