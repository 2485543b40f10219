// What the threads of tensor cores leave.
// Four lanes have two neighbouring sums each of eight, for four such: lane i gets all eight of the i-th.
PB_DEVICE void pb_exchange(u32 (&x)[4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool upper = lane & step;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      const u32 got = __shfl_sync(~0u, upper ? x[i] : x[i + step], lane ^ step, 32);
      if (upper) x[i] = got;
      else x[i + step] = got;
    }
  }
}
// The sums of a thread are in rows `row` and 8 later, in pairs of COLUMNS that are 8 apart.
template <int COLUMNS>
PB_DEVICE void pb_write(Stored* __restrict__ out, const float* c, int row, int column, i64 m, i64 n) {
  const int turn = threadIdx.x % 4;
  if (sizeof(Stored) == 2 && n % 8 == 0 && (u64)out % 16 == 0) {
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int j = 0; j < COLUMNS / 8; j += 4) {
        Words x;
#pragma unroll
        for (int i = 0; i < 4; ++i) x.v[i] = pb_pair(c[(j + i) * 4 + e * 2], c[(j + i) * 4 + e * 2 + 1]);
        pb_exchange(x.v);
        const int r = row + e * 8, at = column + (j + turn) * 8;
        if (r < m && at < n) *reinterpret_cast<Words*>(out + r * n + at) = x;
      }
    return;
  }
  const bool pairs = n % 2 == 0 && (u64)out % (2 * sizeof(Stored)) == 0;
#pragma unroll
  for (int e = 0; e < 2; ++e)
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; ++j) {
      const int r = row + e * 8, at = column + j * 8 + turn * 2;
      if (r >= m || at >= n) continue;
      const Pack<Stored, 2> both{{pb_narrow(c[j * 4 + e * 2]), pb_narrow(c[j * 4 + e * 2 + 1])}};
      Stored* to = out + r * n + at;
      if (pairs) {
        *reinterpret_cast<Pack<Stored, 2>*>(to) = both;
      } else {
        to[0] = both.v[0];
        if (at + 1 < n) to[1] = both.v[1];
      }
    }
}
