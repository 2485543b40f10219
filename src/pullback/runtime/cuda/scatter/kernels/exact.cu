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

// A double this large has an integer in its last bits: adding to it is a conversion to fixed point.
constexpr double MAGIC = 6755399441055744.0;  // 1.5 * 2**52
constexpr u64 MAGIC_BITS = 0x4338000000000000ull;

DEVICE double power_of_two(int exponent) {
  return __longlong_as_double((i64)(exponent + 1023) << 52);
}

// Values that need the first limb only, or the first two: nearly all, without a division. A limb is
// the nearest integer here, so that the second can have the other sign.
struct Near {
  double units, finer;  // of the first limb in one, and of the second in one of the first
  u32 first, second;    // the least fields of values that one limb holds, and two
  __device__ Near(const Layout& l)
      : units(power_of_two(l.bits - l.top)), finer(power_of_two(l.bits)),
        first(least_field(150 + l.top - l.bits)), second(least_field(150 + l.top - 2 * l.bits)) {}
  __device__ static u32 least_field(int field) { return field > 1 ? (u32)field : 1u; }
  // One limb holds a value if it is less than `finite()` over the least of such values.
  __device__ u32 over(u32 value) const { return (value << 1) - (first << 24); }
  __device__ u32 finite() const { return (255 - first) << 24; }
  __device__ bool one(u32 value) const { return over(value) < finite(); }
  __device__ bool two(u32 value) const {
    return (value << 1) - (second << 24) < (255 - second) << 24;
  }
  // The limbs as last bits of MAGIC.
  __device__ double high(u32 value) const {
    return fma((double)__int_as_float((int)value), units, MAGIC);
  }
  __device__ double low(u32 value, double high) const {
    return fma(fma((double)__int_as_float((int)value), units, MAGIC - high), finer, MAGIC);
  }
};

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

#if defined(VALUE_float32)
// x plus the sum in two limbs, where a conversion to float rounds once: the result is normal, and what
// is below the first limb only decides between neighbours. False if that cannot be said.
DEVICE bool settle_near(Value& x, i64 high, i64 low, const Layout& l, const Near& near) {
  const u32 bits = single(x);
  if (l.limbs > 2 || l.top - l.bits < -125 || (bits << 1 && !near.two(bits))) return false;
  const i64 over = low >> l.bits;
  i64 sum = high + over, rest = low - (i64)((u64)over << l.bits);
  if ((sum | rest) == 0) return true;
  const double a = near.high(bits);
  rest += (i64)(bits_of(near.low(bits, a)) - MAGIC_BITS);
  const i64 more = rest >> l.bits;
  sum += (i64)(bits_of(a) - MAGIC_BITS) + more;
  if (rest != (i64)((u64)more << l.bits)) {
    if (sum + (1ll << 26) >= 0 && sum <= 1ll << 26) return false;
    sum |= 1;  // odd: more than 25 bits above it, so that it is no tie
  }
  x = (float)sum * (float)power_of_two(l.top - l.bits);
  return true;
}
#else
DEVICE bool settle_near(Value&, i64, i64, const Layout&, const Near&) { return false; }
#endif

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
