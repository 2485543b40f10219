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
template <int COLUMNS, typename Out>
PB_DEVICE void pb_write(const Out& out, const float* c, int row, int column) {
  const int turn = threadIdx.x % 4;
  if (sizeof(Stored) == 2 && out.template wide<8>()) {
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int j = 0; j < COLUMNS / 8; j += 4) {
        union { Words words; Pack<Stored, 16 / sizeof(Stored)> all; } x;  // 8 numbers
#pragma unroll
        for (int i = 0; i < 4; ++i)
          x.words.v[i] = pb_pair(c[(j + i) * 4 + e * 2], c[(j + i) * 4 + e * 2 + 1]);
        pb_exchange(x.words.v);
        const int r = row + e * 8, at = column + (j + turn) * 8;
        if (r < out.m) pb_set<true>(out.row(r), out.template columns<16 / sizeof(Stored)>(at), x.all);
      }
    return;
  }
  const bool pairs = out.template wide<2>();
#pragma unroll
  for (int e = 0; e < 2; ++e)
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; ++j) {
      const int r = row + e * 8, at = column + j * 8 + turn * 2;
      if (r >= out.m) continue;
      const Pack<Stored, 2> both{{pb_narrow(c[j * 4 + e * 2]), pb_narrow(c[j * 4 + e * 2 + 1])}};
      if (pairs) pb_set<true>(out.row(r), out.template columns<2>(at), both);
      else pb_set<false>(out.row(r), out.template columns<2>(at), both);
    }
}
