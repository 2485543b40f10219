// Types, and how contributions fold into one: shared by every kernel of gather and scatter.
// Before it stand the helpers of the printer, and the definitions
//   VALUE_<dtype>, INDEX (a C type), FOLD_<add|mul|min|max|set>.
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned int u32;
typedef unsigned short u16;
typedef INDEX Index;

#define DEVICE static __device__ __forceinline__
#define KERNEL extern "C" __global__ void
#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name)                           \
  extern __shared__ __align__(16) unsigned char in_shared[]; \
  type* name = reinterpret_cast<type*>(in_shared)
#endif
constexpr u32 WARP = 0xffffffffu;

// A launch may begin before those of the same call that come before it have ended: this waits for them,
// and lets the next one begin as soon as all thread blocks are here.
DEVICE void wait_for_others() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents; griddepcontrol.wait;" ::: "memory");
#endif
}

// Words of a call, zero at its start but for the last.
struct Slot {
  u64 bad;        // the greatest ~position of an index out of range
  u32 highest;    // the greatest bits of a finite |value|
  u32 lowest;     // the greatest ~bits of a finite |value| that is not zero
  u32 special;    // whether a value is infinite or a NaN
  u32 done;       // thread blocks that have written their parts
  u64 arrived;    // thread blocks at the barriers over the grid; in the high half, votes against
  volatile i64* told;  // a word of the host's, which may look at it when the device has ended
};

DEVICE void report(Slot* slot, i64 position) {
  atomicMax(&slot->bad, ~(u64)position);
  *slot->told = 1;
}

// Whether an index is in range; negative ones count from the end.
DEVICE bool locate(Index index, i64 rows, i64& row) {
  row = (i64)index;
  if (Index(-1) < Index(0)) row += row < 0 ? rows : 0;
  return (u64)row < (u64)rows;
}

template <typename T, int N> struct alignas(N * sizeof(T)) Pack { T at[N]; };

#if defined(VALUE_float16) || defined(VALUE_bfloat16)
struct Value { u16 bits; };
#define IS_FLOAT 1
#elif defined(VALUE_float32)
typedef float Value;
#define IS_FLOAT 1
#elif defined(VALUE_float64)
typedef double Value;
#define IS_FLOAT 1
#elif defined(VALUE_int8)
typedef signed char Value;
#elif defined(VALUE_int16)
typedef short Value;
#elif defined(VALUE_int32)
typedef int Value;
#elif defined(VALUE_int64)
typedef i64 Value;
#elif defined(VALUE_uint8)
typedef unsigned char Value;
#elif defined(VALUE_uint16)
typedef u16 Value;
#elif defined(VALUE_uint32)
typedef u32 Value;
#elif defined(VALUE_uint64)
typedef u64 Value;
#endif

#if defined(VALUE_float16)
DEVICE double wide(Value v) { return pb_from_float16(v.bits); }
DEVICE Value narrow(double x) { return {pb_to_float16(pb_round_to_odd(x))}; }
#elif defined(VALUE_bfloat16)
DEVICE double wide(Value v) { return pb_from_bfloat16(v.bits); }
DEVICE Value narrow(double x) { return {pb_to_bfloat16(pb_round_to_odd(x))}; }
#elif IS_FLOAT
DEVICE double wide(Value v) { return v; }
DEVICE Value narrow(double x) { return (Value)x; }
#elif defined(VALUE_uint64)
DEVICE u64 wide(Value v) { return v; }
DEVICE Value narrow(u64 x) { return x; }
#else
DEVICE i64 wide(Value v) { return v; }
DEVICE Value narrow(i64 x) { return (Value)x; }
#endif
typedef decltype(wide(Value())) Wide;

// A fold: Sum is its state; `start` is empty, `take` one more, `join` two in order, `result` with x.
#if defined(FOLD_set)
struct Sum { Value last; int some; };
DEVICE Sum start() { return {Value(), 0}; }
DEVICE void take(Sum& s, Value v) { s.last = v; s.some = 1; }
DEVICE Sum join(Sum a, Sum b) { return b.some ? b : a; }
DEVICE Value result(Value x, Sum s) { return s.some ? s.last : x; }
#elif defined(FOLD_add) && defined(VALUE_float64)
struct Sum { double high, low; };  // twice the digits
DEVICE Sum start() { return {0.0, 0.0}; }
DEVICE Sum join(Sum a, Sum b) {
  const double s = a.high + b.high, t = s - a.high;
  return {s, a.low + b.low + ((a.high - (s - t)) + (b.high - t))};
}
DEVICE void take(Sum& s, Value v) { s = join(s, {v, 0.0}); }
DEVICE Value result(Value x, Sum s) {
  take(s, x);
  return fabs(s.high) < 1.0 / 0.0 && fabs(s.low) < 1.0 / 0.0 ? s.high + s.low : s.high;
}
#elif IS_FLOAT
typedef double Sum;
#if defined(FOLD_add)
DEVICE Sum start() { return 0.0; }
DEVICE Sum join(Sum a, Sum b) { return a + b; }
#elif defined(FOLD_mul)
DEVICE Sum start() { return 1.0; }
DEVICE Sum join(Sum a, Sum b) { return a * b; }
#elif defined(FOLD_min)
DEVICE Sum start() { return 1.0 / 0.0; }
DEVICE Sum join(Sum a, Sum b) { return a < b || a != a ? a : b; }
#elif defined(FOLD_max)
DEVICE Sum start() { return -1.0 / 0.0; }
DEVICE Sum join(Sum a, Sum b) { return a > b || a != a ? a : b; }
#endif
DEVICE void take(Sum& s, Value v) { s = join(s, wide(v)); }
DEVICE Value result(Value x, Sum s) { return narrow(join(wide(x), s)); }
#else
typedef Wide Sum;
#if defined(FOLD_add)
DEVICE Sum start() { return 0; }
DEVICE Sum join(Sum a, Sum b) { return (Sum)((u64)a + (u64)b); }
#elif defined(FOLD_mul)
DEVICE Sum start() { return 1; }
DEVICE Sum join(Sum a, Sum b) { return (Sum)((u64)a * (u64)b); }
#elif defined(FOLD_min)
DEVICE Sum start() { return (Sum)(Sum(-1) < 0 ? ~0ull >> 1 : ~0ull); }
DEVICE Sum join(Sum a, Sum b) { return a < b ? a : b; }
#elif defined(FOLD_max)
DEVICE Sum start() { return (Sum)(Sum(-1) < 0 ? 1ull << 63 : 0); }
DEVICE Sum join(Sum a, Sum b) { return a > b ? a : b; }
#endif
DEVICE void take(Sum& s, Value v) { s = join(s, wide(v)); }
DEVICE Value result(Value x, Sum s) { return narrow(join(wide(x), s)); }
#endif

#if defined(FOLD_set)
DEVICE Sum below(Sum s, int by, int width) { return s; }  // its lanes are never joined
#elif defined(FOLD_add) && defined(VALUE_float64)
DEVICE Sum below(Sum s, int by, int width) {
  return {__shfl_down_sync(WARP, s.high, by, width), __shfl_down_sync(WARP, s.low, by, width)};
}
#else
DEVICE Sum below(Sum s, int by, int width) { return __shfl_down_sync(WARP, s, by, width); }
#endif

// The fold of `width` neighbouring lanes, in the first of them.
DEVICE Sum tree(Sum s, int width) {
  for (int by = width / 2; by > 0; by /= 2) s = join(s, below(s, by, width));
  return s;
}

// The sum over the lanes up to this one.
template <typename T> DEVICE T upto_lane(T own) {
  for (int by = 1; by < 32; by *= 2) {
    const T below = __shfl_up_sync(WARP, own, by, 32);
    own += (int)threadIdx.x % 32 >= by ? below : 0;
  }
  return own;
}

// The sum over all lanes, and all bits that one of them has.
#if __CUDA_ARCH__ >= 800
DEVICE int sum_of_lanes(int own) { return __reduce_add_sync(WARP, own); }
DEVICE u32 any_of_lanes(u32 own) { return __reduce_or_sync(WARP, own); }
#else
DEVICE int sum_of_lanes(int own) {
  for (int by = 16; by > 0; by /= 2) own += __shfl_down_sync(WARP, own, by, 32);
  return __shfl_sync(WARP, own, 0, 32);
}
DEVICE u32 any_of_lanes(u32 own) {
  for (int by = 16; by > 0; by /= 2) own |= __shfl_down_sync(WARP, own, by, 32);
  return __shfl_sync(WARP, own, 0, 32);
}
#endif

// The sum over the threads before this one, of a block of WARPS; `all` is the sum over all.
template <int WARPS, typename T> DEVICE T before(T own, T* sums, T& all) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const T upto = upto_lane(own);
  __syncthreads();
  if (lane == 31) sums[warp] = upto;
  __syncthreads();
  const T sum = lane < WARPS ? sums[lane] : 0, upto_warp = upto_lane(sum);
  all = __shfl_sync(WARP, upto_warp, 31, 32);
  return __shfl_sync(WARP, upto_warp - sum, warp, 32) + upto - own;
}

// Reads what is not needed again, and need not stay in the cache.
template <typename T> DEVICE T read_once(const T* from) {
#if __CUDA_ARCH__ >= 800
  if (sizeof(T) == 16) {
    T value;
    u32* to = reinterpret_cast<u32*>(&value);
    asm("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
        : "l"(from));
    return value;
  }
#endif
  return *from;
}

// Copies to shared memory, through no register where that can be: a word, or four of them, of which only
// the first `bytes` are read, the others being zero. What a thread has copied is there for it after
// `copies_done`.
#if __CUDA_ARCH__ >= 800
DEVICE void copy_word(u32* to, const u32* from) {
  const u32 place = (u32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(place), "l"(from) : "memory");
}
DEVICE void copy_four(void* to, const void* from, int bytes) {
  const u32 place = (u32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(bytes)
               : "memory");
}
DEVICE void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#else
DEVICE void copy_word(u32* to, const u32* from) { *to = *from; }
DEVICE void copy_four(void* to, const void* from, int bytes) {
  Pack<u16, 8> four = {};
  for (int k = 0; k < bytes / 2; ++k) four.at[k] = static_cast<const u16*>(from)[k];
  *static_cast<Pack<u16, 8>*>(to) = four;
}
DEVICE void copies_done() {}
#endif
