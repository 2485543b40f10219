"""The device functions that row kernels call: copies to shared memory, and quotients."""

from __future__ import annotations

from pullback.compile.kernel.order import BLOCK

__all__ = ["HEAD", "PAD", "WALK_HEAD"]

PAD = 64  # bytes between blocks of a row, so that teams side by side use other banks

HEAD = """
template <int M, int S> struct Rows {
  long long rows, length, together, room, slots, step[M], place[S];
};
#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name)                          \\
  extern __shared__ __align__(16) unsigned char pb_bytes[]; \\
  type* name = reinterpret_cast<type*>(pb_bytes)
#endif
// Begins to copy 16 bytes to shared memory. `pb_begun` ends a group of such copies; `pb_arrived`
// waits for all groups that this thread began but the last LATER.
PB_DEVICE void pb_begin(void* to, const void* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const unsigned at = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
#else
  *(Pack<unsigned, 4>*)to = *(const Pack<unsigned, 4>*)from;
#endif
}
PB_DEVICE void pb_begun() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int LATER> PB_DEVICE void pb_arrived() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
#endif
}
// x / d, rounded right, without a branch. `r` is 1 / d, `below` the same rounded towards 0, and
// `rest` what that lacks, so that the first quotient is one of the neighbours of the true one: a
// correction by the exact remainder gives the right one (Markstein). The remainder is exact if no
// number is so small or large that it could be rounded: d between 2**-24 and 2**24, x 0 or between
// 2**-100 and 2**100, of which `low` and `high` know. Its sign is turned so that a zero keeps its.
struct Divisor { float d, r, below, rest; };
PB_DEVICE Divisor pb_divisor(const float d) {
  const float r = 1.0f / d;
  const float below = fmaf(-r, d, 1.0f) < 0.0f ? __int_as_float(__float_as_int(r) - 1) : r;
  return Divisor{d, r, below, fmaf(-below, d, 1.0f) * below};
}
PB_DEVICE bool pb_is_fair(const Divisor& by) { return by.d > 0x1p-24f && by.d < 0x1p+24f; }
PB_DEVICE float pb_quotient(const float x, const Divisor& by) {
  const float q = fmaf(x, by.below, x * by.rest);
  return fmaf(-fmaf(q, by.d, -x), by.r, q);
}
static __device__ __noinline__ float pb_divide(const float x, const float d) { return x / d; }
PB_DEVICE void pb_note(const float x, unsigned& low, float& high) {
  const unsigned size = ((unsigned)__float_as_int(x) << 1) - 1;  // the largest of all for 0
  low = size < low ? size : low;
  high = fmaxf(high, fabsf(x));
}
// V neighbours, which are read or written at once.
template <int V, typename T> PB_DEVICE void pb_unpack(T* to, const T* from) {
  const Pack<T, V> all = pb_pack<T, V>(from);
#pragma unroll
  for (int v = 0; v < V; ++v) to[v] = all.v[v];
}
template <int V, typename T> PB_DEVICE void pb_repack(T* to, const T* from) {
  Pack<T, V> all;
#pragma unroll
  for (int v = 0; v < V; ++v) all.v[v] = from[v];
  *reinterpret_cast<Pack<T, V>*>(to) = all;
}
// Copies a row to shared memory, with gaps between blocks.
template <typename T>
PB_DEVICE void pb_fetch(T* to, const T* from, const int n, const int first, const int step) {
  constexpr int V = 16 / sizeof(T), GAP = @PAD@ / sizeof(T);
  if ((((unsigned long long)from | n * sizeof(T)) & 15) == 0) {
    for (unsigned i = first * V; i < (unsigned)n; i += step * V)
      pb_begin(to + i + i / @BLOCK@ * GAP, from + i);
  } else {
    for (unsigned i = first; i < (unsigned)n; i += step) to[i + i / @BLOCK@ * GAP] = from[i];
  }
}
""".replace("@PAD@", str(PAD)).replace("@BLOCK@", str(BLOCK))

WALK_HEAD = """
#ifndef SPIN
#define SPIN() __nanosleep(20)
#endif
// The threads of a team wait for each other, `own` of them, a multiple of 32; and one thread sees
// what others have written to shared memory.
#ifndef PB_EMULATED
PB_DEVICE void pb_meet_team(const int team, const int own) {
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(own) : "memory");
}
PB_DEVICE void pb_seen() { __threadfence_block(); }
#endif
// V accumulators that lie side by side, at once where they have a size that allows it.
template <int V, typename T> PB_DEVICE void pb_take(T* to, const T* from) {
  constexpr int W = 16 % sizeof(T) ? 1 : 16 / sizeof(T) < V ? 16 / sizeof(T) : V;
#pragma unroll
  for (int v = 0; v < V; v += W) {
    if constexpr (W > 1) pb_unpack<W>(to + v, from + v);
    else to[v] = from[v];
  }
}
template <int V, typename T> PB_DEVICE void pb_give(T* to, const T* from) {
  constexpr int W = 16 % sizeof(T) ? 1 : 16 / sizeof(T) < V ? 16 / sizeof(T) : V;
#pragma unroll
  for (int v = 0; v < V; v += W) {
    if constexpr (W > 1) pb_repack<W>(to + v, from + v);
    else to[v] = from[v];
  }
}
"""
