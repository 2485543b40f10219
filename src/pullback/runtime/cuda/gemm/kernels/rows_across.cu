// Neighbouring threads read neighbouring columns.
extern "C" __global__ void __launch_bounds__(THREADS) NAME_across(Stored* __restrict__ out,
    Value* __restrict__ partials, const Stored* __restrict__ a, const Stored* __restrict__ b,
    const Nest<2> batch, const Line s) {
  const i64 all = batch.size * s.chains * s.n;
  for (i64 i = pb_first(); i < all; i += pb_step()) {
    const Chain own(i, a, b, batch, s);
    Value sum = 0;
    int k = 0;
    for (; k + AHEAD <= own.count; k += AHEAD) {
      Stored x[AHEAD];
#pragma unroll
      for (int u = 0; u < AHEAD; ++u) x[u] = own.b[(k + u) * s.b_k];
#pragma unroll
      for (int u = 0; u < AHEAD; ++u)
        sum = pb_fma(pb_wide(own.a[(k + u) * s.a_k]), pb_wide(x[u]), sum);
    }
    for (; k < own.count; ++k) sum = pb_fma(pb_wide(own.a[k * s.a_k]), pb_wide(own.b[k * s.b_k]), sum);
    own.put(out, partials, batch.size, s, sum);
  }
}
