"""Reduce and Accumulate kernels as WGSL, with the tree of the CPU: see `order.tree`.

    sequence   one thread for each output, for few elements
    rows       a unit is one output and a group of blocks of the tree, a power of two of them; a
               workgroup has max(1, 16 / blocks) units. With one group it writes outputs, else
               accumulators
    merge      a workgroup joins up to MERGE accumulators of one output
    scan       a running fold: one thread for each kept position

Blocks are joined level by level: block b takes in block b + 2**level where 2**(level + 1)
divides b.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from pullback.compile.kernel.forms import Accumulate, Reduce
from pullback.compile.kernel.order import BLOCK, LANES, SMALL
from pullback.compile.program.nest import Nest, coalesce
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Shape, Strides
from pullback.core.avals import dense_strides
from pullback.ir.scalar import Expr, cast
from pullback.runtime.webgpu.arithmetic import double_needs
from pullback.runtime.webgpu.maps import leaf_of, put
from pullback.runtime.webgpu.nests import MAIN, THREADS, locate, nest_words
from pullback.runtime.webgpu.printer import Source, emit, item, loaded, register, stored
from pullback.runtime.webgpu.stages import At, Binding, Dispatch, linear_groups, stage

__all__ = ["accumulate_stages", "reduce_stages"]

HALVES = THREADS // LANES  # blocks of the tree that a workgroup folds side by side
MAX_GROUP = 64  # blocks that a workgroup folds at most: one slot of shared memory for each
MERGE = 256  # accumulators that a workgroup joins: with 64 bytes each they fill its memory
ENOUGH_GROUPS = 256  # workgroups that fill a device: two for each processor of a large GPU
AHEAD = 8  # elements that a thread reads before it takes the first
MOST_STATEMENTS = 24  # of an element that are worth to be written out so often


class _AccumulatorWriter:
    """The accumulators of a kernel as a struct, and its four expressions as functions."""

    def __init__(self, kernel: Reduce, finishes: bool = True, plain: bool = False):
        self.kernel, self.source, self.plain = kernel, Source(), plain
        self.dtypes = [e.dtype for e in kernel.init]
        self.count = len(kernel.inputs)
        self.statements = self.calls = 0  # of what is done for an element; float64 is many
        self.chains = False  # whether there are loops over chains of float64
        members = ", ".join(f"x{k}: {register(d)}" for k, d in enumerate(self.dtypes))
        self.parts = [f"struct Acc {{ {members} }}"]
        self.function("fn pb_init() -> Acc", kernel.init)
        given = [f"a{k}: {'vec2<u32>' if d.itemsize == 8 else 'u32'}"
                 for k, d in enumerate(kernel.inputs)]  # fmt: skip
        self.function(f"fn pb_element({', '.join([*given, 'j: u32'])}) -> Acc", kernel.element)
        self.function("fn pb_combine(a: Acc, b: Acc) -> Acc", kernel.combine)
        if not finishes:
            return
        finish = [cast(e, kernel.output.real) for e in kernel.finish]
        lines, names = emit(self.source, finish, _member, plain)
        self.parts += ["fn pb_finish(a: Acc, at: u32) {", *lines,
                       "  " + put(0, "at", kernel.output, names), "}"]  # fmt: skip

    def function(self, head: str, roots: Sequence[Expr]) -> None:
        read = leaf_of(self.kernel.inputs, "j")

        def leaf(e: Expr) -> str:
            return _member(e) if e.op == "acc" else read(e)

        lines, names = emit(self.source, roots, leaf, self.plain)
        self.statements += sum(20 if "f64_" in line else 1 for line in lines)
        self.calls += sum("_exact(" in line for line in lines)
        self.chains |= any("pb_code_" in line for line in lines)
        self.parts += [f"{head} {{", *lines, f"  return Acc({', '.join(names)});", "}"]

    def fold(self, rank: int, first: int, array: int) -> None:
        """Add `pb_fold`, which takes element j of the reduced axes into an accumulator.

        The arrays of inputs are from `array` on, the words of the reduced axes from `first` on.
        """
        self.streams = rank, first, array
        starts = ", ".join(f"s{k}: u32" for k in range(self.count))
        reads, names = self.reads("j", "o")
        self.parts += [
            f"fn pb_fold(a: Acc, {starts}, j: u32) -> Acc {{",
            *reads,
            f"  return pb_combine(a, pb_element({', '.join([*names, 'j'])}));",
            "}",
        ]

    def reads(self, j: str, name: str) -> tuple[list[str], list[str]]:
        """Statements that read element `j`, and the names of what was read."""
        rank, first, array = self.streams
        places = [f"{name}{k}" for k in range(self.count)]
        lines = [locate(rank, places, first, j)]
        lines += [f"  let {p}_x = load{array + k}(s{k} + {p});" for k, p in enumerate(places)]
        return lines, [f"{p}_x" for p in places]

    def ahead(self, end: str, step: int, count: int) -> list[str]:
        """Statements that take elements j, j + step and so on into `a`, up to `end`: `count` of
        them are read before the first is taken, so that the reads are under way together.
        """
        starts = ", ".join(f"s{k}" for k in range(self.count))
        lines = []
        if count > 1:
            reads, takes = [], []
            for e in range(count):
                own, names = self.reads(f"(j + {e * step}u)", f"r{e}_")
                reads += own
                element = f"pb_element({', '.join([*names, f'j + {e * step}u'])})"
                takes.append(f"  a = pb_combine(a, {element});")
            ends = f"j + {(count - 1) * step}u < {end}"
            lines += [f"for (; {ends}; j += {count * step}u) {{", *reads, *takes, "}"]
        return [*lines, f"for (; j < {end}; j += {step}u) {{ a = pb_fold(a, {starts}, j); }}"]

    def partials(self, written: int | None, read: int | None = None) -> None:
        """Add functions that write accumulator `at` of an array of words, and that read one."""
        writes, reads, word = [], [], 0
        for k, d in enumerate(self.dtypes):
            at = f"at * {self.words}u + {word}u"
            if register(d) == "vec2<u32>":
                writes += [
                    f"  store{written}({at}, a.x{k}.x);",
                    f"  store{written}({at} + 1u, a.x{k}.y);",
                ]
                reads.append(f"vec2<u32>(load{read}({at}), load{read}({at} + 1u))")
                word += 2
            else:
                writes.append(f"  store{written}({at}, {stored(f'a.x{k}', d)});")
                reads.append(loaded(f"load{read}({at})", d))
                word += 1
        if written is not None:
            self.parts += ["fn pb_keep(a: Acc, at: u32) {", *writes, "}"]
        if read is not None:
            self.parts.append(f"fn pb_read(at: u32) -> Acc {{ return Acc({', '.join(reads)}); }}")

    @property
    def words(self) -> int:
        """The words of an accumulator in memory."""
        return accumulator_words(self.kernel)

    def text(self, *main: str) -> str:
        return "\n".join([self.source.text(), *self.parts, *main])


def accumulator_words(kernel: Reduce) -> int:
    """The words of an accumulator in memory."""
    return sum(1 + (register(e.dtype) == "vec2<u32>") for e in kernel.init)


def _member(e: Expr) -> str:
    side, position = e.value  # type: ignore[misc]
    return f"{side}.x{position}"


@lru_cache(1024)
def _sequence(kernel: Reduce, kept: int, reduced: int) -> str:
    """Words: outputs, length, nest of the kept axes, nest of the reduced ones."""
    w = _AccumulatorWriter(kernel)
    w.fold(reduced, 2 + kept * (1 + w.count), 1)
    starts = [f"s{k}" for k in range(w.count)]
    return w.text(
        MAIN,
        locate(kept, starts, 2, "i"),
        "  var a = pb_init();",
        f"  for (var j = 0u; j < arg(1u); j++) {{ a = pb_fold(a, {', '.join(starts)}, j); }}",
        "  pb_finish(a, i);",
        "}",
    )


_HEAD = f"""@compute @workgroup_size({THREADS})
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>,
        @builtin(local_invocation_id) l: vec3<u32>) {{
  let group = w.x + w.y * n.x;
  let t = l.x;"""


@lru_cache(1024)
def _rows(
    kernel: Reduce, kept: int, reduced: int, whole: bool, across: bool, ahead: int, plain: bool
) -> str:
    """Words: outputs, length, groups, blocks of a group, then the nests.

    The first array is the output, if `whole`: there is one group. Else it takes accumulators.
    `across`: neighbouring threads have neighbouring outputs, else neighbouring elements. `ahead`
    elements are read before they are taken. `plain`: see `printer.emit`.
    """
    w = _AccumulatorWriter(kernel, whole, plain)
    w.fold(reduced, 4 + kept * (1 + w.count), 1)
    if not whole:
        w.partials(0)
    starts = [f"s{k}" for k in range(w.count)]
    # Threads of a unit's lanes, and slots of its blocks, are next to each other, or else those of
    # different units.
    lane, place, next_lane = (
        (f"t / {HALVES}u", f"t % {HALVES}u", HALVES)
        if across
        else (f"t % {LANES}u", f"t / {LANES}u", 1)
    )
    unit_of, block_of, next_block = (
        (f"{{0}} % {HALVES}u", f"{{0}} / {HALVES}u", f"{HALVES}u")
        if across
        else ("{0} / p", "{0} % p", "1u")
    )
    output, part = (
        ("{0} % arg(0u)", "{0} / arg(0u)") if across else ("{0} / groups", "{0} % groups")
    )
    at = f"({output.format('unit')}) * groups + {part.format('unit')}"
    joined = "pb_slots[t]"
    end = f"pb_finish({joined}, {output.format('unit')});" if whole else f"pb_keep({joined}, {at});"
    return w.text(
        f"var<workgroup> pb_lanes: array<Acc, {THREADS}>;",
        f"var<workgroup> pb_slots: array<Acc, {MAX_GROUP}>;",
        _HEAD,
        f"""  let lane = {lane};
  let length = arg(1u);
  let groups = arg(2u);
  let p = arg(3u);
  let used = {f"p * {HALVES}u" if across else f"max(p, {HALVES}u)"};
  let units = arg(0u) * groups;
  let first = group * (used / p);
  for (var base = 0u; base < used; base += {HALVES}u) {{
    let slot = base + {place};
    let own = first + {unit_of.format("slot")};
    let begin = (({part.format("own")}) * p + {block_of.format("slot")}) * {BLOCK}u;
    let end = select(min(begin + {BLOCK}u, length), 0u, own >= units);
    let kept = select({output.format("own")}, 0u, own >= units);
{locate(kept, starts, 4, "kept", "    ")}
    var a = pb_init();
    var j = begin + lane;""",
        *("    " + line for line in w.ahead("end", LANES, ahead)),
        f"""    pb_lanes[t] = a;
    workgroupBarrier();
    for (var half = {LANES // 2}u; half > 0u; half /= 2u) {{
      if (lane < half) {{
        pb_lanes[t] = pb_combine(pb_lanes[t], pb_lanes[t + half * {next_lane}u]);
      }}
      workgroupBarrier();
    }}
    if (lane == 0u) {{ pb_slots[slot] = pb_lanes[t]; }}
    workgroupBarrier();
  }}
  let unit = first + {unit_of.format("t")};
  let b = {block_of.format("t")};
  let blocks = (length + {BLOCK - 1}u) / {BLOCK}u - ({part.format("unit")}) * p;
  let valid = t < used && unit < units;
  for (var s = 1u; s < p; s *= 2u) {{
    if (valid && b % (2u * s) == 0u && b + s < p && b + s < blocks) {{
      pb_slots[t] = pb_combine(pb_slots[t], pb_slots[t + s * {next_block}]);
    }}
    workgroupBarrier();
  }}
  if (valid && b == 0u) {{ {end} }}
}}""",
    )


@lru_cache(1024)
def _reading_ahead(kernel: Reduce) -> tuple[int, int, tuple[str, ...]]:
    """How many elements are read ahead on any adapter, how many on one that has arithmetic of its
    own, and which.
    """
    w = _AccumulatorWriter(kernel)
    if w.chains:
        return 1, 1, double_needs(_AccumulatorWriter(kernel, plain=True).text())
    if w.statements > MOST_STATEMENTS:
        return 1, 1, ()
    return (1, AHEAD, ("fma",)) if w.calls else (AHEAD, AHEAD, ())


@lru_cache(1024)
def _merge(kernel: Reduce, last: bool) -> str:
    """Words: outputs, accumulators of each. Arrays: the output (unless there are more to join, then
    the next accumulators), and the accumulators.
    """
    w = _AccumulatorWriter(kernel, last)
    w.partials(None if last else 0, 1)
    end = "pb_finish(pb_slots[0], unit);" if last else "pb_keep(pb_slots[0], unit);"
    return w.text(
        f"var<workgroup> pb_slots: array<Acc, {MERGE}>;",
        _HEAD,
        f"""  let count = arg(1u);
  let groups = (count + {MERGE - 1}u) / {MERGE}u;
  let unit = group;
  let valid = unit < arg(0u) * groups;
  let begin = unit % groups * {MERGE}u;
  let size = select(0u, min(count - begin, {MERGE}u), valid);
  if (t < size) {{ pb_slots[t] = pb_read(unit / groups * count + begin + t); }}
  workgroupBarrier();
  for (var s = 1u; s < {MERGE}u; s *= 2u) {{
    if (t % (2u * s) == 0u && t + s < size) {{
      pb_slots[t] = pb_combine(pb_slots[t], pb_slots[t + s]);
    }}
    workgroupBarrier();
  }}
  if (valid && t == 0u) {{ {end} }}
}}""",
    )


@lru_cache(1024)
def _scan(kernel: Accumulate, kept: int) -> str:
    """Words: kept positions, length, first index, its step; of each array (the output first) an
    offset and a stride along the axis; then the nest of the kept axes.
    """
    w = _AccumulatorWriter(kernel)
    streams = [f"o{k}" for k in range(w.count + 1)]
    first = 4 + 2 * len(streams)
    elements = ", ".join(f"load{k}(o{k})" for k in range(1, w.count + 1))
    return w.text(
        MAIN,
        locate(kept, streams, first, "i"),
        *(f"  {name} += arg({4 + 2 * k}u);" for k, name in enumerate(streams)),
        "  var a = pb_init();",
        "  for (var m = 0u; m < arg(1u); m++) {",
        f"    a = pb_combine(a, pb_element({elements}, arg(2u) + m * arg(3u)));",
        "    pb_finish(a, o0);",
        *(f"    {name} += arg({5 + 2 * k}u);" for k, name in enumerate(streams)),
        "  }",
        "}",
    )


def _inputs(kernel: Reduce, slots: Sequence[int]) -> list[Binding]:
    return [Binding(At(s), item(d)) for s, d in zip(slots, kernel.inputs, strict=True)]


def reduce_stages(
    kernel: Reduce,
    kept: Shape,
    reduced: Shape,
    in_slots: Sequence[int],
    in_strides: Sequence[Strides],
    out_slot: int,
    area: Area,
    /,
    by_rows: bool = False,
    piece: int = 0,
    shared: bool = False,
) -> list[Stage]:
    """See `Target.reduce`; a reduction is not cut into pieces for others."""
    outputs, count = math.prod(kept), len(kept)
    if outputs == 0:
        return []
    # the output is dense: its axes merge only where it allows that
    outer = coalesce(kept, [dense_strides(kept), *(s[:count] for s in in_strides)])
    inner = coalesce(reduced, [dense_strides(reduced), *(s[count:] for s in in_strides)])
    outer, inner = (Nest(n.shape, n.strides[1:]) for n in (outer, inner))
    nests = (*nest_words(outer), *nest_words(inner))
    ranks = len(outer.shape), len(inner.shape)
    out, ins = Binding(At(out_slot), item(kernel.output), "write"), _inputs(kernel, in_slots)
    length = inner.size
    if length < SMALL:
        source, groups = _sequence(kernel, *ranks), linear_groups(outputs, THREADS)
        return stage(Dispatch(source, (out, *ins), (outputs, length, *nests), groups))
    across = _is_across(outer, inner)
    blocks, groups = _groups(outputs, length, across)
    units = outputs * groups
    words = (outputs, length, groups, blocks, *nests)
    grid = linear_groups(units, HALVES if across else max(1, HALVES // blocks))
    target = out
    size = 4 * accumulator_words(kernel)
    if groups > 1:
        target = Binding(At(area(units * size)), "u32", "write")
    any_adapter, own, needs = _reading_ahead(kernel)

    def rows(ahead: int, other: Dispatch | None, *needs: str) -> Dispatch:
        source = _rows(kernel, *ranks, groups == 1, across, ahead, "double" in needs)
        return Dispatch(source, (target, *ins), words, grid, faster=other, needs=needs)

    steps = [rows(any_adapter, rows(own, None, *needs) if needs else None)]
    kept_ones = target
    while groups > 1:
        given, last = kept_ones._replace(mode="read"), groups
        groups = -(-last // MERGE)
        if groups > 1:
            kept_ones = Binding(At(area(outputs * groups * size)), "u32", "write")
        arrays = (out if groups == 1 else kept_ones, given)
        source = _merge(kernel, groups == 1)
        steps.append(Dispatch(source, arrays, (outputs, last), outputs * groups))
    return stage(*steps)


def _is_across(outer: Nest, inner: Nest) -> bool:
    """Whether neighbouring outputs, and not neighbouring elements, are side by side in memory."""
    if not outer.shape or outer.shape[-1] < LANES // 2:
        return False
    along = sum(abs(own[-1]) == 1 for own in inner.strides if own)
    return along < sum(abs(own[-1]) == 1 for own in outer.strides if own)


def _groups(outputs: int, length: int, across: bool) -> tuple[int, int]:
    """Blocks of the tree per group, a power of two, and groups: the bits are the same for any.

    `across`: a workgroup has the same blocks of HALVES outputs.
    """
    blocks = -(-length // BLOCK)
    own, least, together = 1, 1 if across else HALVES, HALVES if across else 1
    while own < min(blocks, MAX_GROUP // together):
        own *= 2
    while own > least and outputs * -(-blocks // own) < ENOUGH_GROUPS * together:
        own //= 2
    return own, -(-blocks // own)


def accumulate_stages(
    kernel: Accumulate,
    kept: Shape,
    length: int,
    in_slots: Sequence[int],
    in_strides: Sequence[Strides],
    out_slot: int,
    out_strides: Strides,
    reverse: bool,
    /,
) -> list[Stage]:
    """See `Target.accumulate`."""
    size = math.prod(kept)
    if size * length == 0:
        return []
    strides = [out_strides, *in_strides]
    nest = coalesce(kept, [s[:-1] for s in strides])
    along: list[int] = []
    for s in strides:
        along += [(length - 1) * s[-1], -s[-1]] if reverse else [0, s[-1]]
    index = (length - 1, -1) if reverse else (0, 1)
    words = (size, length, *index, *along, *nest_words(nest))
    arrays = (Binding(At(out_slot), item(kernel.output), "write"), *_inputs(kernel, in_slots))
    source = _scan(kernel, len(nest.shape))
    return stage(Dispatch(source, arrays, words, linear_groups(size, THREADS), rounds=length))
