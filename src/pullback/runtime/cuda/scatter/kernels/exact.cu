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
  u32 highest = 0, least = ~0u, special = 0;
  __device__ void see(Value v) {
    const u32 size = single(v) & 0x7fffffffu;
    const bool finite = size < 0x7f800000u;
    special |= !finite;
    highest = finite && size > highest ? size : highest;
    least = size - 1 < least ? size - 1 : least;
  }
  // All threads of a warp have to call it.
  __device__ void tell(Slot* slot) {
    for (int by = 16; by > 0; by /= 2) {
      const u32 a = __shfl_down_sync(WARP, highest, by, 32);
      const u32 b = __shfl_down_sync(WARP, least, by, 32);
      special |= __shfl_down_sync(WARP, special, by, 32);
      highest = a > highest ? a : highest;
      least = b < least ? b : least;
    }
    if (threadIdx.x % 32 != 0) return;
    const u32 lowest = highest ? ~(least + 1) : 0;
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
  const int limbs = (top - low + bits - 1) / bits;
  return {top, bits, limbs < 1 ? 1 : limbs};
}

// Values with a field from `first` on need the first limb only, those from `second` on the first two:
// nearly all values, without a division.
struct Near {
  int base, bits, first, second;
  __device__ Near(const Layout& l)
      : base(l.bits - 150 - l.top), bits(l.bits), first(-base > 1 ? -base : 1),
        second(-base - l.bits > 1 ? -base - l.bits : 1) {}
  __device__ bool one(u32 value) const {
    return (((value >> 23) & 255) - (u32)first) < (u32)(255 - first);
  }
  __device__ bool two(u32 value) const {
    return (((value >> 23) & 255) - (u32)second) < (u32)(255 - second);
  }
  // What goes into the two limbs.
  __device__ void split(u32 value, i64& high, i64& low) const {
    const int shift = (int)((value >> 23) & 255) + base;
    const u32 digits = (value & 0x7fffffu) | 0x800000u;
    const int down = -shift < 31 ? -shift : 31;
    const u64 a = shift >= 0 ? (u64)digits << shift : (u64)(digits >> down);
    const u64 b = shift >= 0 ? 0 : ((u64)digits << (bits + shift)) & ((1ull << bits) - 1);
    const u64 sign = (u64)((i64)(int)value >> 63);
    high = (i64)((a ^ sign) - sign);
    low = (i64)((b ^ sign) - sign);
  }
  // The two words of a value in the first limb: it has at most 39 digits.
  __device__ void words(u32 value, u32& low, u32& high) const {
    const int shift = (int)((value >> 23) & 255) + base;
    const u32 digits = (value & 0x7fffffu) | 0x800000u, sign = (u32)((int)value >> 31);
    low = ((digits << shift) ^ sign) - sign;
    high = (((digits >> 1) >> (31 - shift)) ^ sign) + (low == 0 ? sign & 1u : 0u);
  }
};

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
