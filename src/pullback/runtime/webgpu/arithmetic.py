"""What an adapter computes exactly: measured when it is opened, so that bits do not depend on it.

WGSL promises correctly rounded sums and products of float32, but lets a quotient and a root be some
units off, and `fma` be a product and a sum. Where an adapter is exact, its own instruction is used.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = [
    "FUSED", "LONG_LOOP", "LOOP_PROBE", "PROBE", "SAFE", "Arithmetic", "exact_functions",
    "exact_names", "probe_words", "probed",
]  # fmt: skip

COUNT = 4096  # operands of each probe, which lie in a buffer of 16 kB


class Arithmetic(NamedTuple):
    """Whether an adapter's own instructions are correctly rounded."""

    fma: bool
    div: bool
    sqrt: bool


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


def exact_functions(text: str, arithmetic: Arithmetic) -> str:
    """The definitions of the exact functions that a text names."""
    lines = []
    for name, (count, own, plain) in _EXACT.items():
        if f"f32_{name}_exact(" in text:
            names = "abc"[:count]
            given = ", ".join(f"{n}: f32" for n in names)
            how = "fused" if own != "fma" and arithmetic.fma else "soft"
            other = f"f32_{own}_{how}({', '.join(names)})"
            value = plain if getattr(arithmetic, own) else other
            lines.append(f"fn f32_{name}_exact({given}) -> f32 {{ return {value}; }}")
    return "\n".join(lines)


# Rounds of a loop that a driver may end early: Mesa's software driver allows 65535 of all loops of
# a thread together, and results of longer ones are wrong without a word.
LONG_LOOP = 1 << 20
LOOP_PROBE = """
@compute @workgroup_size(1)
fn main() {
  var rounds = 0u;
  for (var i = 0u; i < arg(0u); i++) { rounds += 1u + (i & pb_zero()); }
  store0(0u, rounds);
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
