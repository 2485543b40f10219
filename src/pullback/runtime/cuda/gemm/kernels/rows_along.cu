// Columns in which products lie side by side: a warp copies a step of each of its lines to shared
// memory, COPY bytes at a time.
constexpr int EACH = 64 / sizeof(Stored), LD = EACH + 16 / sizeof(Stored), STEP_BYTES = 32 * LD * sizeof(Stored);
extern "C" __global__ void __launch_bounds__(THREADS) NAME_along(Stored* __restrict__ out,
    Value* __restrict__ partials, const Stored* __restrict__ a, const Stored* __restrict__ b,
    const Nest<2> batch, const Line s) {
  PB_SHARED(Stored, shared);
  constexpr int PER = COPY / sizeof(Stored), ACROSS = EACH / PER, LINES = 32 / ACROSS;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 all = batch.size * s.chains * s.n, base = blockIdx.x * (i64)THREADS + warp * 32;
  Stored* memory = shared + warp * (STAGES * STEP_BYTES / sizeof(Stored));
  const Chain own(base + lane < all ? base + lane : all - 1, a, b, batch, s);
  const Stored* from[ACROSS];
  int counts[ACROSS];
#pragma unroll
  for (int d = 0; d < ACROSS; ++d) {
    const i64 i = base + lane / ACROSS + d * LINES;
    const Chain other(i < all ? i : all - 1, a, b, batch, s);
    from[d] = other.b + lane % ACROSS * PER;
    counts[d] = other.count - lane % ACROSS * PER;
  }
  const Shared to = pb_shared(memory) + (lane / ACROSS * LD + lane % ACROSS * PER) * sizeof(Stored);
  auto load = [&](int step) {
#pragma unroll
    for (int d = 0; d < ACROSS; ++d) {
      const int left = counts[d] - step * EACH, stage = step % STAGES * STEP_BYTES;
      const int given = left >= PER ? COPY : left > 0 ? left * (int)sizeof(Stored) : 0;
      pb_copy<COPY>(to + stage + d * LINES * LD * (int)sizeof(Stored),
                    from[d] + (given ? step * EACH : 0), given);
    }
  };
  constexpr int STEPS = CHAIN / EACH;
  Value sum = 0;
#pragma unroll
  for (int t = 0; t < STAGES - 1; ++t) {
    load(t);
    pb_commit();
  }
  for (int t = 0; t < STEPS; ++t) {
    pb_wait<STAGES - 2>();
    __syncwarp();
    if (t + STAGES - 1 < STEPS) load(t + STAGES - 1);
    pb_commit();
    const Stored* line = memory + t % STAGES * (STEP_BYTES / sizeof(Stored)) + lane * LD;
    const int left = own.count - t * EACH;
#pragma unroll
    for (int u = 0; u < EACH; ++u)
      if (u < left) sum = pb_fma(pb_wide(own.a[(t * EACH + u) * s.a_k]), pb_wide(line[u]), sum);
  }
  if (base + lane < all) own.put(out, partials, batch.size, s, sum);
}
