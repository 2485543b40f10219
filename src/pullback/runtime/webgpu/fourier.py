"""Kernels of Fourier transforms, in the order of the CPU.

    pass    a thread makes one transform of a few points of one pass
    half, whole, times    what comes before and after: see `program.fourier`

After the passes of radices whose product is `before`, a transform of before radix rest points is
left of each `before`-th point: thread (q, p) of an item reads points `q + before (p + rest k)` and
writes `q + before (j + radix p)`. Strides count real parts.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import cache, partial

from pullback.compile.kernel import fft_order
from pullback.compile.kernel.codelets import ComplexPair, NamedRegisters, transform
from pullback.compile.kernel.fft_order import FINE_ROWS
from pullback.compile.program import fourier
from pullback.compile.program.fourier import Formula, Numbers, Passes, Transform
from pullback.compile.program.nest import coalesce
from pullback.core.dtypes import float32
from pullback.runtime.webgpu.nests import MAIN, THREADS, locate, nest_words
from pullback.runtime.webgpu.printer import literal
from pullback.runtime.webgpu.stages import (
    CONSTANT,
    At,
    Binding,
    Dispatch,
    linear_groups,
    stage,
)

__all__ = ["fourier_stages"]

_HEAD = """fn pb_times(a: vec2<f32>, w: vec2<f32>) -> vec2<f32> {
  let re = f32_fma_exact(a.x, w.x, f32_neg(pb_f(a.y * w.y)));
  return vec2<f32>(re, f32_fma_exact(a.x, w.y, pb_f(a.y * w.x)));
}
fn pb_turned(a: vec2<f32>, swap: u32) -> vec2<f32> { return select(a, a.yx, swap != 0u); }
fn pb_scaled(a: vec2<f32>, factor: f32) -> vec2<f32> {
  return vec2<f32>(pb_f(a.x * factor), pb_f(a.y * factor));
}
fn pb_part(at: u32) -> f32 { return bitcast<f32>(load1(at)); }
fn pb_read(at: u32, imaginary: u32) -> vec2<f32> {
  if (imaginary == 0u) { return vec2<f32>(pb_part(at), pb_c(0u)); }
  return vec2<f32>(pb_part(at), pb_part(at + imaginary));
}
fn pb_write(at: u32, imaginary: u32, value: vec2<f32>) {
  store0(at, bitcast<u32>(value.x));
  if (imaginary != 0u) { store0(at + imaginary, bitcast<u32>(value.y)); }
}"""


class _Registers(NamedRegisters):
    declaration = "  let {name} = {text};"

    def number(self, value: float) -> str:
        return literal(value, float32)

    def add(self, x: str, y: str) -> str:
        return self.kept(f"pb_f({x} + {y})")

    def sub(self, x: str, y: str) -> str:
        return self.kept(f"pb_f({x} - {y})")

    def mul(self, x: str, y: str) -> str:
        return self.kept(f"pb_f({x} * {y})")

    def neg(self, x: str) -> str:
        return self.kept(f"f32_neg({x})")

    def fma(self, x: str, y: str, total: str) -> str:
        return self.kept(f"f32_fma_exact({x}, {y}, {total})")


PASS_WORDS = 12  # of a pass, as `_pass_source` lists them, before those of the nest


@cache
def _pass_source(radix: int, rank: int, turned: bool, twisted: bool) -> str:
    """Words: transforms, before, rest, steps and imaginary parts of input and output, numbers that
    are stored, whether to exchange parts before and after, width, factor, the nest of the batch.

    Arrays: output, input, roots of the pass if `turned`, coarse and fine ones if `twisted`.
    """
    v = _Registers()
    table = 2 + turned
    given = [ComplexPair(v.kept(f"x{k}.x"), v.kept(f"x{k}.y")) for k in range(radix)]
    lines = [
        _HEAD,
        MAIN,
        "  let each = arg(1u) * arg(2u);",
        "  let item = i / each;",
        "  let q = i % each % arg(1u);",
        "  let p = i % each / arg(1u);",
        "  let column = item % arg(10u);",
        "  let factor = bitcast<f32>(arg(11u));",
        locate(rank, ["from_", "to"], PASS_WORDS, "item"),
    ]
    for k in range(radix):
        at = f"from_ + (q + arg(1u) * (p + arg(2u) * {k}u)) * arg(3u)"
        read = f"pb_scaled(pb_read({at}, arg(4u)), factor)"
        lines.append(f"  let x{k} = pb_turned({read}, arg(8u));")
    made = transform(v, given)
    lines += v.lines
    for j, value in enumerate(made):
        lines += [
            f"  var y{j} = vec2<f32>({value.re}, {value.im});",
            f"  let at{j} = q + arg(1u) * ({j}u + {radix}u * p);",
        ]
        if turned and j:
            root = f"bitcast<vec2<f32>>(load2(p * {radix - 1}u + {j - 1}u))"
            lines.append(f"  y{j} = pb_times(y{j}, {root});")
        lines.append(f"  if (at{j} * arg(10u) + column < arg(7u)) {{")
        if twisted:
            coarse, fine = (
                f"bitcast<vec2<f32>>(load{table + n}(at{j} {op} {FINE_ROWS}u * arg(10u) + column))"
                for n, op in enumerate("/%")
            )
            lines.append(f"    y{j} = pb_times(y{j}, pb_times({coarse}, {fine}));")
        lines += [
            f"    pb_write(to + at{j} * arg(5u), arg(6u), pb_turned(y{j}, arg(9u)));",
            "  }",
        ]
    return "\n".join([*lines, "}"])


_BODIES = {
    # n = h: results k = 0 .. h of a real transform, or backwards points k = 0 .. h - 1.
    "half": """  let back = arg(2u) == arg(1u);
  let z = pb_scaled(pb_read(from_ + select(k, 0u, k == arg(1u)) * arg(3u), arg(4u)), before);
  if (k == 0u || k == arg(1u)) {
    var other = z.y;
    if (back) { other = pb_f(pb_part(from_ + arg(1u) * arg(3u)) * before); }
    let total = pb_f(z.x + other);
    let difference = pb_f(z.x - other);
    made = vec2<f32>(select(total, difference, k != 0u), pb_c(0u));
    if (back) { made = vec2<f32>(total, difference); }
  } else {
    let m = pb_scaled(pb_read(from_ + (arg(1u) - k) * arg(3u), arg(4u)), before);
    var a = vec2<f32>(pb_f(z.x + m.x), pb_f(z.y - m.y));
    if (!back) { a = pb_scaled(a, pb_c(0x3f000000u)); }
    let b = vec2<f32>(pb_f(z.x - m.x), pb_f(z.y + m.y));
    let turned = pb_times(b, bitcast<vec2<f32>>(load2(k)));
    made = vec2<f32>(pb_f(a.x + turned.x), pb_f(a.y + turned.y));
  }""",
    # All n results from the first half of them, for odd n: those of a real array's transform.
    "whole": """  let mirrored = k > arg(1u) / 2u;
  made = pb_scaled(pb_read(from_ + select(k, arg(1u) - k, mirrored) * arg(3u), arg(4u)), before);
  if (mirrored) { made.y = f32_neg(made.y); }
  if (k == 0u) { made.y = pb_c(0u); }""",
    "times": """  if (k < arg(1u)) {
    let z = pb_scaled(pb_read(from_ + k * arg(3u), arg(4u)), before);
    made = pb_times(pb_turned(z, arg(7u)), bitcast<vec2<f32>>(load2(k)));
    made = pb_turned(pb_scaled(made, bitcast<f32>(arg(10u))), arg(8u));
  }""",
}


@cache
def _formula_source(kind: str, rank: int) -> str:
    """Words: numbers, n, numbers of a row, steps and imaginary parts of input and output, whether
    to exchange parts before and after, two factors, the nest of the batch. Arrays: output, input,
    table.
    """
    return "\n".join([
        _HEAD,
        MAIN,
        "  let k = i % arg(2u);",
        "  let row = i / arg(2u);",
        locate(rank, ["from_", "to"], 11, "row"),
        "  let before = bitcast<f32>(arg(9u));",
        "  var made = vec2<f32>(pb_c(0u), pb_c(0u));",
        _BODIES[kind],
        "  pb_write(to + k * arg(5u), arg(6u), made);",
        "}",
    ])  # fmt: skip


def _bits(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


def _table(numbers: Numbers) -> Binding:
    return Binding(At(CONSTANT), "u64", "read", numbers)


class _Dispatches(Transform[Dispatch]):
    """The dispatches of a transform."""

    def _add(self, source: str, words: Sequence[int], arrays: Sequence[Binding]) -> None:
        groups = linear_groups(words[0], THREADS)
        self.steps.append(Dispatch(source, tuple(arrays), tuple(words), groups))

    def formula(self, given: Formula) -> None:
        kind, source, target, n, count, table, swap, factors = given
        nest = coalesce(self.batch, [source.batch, target.batch])
        words = (
            *(self.items * count, n, count, source.step, source.imaginary),
            *(target.step, target.imaginary, *map(int, swap), *map(_bits, factors)),
            *nest_words(nest),
        )
        arrays = [Binding(At(target.slot), "u32", "write"), Binding(At(source.slot), "u32")]
        if table is not None:
            arrays.append(_table(table))
        self._add(_formula_source(kind, len(nest.shape)), words, arrays)

    def passes(self, given: Passes) -> None:
        n, batch, source, target, swap, factor, stored, twist, width = given
        before, rest, here = 1, n, source
        items = math.prod(batch)
        for radix in fft_order.radices(n):
            rest //= radix
            first, last = before == 1 and here is source, before * radix * rest == n and rest == 1
            there = target if last else self.scratch(n, batch)
            nest = coalesce(batch, [here.batch, there.batch])
            words = (
                *(items * before * rest, before, rest, here.step, here.imaginary),
                *(there.step, there.imaginary, stored if last else n),
                *(int(swap[0] and first), int(swap[1] and last), width if last else 1),
                *(_bits(factor if first else 1.0), *nest_words(nest)),
            )
            arrays = [Binding(At(there.slot), "u32", "write"), Binding(At(here.slot), "u32")]
            if rest > 1:
                arrays.append(_table(Numbers("pass", self.dtype, rest * radix, radix)))
            twisted = bool(last and twist)
            arrays += map(_table, twist if last else ())
            text = _pass_source(radix, len(nest.shape), rest > 1, twisted)
            self._add(text, words, arrays)
            before, here = before * radix, there


fourier_stages = partial(fourier.fourier_stages, _Dispatches, stage)
