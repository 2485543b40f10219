"""The accumulator of exact sums, as `fixed_point` defines them: 384 bits in words of 32."""

from __future__ import annotations

from pullback.compile.kernel.fixed_point import FORMATS
from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.runtime.cuda.printer import convert, storage

__all__ = ["exact_sum"]

_SUM = """
#define WORDS 12
#define ORIGIN 192  // the words count units of 2**-ORIGIN, below every bit of a float
struct Sum {{
  long long words[WORDS];
  {value} x;
  bool high, low, nan;  // infinities and NaN among the contributions
}};
PB_DEVICE float pb_float({value} x) {{ return {read}; }}
PB_DEVICE Sum pb_start({value} x) {{
  Sum a;
  for (int k = 0; k < WORDS; ++k) a.words[k] = 0;
  a.x = x;
  a.high = a.low = a.nan = false;
  return a;
}}
PB_DEVICE void pb_put(Sum& a, float x) {{
  const unsigned bits = (unsigned)__float_as_int(x), exponent = bits >> 23 & 255;
  const long long digits = (bits & 0x7fffff) | (exponent ? 0x800000u : 0u);
  const int place = (exponent ? (int)exponent : 1) - 150 + ORIGIN;
  const long long wide = digits << (place % 32);
  const long long low = wide & 0xffffffffLL, high = wide >> 32;
  a.words[place / 32] += bits >> 31 ? -low : low;
  a.words[place / 32 + 1] += bits >> 31 ? -high : high;
}}
PB_DEVICE void pb_take(Sum& a, {value} given) {{
  const float x = pb_float(given);
  const unsigned bits = (unsigned)__float_as_int(x), magnitude = bits & 0x7fffffff;
  if (magnitude < 0x7f800000) return pb_put(a, x);
  a.nan = a.nan || magnitude > 0x7f800000;
  a.high = a.high || bits == 0x7f800000;
  a.low = a.low || bits == 0xff800000;
}}
// Carries: all words but the last, which has the sign, are below 2**32. Whether there is any.
PB_DEVICE bool pb_carry(Sum& a) {{
  long long any = 0;
  for (int k = 0; k + 1 < WORDS; ++k) {{
    a.words[k + 1] += a.words[k] >> 32;
    a.words[k] &= 0xffffffffLL;
    any |= a.words[k];
  }}
  return any || a.words[WORDS - 1];
}}
PB_DEVICE unsigned pb_bit(const Sum& a, int place) {{
  return (unsigned)(a.words[place / 32] >> (place % 32)) & 1;
}}
PB_DEVICE {value} pb_end(const Sum& given) {{
  Sum a = given;
  const float x = pb_float(a.x);
  const unsigned bits = (unsigned)__float_as_int(x);
  if (x != x) return a.x;
  const bool high = a.high || bits == 0x7f800000, low = a.low || bits == 0xff800000;
  float sum;
  if (a.nan || high || low) {{
    sum = __int_as_float(a.nan || (high && low) ? 0x7fc00000 : high ? 0x7f800000 : 0xff800000);
    return {write};
  }}
  if (!pb_carry(a)) return a.x;
  pb_put(a, x);
  sum = 0.0f;
  if (!pb_carry(a)) return {write};
  const bool negative = a.words[WORDS - 1] < 0;
  if (negative) {{
    for (int k = 0; k < WORDS; ++k) a.words[k] = -a.words[k];
    pb_carry(a);
  }}
  int length = 32 * WORDS;
  while (!pb_bit(a, length - 1)) --length;
  const int least = {lowest} + ORIGIN, drop = length - {digits} > least ? length - {digits} : least;
  unsigned number = 0;
  for (int k = length - 1; k >= drop; --k) number = 2 * number + pb_bit(a, k);
  if (pb_bit(a, drop - 1)) {{
    bool rest = number & 1;
    for (int k = 0; k + 1 < drop && !rest; ++k) rest = pb_bit(a, k);
    number += rest;
  }}
  const int top = 32 - __clz((int)number) + drop - ORIGIN;
  sum = top > {limit} ? __int_as_float(0x7f800000)
                      : (float)ldexp((double)number, drop - ORIGIN);
  sum = negative ? -sum : sum;
  return {write};
}}"""


def exact_sum(dtype: DType) -> str:
    """The accumulator of float16, bfloat16 or float32."""
    form = FORMATS[dtype]
    return _SUM.format(
        value=storage(dtype),
        read=convert("x", dtype, dt.float32),
        write=convert("sum", dt.float32, dtype),
        lowest=form.lowest,
        digits=form.digits,
        limit=form.limit,
    )
