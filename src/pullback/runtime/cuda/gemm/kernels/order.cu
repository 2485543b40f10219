// Each thread counts its sums of matrix units that differ from chains of fused multiply-adds in the order of k.
PB_DEVICE double pb_draw(unsigned which, unsigned line, unsigned k) {
  u64 x = ((u64)(blockIdx.x * 2 + which) << 40) + ((u64)line << 20) + k;
  x = (x ^ x >> 31) * 0x9e3779b97f4a7c15ULL;
  x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 32;
  const u64 exponent = 1023 - 20 + x % 41;
  return __longlong_as_double((i64)((x & 0x800fffffffffffffULL) | exponent << 52));
}
extern "C" __global__ void __launch_bounds__(32) NAME(int* wrong) {
  const unsigned lane = threadIdx.x, row = lane / 4, turn = lane % 4;
  double found[4] = {}, sums[4] = {};
  for (unsigned k = 0; k < CHAIN; k += 4) {
    const double a[2] = {pb_draw(0, row, k + turn), pb_draw(0, row + 8, k + turn)};
    pb_multiply(found, a, pb_draw(1, row, k + turn));
    for (unsigned i = k; i < k + 4; ++i)
      for (unsigned e = 0; e < 4; ++e)
        sums[e] = fma(pb_draw(0, row + e / 2 * 8, i), pb_draw(1, turn * 2 + e % 2, i), sums[e]);
  }
  int count = 0;
  for (int e = 0; e < 4; ++e)
    count += __double_as_longlong(found[e]) != __double_as_longlong(sums[e]);
  wrong[blockIdx.x * 32 + lane] = count;
}
