// The exact sum of floats in limbs of int64, as pullback/compile/fixed_point.py defines it.
#if defined(VALUE_float16)
constexpr int DIGITS = 11, LOWEST = -24, LIMIT = 16;
DEVICE u32 single(Value v) { return (u32)__float_as_int(pb_from_float16(v.bits)); }
DEVICE Value of_bits(u32 bits) { return {(u16)bits}; }
DEVICE u32 sign_bit() { return 0x8000u; }
#elif defined(VALUE_bfloat16)
constexpr int DIGITS = 8, LOWEST = -133, LIMIT = 128;
DEVICE u32 single(Value v) { return (u32)v.bits << 16; }
DEVICE Value of_bits(u32 bits) { return {(u16)bits}; }
DEVICE u32 sign_bit() { return 0x8000u; }
#else
constexpr int DIGITS = 24, LOWEST = -149, LIMIT = 128;
DEVICE u32 single(Value v) { return (u32)__float_as_int(v); }
DEVICE Value of_bits(u32 bits) { return __int_as_float((int)bits); }
DEVICE u32 sign_bit() { return 0x80000000u; }
#endif
constexpr u32 INFINITE = (u32)(LIMIT - DIGITS - LOWEST + 2) << (DIGITS - 1);
constexpr u32 QUIET = INFINITE | 1u << (DIGITS - 2);
constexpr int MAX_LIMBS = 12;
constexpr u32 PLUS = 1, MINUS = 2, NAN_SEEN = 4;  // what is not finite among contributions

struct Layout { int top, bits, limbs; };

// What a thread has seen of the sizes of values: the greatest, and the least that is not zero, as
// bits less one, so that zero is no candidate.
struct Range {
  u32 highest = 0, least = ~0u;
  __device__ void see(Value v) {
    const u32 size = single(v) & 0x7fffffffu;
    highest = size > highest ? size : highest;
    least = size - 1 < least ? size - 1 : least;
  }
  // All threads of a warp have to call it.
  __device__ void tell(Slot* slot) {
    for (int by = 16; by > 0; by /= 2) {
      const u32 a = __shfl_down_sync(WARP, highest, by, 32);
      const u32 b = __shfl_down_sync(WARP, least, by, 32);
      highest = a > highest ? a : highest;
      least = b < least ? b : least;
    }
    if (threadIdx.x % 32 != 0) return;
    const u32 lowest = highest ? ~(least + 1) : 0;
    // The greatest that is finite can only be smaller: any layout above it will do.
    const bool special = highest >= 0x7f800000u;
    highest = special ? 0x7f7fffffu : highest;
    // Most warps find that others have told as much: a read is cheaper than an atomic.
    volatile Slot* now = slot;
    if (highest > now->highest) atomicMax(&slot->highest, highest);
    if (lowest > now->lowest) atomicMax(&slot->lowest, lowest);
    if (special && !now->special) atomicOr(&slot->special, 1u);
  }
};

// frexp's exponent of a float32 that is not zero.
DEVICE int exponent_of(u32 size) {
  const int field = (int)(size >> 23);
  return field ? field - 126 : 32 - __clz((int)size) - 149;
}

DEVICE Layout layout_of(const Slot* slot, int bits) {
  if (slot->highest == 0) return {0, bits, 1};
  const int top = exponent_of(slot->highest);
  int low = exponent_of(~slot->lowest) - 24;
  low = low < -149 ? -149 : low;
  int limbs = 1;
  while (limbs * bits < top - low) ++limbs;
  return {top, bits, limbs};
}

DEVICE double power_of_two(int exponent) {
  return __longlong_as_double((i64)(exponent + 1023) << 52);
}

DEVICE u64 bits_of(double x) { return (u64)__double_as_longlong(x); }

// A finite value is `first` in limb `at` and `second` in the next.
DEVICE void cut(u32 bits, const Layout& l, int& at, i64& first, i64& second) {
  const int field = (bits >> 23) & 255;
  const u64 digits = (bits & 0x7fffffu) | (field ? 0x800000u : 0u);
  int shift = (field ? field : 1) - 150 - l.top + l.bits;
  at = 0;
  second = 0;
  if (shift >= 0) {
    first = (i64)(digits << shift);
  } else {
    const int limb = (l.bits - 1 - shift) / l.bits;
    shift += limb * l.bits;
    at = limb - 1;
    first = (i64)(digits >> (l.bits - shift));
    second = (i64)((digits << shift) & ((1ull << l.bits) - 1));
  }
  if (bits >> 31) {
    first = -first;
    second = -second;
  }
}

DEVICE u32 special_of(u32 bits) {
  return (bits & 0x7fffffffu) > 0x7f800000u ? NAN_SEEN : bits >> 31 ? MINUS : PLUS;
}

// m * 2**exponent, and a little more if `sticky`, rounded half to even.
DEVICE Value encode(bool negative, u64 m, int exponent, bool sticky) {
  if (m == 0) return of_bits(0);
  const u32 sign = negative ? sign_bit() : 0u;
  const int length = 64 - __clzll((i64)m);
  int drop = length - DIGITS > LOWEST - exponent ? length - DIGITS : LOWEST - exponent;
  u64 q = m;
  if (drop <= 0) {
    drop = 0;
  } else if (drop >= 64) {
    q = drop == 64 && (m > 1ull << 63 || (m == 1ull << 63 && sticky));
  } else {
    const u64 rest = m & ((1ull << drop) - 1), half = 1ull << (drop - 1);
    q = m >> drop;
    q += rest > half || (rest == half && (sticky || (q & 1)));
  }
  if (q == 0) return of_bits(sign);
  int last = exponent + drop;
  if (q >> DIGITS) {
    q >>= 1;
    ++last;
  }
  int up = DIGITS - (64 - __clzll((i64)q));
  up = up < last - LOWEST ? up : last - LOWEST;
  q <<= up;
  last -= up;
  if (last > LIMIT - DIGITS) return of_bits(sign | INFINITE);
  constexpr u64 ONE = 1ull << (DIGITS - 1);
  const u32 field = q >= ONE ? (u32)(last - LOWEST + 1) << (DIGITS - 1) : 0u;
  return of_bits(sign | (field + (u32)(q >= ONE ? q - ONE : q)));
}

template <int K> DEVICE void carry(i64 (&limb)[K], int bits) {
#pragma unroll
  for (int j = K - 1; j > 0; --j) {
    const i64 c = limb[j] >> bits;
    limb[j] -= (i64)((u64)c << bits);
    limb[j - 1] += c;
  }
}

// What is lost when a and b are added up.
DEVICE double lost(double a, double b, double sum) {
  const double part = sum - a;
  return (a - (sum - part)) + (b - part);
}

// x + high + low, rounded once; `exact` if low is not rounded itself. False if that cannot be said: the
// sum in double is off by less than four units of its last place, which must not matter, and the result
// has to be normal.
DEVICE bool round_once(Value& x, double high, double low, bool exact = true) {
  if (high == 0 && low == 0) return true;
  const double first = high + wide(x), sum = first + low, size = fabs(sum);
  constexpr u64 HALF = 1ull << (52 - DIGITS);
  const u64 rest = bits_of(sum) & (2 * HALF - 1);
  if (size < power_of_two(LOWEST + DIGITS - 1) || !(size < power_of_two(LIMIT - 1))) return false;
  if (2 * size < fabs(first)) return false;
  if (rest - HALF + 4 <= 8) {  // about half way: often so exactly, since values have few digits
    if (!exact || lost(high, wide(x), first) != 0 || lost(first, low, sum) != 0) return false;
  }
  x = narrow(sum);
  return true;
}

// The same for integers in units of 2**unit and 2**finer.
DEVICE bool round_once(Value& x, i64 high, i64 low, int unit, int finer) {
  constexpr i64 MOST = 1ll << 53;  // up to it, a double has all integers
  if (high < -MOST || high > MOST) return false;
  return round_once(x, (double)high * power_of_two(unit), (double)low * power_of_two(finer),
                    low >= -MOST && low <= MOST);
}

// x plus the sum in limbs. Limbs past those of the layout are zero.
template <int K> DEVICE Value settle(Value x, i64 (&limb)[K], const Layout& l, u32 special) {
  carry(limb, l.bits);
  i64 any = 0;
#pragma unroll
  for (int j = 0; j < K; ++j) any |= limb[j];
  const u32 bits = single(x), size = bits & 0x7fffffffu;
  if ((any == 0 && special == 0) || size > 0x7f800000u) return x;
  if (size == 0x7f800000u) special |= special_of(bits);
  if (special & NAN_SEEN || special == (PLUS | MINUS)) return of_bits(QUIET);
  if (special) return of_bits(INFINITE | (special == MINUS ? sign_bit() : 0u));
  int at;
  i64 first, second;
  cut(bits, l, at, first, second);
#pragma unroll
  for (int j = 0; j < K; ++j) limb[j] += (j == at ? first : 0) + (j == at + 1 ? second : 0);
  carry(limb, l.bits);
  const bool negative = limb[0] < 0;
  if (negative) {
#pragma unroll
    for (int j = 0; j < K; ++j) limb[j] = -limb[j];
    carry(limb, l.bits);
  }
  u64 m = 0;
  int exponent = 0;
  bool sticky = false;
#pragma unroll
  for (int j = 0; j < K; ++j) {
    const u64 digit = (u64)limb[j];
    if (m == 0) {
      m = digit;
      exponent = l.top - (j + 1) * l.bits;
    } else if (m < 1ull << 25) {
      m = m << l.bits | digit;
      exponent -= l.bits;
    } else {
      sticky |= digit != 0;
    }
  }
  return encode(negative, m, exponent, sticky);
}

// The same if x can be greater than all that the limbs hold.
DEVICE Value settle_far(Value x, i64 (&limb)[MAX_LIMBS], Layout l, u32 special) {
  const u32 size = single(x) & 0x7fffffffu;
  const int beyond = size ? exponent_of(size) - l.top : 0;
  const int more = beyond > 0 ? (beyond + l.bits - 1) / l.bits : 0;
  if (more > 0)
    for (int j = MAX_LIMBS - 1; j >= 0; --j) limb[j] = j < more ? 0 : limb[j - more];
  l.top += more * l.bits;
  return settle(x, limb, l, special);
}
