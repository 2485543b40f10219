"""The numbers of kernels of linear algebra as WGSL: `Value`, an element, and `f32`, a real number.

Real numbers and what is done with them begin with `r_`, values with `v_`; the names are those of
`cuda.linalg.numbers`. `exact` functions are correctly rounded on every adapter, as the CPU's bits
want it; the others are the adapter's own instructions, which compile faster.
"""

from __future__ import annotations

from functools import cache

from pullback.core.dtypes import DType

__all__ = ["element_functions", "numbers_text"]

_EXACT = """
fn r_fused(a: f32, b: f32, c: f32) -> f32 { return f32_fma_exact(a, b, c); }
fn r_add(a: f32, b: f32) -> f32 { return pb_f(a + b); }
fn r_mul(a: f32, b: f32) -> f32 { return pb_f(a * b); }
"""
_OWN = """
fn r_fused(a: f32, b: f32, c: f32) -> f32 { return fma(a, b, c); }
fn r_add(a: f32, b: f32) -> f32 { return a + b; }
fn r_mul(a: f32, b: f32) -> f32 { return a * b; }
"""
_COMMON = """
fn r_over(a: f32, b: f32) -> f32 { return f32_div_exact(a, b); }
fn r_root(a: f32) -> f32 { return f32_sqrt_exact(a); }
fn r_abs(x: f32) -> f32 { return f32_abs(x); }
fn r_sign(x: f32, like: f32) -> f32 { return f32_copysign(x, like); }
fn r_nan() -> f32 { return pb_c(0x7fc00000u); }
fn r_is_odd(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) >= 0x7f800000u; }
fn r_is_zero(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0u; }
"""
_REAL = """
alias Value = f32;
alias Word = u32;
fn v_of(x: u32) -> f32 { return bitcast<f32>(x); }
fn v_word(x: f32) -> u32 { return bitcast<u32>(x); }
fn v_value(x: f32) -> f32 { return x; }
fn v_real(x: f32) -> f32 { return x; }
fn v_nan() -> f32 { return r_nan(); }
fn v_conj(x: f32) -> f32 { return x; }
fn v_neg(x: f32) -> f32 { return f32_neg(x); }
fn v_add(a: f32, b: f32) -> f32 { return r_add(a, b); }
fn v_sub(a: f32, b: f32) -> f32 { return r_add(a, f32_neg(b)); }
fn v_mul(a: f32, b: f32) -> f32 { return r_mul(a, b); }
fn v_div(a: f32, b: f32) -> f32 { return r_over(a, b); }
fn v_scale(a: f32, b: f32) -> f32 { return r_mul(a, b); }
fn v_over(a: f32, b: f32) -> f32 { return r_over(a, b); }
fn v_fused(a: f32, b: f32, c: f32) -> f32 { return r_fused(a, b, c); }
fn v_size(a: f32) -> f32 { return r_abs(a); }
fn v_square(a: f32) -> f32 { return r_mul(a, a); }
fn v_length(a: f32) -> f32 { return r_abs(a); }
fn v_is_real(a: f32) -> bool { return true; }
fn v_is_zero(a: f32) -> bool { return r_is_zero(a); }
fn v_is_odd(a: f32) -> bool { return r_is_odd(a); }
"""
_COMPLEX = """
alias Value = vec2<f32>;
alias Word = vec2<u32>;
fn v_of(x: vec2<u32>) -> Value { return bitcast<vec2<f32>>(x); }
fn v_word(x: Value) -> vec2<u32> { return bitcast<vec2<u32>>(x); }
fn v_value(x: f32) -> Value { return vec2<f32>(x, 0.0); }
fn v_real(x: Value) -> f32 { return x.x; }
fn v_nan() -> Value { return vec2<f32>(r_nan(), r_nan()); }
fn v_conj(x: Value) -> Value { return vec2<f32>(x.x, f32_neg(x.y)); }
fn v_neg(x: Value) -> Value { return vec2<f32>(f32_neg(x.x), f32_neg(x.y)); }
fn v_add(a: Value, b: Value) -> Value { return vec2<f32>(r_add(a.x, b.x), r_add(a.y, b.y)); }
fn v_sub(a: Value, b: Value) -> Value { return v_add(a, v_neg(b)); }
fn v_mul(a: Value, b: Value) -> Value {
  return vec2<f32>(r_fused(a.x, b.x, f32_neg(r_mul(a.y, b.y))), r_fused(a.x, b.y, r_mul(a.y, b.x)));
}
fn v_div(a: Value, b: Value) -> Value {
  if (v_is_zero(b)) { return v_over(a, b.x); }
  let first = r_abs(b.x) >= r_abs(b.y);  // by the larger part (Smith)
  let large = select(b.y, b.x, first);
  let ratio = r_over(select(b.x, b.y, first), large);
  let by = r_fused(select(b.x, b.y, first), ratio, large);
  let one = select(r_fused(a.x, ratio, a.y), r_fused(a.y, ratio, a.x), first);
  let two = select(r_fused(a.y, ratio, f32_neg(a.x)), r_fused(f32_neg(a.x), ratio, a.y), first);
  return v_over(vec2<f32>(one, two), by);
}
fn v_scale(a: Value, b: f32) -> Value { return vec2<f32>(r_mul(a.x, b), r_mul(a.y, b)); }
fn v_over(a: Value, b: f32) -> Value { return vec2<f32>(r_over(a.x, b), r_over(a.y, b)); }
fn v_fused(a: Value, b: Value, c: Value) -> Value {
  return vec2<f32>(r_fused(a.x, b.x, r_fused(f32_neg(a.y), b.y, c.x)),
                   r_fused(a.x, b.y, r_fused(a.y, b.x, c.y)));
}
fn v_size(a: Value) -> f32 { return r_add(r_abs(a.x), r_abs(a.y)); }
fn v_square(a: Value) -> f32 { return r_fused(a.x, a.x, r_mul(a.y, a.y)); }
fn v_length(a: Value) -> f32 {
  let most = max(r_abs(a.x), r_abs(a.y));
  if (r_is_zero(most)) { return most; }
  return r_mul(most, r_root(v_square(v_over(a, most))));
}
fn v_is_real(a: Value) -> bool { return r_is_zero(a.y); }
fn v_is_zero(a: Value) -> bool { return r_is_zero(a.x) && r_is_zero(a.y); }
fn v_is_odd(a: Value) -> bool { return r_is_odd(a.x) || r_is_odd(a.y); }
"""
_MORE = """
fn v_less(c: Value, a: Value, b: Value) -> Value { return v_fused(v_neg(a), b, c); }
"""


@cache
def numbers_text(dtype: DType, exact: bool) -> str:
    """The types and functions of a dtype's numbers."""
    return f"{_EXACT if exact else _OWN}{_COMMON}{_COMPLEX if dtype.is_complex else _REAL}{_MORE}"


# Element (r, c) of block k in the matrix that starts at element `o`.
_GET = """fn value{k}(r: u32, c: u32, o: u32) -> u32 {{
  return o + arg({at}u) + r * arg({row}u) + c * arg({column}u);
}}
fn get{k}(r: u32, c: u32, o: u32) -> Value {{ return v_of(load{k}(value{k}(r, c, o))); }}"""
_PUT = (
    """fn put{k}(r: u32, c: u32, o: u32, x: Value) {{ store{k}(value{k}(r, c, o), v_word(x)); }}"""
)


def element_functions(k: int, first: int, writes: bool) -> list[str]:
    """What reads, and writes, elements of block k, which is array k and whose words are from
    `first` on.
    """
    lines = [_GET.format(k=k, at=first, row=first + 3, column=first + 4)]
    return [*lines, _PUT.format(k=k)] if writes else lines
