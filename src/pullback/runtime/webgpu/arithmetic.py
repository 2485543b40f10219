"""What an adapter computes exactly: measured when it is opened, so that bits do not depend on it.

WGSL promises correctly rounded sums and products of float32, but lets a quotient and a root be some
units off, and `fma` be a product and a sum. Where an adapter is exact, its own instruction is used.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

import numpy as np

from pullback.compile.kernel.fused import fused

__all__ = [
    "DOUBLE_PROBE",
    "FUSED",
    "LEAST_NORMAL", "LONG_LOOP",
    "LOOP_PROBE",
    "PROBE",
    "SAFE",
    "Arithmetic",
    "double_functions",
    "double_needs",
    "double_operands",
    "exact_doubles",
    "exact_functions",
    "exact_names",
    "probe_words",
    "probed",
    "wide_probe",
]  # fmt: skip

COUNT = 4096  # operands of each probe, which lie in a buffer of 16 kB


class Arithmetic(NamedTuple):
    """Whether an adapter's own instructions are correctly rounded: those of float32, and of float64
    if it has that (`double`: sums, products, quotients and roots).
    """

    fma: bool
    div: bool
    sqrt: bool
    double: bool = False
    double_fma: bool = False
    wide_fma: bool = False  # the one of float32, made of float64


SAFE = Arithmetic(fma=False, div=False, sqrt=False)  # right on every adapter
FUSED = Arithmetic(fma=True, div=False, sqrt=False)  # quotients and roots by fused multiply-adds


# Of each function: its operands, whose own arithmetic it is, and that. What is fused stands in
# chains, each the addend of the next: there is nothing in them that a compiler could rearrange, and
# the exclusive or of `pb_f` would take longer than the fused multiply-add.
_EXACT = {
    "fma": (3, "fma", "pb_f(fma(a, b, c))"),
    "fused": (3, "fma", "fma(a, b, c)"),
    "div": (2, "div", "pb_f(a / b)"),
    "sqrt": (1, "sqrt", "pb_f(sqrt(a))"),
}


def exact_names(text: str) -> list[str]:
    """The arithmetic on which the exact functions depend that a text names."""
    found = [own for name, (_, own, _) in _EXACT.items() if f"f32_{name}_exact(" in text]
    return list(dict.fromkeys(found))


def _way(own: str, arithmetic: Arithmetic) -> str:
    """How a function is made that the adapter computes inexactly."""
    if own == "fma":
        return "wide" if arithmetic.wide_fma else "soft"
    return "fused" if arithmetic.fma else "soft"


def exact_functions(text: str, arithmetic: Arithmetic) -> str:
    """The definitions of the exact functions that a text names."""
    lines = []
    for name, (count, own, plain) in _EXACT.items():
        if f"f32_{name}_exact(" in text:
            names = "abc"[:count]
            given = ", ".join(f"{n}: f32" for n in names)
            how = _way(own, arithmetic)
            other = f"f32_{own}_{how}({', '.join(names)})"
            value = plain if getattr(arithmetic, own) else other
            lines.append(f"fn f32_{name}_exact({given}) -> f32 {{ return {value}; }}")
    return "\n".join(lines)


# A driver may end loops early: Mesa's software driver allows 65535 rounds of all loops of a thread
# together, and results of longer ones are wrong without a word.
LONG_LOOP = 1 << 20  # rounds of the loop that finds that out: 16 times that limit
LEAST_NORMAL = 0x800000  # the bits of a second word: twice a subnormal number gives this one
LOOP_PROBE = """
@compute @workgroup_size(1)
fn main() {
  var rounds = 0u;
  for (var i = 0u; i < arg(0u); i++) { rounds += 1u + (i & pb_zero()); }
  store0(0u, rounds);
  let small = pb_c(0x400000u);
  store0(1u, bitcast<u32>(pb_f(small + small)));
}
"""
PROBE = """
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  let i = g.x;
  if (i >= arg(0u)) { return; }
  let a = bitcast<f32>(load1(3u * i) ^ pb_zero());
  let b = bitcast<f32>(load1(3u * i + 1u) ^ pb_zero());
  let c = bitcast<f32>(load1(3u * i + 2u) ^ pb_zero());
  store0(3u * i, bitcast<u32>(fma(a, b, c)));
  store0(3u * i + 1u, bitcast<u32>(a / b));
  store0(3u * i + 2u, bitcast<u32>(sqrt(a)));
}
"""


# float64 where the adapter has it: what takes the place of the functions on words. No compiler sees
# that two of them follow each other, so that none makes a fused multiply-add of them.
_DOUBLES = {"add": "a + b", "sub": "a - b", "mul": "a * b", "fma": "fma(a, b, c)", "div": "a / b",
            "sqrt": "sqrt(a)"}  # fmt: skip


_KEPT = "fn f64_kept(a: f64) -> f64 { return bitcast<f64>(bitcast<u64>(a) ^ u64(pb_zero())); }"
# The product is exact. What rounding loses of the sum makes its last bit odd, so that it is no tie
# when it is rounded to float32.
_WIDE_FMA = """fn f32_fma_wide(a: f32, b: f32, c: f32) -> f32 {
  let p = f64_kept(f64(a) * f64(b));
  let z = f64(c);
  let sum = f64_kept(p + z);
  let part = f64_kept(sum - p);
  let lost = f64_kept(f64_kept(p - f64_kept(sum - part)) + f64_kept(z - part));
  let bits = bitcast<u64>(sum);
  let high = u32(bits >> 32u);
  let is_odd = (u32(bits) & 1u) != 0u;
  let exact = bitcast<u64>(lost) << 1u == u64(0u);
  if (is_odd || exact || (high & 0x7ff00000u) == 0x7ff00000u) { return pb_f(f32(sum)); }
  let up = (u32(bitcast<u64>(lost) >> 63u) == high >> 31u);
  return pb_f(f32(bitcast<f64>(select(bits - u64(1u), bits + u64(1u), up))));
}"""


def wide_probe() -> str:
    """`PROBE`, of the fused multiply-add that is made of float64."""
    return PROBE.replace("fma(a, b, c)", "f32_fma_wide(a, b, c)")


def double_needs(source: str) -> tuple[str, ...]:
    """What a source needs of an adapter that shall compute its float64."""
    return ("double", "double_fma") if "f64_fma(" in source else ("double",)


@cache
def double_functions(has_fma: bool) -> dict[str, str]:
    """The functions of float64 by name, with those that they call."""
    found = {
        "f64_own": "fn f64_own(a: vec2<u32>) -> f64 {"
        " return bitcast<f64>(u64(a.x) | (u64(a.y) << 32u)); }",
        "f64_words": "fn f64_words(a: f64) -> vec2<u32> { let x = bitcast<u64>(a);"
        " return vec2<u32>(u32(x), u32(x >> 32u)) ^ vec2<u32>(pb_zero()); }",
    }
    for name, text in _DOUBLES.items():
        if name == "fma" and not has_fma:
            continue
        names = "abc"[: 3 if name == "fma" else 1 if name == "sqrt" else 2]
        given = ", ".join(f"{n}: vec2<u32>" for n in names)
        own = " ".join(f"let {n}_own = f64_own({n});" for n in names)
        value = re.sub(r"\b[abc]\b", r"\g<0>_own", text)
        found[f"f64_{name}"] = (
            f"fn f64_{name}({given}) -> vec2<u32> {{ {own} return f64_words({value}); }}"
        )
    return found | {"f64_kept": _KEPT, "f32_fma_wide": _WIDE_FMA}


DOUBLE_PROBE = """
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  let i = g.x;
  if (i >= arg(0u)) { return; }
  let a = load1(3u * i);
  let b = load1(3u * i + 1u);
  let c = load1(3u * i + 2u);
  store0(6u * i, f64_add(a, b));
  store0(6u * i + 1u, f64_sub(a, b));
  store0(6u * i + 2u, f64_mul(a, b));
  store0(6u * i + 3u, f64_div(a, b));
  store0(6u * i + 4u, f64_sqrt(a));
  store0(6u * i + 5u, f64_fma(a, b, c));
}
"""


def double_operands() -> np.ndarray:
    """Operands of float64, as `probe_words` has them."""
    rng = np.random.default_rng(2)
    a, b = 2.0 ** rng.integers(-300, 300, (2, COUNT)) * rng.uniform(1, 2, (2, COUNT))
    c = -(a * b) * rng.choice([1, 1, 2.0**-50, 2.0**50], COUNT)
    a[:64] *= 2.0**-240  # products are subnormal
    b[:64] = 2.0**-600
    c[:64] = 2.0**-1060
    return np.ascontiguousarray(np.stack([a, b, c], axis=1))


def exact_doubles(given: np.ndarray, found: np.ndarray) -> dict[str, bool]:
    """What the results of the probe of float64 say, subnormal ones too."""
    a, b, c = given.T
    exact = [a + b, a - b, a * b, a / b, np.sqrt(a), fused(a, b, c)]
    right = [np.array_equal(x, y) for x, y in zip(exact, found.T, strict=True)]
    return {"double": all(right[:5]), "double_fma": all(right)}


def probe_words() -> np.ndarray:
    """Operands: positive numbers of many sizes, and sums that nearly cancel."""
    rng = np.random.default_rng(1)
    a, b = np.float32(2.0) ** rng.integers(-30, 30, (2, COUNT)).astype(np.float32)
    a, b = ((x * rng.uniform(1, 2, COUNT)).astype(np.float32) for x in (a, b))
    c = -(a * b) * rng.choice(np.array([1, 1, 2.0**-20, 2.0**20], np.float32), COUNT)
    return np.ascontiguousarray(np.stack([a, b, c], axis=1)).view(np.uint32)


def probed(given: np.ndarray, found: np.ndarray) -> Arithmetic:
    """What the results of the probe say."""
    a, b, c = given.view(np.float32).reshape(-1, 3).T
    fma, div, sqrt = found.view(np.float32).reshape(-1, 3).T
    wide = a.astype(np.float64) * b
    total, back = wide + c, (wide + c) - wide
    lost = (wide - (total - back)) + (c - back)
    # Where the sum in float64 is inexact, rounding it again might be wrong: these say nothing.
    sure = lost == 0
    return Arithmetic(
        fma=bool(np.all((fma == total.astype(np.float32))[sure])),
        div=bool(np.all(div == a / b)),
        sqrt=bool(np.all(sqrt == np.sqrt(a))),
    )
