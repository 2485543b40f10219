"""The accumulator of exact sums, as `fixed_point` defines them: 384 bits in words of 32."""

from __future__ import annotations

from pullback.compile.kernel.fixed_point import FORMATS
from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.runtime.webgpu.printer import convert, loaded, stored

__all__ = ["exact_sum"]

WORDS = 12  # of 32 bits of a sum: from 2**-192 to 2**191, which 2**63 updates do not leave
ORIGIN = 192  # the words count units of 2**-ORIGIN, below every bit of a float

_SUM = """
struct Sum { words: array<u32, WORDS>, x: u32, high: bool, low: bool, nan: bool }
fn pb_float(x: u32) -> f32 { return READ; }
fn pb_start(x: u32) -> Sum {
  var a: Sum;
  a.x = x;
  return a;
}
// Adds a float to the words, a negative one as its complement.
fn pb_put(p: ptr<function, Sum>, x: f32) {
  let bits = bitcast<u32>(x);
  let exponent = (bits >> 23u) & 255u;
  let digits = (bits & 0x7fffffu) | select(0u, 0x800000u, exponent > 0u);
  let place = max(exponent, 1u) + ORIGINu - 150u;
  let shift = place % 32u;
  let first = place / 32u;
  let turn = select(0u, 0xffffffffu, bits >= 0x80000000u);
  let idle = turn & 1u;
  var carry = idle;
  for (var j = first; j < WORDSu; j++) {
    var own = 0u;
    if (j == first) { own = digits << shift; }
    if (j == first + 1u) { own = (digits >> 1u) >> (31u - shift); }
    own ^= turn;
    let one = (*p).words[j] + own;
    let two = one + carry;
    (*p).words[j] = two;
    carry = select(0u, 1u, one < own || two < one);
    if (j > first && carry == idle) { break; }
  }
}
fn pb_take(given: Sum, raw: u32) -> Sum {
  var a = given;
  let x = pb_float(raw);
  let bits = bitcast<u32>(x);
  if ((bits & 0x7fffffffu) < 0x7f800000u) { pb_put(&a, x); }
  a.nan = a.nan || (bits & 0x7fffffffu) > 0x7f800000u;
  a.high = a.high || bits == 0x7f800000u;
  a.low = a.low || bits == 0xff800000u;
  return a;
}
fn pb_is_zero(p: ptr<function, Sum>) -> bool {
  var any = 0u;
  for (var k = 0u; k < WORDSu; k++) { any |= (*p).words[k]; }
  return any == 0u;
}
fn pb_bit(p: ptr<function, Sum>, place: u32) -> u32 {
  return ((*p).words[place / 32u] >> (place % 32u)) & 1u;
}
fn pb_rest(p: ptr<function, Sum>, count: u32) -> bool {
  for (var k = 0u; k < count / 32u; k++) { if ((*p).words[k] != 0u) { return true; } }
  return ((*p).words[count / 32u] & ((1u << (count % 32u)) - 1u)) != 0u;
}
// The magnitude of the words, rounded to the digits of the dtype.
fn pb_rounded(p: ptr<function, Sum>, sign: u32) -> u32 {
  var top = WORDSu - 1u;
  while ((*p).words[top] == 0u) { top -= 1u; }
  let length = 32u * top + 32u - countLeadingZeros((*p).words[top]);
  let drop = max(max(length, DIGITSu) - DIGITSu, LEASTu);
  var number = 0u;
  for (var k = length; k > drop; k--) { number = 2u * number + pb_bit(p, k - 1u); }
  if (pb_bit(p, drop - 1u) == 1u && ((number & 1u) == 1u || pb_rest(p, drop - 1u))) {
    number += 1u;
  }
  let zeros = countLeadingZeros(number);
  let exponent = i32(31u - zeros + drop) - ORIGIN;
  if (exponent >= LIMIT) { return sign | 0x7f800000u; }
  return f32_packed(sign, exponent + 127, vec2<u32>(0u, number << zeros));
}
fn pb_end(given: Sum) -> u32 {
  var a = given;
  let x = pb_float(a.x);
  let bits = bitcast<u32>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) { return a.x; }
  let high = a.high || bits == 0x7f800000u;
  let low = a.low || bits == 0xff800000u;
  if (a.nan || (high && low)) { return pb_raw(0x7fc00000u); }
  if (high || low) { return pb_raw(select(0xff800000u, 0x7f800000u, high)); }
  if (pb_is_zero(&a)) { return a.x; }
  pb_put(&a, x);
  if (pb_is_zero(&a)) { return pb_raw(0u); }
  let negative = a.words[WORDS - 1] >= 0x80000000u;
  if (negative) {
    var carry = 1u;
    for (var k = 0u; k < WORDSu; k++) {
      a.words[k] = ~a.words[k] + carry;
      carry = select(0u, carry, a.words[k] == 0u);
    }
  }
  return pb_raw(pb_rounded(&a, select(0u, 0x80000000u, negative)));
}
fn pb_raw(bits: u32) -> u32 {
  let x = pb_c(bits);
  return WRITE;
}"""


def exact_sum(dtype: DType) -> str:
    """The accumulator of float16, bfloat16 or float32."""
    form = FORMATS[dtype]
    words = {
        "WORDS": WORDS,
        "ORIGIN": ORIGIN,
        "DIGITS": form.digits,
        "LEAST": form.lowest + ORIGIN,
        "LIMIT": form.limit,
        "READ": convert(loaded("x", dtype), dtype, dt.float32),
        "WRITE": stored(convert("x", dt.float32, dtype), dtype),
    }
    text = _SUM
    for name, value in words.items():
        text = text.replace(name, str(value))
    return text
