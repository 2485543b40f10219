constexpr float LAG = 8;  // weights up to 2^8 lose nothing as floats of 16 bits
// softmax(scale query @ key.T) @ value for OWN queries of a head, by a running maximum. A head of the
// result begins with the base-2 logarithm of each row's sum of exponentials.
extern "C" __global__ void __launch_bounds__(NT, RESIDENT) NAME(
    Stored* __restrict__ out, const Stored* __restrict__ query, const Stored* __restrict__ key,
    const Stored* __restrict__ value, const unsigned char* __restrict__ mask,
    const u32* __restrict__ words, const Nest<4> heads, const Sizes s) {
  PB_SHARED(Stored, shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int rows = (int)s.rows, columns = (int)s.columns, width = (int)s.width;
  const u32 head = blockIdx.x / (u32)s.blocks;
  const int first = (int)(s.blocks - 1 - blockIdx.x % (u32)s.blocks) * OWN;  // long rows first
  i64 at[4] = {};
  pb_locate(heads, head, at);
  query += at[0];
  key += at[1];
  value += at[2];
  mask += at[3];
  Stored* other = shared + OWN * LD;
  auto load = [&](int step) {
    Stored* to = other + step % 2 * (2 * STEP * LD);
    pb_panel<STEP>(to, key, s.row[1], s.element[1], step * STEP, columns, width);
    pb_panel<STEP>(to + STEP * LD, value, s.row[2], s.element[2], step * STEP, columns, width);
    pb_commit();
  };
  const int seen = CAUSAL && first + OWN < columns ? first + OWN : columns;
  const int steps = (seen + STEP - 1) / STEP, own = first + warp * TM * 16;
  pb_panel<OWN>(shared, query, s.row[0], s.element[0], first, rows, width);
  load(0);
  Left left(shared);
  const Dropout dropout(words, s, head);
  float sums[TM][DN][4], top[TM][2], total[TM][2];
  pb_clear(sums);
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      top[i][h] = PB_NOTHING;
      total[i][h] = 0;
    }
  const float scale = (float)s.scale * LOG2E;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    pb_wait<0>();
    __syncthreads();
    if (step == 0) left.load();
    if (step + 1 < steps) load(step + 1);
    const int column = step * STEP;
    if (CAUSAL && column >= own + TM * 16) continue;
    const Stored* panel = other + step % 2 * (2 * STEP * LD);
    float p[TM][SN][4];
    pb_scores(p, left, panel);
    if (MASK || column + STEP > columns || (CAUSAL && column + STEP > own + 1)) {
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < SN; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int c = column + j * 8 + lane % 4 * 2 + e % 2, r = own + i * 16 + e / 2 * 8 + lane / 4;
            if (!pb_sees(mask, s, r, c)) p[i][j][e] = PB_NOTHING;
          }
    }
    float most[TM][2];
    bool grown = false;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float& x = most[i][h];
        x = top[i][h];
#pragma unroll
        for (int j = 0; j < SN; ++j) x = fmaxf(x, fmaxf(p[i][j][h * 2], p[i][j][h * 2 + 1]));
        x = fmaxf(x, __shfl_sync(~0u, x, lane ^ 1, 32));
        x = fmaxf(x, __shfl_sync(~0u, x, lane ^ 2, 32));
        grown |= (x - top[i][h]) * scale > LAG;
      }
    // Weights are relative to a score that is at most 2^LAG below the largest: it seldom changes.
    if (__ballot_sync(~0u, grown)) {
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const bool larger = (most[i][h] - top[i][h]) * scale > LAG;
          const float old = larger ? pb_power((top[i][h] - most[i][h]) * scale) : 1.0f;
          if (larger) top[i][h] = most[i][h];
          total[i][h] *= old;
#pragma unroll
          for (int n = 0; n < DN; ++n) {
            sums[i][n][h * 2] *= old;
            sums[i][n][h * 2 + 1] *= old;
          }
        }
    }
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float origin = top[i][h] == PB_NOTHING ? 0.0f : top[i][h] * scale;
        float sum = total[i][h];
#pragma unroll
        for (int j = 0; j < SN; ++j)
#pragma unroll
          for (int e = h * 2; e < h * 2 + 2; ++e) {
            p[i][j][e] = pb_power(pb_fma(p[i][j][e], scale, -origin));
            sum += p[i][j][e];
            const int c = column + j * 8 + lane % 4 * 2 + e % 2, r = own + i * 16 + h * 8 + lane / 4;
            if (DROPOUT && !dropout.keeps(r, c)) p[i][j][e] = 0;
          }
        total[i][h] = sum;
      }
    pb_weigh(sums, p, panel + STEP * LD);
  }
  out += head * s.packed;
  float* logarithms = reinterpret_cast<float*>(out);
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = total[i][h];
      sum += __shfl_sync(~0u, sum, lane ^ 1, 32);
      sum += __shfl_sync(~0u, sum, lane ^ 2, 32);
      const int row = own + i * 16 + h * 8 + lane / 4;
      if (row < rows && lane % 4 == 0) logarithms[row] = pb_fma(top[i][h], scale, log2f(sum));
      total[i][h] = sum == 0 ? 0.0f : (DROPOUT ? (float)s.factor : 1.0f) / sum;
    }
  pb_leave(out + s.start, sums, own, rows, width, [&](int i, int h) { return total[i][h]; });
}
