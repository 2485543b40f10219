"""Transforms of a few points in registers, as CUDA C; what all kernels of transforms begin with."""

from __future__ import annotations

from functools import cache

from pullback.compile.kernel.codelets import ComplexPair, NamedRegisters, transform
from pullback.core.dtypes import DType
from pullback.runtime.cuda.kernels import NEST
from pullback.runtime.cuda.printer import Source, literal, register

__all__ = ["codelet", "source_of"]

_HEAD = """
typedef {real} Real;
struct alignas(2 * sizeof(Real)) Pair {{ Real x, y; }};
PB_DEVICE Pair pb_times(Pair a, Pair w) {{
  return Pair{{{fma}(a.x, w.x, -(a.y * w.y)), {fma}(a.x, w.y, a.y * w.x)}};
}}
PB_DEVICE Pair pb_turned(Pair a, bool yes) {{ return yes ? Pair{{a.y, a.x}} : a; }}
PB_DEVICE Pair pb_scaled(Pair a, Real factor) {{ return Pair{{a.x * factor, a.y * factor}}; }}
// Where numbers lie, counted in parts: from point to point, and from a real part to its imaginary
// part, which if that is 0 is not there.
struct Points {{ long long step, imaginary; }};
PB_DEVICE Pair pb_read(const Real* x, long long at, const Points& p) {{
  return Pair{{x[at], p.imaginary ? x[at + p.imaginary] : Real(0)}};
}}
PB_DEVICE void pb_write(Real* y, long long at, const Points& p, Pair value) {{
  y[at] = value.x;
  if (p.imaginary) y[at + p.imaginary] = value.y;
}}"""


def source_of(dtype: DType) -> Source:
    """A source whose numbers have parts of this dtype."""
    source = Source()
    source.add("pb_nest", NEST)
    fma = "fmaf" if dtype.itemsize == 4 else "fma"
    source.add("pb_complex", _HEAD.format(real=register(dtype), fma=fma))
    return source


class _Registers(NamedRegisters):
    declaration = "  const Real {name} = {text};"

    def __init__(self, dtype: DType):
        super().__init__()
        self._dtype = dtype

    def number(self, value: float) -> str:
        return literal(value, self._dtype)

    def add(self, x: str, y: str) -> str:
        return self.kept(f"{x} + {y}")

    def sub(self, x: str, y: str) -> str:
        return self.kept(f"{x} - {y}")

    def mul(self, x: str, y: str) -> str:
        return self.kept(f"{x} * {y}")

    def neg(self, x: str) -> str:
        return self.kept(f"-{x}")

    def fma(self, x: str, y: str, total: str) -> str:
        name = "fmaf" if self._dtype.itemsize == 4 else "fma"
        return self.kept(f"{name}({x}, {y}, {total})")


@cache
def codelet(dtype: DType, points: int) -> str:
    """The function `pb_transform_N`, which replaces N points by their transform."""
    v = _Registers(dtype)
    points_in = [ComplexPair(v.kept(f"x[{k}].x"), v.kept(f"x[{k}].y")) for k in range(points)]
    made = transform(v, points_in)
    stores = [f"  x[{k}] = Pair{{{p.re}, {p.im}}};" for k, p in enumerate(made)]
    head = f"PB_DEVICE void pb_transform_{points}(Pair (&x)[{points}]) {{"
    return "\n".join([head, *v.lines, *stores, "}"])
