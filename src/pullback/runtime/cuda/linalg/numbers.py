"""What kernels of linear algebra are written with: real and complex numbers by the same names.

`Value` is an element, `Real` one of its parts. `status` has a number for each matrix: 0, or -1 for
one that is not finite, or what is wrong with it.
"""

from __future__ import annotations

import re
from functools import cache

from pullback.core.dtypes import DType
from pullback.runtime.cuda.indexing import INDICES
from pullback.runtime.cuda.kernels import NEST
from pullback.runtime.cuda.printer import Source, register, storage

__all__ = ["name_of", "named", "source_of"]

_COMMON = """
typedef {real} Real;
typedef {value} Value;
PB_DEVICE Real pb_root(Real x) {{ return {sqrt}(x); }}
PB_DEVICE Real pb_abs(Real x) {{ return {fabs}(x); }}
PB_DEVICE Real pb_sign(Real x, Real of) {{ return {copysign}(x, of); }}
PB_DEVICE Real pb_fused(Real a, Real b, Real c) {{ return {fma}(a, b, c); }}
PB_DEVICE Real pb_nan() {{ return Real(0) / Real(0); }}
struct Part {{ long long at, rows, columns, row, column; }};  // of a matrix, see `Block`
PB_DEVICE long long pb_place(const Part& p, long long i, long long j) {{
  return p.at + i * p.row + j * p.column;
}}"""
_REAL = """
PB_DEVICE Value pb_value(Real x) { return x; }
PB_DEVICE Real pb_real(Value x) { return x; }
PB_DEVICE Value pb_conj(Value x) { return x; }
PB_DEVICE Value pb_neg(Value x) { return -x; }
PB_DEVICE Value pb_add(Value a, Value b) { return a + b; }
PB_DEVICE Value pb_sub(Value a, Value b) { return a - b; }
PB_DEVICE Value pb_mul(Value a, Value b) { return a * b; }
PB_DEVICE Value pb_div(Value a, Value b) { return a / b; }
PB_DEVICE Value pb_scale(Value a, Real b) { return a * b; }
PB_DEVICE Value pb_over(Value a, Real b) { return a / b; }
PB_DEVICE Real pb_size(Value a) { return pb_abs(a); }
PB_DEVICE Real pb_square(Value a) { return a * a; }
PB_DEVICE bool pb_is_real(Value a) { return true; }
PB_DEVICE bool pb_is_zero(Value a) { return a == 0; }"""
_COMPLEX = """
PB_DEVICE Value pb_value(Real x) { return Value{x, 0}; }
PB_DEVICE Real pb_real(Value x) { return x.x; }
PB_DEVICE Value pb_conj(Value x) { return Value{x.x, -x.y}; }
PB_DEVICE Value pb_neg(Value x) { return Value{-x.x, -x.y}; }
PB_DEVICE Value pb_add(Value a, Value b) { return Value{a.x + b.x, a.y + b.y}; }
PB_DEVICE Value pb_sub(Value a, Value b) { return Value{a.x - b.x, a.y - b.y}; }
PB_DEVICE Value pb_fused(Value a, Value b, Value c) {
  return Value{pb_fused(a.x, b.x, pb_fused(-a.y, b.y, c.x)),
               pb_fused(a.x, b.y, pb_fused(a.y, b.x, c.y))};
}
PB_DEVICE Value pb_mul(Value a, Value b) {
  return Value{pb_fused(a.x, b.x, -(a.y * b.y)), pb_fused(a.x, b.y, a.y * b.x)};
}
PB_DEVICE Value pb_scale(Value a, Real b) { return Value{a.x * b, a.y * b}; }
PB_DEVICE Value pb_over(Value a, Real b) { return Value{a.x / b, a.y / b}; }
PB_DEVICE Value pb_div(Value a, Value b) {  // by the larger part (Smith)
  const bool first = pb_abs(b.x) >= pb_abs(b.y);
  const Real large = first ? b.x : b.y, small = first ? b.y : b.x, ratio = small / large;
  const Real by = pb_fused(small, ratio, large);
  const Value made = first ? Value{pb_fused(a.y, ratio, a.x), pb_fused(-a.x, ratio, a.y)}
                           : Value{pb_fused(a.x, ratio, a.y), pb_fused(a.y, ratio, -a.x)};
  return pb_is_none(b) ? pb_over(a, Real(0)) : pb_over(made, by);
}
PB_DEVICE Real pb_size(Value a) { return pb_abs(a.x) + pb_abs(a.y); }
PB_DEVICE Real pb_square(Value a) { return pb_fused(a.x, a.x, a.y * a.y); }
PB_DEVICE bool pb_is_real(Value a) { return a.y == 0; }
PB_DEVICE bool pb_is_zero(Value a) { return a.x == 0 && a.y == 0; }"""
_MORE = """
PB_DEVICE Value pb_less(Value c, Value a, Value b) { return pb_fused(pb_neg(a), b, c); }
PB_DEVICE bool pb_is_odd(Value a) { const Value zero = pb_sub(a, a); return !pb_is_zero(zero); }"""


@cache
def _numbers(dtype: DType) -> str:
    single = "f" if dtype.real.itemsize == 4 else ""
    words = {name: name + single for name in ("sqrt", "fabs", "copysign", "fma")}
    text = _COMMON.format(real=register(dtype.real), value=storage(dtype), **words)
    if not dtype.is_complex:
        return text + _REAL + _MORE
    none = "PB_DEVICE bool pb_is_none(Value a) { return a.x == 0 && a.y == 0; }"
    return f"{text}\n{none}{_COMPLEX}{_MORE}"


def source_of(dtype: DType) -> Source:
    """A source with the numbers of a dtype, batches and the record of errors."""
    source = Source()
    source.add("pb_nest", NEST)
    source.add("pb_indices", INDICES)
    source.add("pb_numbers", _numbers(dtype))
    return source


def name_of(dtype: DType, what: str) -> str:
    """The name of a kernel."""
    return f"matrix_{dtype.name}_{what}"


def named(text: str, start: str) -> str:
    """A text in which KERNEL(end) stands for a kernel whose name has that end."""
    return re.sub(r"KERNEL\((\w+)\)", rf'extern "C" __global__ void {start}\1', text)
